"""Safeguards of resolving, fsck, outcomes and `once`, each with and without: the test fails if
taking it out does no harm."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from recovery import check, fsck, repair
from tests.simulation.puppets import (
    Puppet,
    asks_for,
    lock_without_row,
    plans,
    poisons,
    sleeps,
    when,
)
from tests.simulation.variants import leave_values_out, marker_not_asserted, tell_what_fails
from tests.simulation.world import LOGS, TRANSACTIONS, D, World, key
from txn import (
    AbortedError,
    Cell,
    CommitOutcomeUnknown,
    Committed,
    ConflictError,
    Exact,
    Mutation,
    Outcome,
    Policy,
)
from txn.client import local as local_module
from txn.errors import NotApplied
from txn.model import Edit, Family
from txn.protocol import commit as commit_module
from txn.protocol import recovery
from txn.protocol import row as row_module
from txn.protocol import transaction as transaction_module
from txn.protocol.row import RowState, TransactionRow, column, created_ms
from txn.protocol.statuses import FINISHED, PROTOCOLS, ProtocolName, Status
from txn.tables.admin import Admin
from txn.testing.faulty import Crash, Fault, Reply

X, Y = key("x"), key("y")
HOUR_MS = 3_600_000
NONE: frozenset[int] = frozenset()
with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("rows_for_all")


# ------------------------------------------------------------------------- fsck and outcomes


@with_and_without
def test_retention_counts_from_the_end_of_a_transaction(rule: bool, monkeypatch: Patch) -> None:
    """A transaction that took a day longer than the retention ends, and its client asks for the
    outcome. Counted from its beginning, its row would be gone already."""
    if not rule:
        judge = fsck.judge

        def from_its_beginning(row: TransactionRow, now_ms: int, *ages: int) -> object:
            old = fsck.Finding(
                fsck.Kind.EXPIRED,
                row.row_key,
                None,
                {"status": str(row.status), "since": row.status_at, "heartbeat": row.heartbeat},
            )
            is_old = created_ms(row.row_key) <= now_ms - fsck.RETENTION_MS
            return old if row.status in FINISHED and is_old else judge(row, now_ms, *ages)

        monkeypatch.setattr(fsck, "judge", from_its_beginning)
    world = World()
    patient = Policy(deadline_ms=1000 * HOUR_MS)
    slow = Puppet(world, lambda engine: engine.commit([Mutation(X, b"1")]), policy=patient)
    slow.until(asks_for(Status.ASSERTED))
    world.clock.advance(49 * HOUR_MS)
    result = slow.finish()
    context = world.engine().context
    for finding in check(context):
        repair(context, finding)
    known = world.engine().outcome(result.transaction)
    assert known is (Outcome.COMMITTED if rule else Outcome.UNKNOWN)


@with_and_without
@pytest.mark.parametrize("harm", ["told", "left out"])
def test_a_decided_transaction_waits_for_its_table(
    rule: bool, harm: str, monkeypatch: Patch
) -> None:
    """A table is disabled at the decision. Were the error told, the client would do it all again;
    were the values in that table left out, half of the transaction would be lost."""
    if not rule:
        if harm == "told":
            monkeypatch.setattr(commit_module, "finish_or_leave", tell_what_fails)
        else:
            leave_values_out(monkeypatch)
    world, far = World(), key("far", table=LOGS)
    world.memory.ensure_table(LOGS, {D: Family(database=b"txn")})
    admin = Admin(world.memory._ordered, world.clock)  # type: ignore[attr-defined]
    client = Puppet(world, lambda engine: engine.commit([Mutation(X, b"1"), Mutation(far, b"1")]))
    client.until(lambda call: call.method == "write")
    admin.disable(LOGS)
    try:
        result = client.finish()
        is_told = isinstance(result, Committed)
    except NotApplied:
        is_told = False
    assert is_told is (rule or harm == "left out")
    admin.enable(LOGS)
    world.mend()
    whole = set(world.values([X, far]).values()) == {b"1"}
    assert whole is (rule or harm == "told")


@with_and_without
def test_an_absent_row_is_unknown_and_not_aborted(rule: bool, monkeypatch: Patch) -> None:
    """The row was deleted after the retention. Whoever hears "aborted" does it all again."""
    if not rule:
        names = {outcome.name: outcome for outcome in Outcome}
        monkeypatch.setattr(
            local_module, "Outcome", SimpleNamespace(**{**names, "UNKNOWN": Outcome.ABORTED})
        )
    world = World()
    result = world.engine().commit([Mutation(X, b"1")])
    world.collect()
    assert world.values([X]) == {X: b"1"}
    known = world.engine().outcome(result.transaction)
    assert known is (Outcome.UNKNOWN if rule else Outcome.ABORTED)


@with_and_without
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("asks", ["another client", "its owner"])
def test_a_poisoned_row_is_unknown_and_not_aborted(
    rule: bool, protocol: ProtocolName, asks: str, monkeypatch: Patch
) -> None:
    """T1's lock arrives before its row. T2 meets the lock, finds no row, and is stopped before it
    poisons that. T1 commits, and its row is deleted after the retention; then T2 goes on. Whoever
    hears "aborted" does it all again: a client that asks, or T1's owner, if it was stopped after it
    had sent the decision."""
    if not rule:
        monkeypatch.setattr(TransactionRow, "is_poisoned", False)
        monkeypatch.setattr(commit_module, "_distrust_poison", lambda *args: None)
    world = World(protocol=protocol)
    lost = when(asks_for(Status.ASSERTED), Fault(reply=Reply.MAYBE_APPLIED))
    is_owner = asks == "its owner"
    first = Puppet(
        world,
        lambda engine: engine.commit_many([([Mutation(X, b"1")], [])])[0],
        faults=plans(lock_without_row(), lost) if is_owner else lock_without_row(),
        policy=Policy(deadline_ms=100 * HOUR_MS, attempts=1),
    )
    first.until(sleeps)
    second = Puppet(world, lambda engine: engine.commit([Mutation(X, b"2")]))
    assert second.until(poisons)
    if is_owner:
        first.until(sleeps)
        result: object = None
    else:
        result = first.finish()
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


# ---------------------------------------------------------------------------------- resolving


@with_and_without
def test_a_decided_row_that_does_not_decode_keeps_its_locks(rule: bool, monkeypatch: Patch) -> None:
    """It may be of a newer version, which knows what it decided. Freed of its locks, its keys
    would be changed under it, and rolling it forward later would change them back."""
    if not rule:
        judge = TransactionRow.state.fget  # type: ignore[attr-defined]
        over = property(lambda row: RowState.FINISHED if row.corrupt else judge(row))
        monkeypatch.setattr(TransactionRow, "state", over)
    world = World()
    stopped, _ = world.client(when(lambda call: call.method == "write", Fault(NONE, Reply.CRASH)))
    with pytest.raises(Crash):
        stopped.commit([Mutation(X, b"1")])
    row_key = world.rows()[0].row_key
    later_ms = world.clock.wall_ms() + 1
    world.memory.write([Edit(column(TRANSACTIONS, row_key, b"buffer"), b"\x09new", later_ms)])
    engine, _ = world.client(policy=Policy(deadline_ms=1000, attempts=2))
    (result,) = engine.commit_many([([Mutation(X, b"2")], [])])
    assert isinstance(result, AbortedError if rule else Committed)
    assert world.values([X.lock]) == {X.lock: row_key if rule else b""}


@with_and_without
@pytest.mark.parametrize("status", [None, b"1-LOCKED"], ids=["lost", "set back"])
def test_any_sign_of_a_decision_counts(
    rule: bool, status: bytes | None, monkeypatch: Patch
) -> None:
    """Its client was told that it has committed. Taken for undecided, or for what is left of a row
    that was deleted, it would be overwritten unseen."""
    if not rule:
        monkeypatch.setattr(row_module, "_was_decided", lambda *args: False)
    world = World()
    world.engine().commit([Mutation(X, b"0")])
    stopped, _ = world.client(when(lambda call: call.method == "write", Fault(NONE, Reply.CRASH)))
    with pytest.raises(Crash):
        stopped.commit([Mutation(X, b"1")])
    (row_key,) = (row.row_key for row in world.rows() if row.status is Status.ASSERTED)
    later_ms = world.clock.wall_ms() + 1
    world.memory.write([Edit(column(TRANSACTIONS, row_key, b"status"), status, later_ms)])
    engine, _ = world.client(policy=Policy(deadline_ms=60_000, attempts=2))
    (result,) = engine.commit_many([([Mutation(X, b"2")], [Exact(X, b"0")])])
    assert isinstance(result, AbortedError if rule else Committed)
    assert world.values([X.lock]) == {X.lock: row_key if rule else b""}


@with_and_without
def test_an_undecided_holder_is_left_alone_for_its_lease(rule: bool, monkeypatch: Patch) -> None:
    """Two clients that want one key would abort each other for ever if neither waited."""
    if not rule:
        monkeypatch.setattr(recovery.Resolver, "_is_abandoned", lambda *args: True)
    world = World()
    clients = [
        Puppet(world, lambda engine: engine.commit_many([([Mutation(X, b"1")], [])])[0])
        for _ in range(2)
    ]
    first, second = clients
    first.until(asks_for(Status.ASSERTED))
    second.until(sleeps)
    assert world.rows()[0].status is (Status.LOCKED if rule else Status.ABORTED)


@with_and_without
def test_a_decided_holder_is_rolled_forward_and_not_back(rule: bool) -> None:
    """The decision is final for everybody: whoever finds it finishes it. An abort that is a plain
    release, without asking the row, would undo what its client was told is done."""
    world = World()
    world.engine().commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    half = Fault(frozenset({0, 1}), Reply.CRASH)
    stopped, _ = world.client(when(lambda call: call.method == "write", half))
    with pytest.raises(Crash):
        stopped.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    row = world.rows()[-1]
    if rule:
        world.mend()
    else:
        locks = {lock: Cell(row.row_key, 0) for lock in (X.lock, Y.lock)}
        recovery.free_for_holder(world.engine().context, row.row_key, locks)
    assert world.values([X, Y]) == {X: b"1", Y: b"1" if rule else b"0"}


# --------------------------------------------------------------------------------------- once


@with_and_without
def test_a_token_commits_once(rule: bool, monkeypatch: Patch) -> None:
    """A task dies after its commit and is run again. Were the marker not asserted, it would pay
    twice."""
    if not rule:
        monkeypatch.setattr(transaction_module, "add_marker", marker_not_asserted)
    world = World()
    world.engine().commit([Mutation(X, b"0")])
    dying, _ = world.client(when(asks_for(Status.COMPLETE), Fault(reply=Reply.CRASH)))
    with pytest.raises(Crash):
        dying.commit([Mutation(X, b"1")], once="job-1")
    world.engine().commit([Mutation(X, b"0")])  # somebody has spent it meanwhile
    again = world.engine().commit([Mutation(X, b"1")], once="job-1")
    assert again.repeated is rule
    assert world.values([X]) == {X: b"0" if rule else b"1"}
