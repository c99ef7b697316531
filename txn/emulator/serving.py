"""`txn serve`: HBase's services and the Transactional service, on ports, over one store.

HBase's services need a store on this machine, whose keys they read. The Transactional service works
with any store: it may run in front of HBase, for clients that cannot reach HBase.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from logging import Logger
from threading import Timer
from typing import TYPE_CHECKING, Any, ClassVar, TextIO
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler

from txn.clock import Clock, SystemClock
from txn.emulator import thrift1
from txn.emulator.thrift2 import service as thrift2
from txn.emulator.workers import Chore, Supervisor, serve_here
from txn.errors import InvalidRequestError, TxnError, annotate
from txn.events import Listener, silent
from txn.host.extras import require_extra
from txn.protocol.statuses import ProtocolName
from txn.request import TRANSACTIONS
from txn.server.connection import ServedInterface, Shared
from txn.server.options import Limits, Options, listen
from txn.server.ports import Server, server_tls_context
from txn.service.server import Transactional
from txn.stores import open_ordered, open_store
from txn.stores.base import Store
from txn.stores.local import LocalStore
from txn.tables.admin import Admin
from txn.tables.kv.ordered import OrderedStore

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

NAMES = ("thrift1", "thrift2", "transactional")
ON_THIS_MACHINE = ("embedded", "memory")
PAGE_REST_MS = 100
ROUND_REST_MS = 600_000
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that txn.metrics reads; that module may be imported only after it is set."""
PATIENCE_S = 10
MMAP_THRESHOLD, LARGE_BLOCK = -3, 1 << 20  # of glibc's mallopt
METRICS_CONNECTIONS = 32
METRICS_GRACE_MS = 1_000
LONG = frozenset(  # HBase's methods that read many rows
    {
        *("getRows", "getRowsWithColumns", "getRowsTs", "getRowsWithColumnsTs"),
        *("scannerGet", "scannerGetList"),
        *("getMultiple", "getScannerRows", "getScannerResults"),
    }
)


@dataclass(frozen=True, slots=True)
class Hosted:
    """The services to run.

    store: `embedded:///path`, `memory://`, or an HBase URI for the Transactional service alone.
    ports: by a name in NAMES; 0 picks one. token: required of requests to the Transactional
    service. protocol, transactions: as in `connect`. metrics: the port for Prometheus.
    """

    store: str = field(repr=False)
    ports: Mapping[str, int]
    token: str | None = field(default=None, repr=False)
    protocol: ProtocolName | None = None
    metrics: int | None = None
    transactions: str = TRANSACTIONS

    def __post_init__(self) -> None:
        if not self.ports or not set(self.ports) <= set(NAMES):
            words = "give a port for one of the services: --thrift1, --thrift2 or --transactional"
            raise InvalidRequestError(words, given=[*self.ports])
        if self.metrics is not None and "transactional" not in self.ports:
            raise InvalidRequestError("metrics are of transactions: give --transactional as well")
        if self.scheme == "txn":
            raise InvalidRequestError("this store is a server's already: connect to it")
        if not self.is_on_this_machine and set(self.ports) != {"transactional"}:
            words = (
                "HBase's services can be served from a store on this machine only: from this one "
                "serve --transactional alone, as HBase has gateways of its own"
            )
            raise InvalidRequestError(words, scheme=self.scheme, known=ON_THIS_MACHINE)

    @property
    def scheme(self) -> str:
        return urlsplit(self.store).scheme

    @property
    def is_on_this_machine(self) -> bool:
        """True if the keys can be read here. Unknown schemes fail when the store is opened."""
        return self.scheme in ON_THIS_MACHINE


def serve(
    hosted: Hosted,
    options: Options,
    ready: Callable[[Mapping[str, int]], None],
    log: Logger,
    make_app: Callable[[Store], WSGIApplication],
) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is called with the ports once all are served.
    make_app: makes what answers at the port for metrics. No threads may be running. Raises
    InvalidRequestError if the options do not fit the store."""
    if options.workers > 1 and hosted.scheme == "memory":
        raise InvalidRequestError("a store in memory has one worker", store=hosted.store)
    clock = SystemClock()
    _give_memory_back()
    tls = server_tls_context(options)
    keys, chore = _prepare(hosted, options, clock, log)
    ports = {**hosted.ports, "metrics": hosted.metrics}
    sockets = {name: listen(options.bind, port) for name, port in ports.items() if port is not None}
    exposition = Exposition(sockets.get("metrics"), log, shared=options.workers > 1)

    def start() -> Callable[[], object]:
        on_event = exposition.make_listener()
        close, services = open_services(hosted, keys, clock, on_event)
        if hosted.metrics is not None:
            exposition.start(make_app(_open_tables(hosted, keys, clock)))
        pairs = [(sockets[name], service) for name, service in services.items()]
        server = Server(pairs, options.limits, tls=tls, clock=clock, log=log)
        server.start()

        def stop() -> None:
            if not server.stop():
                log.warning("requests were still under way when the grace was over")
            close()
            exposition.stop()

        return stop

    def announce() -> None:
        ready({name: listening.getsockname()[1] for name, listening in sockets.items()})

    try:
        if options.workers == 1:
            serve_here(start, announce, chore)
        else:
            count, grace_ms = options.workers, options.limits.grace_ms
            supervisor = Supervisor(start, count, grace_ms, clock, log, forget=exposition.forget)
            supervisor.run(announce, chore)
    finally:
        exposition.close()


def _give_memory_back() -> None:
    """Let glibc, if it is the C library, return each large block at once. Otherwise it keeps tens
    of megabytes for each of many threads, beyond what `Memory` counts."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE_BLOCK)


def _prepare(
    hosted: Hosted, options: Options, clock: Clock, log: Logger
) -> tuple[OrderedStore | None, Chore]:
    """Return the store's keys, if it is on this machine, and the chore beside serving. Refuse a bad
    store before anything listens."""
    if hosted.is_on_this_machine:
        keys = open_ordered(hosted.store)
        return keys, Compactor(keys, clock, options.keep_deletes_ms, log).step
    close, _ = open_services(hosted, None, clock)
    close()
    return None, lambda: ROUND_REST_MS


def _open_tables(hosted: Hosted, keys: OrderedStore | None, clock: Clock) -> Store:
    return open_store(hosted.store, clock) if keys is None else LocalStore(keys, clock)


def open_services(
    hosted: Hosted, keys: OrderedStore | None, clock: Clock, on_event: Listener = silent
) -> tuple[Callable[[], None], dict[str, ServedInterface]]:
    """Return a function to call after the services have stopped, and the services by name. keys:
    the keys of a store on this machine; None for a remote store, which has tables of its own."""
    services: dict[str, ServedInterface] = {}
    with ExitStack() as ends:
        store = _open_tables(hosted, keys, clock)
        ends.callback(store.close)
        if "transactional" in hosted.ports:
            transactional = Transactional(
                store,
                token=hosted.token,
                transactions=hosted.transactions,
                protocol=hosted.protocol,
                on_event=on_event,
                clock=clock,
            )
            services["transactional"] = transactional.service
            ends.callback(transactional.flush)
        for name, module in (("thrift1", thrift1), ("thrift2", thrift2)):
            if keys is not None and name in hosted.ports:
                services[name] = ServedInterface(module.SERVICE, module.handler(keys, clock), LONG)
        return ends.pop_all().close, services


class Compactor:
    """Compacts the served store a little at a time, in an otherwise idle process.

    HBase compacts by itself; here the supervisor does, between signals. It drops expired cells and
    delete markers that are no longer needed. A step is one page of a table. Writers wait only for
    pages with something to drop. Several compactors on one store are harmless. keep_deletes_ms: how
    long delete markers stay, which is longer than transaction rows do.
    """

    def __init__(self, keys: OrderedStore, clock: Clock, keep_deletes_ms: int, log: Logger) -> None:
        self._admin = Admin(keys, clock)
        self._tables = LocalStore(keys, clock)
        self._clock = clock
        self._keep_deletes_ms = keep_deletes_ms
        self._ahead_ms = clock.wall_ms() - clock.monotonic_ms()
        self._log = log
        self._rests = self._round()

    def step(self) -> int:
        """Compact a page; return how long to rest (ms). A failure is logged and ends the round: the
        caller must go on to supervise workers."""
        try:
            for rest_ms in self._rests:
                return rest_ms
        except Exception:  # noqa: BLE001  (workers must be supervised)
            self._log.exception("a round of compactions failed")
        self._rests = self._round()
        return ROUND_REST_MS

    def _round(self) -> Iterator[int]:
        for table in self._admin.tables():
            try:
                yield from self._pages(table)
            except TxnError as error:  # the table was dropped or disabled, or the disk is full
                self._log.info(annotate("gave up a compaction", cause=str(error)))

    def _pages(self, table: bytes) -> Iterator[int]:
        resume: bytes | None = b""
        while resume is not None:
            # Setting the clock forward since the start makes nothing expire.
            now_ms = min(self._clock.wall_ms(), self._clock.monotonic_ms() + self._ahead_ms)
            resume = self._tables.compact_page(table, resume, now_ms - self._keep_deletes_ms)
            yield PAGE_REST_MS


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_S  # limits how long a client occupies a thread

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: Prometheus asks every few seconds."""

    def get_stderr(self) -> TextIO:
        """Suppress tracebacks for clients that do not read; `MetricsConnection` logs errors."""
        return StringIO()


class MetricsConnection:
    """Answers one request for metrics. To its handler it is the server."""

    base_environ: ClassVar = {"SERVER_NAME": "localhost", "SERVER_PORT": "", "SCRIPT_NAME": ""}

    def __init__(self, app: WSGIApplication, connected: socket.socket, shared: Shared) -> None:
        self._socket = connected
        self._app = app
        self._shared = shared

    def run(self) -> None:
        ends = Timer(_Handler.timeout, self.cut)  # a byte now and then would prolong each wait
        ends.daemon = True
        ends.start()
        try:
            _Handler(self._socket, self._socket.getpeername(), self)  # type: ignore[arg-type]
        except OSError as error:
            self._shared.log.debug("a connection broke cause=%r", str(error))
        finally:
            ends.cancel()
            self._socket.close()

    def cut(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    stop = cut

    def get_app(self) -> WSGIApplication:
        return self._answer

    def _answer(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        try:
            if environ["REQUEST_METHOD"] != "HEAD":
                return self._app(environ, start)
            self._app(environ | {"REQUEST_METHOD": "GET"}, start)
            return iter([b""])  # without a length, which would be that of the page
        except Exception as error:
            self._shared.warn("metrics cannot be shown", error)
            raise


class Exposition:
    """Metrics of the served transactions for Prometheus, in each process from `start` to `stop`.

    A client cannot choose the worker that answers. So the workers count into files of one folder,
    and each answers with the sums over all workers. The counts of a worker that has ended stay in
    the files, so no sum ever decreases.

    listening: None disables counting and answering. shared: True if several processes serve; create
    the exposition before they start, and close it after they end.
    """

    def __init__(self, listening: socket.socket | None, log: Logger, *, shared: bool) -> None:
        self._listening = listening
        self._log = log
        self._server: Server | None = None
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

    def make_listener(self) -> Listener:
        return silent if self._listening is None else self._metrics.Metrics()

    def start(self, app: WSGIApplication) -> None:
        assert self._listening is not None
        page = partial(MetricsConnection, app)
        limits = Limits(connections=METRICS_CONNECTIONS, grace_ms=METRICS_GRACE_MS)
        self._server = Server([(self._listening, page)], limits, log=self._log)
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    def forget(self, process: int) -> None:
        if self._folder is not None:
            self._metrics.forget_process(process)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
