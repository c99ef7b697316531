"""Connections to one Thrift gateway of HBase, parallel requests over them, and the gateway's URI.

A call needs no threads. It sends its requests on all free connections, several ahead on each if the
replies are short, and then reads the replies in the same order. A gateway reads a connection's next
request after it has answered the previous one. A connection that failed, or has an unread reply, is
thrown away. A failure before a request was sent is NotApplied; a later one, until its reply has
been read, is MaybeApplied. Every wait ends at the deadline of its call.

hbase+thrift2://host:9090?transport=framed&protocol=compact&pool=16&timeout_ms=30000&tls=on&ca=file
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from ssl import SSLContext
from threading import Lock
from types import ModuleType as Service
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import SplitResult

from thriftpy2.protocol import TCompactProtocol, TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType
from thriftpy2.transport import TCyBufferedTransport, TCyFramedTransport

from txn.clock import Clock, limit_due
from txn.errors import InvalidRequestError, MaybeApplied, NotApplied, StoreClosedError, annotate
from txn.host.forks import start_in_each_process
from txn.host.lending import Lender, Loan
from txn.stores.options import Option, file, hide_login, number, one_of, parse_address, read_options
from txn.stores.wire import NS_PER_MS, Wire, connect_socket, trust

DEFAULT_PORT = 9090
BUFFER = 16_384
AHEAD_BYTES = 32_768  # a socket buffers at least this much while its peer does not read
CALL, REPLY, EXCEPTION = TMessageType.CALL, TMessageType.REPLY, TMessageType.EXCEPTION
MOST_CONNECTIONS = 65_535  # to one port, whatever the pool
IDLE_MS = 1_000  # the gateway may have closed a connection that was idle for longer

T = TypeVar("T")

Request = tuple[str, tuple[Any, ...], Callable[[Any], T]]
"""A method name of the service, its arguments, and a function from the reply to the result."""


class GatewayError(Exception):
    """An error reply of the gateway, with its cause; the connection stays usable."""

    table: bytes | None = None


class Garbled(OSError):
    """The received bytes are no valid reply to the request; the connection is useless."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """The address and options of a gateway. The defaults are HBase's own."""

    host: str
    port: int = DEFAULT_PORT
    transport: Literal["buffered", "framed"] = "buffered"
    protocol: Literal["binary", "compact"] = "binary"
    pool: int = 16
    timeout_ms: int = 30_000
    connect_ms: int = 5_000
    reply_mb: int = 256
    tls: Literal["off", "on"] = "off"
    ca: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_gateway(parts: SplitResult, usual_port: int = DEFAULT_PORT) -> Gateway:
    if parts.path not in {"", "/"} or not parts.netloc or "@" in parts.netloc:
        message = f"write {parts.scheme}://host:port, and options after a ?"
        raise InvalidRequestError(message, uri=hide_login(parts.geturl()))
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
    "reply_mb": number,
    "timeout_ms": number,
    "tls": one_of("off", "on"),
    "transport": one_of("buffered", "framed"),
}


class Term(NamedTuple):
    """When a connection is lent, and until when: by the pool's clock, and by the system's."""

    now_ms: int
    due_ms: int
    due_ns: int


class Connection:
    """A socket to a gateway; `busy` while a reply has not been read. It is lent for a `term`."""

    __slots__ = (
        *("_answered", "_is_framed", "_protocol", "_sent", "_service"),
        *("_transport", "_wire", "busy", "term"),
    )

    def __init__(
        self, gateway: Gateway, service: Service, tls: SSLContext | None, term: Term, within_ms: int
    ) -> None:
        """Connect, and begin a term; raise OSError (which covers time-outs and TLS) on failure."""
        if within_ms <= 0:
            raise TimeoutError("timed out")
        within_ms = min(gateway.connect_ms, within_ms)
        connected = connect_socket(gateway.host, gateway.port, within_ms, tls)
        self._wire = Wire(connected, gateway.reply_mb << 20)
        self._is_framed = gateway.transport == "framed"
        kind = TCyFramedTransport if self._is_framed else TCyBufferedTransport
        self._transport = kind(self._wire, BUFFER)
        compact = gateway.protocol == "compact"
        protocol: Any = TCompactProtocol if compact else TCyBinaryProtocol
        self._protocol: Any = protocol(self._transport)
        self._service = service
        self._sent = self._answered = 0
        self.busy = False
        self.term = term
        self._wire.due_ns = term.due_ns

    def begin(self, term: Term) -> bool:
        """Begin a term, of which no wait lasts much beyond the deadline. Return False if the idle
        connection seems unable to carry a request; none is sent."""
        if term.now_ms - self.term.now_ms >= IDLE_MS and self._wire.is_readable():
            return False
        self.term = term
        self._wire.due_ns = term.due_ns
        return True

    def ask(self, name: str, *arguments: Any) -> Any:
        return self.call((name, arguments, lambda reply: reply))

    def call(self, request: Request[T]) -> T:
        self.send(request)
        return self.receive(request)

    def send(self, request: Request[Any], *, is_last: bool = True) -> None:
        """Send a request. While a reply is missing, send only a request that the gateway can buffer
        unread: one of at most `AHEAD_BYTES`, or any if they are few and short. is_last: send now;
        otherwise together with the next one, except that a frame is always sent at once."""
        name, arguments, _ = request
        self.busy = True
        self._sent = sequence = self._sent + 1
        protocol = self._protocol
        protocol.write_message_begin(name, CALL, sequence)
        protocol.write_struct(getattr(self._service, f"{name}_args")(*arguments))
        protocol.write_message_end()
        if is_last or self._is_framed:
            self._transport.flush()

    def receive(self, request: Request[T]) -> T:
        """Wait for the reply to the oldest request without one; return the result. Raise
        GatewayError: it is an error; Garbled: it is invalid; OSError: it does not come."""
        method, arguments, make_result = request
        reply = self._read_reply(method)
        found = reply.__dict__.get("success")
        if found is None:
            errors = (reply,) if isinstance(reply, TApplicationException) else vars(reply).values()
            for error in errors:
                if error is not None:
                    self.busy = self._answered != self._sent
                    raise _make_error(error, arguments) from error
            if 0 in reply.thrift_spec:
                raise Garbled(annotate("the reply has no result", method=method))
        result = make_result(found)
        self.busy = self._answered != self._sent
        return result

    def _read_reply(self, method: str) -> Any:
        protocol = self._protocol
        self._wire.begin_reply()
        try:
            name, kind, sequence = protocol.read_message_begin()
            if (name, sequence) != (method, self._answered + 1) or kind not in (REPLY, EXCEPTION):
                facts = {"method": method, "got": name, "kind": kind}
                raise ConnectionError(annotate("the reply is another request's", **facts))
            is_error = kind == EXCEPTION
            make = TApplicationException if is_error else getattr(self._service, f"{name}_result")
            reply = make()
            protocol.read_struct(reply)
            protocol.read_message_end()
        except OSError:
            raise
        except Exception as cause:  # the driver may raise anything on such bytes
            raise Garbled(f"not a reply: {type(cause).__name__}: {cause}") from cause
        self._answered = sequence
        return reply

    def close(self) -> None:
        """Close this process's end. A copy in another process, after a fork, stays usable."""
        self._wire.close()


class Pool:
    """At most `gateway.pool` connections to a Thrift service; safe for threads and across fork."""

    def __init__(self, gateway: Gateway, service: Service, clock: Clock) -> None:
        self.gateway = gateway
        self._service = service
        self._clock = clock
        self._tls = trust(gateway.tls, gateway.ca)
        self._lender: Lender[Connection] = Lender(0, clock.monotonic_ms, Connection.close)
        start_in_each_process(self._start)

    def _start(self) -> None:
        inherited = self._lender  # the parent's: two processes would mix up their replies
        most = min(self.gateway.pool, MOST_CONNECTIONS)
        self._lender = Lender(most, self._clock.monotonic_ms, Connection.close)
        self._lender.is_closed = inherited.is_closed
        for connection in inherited.free:
            connection.close()

    def run_one(
        self, work: Callable[..., T], *arguments: Any, repeat: bool, within_ms: int | None = None
    ) -> T:
        """Call a function with a connection and the arguments; return its result.

        repeat: it may be called once more if the connection breaks.
        within_ms: a time limit shorter than the gateway's.
        Raises GatewayError if the gateway answered with an error.
        """
        now_ms, limit_ms = self._clock.monotonic_ms(), self.gateway.timeout_ms
        wait_ms = limit_ms if within_ms is None else min(limit_ms, within_ms)
        due_ms = limit_due(now_ms, now_ms + wait_ms)
        term = Term(now_ms, due_ms, time.monotonic_ns() + (due_ms - now_ms) * NS_PER_MS)
        lost: OSError | None = None
        while True:
            try:
                with (hold := Lock()):
                    loan = self._lender.open_loan(hold)
                    try:
                        return work(self._take(loan, term), *arguments)
                    finally:
                        self._give_back(loan)
            except (NotApplied, StoreClosedError):
                if lost is None:
                    raise
                raise self._make_unanswered(lost) from lost  # the first request was sent
            except OSError as error:
                if not repeat or not isinstance(error, ConnectionError):
                    raise self._make_unanswered(error) from error
                lost = error
            repeat, term = False, term._replace(now_ms=self._clock.monotonic_ms())

    def run(
        self, requests: list[Request[T]], *, repeat: bool, ahead: int = 1, most: int | None = None
    ) -> list[T]:
        """Carry out requests in parallel and return their results, in order.

        ahead: unanswered requests per connection; more than one only if all replies are short, or
        the requests behind the first long reply.
        most: of the connections to use.
        See `run_one` for the rest. After an error, the other requests may have taken effect.
        """
        if len(requests) == 1:
            return [self.run_one(Connection.call, requests[0], repeat=repeat)]
        if not requests:
            return []
        most = len(requests) if most is None else most
        return self.run_one(self.send_all, requests, ahead, most, repeat=repeat)

    def send_all(
        self, first: Connection, requests: Sequence[Request[T]], ahead: int, most: int
    ) -> list[T]:
        """Carry out requests over a connection, and at most so many with those that it takes. It
        takes half of the free ones: with many busy threads, each does best with sequential
        requests. If some cannot be opened, it uses fewer."""
        connections = [first]
        with (hold := Lock()):
            loan = self._lender.open_loan(hold)
            try:
                wanted = min(most, 1 + (self._lender.count_free() + 1) // 2)
                with suppress(NotApplied):
                    while len(connections) < wanted and self._lender.try_take(loan):
                        connections.append(self._begin(loan, first.term))
                return exchange(connections, requests, ahead)
            finally:
                self._give_back(loan)

    def close(self) -> None:
        """Close the idle connections now, and the busy ones when they are returned."""
        self._lender.close()

    def _make_unanswered(self, error: OSError) -> MaybeApplied:
        words = "no valid answer" if isinstance(error, Garbled) else "no answer"
        return MaybeApplied(self._describe(f"{words} from the gateway", error))

    def _describe(self, message: str, error: Exception) -> str:
        cause = str(error) or type(error).__name__
        return annotate(message, gateway=str(self.gateway), cause=cause)

    def _take(self, loan: Loan[Connection], term: Term) -> Connection:
        if not self._lender.try_take(loan, is_first=True):
            if not self._lender.wait(loan, term.due_ms):
                if self._lender.is_closed:
                    raise StoreClosedError("the store is closed", gateway=str(self.gateway))
                facts = {"gateway": str(self.gateway), "pool": self.gateway.pool}
                raise NotApplied("no connection came free in time", **facts)
            term = term._replace(now_ms=self._clock.monotonic_ms())
        return self._begin(loan, term)

    def _begin(self, loan: Loan[Connection], term: Term) -> Connection:
        """Return the last connection of a loan, or a new one in its place, for the term."""
        found = loan[-1]
        if found is not None and found.begin(term):
            return found
        loan[-1] = None
        try:
            if found is not None:
                found.close()
            within_ms = term.due_ms - self._clock.monotonic_ms()
            made = Connection(self.gateway, self._service, self._tls, term, within_ms)
        except OSError as error:
            message = self._describe("cannot connect to the gateway", error)
            raise NotApplied(message) from error
        loan[-1] = made
        return made

    def _give_back(self, loan: Loan[Connection]) -> None:
        for place, connection in enumerate(loan):
            if connection is not None and connection.busy:
                connection.close()
                loan[place] = None
        loan.end()


def _make_error(error: Any, arguments: tuple[Any, ...]) -> GatewayError:
    is_thrifts = isinstance(error, TApplicationException)
    name = f"error {error.type} of Thrift" if is_thrifts else type(error).__name__
    refused = GatewayError(error.__dict__.get("message") or name)
    table = arguments[0] if arguments else None
    refused.table = table if isinstance(table, bytes) else None
    return refused


def check_reply(make: Callable[..., T]) -> Callable[..., T]:
    """Wrap a function of replies, so that it raises Garbled where one is not as declared: what is
    missing, or of another kind, is None to the driver, or empty."""

    @wraps(make)
    def check(*arguments: Any) -> T:
        try:
            return make(*arguments)
        except (GatewayError, OSError):
            raise
        except Exception as cause:
            words = f"the reply is not as declared: {type(cause).__name__}: {cause}"
            raise Garbled(words) from cause

    return check


def require_whole(*fields: object) -> None:
    """Raise Garbled if one of these fields of a reply is missing."""
    if None in fields:
        raise Garbled("a field is missing in the reply")


def exchange(connections: list[Connection], requests: Sequence[Request[T]], ahead: int) -> list[T]:
    """Carry out requests on some connections; return their results, in order. The first requests
    are sent together, up to `ahead` per connection; then each reply lets one more follow."""
    share = min(ahead, -(-len(requests) // len(connections)))
    carriers: list[Connection] = []  # of the requests that were sent, in order
    for place, connection in enumerate(connections):
        part = requests[place * share : (place + 1) * share]
        for request in part:
            connection.send(request, is_last=request is part[-1])
            carriers.append(connection)
    rest = iter(requests[len(carriers) :])
    results: list[T] = []
    for place, request in enumerate(requests):
        connection = carriers[place]
        results.append(connection.receive(request))
        if (following := next(rest, None)) is not None:
            connection.send(following)
            carriers.append(connection)
    return results
