"""One client's connection: requests are read, carried out and answered one after the other.

Each connection has its own thread, so a slow client blocks no other. An error in a request is
answered if the rest of the stream can still be read; otherwise it closes the connection.
"""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple, Protocol

from thriftpy2.protocol import TCompactProtocol, TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType, TPayload
from thriftpy2.transport import TCyMemoryBuffer

from txn.clock import Clock
from txn.errors import annotate
from txn.server import wire
from txn.server.options import Limits

INTERNAL_ERROR = TApplicationException.INTERNAL_ERROR
LONG_AT_ONCE = 2
LOG_EACH_MS = 1000
LONGEST_TEXT = 4_000
UNCHARGED = 4096  # smaller requests are not counted


class Overdue(Exception):
    """The client has taken too long."""


class ServerConnection(Protocol):
    """A client's connection: `run` is the body of its thread."""

    def run(self) -> None:
        """Serve until the end, and close the socket."""

    def stop(self) -> None:
        """End after the requests that have begun."""

    def cut(self) -> None:
        """End now."""


class Method(NamedTuple):
    """A method of a service: its arguments' names in order, and the lock that it runs under."""

    run: Callable[..., Any]
    names: tuple[str, ...]
    result: type[TPayload]
    errors: tuple[tuple[str, type[Exception]], ...]
    turn: AbstractContextManager[object]


class ServedInterface:
    """A service of a Thrift file, and the object whose methods carry it out, in many threads.

    long: methods that do much work in a request. Only two of these run at a time, because many
    threads that compete for the interpreter get less done than few.
    admit: takes the arguments of each request and its client's address before anything else does;
    raises a declared error for a client that may not send it.
    """

    def __init__(
        self,
        service: Any,
        handler: object,
        long: Collection[str] = (),
        admit: Callable[[Any, str], None] = lambda arguments, peer: None,
    ) -> None:
        self.admit = admit
        turns = threading.Semaphore(LONG_AT_ONCE)
        self.arguments: dict[str, type[TPayload]] = {}
        self.methods: dict[str, Method] = {}
        for name in service.thrift_services:
            arguments = self.arguments[name] = getattr(service, f"{name}_args")
            result = getattr(service, f"{name}_result")
            fields = [field for field in result.thrift_spec.values() if field[1] != "success"]
            self.methods[name] = Method(
                getattr(handler, name),
                tuple(field[1] for field in arguments.thrift_spec.values()),
                result,
                tuple((field[1], field[2]) for field in fields),
                turns if name in long else nullcontext(),
            )

    def __call__(self, connected: socket.socket, shared: Shared) -> ServerConnection:
        return ClientConnection(connected, self, shared)


class Revocable(list[Any]):
    """A list to return that counts only once the client has it; else `revoke` undoes the call."""

    def __init__(self, items: Iterable[Any], revoke: Callable[[], None]) -> None:
        super().__init__(items)
        self.revoke = revoke


class RateLimitedLog:
    """A log for events that untrusted clients can cause at will: one line a second."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._logged_ms = clock.monotonic_ms() - LOG_EACH_MS
        self._left_out = 0

    def __call__(self, message: str, error: BaseException | None = None) -> None:
        """Log a warning, with an error's traceback, unless there was one within the last second."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._logged_ms < LOG_EACH_MS:
            self._left_out += 1
            return
        more = f" (left out: {self._left_out} lines)" if self._left_out else ""
        self._logged_ms, self._left_out = now_ms, 0
        trace = "" if error is None else "\n" + _cut("".join(traceback.format_exception(error)))
        self._log.warning("%s%s%s", _cut(message), more, trace)


class Memory:
    """The memory that the requests and replies of all connections may take together."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit
        self._lock = threading.Lock()
        self.encoding = threading.Lock()  # of one reply at a time, which takes twice its size

    def take(self, size: int) -> None:
        """Reserve so many bytes; raise Malformed if too few are left."""
        with self._lock:
            if size > self._left:
                words = "too much in flight for the server's memory"
                raise wire.Malformed(annotate(words, bytes=size, limit_mb=self._limit >> 20))
            self._left -= size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._left += size


class Shared(NamedTuple):
    limits: Limits
    memory: Memory
    clock: Clock
    log: logging.Logger
    warn: RateLimitedLog
    tls: ssl.SSLContext | None = None


Service = Callable[[socket.socket, Shared], ServerConnection]
"""What a port serves: it returns the server's side of a new connection."""


class ClientConnection:
    def __init__(
        self, connected: socket.socket, interface: ServedInterface, shared: Shared
    ) -> None:
        self._socket = connected
        self._interface = interface
        self._shared = shared
        self._limits = shared.limits
        self._clock = shared.clock
        self._charged = 0
        self._taken = 0
        self._revoke: Callable[[], None] | None = None  # undoes the call that has no answer yet
        self._due_ms: int | None = None  # None: between requests
        self._since_ms = shared.clock.monotonic_ms()
        self._stopping = False
        self._source = wire.Source(self._receive, self._charge, shared.limits)
        self._peer = ""  # of a client that has left already
        with suppress(OSError):
            self._peer = str(connected.getpeername()[0])

    def run(self) -> None:
        try:
            self._prepare()
            self._serve()
        except (wire.Malformed, Overdue) as error:
            is_idle = self._due_ms is None and isinstance(error, Overdue)
            log = self._shared.log.info if is_idle else self._shared.warn
            log(annotate("closed a connection", reason=str(error), peer=self._peer))
        except OSError as error:
            self._shared.log.debug("a connection broke cause=%r", str(error))
        finally:
            self._release()
            self._socket.close()

    def stop(self) -> None:
        """End after the current request and those that have arrived completely."""
        self._stopping = True
        if self._due_ms is None:
            self._end_reading()

    def cut(self) -> None:
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _end_reading(self) -> None:
        # The method of an SSLSocket would continue in plain text.
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RD)

    def _serve(self) -> None:
        source = self._source
        reader: wire.WireReader | None = None
        framed = False
        while source.arrives():
            self._due_ms = self._clock.monotonic_ms() + self._limits.request_ms
            if reader is None:
                reader, framed = wire.open_reader(source)
            if framed:
                source.frame()
            call = reader.call(self._interface.arguments)
            if framed:
                source.at = source.end
            reply = self._answer(call, isinstance(reader, wire.Compact))
            del call
            source.begin()
            self._deliver(wire.LENGTH.pack(len(reply)) + reply if framed and reply else reply)
            del reply
            self._release()
            self._since_ms, self._due_ms = self._clock.monotonic_ms(), None
            if self._stopping:
                self._end_reading()

    def _answer(self, call: wire.WireCall, compact: bool) -> bytes:
        """Carry out a call. From then on the memory of its reply counts instead of the call's."""
        answer = self._carry_out(call)
        if call.kind == TMessageType.ONEWAY:
            self._revoke_call()
            return b""
        try:
            with self._shared.memory.encoding:
                reply = _encode_reply(call, answer, compact)
                self._release()  # a client with its answer may count on the memory
                self._charge(len(reply))
                return reply
        except wire.Malformed as error:
            self._shared.warn(annotate("a reply is too large", method=call.name, reason=str(error)))
            self._revoke_call()
            refused = TApplicationException(INTERNAL_ERROR, f"the reply is too large: {error}")
            return _encode_reply(call, refused, compact)
        except Exception as error:  # noqa: BLE001  (a handler may return anything)
            self._shared.warn(annotate("a reply cannot be written", method=call.name), error)
            self._revoke_call()
            return _encode_reply(call, _internal(call.name), compact)

    def _carry_out(self, call: wire.WireCall) -> TPayload:
        name, arguments, refused = call.name, call.arguments, call.refused
        if arguments is None:
            assert refused is not None
            return refused
        method = self._interface.methods[name]
        result = method.result()
        given: Mapping[str, Any] = arguments.__dict__
        try:
            self._interface.admit(arguments, self._peer)
            if refused is not None:
                return refused
            with method.turn:
                returned = method.run(*[given[name] for name in method.names])
        except TApplicationException as error:
            error.message = _cut(error.message)
            self._shared.warn(annotate("refused a request", method=name, answer=error.message))
            return error
        except Exception as error:  # noqa: BLE001  (any error must leave the other clients served)
            for field, kind in method.errors:
                if isinstance(error, kind):
                    vars(error).update({name: _cut(each) for name, each in vars(error).items()})
                    setattr(result, field, error)
                    return result
            self._shared.warn(annotate("a request failed", method=name), error)
            return _internal(name)
        if isinstance(returned, Revocable):
            self._revoke = returned.revoke
        result.__dict__["success"] = returned
        return result

    def _charge(self, size: int) -> None:
        self._charged += size
        if self._charged - self._taken > UNCHARGED:
            size = self._charged - self._taken
            self._shared.memory.take(size)
            self._taken += size

    def _release(self) -> None:
        if self._taken:
            self._shared.memory.give_back(self._taken)
        self._charged = self._taken = 0

    def _prepare(self) -> None:
        """Limit every wait, in the kernel where possible: that saves a system call."""
        connected = self._socket
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        wait_ms = min(self._limits.request_ms, self._limits.idle_ms)
        if self._shared.tls is not None:
            connected.settimeout(wait_ms / 1000)
            secure = self._shared.tls.wrap_socket(
                connected, server_side=True, do_handshake_on_connect=False
            )
            self._socket = secure  # stop must find it even during the handshake
            if self._stopping:
                self._end_reading()
            secure.do_handshake()
            return
        connected.setblocking(True)
        wait = struct.pack("@ll", wait_ms // 1000, wait_ms % 1000 * 1000)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)

    def _receive(self, size: int) -> bytes:
        while True:
            try:
                data = self._socket.recv(size)
            except (BlockingIOError, TimeoutError):
                data = None
            if self._due_ms is None:
                if data is not None:
                    return data
                if self._clock.monotonic_ms() - self._since_ms >= self._limits.idle_ms:
                    raise Overdue(f"idle limit_ms={self._limits.idle_ms}")
            elif self._clock.monotonic_ms() > self._due_ms:
                raise Overdue(f"a request took too long limit_ms={self._limits.request_ms}")
            elif data is not None:
                return data

    def _deliver(self, reply: bytes) -> None:
        """Send a reply; revoke the call if the client certainly did not get all of it."""
        try:
            self._send(reply)
            if self._revoke is not None:  # a client that had left has reported it by now
                code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, "the client was gone")
        except BaseException:
            self._revoke_call()
            raise
        self._revoke = None

    def _revoke_call(self) -> None:
        revoke, self._revoke = self._revoke, None
        if revoke is not None:
            revoke()

    def _send(self, reply: bytes) -> None:
        sent = self._socket.send(reply) if reply else 0
        if sent == len(reply):
            return
        due_ms = self._clock.monotonic_ms() + self._limits.request_ms
        rest = memoryview(reply)[sent:]
        while rest:
            if self._clock.monotonic_ms() > due_ms:
                raise Overdue(f"a reply was not taken limit_ms={self._limits.request_ms}")
            with suppress(BlockingIOError, TimeoutError):
                rest = rest[self._socket.send(rest[:1_048_576]) :]


def _cut(text: Any) -> Any:
    """Shorten a text that a client may have made as long as its request."""
    is_long = isinstance(text, str) and len(text) > LONGEST_TEXT
    return f"{text[:LONGEST_TEXT]}... ({len(text)} characters)" if is_long else text


def _internal(name: str) -> TApplicationException:
    return TApplicationException(INTERNAL_ERROR, f"Internal error processing {name}")


def _encode_reply(call: wire.WireCall, answer: TPayload, compact: bool) -> bytes:
    failed = isinstance(answer, TApplicationException)
    buffer = TCyMemoryBuffer()
    spoken: Any = TCompactProtocol if compact else TCyBinaryProtocol
    protocol = spoken(buffer)
    kind = TMessageType.EXCEPTION if failed else TMessageType.REPLY
    protocol.write_message_begin(call.name, kind, call.sequence)
    protocol.write_struct(answer)
    protocol.write_message_end()
    return bytes(buffer.getvalue())
