"""Locks in a store: what is settled after replies were lost, and what a deadline bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import cast

import pytest

from tests.simulation.puppets import RowByRow
from tests.unit.worlds import is_step
from txn import Key, Mutation
from txn.client.engine import Engine
from txn.clock import ManualClock
from txn.errors import AbortedError, CommitOutcomeUnknown, DeadlineError, StoreError
from txn.locks import LockDenied, LockManager, Waiting, exclusive, path
from txn.locks.opening import open_stored
from txn.policy import Policy
from txn.protocol.statuses import Status
from txn.stores import open_store
from txn.stores.base import Store
from txn.testing.faulty import Call, Fault, FaultyStore, Reply

LEASE_MS = 1_000_000
POLICY = Policy(store_patience_ms=50, lock_ttl_ms=100)


@pytest.fixture
def store() -> Store:
    return open_store("memory://")


def manager_on(
    store: Store, clock: ManualClock, name: str, lease_ms: int = LEASE_MS
) -> LockManager:
    engine = Engine(store, policy=POLICY, clock=clock)
    return open_stored(
        engine, name=name, lease_ms=lease_ms, clock=clock, rng=Random(name), owns_engine=True
    )


def changes_to(status: Status, call: Call) -> bool:
    return any(is_step(item, status) for item in call.items)


@pytest.mark.parametrize("when", ["at once", "late"])
def test_a_grant_whose_reply_is_lost_is_settled(store: Store, when: str) -> None:
    """Nobody would ever give back what it may have been granted: the request has failed."""
    clock, is_down = ManualClock(), False

    def plan(call: Call) -> Fault:
        nonlocal is_down
        if is_down:
            return Fault(applied=frozenset(), reply=Reply.MAYBE_APPLIED)
        if not changes_to(Status.ASSERTED, call):
            return Fault()
        is_down = True
        if when == "at once":
            return Fault(reply=Reply.MAYBE_APPLIED)
        return Fault(applied=frozenset(), reply=Reply.MAYBE_APPLIED, late=frozenset({0}))

    faulty = FaultyStore(store)
    one, two = manager_on(faulty, clock, "one"), manager_on(store, clock, "two")
    one.hold([exclusive("d/t")]).release()
    faulty.plan = plan
    with pytest.raises((StoreError, AbortedError, CommitOutcomeUnknown)):
        one.hold([exclusive("d/t")])
    assert is_down
    is_down, faulty.plan = False, lambda call: Fault()
    one.hold([])  # any request clears up, also one that changes nothing
    while faulty.in_flight:
        faulty.deliver()
    two.hold([exclusive("d/t")], waiting=Waiting(retries=0)).release()
    assert two.locks() == []
    one.close()
    two.close()


@dataclass
class Undone:
    """A manager on a store in which others change the line of `d` before each of its changes."""

    store: Store
    lease_ms: int = LEASE_MS
    each_takes_ms: int = 10
    clock: ManualClock = field(default_factory=ManualClock)
    tries: int = 0

    def __post_init__(self) -> None:
        self.faulty = FaultyStore(self.store)
        self.intruder = Engine(self.store, policy=POLICY, clock=self.clock)
        self.manager = manager_on(self.faulty, self.clock, "one", self.lease_ms)
        self.manager.hold([exclusive("d")]).release()

    def begin(self) -> None:
        self.faulty.plan = self._undo

    def end(self) -> None:
        """See that nothing is left."""
        self.faulty.plan = lambda call: Fault()
        assert self.manager.locks(path("d")) == []
        self.manager.close()
        self.intruder.close()

    def _undo(self, call: Call) -> Fault:
        line = Key("d", "o", "queue", "locks")
        cell = self.intruder.read([line])[line]
        if changes_to(Status.WRITTEN, call) and cell is not None:
            self.tries += 1
            self.clock.advance(self.each_takes_ms)
            self.intruder.commit([Mutation(line, cell.value)])
        return Fault()


def test_the_deadline_ends_tries_that_others_undo(store: Store) -> None:
    undone = Undone(store)
    undone.begin()
    began_ms = undone.clock.monotonic_ms()
    with pytest.raises(LockDenied):
        undone.manager.hold([exclusive("d")], waiting=Waiting(deadline_ms=500))
    assert 500 <= undone.clock.monotonic_ms() - began_ms < 1_000
    undone.end()


def test_a_change_that_took_too_long_is_not_made_again(store: Store) -> None:
    """It is no sign that somebody else has changed a line: a thousand of these took hours."""
    undone = Undone(store, lease_ms=6_000, each_takes_ms=40_000)
    undone.begin()
    with pytest.raises(DeadlineError):
        undone.manager.hold([exclusive("d")])
    assert undone.tries <= 2  # the second one sees to it that nothing is left of the first
    undone.end()


def test_giving_back_between_two_beats_leaves_time_for_the_next(store: Store) -> None:
    undone = Undone(store, lease_ms=60_000, each_takes_ms=8_000)
    held = undone.manager.hold([exclusive("d")], waiting=Waiting())
    undone.faulty.plan = lambda call: Fault(applied=frozenset(), reply=Reply.NOT_APPLIED)
    with pytest.raises(StoreError):
        held.release()
    undone.begin()
    began_ms = undone.clock.monotonic_ms()
    undone.manager.hold([])
    assert 8_000 <= undone.clock.monotonic_ms() - began_ms <= 20_000
    undone.faulty.plan = lambda call: Fault()
    undone.manager.hold([])
    undone.end()


def manager_reading_by_row(
    store: Store, clock: ManualClock, row: bytes, number: int, act: Callable[[], object]
) -> LockManager:
    """Return a manager that acts before it reads a row for this time, counted from 1."""
    times = count(1)

    def stop(call: Call) -> None:
        names = {key.row for key in call.items if isinstance(key, Key)}
        if row in names and next(times) == number:
            act()

    return manager_on(cast(Store, RowByRow(store, stop)), clock, "one")


def test_a_release_leaves_the_parents_of_a_request_granted_meanwhile(store: Store) -> None:
    """The scan had passed the other partition before the request: another locked the table."""
    clock = ManualClock()
    one, two = manager_on(store, clock, "one"), manager_on(store, clock, "two")
    both = [exclusive("d/t/p=1"), exclusive("d/t/p=2")]
    one.hold(both).release()  # the rows stay

    def act() -> None:
        one.hold(both, explicit=True)

    late = manager_reading_by_row(store, clock, b"d/t/p=2", 1, act)
    assert late.release("d/t/p=2") == 1
    with pytest.raises(LockDenied):
        two.hold(exclusive("d/t"), waiting=Waiting(retries=0))
    assert one.release("d/t/p=1") == 1
    assert one.locks() == []
    for each in (one, two, late):
        each.close()


@pytest.mark.parametrize("number", [1, 2])
def test_releases_at_once_of_all_objects_of_a_request_leave_no_parents(
    store: Store, number: int
) -> None:
    clock = ManualClock()
    one = manager_on(store, clock, "one")
    one.hold([exclusive("d/t/p=1"), exclusive("d/t/p=2")], explicit=True)
    released = []
    late = manager_reading_by_row(
        store, clock, b"d/t/p=2", number, lambda: released.append(one.release("d/t/p=1"))
    )
    assert late.release("d/t/p=2") == 1
    assert released == [1]
    assert one.locks() == []
    one.close()
    late.close()
