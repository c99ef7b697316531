"""A socket to a server with a time limit for every wait."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TypeVar

from txn.errors import InvalidRequestError, annotate

NS_PER_MS = 1_000_000
CLOSED = "the server closed the connection"
TICK_MS = 25  # a wait ends so much after its limit at most

T = TypeVar("T")


class SharedWire:
    """A socket that one thread may read while another writes, each with its own limit.

    now: the clock of the limits, in any unit. It is read only after the socket was not ready for a
    tick, which the kernel measures. Python's own limit would take two system calls for each read
    and write, and release the interpreter lock each time.
    """

    __slots__ = ("_now", "_socket")

    def __init__(self, connected: socket.socket, now: Callable[[], int]) -> None:
        self._socket = connected
        self._now = now
        connected.settimeout(None)
        tick = struct.pack("@ll", 0, TICK_MS * 1000)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, option, tick)

    def read(self, size: int, due: int) -> bytes:
        """Wait for data and return what there is, even if it is late; raise TimeoutError soon after
        the limit."""
        while True:
            try:
                data = self._socket.recv(size)
            except BlockingIOError:
                self.check_time(due)
                continue
            if not data:
                raise ConnectionError(CLOSED)
            return data

    def write(self, data: bytes, due: int) -> None:
        """Write all of it. After a TimeoutError it is unknown how much was written."""
        rest = memoryview(data)
        while True:
            try:
                sent = self._socket.send(rest)
            except BlockingIOError:
                sent = 0
            rest = rest[sent:]
            if not rest:
                return
            self.check_time(due)

    def check_time(self, due: int) -> None:
        """Raise TimeoutError once the limit has come."""
        if self._now() >= due:
            raise TimeoutError("timed out")

    def is_readable(self) -> bool:
        """Return True if unrequested data has come, such as the end of the stream."""
        return _poll(self._socket, select.POLLIN | select.POLLHUP, 0)

    def end(self) -> None:
        """End the connection for all threads, even one that is reading. The descriptor stays open,
        because that thread would read from its next user."""
        with suppress(OSError):  # it may have ended already
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's end, which no thread may be using. A copy in another process, after
        a fork, stays usable."""
        self._socket.close()

    def __del__(self) -> None:
        """Close what an interrupted thread has dropped."""
        with suppress(AttributeError):  # it was not made
            self._socket.close()


class SharedTlsWire(SharedWire):
    """A SharedWire with TLS. The library lets one thread at a time read or write, so threads wait
    only for the socket, never inside the library."""

    __slots__ = ("_lock", "_tls")

    def __init__(self, connected: ssl.SSLSocket, now: Callable[[], int]) -> None:
        super().__init__(connected, now)
        self._lock = Lock()
        self._tls = connected
        connected.setblocking(False)

    def read(self, size: int, due: int) -> bytes:
        data = self._call(partial(self._tls.recv, size), due)
        if not data:
            raise ConnectionError(CLOSED)
        return data

    def write(self, data: bytes, due: int) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._call(partial(self._tls.send, rest), due) :]

    def _call(self, call: Callable[[], T], due: int) -> T:
        while True:
            with self._lock:
                try:
                    return call()
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
            self.check_time(due)
            _poll(self._tls, event, TICK_MS)


def share_wire(connected: socket.socket, now: Callable[[], int]) -> SharedWire:
    if isinstance(connected, ssl.SSLSocket):
        return SharedTlsWire(connected, now)
    return SharedWire(connected, now)


class Wire:
    """The byte stream of thriftpy2's transports: a socket with one deadline for all waits, `due_ns`
    by the system's monotonic clock. Time is checked before each write and each further read, so a
    peer that never stops answering does not prolong a call. most: the bytes of a reply."""

    __slots__ = ("_has_read", "_left", "_most", "_shared", "due_ns")

    def __init__(self, connected: socket.socket, most: int) -> None:
        self._shared = share_wire(connected, time.monotonic_ns)
        self._has_read = False  # since the last write
        self._most = self._left = most
        self.due_ns = 0

    def begin_reply(self) -> None:
        self._left = self._most

    def read(self, size: int) -> bytes:
        if self._has_read:
            self._shared.check_time(self.due_ns)
        self._has_read = True
        data = self._shared.read(min(size, self._left + 1), self.due_ns)
        self._left -= len(data)
        if self._left < 0:
            limit_mb = self._most >> 20
            raise OSError(annotate("the reply is too long: see reply_mb", limit_mb=limit_mb))
        return data

    def write(self, data: bytes) -> None:
        self._shared.check_time(self.due_ns)
        self._has_read = False
        self._shared.write(data, self.due_ns)

    def flush(self) -> None:
        pass

    def is_readable(self) -> bool:
        return self._shared.is_readable()

    def close(self) -> None:
        self._shared.close()


def _poll(connected: socket.socket, event: int, within_ms: int) -> bool:
    poll = select.poll()
    try:
        poll.register(connected, event)
    except ValueError as error:  # closed
        raise OSError(str(error)) from error
    return bool(poll.poll(within_ms))


def trust(tls: str, ca: str, certificate: str = "", key: str = "") -> ssl.SSLContext | None:
    """Return the TLS context for these files, or None; InvalidRequestError for a bad file."""
    if tls == "off":
        return None
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:  # including TLS errors
        raise InvalidRequestError("not a file of certificates", ca=ca, cause=str(error)) from error
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None, password="")  # never prompt
        except OSError as error:  # including TLS errors
            raise InvalidRequestError(
                "not a certificate and its key", certificate=certificate, cause=str(error)
            ) from error
    return context


def connect_socket(
    host: str, port: int, within_ms: int, tls: ssl.SSLContext | None
) -> socket.socket:
    """Return a connected socket; raise OSError (which covers time-outs and TLS) on failure."""
    try:
        connected = socket.create_connection((host, port), within_ms / 1000)
    except (ValueError, OverflowError) as error:  # an illegal host name or port
        raise OSError(str(error)) from error
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connected if tls is None else tls.wrap_socket(connected, server_hostname=host)
    except BaseException:
        connected.close()
        raise
