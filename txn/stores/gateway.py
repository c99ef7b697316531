"""One connection to a Thrift gateway of HBase, and the URI that says how to make it.

Requests are sent and their replies received in two steps, so that one thread can have requests in
flight on many connections. A gateway reads a connection's next request when it has answered the
one before. A connection is used again only while it is at rest: no request of it is unanswered.
Every wait ends at the deadline of the call that waits.

hbase+thrift2://host:9090?transport=framed&protocol=compact&pool=16&timeout_ms=30000&tls=on&ca=file
"""

from __future__ import annotations

import ssl
from collections import deque
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, cast
from urllib.parse import SplitResult

from thriftpy2.protocol import TCompactProtocol, TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType, TPayload
from thriftpy2.transport import TCyBufferedTransport, TCyFramedTransport

from txn.clock import Clock
from txn.errors import InvalidRequestError
from txn.stores.options import (
    Option,
    file,
    hide_login,
    number,
    one_of,
    parse_address,
    read_options,
)
from txn.stores.wire import Wire, connect_socket

DEFAULT_PORT = 9090
BUFFER = 16_384
AHEAD_BYTES = 32_768  # what a socket takes in while nobody reads from it, and more
CALL, EXCEPTION = TMessageType.CALL, TMessageType.EXCEPTION
IDLE_MS = 1_000  # a connection that rested for longer may have been closed by the gateway

Request = tuple[str, TPayload]
"""The name of a method of the service, and its arguments."""


class GatewayError(Exception):
    """The gateway answered a request with an error, its cause; the connection is as good as new.
    table: which the request was about, if it was about one."""

    table: bytes | None = None


class Garbled(Exception):
    """What came is no reply of Thrift's to the request; the connection is of no more use."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where a gateway is and how it wants to be spoken to. The defaults are HBase's own."""

    host: str
    port: int = DEFAULT_PORT
    transport: Literal["buffered", "framed"] = "buffered"
    protocol: Literal["binary", "compact"] = "binary"
    pool: int = 16
    timeout_ms: int = 30_000
    connect_ms: int = 5_000
    tls: Literal["off", "on"] = "off"
    ca: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_gateway(parts: SplitResult, usual_port: int = DEFAULT_PORT) -> Gateway:
    """Return the gateway of a URI; InvalidRequestError says what is wrong with a bad one."""
    if parts.path not in {"", "/"} or not parts.netloc or "@" in parts.netloc:
        raise InvalidRequestError(
            f"write {parts.scheme}://host:port, and options after a ?",
            uri=hide_login(parts.geturl()),
        )
    host, port = parse_address(parts.netloc, usual_port)
    options = read_options(parts, _OPTIONS)
    if "ca" in options:
        options["tls"] = "on"
    return Gateway(host, port, **options)


_OPTIONS: dict[str, Option] = {
    "ca": file,
    "connect_ms": number,
    "pool": number,
    "protocol": one_of("binary", "compact"),
    "timeout_ms": number,
    "tls": one_of("off", "on"),
    "transport": one_of("buffered", "framed"),
}


def list_results(service: ModuleType) -> dict[str, type[TPayload]]:
    """Return the classes of the results of a Thrift service's methods, by name."""
    return {name: getattr(service, name + "_result") for name in service.thrift_services}


class Connection:
    """A socket to a gateway. `busy` while there is a request whose reply has not been read.

    used_ms: when a reply was last waited for, or when it was opened, by the monotonic clock.
    """

    __slots__ = (
        *("_answered", "_is_framed", "_monotonic_ms"),
        *("_protocol", "_results", "_sent", "_tables", "_transport", "_wire", "used_ms"),
    )

    def __init__(
        self,
        gateway: Gateway,
        results: dict[str, type[TPayload]],
        clock: Clock,
        tls: ssl.SSLContext | None,
        due_ms: int,
    ) -> None:
        """Connect; OSError (which covers time-outs and TLS) where that fails."""
        self._monotonic_ms = clock.monotonic_ms
        self.used_ms = clock.monotonic_ms()
        within_ms = min(gateway.connect_ms, due_ms - self.used_ms)
        if within_ms <= 0:
            raise TimeoutError("timed out")
        self._wire = Wire(connect_socket(gateway.host, gateway.port, within_ms, tls))
        self._is_framed = gateway.transport == "framed"
        kind = TCyFramedTransport if self._is_framed else TCyBufferedTransport
        self._transport = kind(self._wire, BUFFER)
        compact = gateway.protocol == "compact"
        protocol: Any = TCompactProtocol if compact else TCyBinaryProtocol
        self._protocol: Any = protocol(self._transport)
        self._results = results
        self._sent = self._answered = 0
        self._tables: deque[object] = deque()  # of the requests whose replies are missing

    @property
    def busy(self) -> bool:
        """Whether a reply is missing."""
        return self._sent != self._answered

    def send(self, request: Request, due_ms: int, *, is_last: bool = True) -> None:
        """Send a request. While a reply is missing, only one that the gateway can take without
        reading it, which is one of at most `AHEAD_BYTES`; or any, if few and short ones are.
        is_last: send it now; others wait for `flush`, but for a frame, which never does."""
        name, arguments = request
        self._sent = sequence = self._sent + 1
        self._tables.append(next(iter(arguments.__dict__.values()), None))
        self._wire.limit(self._monotonic_ms(), due_ms)
        protocol = self._protocol
        protocol.write_message_begin(name, CALL, sequence)
        protocol.write_struct(arguments)
        protocol.write_message_end()
        if is_last or self._is_framed:
            self._transport.flush()

    def flush(self) -> None:
        """Send the requests that wait for it, together."""
        if not self._is_framed:
            self._transport.flush()

    def receive(self, due_ms: int) -> Any:
        """Wait for the next reply and return its value. Raises GatewayError where it is an error,
        Garbled where it is none, and OSError where it does not come."""
        self.used_ms = self._monotonic_ms()
        self._wire.limit(self.used_ms, due_ms)
        protocol = self._protocol
        try:
            name, kind, sequence = protocol.read_message_begin()
            reply = TApplicationException() if kind == EXCEPTION else self._results[name]()
            protocol.read_struct(reply)
            protocol.read_message_end()
        except OSError:
            raise
        except Exception as cause:  # whatever the driver stumbles over in such bytes
            raise Garbled(f"not a reply: {type(cause).__name__}: {cause}") from cause
        if sequence != self._answered + 1:
            raise ConnectionError("the reply is another request's")
        self._answered = sequence
        table = self._tables.popleft()
        if kind == EXCEPTION:
            raise GatewayError(str(reply)) from cast(Exception, reply)
        fields = reply.__dict__
        found = fields.get("success")
        if found is None:
            for name, error in fields.items():
                if error is not None and name != "success":
                    message = getattr(error, "message", None) or type(error).__name__
                    refused = GatewayError(message)
                    refused.table = table if isinstance(table, bytes) else None
                    raise refused from error
        return found

    def rests_well(self, now_ms: int) -> bool:
        """Whether it may carry the next request, as far as can be known without sending one."""
        if self._sent != self._answered:
            return False
        return now_ms - self.used_ms < IDLE_MS or not self._wire.is_readable()

    def close(self) -> None:
        """Close this process's end. A copy in another process, after a fork, stays usable."""
        self._wire.close()
