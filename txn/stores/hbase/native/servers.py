"""Connections to a cluster's servers, opened on demand, and services that only one server has."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from random import Random
from threading import Lock
from typing import Any
from weakref import WeakSet

from txn.clock import Clock, poll
from txn.errors import MaybeApplied, NotApplied, StoreClosedError
from txn.host.holds import Hold, Holds
from txn.policy import Backoff
from txn.stores.hbase.native.connection import RemoteError, RpcCall, RpcConnection
from txn.stores.hbase.native.kerberos import Unwelcome
from txn.stores.hbase.native.messages import Cells
from txn.stores.hbase.native.target import Address, Target
from txn.stores.hbase.native.tenure import ListServers, Tenure
from txn.stores.hbase.places import first_line
from txn.stores.wire import trust

TRY_MS = 10_000  # for an answer; then another server may have the service
PAUSES = Backoff(first_ms=10, longest_ms=1_000)

Place = tuple[Address, str, int]


class Servers:
    """At most `target.connections` connections to each service; safe for threads. list_servers:
    returns the live region servers; set by the registry."""

    list_servers: ListServers

    def __init__(self, target: Target, clock: Clock) -> None:
        self.target = target
        self.clock = clock
        self._tls = trust(target.tls, target.ca, target.certificate, target.key)
        self._is_closed = False
        self._turn = 0
        self._start()

    def _start(self) -> None:
        self._open: dict[Place, RpcConnection] = {}
        self._opening: dict[Place, Holds[None]] = {}  # the first one opens it
        self._made: WeakSet[RpcConnection] = WeakSet()  # including those that were replaced
        self._lock = Lock()

    def reset(self) -> None:
        """Close a forked process's copies: two processes would mix up their answers."""
        inherited = list(self._made)
        self._start()
        for connection in inherited:
            connection.close_copy()

    def send(
        self, address: Address, service: str, method: str, request: Any, due_ms: int
    ) -> RpcCall:
        """Send a call; the server drops it if it has not begun by the deadline. OSError means that
        nothing was sent."""
        connection = self.find_connection(address, service, due_ms)
        return connection.send(method, request, self.clock.monotonic_ms(), due_ms)

    def find_connection(self, address: Address, service: str, due_ms: int) -> RpcConnection:
        """Return the connection whose turn it is; raise OSError if there is none."""
        self._turn = turn = (self._turn + 1) % self.target.connections
        place = address, service, turn
        connection = self._open.get(place)
        if connection is None or not connection.rests_well(self.clock.monotonic_ms()):
            connection = self._connect(place, due_ms)
        return connection

    def _connect(self, place: Place, due_ms: int) -> RpcConnection:
        """Return a usable connection, from now on the one of its place; raise OSError if there is
        none."""
        with (hold := Hold()):
            line = self._opening.setdefault(place, Holds())
            line.add(hold, None)
            if not poll(lambda: line.is_first(hold), self._left_ms(due_ms)):
                raise TimeoutError("timed out")
            made = self._open_in_turn(place, due_ms)
            line.remove(hold)
        return made

    def _open_in_turn(self, place: Place, due_ms: int) -> RpcConnection:
        known = self._open.get(place)
        if known is not None:
            if known.rests_well(self.clock.monotonic_ms()):
                return known
            if not known.is_broken:
                known.end()
        if self._is_closed:
            raise StoreClosedError("the store is closed", cluster=str(self.target))
        within_ms = min(self.target.connect_ms, self._left_ms(due_ms))
        address, service, _ = place
        is_regions = service == "ClientService"
        tenure = Tenure(address, self.list_servers, self.clock) if is_regions else None
        try:
            made = self._open[place] = RpcConnection(
                address,
                service,
                self.target,
                self.clock,
                within_ms=within_ms,
                tls=self._tls,
                tenure=tenure,
            )
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            raise  # a server that is shutting down
        except ssl.SSLError as error:
            raise Unwelcome("TLS fails", server=address, cause=str(error)) from error
        with self._lock:
            self._made.add(made)
        if self._is_closed:  # by another thread
            made.end()
        return made

    def _left_ms(self, due_ms: int) -> int:
        left_ms = due_ms - self.clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError("timed out")
        return left_ms

    def close(self) -> None:
        """Close all connections; calls in flight fail."""
        self._is_closed = True
        with self._lock:
            made = {*self._made, *self._open.values()}
        for connection in made:
            connection.end(StoreClosedError("the store was closed"))
        self._open.clear()


class SoleService:
    """A service that one server has at a time, such as the active master's; found again when it
    does not answer. failure: the error message if there is no answer in time."""

    def __init__(
        self, servers: Servers, name: str, find: Callable[[int], Address], failure: str
    ) -> None:
        self._servers = servers
        self._name = name
        self._find = find
        self._failure = failure
        self._rng = Random()
        self._address: Address | None = None

    def forget(self, address: Address) -> None:
        """Find the server again if it had this address."""
        if self._address == address:
            self._address = None

    def ask(
        self, method: str, request: Any, response: Any, due_ms: int, *, once: bool = False
    ) -> tuple[Any, Cells]:
        """Return the answer to a request and the cells behind it. once: never send it twice.

        Raises RemoteError, and without an answer NotApplied or, with once, MaybeApplied.
        """
        clock = self._servers.clock
        cause: Exception | None = None
        for _ in PAUSES.tries(clock, self._rng, due_ms=due_ms):
            call = None
            try:
                address = self._address or self._find(due_ms)
                try_ms = due_ms if once else min(due_ms, clock.monotonic_ms() + TRY_MS)
                call = self._servers.send(address, self._name, method, request, try_ms)
                answer = call.receive(response, try_ms)
            except Unwelcome:
                raise
            except RemoteError as error:
                if not (error.is_elsewhere or error.is_busy):
                    raise
                self._address, cause = None, error
            except (OSError, NotApplied) as error:
                self._address, cause = None, cause or error  # later errors may be mere time-outs
                if call is not None and once:
                    break
            else:
                self._address = address
                return answer, call.cells
        kind = MaybeApplied if once else NotApplied
        raise kind(self._failure, cause=first_line(cause)) from cause
