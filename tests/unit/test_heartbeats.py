"""Owners whose work before the decision is longer than a lease, and those who watch them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.worlds import POLICY, TABLE, World, X
from txn.errors import ConflictError, DeadlineError
from txn.model import Check, Edit, Key, Mutation, Row
from txn.protocol import prepare as prepare_module
from txn.protocol import six_phase as six_phase_module
from txn.protocol import transaction
from txn.protocol.recovery import Resolver
from txn.protocol.row import status_key
from txn.protocol.six_phase import lock_in_order
from txn.protocol.statuses import Status
from txn.request import Outcome
from txn.testing.faulty import Call, Fault, FaultyStore

PATIENT = replace(POLICY, deadline_ms=3_600_000, attempts=1, courtesy_ms=1)
SLOW_MS = 3  # for each item, of a lease of 1 s


def keys(count: int) -> list[Key]:
    return [Key(f"row-{i:05}", "d", "v", TABLE) for i in range(count)]


def watched(
    world: World, item_ms: int = SLOW_MS, slow: Callable[[Call], bool] = lambda call: True
) -> Callable[[], None]:
    """Let each item of a call take its time, and after each call somebody look at all rows, who
    aborts what was undecided and silent for its lease. Return that look."""
    resolver = Resolver(world.client(FaultyStore(world.store), seed=9).context)

    def look() -> None:
        rows = [row for row in world.rows() if row.status and row.status.is_undecided]
        resolver.resolve({row.row_key: {} for row in rows})

    def plan(call: Call) -> Fault:
        look()
        if slow(call):
            world.clock.advance(item_ms * max(len(call.items), 1))
        return Fault()

    world.faults.plan = plan
    return look


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of 1 s is to a portion of 50 what 10 s are to the real one."""
    monkeypatch.setattr(transaction.split_portions, "__defaults__", (50,))
    monkeypatch.setattr(six_phase_module, "CELLS_AT_ONCE", 150)
    monkeypatch.setattr(prepare_module, "RESOLVED_AT_ONCE", 5)
    monkeypatch.setattr("txn.client.group_commit.PORTION", 50)


@pytest.mark.parametrize("lock", [six_phase_module.lock_at_once, lock_in_order])
def test_an_owner_lives_through_an_attempt_of_many_leases(
    lock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txn.protocol.six_phase.lock_at_once", lock)
    world = World(PATIENT)
    watched(world)
    began = world.clock.monotonic_ms()
    assert world.engine.commit([Mutation(key, b"1") for key in keys(400)]).complete
    assert world.clock.monotonic_ms() - began > 3 * POLICY.lock_ttl_ms


def test_an_owner_lives_that_looks_at_long_ranges() -> None:
    world = World(PATIENT)
    found = keys(60)
    world.engine.commit([Mutation(key, b"1") for key in found])

    with world.engine.transaction() as t:
        t.scan()
        t.put(X, b"1")
        look = watched(world, 0)

        def read_rows(table: bytes, *rest: Any, **options: Any) -> Iterator[Row]:
            for row in world.store.scan(table, *rest, **options):
                look()
                world.clock.advance(100)
                yield row

        world.faults.scan = read_rows  # type: ignore[method-assign]
    assert t.result is not None and world.value(X) == b"1"


def test_an_owner_that_was_aborted_at_its_work_leaves() -> None:
    world = World(PATIENT)
    aborted: list[int] = []
    asked: list[bytes] = []

    def plan(call: Call) -> Fault:
        world.clock.advance(len(call.items))
        asked.extend(i.key.row for i in call.items if isinstance(i, Check) and i.key.table == TABLE)
        if len(asked) >= 400 and not aborted:
            (row,) = world.rows()
            key = status_key(b"txn", row.row_key)
            check = Check(key, Status.WRITTEN.value, ((key, Status.ABORTING.value),))
            aborted.extend(world.store.check_and_put([check]))
        return Fault()

    world.faults.plan = plan
    with pytest.raises(ConflictError, match="aborted by another client") as caught:
        world.engine.commit([Mutation(key, b"1") for key in keys(2_000)])
    assert aborted == [True]
    assert len(set(asked)) < 1_200
    assert caught.value.transaction is not None
    assert world.engine.outcome(caught.value.transaction) is Outcome.ABORTED
    assert {world.holder(key) for key in keys(2_000)} == {b""}


@pytest.mark.parametrize("lock", [six_phase_module.lock_at_once, lock_in_order])
def test_work_ends_at_the_deadline(lock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txn.protocol.six_phase.lock_at_once", lock)
    world = World(PATIENT)
    world.faults.plan = lambda call: world.clock.advance(len(call.items)) or Fault()  # type: ignore[func-returns-value]
    with pytest.raises(DeadlineError, match="deadline passed before the decision"):
        world.engine.commit([Mutation(key, b"1") for key in keys(2_000)], deadline_ms=500)
    assert 500 <= world.clock.monotonic_ms() < 1_200
    assert {world.holder(key) for key in keys(2_000)} == {b""}


@pytest.mark.parametrize("deadline_ms", [5_000, 500])
def test_a_lock_that_is_refused_and_seen_free_is_waited_for_with_pauses(deadline_ms: int) -> None:
    """A server that tells of an older moment says so, or others are always faster."""
    world = World(replace(POLICY, attempts=2, deadline_ms=deadline_ms))
    tries: list[int] = []

    def plan(call: Call) -> Fault:
        wanted: Sequence[object] = call.items
        if any(isinstance(i, Check) and i.key == X.lock and i.puts[0][1] for i in wanted):
            tries.append(world.clock.monotonic_ms())
            assert len(tries) < 10_000, "it never ends"
            world.store.write([Edit(X.lock, b"x", world.clock.wall_ms() + len(tries))])
        elif call.method == "read":
            world.store.write([Edit(X.lock, b"", world.clock.wall_ms() + len(tries))])
        return Fault()

    world.faults.plan = plan
    with pytest.raises(DeadlineError, match="waiting for a lock"):
        world.engine.commit([Mutation(X, b"1")])
    assert deadline_ms <= world.clock.monotonic_ms() < deadline_ms + 200
    assert len(tries) < deadline_ms / 10
