"""Safeguards of timestamps and markers, each with and without: the test fails if taking it out
does no harm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from recovery import check, repair
from tests.simulation.breaking import deliver_all
from tests.simulation.puppets import Puppet, asks_for, when
from tests.simulation.variants import unlock_with_put, without, without_tags
from tests.simulation.world import POLICY, TABLE, World, key
from txn import AbortedError, Cell, Delete, Key, Mutation
from txn.model import Edit
from txn.protocol import six_phase as six_phase_module
from txn.protocol.context import Context
from txn.protocol.statuses import Status
from txn.protocol.transaction import Transaction
from txn.testing.faulty import Crash, Fault, Reply

X = key("x")
DAY_MS = 24 * 3_600_000
with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
Patch = pytest.MonkeyPatch
Cells = Mapping[Key, Cell | None]


def start_over(*works: Callable[..., object]) -> Callable[[Context, Sequence[Transaction]], None]:
    def work(context: Context, transactions: Sequence[Transaction]) -> None:
        for each in works:
            each(context, transactions)

    return work


@with_and_without
def test_nothing_is_unlocked_before_put_is_acknowledged(rule: bool, monkeypatch: Patch) -> None:
    """T1 has put its value, and dies with its step to 3-PUT: all that travels with it arrives, and
    the step does not. Were that the unlock, T2 would delete the key; a compaction drops the marker,
    and fsck, which finds T1 at 2-ASSERTED, would put the deleted value again."""
    if not rule:
        unlock_with_put(monkeypatch)
    world = World()
    stop = Fault(frozenset(range(1, 10)), Reply.CRASH)
    stopped, _ = world.client(when(asks_for(Status.PUT), stop))
    with pytest.raises(Crash):
        stopped.commit([Mutation(X, b"1")])
    world.engine().commit([Delete(X)])
    world.memory.compact(TABLE)
    context = world.engine().context
    for finding in check(context, grace_ms=0):
        repair(context, finding)
    assert world.values([X]) == {X: None if rule else b"1"}


@with_and_without
def test_rolling_forward_begins_at_the_phase_seen(rule: bool, monkeypatch: Patch) -> None:
    """T1 has unlocked and stops before its last status. T2 deletes the key, and a compaction drops
    the marker. If fsck began T1 again from the start, the deleted value would come back."""
    if not rule:
        put, clean, unlock = (
            six_phase_module.put_values,
            six_phase_module.clean_tags,
            six_phase_module.release_key_locks,
        )
        monkeypatch.setattr(
            six_phase_module,
            "FORWARD",
            (
                (Status.ASSERTED, put),
                (Status.PUT, start_over(put, clean)),
                (Status.CLEANING, start_over(put, clean, unlock)),
            ),
        )
    world = World()
    stopped, _ = world.client(when(asks_for(Status.COMPLETE), Fault(frozenset(), Reply.CRASH)))
    with pytest.raises(Crash):
        stopped.commit([Mutation(X, b"1")])
    world.engine().commit([Delete(X)])
    world.memory.compact(TABLE)
    context = world.engine().context
    for finding in check(context, grace_ms=0):
        repair(context, finding)
    assert world.values([X]) == {X: None if rule else b"1"}


@with_and_without
@pytest.mark.parametrize("late", ["a repeat", "a paused helper"])
def test_markers_live_as_long_as_a_request_may(rule: bool, late: str) -> None:
    """T1's put lands once more, from a gateway's queue or from a helper that was paused, after T2
    has deleted the key. If a compaction has dropped the marker, the value is back."""
    world = World()
    stop = Fault(frozenset(), Reply.CRASH, late=frozenset({0, 1}))
    client, store = world.client(when(lambda call: call.method == "write", stop))
    with pytest.raises(Crash):
        client.commit([Mutation(X, b"1")])
    helper = Puppet(world, lambda engine: world.mend(engine.context))
    helper.until(lambda call: isinstance(edit := call.items[0], Edit) and edit.key.table == TABLE)
    world.mend()
    world.engine().commit([Delete(X)])
    world.memory.compact(TABLE, world.clock.wall_ms() - DAY_MS if rule else None)
    if late == "a repeat":
        deliver_all(store)
    else:
        helper.step()
    assert world.values([X]) == {X: None if rule else b"1"}


@with_and_without
def test_the_empty_tag_tells_when_a_deleted_cell_changed(rule: bool, monkeypatch: Patch) -> None:
    """T1 deletes a cell that lies ahead of the server's clock, so that its lock is older than its
    marker. T2 finds no cell and an older lock: only the tag keeps it from committing below."""
    if not rule:
        without_tags(monkeypatch)
    world = World()
    world.memory.write([Edit(X, b"0", world.clock.wall_ms() + POLICY.skew_ms // 3)])
    world.engine().commit([Delete(X)])
    world.engine().commit([Mutation(X, b"2")])
    assert world.values([X]) == {X: b"2" if rule else None}


@with_and_without
def test_a_commit_lies_above_locks_and_tags(rule: bool, monkeypatch: Patch) -> None:
    """Two deletes one after the other: the second finds no cell. Were its timestamp, and that of
    the put that follows, taken from values alone, the put would lie below the first marker."""
    if not rule:
        forget = lambda t, cells: {c: None for k in t.keys for c in (k.lock, k.tag)}  # noqa: E731
        without(monkeypatch, forget)
    world = World()
    for mutation in (Mutation(X, b"0"), Delete(X), Delete(X), Mutation(X, b"3")):
        world.engine().commit([mutation])
    assert world.values([X]) == {X: b"3" if rule else None}


@with_and_without
def test_a_late_put_lands_below_what_came_later(rule: bool, monkeypatch: Patch) -> None:
    """Steps 4 and 5 write without a condition, because each commit on a key lies above the one
    before it. Were that not so, a repeat of T1's put would replace T2's value."""
    if not rule:
        without(monkeypatch, lambda t, cells: dict.fromkeys(cells))
    world = World()
    client, store = world.client(
        when(lambda call: call.method == "write", Fault(late=frozenset({0})))
    )
    client.commit([Mutation(X, b"1")])
    world.engine().commit([Mutation(X, b"2")])
    deliver_all(store)
    assert world.values([X]) == {X: b"2" if rule else b"1"}


@with_and_without
def test_a_cell_from_the_future_is_refused(rule: bool) -> None:
    """A client's clock was a year ahead and wrote past the protocol. A commit above it would carry
    the year on to every later one; a skew that is no limit lets it."""
    world = World()
    year_ms = 365 * DAY_MS
    world.memory.write([Edit(X, b"0", world.clock.wall_ms() + year_ms)])
    skew_ms = POLICY.skew_ms if rule else 10 * year_ms
    engine, _ = world.client(policy=replace(POLICY, skew_ms=skew_ms))
    if rule:
        with pytest.raises(AbortedError, match="future"):
            engine.commit([Mutation(X, b"1")])
    else:
        assert engine.commit([Mutation(X, b"1")]).timestamp > world.clock.wall_ms() + year_ms
