"""`txn serve --metrics PORT`: what Prometheus reads of the transactions served.

Several workers count into files of one folder, and each of them answers with the sums of all: who
asks does not choose the worker. What one that has ended had counted stays in them, so that no sum
goes back.
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
from txn.server.connection import Telling

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

LOG = getLogger("txn.serve")
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""As txn.metrics has it, which may not be imported before it is set."""

PATIENCE_S = 10
MOST_AT_ONCE = 32


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_S  # who says nothing keeps no thread for longer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: somebody asks each few seconds."""

    def get_stderr(self) -> TextIO:
        """Print no traceback for a client that does not read: a mistake is told by the server."""
        return StringIO()


class _Server(ThreadingMixIn, WSGIServer):
    """Answers few at a time, each in a thread, on a socket that listens."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, app: WSGIApplication) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        # Other processes accept from the same socket: one may be faster, and nobody may block.
        listening.setblocking(False)
        self.server_name, self.server_port = "localhost", listening.getsockname()[1]
        self.setup_environ()
        self.set_app(self._answer)
        self._app = app
        self._free = threading.Semaphore(MOST_AT_ONCE)
        self._tell = Telling(LOG, SystemClock())

    def _answer(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        try:
            return self._app(environ, start)
        except Exception as error:
            self._tell("metrics cannot be shown", error)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection where there are too many."""
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
        """Answer, in a thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of a connection that broke, or was silent."""
        error = sys.exception()
        if isinstance(error, OSError):
            LOG.debug("a connection broke cause=%r", str(error))
        else:
            self._tell("a request for metrics failed", error)


class Exposition:
    """What answers on a listening socket, from `start` to `stop`, in each process that serves.

    listening: None where nobody is to be answered, nor anything counted. shared: whether several
    processes serve. It must be made before they are, and closed once they have ended.
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
            with require_extra("metrics"):  # what is missing is told before anybody is served
                import txn.metrics  # noqa: F401, PLC0415
        except BaseException:
            self.close()
            raise

    def start(self) -> Listener:
        """Begin to answer; return the watch that counts."""
        if self._listening is None:
            return silent
        from txn.metrics import Metrics, make_metrics_app  # noqa: PLC0415

        on_event = Metrics()
        self._server = _Server(self._listening, make_metrics_app())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return on_event

    def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def forget(self, process: int) -> None:
        """Take out of the sums what waited in a worker that has ended."""
        if self._folder is not None:
            from txn.metrics import forget_process  # noqa: PLC0415

            forget_process(process)

    def close(self) -> None:
        """Delete what the workers have counted."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
