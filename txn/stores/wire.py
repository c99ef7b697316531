"""A socket to a server with a time limit for every wait."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from contextlib import suppress
from threading import Lock

from txn.errors import InvalidRequestError

NS_PER_MS = 1_000_000


class SharedWire:
    """A socket that one thread may read while another writes, each with its own limit.

    The kernel keeps the limit. Python's own would take two system calls for each read and write,
    and release the interpreter lock each time. A limit that is a little too long stays, which saves
    a system call.
    """

    __slots__ = ("_read_ms", "_socket", "_write_ms")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._read_ms = self._write_ms = 0
        connected.settimeout(None)

    def read(self, size: int, left_ms: int) -> bytes:
        """Wait for data and return what there is; raise TimeoutError after about that time."""
        if not left_ms <= self._read_ms <= left_ms + left_ms // 8:
            self._read_ms = left_ms
            _limit_kernel(self._socket, left_ms, socket.SO_RCVTIMEO)
        try:
            return _not_at_end(self._socket.recv(size))
        except BlockingIOError as error:
            raise TimeoutError("timed out") from error

    def write(self, data: bytes, left_ms: int) -> None:
        """Write all of it. After a TimeoutError it is unknown how much was written."""
        if not left_ms <= self._write_ms <= left_ms + left_ms // 8:
            self._write_ms = left_ms
            _limit_kernel(self._socket, left_ms, socket.SO_SNDTIMEO)
        due_s = time.monotonic() + left_ms / 1000
        rest = memoryview(data)
        try:
            while rest := rest[self._socket.send(rest) :]:
                if time.monotonic() > due_s:
                    raise TimeoutError("timed out")
        except BlockingIOError as error:
            raise TimeoutError("timed out") from error

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


class SharedTlsWire(SharedWire):
    """A SharedWire with TLS. The library lets one thread at a time read or write, so threads wait
    only for the socket, never inside the library."""

    __slots__ = ("_lock", "_tls")

    def __init__(self, connected: ssl.SSLSocket) -> None:
        super().__init__(connected)
        self._lock = Lock()
        self._tls = connected
        connected.setblocking(False)

    def read(self, size: int, left_ms: int) -> bytes:
        due_s = time.monotonic() + left_ms / 1000
        while True:
            with self._lock:
                try:
                    return _not_at_end(self._tls.recv(size))
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
            self._wait(event, due_s)

    def write(self, data: bytes, left_ms: int) -> None:
        due_s = time.monotonic() + left_ms / 1000
        rest = memoryview(data)
        while rest:
            with self._lock:
                try:
                    rest = rest[self._tls.send(rest) :]
                    continue
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
            self._wait(event, due_s)

    def _wait(self, event: int, due_s: float) -> None:
        left_s = due_s - time.monotonic()
        if left_s <= 0 or not _poll(self._tls, event, left_s):
            raise TimeoutError("timed out")


def share_wire(connected: socket.socket) -> SharedWire:
    if isinstance(connected, ssl.SSLSocket):
        return SharedTlsWire(connected)
    return SharedWire(connected)


class Wire:
    """The byte stream of thriftpy2's transports: a socket with one deadline for all waits, `due_ns`
    by the system's monotonic clock."""

    __slots__ = ("_shared", "due_ns")

    def __init__(self, connected: socket.socket) -> None:
        self._shared = share_wire(connected)
        self.due_ns = 0

    def read(self, size: int) -> bytes:
        return self._shared.read(size, self._count_left_ms())

    def write(self, data: bytes) -> None:
        self._shared.write(data, self._count_left_ms())

    def flush(self) -> None:
        pass

    def is_readable(self) -> bool:
        return self._shared.is_readable()

    def close(self) -> None:
        self._shared.close()

    def _count_left_ms(self) -> int:
        left_ns = self.due_ns - time.monotonic_ns()
        if left_ns <= 0:
            raise TimeoutError("timed out")
        return left_ns // NS_PER_MS + 1


def _limit_kernel(connected: socket.socket, limit_ms: int, option: int) -> None:
    seconds, rest_ms = divmod(limit_ms, 1000)
    limit = struct.pack("@ll", seconds, rest_ms * 1000)
    connected.setsockopt(socket.SOL_SOCKET, option, limit)


def _not_at_end(data: bytes) -> bytes:
    if not data:
        raise ConnectionError("the server closed the connection")
    return data


def _poll(connected: socket.socket, event: int, within_s: float) -> bool:
    poll = select.poll()
    try:
        poll.register(connected, event)
    except ValueError as error:  # closed
        raise OSError(str(error)) from error
    return bool(poll.poll(within_s * 1000))


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
    except UnicodeError as error:  # from an illegal host name
        raise OSError(str(error)) from error
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connected if tls is None else tls.wrap_socket(connected, server_hostname=host)
    except BaseException:
        connected.close()
        raise
