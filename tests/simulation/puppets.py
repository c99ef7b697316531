"""Clients that stop before a call of the store until they are told to go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Generic, TypeVar

from greenlet import getcurrent, greenlet

from tests.simulation.calls import Match, asks_for
from tests.simulation.world import POLICY, World, Wrapper
from txn import Cell, Engine, Key, Policy
from txn.clock import Clock
from txn.model import Row
from txn.protocol.statuses import Status
from txn.stores.base import Store
from txn.testing.faulty import NO_FAULT, Call, Fault, Plan, Reply, faultless

T = TypeVar("T")


class Puppet(Generic[T]):
    """A client that does one thing. by_row: it reads row by row, or against it: backwards."""

    def __init__(
        self,
        world: World,
        work: Callable[[Engine], T],
        *,
        faults: Plan = faultless,
        policy: Policy = POLICY,
        clock: Clock | None = None,
        by_row: bool = False,
        backwards: bool = False,
    ) -> None:
        self._hub: Any = getcurrent()
        self._greenlet: Any = None
        self._faults = faults
        one_by_one = by_row or backwards
        store = RowByRow(world.memory, self._stop, backwards) if one_by_one else None
        sleeping = Sleeping(clock or world.clock, self._stop)
        self.engine, self.store = world.client(
            self._plan, policy=policy, clock=sleeping, store=store
        )
        self._greenlet = greenlet(lambda: work(self.engine))
        self._at: Call | None = None
        self._result: T | None = None

    def until(self, match: Match) -> Call | None:
        while (call := self.step()) is not None:
            if match(call):
                return call
        return None

    def step(self) -> Call | None:
        if not self._greenlet.dead:
            found = self._greenlet.switch()
            if self._greenlet.dead:
                self._result, found = found, None
            self._at = found
            return self._at
        return None

    def finish(self) -> T:
        while self.step() is not None:
            pass
        assert self._result is not None
        return self._result

    def _plan(self, call: Call) -> Fault:
        self._stop(call)
        return self._faults(call)

    def _stop(self, call: Call) -> None:
        if self._greenlet is not None and getcurrent() is self._greenlet:
            self._hub.switch(call)


class Sleeping:
    """A clock on which a puppet's sleep moves the time of the world and gives others a turn."""

    def __init__(self, clock: Clock, stop: Callable[[Call], None]) -> None:
        self.wall_ms, self.monotonic_ms = clock.wall_ms, clock.monotonic_ms
        self._clock = clock
        self._stop = stop

    def sleep_ms(self, duration_ms: int) -> None:
        self._clock.sleep_ms(duration_ms)
        self._stop(Call(0, "sleep", ()))


class RowByRow(Wrapper):
    """A store that reads one row after the other, in order or against it, and stops before each."""

    def __init__(self, inner: Store, stop: Callable[[Call], None], backwards: bool = False) -> None:
        super().__init__(inner)
        self._stop = stop
        self._backwards = backwards

    def read(self, *groups: Collection[Key]) -> dict[Key, Cell | None]:
        found: dict[Key, Cell | None] = {}
        for keys in groups:
            for row in sorted({key.row for key in keys}, reverse=self._backwards):
                of_row = [key for key in keys if key.row == row]
                self._stop(Call(0, "row", tuple(of_row)))
                found.update(self._inner.read(of_row))
        return found

    def scan(
        self, table: bytes, start: bytes = b"", stop: bytes | None = None, *more: Any, **named: Any
    ) -> Iterator[Row]:
        while row := next(self._inner.scan(table, start, stop, *more, **named), None):
            self._stop(Call(0, "row", tuple(row.cells)))
            if row := next(self._inner.scan(table, start, stop, *more, **named), None):
                backwards = named.get("reverse", False)
                start, stop = (start, row.row) if backwards else (row.row + b"\0", stop)
                yield row


def when(match: Match, fault: Fault) -> Plan:
    left = [fault]
    return lambda call: left.pop() if left and match(call) else NO_FAULT


def lock_without_row() -> Plan:
    return when(asks_for(Status.WRITTEN), Fault(frozenset({1}), Reply.MAYBE_APPLIED))


def plans(*all_of_them: Plan) -> Plan:
    return lambda call: next((f for plan in all_of_them if (f := plan(call)) != NO_FAULT), NO_FAULT)
