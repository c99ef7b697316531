"""Connections to the servers of a cluster, opened when they are needed."""

from __future__ import annotations

import itertools
import ssl
from threading import Lock
from weakref import WeakSet

from txn.clock import Clock
from txn.errors import StoreClosedError
from txn.host.forks import Forked
from txn.stores.hbase.native.connection import RpcConnection
from txn.stores.hbase.native.kerberos import Unwelcome
from txn.stores.hbase.native.target import Address, Target
from txn.stores.hbase.native.tenure import ListServers, Tenure
from txn.stores.wire import trust

Place = tuple[Address, str, int]
"""A server, a service of it, and which of the connections to it."""


class Servers(Forked):
    """At most `target.connections` to each service. Safe for many threads, and across fork.
    list_servers: who tells of region servers that they are at work; set by the registry."""

    list_servers: ListServers

    def __init__(self, target: Target, clock: Clock) -> None:
        self.target = target
        self._clock = clock
        self._tls = trust(target.tls, target.ca, target.certificate, target.key)
        self._is_closed = False
        self._turns = itertools.count()
        self._start()
        self.expect_forks()

    def _start(self) -> None:
        self._open: dict[Place, RpcConnection] = {}
        self._opening: dict[Place, Lock] = {}
        self._made: WeakSet[RpcConnection] = WeakSet()  # those too that others have replaced
        self._lock = Lock()

    def after_fork(self, in_child: bool) -> None:
        """Leave the connections to the process that opened them: two would mix their answers."""
        if in_child:
            inherited = list(self._made)
            self._start()
            for connection in inherited:
                connection.close_copy()

    def connect(self, address: Address, service: str, due_ms: int) -> RpcConnection:
        """Return a connection that can carry calls; OSError where there can be none."""
        place = address, service, next(self._turns) % self.target.connections
        known = self._open.get(place)
        if known is not None and known.rests_well():
            return known
        with self._lock:
            opening = self._opening.setdefault(place, Lock())
        if not opening.acquire(timeout=self._left_ms(due_ms) / 1000):
            self._opening.pop(place, None)  # whoever has it does not get on, or was interrupted
            raise TimeoutError("timed out")
        try:
            known = self._open.get(place)
            if known is not None:
                if known.rests_well():
                    return known
                if not known.is_broken:
                    known.end()
            if self._is_closed:
                raise StoreClosedError("the store is closed", cluster=str(self.target))
            within_ms = min(self.target.connect_ms, self._left_ms(due_ms))
            made = self._connect(address, service, within_ms)
            self._open[place] = made
            with self._lock:
                self._made.add(made)
            if self._is_closed:  # meanwhile
                made.end()
            return made
        finally:
            opening.release()

    def _connect(self, address: Address, service: str, within_ms: int) -> RpcConnection:
        tenure = None
        if service == "ClientService":
            tenure = Tenure(address, self.list_servers, self._clock)
        try:
            return RpcConnection(
                address,
                service,
                self.target,
                self._clock,
                within_ms=within_ms,
                tls=self._tls,
                tenure=tenure,
            )
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            raise  # a server that is going
        except ssl.SSLError as error:
            raise Unwelcome("TLS fails", server=address, cause=str(error)) from error

    def _left_ms(self, due_ms: int) -> int:
        left_ms = due_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError("timed out")
        return left_ms

    def close(self) -> None:
        """Close all connections; calls on their way end with an error."""
        self._is_closed = True
        with self._lock:
            made = list(self._made)
        for connection in made:
            connection.end(StoreClosedError("the store was closed"))
        self._open.clear()
