"""The console on a port, until it is told to end."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace

import uvicorn

from recovery.console.app import make_app
from recovery.console.settings import ConsoleSettings
from recovery.console.sources import Console, open_console
from txn.server.listening import listen

ENDS_FOR = (signal.SIGINT, signal.SIGTERM)
GRACE_S = 5
MOST_AT_ONCE = 100


def serve_console(settings: ConsoleSettings, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is called with the address once the store is open."""
    for each in ENDS_FOR:  # uvicorn raises it again once it has ended: the store is to be closed
        signal.signal(each, lambda *_: sys.exit(0))
    with listen(settings.bind, settings.port) as listening:
        settings = replace(settings, port=listening.getsockname()[1])
        with open_console(settings) as console:
            ready(settings.address)
            _run(console, listening)


def _run(console: Console, listening: socket.socket) -> None:
    settings = console.settings
    config = uvicorn.Config(
        make_app(console),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_AT_ONCE,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    uvicorn.Server(config).run(sockets=[listening])
