"""Safeguards of locks, of the timestamps that they give, and of retiring keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from recovery import check, repair_all
from tests.simulation import variants
from tests.simulation.breaking import deliver_all
from tests.simulation.calls import asks_for, checks, finishes, frees, reads_row, sleeps, takes
from tests.simulation.keys import DAY_MS, FIRST, HOUR_MS, LONG_MS, NONE, A, X, Y
from tests.simulation.puppets import Puppet, plans, when
from tests.simulation.rules import (
    Patch,
    TakeOut,
    both_protocols,
    set_name,
    with_and_without,
    without,
)
from tests.simulation.teeth import (
    ONE_ATTEMPT,
    add,
    alternate,
    both_committed,
    die,
    put,
    putting,
    values,
    writes,
)
from tests.simulation.world import POLICY, TABLE, World, key
from txn import Cell, Delete, Engine, Key, Mutation, Policy
from txn.assertions import Exact, Version
from txn.client.engine import RequestLike
from txn.clock import ManualClock
from txn.errors import AbortedError, ConflictError, DeadlineError, TxnError
from txn.model import KEEP_DELETES_MS, Edit
from txn.protocol import fenced, recovery, six_phase
from txn.protocol.context import Context
from txn.protocol.six_phase import take_locks
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import PendingCommit, Transaction, begin_commit
from txn.request import bind_request
from txn.stores import local
from txn.testing.faulty import Call, Fault


def repeated(call: Call) -> Fault:
    return Fault(late=frozenset(range(len(call.items))))


def unlocks(call: Call) -> bool:
    return frees(call) or any(isinstance(i, Edit) and i.key == X.lock for i in call.items)


def can_hold(context: Context, wanted: Key) -> bool:
    other = begin_commit(context, bind_request([Mutation(wanted, b"2")]), 1000)
    return take_locks(context, [(other, wanted)]) == []


def two_can_hold(world: World, wanted: Key) -> bool:
    context = world.engine().context
    assert can_hold(context, wanted)
    return can_hold(context, wanted)


@without(variants.unlock_by_write)
def test_a_lock_is_freed_by_compare_and_set(rule: bool, world: World) -> None:
    """T1's unlock lands once more when T2 holds the key. A plain write would free it for T3."""
    client, store = world.client(lambda call: repeated(call) if unlocks(call) else Fault())
    client.commit([Mutation(X, b"1")])
    assert len(store.in_flight) == 1
    context = world.engine().context
    assert can_hold(context, X)
    store.deliver()
    assert can_hold(context, X) is not rule


@without(variants.unlock_by_marker)
def test_free_is_an_empty_value_and_no_delete(rule: bool, world: World) -> None:
    """A delete marker masks the lock that comes in the same millisecond."""
    put(world, X)
    assert two_can_hold(world, X) is not rule


def trust_locks(patch: Patch) -> None:
    verdict = six_phase.judge_cells

    def trust(context: Context, t: PendingCommit, cells: Any, *more: Any, **options: Any) -> Any:
        mine = {lock: Cell(t.row_key, 1) for lock in t.locks.values()}
        return verdict(context, t, {**cells, **mine}, *more, **options)

    patch.setattr(six_phase, "judge_cells", trust)


@without(trust_locks)
def test_a_lock_that_is_not_there_under_the_lock_aborts(
    rule: bool, monkeypatch: Patch, world: World
) -> None:
    """Should a lock be lost for whatever reason, here by a marker, two would replace one value."""
    variants.unlock_by_marker(monkeypatch)
    put(world, X, value=b"0")
    first = Puppet(world, add, policy=ONE_ATTEMPT)
    first.until(asks_for(Status.ASSERTED))
    second = add(world.client(policy=ONE_ATTEMPT)[0])
    assert both_committed(first.finish(), second) is not rule


@without(variants.unlock_whole_rows)
def test_each_lock_of_a_row_is_freed_on_its_own_condition(rule: bool, world: World) -> None:
    """Were the row unlocked on the condition that x1 is T1's, T2 would lose x2."""
    x1, x2 = key("x", "1"), key("x", "2")
    ghost = when(takes(x1), Fault(late=frozenset({1})))
    client, store = world.client(
        plans(ghost, lambda call: repeated(call) if frees(call) else Fault())
    )
    client.commit([Mutation(x1, b"1"), Mutation(x2, b"1")])
    context = world.engine().context
    assert can_hold(context, x2)
    deliver_all(store)
    assert can_hold(context, x2) is not rule


@with_and_without
def test_no_two_attempts_share_a_row_key(rule: bool, world: World) -> None:
    """The first attempt's unlock lands once more, and frees the lock of one with the same key."""
    doomed, store = world.client(lambda call: repeated(call) if frees(call) else Fault(), seed=77)
    with pytest.raises(AbortedError):
        doomed.commit([Mutation(X, b"1")], [Exact(X, b"other")])
    world.collect()
    assert can_hold(world.client(seed=78 if rule else 77)[0].context, X)
    deliver_all(store)
    assert can_hold(world.engine().context, X) is not rule


def write_at_the_clock(patch: Patch) -> None:
    """HBase writes a checked put at no less than the checked cell's timestamp; this does not."""
    check, newest = local._check, local.newest

    def without_times(*state: Any) -> Any:
        return (cell := newest(*state)) and cell._replace(timestamp=0)

    def at_the_clock(*args: Any) -> bool:
        with patch.context() as inside:
            inside.setattr(local, "newest", without_times)
            return check(*args)

    patch.setattr(local, "_check", at_the_clock)


@without(write_at_the_clock)
def test_a_lock_is_never_older_than_the_unlock_before_it(rule: bool, world: World) -> None:
    """The server's clock goes back between an unlock and a lock, which the unlock then hides."""
    put(world, X)
    world.clock.set_wall_ms(world.clock.wall_ms() - 10)
    assert two_can_hold(world, X) is not rule


def wait_always(patch: Patch) -> None:
    lock = fenced.take_row_locks
    patch.setattr(six_phase, "lock_at_once", six_phase.lock_in_order)
    patch.setattr(fenced, "take_row_locks", lambda c, some, met, _: lock(c, some, met, True))


def take_locks_in_any_order(patch: Patch) -> None:
    for module in (six_phase, fenced):
        patch.setattr(module, "sorted", list, raising=False)


@both_protocols
@without(take_locks_in_any_order)
def test_those_who_wait_take_locks_in_order(rule: bool, monkeypatch: Patch, world: World) -> None:
    """In the order of the request each would hold what the other waits for until the deadline."""
    wait_always(monkeypatch)

    def commit(*wanted: Key) -> Puppet[object]:
        request: RequestLike = ([Mutation(k, b"1") for k in wanted], [])
        return Puppet(world, lambda engine: engine.commit_many([request])[0])

    results = alternate([commit(X, Y), commit(Y, X)])
    assert both_committed(*results) is rule
    assert any(isinstance(result, DeadlineError) for result in results) is not rule


@pytest.mark.parametrize("rule", ["with", "owner is silent", "observer is deaf"])
def test_a_waiting_owner_beats_and_is_let_live(rule: str, monkeypatch: Patch, world: World) -> None:
    """T1 holds `a` and waits for `x`. T2, which waits for `a`, would take it for dead."""
    if rule == "owner is silent":
        for module in ("six_phase", "transaction"):
            set_name(f"protocol.{module}.send_heartbeats", lambda *args: None)(monkeypatch)
    if rule == "observer is deaf":
        read = recovery.read_rows

        def read_rows(context: Context, holders: Any) -> Any:
            found = read(context, holders)
            return {holder: replace(row, heartbeat=0) for holder, row in found.items()}

        monkeypatch.setattr(recovery, "read_rows", read_rows)
    wait_always(monkeypatch)
    slow = putting(world, X, value=b"0", policy=Policy(lock_ttl_ms=60_000))
    slow.until(asks_for(Status.LOCKED))
    waiting = putting(world, A, X)
    waiting.until(sleeps)
    next_in_line = putting(world, A, value=b"2")
    began_ms = world.clock.monotonic_ms()
    while world.clock.monotonic_ms() < began_ms + 5 * POLICY.lock_ttl_ms:
        waiting.step()
        next_in_line.step()
    aborted = [row for row in world.rows() if row.status is Status.ABORTED]
    assert bool(aborted) is (rule != "with")
    if rule == "with":
        assert both_committed(slow.finish(), *alternate([waiting, next_in_line]))


class WallOnly(ManualClock):
    """A clock that takes the time of day for a duration's."""

    def monotonic_ms(self) -> int:
        return self.wall_ms()


@with_and_without
def test_leases_are_measured_on_a_clock_that_does_not_jump(rule: bool, world: World) -> None:
    """The time of day of whoever waits is set forward by an hour, and every living owner dead."""
    putting(world, X).until(asks_for(Status.ASSERTED))
    clock = ManualClock() if rule else WallOnly()
    waiting = putting(world, X, value=b"2", clock=clock, policy=Policy(deadline_ms=LONG_MS))
    waiting.until(sleeps)
    clock.set_wall_ms(clock.wall_ms() + HOUR_MS)
    for _ in range(20):
        waiting.step()
    assert world.rows()[0].status is (Status.LOCKED if rule else Status.ABORTED)


def start_over(*works: Callable[..., object]) -> recovery.Finish:
    def work(context: Context, transactions: Sequence[Transaction]) -> None:
        for each in works:
            each(context, transactions)

    return work


def roll_forward_from_the_start(patch: Patch) -> None:
    works = six_phase.put_values, six_phase.clean_tags, six_phase.release_key_locks
    forward = [
        (status, start_over(*works[: number + 1]))
        for number, status in enumerate((Status.ASSERTED, Status.PUT, Status.CLEANING))
    ]
    patch.setattr(six_phase, "FORWARD", tuple(forward))


PUT_AGAIN: dict[str, tuple[ProtocolName, TakeOut, Status, frozenset[int]]] = {
    "from the start": ("six-phase", roll_forward_from_the_start, Status.COMPLETE, NONE),
    "unlocked": ("six-phase", variants.unlock_with_put, Status.PUT, frozenset(range(1, 10))),
    "without looking": ("fenced", variants.finish_without_looking, Status.COMPLETE, NONE),
}


@pytest.mark.usefixtures("rows_for_all")
@pytest.mark.parametrize("name", PUT_AGAIN)
@with_and_without
def test_what_was_put_is_not_put_again(rule: bool, name: str, monkeypatch: Patch) -> None:
    """T1 stops after its put. Its key is deleted, the marker dropped: the value would return."""
    protocol, take_out, stopped_at, applied = PUT_AGAIN[name]
    if not rule:
        take_out(monkeypatch)
    world = World(protocol=protocol)
    die(world, asks_for(stopped_at), [Mutation(X, b"1")], applied=applied)
    world.engine().commit([Delete(X)])
    world.memory.compact(TABLE)
    world.fsck(grace_ms=0)
    assert world.values([X]) == {X: None if rule else b"1"}


@pytest.mark.usefixtures("rows_for_all")
@both_protocols
@with_and_without
def test_markers_live_as_long_as_a_request_may(rule: bool, world: World) -> None:
    """T1's put lands again, after T2 has deleted the key and a compaction dropped the marker."""
    client, store = world.client(when(finishes(X), Fault(late=frozenset({0, 1}))))
    client.commit([Mutation(X, b"1")])
    world.engine().commit([Delete(X)])
    world.memory.compact(TABLE, world.clock.wall_ms() - DAY_MS if rule else None)
    deliver_all(store)
    assert world.values([X]) == {X: None if rule else b"1"}


@without(variants.without_tags)
def test_the_empty_tag_tells_when_a_deleted_cell_changed(rule: bool, world: World) -> None:
    """T2 finds no cell and an older lock: only the tag keeps it from committing below."""
    world.memory.write([Edit(X, b"0", world.clock.wall_ms() + POLICY.skew_ms // 3)])
    world.engine().commit([Delete(X)])
    put(world, X, value=b"2")
    assert world.values([X]) == {X: b"2" if rule else None}


def forget_locks_and_tags(patch: Patch) -> None:
    variants.forget_cells(
        patch, lambda t, cells: {c: None for k in t.keys for c in (k.lock, k.tag)}
    )


@without(forget_locks_and_tags)
def test_a_commit_lies_above_locks_and_tags(rule: bool, world: World) -> None:
    """Two deletes one after the other: the second finds no cell to take its timestamp from."""
    for mutation in (Mutation(X, b"0"), Delete(X), Delete(X), Mutation(X, b"3")):
        world.engine().commit([mutation])
    assert world.values([X]) == {X: b"3" if rule else None}


@without(lambda patch: variants.forget_cells(patch, lambda t, cells: dict.fromkeys(cells)))
def test_a_late_put_lands_below_what_came_later(rule: bool, world: World) -> None:
    """Values are written without a condition, since each commit on a key lies above the last."""
    client, store = world.client(when(writes, Fault(late=FIRST)))
    client.commit([Mutation(X, b"1")])
    put(world, X, value=b"2")
    deliver_all(store)
    assert world.values([X]) == {X: b"2" if rule else b"1"}


def retire(engine: Engine, retention_ms: int = KEEP_DELETES_MS) -> bool:
    findings = check(engine.context, retention_ms=retention_ms, scan=[TABLE])
    return bool(list(repair_all(engine.context, findings)))


def retires(call: Call) -> bool:
    edits = [item for item in call.items if isinstance(item, Edit)]
    return any(edit.value is None for item in checks(call) for edit in item.edits) or any(
        edit.value is None and edit.key == X.lock for edit in edits
    )


def has_committed(work: Callable[[], object]) -> bool:
    try:
        work()
    except TxnError:
        return False
    return True


@without("protocol.retire._delete", variants.delete_plainly)
def test_a_key_is_retired_on_the_condition_that_its_lock_is_the_retirers(
    rule: bool, world: World
) -> None:
    """A delete without a condition would hide T1's lock from T2."""
    put(world, X, value=b"0")
    world.engine().commit([Delete(X)])
    world.clock.advance(KEEP_DELETES_MS + 10)
    retirer = Puppet(world, retire)
    assert retirer.until(retires)
    locked_ms = world.clock.wall_ms()
    absent = [Version(X, None)]
    first = Puppet(world, lambda engine: engine.commit([Mutation(X, b"1")], absent))
    first.until(frees)
    world.clock.set_wall_ms(locked_ms)
    first.until(asks_for(Status.ASSERTED))
    retirer.finish()
    world.clock.advance(1)
    second = has_committed(lambda: world.engine().commit([Mutation(X, b"2")], absent))
    assert has_committed(first.finish) + second == (1 if rule else 2)


@without("protocol.retire._delete", variants.mark_at_the_lock)
def test_the_marker_of_a_retired_lock_lies_at_or_above_the_tag(rule: bool, world: World) -> None:
    """Else a later lock is seen, and its put is masked by the key's own marker."""
    world.memory.write([Edit(X, b"0", world.clock.wall_ms() + POLICY.skew_ms // 3)])
    world.engine().commit([Delete(X)])
    assert retire(world.engine(), retention_ms=0)
    world.clock.advance(1)
    engine, _ = world.client(policy=replace(POLICY, attempts=1))
    if rule:
        with pytest.raises(ConflictError, match="a delete marker in the future hides"):
            engine.commit([Mutation(X, b"2")])
    engine.commit([Mutation(X, b"2")])
    assert world.values([X]) == {X: b"2" if rule else None}


def read_beside_a_retirer(pause_ms: int, retention_ms: int) -> list[bytes | None]:
    """Read x; let another delete x and put y; retire x; return what the reader then sees."""
    world = World()
    put(world, X, Y, value=b"0")
    reader = Puppet(world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(Y))
    world.engine().commit([Delete(X), Mutation(Y, b"1")])
    world.clock.advance(pause_ms)
    retire(world.engine(), retention_ms)
    return values(reader.finish())


@with_and_without
def test_only_keys_older_than_the_retention_are_retired(rule: bool) -> None:
    seen = read_beside_a_retirer(0, KEEP_DELETES_MS if rule else 0)
    assert seen == [None if rule else b"0", b"1"]


@without("reading.snapshot.are_apart", lambda context, first_ms: False)
def test_the_looks_of_a_read_lie_close_together(rule: bool) -> None:
    """Here the reader is stopped for longer than the retention."""
    seen = read_beside_a_retirer(KEEP_DELETES_MS + 10, KEEP_DELETES_MS)
    assert seen == [None if rule else b"0", b"1"]
