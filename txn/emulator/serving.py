"""What `txn serve` runs: HBase's services and the Transactional one, on ports, over one store."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

from txn.clock import Clock, SystemClock
from txn.emulator.sweeping import Sweeper
from txn.emulator.thrift1 import service as thrift1
from txn.emulator.thrift2 import service as thrift2
from txn.emulator.workers import Supervisor, serve_here
from txn.errors import InvalidRequestError
from txn.protocol.attempt import ProtocolName
from txn.server.options import Options
from txn.server.ports import ServedInterface, Server, listen, server_tls_context
from txn.service.server import Transactional
from txn.stores import open_ordered
from txn.stores.local import LocalStore
from txn.tables.kv.ordered import OrderedStore

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
    transactions, as `connect` takes it."""

    store: str
    ports: Mapping[str, int]
    token: str | None = None
    protocol: ProtocolName | None = None

    def __post_init__(self) -> None:
        if not self.ports or not set(self.ports) <= set(NAMES):
            raise InvalidRequestError(
                "give a port for one of the services", known=NAMES, given=[*self.ports]
            )


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
    sockets = {name: listen(options.bind, port) for name, port in hosted.ports.items()}

    def start() -> Callable[[], object]:
        stopped, services = open_services(hosted, keys, clock)
        pairs = [(sockets[name], service) for name, service in services.items()]
        server = Server(pairs, options.limits, tls=tls, clock=clock, log=log)
        server.start()

        def stop() -> None:
            if not server.stop():
                log.warning("requests were still under way when the grace was over")
            stopped()

        return stop

    def tell() -> None:
        ready({name: _port(listening) for name, listening in sockets.items()})

    sweeper = Sweeper(keys, clock, options.keep_deletes_ms, log)
    if options.workers == 1:
        serve_here(start, tell, sweeper.step)
    else:
        supervisor = Supervisor(start, options.workers, options.limits.grace_ms, clock, log)
        supervisor.run(tell, sweeper.step)


def open_services(
    hosted: Hosted, keys: OrderedStore, clock: Clock
) -> tuple[Callable[[], None], dict[str, ServedInterface]]:
    """Return the services over the store, by name, and what to call when they have stopped."""
    services: dict[str, ServedInterface] = {}
    ends = ExitStack()
    ends.callback(keys.close)
    if "transactional" in hosted.ports:
        store = LocalStore(keys, clock)
        transactional = Transactional(store, token=hosted.token, protocol=hosted.protocol)
        services["transactional"] = transactional.service
        ends.callback(transactional.flush)
    for name, module in (("thrift1", thrift1), ("thrift2", thrift2)):
        if name in hosted.ports:
            services[name] = ServedInterface(module.SERVICE, module.handler(keys, clock), LONG)
    return ends.close, services


def _port(listening: socket.socket) -> int:
    port: int = listening.getsockname()[1]
    return port
