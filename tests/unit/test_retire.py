"""Keys without a value are retired, and nobody loses a lock or a write by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.worlds import TABLE, World, X, Y, Z
from txn.assertions import Version
from txn.errors import ConflictError
from txn.model import Cell, Check, Delete, Edit, Key, Mutation
from txn.protocol.retire import read_guarded, retire
from txn.testing.faulty import Call, Crash, Fault, Reply

DAY_MS = 24 * 3_600_000


def deleted(world: World, *keys: Key) -> int:
    """Write and delete keys, and let a day pass; return the timestamp of the deletes."""
    world.engine.commit([Mutation(key, b"1") for key in keys])
    done = world.engine.commit([Delete(key) for key in keys])
    world.clock.advance(DAY_MS)
    return done.timestamp


def old_ms(world: World) -> int:
    return world.clock.wall_ms() - DAY_MS // 2


def left(world: World, *keys: Key) -> list[Key]:
    """What there is of these keys, locks and tags included."""
    found = world.store.read([cell for key in keys for cell in (key, key.lock, key.tag)])
    return [key for key, cell in found.items() if cell]


def test_nothing_is_left_of_a_retired_key() -> None:
    """Deleted, only asserted, or of the expected value: a marker of `once` that is over."""
    world = World()
    asserted, absent = (Key(row, "d", "x", TABLE) for row in ("asserted", "absent"))
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")], [Version(asserted, None)])
    deleted(world, Z)
    assert left(world, asserted, Z) == [asserted.lock, Z.lock, Z.tag]
    x, y = world.cell(X), world.cell(Y)
    assert x is not None and y is not None
    gone: dict[Key, Cell | None] = {X: x, Z: None, asserted: None, absent: None}
    wanted = gone | {Y: y._replace(timestamp=y.timestamp - 1)}
    assert retire(world.engine.context, wanted, old_ms(world)) == set(gone)
    assert left(world, *wanted) == [Y, Y.lock, Y.tag]
    assert retire(world.engine.context, {}, old_ms(world)) == set()


def test_a_key_that_is_young_held_or_has_a_value_stays() -> None:
    world = World()
    deleted(world, X)
    world.engine.commit([Mutation(Y, b"1")])
    world.store.check_and_put([Check(X.lock, b"", ((X.lock, b"holder"),))])
    world.engine.commit([Mutation(Z, b"1")])
    world.engine.commit([Delete(Z)])
    before = world.store.read([cell for key in (X, Y, Z) for cell in (key, key.lock, key.tag)])
    assert retire(world.engine.context, dict.fromkeys((X, Y, Z)), old_ms(world)) == set()
    assert world.store.read(list(before)) == before


def test_a_later_lock_is_above_the_delete_or_is_not_seen() -> None:
    """At or below the delete no clock that went back can lock, so no put lands under the marker."""
    world = World()
    ahead_ms = world.clock.wall_ms() + 3_000
    world.store.write([Edit(X, b"0", ahead_ms)])
    world.engine.commit([Delete(X)])
    deleted_at = ahead_ms + 1
    world.clock.advance(DAY_MS)
    locked_at = world.clock.wall_ms()
    assert retire(world.engine.context, {X: None}, old_ms(world)) == {X}
    world.clock.set_wall_ms(deleted_at - 1_000)
    world.policy = replace(world.policy, attempts=1)
    once = world.client(seed=2)
    with pytest.raises(ConflictError, match="a delete marker in the future hides"):
        once.commit([Mutation(X, b"2")])
    done = once.commit([Mutation(X, b"2")])
    assert world.cell(X) == Cell(b"2", done.timestamp)
    assert done.timestamp > locked_at


def test_whoever_takes_the_key_meanwhile_keeps_it() -> None:
    for at in ("read", "check_and_put"):
        world = World()
        deleted(world, X)
        calls: list[Call] = []

        def plan(call: Call, world: World = world, calls: list[Call] = calls) -> Fault:
            calls.append(call)
            if call.method == at and len(calls) > 2:  # noqa: B023
                world.faults.plan = lambda call: Fault()
                world.client(seed=7).commit([Mutation(X, b"2")])
            return Fault()

        world.faults.plan = plan
        assert retire(world.engine.context, {X: None}, old_ms(world)) == set()
        assert world.value(X) == b"2"
        assert set(left(world, X)) == {X, X.lock, X.tag}
        assert world.holder(X) == b""


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("applied", [True, False])
def test_a_retirer_may_stop_anywhere(call: int, applied: bool) -> None:
    world = World()
    deleted(world, X)
    world.faults.calls = 0
    world.faults.plan = lambda seen: (
        Fault(None if applied else frozenset(), Reply.CRASH) if seen.number == call else Fault()
    )
    with pytest.raises(Crash):
        retire(world.engine.context, {X: None}, old_ms(world))
    world.client(seed=7).commit([Mutation(X, b"2")])
    assert world.value(X) == b"2"
    assert world.holder(X) == b""


@pytest.mark.parametrize("call", [2, 4])
def test_lost_answers_and_late_duplicates_do_no_harm(call: int) -> None:
    world = World()
    deleted(world, X)
    world.faults.calls = 0
    world.faults.plan = lambda seen: (
        Fault(None, Reply.MAYBE_APPLIED, frozenset({0})) if seen.number == call else Fault()
    )
    assert retire(world.engine.context, {X: None}, old_ms(world)) == {X}
    world.clock.advance(1)
    world.client(seed=7).commit([Mutation(X, b"2")])
    while world.faults.in_flight:
        world.faults.deliver()
    world.client(seed=8).commit([Mutation(X, b"3")])
    assert world.value(X) == b"3"
    assert read_guarded(world.engine.context, [X])[X].holder == b""
