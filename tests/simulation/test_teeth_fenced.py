"""The rules of the fenced protocol, each with and without: the test fails if taking it out does no
harm."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from recovery import check, repair
from tests.simulation import variants_fenced
from tests.simulation.breaking import deliver_all
from tests.simulation.puppets import (
    Puppet,
    asks_for,
    counts,
    finishes,
    frees,
    lock_without_row,
    plans,
    reads_row,
    sleeps,
    when,
)
from tests.simulation.test_teeth_locks import alternate, mend
from tests.simulation.variants import free_without_poison
from tests.simulation.world import POLICY, TABLE, TRANSACTIONS, World, key
from txn import (
    AssertionFailedError,
    Committed,
    ConflictError,
    DeadlineError,
    Delete,
    Engine,
    Exact,
    Key,
    Mutation,
    Or,
    Outcome,
    Policy,
)
from txn.clock import ManualClock
from txn.model import Check
from txn.protocol import commit as commit_module
from txn.protocol import fenced, recovery
from txn.protocol import prepare as prepare_module
from txn.protocol.locks import holder_of
from txn.protocol.row import RowState, TransactionRow, status_key
from txn.protocol.statuses import Status
from txn.reading import snapshot as snapshot_module
from txn.testing.faulty import Crash, Fault, Reply

pytestmark = pytest.mark.usefixtures("rows_for_all")

X, Y, Z = key("x"), key("y"), key("z")
LOCK = X.row_lock
DAY_MS = 24 * 3_600_000
LONG_MS = 10 * DAY_MS
ADD = [Mutation(X, b"1")], [Exact(X, b"0")]
NONE: frozenset[int] = frozenset()
PATIENT = Policy(deadline_ms=LONG_MS, lock_ttl_ms=LONG_MS)
with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
Patch = pytest.MonkeyPatch


def world_with(value: bytes | None = b"0") -> World:
    world = World(protocol="fenced")
    if value is not None:
        world.engine().commit([Mutation(X, value)])
    return world


def add(engine: Engine) -> object:
    """Replace 0 by 1."""
    return engine.commit_many([ADD])[0]


def ahead(clock: ManualClock, by_ms: int = 5000) -> ManualClock:
    """Return a clock that is ahead of the server's."""
    return ManualClock(clock.wall_ms() + by_ms)


def both_committed(*results: object) -> bool:
    return all(isinstance(result, Committed) for result in results)


# -------------------------------------------------------------------- counts and timestamps


@with_and_without
def test_a_lock_counts(rule: bool, monkeypatch: Patch) -> None:
    """T1 has read the row; T2 reads, writes and lets the lock go. Were the lock as free as it was,
    T1 would get it, and replace what it has not read."""
    if not rule:
        variants_fenced.count_nothing(monkeypatch)
    world = world_with()
    first = Puppet(world, add)
    first.until(counts(X))
    second = add(world.engine())
    assert both_committed(second, first.finish()) is not rule


@pytest.mark.parametrize("rule", ["with", "timestamp alone", "without"])
def test_an_abort_counts_too(rule: str, monkeypatch: Patch) -> None:
    """T1 locks and stops; it is aborted, its lock is freed, and its lock request lands once more.
    Were the free value the one that T1 had found, it would be granted, to a transaction that is no
    more. That the free value lies above the lock hides it as well: either is enough."""
    if rule != "with":
        variants_fenced.count_back_in_aborts(monkeypatch, above=1 if rule != "without" else 0)
    world = world_with()
    again = when(counts(X), Fault(late=frozenset({1})))
    stop = when(asks_for(Status.ASSERTED), Fault(NONE, Reply.CRASH))
    client, store = world.client(plans(again, stop))
    with pytest.raises(Crash):
        client.commit(*ADD)
    world.mend()
    deliver_all(store)
    assert bool(holder_of(LOCK, world.memory.read([LOCK])[LOCK])) is (rule == "without")


@with_and_without
def test_a_value_lands_above_what_was_read(rule: bool, monkeypatch: Patch) -> None:
    """T1's clock is ahead. T2, by its own clock alone, puts its value below T1's, and is told that
    it has committed."""
    if not rule:
        variants_fenced.choose_the_time(monkeypatch, lambda context, t: context.clock.wall_ms())
    world = world_with(None)
    world.client(clock=ahead(world.clock))[0].commit([Mutation(X, b"1")])
    world.engine().commit_many([([Mutation(X, b"2")], [])])
    assert world.values([X]) == {X: b"2" if rule else b"1"}


@with_and_without
def test_a_lock_lands_above_the_lock_before_it(rule: bool, monkeypatch: Patch) -> None:
    """T1's clock is ahead, and it deletes: there is no value to see, only its lock. A lock below
    that one does not show, and neither does a value below the marker."""
    if not rule:
        variants_fenced.choose_the_time(monkeypatch, variants_fenced.time_of_values)
    world = world_with()
    world.client(clock=ahead(world.clock))[0].commit([Delete(X)])
    second = Puppet(world, lambda engine: engine.commit_many([([Mutation(X, b"2")], [])]))
    second.until(asks_for(Status.ASSERTED))
    assert bool(holder_of(LOCK, world.memory.read([LOCK])[LOCK])) is rule
    second.finish()
    assert world.values([X]) == {X: b"2" if rule else None}


@with_and_without
def test_statuses_have_times_of_their_own(rule: bool, monkeypatch: Patch) -> None:
    """T1 stops after its decision, and the write of its row lands once more. At the server's time
    it would hide the decision, and nobody could finish what was committed."""
    if not rule:
        variants_fenced.put_at_the_servers_time(monkeypatch)
    world = world_with()
    late = when(asks_for(Status.WRITTEN), Fault(late=frozenset(range(3))))
    stop = when(finishes(X), Fault(NONE, Reply.CRASH))
    client, store = world.client(plans(late, stop))
    world.clock.advance(10)
    with pytest.raises(Crash):
        client.commit(*ADD)
    world.clock.advance(10)
    deliver_all(store)
    row = world.rows()[-1]
    assert row.stored_status is (Status.ASSERTED if rule else Status.WRITTEN)
    assert row.state is (RowState.DECIDED if rule else RowState.UNREADABLE)
    if rule:
        world.mend()
        assert world.values([X]) == {X: b"1"}


@with_and_without
def test_a_retry_has_a_row_key_of_its_own(rule: bool) -> None:
    """T1 stops and is aborted; that its row says 7-ABORTED is put once more, much later. A second
    attempt under the same row key has committed by then: the late put hides its status."""
    world = world_with()
    stop = when(asks_for(Status.ASSERTED), Fault(NONE, Reply.CRASH))
    doomed, _ = world.client(stop, clock=ManualClock(), seed=77)
    with pytest.raises(Crash):
        doomed.commit(*ADD)
    helper, store = world.client(when(asks_for(Status.ABORTED), Fault(late=frozenset(range(2)))))
    world.mend(helper.context)
    world.collect()
    world.memory.compact(TRANSACTIONS)
    again, _ = world.client(clock=ManualClock(), seed=78 if rule else 77)
    result = again.commit(*ADD)
    deliver_all(store)
    status = status_key(TRANSACTIONS, result.transaction)
    assert world.values([status]) == {status: b"5-COMPLETE" if rule else b"7-ABORTED"}


# ------------------------------------------------------------------------------ finishing


def delete_past(world: World) -> None:
    """Let others finish what was decided, delete the key, and drop the marker."""
    world.mend()
    world.engine().commit([Delete(X)])
    world.memory.compact(TABLE)


@with_and_without
def test_others_compare_before_they_finish(rule: bool, monkeypatch: Patch) -> None:
    """T1 has put its value and stops before 5-COMPLETE. T2 deletes the key, and a compaction drops
    the marker. If fsck put T1's value without looking at the lock, it would be back."""
    if not rule:
        variants_fenced.finish_without_looking(monkeypatch)
    world = world_with()
    stopped, _ = world.client(when(asks_for(Status.COMPLETE), Fault(NONE, Reply.CRASH)))
    with pytest.raises(Crash):
        stopped.commit(*ADD)
    world.engine().commit([Delete(X)])
    world.memory.compact(TABLE)
    context = world.engine().context
    for finding in check(context, grace_ms=0):
        repair(context, finding)
    assert world.values([X]) == {X: None if rule else b"1"}


@with_and_without
def test_an_owner_that_was_paused_compares(rule: bool, monkeypatch: Patch) -> None:
    """The same of the owner, if it was paused between its decision and its put for longer than a
    request lives, while others have finished its transaction."""
    if not rule:
        variants_fenced.finish_late_without_looking(monkeypatch)
    world = world_with()
    finish = commit_module.finish_or_leave

    def pause(*args: Any) -> None:
        monkeypatch.setattr(commit_module, "finish_or_leave", finish)
        world.clock.advance(2 * fenced.WRITTEN_WITHIN_MS)
        delete_past(world)
        finish(*args)

    monkeypatch.setattr(commit_module, "finish_or_leave", pause)
    assert isinstance(add(world.client(policy=PATIENT)[0]), Committed)
    assert world.values([X]) == {X: None if rule else b"1"}


@with_and_without
def test_an_owner_that_has_read_its_decision_compares(rule: bool, monkeypatch: Patch) -> None:
    """The same of an owner whose decision was answered "no", by its second sending: it does not
    know for how long it has been decided."""
    if not rule:
        variants_fenced.trust_what_is_read(monkeypatch)
    world = world_with()
    owner = Puppet(world, add, faults=when(asks_for(Status.ASSERTED), Fault(twice=True)))
    owner.until(finishes(X))
    delete_past(world)
    assert isinstance(owner.finish(), Committed)
    assert world.values([X]) == {X: None if rule else b"1"}


@with_and_without
def test_values_and_their_lock_are_put_in_one_step(rule: bool, monkeypatch: Patch) -> None:
    """T1's lock is free before its value is there. T2 finds the old value, free, and replaces it
    too."""
    if not rule:
        variants_fenced.unlock_before_values(monkeypatch)
    world = world_with()
    first = Puppet(world, add)
    first.until(asks_for(Status.ASSERTED))
    first.step()
    first.step()
    assert both_committed(add(world.engine()), first.finish()) is not rule


@with_and_without
def test_complete_is_said_after_all_is_put(rule: bool, monkeypatch: Patch) -> None:
    """The owner stops between the two. A row that says 5-COMPLETE is never looked at again, and
    whoever meets the lock frees it: the value is lost."""
    if not rule:
        variants_fenced.complete_first(monkeypatch)
    world = world_with()
    client, _ = world.client(when(finishes(X), Fault(NONE, Reply.CRASH)))
    with pytest.raises(Crash):
        client.commit(*ADD)
    world.mend()
    assert world.values([X]) == {X: b"1" if rule else b"0"}


@with_and_without
def test_markers_live_as_long_as_a_request_of_the_owner_may(rule: bool) -> None:
    """The owner puts without looking, and a gateway has its put once more, after T2 has deleted the
    key. If a compaction has dropped the marker, the value is back."""
    world = world_with()
    client, store = world.client(when(finishes(X), Fault(late=frozenset(range(2)))))
    client.commit(*ADD)
    world.engine().commit([Delete(X)])
    world.memory.compact(TABLE, world.clock.wall_ms() - DAY_MS if rule else None)
    deliver_all(store)
    assert world.values([X]) == {X: None if rule else b"1"}


# ------------------------------------------------------------------------ rows and decisions


@with_and_without
@pytest.mark.parametrize("by", ["a client", "fsck"])
def test_a_row_is_poisoned_before_its_lock_is_freed(
    rule: bool, by: str, monkeypatch: Patch
) -> None:
    """T1's lock arrives before its row. Somebody meets the lock, finds no row, and is about to free
    it; T1's row arrives, and T1 decides. T2 replaces the same value."""
    if not rule:
        free_without_poison(monkeypatch)
    world = world_with()
    first = Puppet(world, add, faults=lock_without_row())
    first.until(sleeps)
    other = Puppet(world, add if by == "a client" else mend(world))
    assert other.until(frees)
    first.until(finishes(X))
    if by == "a client":
        second = other.finish()
    else:
        other.step()
        second = add(world.engine())
    assert both_committed(second, first.finish()) is not rule


@with_and_without
def test_poison_lies_above_the_row(rule: bool, monkeypatch: Patch) -> None:
    """T1's clock is ahead, and its lock arrives before its row. T2 poisons the row. At the server's
    time the poison lies below the row that arrives, and is hidden: T1 decides, and T2 frees the
    lock."""
    if not rule:
        variants_fenced.poison_at_the_servers_time(monkeypatch)
    world = world_with()
    first = Puppet(world, add, faults=lock_without_row(), clock=ahead(world.clock))
    first.until(sleeps)
    second = Puppet(world, add)
    assert second.until(frees)
    first.until(finishes(X))
    assert both_committed(second.finish(), first.finish()) is not rule


@with_and_without
def test_the_decision_compares(rule: bool, monkeypatch: Patch) -> None:
    """T1 is aborted and its lock freed; T2 commits. A decision that is put lies below the abort,
    and T1 would not know."""
    if not rule:
        variants_fenced.decide_plainly(monkeypatch)
    world = world_with()
    first = Puppet(world, add)
    first.until(asks_for(Status.ASSERTED))
    world.mend()
    assert both_committed(add(world.engine()), first.finish()) is not rule


@with_and_without
def test_every_lock_has_to_be_had(rule: bool, monkeypatch: Patch) -> None:
    """T2 has come between T1's read and its lock. Whoever goes on without replaces the same
    value."""
    if not rule:
        variants_fenced.believe_in_every_lock(monkeypatch)
    world = world_with()
    first = Puppet(world, add)
    first.until(counts(X))
    assert both_committed(add(world.engine()), first.finish()) is not rule


@pytest.mark.parametrize("rule", ["with", "markers alone", "bound alone", "without"])
def test_a_row_that_may_have_been_deleted_is_not_used(rule: str, monkeypatch: Patch) -> None:
    """The owner writes its row, hears no answer and is stopped for a day. The row is aborted by two
    helpers, of whom one is stopped before it says 7-ABORTED, and fsck deletes it. The owner sends
    the row again, locks and decides; the helper wakes, and hides the decision. The markers of the
    deletion hide what the owner sends, for as long as they are kept."""
    if rule in ("markers alone", "without"):
        monkeypatch.setattr(prepare_module, "WRITTEN_WITHIN_MS", LONG_MS)
    world = world_with()
    owner = Puppet(
        world,
        add,
        faults=when(asks_for(Status.WRITTEN), Fault(reply=Reply.MAYBE_APPLIED)),
        policy=replace(PATIENT, attempts=1),
    )
    owner.until(sleeps)
    helper = Puppet(world, lambda engine: world.mend(engine.context))
    helper.until(asks_for(Status.ABORTED))
    world.mend()
    world.clock.advance(DAY_MS)
    world.collect()
    if rule in ("bound alone", "without"):
        world.memory.compact(TRANSACTIONS)
    owner.until(finishes(X))
    helper.step()
    result = owner.finish()
    assert isinstance(result, Committed) is (rule == "without")
    if isinstance(result, Committed):
        status = status_key(TRANSACTIONS, result.transaction)
        assert world.values([status]) == {status: b"7-ABORTED"}, "it was told the truth"


@pytest.mark.parametrize("rule", ["with", "markers alone", "bound alone", "without"])
def test_a_row_whose_poison_may_have_been_collected_is_not_used(
    rule: str, monkeypatch: Patch
) -> None:
    """T1's lock arrives without its row, and T1 is stopped for a day. A helper poisons the row, and
    is stopped before it frees the lock; fsck deletes the poisoned row. T1 sends its row again, has
    its lock, and decides; the helper wakes, and frees the lock for T2. The markers of the deletion
    hide what T1 sends, for as long as they are kept."""
    if rule in ("markers alone", "without"):
        monkeypatch.setattr(prepare_module, "WRITTEN_WITHIN_MS", LONG_MS)
    world = world_with()
    owner = Puppet(world, add, faults=lock_without_row(), policy=replace(PATIENT, attempts=1))
    owner.until(sleeps)
    helper = Puppet(world, mend(world))
    assert helper.until(frees)
    world.clock.advance(DAY_MS)
    world.collect()
    if rule in ("bound alone", "without"):
        world.memory.compact(TRANSACTIONS)
    owner.until(finishes(X))
    helper.step()
    assert both_committed(add(world.engine()), owner.finish()) is (rule == "without")


@with_and_without
def test_retention_counts_by_the_servers_time(rule: bool, monkeypatch: Patch) -> None:
    """A transaction takes longer than the retention; its statuses have the times of its beginning.
    Counted by them its row would be gone as soon as it has ended."""
    if not rule:
        monkeypatch.setattr(TransactionRow, "since", property(lambda row: row.status_at))
    world = world_with()
    slow = Puppet(world, add, policy=PATIENT)
    slow.until(asks_for(Status.ASSERTED))
    world.clock.advance(3 * DAY_MS)
    result = slow.finish()
    assert isinstance(result, Committed)
    context = world.engine().context
    for finding in check(context):
        repair(context, finding)
    known = world.engine().outcome(result.transaction)
    assert known is (Outcome.COMMITTED if rule else Outcome.UNKNOWN)


# -------------------------------------------------------------------------- meeting a lock


@with_and_without
def test_an_undecided_holder_is_aborted_before_its_lock_is_freed(
    rule: bool, monkeypatch: Patch
) -> None:
    """T2 meets the lock of T1, which is about to decide, and frees it. Only an abort of its row
    keeps T1 from deciding."""
    world = world_with()
    first = Puppet(world, add)
    first.until(asks_for(Status.ASSERTED))
    if rule:
        monkeypatch.setattr(recovery.Resolver, "_is_abandoned", lambda *args: True)
    else:
        variants_fenced.free_the_undecided(monkeypatch)
    second = add(world.engine())
    monkeypatch.undo()
    assert both_committed(second, first.finish()) is not rule


@with_and_without
def test_a_lock_is_freed_as_it_was_read(rule: bool, monkeypatch: Patch) -> None:
    """T2 has met the lock of T1, which was aborted, and is stopped before it frees it. Others free
    it, and T3 takes it. If T2 freed whatever is there, T4 would commit beside T3."""
    if not rule:
        variants_fenced.free_what_is_there(monkeypatch)
    world = world_with()
    stopped, _ = world.client(when(asks_for(Status.ASSERTED), Fault(NONE, Reply.CRASH)))
    with pytest.raises(Crash):
        stopped.commit(*ADD)
    met = world.memory.read([LOCK])[LOCK]
    assert met is not None
    row_key = holder_of(LOCK, met)

    def free(engine: Engine) -> bool:
        recovery.free_for_holder(engine.context, row_key, {LOCK: met})
        return True

    second = Puppet(world, free)
    second.step()
    world.mend()
    third = Puppet(world, add)
    third.until(asks_for(Status.ASSERTED))
    second.finish()
    (fourth,) = world.client(policy=replace(POLICY, attempts=1))[0].commit_many([ADD])
    assert both_committed(third.finish(), fourth) is not rule


@pytest.mark.parametrize("rule", ["with", "poison alone", "without"])
def test_a_lock_is_read_before_the_row_of_its_holder(rule: str, monkeypatch: Patch) -> None:
    """T2 has looked for the row of T1 before T1 wrote it. Then it meets T1's lock, and frees it,
    since that row was not there: T1 decides all the same. Poison finds the row as well: either is
    enough."""
    world = world_with()
    first = Puppet(world, add)
    writing = first.until(asks_for(Status.WRITTEN))
    assert writing is not None and isinstance(writing.items[0], Check)
    row_key = writing.items[0].key.row
    before = recovery.read_rows(world.engine().context, [row_key])
    first.until(asks_for(Status.ASSERTED))
    if rule != "with":
        monkeypatch.setattr(recovery, "read_rows", lambda context, holders: before)
    if rule == "without":
        free_without_poison(monkeypatch)
    assert both_committed(add(world.engine()), first.finish()) is (rule == "without")


@with_and_without
def test_those_who_wait_take_locks_in_order(rule: bool, monkeypatch: Patch) -> None:
    """Two that want the same rows, named in opposite order, take turns. Were the locks taken in the
    order of the request, each would hold what the other waits for until the deadline."""
    if not rule:
        variants_fenced.wait_in_any_order(monkeypatch)
    lock = fenced.take_row_locks
    monkeypatch.setattr(fenced, "take_row_locks", lambda *args: lock(*args[:3], True))
    world = world_with()

    def commit(*wanted: Key) -> Puppet[object]:
        requests = [([Mutation(k, b"1") for k in wanted], [])]
        return Puppet(world, lambda engine: engine.commit_many(requests)[0])

    results = alternate([commit(X, Y), commit(Y, X)])
    assert both_committed(*results) is rule
    assert any(isinstance(result, DeadlineError) for result in results) is not rule


# ------------------------------------------------------------------------- what is evaluated


@with_and_without
def test_an_assertion_of_several_rows_is_looked_at_twice(rule: bool, monkeypatch: Patch) -> None:
    """One unit of money is moved from y to x between the reads of the two rows: neither has it, as
    it seems. That it is in one of them was true all the time."""
    if not rule:
        variants_fenced.fail_at_the_first_look(monkeypatch)
    world = world_with()
    world.engine().commit([Mutation(Y, b"1")])
    either = Or(Exact(X, b"1"), Exact(Y, b"1"))
    asks = Puppet(
        world, lambda engine: engine.commit_many([([Mutation(Z, b"1")], [either])])[0], by_row=True
    )
    asks.until(reads_row(Y))
    world.engine().commit([Mutation(X, b"1"), Mutation(Y, b"0")])
    assert isinstance(asks.finish(), Committed if rule else AssertionFailedError)


@with_and_without
def test_what_was_read_again_is_evaluated_again(rule: bool, monkeypatch: Patch) -> None:
    """T2 has come between T1's read and its lock; T1 reads again, and goes on. What it asserts has
    to be true of that."""
    if not rule:
        variants_fenced.judge_never_again(monkeypatch)
    world = world_with()
    first = Puppet(world, add)
    first.until(counts(X))
    world.engine().commit([Mutation(X, b"5")])
    assert isinstance(first.finish(), AssertionFailedError if rule else Committed)
    assert world.values([X]) == {X: b"5" if rule else b"1"}


@with_and_without
def test_a_block_brings_what_it_has_read_with_its_lock(rule: bool, monkeypatch: Patch) -> None:
    """A block reads X beside T1, which holds its row, and then, after T1, another key of the row
    with the lock. Were the lock taken to prove X as well, the block would replace T1's value."""
    if not rule:
        variants_fenced.bring_all_that_was_read(monkeypatch)
    world = world_with()
    first = Puppet(world, add)
    first.until(asks_for(Status.ASSERTED))
    block = world.engine().transaction().__enter__()
    assert block.get(X) == b"0"
    assert isinstance(first.finish(), Committed)
    block.get(Key(X.row, X.family, "other", X.table))
    block.put(X, b"2")
    with pytest.raises(ConflictError) if rule else nullcontext():
        block.__exit__(None, None, None)
    assert world.values([X]) == {X: b"1" if rule else b"2"}


# ---------------------------------------------------------------------------------- readers


def put_both(engine: Engine, value: bytes) -> object:
    return engine.commit([Mutation(X, value), Mutation(Y, value)])


def values(cells: Any) -> list[bytes | None]:
    return [None if cell is None else cell.value for cell in cells.values()]


@with_and_without
def test_locks_are_looked_at_twice(rule: bool, monkeypatch: Patch) -> None:
    """A transaction commits both keys between the reads of their rows. A reader that looks at the
    locks once, as it reads, sees half of it."""
    if not rule:
        variants_fenced.look_at_locks_once(monkeypatch)
    world = world_with(None)
    put_both(world.engine(), b"0")
    reader = Puppet(world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(Y))
    put_both(world.engine(), b"1")
    assert values(reader.finish()) == [b"1" if rule else b"0", b"1"]


@with_and_without
def test_one_look_is_enough_only_where_nobody_has_decided(rule: bool, monkeypatch: Patch) -> None:
    """T1 was told committed, and has not put its value yet. One look at its row finds the old one,
    and a lock whose holder knows better."""
    if not rule:
        monkeypatch.setattr(snapshot_module, "_was_undecided", lambda *args: True)
    world = world_with()
    stopped, _ = world.client(when(finishes(X), Fault(NONE, Reply.CRASH)))
    with pytest.raises(Crash):
        stopped.commit(*ADD)
    assert values(world.engine().read([X])) == [b"1" if rule else b"0"]


@with_and_without
def test_holders_are_looked_at_twice(rule: bool, monkeypatch: Patch) -> None:
    """Two keys, two holders. The first decides after the reader has looked at it, then the second
    decides, then the reader looks at that one: it would have the later commit alone."""
    if not rule:
        monkeypatch.setattr(snapshot_module, "has_crossed", lambda before, after: False)
    world = world_with(None)
    put_both(world.engine(), b"0")
    writers = {
        X: Puppet(world, lambda engine: engine.commit([Mutation(X, b"1")])),
        Y: Puppet(world, lambda engine: engine.commit([Mutation(Y, b"1")])),
    }
    for writer in writers.values():
        writer.until(asks_for(Status.ASSERTED))
    locks = {k: k.row_lock for k in (X, Y)}
    cells = world.memory.read(list(locks.values()))
    holders = {k: holder_of(lock, cells[lock]) for k, lock in locks.items()}
    earlier, later = sorted((X, Y), key=lambda k: holders[k])  # as the reader looks at their rows
    reader = Puppet(world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(X._replace(row=holders[later])))
    for k in (earlier, later):
        writers[k].until(finishes(k))
    seen = dict(zip((X, Y), values(reader.finish()), strict=True))
    assert seen == ({X: b"1", Y: b"1"} if rule else {earlier: b"0", later: b"1"})
