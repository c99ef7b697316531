"""Services on ports of this machine, independent of what the services do.

Each listening port has a thread, and so has each connection. `stop` lets running requests end and
accepts no others. An error that a service does not declare becomes its TApplicationException, and
affects no other client.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Self

from txn.clock import Clock, SystemClock
from txn.errors import InvalidRequestError, annotate
from txn.host.holds import SafeCondition
from txn.server.connection import Memory, RateLimitedLog, ServerConnection, Service, Shared
from txn.server.options import Limits, Options

PAUSE_MS = 50


def server_tls_context(options: Options) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        if options.tls_key is not None:
            raise InvalidRequestError("a TLS key needs its certificate: give --tls-cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (ssl.SSLError, OSError) as error:
        message = "cannot use the certificate"
        raise InvalidRequestError(message, cert=str(options.tls_cert), cause=str(error)) from error
    return context


class Server:
    """Serves the connections of some listening sockets in this process, from `start` to `stop`."""

    def __init__(
        self,
        services: Sequence[tuple[socket.socket, Service]],
        limits: Limits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self._limits = limits = limits or Limits()
        self._clock = clock = clock or SystemClock()
        log = log or logging.getLogger(__name__)
        self._warn = RateLimitedLog(log, clock)
        self._shared = Shared(limits, Memory(limits.memory_bytes), clock, log, self._warn, tls)
        self._connections: set[ServerConnection] = set()
        self._changed = SafeCondition()  # a second Ctrl-C may interrupt `stop`
        self._stopping = False
        self._woken, self._wakes = socket.socketpair()
        self._listening = services
        self._listeners = [
            threading.Thread(target=self._accept, args=pair, daemon=True)
            for pair in self._listening
        ]

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(listening.getsockname()[1] for listening, _ in self._listening)

    def start(self) -> None:
        for listener in self._listeners:
            listener.start()

    def stop(self) -> bool:
        """Stop accepting, finish what has begun, and return whether that ended within the grace."""
        due_ms = self._clock.monotonic_ms() + self._limits.grace_ms
        with self._changed:
            self._stopping = True
            connections = list(self._connections)
        self._wakes.close()
        for listener in self._listeners:
            listener.join()
        for listening, _ in self._listening:
            listening.close()
        self._woken.close()
        for connection in connections:
            connection.stop()
        with self._changed:
            left_s = max(0, due_ms - self._clock.monotonic_ms()) / 1000
            ended = self._changed.wait_for(lambda: not self._connections, left_s)
            late = list(self._connections)
        for connection in late:
            connection.cut()
        return ended

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _accept(self, listening: socket.socket, service: Service) -> None:
        # Other processes may share the socket, so this thread cannot be woken by shutting it down.
        listening.setblocking(False)
        poll = select.poll()
        poll.register(listening, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while not self._stopping:
            poll.poll()
            try:
                connected, _ = listening.accept()
            except BlockingIOError:
                continue  # another process was faster
            except OSError as error:  # such as no free file descriptors
                self._warn(annotate("cannot accept a connection", cause=str(error)))
                self._clock.sleep_ms(PAUSE_MS)
                continue
            try:
                self._welcome(connected, service)
            except Exception as error:  # noqa: BLE001  (keep the port open)
                self._warn("cannot serve a connection: closed it", error)
                connected.close()

    def _welcome(self, connected: socket.socket, service: Service) -> None:
        connection = service(connected, self._shared)
        with self._changed:
            full = len(self._connections) >= self._limits.connections
            if not full and not self._stopping:
                self._connections.add(connection)
        if connection not in self._connections:
            if full:
                limit = self._limits.connections
                self._warn(annotate("too many connections: closed one", limit=limit))
            connected.close()
            return
        try:
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()
        except RuntimeError as error:
            self._warn(annotate("cannot start a thread: closed a connection", cause=str(error)))
            connected.close()
            self._forget(connection)

    def _run(self, connection: ServerConnection) -> None:
        try:
            connection.run()
        finally:
            self._forget(connection)

    def _forget(self, connection: ServerConnection) -> None:
        with self._changed:
            self._connections.discard(connection)
            if not self._connections:
                self._changed.notify_all()
