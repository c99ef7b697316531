"""Safeguards of statuses, the decision, outcomes, recovery and `once`."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from recovery import fsck
from tests.simulation import variants
from tests.simulation.breaking import deliver_all
from tests.simulation.calls import asks_for, finishes, frees, poisons, puts_plan, sleeps
from tests.simulation.keys import ADD, DAY_MS, FIRST, HOUR_MS, LONG_MS, NONE, X, Y
from tests.simulation.puppets import Puppet, lock_without_row, plans, when
from tests.simulation.rules import Patch, both_protocols, with_and_without, without
from tests.simulation.teeth import add, both_committed, decide, die, mend, put, putting, writes
from tests.simulation.variants import free_without_poison, patch_steps, step_compared, step_plainly
from tests.simulation.world import LOGS, POLICY, TRANSACTIONS, D, World, key
from txn import Cell, Committed, Mutation, Outcome, Policy
from txn.assertions import Exact
from txn.clock import ManualClock
from txn.errors import AbortedError, CommitOutcomeUnknown, ConflictError, NotApplied
from txn.model import Check, Edit, Family
from txn.protocol import recovery, transaction
from txn.protocol.context import Context
from txn.protocol.row import RowState, TransactionRow, column, created_ms, status_key
from txn.protocol.statuses import FINISHED, ProtocolName, Status
from txn.tables.admin import Admin
from txn.testing.faulty import NO_FAULT, Crash, Fault, Reply

pytestmark = pytest.mark.usefixtures("rows_for_all")
UNREADABLE = pytest.raises(AssertionError, match="unreadable")
PATIENT = Policy(deadline_ms=LONG_MS, lock_ttl_ms=LONG_MS)
LATE = replace(POLICY, deadline_ms=LONG_MS, attempts=1)
MARKERS = [
    ("six-phase", "with"),
    ("six-phase", "without"),
    *(("fenced", rule) for rule in ("with", "markers alone", "bound alone", "without")),
]
"""Where rows that were deleted are hidden from late owners by markers, and by a bound of time."""


@pytest.fixture
def world(world: World) -> World:
    put(world, X, value=b"0")
    return world


def status_of(world: World, row_key: bytes) -> bytes | None:
    name = status_key(TRANSACTIONS, row_key)
    return world.values([name])[name]


def step_all_plainly(patch: Patch) -> None:
    patch_steps(patch, step_plainly, recovery)


class Ahead(ManualClock):
    """A clock that is ahead of the server's, and at another millisecond each time."""

    def __init__(self) -> None:
        super().__init__()
        self.advance(5000)

    def wall_ms(self) -> int:
        self.advance(1)
        return super().wall_ms()


@without(step_all_plainly)
def test_every_change_of_status_compares(rule: bool, world: World) -> None:
    """A plain 6-ABORTING would lie below the plain 1-LOCKED of an owner whose clock is ahead."""
    owner = Puppet(world, add, clock=Ahead())
    owner.until(asks_for(Status.ASSERTED))
    aborter = world.engine().context
    t = transaction.load_transaction(world.engine().context, world.rows()[-1])
    recovery.roll_back(aborter, [t], lambda _: "taken for dead")
    assert isinstance(add(world.engine()), Committed)
    assert isinstance(owner.finish(), AbortedError if rule else Committed)


@with_and_without
def test_a_paused_helper_does_not_bring_a_row_back(
    rule: bool, monkeypatch: Patch, world: World
) -> None:
    """A plain 4-CLEANING of a helper would do so: without a buffer, never again finished."""
    die(world, writes, *ADD)
    row_key = world.rows()[-1].row_key
    if not rule:
        step_all_plainly(monkeypatch)
    helper = Puppet(world, mend(world), clock=Ahead())
    helper.until(asks_for(Status.CLEANING))
    with monkeypatch.context() as patch:
        patch_steps(patch, step_compared, recovery)
        world.mend()
        world.collect()
    helper.step()
    assert status_of(world, row_key) == (None if rule else Status.CLEANING.value)


@pytest.mark.parametrize(("protocol", "rule"), MARKERS)
def test_a_row_that_may_have_been_deleted_is_not_used(
    protocol: ProtocolName, rule: str, monkeypatch: Patch, world: World
) -> None:
    """An owner that was stopped for a day sends its row again; a helper wakes, and undoes it."""
    if rule in ("markers alone", "without"):
        monkeypatch.setattr("txn.protocol.prepare.WRITTEN_WITHIN_MS", LONG_MS)
    unheard = when(asks_for(Status.WRITTEN), Fault(reply=Reply.MAYBE_APPLIED))
    owner = Puppet(world, add, faults=unheard, policy=LATE)
    owner.until(sleeps)
    helper = Puppet(world, mend(world))
    helper.until(frees if protocol == "six-phase" else asks_for(Status.ABORTED))
    world.mend()
    world.clock.advance(DAY_MS)
    world.collect()
    if rule in ("bound alone", "without"):
        world.memory.compact(TRANSACTIONS)
    if protocol == "six-phase":
        owner.until(asks_for(Status.ASSERTED))
        helper.step()
        assert isinstance(add(world.engine()), Committed)
    else:
        decide(owner)
        helper.step()
    result = owner.finish()
    assert isinstance(result, Committed) is (rule == "without")
    if isinstance(result, Committed) and protocol == "fenced":
        assert status_of(world, result.transaction) == b"7-ABORTED", "it was told the truth"


@pytest.mark.parametrize(("protocol", "rule"), MARKERS)
def test_a_row_whose_poison_may_have_been_collected_is_not_used(
    protocol: ProtocolName, rule: str, monkeypatch: Patch, world: World
) -> None:
    """Here the row was lost and poisoned; the helper wakes, and frees the lock for another."""
    if rule in ("markers alone", "without"):
        monkeypatch.setattr("txn.protocol.prepare.WRITTEN_WITHIN_MS", LONG_MS)
    owner = Puppet(world, add, faults=lock_without_row(), policy=LATE)
    owner.until(sleeps)
    helper = Puppet(world, mend(world))
    assert helper.until(frees)
    world.clock.advance(DAY_MS)
    world.collect()
    if rule in ("bound alone", "without"):
        world.memory.compact(TRANSACTIONS)
    decide(owner)
    helper.step()
    assert both_committed(add(world.engine()), owner.finish()) is (rule == "without")


@both_protocols
@without(free_without_poison)
@pytest.mark.parametrize("by", ["a client", "fsck"])
def test_a_row_is_poisoned_before_its_lock_is_freed(by: str, rule: bool, world: World) -> None:
    """T1's row arrives after its lock, when somebody who met that is about to free it."""
    first = Puppet(world, add, faults=lock_without_row())
    first.until(sleeps)
    other = Puppet(world, add if by == "a client" else mend(world))
    assert other.until(frees)
    decide(first)
    if by == "fsck":
        other.step()
    second = other.finish() if by == "a client" else add(world.engine())
    assert both_committed(second, first.finish()) is not rule


@both_protocols
@without(variants.poison_plainly)
def test_poison_compares(rule: bool, world: World) -> None:
    """T2 has found no row of T1, which then decides, and dies. Plain poison would hide that."""
    stop = when(finishes(X), Fault(NONE, Reply.CRASH))
    first = Puppet(
        world, lambda engine: engine.commit(*ADD), faults=plans(lock_without_row(), stop)
    )
    first.until(sleeps)
    second = Puppet(world, add)
    assert second.until(poisons)
    with pytest.raises(Crash):
        first.finish()
    second.step()
    judge_recovered(world, rule, b"1")


@without("protocol.commit.decide", variants.believe)
def test_a_no_to_the_decision_is_read_and_not_believed(rule: bool, world: World) -> None:
    """The gateway has sent the request a second time, which answers "no"."""
    result = add(world.client(when(asks_for(Status.ASSERTED), Fault(twice=True)))[0])
    world.mend()
    assert world.values([X]) == {X: b"1"}
    assert isinstance(result, Committed if rule else AbortedError)


@without("protocol.commit.decide", variants.decide_as_any_other_call)
def test_a_lost_decision_is_unknown_and_not_failed(rule: bool, world: World) -> None:
    """Nothing is answered, the row still says 1-LOCKED, and later the request lands."""
    lost = Fault(NONE, Reply.MAYBE_APPLIED, late=FIRST)
    client, store = world.client(lambda call: lost if asks_for(Status.ASSERTED)(call) else NO_FAULT)
    result = add(client)
    deliver_all(store)
    world.mend()
    assert world.values([X]) == {X: b"1"}
    assert isinstance(result, CommitOutcomeUnknown if rule else NotApplied)


def lose_plans(patch: Patch) -> None:
    for module in ("commit", "recovery"):
        patch.setattr(f"txn.protocol.{module}.column", nowhere)


def nowhere(table: bytes, row_key: bytes, name: bytes) -> object:
    return column(table, row_key, b"lost" if name == b"plan" else name)


@without(lose_plans)
def test_the_plan_comes_with_the_decision(rule: bool, monkeypatch: Patch, world: World) -> None:
    """Nobody else knows at which timestamp to put the values, nor whether they were put already."""
    die(world, asks_for(Status.ASSERTED), *ADD, applied=None)
    monkeypatch.undo()
    judge_recovered(world, rule, b"1")


def judge_recovered(world: World, rule: bool, expected: bytes) -> None:
    if rule:
        world.mend()
        assert world.values([X]) == {X: expected}
    else:
        with UNREADABLE:
            world.mend()


def decide_first(patch: Patch) -> None:
    make_step = transaction.make_step

    def make(context: Context, t: Any, new: Status, cells: transaction.Cells) -> Check:
        found = make_step(context, t, new, cells)
        return found._replace(puts=found.puts[::-1]) if new is Status.ASSERTED else found

    patch.setattr(transaction, "make_step", make)


@without(decide_first)
def test_the_status_is_the_last_cell_of_its_row(rule: bool, monkeypatch: Patch) -> None:
    """Where a checked write carries one cell, the owner may die between two of them."""
    world = World(one_cell=True)
    put(world, X, value=b"0")
    die(world, lambda call: puts_plan(call) or asks_for(Status.ASSERTED)(call), *ADD, applied=None)
    monkeypatch.undo()
    judge_recovered(world, rule, b"0")


def retain_from_the_beginning(patch: Patch) -> None:
    judge = fsck.judge

    def from_its_beginning(row: TransactionRow, now_ms: int, *ages: int) -> object:
        facts = {"status": str(row.status), "since": row.status_at, "heartbeat": row.heartbeat}
        old = fsck.Finding(fsck.Kind.EXPIRED, row.row_key, None, facts)
        is_old = created_ms(row.row_key) <= now_ms - fsck.RETENTION_MS
        return old if row.status in FINISHED and is_old else judge(row, now_ms, *ages)

    patch.setattr(fsck, "judge", from_its_beginning)


def retain_by_status_times(patch: Patch) -> None:
    """A fenced row's statuses have the times of its beginning."""
    patch.setattr(TransactionRow, "since", property(lambda row: row.status_at))


BEGINNINGS = {"six-phase": retain_from_the_beginning, "fenced": retain_by_status_times}


@both_protocols
@with_and_without
def test_retention_counts_from_the_end_of_a_transaction(
    rule: bool, protocol: ProtocolName, monkeypatch: Patch, world: World
) -> None:
    """One takes longer than the retention, and then its client asks for the outcome."""
    if not rule:
        BEGINNINGS[protocol](monkeypatch)
    slow = putting(world, X, policy=PATIENT)
    slow.until(asks_for(Status.ASSERTED))
    world.clock.advance(3 * DAY_MS)
    result = slow.finish()
    world.fsck()
    known = world.engine().outcome(result.transaction)
    assert known is (Outcome.COMMITTED if rule else Outcome.UNKNOWN)


@without("protocol.commit.finish_or_leave", variants.tell_what_fails)
def test_a_decided_transaction_waits_for_its_table(rule: bool) -> None:
    """Told that it failed, the client would do it all again."""
    world, far = World(), key("far", table=LOGS)
    world.memory.ensure_table(LOGS, {D: Family(database=b"txn")})
    admin = Admin(world.memory._ordered, world.clock)  # type: ignore[attr-defined]
    client = putting(world, X, far)
    client.until(writes)
    admin.disable(LOGS)
    try:
        is_told = isinstance(client.finish(), Committed)
    except NotApplied:
        is_told = False
    assert is_told is rule
    admin.enable(LOGS)
    world.mend()
    assert world.values([X, far]) == {X: b"1", far: b"1"}


OUTCOMES = SimpleNamespace(**{each.name: each for each in Outcome} | {"UNKNOWN": Outcome.ABORTED})


@without("client.local.Outcome", OUTCOMES)
def test_an_absent_row_is_unknown_and_not_aborted(rule: bool, world: World) -> None:
    """The row was deleted after the retention. Whoever hears "aborted" does it all again."""
    result = world.engine().commit([Mutation(X, b"1")])
    world.collect()
    assert world.values([X]) == {X: b"1"}
    known = world.engine().outcome(result.transaction)
    assert known is (Outcome.UNKNOWN if rule else Outcome.ABORTED)


def trust_poison(patch: Patch) -> None:
    patch.setattr(TransactionRow, "is_poisoned", False)
    patch.setattr("txn.protocol.commit._distrust_poison", lambda *args: None)


@without(trust_poison)
@both_protocols
@pytest.mark.parametrize("asks", ["another client", "its owner"])
def test_a_poisoned_row_is_unknown_and_not_aborted(rule: bool, asks: str, world: World) -> None:
    """T2 poisons T1's row when that has committed and was deleted. T1 must not do it all again."""
    world.collect()
    is_owner = asks == "its owner"
    lost = when(asks_for(Status.ASSERTED), Fault(reply=Reply.MAYBE_APPLIED))
    first = Puppet(
        world,
        lambda engine: engine.commit_many([([Mutation(X, b"1")], [])])[0],
        faults=plans(lock_without_row(), lost) if is_owner else lock_without_row(),
        policy=Policy(deadline_ms=100 * HOUR_MS, attempts=1),
    )
    first.until(sleeps)
    second = putting(world, X, value=b"2")
    assert second.until(poisons)
    result = first.until(sleeps) if is_owner else first.finish()
    world.mend()
    (row_key,) = (row.row_key for row in world.rows() if row.status is Status.COMPLETE)
    world.clock.advance(49 * HOUR_MS)
    world.collect()
    world.memory.compact(TRANSACTIONS)
    second.step()
    if is_owner:
        assert isinstance(first.finish(), CommitOutcomeUnknown if rule else ConflictError)
    else:
        assert isinstance(result, Committed)
        known = world.engine().outcome(row_key)
        assert known is (Outcome.UNKNOWN if rule else Outcome.ABORTED)


def take_unreadable_rows_for_finished(patch: Patch) -> None:
    judge = TransactionRow.state.fget  # type: ignore[attr-defined]
    over = property(lambda row: RowState.FINISHED if row.corrupt else judge(row))
    patch.setattr(TransactionRow, "state", over)


def judge_locks_of_decided(world: World, name: bytes, stored: bytes | None, kept: bool) -> None:
    (row_key,) = (row.row_key for row in world.rows() if row.status is Status.ASSERTED)
    later_ms = world.clock.wall_ms() + 1
    world.memory.write([Edit(column(TRANSACTIONS, row_key, name), stored, later_ms)])
    engine, _ = world.client(policy=Policy(deadline_ms=60_000, attempts=2))
    (result,) = engine.commit_many([([Mutation(X, b"2")], [Exact(X, b"0")])])
    assert isinstance(result, AbortedError if kept else Committed)
    assert world.values([X.lock]) == {X.lock: row_key if kept else b""}


@without(take_unreadable_rows_for_finished)
def test_a_decided_row_that_does_not_decode_keeps_its_locks(rule: bool, world: World) -> None:
    """It may be of a newer version, which knows what it decided."""
    die(world, writes, *ADD)
    judge_locks_of_decided(world, b"buffer", b"\x09new", rule)


@without("protocol.row._was_decided", lambda *args: False)
@pytest.mark.parametrize("status", [None, b"1-LOCKED"], ids=["lost", "set back"])
def test_any_sign_of_a_decision_counts(rule: bool, status: bytes | None, world: World) -> None:
    """Its client was told that it has committed."""
    die(world, writes, *ADD)
    judge_locks_of_decided(world, b"status", status, rule)


@without("protocol.recovery.Resolver._is_abandoned", lambda *args: True)
def test_an_undecided_holder_is_left_alone_for_its_lease(rule: bool, world: World) -> None:
    """Two clients that want one key would abort each other for ever if neither waited."""
    world.collect()
    first, second = putting(world, X), putting(world, X)
    first.until(asks_for(Status.ASSERTED))
    second.until(sleeps)
    assert world.rows()[0].status is (Status.LOCKED if rule else Status.ABORTED)


@with_and_without
def test_a_decided_holder_is_rolled_forward_and_not_back(rule: bool, world: World) -> None:
    """An abort that is a plain release, without asking the row, would undo what is done."""
    put(world, X, Y, value=b"0")
    die(world, writes, [Mutation(X, b"1"), Mutation(Y, b"1")], applied=frozenset({0, 1}))
    row = world.rows()[-1]
    if rule:
        world.mend()
    else:
        locks = {lock: Cell(row.row_key, 0) for lock in (X.lock, Y.lock)}
        recovery.free_for_holder(world.engine().context, row.row_key, locks)
    assert world.values([X, Y]) == {X: b"1", Y: b"1" if rule else b"0"}


@without("protocol.transaction.add_marker", variants.marker_not_asserted)
def test_a_token_commits_once(rule: bool, world: World) -> None:
    """A task dies after its commit and is run again."""
    dying, _ = world.client(when(asks_for(Status.COMPLETE), Fault(reply=Reply.CRASH)))
    with pytest.raises(Crash):
        dying.commit([Mutation(X, b"1")], once="job-1")
    put(world, X, value=b"0")  # somebody has spent it meanwhile
    again = world.engine().commit([Mutation(X, b"1")], once="job-1")
    assert again.repeated is rule
    assert world.values([X]) == {X: b"0" if rule else b"1"}
