"""Calls that fail: what a lost, refused or repeated request is reported as."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from tests.unit.worlds import (
    DOWN,
    LOST,
    POLICY,
    World,
    X,
    Y,
    always,
    before,
    is_step,
    steps_to,
    stopped_at,
    writes,
)
from txn.assertions import Exact, Some
from txn.errors import (
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    MaybeApplied,
    NotApplied,
    StoreError,
)
from txn.events import Phase
from txn.model import Cell, Check, Edit, Key, Mutation
from txn.protocol.codec import Plan, encode_plan
from txn.protocol.commit import WRITTEN_WITHIN_MS
from txn.protocol.row import column, read_rows, status_key
from txn.protocol.statuses import Status
from txn.protocol.transaction import load_transaction
from txn.request import Outcome
from txn.testing.faulty import NO_FAULT, Call, Fault, Reply, faultless


@pytest.mark.parametrize(
    "fault",
    [Fault(reply=Reply.MAYBE_APPLIED), LOST, DOWN, Fault(twice=True)],
    ids=["applied and lost", "not applied and lost", "refused", "sent twice by the gateway"],
)
def test_each_call_may_fail_once(fault: Fault) -> None:
    world, seen = World(), set[object]()

    def plan(call: Call) -> Fault:
        if call.method == "read" or call.items in seen:
            return NO_FAULT
        seen.add(call.items)
        return fault

    world.faults.plan = plan
    assert world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")]).complete
    assert (world.value(X), world.value(Y)) == (b"1", b"1")
    assert world.holder(X) == world.holder(Y) == b""
    assert world.statuses() == [Status.COMPLETE]


def test_a_row_whose_write_took_long_is_given_up_for_another() -> None:
    """It may have been aborted and deleted meanwhile, and be released by who has seen that."""
    world = World(policy=replace(POLICY, deadline_ms=2 * WRITTEN_WITHIN_MS))
    before(
        world,
        lambda call: call.method == "check_and_put",
        lambda: world.clock.advance(WRITTEN_WITHIN_MS + 1),
    )
    done = world.engine.commit([Mutation(X, b"1")])
    ended = {row.status: row.row_key for row in world.rows()}
    assert ended.keys() == {Status.ABORTED, Status.COMPLETE}
    assert done.transaction == ended[Status.COMPLETE]


@pytest.mark.parametrize("status", [Status.WRITTEN, Status.LOCKED])
def test_a_store_that_fails_before_the_decision_has_committed_nothing(status: Status) -> None:
    world = World()
    always(world, steps_to(status), LOST)
    with pytest.raises(NotApplied, match="nothing was committed: the reply was lost") as caught:
        world.engine.commit([Mutation(X, b"1")])
    assert isinstance(caught.value.__cause__, MaybeApplied)
    assert world.value(X) is None


@pytest.mark.parametrize("lost_before", [False, True])
def test_a_decision_that_was_certainly_not_sent_is_not_taken(lost_before: bool) -> None:
    """The owner alone decides. If one try may have been sent, nobody knows."""
    world = World()
    faults = [LOST] if lost_before else []
    decides = steps_to(Status.ASSERTED)
    world.faults.plan = lambda call: (
        (faults.pop() if faults else DOWN) if decides(call) else NO_FAULT
    )
    with pytest.raises(CommitOutcomeUnknown if lost_before else NotApplied):
        world.engine.commit([Mutation(X, b"1")])
    assert world.statuses() == [Status.LOCKED]
    world.clock.advance(POLICY.lock_ttl_ms)
    other = world.client(seed=2)
    for _ in range(3):
        with suppress(ConflictError):
            other.commit([Mutation(X, b"2")])
        world.clock.advance(POLICY.lock_ttl_ms)
    assert world.value(X) == b"2"


def test_what_a_table_is_asked_before_a_commit_commits_nothing() -> None:
    world = World()
    always(world, lambda call: call.method == "describe", Fault(reply=Reply.MAYBE_APPLIED))
    with pytest.raises(NotApplied, match="nothing was committed"):
        world.engine.commit([Mutation(X, b"1")])


@pytest.mark.parametrize("applied", [True, False])
def test_a_decision_that_cannot_be_read_is_unknown(applied: bool) -> None:
    world = World()
    always(world, steps_to(Status.ASSERTED), Fault(reply=Reply.MAYBE_APPLIED) if applied else LOST)
    with pytest.raises(CommitOutcomeUnknown) as caught:
        world.engine.commit([Mutation(X, b"1")])
    assert isinstance(caught.value.__cause__, StoreError)
    expected = Outcome.COMMITTED if applied else Outcome.UNDECIDED
    assert world.client(seed=2).outcome(caught.value.transaction) is expected


@pytest.mark.parametrize(
    ("age_ms", "error"), [(0, ConflictError), (WRITTEN_WITHIN_MS + 1, CommitOutcomeUnknown)]
)
def test_a_row_that_vanished_during_the_decision_is_unknown_unless_it_is_new(
    age_ms: int, error: type[Exception]
) -> None:
    """Rows are kept for longer than some minutes, so a new one was undone by a crash."""
    world = World()

    def vanish() -> None:
        status = status_key(b"txn", world.holder(X))
        cell = world.cell(status)
        world.store.write([Edit(status, None, cell.timestamp if cell else 0)])
        world.clock.advance(age_ms + 2)

    before(world, steps_to(Status.ASSERTED), vanish, times=99)
    with pytest.raises(error):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value(X) is None
    is_new = error is ConflictError
    assert {row.status for row in world.rows()} == {Status.ABORTED if is_new else None}


def abort_before(world: World, step: Status, before_it: Status, end: Status, times: int) -> None:
    """Let others abort the world's transactions, so many times, just before a step of theirs."""

    def abort() -> None:
        status = status_key(b"txn", world.holder(X))
        aborted = [Check(status, before_it.value, ((status, end.value),))]
        assert world.store.check_and_put(aborted) == [True]

    before(world, steps_to(step), abort, times=times)


def test_an_abort_that_comes_before_the_decision_wins() -> None:
    world = World()
    abort_before(world, Status.ASSERTED, Status.LOCKED, Status.ABORTING, times=1)
    done = world.engine.commit([Mutation(X, b"1")])
    (aborted,) = {row.row_key for row in world.rows()} - {done.transaction}
    assert world.engine.outcome(aborted) is Outcome.ABORTED
    assert world.value(X) == b"1"


@pytest.mark.parametrize(
    ("step", "before_it", "end"),
    [
        (Status.ASSERTED, Status.LOCKED, Status.ABORTING),
        (Status.LOCKED, Status.WRITTEN, Status.ABORTED),
    ],
)
def test_attempts_that_others_abort_are_bounded_and_their_locks_released(
    step: Status, before_it: Status, end: Status
) -> None:
    """Also where the row is finished by then, and the locks came late."""
    world = World()
    abort_before(world, step, before_it, end, times=99)
    with pytest.raises(ConflictError, match=f"before {step}"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.statuses() == [Status.ABORTED] * POLICY.attempts
    assert world.holder(X) == b""


def test_a_committed_transaction_is_reported_though_the_store_fails_after(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    always(world, writes, DOWN)
    done = world.engine.commit([Mutation(X, b"1")])
    assert not done.complete
    assert Phase("roll forward", "failed", 1, 1) in world.events
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("txn", "WARNING")
    assert "roll forward of 1 left to others" in record.getMessage()
    assert done.transaction.decode() in record.getMessage()
    assert "NotApplied" in record.getMessage()
    caplog.clear()
    world.engine.commit_many([([Mutation(X._replace(row=b"%d" % i), b"1")], []) for i in range(12)])
    (record,) = caplog.records
    assert record.getMessage().count("transaction.") == 10  # of a batch that may have thousands
    world.faults.plan = faultless
    world.clock.advance(POLICY.courtesy_ms)
    assert world.engine.read([X])[X] == Cell(b"1", done.timestamp)
    world.engine.commit([Mutation(X, b"2")], [Exact(X, b"1")])


def test_a_store_that_fails_while_aborting_changes_no_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    always(world, steps_to(Status.ABORTING), DOWN)
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Some(Y)])
    assert world.statuses() == [Status.LOCKED]
    assert "roll back of 1 left to others" in caplog.text


def test_a_no_from_a_server_that_is_behind_is_asked_again() -> None:
    """Refused, and yet unchanged when it is read: that settles nothing."""
    world = World()
    behind: list[Key] = []

    def plan(call: Call) -> Fault:
        for item in call.items:
            if is_step(item, Status.LOCKED) and not behind:
                behind.append(item.key)
                world.store.check_and_put([Check(item.key, b"0-WRITTEN", ((item.key, b"?"),))])
        if call.method == "read" and behind and call.items[0] == behind[0]:
            world.store.check_and_put([Check(behind[0], b"?", ((behind[0], b"0-WRITTEN"),))])
        return NO_FAULT

    world.faults.plan = plan
    assert world.engine.commit([Mutation(X, b"1")]).complete
    assert behind


def test_a_holder_that_decides_while_it_is_aborted_stays_committed() -> None:
    world = World()
    holder = stopped_at(world, Status.LOCKED)
    status = status_key(b"txn", holder)
    t = load_transaction(world.engine.context, read_rows(world.engine.context, [holder])[holder])
    decided: list[bytes] = []

    def decide() -> None:
        t.plan = Plan(world.clock.wall_ms() + 1, (0,))
        puts = (
            (column(b"txn", holder, b"plan"), encode_plan(t.plan)),
            (status, Status.ASSERTED.value),
        )
        assert world.store.check_and_put([Check(status, b"1-LOCKED", puts)]) == [True]
        decided.append(holder)

    before(world, steps_to(Status.ABORTING), decide)
    world.client(world.faults, seed=2).commit([Mutation(X, b"3")], [Exact(X, b"2")])
    assert decided
    assert world.engine.outcome(holder) is Outcome.COMMITTED
