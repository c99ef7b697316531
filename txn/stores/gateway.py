"""Connections to one Thrift gateway of HBase, parallel requests over them, and the gateway's URI.

A call needs no threads. It sends its requests on all free connections, several ahead on each if the
replies are short, and then reads the replies in the same order. A gateway reads a connection's next
request after it has answered the previous one. A connection that failed, or has an unread reply, is
thrown away. A failure before a request was sent is NotApplied; a later one, until its reply has
been read, is MaybeApplied. Every wait ends at the deadline of its call.

hbase+thrift2://host:9090?transport=framed&protocol=compact&pool=16&timeout_ms=30000&tls=on&ca=file
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, RLock
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar, cast
from urllib.parse import SplitResult

from thriftpy2.protocol import TCompactProtocol, TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType, TPayload
from thriftpy2.transport import TCyBufferedTransport, TCyFramedTransport

from txn.clock import Clock, limit_due
from txn.errors import InvalidRequestError, MaybeApplied, NotApplied, StoreClosedError, annotate
from txn.host.forks import start_in_each_process
from txn.stores.options import (
    Option,
    file,
    hide_login,
    number,
    one_of,
    parse_address,
    read_options,
)
from txn.stores.wire import Wire, connect_socket, trust

DEFAULT_PORT = 9090
BUFFER = 16_384
AHEAD_BYTES = 32_768  # a socket buffers at least this much while its peer does not read
CALL, EXCEPTION = TMessageType.CALL, TMessageType.EXCEPTION
IDLE_MS = 1_000  # the gateway may have closed a connection that was idle for longer

T = TypeVar("T")

Request = tuple[str, TPayload]
"""A method name of the service and its arguments."""

Job = Generator[Request, Any, T]
"""Requests in sequence: a generator yields each request, gets its reply and returns a result."""


class GatewayError(Exception):
    """An error reply of the gateway, with its cause; the connection stays usable."""

    table: bytes | None = None


class Garbled(OSError):
    """The received bytes are no valid Thrift reply; the connection is useless."""


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


def make_requests(service: ModuleType) -> Callable[..., Request]:
    """Return the function that builds a request from a method name and its arguments."""
    kinds = {name: getattr(service, name + "_args") for name in service.thrift_services}
    return lambda name, *arguments: (name, kinds[name](*arguments))


def run_request(request: Request) -> Job[None]:
    yield request


class Connection:
    """A socket to a gateway; `busy` while a reply has not been read. used_ms: the monotonic time
    when it was opened or last waited for a reply."""

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
        """Connect; raise OSError (which covers time-outs and TLS) on failure."""
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
        self._tables: deque[object] = deque()  # of the requests without a reply

    @property
    def busy(self) -> bool:
        return self._sent != self._answered

    def send(self, request: Request, due_ms: int, *, is_last: bool = True) -> None:
        """Send a request. While a reply is missing, send only a request that the gateway can buffer
        unread: one of at most `AHEAD_BYTES`, or any if they are few and short. is_last: send now;
        otherwise wait for `flush`, except that a frame is always sent at once."""
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
        """Send the buffered requests together."""
        if not self._is_framed:
            self._transport.flush()

    def receive(self, due_ms: int) -> Any:
        """Wait for the next reply and return its value. Raise GatewayError if it is an error,
        Garbled if it is invalid, and OSError if it does not come."""
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
        except Exception as cause:  # the driver may raise anything on such bytes
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
        """Return True if it seems able to carry the next request, without sending one."""
        if self._sent != self._answered:
            return False
        return now_ms - self.used_ms < IDLE_MS or not self._wire.is_readable()

    def close(self) -> None:
        """Close this process's end. A copy in another process, after a fork, stays usable."""
        self._wire.close()


class Pool:
    """At most `gateway.pool` connections to a Thrift service; safe for threads and across fork."""

    def __init__(self, gateway: Gateway, service: ModuleType, clock: Clock) -> None:
        self.gateway = gateway
        self._results = {
            name: getattr(service, name + "_result") for name in service.thrift_services
        }
        self._clock = clock
        self._tls = trust(gateway.tls, gateway.ca)
        self._closed = False
        self._idle: list[Connection] = []
        start_in_each_process(self._start)

    def _start(self) -> None:
        inherited = self._idle  # the parent's: two processes would mix up their replies
        self._lock = RLock()  # for all fields below; faster to enter than a Condition
        self._changed = Condition(self._lock)
        self._idle = []
        self._open = self._waiting = 0
        for connection in inherited:
            connection.close()

    def run(
        self,
        jobs: Callable[[], Sequence[Job[T]]],
        *,
        repeat: bool,
        ahead: int = 1,
        connections: int | None = None,
    ) -> list[T]:
        """Run the jobs and return their results, in order.

        repeat: jobs may run once more if a connection breaks.
        ahead: unanswered requests per connection; more than one only if all replies are short.
        connections: the most connections to use.
        Raises GatewayError if the gateway answered with an error; other jobs may have taken effect.
        """
        return self._try(lambda *times: self._run(jobs(), ahead, connections, *times), repeat)

    def run_one(
        self, job: Callable[[], Job[T]], *, repeat: bool, within_ms: int | None = None
    ) -> T:
        """Run a single job as `run` does. within_ms: a time limit shorter than the gateway's."""
        return self._try(lambda *times: self._run_alone(job(), *times), repeat, within_ms)

    def run_beside(self, jobs: Sequence[Job[T]], work: Callable[[], None]) -> list[T] | None:
        """Run a function after the first requests are sent and before their replies are read.

        Return None if the jobs failed, or would have taken the last free connection: a caller that
        holds one connection and waits for another might wait for ever.
        """
        flight = Flight(self._take_spare(len(jobs)), jobs, self._due_ms(self._clock.monotonic_ms()))
        has_begun = False
        try:
            with suppress(OSError):
                has_begun = flight.start()
            work()
            if has_begun:
                with suppress(OSError, GatewayError):
                    return flight.finish()
            return None
        finally:
            self._give_back(flight.connections)

    def close(self) -> None:
        """Close the idle connections now, and the busy ones when they are returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._give_back(idle)
            self._changed.notify_all()

    def _try(
        self, attempt: Callable[[int, int], T], repeat: bool, within_ms: int | None = None
    ) -> T:
        now_ms = self._clock.monotonic_ms()
        due_ms = self._due_ms(now_ms, within_ms)
        while True:
            try:
                return attempt(now_ms, due_ms)
            except OSError as error:
                if not repeat or not isinstance(error, ConnectionError):
                    message = self._describe("no answer from the gateway", error)
                    raise MaybeApplied(message) from error
            repeat, now_ms = False, self._clock.monotonic_ms()

    def _run(
        self, jobs: Sequence[Job[T]], ahead: int, most: int | None, now_ms: int, due_ms: int
    ) -> list[T]:
        if len(jobs) == 1:
            return [self._run_alone(jobs[0], now_ms, due_ms)]
        if not jobs:
            return []
        connections = self._take_connections(most or len(jobs), now_ms, due_ms)
        try:
            flight = Flight(connections, jobs, due_ms)
            flight.start(ahead)
            return flight.finish()
        finally:
            self._give_back(connections)

    def _run_alone(self, job: Job[T], now_ms: int, due_ms: int) -> T:
        connection = self._take_connection(now_ms, due_ms)
        try:
            request = next(job)
            while True:
                connection.send(request, due_ms)
                request = job.send(connection.receive(due_ms))
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            self._give_back((connection,))

    def _describe(self, message: str, error: Exception) -> str:
        cause = str(error) or type(error).__name__
        return annotate(message, gateway=str(self.gateway), cause=cause)

    def _due_ms(self, now_ms: int, within_ms: int | None = None) -> int:
        wait_ms = self.gateway.timeout_ms if within_ms is None else within_ms
        return limit_due(now_ms, now_ms + min(wait_ms, self.gateway.timeout_ms))

    # ---------------------------------------------------------------- lending connections

    def _take_connection(self, now_ms: int, due_ms: int) -> Connection:
        with self._lock:
            while not (connection := self._find_idle(now_ms)):
                if self._closed:
                    raise StoreClosedError("the store is closed", gateway=str(self.gateway))
                if self._open < self.gateway.pool:
                    self._open += 1
                    break
                now_ms = self._wait(due_ms)
        return connection or self._connect(due_ms)

    def _take_connections(self, wanted: int, now_ms: int, due_ms: int) -> list[Connection]:
        """Take at least one connection, waiting for it, and up to half of the other free ones: with
        many busy threads, each does best with sequential requests. On an error, use fewer."""
        connections = [self._take_connection(now_ms, due_ms)]
        try:
            with self._lock:
                wanted = min(wanted, 1 + (self._count_free() + 1) // 2)
            while len(connections) < wanted and (connection := self._take_another(now_ms, due_ms)):
                connections.append(connection)
        except NotApplied:
            pass
        except BaseException:
            self._give_back(connections)
            raise
        return connections

    def _take_another(self, now_ms: int, due_ms: int) -> Connection | None:
        with self._lock:
            connection = self._find_idle(now_ms)
            if connection or self._open >= self.gateway.pool:
                return connection
            self._open += 1
        return self._connect(due_ms)

    def _take_spare(self, wanted: int) -> list[Connection]:
        """Take idle connections, unless callers of this method would then hold all."""
        connections: list[Connection] = []
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            wanted = min(wanted, len(self._idle), self._count_free() - 1)
            while len(connections) < wanted and (connection := self._find_idle(now_ms)):
                connections.append(connection)
        return connections

    def _find_idle(self, now_ms: int) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.rests_well(now_ms):
                return connection
            connection.close()
            self._open -= 1
        return None

    def _wait(self, due_ms: int) -> int:
        left_ms = due_ms - self._clock.monotonic_ms()
        self._waiting += 1
        try:
            is_free = left_ms > 0 and self._changed.wait(left_ms / 1000)
        finally:
            self._waiting -= 1
        if not is_free:
            facts = {"gateway": str(self.gateway), "pool": self.gateway.pool}
            raise NotApplied("no connection came free in time", **facts)
        return self._clock.monotonic_ms()

    def _give_back(self, connections: Sequence[Connection]) -> None:
        with self._lock:
            for connection in connections:
                if connection.busy or self._closed:
                    connection.close()
                    self._open -= 1
                else:
                    self._idle.append(connection)
            if self._waiting:
                self._changed.notify(len(connections))

    def _count_free(self) -> int:
        return len(self._idle) + self.gateway.pool - self._open

    def _connect(self, due_ms: int) -> Connection:
        try:
            return Connection(self.gateway, self._results, self._clock, self._tls, due_ms)
        except BaseException as error:
            with self._lock:
                self._open -= 1
                self._changed.notify()
            if isinstance(error, OSError):
                message = self._describe("cannot connect to the gateway", error)
                raise NotApplied(message) from error
            raise


class Flight(Generic[T]):
    __slots__ = ("_due_ms", "_flying", "_results", "_waiting", "connections")

    def __init__(
        self, connections: Sequence[Connection], jobs: Sequence[Job[T]], due_ms: int
    ) -> None:
        self.connections = connections
        self._due_ms = due_ms
        self._waiting = deque(enumerate(jobs))
        self._flying: deque[tuple[Connection, int, Job[T]]] = deque()
        self._results: list[Any] = [None] * len(jobs)

    def start(self, ahead: int = 1) -> bool:
        """Send the first requests together, up to `ahead` per connection; return True if any."""
        share = -(-len(self._waiting) // max(1, len(self.connections)))
        for connection in self.connections:
            for _ in range(min(ahead, share)):
                self._begin_next(connection, is_last=False)
            connection.flush()
        return bool(self._flying)

    def finish(self) -> list[T]:
        """Read the replies, oldest request first, and send the requests that follow."""
        flying, due_ms = self._flying, self._due_ms
        while flying:
            connection, index, job = flying.popleft()
            try:
                request = job.send(connection.receive(due_ms))
            except StopIteration as done:
                self._results[index] = done.value
                self._begin_next(connection)
            else:
                connection.send(request, due_ms)
                flying.append((connection, index, job))
        return self._results

    def _begin_next(self, connection: Connection, *, is_last: bool = True) -> None:
        while self._waiting:
            index, job = self._waiting.popleft()
            try:
                request = next(job)
            except StopIteration as done:
                self._results[index] = done.value
            else:
                connection.send(request, self._due_ms, is_last=is_last)
                self._flying.append((connection, index, job))
                return
