"""The HTTP server of the console, which runs until a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import replace

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from recovery.console.app import make_app
from recovery.console.settings import ConsoleSettings
from recovery.console.state import Console, open_console
from txn.errors import InvalidRequestError
from txn.server.listening import listen

ENDS_FOR = (signal.SIGINT, signal.SIGTERM)
GRACE_S = 5
MOST_AT_ONCE = 100
REQUEST_S = 10.0
"""How long (s) a connection may take for the whole head of its next request."""


class PromptProtocol(H11Protocol):
    """HTTP/1.1 that closes connections without a request. Otherwise uvicorn waits forever for the
    first request, and counts waiting connections towards `MOST_AT_ONCE`."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(REQUEST_S, self._close_if_idle)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def serve_console(settings: ConsoleSettings, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `ready` gets the address once the console can answer."""
    on_signals(lambda: sys.exit(0))
    with listen(settings.bind, settings.port) as listening:
        settings = replace(settings, port=listening.getsockname()[1])
        with open_console(settings) as console:
            server = make_server(console)

            def end() -> None:
                server.should_exit = True

            # An exception is lost where Python ignores it, as in `__del__`. And uvicorn raises its
            # signals again at its end, when the store still has to be closed.
            on_signals(end)
            ready(settings.address)
            server.run(sockets=[listening])


def on_signals(end: Callable[[], None]) -> None:
    for each in ENDS_FOR:
        signal.signal(each, lambda *_: end())


def make_server(console: Console) -> uvicorn.Server:
    """Return the server of a console; InvalidRequestError if it cannot use its certificate."""
    settings = console.settings
    config = uvicorn.Config(
        make_app(console),
        http=PromptProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_AT_ONCE,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except OSError as error:  # no file name; SSL errors are OSErrors
        raise InvalidRequestError(
            "cannot use the certificate or its key",
            cert=str(settings.tls_cert),
            key=str(settings.tls_key),
            cause=str(error),
        ) from error
    return uvicorn.Server(config)
