"""Lock sessions in a store: rows that their owners change with each heartbeat.

An observer deletes a row that stays unchanged for a whole lease, by the observer's own clock.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from random import Random

from txn.assertions import Exact, Some, Version
from txn.client.engine import Engine
from txn.clock import Clock
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    CorruptRowError,
    StoreClosedError,
    TxnError,
)
from txn.locks.held import Heartbeat
from txn.model import Cell, Delete, Key, Mutation

FAMILY, COLUMN = "s", "heartbeat"


class Session:
    """A row that shows that its owner lives, and the heartbeat that updates it."""

    def __init__(
        self, engine: Engine, key: Key, lease_ms: int, clock: Clock, renewed: Callable[[], None]
    ) -> None:
        self.key = key
        self._engine = engine
        self._lease_ms = lease_ms
        self._count = 0
        began_ms = clock.monotonic_ms()
        engine.commit([Mutation(key, self._value())], [Version(key, None)])
        self.heartbeat = Heartbeat(
            "send heartbeat",
            self._renew,
            lease_ms / 1000,
            sure_ms=lease_ms,
            began_ms=began_ms,
            clock=clock,
            renewed=renewed,
            on_event=engine.context.on_event,
        )
        self.heartbeat.start()

    @property
    def name(self) -> str:
        return self.key.row.decode()

    def end(self) -> None:
        """Delete the row, which frees all that the session holds. If the store cannot be reached,
        that happens when the lease ends."""
        self.heartbeat.end()
        self.heartbeat.stop()
        with suppress(TxnError):
            self._engine.commit([Delete(self.key)])

    def _value(self) -> bytes:
        return json.dumps({"count": self._count, "lease_ms": self._lease_ms}).encode()

    def _renew(self) -> bool:
        self._count += 1
        try:
            self._engine.commit([Mutation(self.key, self._value())], [Some(self.key)])
        except AssertionFailedError:
            return False
        return True


class Sessions:
    """The sessions of this process, and its observations of others."""

    def __init__(
        self, engine: Engine, table: str, lease_ms: int, clock: Clock, rng: Random
    ) -> None:
        self._engine = engine
        self._table = table
        self._lease_ms = lease_ms
        self._clock = clock
        self._rng = rng
        self._guard = threading.Lock()
        self._own: list[Session] = []
        self._closed = False
        self._seen: dict[str, tuple[bytes, int]] = {}

    def open(self, renewed: Callable[[], None]) -> Session:
        """Return our live session, or open a new one."""
        with self._guard:
            if self._closed:
                raise StoreClosedError("the lock manager was closed")
            if not self._own or self._own[-1].heartbeat.lost:
                key = make_session_key(f"{self._rng.getrandbits(128):032x}", self._table)
                session = Session(self._engine, key, self._lease_ms, self._clock, renewed)
                self._own = [each for each in self._own if not each.heartbeat.ended] + [session]
            return self._own[-1]

    def close(self) -> None:
        with self._guard:
            self._closed = True
            own, self._own = self._own, []
        for session in own:
            session.end()

    def find_dead(self, names: Collection[str]) -> set[str]:
        """Return the sessions that have ended; end those that were silent for their whole lease."""
        keys = {name: make_session_key(name, self._table) for name in names}
        cells = self._engine.read(list(keys.values())) if keys else {}
        now_ms = self._clock.monotonic_ms()
        found = set()
        for name, key in keys.items():
            cell = cells[key]
            if cell is None or (self._is_silent(name, cell, now_ms) and self._end(key, cell)):
                found.add(name)
                self._seen.pop(name, None)
        return found

    def _is_silent(self, name: str, cell: Cell, now_ms: int) -> bool:
        value, since_ms = self._seen.get(name, (b"", now_ms))
        if value != cell.value:
            self._seen[name] = (cell.value, now_ms)
            return False
        return now_ms - since_ms >= _read_lease_ms(name, cell)

    def _end(self, key: Key, cell: Cell) -> bool:
        try:
            self._engine.commit([Delete(key)], [Exact(key, cell.value)])
        except AbortedError:
            return False  # it lives, or another observer is ending it
        return True


def make_session_key(name: str, table: str | bytes) -> Key:
    """Return the cell that a session changes with each heartbeat."""
    return Key(name, FAMILY, COLUMN, table)


def _read_lease_ms(name: str, cell: Cell) -> int:
    try:
        lease_ms: int = json.loads(cell.value)["lease_ms"]
        return int(lease_ms)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRowError("a lock session does not decode", row=name.encode()) from error
