"""A lock session: a row that its owner changes each third of a lease, to show that it lives.

An observer that finds it unchanged for a whole lease, by a clock of its own, deletes it. The owner
counts its lease from before its last beat was sent, so it stops before anybody ends it.
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
from txn.model import Cell, Delete, Key, Mutation
from txn.repeating import repeat

FAMILY = "s"


class Session:
    """A row that says that its owner lives, and the thread that keeps saying so."""

    def __init__(
        self,
        engine: Engine,
        key: Key,
        name: str,
        lease_ms: int,
        *,
        clock: Clock,
        beaten: Callable[[], None],
    ) -> None:
        self.name = name
        self._engine = engine
        self._key = key
        self._lease_ms = lease_ms
        self._clock = clock
        self._beaten = beaten
        self._beats = 0
        self._ended = threading.Event()
        self._lost = False
        self._beaten_ms = clock.monotonic_ms()
        engine.commit([Mutation(key, self._value())], [Version(key, None)])
        work = ("show life", self._beat, self._ended, lease_ms / 3000, engine.context.on_event)
        self._thread = threading.Thread(
            target=repeat, args=work, name="txn-lock-session", daemon=True
        )
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether it has ended, or may have been ended by others: too long since the last beat."""
        silent_ms = self._clock.monotonic_ms() - self._beaten_ms
        return self._lost or silent_ms >= self._lease_ms

    @property
    def ended(self) -> bool:
        """Whether its row is known to be gone."""
        return self._lost

    def lose(self) -> None:
        """Note that others have ended it."""
        self._lost = True

    def end(self) -> None:
        """Delete the row: all that the session holds is free; at the end of its lease, where the
        store cannot be reached."""
        self._lost = True
        self._ended.set()
        self._thread.join()
        with suppress(TxnError):
            self._engine.commit([Delete(self._key)])

    def _value(self) -> bytes:
        return json.dumps({"beat": self._beats, "lease_ms": self._lease_ms}).encode()

    def _beat(self) -> bool:
        """Beat once, unless the session has ended; return whether it has not."""
        if self._lost:
            return False
        began_ms = self._clock.monotonic_ms()
        self._beats += 1
        try:
            self._engine.commit([Mutation(self._key, self._value())], [Some(self._key)])
        except AssertionFailedError:
            self._lost = True
            return False
        self._beaten_ms = began_ms
        self._beaten()
        return True


class Sessions:
    """A manager's own session, and what it has seen of others'."""

    def __init__(
        self,
        engine: Engine,
        table: str,
        lease_ms: int,
        *,
        clock: Clock,
        rng: Random,
        beaten: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._table = table
        self._lease_ms = lease_ms
        self._clock = clock
        self._rng = rng
        self._beaten = beaten
        self._guard = threading.Lock()
        self._own: list[Session] = []
        self._closed = False
        self._seen: dict[str, tuple[bytes, int]] = {}

    def key(self, name: str) -> Key:
        """Return the cell that a session changes to show that it lives."""
        return Key(name, FAMILY, "beat", self._table)

    def alive(self) -> Session:
        """Return our session, a new one where there is none that lives."""
        with self._guard:
            if self._closed:
                raise StoreClosedError("the lock manager was closed")
            if not self._own or self._own[-1].lost:
                name = f"{self._rng.getrandbits(128):032x}"
                key, lease_ms = self.key(name), self._lease_ms
                beaten = self._beaten
                session = Session(
                    self._engine, key, name, lease_ms, clock=self._clock, beaten=beaten
                )
                self._own = [*(each for each in self._own if not each.ended), session]
            return self._own[-1]

    def close(self) -> None:
        """End our sessions; there will be no other."""
        with self._guard:
            self._closed = True
            own, self._own = self._own, []
        for session in own:
            session.end()

    def dead(self, names: Collection[str]) -> set[str]:
        """Return those that have ended; end those that have been silent for their lease."""
        keys = {name: self.key(name) for name in names}
        cells = self._engine.read(list(keys.values())) if keys else {}
        now_ms = self._clock.monotonic_ms()
        found = set()
        for name, key in keys.items():
            cell = cells[key]
            if cell is None or (self._silent(name, cell, now_ms) and self._end_session(key, cell)):
                found.add(name)
                self._seen.pop(name, None)
        return found

    def _silent(self, name: str, cell: Cell, now_ms: int) -> bool:
        value, since_ms = self._seen.get(name, (b"", now_ms))
        if value != cell.value:
            self._seen[name] = (cell.value, now_ms)
            return False
        return now_ms - since_ms >= _read_lease_ms(name, cell)

    def _end_session(self, key: Key, cell: Cell) -> bool:
        try:
            self._engine.commit([Delete(key)], [Exact(key, cell.value)])
        except AbortedError:
            return False  # it lives, or somebody else is at it
        return True


def _read_lease_ms(name: str, cell: Cell) -> int:
    try:
        lease_ms: int = json.loads(cell.value)["lease_ms"]
        return int(lease_ms)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRowError("a lock session does not decode", row=name.encode()) from error
