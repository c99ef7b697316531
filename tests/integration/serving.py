"""What the tests of the emulator's server share: a server to speak to, and what may go wrong
between the two: `txn serve` in a process of its own, and a wire that can be cut."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import thriftpy2
from thriftpy2.protocol import TCompactProtocol, TCyBinaryProtocol
from thriftpy2.thrift import TClient
from thriftpy2.transport import TCyBufferedTransport, TCyFramedTransport, TSocket

from txn import Engine, connect
from txn.clock import SystemClock
from txn.protocol.statuses import ProtocolName
from txn.server.connection import ServedInterface
from txn.server.options import Limits, listen
from txn.server.ports import Server
from txn.service.client import connect_server
from txn.service.messages import IDL
from txn.service.server import Transactional
from txn.stores.base import Store
from txn.stores.local import LocalStore
from txn.tables.kv.memory import MemoryStore

ECHO = thriftpy2.load(
    str(Path(__file__).with_name("echo.thrift")), module_name="txn_tests_echo_thrift"
)
PATIENCE_S = 120
MODES: dict[str, tuple[Any, Any]] = {
    "buffered binary": (TCyBufferedTransport, TCyBinaryProtocol),
    "framed binary": (TCyFramedTransport, TCyBinaryProtocol),
    "buffered compact": (TCyBufferedTransport, TCompactProtocol),
    "framed compact": (TCyFramedTransport, TCompactProtocol),
    "buffered binary without a version": (
        TCyBufferedTransport,
        lambda transport: TCyBinaryProtocol(transport, strict_read=False, strict_write=False),
    ),
    "framed binary without a version": (
        TCyFramedTransport,
        lambda transport: TCyBinaryProtocol(transport, strict_read=False, strict_write=False),
    ),
}


class Echo:
    """Carries out the test service. `wait` returns when the test lets it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let = threading.Event()
        self.told: list[bytes] = []

    def same(self, whole: Any) -> Any:
        return whole

    def wait(self, name: bytes) -> bytes:
        self.entered.set()
        assert self.let.wait(PATIENCE_S)
        return name

    def fail(self, declared: bool) -> None:
        raise ECHO.Declared("as agreed") if declared else ZeroDivisionError("nobody's business")

    def tell(self, name: bytes) -> None:
        self.told.append(name)

    def large(self, size: int) -> bytes:
        return bytes(size)


@contextmanager
def hosting(hosted: Transactional) -> Iterator[int]:
    """The port of a service in this process."""
    with Server([(listen("127.0.0.1", 0), hosted.service)]) as server:
        yield server.ports[0]
    hosted.flush()


@dataclass(frozen=True, slots=True)
class Here:
    """A server in this process, its store, and an engine behind it for the table data."""

    port: int
    store: Store
    engine: Engine

    @property
    def uri(self) -> str:
        return f"txn://127.0.0.1:{self.port}"


@contextmanager
def served_here(store: Store | None = None, protocol: ProtocolName | None = None) -> Iterator[Here]:
    """Transactions over a store."""
    store = store or LocalStore(MemoryStore(), SystemClock())
    with (
        hosting(Transactional(store, protocol=protocol)) as port,
        connect(f"txn://127.0.0.1:{port}", table="data") as engine,
    ):
        engine.ensure_table("data", ["d"])
        yield Here(port, store, engine)


def unasked(uri: str) -> Engine:
    """An engine whose server is not asked for its database, as `connect` asks it."""
    return Engine.over(connect_server(uri), "data")


def plain(port: int) -> AbstractContextManager[Any]:
    """A client of transactions as thriftpy2 makes it of the interface."""
    return client(port, service=IDL.Transactional)


@contextmanager
def echo_server(limits: Limits | None = None, **details: Any) -> Iterator[tuple[int, Echo, Server]]:
    """The test service on a port, in this process."""
    echo = Echo()
    listening = listen("127.0.0.1", 0)
    server = Server([(listening, ServedInterface(ECHO.Echo, echo))], limits, **details)
    with server:
        try:
            yield server.ports[0], echo, server
        finally:
            echo.let.set()


@contextmanager
def client(port: int, mode: str = "buffered binary", service: Any = ECHO.Echo) -> Iterator[Any]:
    """A client of a service, as thriftpy2 makes them."""
    transport, protocol = MODES[mode]
    wire = transport(TSocket("127.0.0.1", port, socket_timeout=PATIENCE_S * 1000))
    wire.open()
    try:
        yield TClient(service, protocol(wire))
    finally:
        wire.close()


@contextmanager
def raw(port: int) -> Iterator[socket.socket]:
    """A bare connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connected:
        yield connected


def rest(connected: socket.socket) -> bytes:
    """What the server still says until it closes the connection."""
    said = b""
    with suppress(ConnectionError):
        while more := connected.recv(65536):
            said += more
    return said


@dataclass(slots=True)
class Served:
    """A `txn serve` in a process of its own."""

    process: subprocess.Popen[str]
    ports: dict[str, int]
    uris: dict[str, str]
    log: Path

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


@contextmanager
def served(store: str, log: Path, *arguments: str) -> Iterator[Served]:
    """Run `txn serve` on a store, on free ports unless told otherwise."""
    command = [sys.executable, "-c", "from recovery.commands import main; main()", "serve"]
    command += ["--store", store, "--json", *arguments]
    with log.open("a") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        told = json.loads(line)
        yield Served(process, told["ports"], told["uris"], log)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        process.stdout.close()


class Wire:
    """A port that passes everything on to another one, until it is told to lose an answer, or what
    is asked; then the connection is cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.lose: Callable[[bytes], bool] = lambda answer: False
        self.lose_asked: Callable[[bytes], bool] = lambda asked: False
        self.lost = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen)]
        self._open: list[socket.socket] = []
        self._threads[0].start()

    def close(self) -> None:
        for each in (self._listening, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._port))
                except ConnectionError:  # the other port is closed, perhaps for a while
                    near.close()
                    continue
                self._open += [near, far]
                for way in ((near, far, False), (far, near, True)):
                    self._threads.append(threading.Thread(target=self._pump, args=way))
                    self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.lose(data) if back else self.lose_asked(data):
                    self.lost += 1
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire(port: int) -> Iterator[Wire]:
    on_progress = Wire(port)
    try:
        yield on_progress
    finally:
        on_progress.close()
