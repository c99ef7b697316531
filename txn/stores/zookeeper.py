"""The driver of ZooKeeper, bounded: it believes no length that a server claims, and no message
takes longer than the session's own time limit. A message that is none of the protocol ends the
connection, as any other failure does; the driver would end its thread, and never connect again.
"""

from __future__ import annotations

import ssl
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import AUTH_XID, ConnectionHandler, RWServerAvailable
from kazoo.protocol.serialization import Auth

from txn.errors import annotate
from txn.host.holds import SafeEvent

MOST_BYTES = 4 << 20  # of a message, as ZooKeeper's own client: a server sends 1 MB by default
TICK_S = 0.05
ENDING_S = 1.0  # how long a message may take once the session is being closed
T = TypeVar("T")

OWN_ERRORS = (KazooException, KazooTimeoutError, ConnectionDropped, RWServerAvailable)


class BoundedClient(KazooClient):  # type: ignore[misc]
    """A client of ZooKeeper with such connections."""

    def __init__(self, hosts: str, **options: Any) -> None:
        super().__init__(hosts, **options)
        driver: Any = self._connection
        self._connection: Any = _BoundedConnection(
            self, driver.retry_sleeper, logger=driver.logger, sasl_options=driver.sasl_options
        )


class _BoundedConnection(ConnectionHandler):  # type: ignore[misc]
    def _read(self, length: int, timeout: float) -> bytes:
        if not 0 <= length <= MOST_BYTES:
            words = "a message of ZooKeeper's is too long"
            raise ConnectionDropped(annotate(words, bytes=length, limit=MOST_BYTES))
        client, found = self.client, bytearray()
        # The server grants the session's time: it may be for ever.
        began_s = time.monotonic()
        within_s = min(timeout, client._session_timeout / 1000)
        with self._socket_error_handling():
            while len(found) < length:
                limit_s = min(within_s, ENDING_S) if client._stopped.is_set() else within_s
                if time.monotonic() - began_s >= limit_s:
                    raise KazooTimeoutError("socket time-out during read")
                # What TLS has decrypted already does not show in a `select`.
                is_there = hasattr(self._socket, "pending") and self._socket.pending() > 0
                if not (is_there or self.handler.select([self._socket], [], [], TICK_S)[0]):
                    continue
                try:
                    data = self._socket.recv(length - len(found))
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    continue
                if not data:
                    raise ConnectionDropped("socket connection broken")
                found += data
        return bytes(found)

    def _read_header(self, timeout: float) -> Any:
        header, *rest = super()._read_header(timeout)
        pending = self.client._pending
        if header.xid == AUTH_XID and pending and pending[0][0].type != Auth.type:
            raise ConnectionDropped("an answer of ZooKeeper's is another request's")
        return header, *rest

    def _connect(self, *address: Any) -> Any:
        with _drop_at_nonsense():
            return super()._connect(*address)

    def _read_socket(self, read_timeout: float) -> Any:
        pending = self.client._pending
        oldest = [*pending][:1]
        try:
            with _drop_at_nonsense():
                return super()._read_socket(read_timeout)
        except ConnectionDropped:
            for request in oldest:
                answer = request[1]
                if request not in pending and answer is not None and not answer.ready():
                    pending.appendleft(request)  # a thread waits for it that the driver forgot
            raise


@contextmanager
def _drop_at_nonsense() -> Iterator[None]:
    try:
        yield
    except OWN_ERRORS:
        raise
    except Exception as error:  # the driver may raise anything on such bytes
        cause = f"{type(error).__name__}: {error}"
        raise ConnectionDropped(f"not a message of ZooKeeper's: {cause}") from error


def call_apart(work: Callable[[], T], within_s: float | None = None) -> T:
    """Do work of the driver in a thread that no interrupt of this one reaches, since it starts, or
    joins, threads; return its result. After a TimeoutError it goes on."""
    found: list[T] = []
    errors: list[Exception] = []
    is_over = SafeEvent()

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001  (raised below)
            errors.append(error)
        finally:
            is_over.set()

    start_new_thread(Thread(target=run, daemon=True).start, ())
    is_over.wait(within_s)
    if errors:
        raise errors[0]
    if not found:
        raise TimeoutError("timed out")
    return found[0]
