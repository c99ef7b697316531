"""What `txn serve` runs: HBase's services and the Transactional one, on ports, over one store."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

from txn.clock import Clock, SystemClock
from txn.emulator.exposing import Exposition
from txn.emulator.sweeping import Sweeper
from txn.emulator.thrift1 import service as thrift1
from txn.emulator.thrift2 import service as thrift2
from txn.emulator.workers import Supervisor, serve_here
from txn.errors import InvalidRequestError
from txn.protocol.attempt import ProtocolName
from txn.server.listening import listen
from txn.server.options import Options
from txn.server.ports import ServedInterface, Server, server_tls_context
from txn.service.server import Transactional
from txn.stores import open_ordered
from txn.stores.local import LocalStore
from txn.tables.kv.ordered import OrderedStore
from txn.watch import Watch, silent

NAMES = ("thrift1", "thrift2", "transactional")
LONG = frozenset(  # of HBase's methods, those that read many rows
    {
        *("getRows", "getRowsWithColumns", "getRowsTs", "getRowsWithColumnsTs"),
        *("scannerGet", "scannerGetList"),
        *("getMultiple", "getScannerRows", "getScannerResults"),
    }
)


@dataclass(frozen=True, slots=True)
class Hosted:
    """What is served. store: `embedded:///path` or `memory://`. ports: by a name of NAMES; 0 picks
    one. token: what requests of the Transactional service must show. protocol: that of its
    transactions, as `connect` takes it. metrics: the port on which Prometheus reads of them."""

    store: str
    ports: Mapping[str, int]
    token: str | None = None
    protocol: ProtocolName | None = None
    metrics: int | None = None

    def __post_init__(self) -> None:
        if not self.ports or not set(self.ports) <= set(NAMES):
            raise InvalidRequestError(
                "give a port for one of the services", known=NAMES, given=[*self.ports]
            )
        if self.metrics is not None and "transactional" not in self.ports:
            raise InvalidRequestError("metrics are of transactions: serve these as well")


def serve(
    hosted: Hosted,
    options: Options,
    ready: Callable[[Mapping[str, int]], None],
    log: logging.Logger,
) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is called with the ports once all are served.

    No threads may be running. Raises InvalidRequestError for what cannot be served.
    """
    if options.workers > 1 and urlsplit(hosted.store).scheme != "embedded":
        raise InvalidRequestError(
            "only an embedded store can have several workers", store=hosted.store
        )
    clock = SystemClock()
    tls = server_tls_context(options)
    keys = open_ordered(hosted.store)  # what is wrong with it is told before anything listens
    ports = {**hosted.ports, "metrics": hosted.metrics}
    sockets = {name: listen(options.bind, port) for name, port in ports.items() if port is not None}
    exposition = Exposition(sockets.get("metrics"), shared=options.workers > 1)

    def start() -> Callable[[], object]:
        watch = exposition.start()
        stopped, services = open_services(hosted, keys, clock, watch)
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

    sweeper = Sweeper(keys, clock, options.keep_deletes_ms, log)
    try:
        if options.workers == 1:
            serve_here(start, tell, sweeper.step)
        else:
            count, grace_ms = options.workers, options.limits.grace_ms
            supervisor = Supervisor(start, count, grace_ms, clock, log, forget=exposition.forget)
            supervisor.run(tell, sweeper.step)
    finally:
        exposition.close()


def open_services(
    hosted: Hosted, keys: OrderedStore, clock: Clock, watch: Watch = silent
) -> tuple[Callable[[], None], dict[str, ServedInterface]]:
    """Return the services over the store, by name, and what to call when they have stopped."""
    services: dict[str, ServedInterface] = {}
    ends = ExitStack()
    ends.callback(keys.close)
    if "transactional" in hosted.ports:
        store = LocalStore(keys, clock)
        transactional = Transactional(
            store, token=hosted.token, protocol=hosted.protocol, watch=watch
        )
        services["transactional"] = transactional.service
        ends.callback(transactional.flush)
    for name, module in (("thrift1", thrift1), ("thrift2", thrift2)):
        if name in hosted.ports:
            services[name] = ServedInterface(module.SERVICE, module.handler(keys, clock), LONG)
    return ends.close, services


def _port(listening: socket.socket) -> int:
    port: int = listening.getsockname()[1]
    return port
