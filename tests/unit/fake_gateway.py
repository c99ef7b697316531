"""A Thrift 2 gateway in a thread, which answers without thinking and fails when it is told to."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from thriftpy2.protocol import TCompactProtocol, TCyBinaryProtocol
from thriftpy2.thrift import TProcessor
from thriftpy2.transport import (
    TCyBufferedTransport,
    TCyFramedTransport,
    TSocket,
    TTransportException,
)

from tests.unit.fake_server import FakeServer
from txn.stores.hbase.thrift2 import IDL


class Break(Exception):
    """Close the connection instead of answering."""


class FakeGateway(FakeServer):
    """What it was asked, and what it does before it answers.

    names: of the requests, in the order of arrival. before: called with the number of the request
    (from 1) and its name; may raise Break or an exception of the service, or wait. value: of each
    row that is got, if any.
    """

    def __init__(self, *, framed_and_compact: bool = False) -> None:
        self._transport = TCyFramedTransport if framed_and_compact else TCyBufferedTransport
        self._protocol = TCompactProtocol if framed_and_compact else TCyBinaryProtocol
        self.tls: ssl.SSLContext | None = None
        self.names: list[str] = []
        self.before: Callable[[int, str], object] = lambda number, name: None
        self.value = b""
        self.at_once = self.most_at_once = 0
        super().__init__()

    @property
    def uri(self) -> str:
        return f"hbase+thrift2://{self.address}"

    def count_open(self) -> int:
        """Return how many connections clients have open."""
        return sum(thread.is_alive() for thread in self._threads[1:])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in IDL.THBaseService.thrift_services:
            raise AttributeError(name)

        def answer(*arguments: Any) -> Any:
            with self._lock:
                self.names.append(name)
                number = len(self.names)
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                self.before(number, name)
            finally:
                with self._lock:
                    self.at_once -= 1
            return _answer(name, arguments, self.value)

        return answer

    def _serve(self, connection: socket.socket) -> None:
        processor = TProcessor(IDL.THBaseService, self)
        with suppress(OSError, TTransportException, Break):
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with connection:
                protocol = self._protocol(self._transport(TSocket(sock=connection)))
                while True:
                    processor.process(protocol, protocol)


def _answer(name: str, arguments: tuple[Any, ...], value: bytes) -> Any:
    match name:
        case "getMultiple":
            cells = [IDL.TColumnValue(b"d", b"x", value, 1)] if value else []
            return [IDL.TResult(None, cells) for _ in arguments[1]]
        case "checkAndPut" | "checkAndDelete" | "checkAndMutate":
            return True
        case "isTableEnabled":
            return True
        case "getTableDescriptor":
            family = IDL.TColumnFamilyDescriptor(name=b"d", maxVersions=3, timeToLive=2_147_483_647)
            return IDL.TTableDescriptor(arguments[0], [family], {}, 0)
        case "deleteMultiple" | "getScannerResults":
            return []
        case _:
            return None


def fake_gateway(*, framed_and_compact: bool = False) -> closing[FakeGateway]:
    return closing(FakeGateway(framed_and_compact=framed_and_compact))
