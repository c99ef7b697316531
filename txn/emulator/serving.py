"""What `txn serve` runs: HBase's services and the Transactional one, on ports, over one store.

HBase's services need the store's keys, and so one on this machine. The Transactional one needs no
more than the contract of a store: it may stand before HBase itself, for clients that cannot.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from txn.clock import Clock, SystemClock
from txn.emulator.exposing import Exposition
from txn.emulator.sweeping import ROUND_REST_MS, Chore, Sweeper
from txn.emulator.thrift1 import service as thrift1
from txn.emulator.thrift2 import service as thrift2
from txn.emulator.workers import Supervisor, serve_here
from txn.errors import InvalidRequestError
from txn.events import Listener, silent
from txn.protocol.statuses import ProtocolName
from txn.request import TRANSACTIONS
from txn.server.listening import listen
from txn.server.options import Options
from txn.server.ports import ServedInterface, Server, server_tls_context
from txn.service.server import Transactional
from txn.stores import open_ordered, open_store
from txn.stores.base import Store
from txn.stores.local import LocalStore
from txn.tables.kv.ordered import OrderedStore

NAMES = ("thrift1", "thrift2", "transactional")
ON_THIS_MACHINE = ("embedded", "memory")
LONG = frozenset(  # of HBase's methods, those that read many rows
    {
        *("getRows", "getRowsWithColumns", "getRowsTs", "getRowsWithColumnsTs"),
        *("scannerGet", "scannerGetList"),
        *("getMultiple", "getScannerRows", "getScannerResults"),
    }
)


@dataclass(frozen=True, slots=True)
class Hosted:
    """What is served. store: `embedded:///path` or `memory://`; or a URI of HBase, for the
    Transactional service alone. ports: by a name of NAMES; 0 picks one. token: what requests of the
    Transactional service must show. protocol, transactions: those of its transactions, as `connect`
    takes them. metrics: the port on which Prometheus reads of them."""

    store: str
    ports: Mapping[str, int]
    token: str | None = None
    protocol: ProtocolName | None = None
    metrics: int | None = None
    transactions: str = TRANSACTIONS

    def __post_init__(self) -> None:
        if not self.ports or not set(self.ports) <= set(NAMES):
            raise InvalidRequestError(
                "give a port for one of the services: --thrift1, --thrift2 or --transactional",
                given=[*self.ports],
            )
        if self.metrics is not None and "transactional" not in self.ports:
            raise InvalidRequestError("metrics are of transactions: give --transactional as well")
        if self.scheme == "txn":
            raise InvalidRequestError("this store is a server's already: connect to it")
        if not self.is_on_this_machine and set(self.ports) != {"transactional"}:
            raise InvalidRequestError(
                "HBase's services can be served from a store on this machine only: from this one "
                "serve --transactional alone, as HBase has gateways of its own",
                scheme=self.scheme,
                known=ON_THIS_MACHINE,
            )

    @property
    def scheme(self) -> str:
        """What kind of store it is."""
        return urlsplit(self.store).scheme

    @property
    def is_on_this_machine(self) -> bool:
        """Whether its keys can be had; a name that is no store's is told of when it is opened."""
        return self.scheme in ON_THIS_MACHINE


def serve(
    hosted: Hosted,
    options: Options,
    ready: Callable[[Mapping[str, int]], None],
    log: logging.Logger,
) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is called with the ports once all are served.

    No threads may be running. Raises InvalidRequestError for what cannot be served.
    """
    if options.workers > 1 and hosted.scheme == "memory":
        raise InvalidRequestError("a store in memory has one worker", store=hosted.store)
    clock = SystemClock()
    tls = server_tls_context(options)
    open_hosted, chore = _prepare(hosted, options, clock, log)
    ports = {**hosted.ports, "metrics": hosted.metrics}
    sockets = {name: listen(options.bind, port) for name, port in ports.items() if port is not None}
    exposition = Exposition(sockets.get("metrics"), shared=options.workers > 1)

    def start() -> Callable[[], object]:
        on_event = exposition.start()
        stopped, services = open_hosted(on_event)
        pairs = [(sockets[name], service) for name, service in services.items()]
        server = Server(pairs, options.limits, tls=tls, clock=clock, log=log)
        server.start()

        def stop() -> None:
            if not server.stop():
                log.warning("requests were still under way when the grace was over")
            stopped()
            exposition.stop()

        return stop

    def tell() -> None:
        ready({name: _port(listening) for name, listening in sockets.items()})

    try:
        if options.workers == 1:
            serve_here(start, tell, chore)
        else:
            count, grace_ms = options.workers, options.limits.grace_ms
            supervisor = Supervisor(start, count, grace_ms, clock, log, forget=exposition.forget)
            supervisor.run(tell, chore)
    finally:
        exposition.close()


Opened = tuple[Callable[[], None], dict[str, ServedInterface]]
"""What is to be called when the services have stopped, and these by their names."""


def _prepare(
    hosted: Hosted, options: Options, clock: Clock, log: logging.Logger
) -> tuple[Callable[[Listener], Opened], Chore]:
    """Return what opens the services, in the process that offers them, and what is to be done
    beside. What is wrong with the store is told here, before anything listens."""
    if hosted.is_on_this_machine:
        keys = open_ordered(hosted.store)
        sweeper = Sweeper(keys, clock, options.keep_deletes_ms, log)
        return partial(open_services, hosted, keys, clock), sweeper.step
    close, _ = _open_far(hosted, clock, silent)
    close()
    return partial(_open_far, hosted, clock), lambda: ROUND_REST_MS


def _open_far(hosted: Hosted, clock: Clock, on_event: Listener) -> Opened:
    """Open a store that is elsewhere, which sees to its tables itself, and the service over it."""
    store = open_store(hosted.store, clock)
    with ExitStack() as ends:
        ends.callback(store.close)
        transactional = _make_transactional(hosted, store, clock, on_event)
        ends.callback(transactional.flush)
        return ends.pop_all().close, {"transactional": transactional.service}


def _make_transactional(
    hosted: Hosted, store: Store, clock: Clock, on_event: Listener
) -> Transactional:
    return Transactional(
        store,
        token=hosted.token,
        transactions=hosted.transactions,
        protocol=hosted.protocol,
        on_event=on_event,
        clock=clock,
    )


def open_services(
    hosted: Hosted, keys: OrderedStore, clock: Clock, on_event: Listener = silent
) -> Opened:
    """Return the services over the store, by name, and what to call when they have stopped."""
    services: dict[str, ServedInterface] = {}
    ends = ExitStack()
    ends.callback(keys.close)
    if "transactional" in hosted.ports:
        transactional = _make_transactional(hosted, LocalStore(keys, clock), clock, on_event)
        services["transactional"] = transactional.service
        ends.callback(transactional.flush)
    for name, module in (("thrift1", thrift1), ("thrift2", thrift2)):
        if name in hosted.ports:
            services[name] = ServedInterface(module.SERVICE, module.handler(keys, clock), LONG)
    return ends.close, services


def _port(listening: socket.socket) -> int:
    port: int = listening.getsockname()[1]
    return port
