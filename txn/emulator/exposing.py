"""`txn serve --metrics PORT`: what Prometheus reads of the transactions served.

Several workers count into files of one folder, and each of them answers with the sums of all: who
asks does not choose the worker. What one that has ended had counted stays in them, so that no sum
goes back.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from txn.host.extras import require_extra
from txn.watch import Watch, silent

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""As txn.metrics has it, which may not be imported before it is set."""

PATIENCE_S = 10


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_S  # who says nothing keeps no thread

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: somebody asks each few seconds."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False


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

    def start(self) -> Watch:
        """Begin to answer; return the watch that counts."""
        if self._listening is None:
            return silent
        from txn.metrics import Metrics, make_metrics_app  # noqa: PLC0415

        watch = Metrics()
        self._server = server = _Server(("", 0), _Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = self._listening
        # Other processes accept from the same socket: one may be faster, and nobody may block.
        self._listening.setblocking(False)
        server.server_name, server.server_port = "localhost", self._listening.getsockname()[1]
        server.setup_environ()
        server.set_app(make_metrics_app())
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return watch

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
