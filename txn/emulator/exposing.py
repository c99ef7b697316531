"""`txn serve --metrics PORT`: metrics of the served transactions, for Prometheus.

A client cannot choose the worker that answers. So the workers count into files of one folder, and
each answers with the sums over all workers. The counts of a worker that has ended stay in the
files, so no sum ever decreases.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable
from io import StringIO
from logging import getLogger
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from txn.clock import SystemClock
from txn.events import Listener, silent
from txn.host.extras import require_extra
from txn.server.connection import RateLimitedLog

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

LOG = getLogger("txn.serve")
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that txn.metrics reads; that module may be imported only after it is set."""

PATIENCE_S = 10
MOST_AT_ONCE = 32


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_S  # limits how long a silent client occupies a thread

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: Prometheus asks every few seconds."""

    def get_stderr(self) -> TextIO:
        """Suppress tracebacks for clients that do not read; the server logs real errors."""
        return StringIO()


class _Server(ThreadingMixIn, WSGIServer):
    """Answers a limited number of requests at once, each in a thread, on a listening socket."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, app: WSGIApplication) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        # Other processes accept from this socket too, so accept must not block.
        listening.setblocking(False)
        self.server_name, self.server_port = "localhost", listening.getsockname()[1]
        self.setup_environ()
        self.set_app(self._answer)
        self._app = app
        self._free = threading.Semaphore(MOST_AT_ONCE)
        self._tell = RateLimitedLog(LOG, SystemClock())

    def _answer(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        try:
            return self._app(environ, start)
        except Exception as error:
            self._tell("metrics cannot be shown", error)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection if too many are open."""
        if not self._free.acquire(blocking=False):
            self._tell("too many ask for metrics at a time: closed a connection")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            LOG.debug("a connection broke cause=%r", str(error))
        else:
            self._tell("a request for metrics failed", error)


class Exposition:
    """A metrics server on a listening socket, in each process from `start` to `stop`.

    listening: None disables counting and answering. shared: True if several processes serve; create
    the exposition before they start, and close it after they end.
    """

    def __init__(self, listening: socket.socket | None, *, shared: bool) -> None:
        self._listening = listening
        self._server: WSGIServer | None = None
        self._folder: str | None = None
        if listening is None:
            return
        if shared:
            self._folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="txn-metrics-")
        try:
            with require_extra("metrics"):  # report a missing extra before serving anything
                from txn import metrics  # noqa: PLC0415
            self._metrics = metrics
        except BaseException:
            self.close()
            raise

    def start(self) -> Listener:
        """Begin to answer; return the listener that counts."""
        if self._listening is None:
            return silent
        on_event: Listener = self._metrics.Metrics()
        self._server = _Server(self._listening, self._metrics.make_metrics_app())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return on_event

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def forget(self, process: int) -> None:
        """Remove the gauges of a worker that has ended from the sums."""
        if self._folder is not None:
            self._metrics.forget_process(process)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
