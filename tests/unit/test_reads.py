"""Atomic reads: what is seen while a writer is at each point of its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import get_args

import pytest

from tests.unit.worlds import POLICY, World, X, Y, Z, after_status, ghost, is_step, stopped_at
from txn.assertions import Exact, Version
from txn.client.engine import Engine
from txn.errors import NotApplied
from txn.model import KEEP_DELETES_MS, Check, Delete, Edit, Key, Mutation
from txn.protocol.retire import retire
from txn.protocol.statuses import ProtocolName, Status
from txn.testing.counting import CountingStore
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply


@pytest.mark.parametrize("instant", [False, True], ids=["by row", "instant"])
@pytest.mark.parametrize("status", list(Status)[:5])
def test_a_writer_is_seen_from_its_decision_on(status: Status, instant: bool) -> None:
    world = World()
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    after_status(world, status, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit([Mutation(X, b"2"), Delete(Y)])
    before = world.clock.monotonic_ms()
    found = world.client(world.store if instant else None, seed=2).read([X, Y])  # type: ignore[arg-type]
    expected = (b"2", None) if status.is_decided else (b"1", b"1")
    assert tuple(cell and cell.value for cell in found.values()) == expected
    assert world.clock.monotonic_ms() == before  # nobody was waited for


def test_a_holder_that_only_asserts_leaves_the_value() -> None:
    world = World()
    world.put(Y, b"old")
    after_status(world, Status.ASSERTED, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit([Mutation(X, b"2")], [~Version(Y, None)])
    assert world.client(seed=2).read([Y])[Y] == world.cell(Y)


@pytest.mark.parametrize("status", [None, Status.COMPLETE])
def test_a_ghost_does_not_bring_its_value_back(status: Status | None) -> None:
    world = World()
    holder = ghost(world, status)
    world.store.check_and_put([Check(X.lock, holder, ((X.lock, b""),))])
    world.client(seed=2).commit([Mutation(X, b"3")])
    world.store.check_and_put([Check(X.lock, b"", ((X.lock, holder),))])
    cell = world.client(seed=3).read([X])[X]
    assert cell is not None and cell.value == b"3"


@pytest.mark.parametrize(
    ("keys", "status", "calls", "instant"),
    [
        ([X], None, 1, False),
        ([X, X._replace(column=b"y")], None, 1, False),
        ([X, Y], None, 2, False),
        ([X], Status.LOCKED, 3, False),
        ([X, Y], Status.LOCKED, 3, False),
        ([X, Y], Status.ASSERTED, 4, False),
        ([X, Z], None, 3, False),
        ([X, Y], None, 1, True),
        ([X, Y], Status.LOCKED, 2, True),
        ([X, Y], Status.ASSERTED, 3, True),
    ],
)
def test_what_a_read_costs(
    keys: list[Key], status: Status | None, calls: int, instant: bool
) -> None:
    """One row without locks is one get; what is looked at again, is so only where needed."""
    world = World()
    world.put(X, b"1")
    world.engine.commit([Mutation(Z, b"1")])
    world.engine.commit([Delete(Z)])
    if status is not None:
        stopped_at(world, status)
    counting = CountingStore(world.store)
    if instant and "instant_reads" not in counting.features:
        return  # as on HBase
    engine = world.client(counting if instant else FaultyStore(counting))  # type: ignore[arg-type]
    engine.read(keys)
    counting.reset()
    engine.read(keys)
    assert dict(counting.calls) == {"read": calls}


def test_a_holder_that_came_meanwhile_is_looked_at_too() -> None:
    world = World()
    world.engine.commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    stopped_at(world, Status.ASSERTED)
    seen: list[Call] = []

    def plan(call: Call) -> Fault:
        seen.append(call)
        if len(seen) == 3:
            world.faults.plan = lambda call: Fault()
            stopped_at(world, Status.ASSERTED, key=Y, value=b"3")
        return Fault()

    store = FaultyStore(world.store)
    store.features |= {"instant_reads"}
    engine = world.client(store, seed=2)
    engine.read([Key("other", "d", "x")])
    store.plan = plan
    found = engine.read([X, Y])
    assert [cell and cell.value for cell in found.values()] == [b"2", b"3"]
    assert len(seen) == 6


def before_look(world: World, number: int, work: Callable[[], object]) -> tuple[Engine, list[Call]]:
    """Return a client, before one of whose calls some work is done, and its calls."""
    engine, calls = world.client(world.faults, seed=2), list[Call]()
    engine.read([Key("other", "d", "x")])

    def plan(call: Call) -> Fault:
        calls.append(call)
        if len(calls) == number:
            work()
        return Fault()

    world.faults.plan = plan
    return engine, calls


def test_what_comes_and_goes_beside_a_deleted_key_is_seen() -> None:
    """Put and deleted again between two looks, it looks as it did; only its tag is a later one."""
    world = World()
    world.engine.commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    world.engine.commit([Delete(X)])

    def come_and_go() -> None:
        world.client(seed=9).commit([Mutation(X, b"1"), Mutation(Y, b"1")])
        world.client(seed=8).commit([Delete(X)])

    engine, calls = before_look(world, 3, come_and_go)
    found = engine.read([X, Y])
    assert [cell and cell.value for cell in found.values()] == [None, b"1"]
    assert len(calls) == 4


def test_a_row_that_goes_between_the_looks_is_read_again() -> None:
    """It may have decided, finished and been deleted."""
    world = World()
    world.engine.commit([Mutation(X, b"0")])
    holder = stopped_at(world, Status.CLEANING)

    def delete_row() -> None:
        cells = [item for row in world.store.scan(b"txn", holder) for item in row.cells.items()]
        world.store.write([Edit(key, None, cell.timestamp) for key, cell in cells])

    engine, calls = before_look(world, 4, delete_row)
    assert engine.read([X])[X] == world.cell(X)
    assert len(calls) == 8


def test_a_read_whose_looks_lie_far_apart_begins_again() -> None:
    """The key was deleted and retired meanwhile, and nothing tells that its value is gone."""
    world = World()
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])

    def stop_for_a_day() -> None:
        world.client(seed=7).commit([Delete(X)])
        world.clock.advance(KEEP_DELETES_MS + 10)
        old_ms = world.clock.wall_ms() - KEEP_DELETES_MS
        assert retire(world.client(seed=8).context, {X: None}, old_ms) == {X}

    engine, _ = before_look(world, 2, stop_for_a_day)
    found = engine.read([X, Y])
    assert [cell and cell.value for cell in found.values()] == [None, b"1"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_reader_that_is_always_overtaken_takes_the_locks(fails: bool) -> None:
    """It has waited for nobody until then; now it must see something."""
    world = World()
    world.engine.commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    writer, left = world.client(seed=9), [b"%d" % number for number in range(1, 21)]

    def overtake(call: Call) -> Fault:
        if call.method == "read" and (left or fails):
            value = left.pop() if left else b"0"
            writer.commit([Mutation(key, value) for key in (X, Y)])
        elif fails and call.method != "read":
            return Fault(frozenset(), Reply.NOT_APPLIED)
        return Fault()

    world.faults.plan = overtake
    if fails:
        with pytest.raises(NotApplied):
            world.engine.read([X, Y])
        return
    found = world.engine.read([X, Y])
    assert len({cell.value for cell in found.values() if cell}) == 1
    assert world.statuses().count(Status.COMPLETE) >= 3
    assert world.holder(X) == b""


def test_keys_are_answered_as_they_were_asked() -> None:
    world = World()
    world.put(X, b"1")
    short = Key("x", "d", "x")
    found = world.engine.read([short, X])
    assert found[short] == found[X] == world.cell(X)
    assert world.engine.read([]) == {}


@pytest.mark.usefixtures("rows_for_all")
@pytest.mark.parametrize("protocol", get_args(ProtocolName))
def test_a_read_under_locks_leaves_no_outcome_open(protocol: ProtocolName) -> None:
    world = World(replace(POLICY, read_tries=1), protocol)
    stopped_at(world, Status.ASSERTED)
    helper, decided, looked = world.client(seed=2), list[object](), count()

    def plan(call: Call) -> Fault:
        decided.extend(item for item in call.items if is_step(item, Status.ASSERTED))
        looks = call.method == "read" and any(
            isinstance(key, Key) and key.column == b"status" for key in call.items
        )
        if looks and next(looked) == 1:  # after the first look of the only try
            helper.commit([], [Exact(X, b"2")])
        return Fault(reply=Reply.MAYBE_APPLIED) if decided else Fault()

    world.faults.plan = plan
    with pytest.raises(NotApplied, match="nothing was read"):
        world.engine.read([X, Y])
    assert decided
