"""Servers in threads that answer as a test wants it: what they share."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class FakeServer:
    """Serves each connection in a thread of its own, by `_serve`. connections: how many came."""

    def __init__(self) -> None:
        self.connections = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._threads: list[threading.Thread] = []
        self._start(self._listen)

    def cut(self) -> None:
        """Close all connections, as a server does that ends."""
        with self._lock:
            cut, self._sockets = self._sockets, []
        for connection in cut:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self.connections += 1
                    self._sockets.append(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        raise NotImplementedError
