"""Safeguards of locking, each with and without: the test fails if taking it out does no harm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.breaking import deliver_all
from tests.simulation.puppets import (
    Puppet,
    asks_for,
    frees,
    lock_without_row,
    plans,
    sleeps,
    takes,
    when,
)
from tests.simulation.variants import (
    free_without_poison,
    set_unlock,
    unlock_by_marker,
    unlock_by_write,
    unlock_whole_rows,
)
from tests.simulation.world import POLICY, World, key
from txn import AbortedError, Cell, Committed, DeadlineError, Engine, Exact, Key, Mutation, Policy
from txn.clock import ManualClock
from txn.model import Edit
from txn.protocol import recovery, transaction
from txn.protocol import six_phase as six_phase_module
from txn.protocol.context import Context
from txn.protocol.six_phase import take_locks
from txn.protocol.statuses import Status
from txn.protocol.transaction import PendingCommit, begin_commit
from txn.request import bind_request
from txn.stores import local
from txn.testing.faulty import Call, Fault

A, X, Y = key("a"), key("x"), key("y")
with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
HOUR_MS = 3_600_000
Patch = pytest.MonkeyPatch


def repeated(call: Call) -> Fault:
    """Everything that this call asks for happens once more, later."""
    return Fault(late=frozenset(range(len(call.items))))


def unlocks(call: Call) -> bool:
    """Match the call that frees locks, in whichever way."""
    return frees(call) or any(isinstance(i, Edit) and i.key == X.lock for i in call.items)


def two_can_hold(world: World, wanted: Key) -> bool:
    """Whether two transactions, one after the other, both get the lock of a key."""
    context = world.engine().context
    both = [begin_commit(context, bind_request([Mutation(wanted, b"1")]), 1000) for _ in range(2)]
    assert take_locks(context, [(both[0], wanted)]) == []
    return take_locks(context, [(both[1], wanted)]) == []


# ------------------------------------------------------------------------------ how to unlock


@with_and_without
def test_a_lock_is_freed_by_compare_and_set(rule: bool, monkeypatch: Patch) -> None:
    """T1's unlock lands once more when T2 holds the key. A plain write would free it for T3."""
    if not rule:
        set_unlock(monkeypatch, unlock_by_write)
    world = World()
    client, store = world.client(lambda call: repeated(call) if unlocks(call) else Fault())
    client.commit([Mutation(X, b"1")])
    assert len(store.in_flight) == 1
    context = world.engine().context
    second = begin_commit(context, bind_request([Mutation(X, b"2")]), 1000)
    assert take_locks(context, [(second, X)]) == []
    store.deliver()
    third = begin_commit(context, bind_request([Mutation(X, b"3")]), 1000)
    assert (take_locks(context, [(third, X)]) == []) is not rule


@with_and_without
def test_free_is_an_empty_value_and_no_delete(rule: bool, monkeypatch: Patch) -> None:
    """A delete marker masks the lock that comes in the same millisecond: the next one who asks
    is told that the key is free."""
    if not rule:
        set_unlock(monkeypatch, unlock_by_marker)
    world = World()
    world.engine().commit([Mutation(X, b"1")])
    assert two_can_hold(world, X) is not rule


@with_and_without
def test_a_lock_that_is_not_there_under_the_lock_aborts(rule: bool, monkeypatch: Patch) -> None:
    """Should a lock be lost for whatever reason (here it is masked by a marker), the look under
    the locks finds it out. Without that check, two transactions replace the same value."""
    set_unlock(monkeypatch, unlock_by_marker)
    if not rule:
        verdict = six_phase_module.judge_cells

        def trust(
            context: Context,
            t: PendingCommit,
            cells: dict[Key, Cell | None],
            *more: Any,
            **options: bool,
        ) -> object:
            mine = {lock: Cell(t.row_key, 1) for lock in t.locks.values()}
            return verdict(context, t, {**cells, **mine}, *more, **options)

        monkeypatch.setattr(six_phase_module, "judge_cells", trust)
    world = World()
    world.engine().commit([Mutation(X, b"0")])
    once = Policy(attempts=1)
    add = [Mutation(X, b"1")], [Exact(X, b"0")]
    first = Puppet(world, lambda engine: engine.commit_many([add])[0], policy=once)
    first.until(asks_for(Status.ASSERTED))
    second = world.client(policy=once)[0].commit_many([add])[0]
    committed = [isinstance(result, Committed) for result in (first.finish(), second)]
    assert all(committed) is not rule


@with_and_without
def test_each_lock_of_a_row_is_freed_on_its_own_condition(rule: bool, monkeypatch: Patch) -> None:
    """T1's lock of x1 and its unlock of both keys land once more while T2 holds x2. Were the row
    unlocked on the condition that x1 is T1's, T2 would lose x2."""
    if not rule:
        set_unlock(monkeypatch, unlock_whole_rows)
    world = World()
    x1, x2 = key("x", "1"), key("x", "2")
    ghost = when(takes(x1), Fault(late=frozenset({1})))
    client, store = world.client(
        plans(ghost, lambda call: repeated(call) if frees(call) else Fault())
    )
    client.commit([Mutation(x1, b"1"), Mutation(x2, b"1")])
    context = world.engine().context
    second = begin_commit(context, bind_request([Mutation(x2, b"2")]), 1000)
    assert take_locks(context, [(second, x2)]) == []
    deliver_all(store)
    third = begin_commit(context, bind_request([Mutation(x2, b"3")]), 1000)
    assert (take_locks(context, [(third, x2)]) == []) is not rule


@with_and_without
def test_no_two_attempts_share_a_row_key(rule: bool) -> None:
    """The first attempt's unlock lands once more. If the second one has the same row key, and so
    the same mark in the lock, its lock is freed while it holds it."""
    world = World()
    doomed, store = world.client(lambda call: repeated(call) if frees(call) else Fault(), seed=77)
    with pytest.raises(AbortedError):
        doomed.commit([Mutation(X, b"1")], [Exact(X, b"other")])
    world.collect()
    again = world.client(seed=78 if rule else 77)[0].context
    second = begin_commit(again, bind_request([Mutation(X, b"2")]), 1000)
    assert take_locks(again, [(second, X)]) == []
    deliver_all(store)
    third = begin_commit(world.engine().context, bind_request([Mutation(X, b"3")]), 1000)
    assert (take_locks(again, [(third, X)]) == []) is not rule


@with_and_without
def test_a_lock_is_never_older_than_the_unlock_before_it(rule: bool, monkeypatch: Patch) -> None:
    """The server's clock goes back between an unlock and a lock. HBase writes a checked put at no
    less than the checked cell's timestamp; did it not, the lock would be hidden by the unlock."""
    if not rule:
        check, newest = local._check, local.newest

        def at_the_clock(*args: object) -> bool:
            with monkeypatch.context() as patch:
                patch.setattr(
                    local,
                    "newest",
                    lambda *state: (cell := newest(*state)) and cell._replace(timestamp=0),
                )
                return check(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(local, "_check", at_the_clock)
    world = World()
    world.engine().commit([Mutation(X, b"1")])
    world.clock.set_wall_ms(world.clock.wall_ms() - 10)
    assert two_can_hold(world, X) is not rule


# ------------------------------------------------------------------------ locks without a row


def add(engine: Engine) -> object:
    """Replace 0 by 1."""
    return engine.commit_many([([Mutation(X, b"1")], [Exact(X, b"0")])])[0]


def mend(world: World) -> Callable[[Engine], bool]:
    def work(engine: Engine) -> bool:
        world.mend(engine.context)
        return True

    return work


@with_and_without
@pytest.mark.parametrize("by", ["a client", "fsck"])
def test_a_row_is_poisoned_before_its_lock_is_freed(
    rule: bool, by: str, monkeypatch: Patch
) -> None:
    """T1's lock arrives before its row. Somebody meets the lock, finds no row, and is about to free
    it; T1's row arrives, and T1 looks and decides. T2 replaces the same value."""
    if not rule:
        free_without_poison(monkeypatch)
    world = World()
    world.engine().commit([Mutation(X, b"0")])
    first = Puppet(world, add, faults=lock_without_row())
    first.until(sleeps)
    other = Puppet(world, add if by == "a client" else mend(world))
    assert other.until(frees)
    first.until(asks_for(Status.ASSERTED))
    if by == "a client":
        second = other.finish()
    else:
        other.step()
        second = add(world.engine())
    results = [second, first.finish()]
    assert all(isinstance(result, Committed) for result in results) is not rule


# ------------------------------------------------------------------------------- how to wait


@with_and_without
def test_those_who_wait_take_locks_in_key_order(rule: bool, monkeypatch: Patch) -> None:
    """Two that want the same keys, named in opposite order, take turns. Were the locks taken in
    the order of the request, each would hold what the other waits for until the deadline."""
    monkeypatch.setattr(six_phase_module, "lock_at_once", six_phase_module.lock_in_order)
    if not rule:
        monkeypatch.setattr(six_phase_module, "sorted", list, raising=False)
    world = World()

    def commit(*wanted: Key) -> Puppet[object]:
        requests = [([Mutation(k, b"1") for k in wanted], [])]
        return Puppet(world, lambda engine: engine.commit_many(requests)[0])

    clients = [commit(X, Y), commit(Y, X)]
    results = alternate(clients)
    assert all(isinstance(result, Committed) for result in results) is rule
    assert any(isinstance(result, DeadlineError) for result in results) is not rule


@pytest.mark.parametrize("rule", ["with", "owner is silent", "observer is deaf"])
def test_a_waiting_owner_beats_and_is_let_live(rule: str, monkeypatch: Patch) -> None:
    """T1 holds `a` and waits for a slow holder of `x`; T2 waits for `a`. Without T1's beats, or
    without regard to them, T2 takes it for dead after a lease, and so again with the next one."""
    if rule == "owner is silent":
        monkeypatch.setattr(six_phase_module, "send_heartbeats", lambda *args: None)
        monkeypatch.setattr(transaction, "send_heartbeats", lambda *args: None)
    if rule == "observer is deaf":
        read_rows = recovery.read_rows
        monkeypatch.setattr(
            recovery,
            "read_rows",
            lambda context, holders: {
                holder: replace(row, heartbeat=0)
                for holder, row in read_rows(context, holders).items()
            },
        )
    monkeypatch.setattr(six_phase_module, "lock_at_once", six_phase_module.lock_in_order)
    world = World()
    slow = Puppet(
        world, lambda engine: engine.commit([Mutation(X, b"0")]), policy=Policy(lock_ttl_ms=60_000)
    )
    slow.until(asks_for(Status.LOCKED))
    waiting = Puppet(world, lambda engine: engine.commit([Mutation(A, b"1"), Mutation(X, b"1")]))
    waiting.until(sleeps)
    next_in_line = Puppet(world, lambda engine: engine.commit([Mutation(A, b"2")]))
    began_ms = world.clock.monotonic_ms()
    while world.clock.monotonic_ms() < began_ms + 5 * POLICY.lock_ttl_ms:
        waiting.step()
        next_in_line.step()
    aborted = [row for row in world.rows() if row.status is Status.ABORTED]
    assert bool(aborted) is (rule != "with")
    if rule == "with":
        assert isinstance(slow.finish(), Committed)
        assert all(isinstance(result, Committed) for result in alternate([waiting, next_in_line]))


@with_and_without
def test_leases_are_measured_on_a_clock_that_does_not_jump(rule: bool) -> None:
    """The time of day of whoever waits is set forward by an hour. A lease that were measured by it
    would be over at once, and every living owner dead."""
    world = World()
    owner = Puppet(world, lambda engine: engine.commit([Mutation(X, b"1")]))
    owner.until(asks_for(Status.ASSERTED))
    clock = ManualClock() if rule else WallOnly()
    patient = Policy(deadline_ms=10 * HOUR_MS)
    waiting = Puppet(
        world, lambda engine: engine.commit([Mutation(X, b"2")]), clock=clock, policy=patient
    )
    waiting.until(sleeps)
    clock.set_wall_ms(clock.wall_ms() + HOUR_MS)
    for _ in range(20):
        waiting.step()
    status = world.rows()[0].status
    assert status is (Status.LOCKED if rule else Status.ABORTED)


class WallOnly(ManualClock):
    """A clock that takes the time of day for a duration's."""

    def monotonic_ms(self) -> int:
        return self.wall_ms()


def alternate(clients: Sequence[Puppet[object]]) -> list[object]:
    """Let clients make one call each in turn, until all have ended."""
    while any([client.step() for client in clients]):
        pass
    return [client.finish() for client in clients]
