"""Calls that fail: what a lost, refused or repeated request is reported as."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from logging import NullHandler, getLogger

import pytest

from tests.unit.worlds import POLICY, World, X, Y, after_status, is_step, stopped_at
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
from txn.testing.faulty import Call, Crash, Fault, Reply


def every_write(fault: Fault) -> World:
    """A world in which each writing call has the fault the first time it is made."""
    world = World()
    seen: set[object] = set()

    def plan(call: Call) -> Fault:
        if call.method == "read" or call.items in seen:
            return Fault()
        seen.add(call.items)
        return fault

    world.faults.plan = plan
    return world


@pytest.mark.parametrize(
    "fault",
    [
        Fault(reply=Reply.MAYBE_APPLIED),
        Fault(applied=frozenset(), reply=Reply.MAYBE_APPLIED),
        Fault(applied=frozenset(), reply=Reply.NOT_APPLIED),
        Fault(twice=True),
    ],
    ids=["applied and lost", "not applied and lost", "refused", "sent twice by the gateway"],
)
def test_each_call_may_fail_once(fault: Fault) -> None:
    world = every_write(fault)
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert done.complete
    assert (world.value(X), world.value(Y)) == (b"1", b"1")
    assert world.holder(X) == world.holder(Y) == b""
    assert world.statuses() == [Status.COMPLETE]


def test_a_row_whose_write_took_long_is_given_up_for_another() -> None:
    """It may have been aborted and deleted meanwhile, and be released by who has seen that."""
    world = World(policy=replace(POLICY, deadline_ms=2 * WRITTEN_WITHIN_MS))

    slow = [WRITTEN_WITHIN_MS + 1]

    def plan(call: Call) -> Fault:
        if call.method == "check_and_put" and slow:
            world.clock.advance(slow.pop())
        return Fault()

    world.faults.plan = plan
    done = world.engine.commit([Mutation(X, b"1")])
    ended = {row.status: row.row_key for row in world.rows()}
    assert ended.keys() == {Status.ABORTED, Status.COMPLETE}
    assert done.transaction == ended[Status.COMPLETE]


@pytest.mark.parametrize("status", [Status.WRITTEN, Status.LOCKED])
def test_a_store_that_fails_before_the_decision_has_committed_nothing(status: Status) -> None:
    world = World()
    down = Fault(applied=frozenset(), reply=Reply.MAYBE_APPLIED)
    world.faults.plan = lambda call: (
        down if any(is_step(i, status) for i in call.items) else Fault()
    )
    with pytest.raises(NotApplied, match="nothing was committed: the reply was lost") as caught:
        world.engine.commit([Mutation(X, b"1")])
    assert isinstance(caught.value.__cause__, MaybeApplied)
    assert world.value(X) is None


@pytest.mark.parametrize("lost_before", [False, True])
def test_a_decision_that_was_certainly_not_sent_is_not_taken(lost_before: bool) -> None:
    world = World()
    replies = [Reply.MAYBE_APPLIED] if lost_before else []

    def plan(call: Call) -> Fault:
        decision = any(is_step(i, Status.ASSERTED) for i in call.items)
        reply = replies.pop() if decision and replies else Reply.NOT_APPLIED
        return Fault(applied=frozenset(), reply=reply) if decision else Fault()

    world.faults.plan = plan
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
    world.faults.plan = lambda call: (
        Fault(reply=Reply.MAYBE_APPLIED) if call.method == "describe" else Fault()
    )
    with pytest.raises(NotApplied, match="nothing was committed"):
        world.engine.commit([Mutation(X, b"1")])


@pytest.mark.parametrize("applied", [True, False])
def test_a_decision_that_cannot_be_read_is_unknown(applied: bool) -> None:
    world = World()
    lost = Fault(applied=None if applied else frozenset(), reply=Reply.MAYBE_APPLIED)

    def plan(call: Call) -> Fault:
        decision = any(is_step(i, Status.ASSERTED) for i in call.items)
        return lost if decision else Fault()

    world.faults.plan = plan
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

    def plan(call: Call) -> Fault:
        for item in call.items:
            if is_step(item, Status.ASSERTED):
                cell = world.store.read([item.key])[item.key]
                if cell is not None:
                    world.store.write([Edit(item.key, None, cell.timestamp)])
                world.clock.advance(age_ms + 2)
        return Fault()

    world.faults.plan = plan
    with pytest.raises(error):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value(X) is None
    is_new = error is ConflictError
    assert {row.status for row in world.rows()} == {Status.ABORTED if is_new else None}


def test_an_abort_that_comes_before_the_decision_wins() -> None:
    world = World()
    aborted: list[bytes] = []

    def abort_first(call: Call) -> Fault:
        for item in call.items:
            decides = is_step(item, Status.ASSERTED)
            if decides and not aborted:
                aborted.append(item.key.row)
                check = Check(item.key, Status.LOCKED.value, ((item.key, b"6-ABORTING"),))
                assert world.store.check_and_put([check]) == [True]
        return Fault()

    world.faults.plan = abort_first
    world.engine.commit([Mutation(X, b"1")])
    assert world.engine.outcome(aborted[0]) is Outcome.ABORTED
    assert world.value(X) == b"1"


def test_attempts_are_bounded() -> None:
    world = World()

    def abort_always(call: Call) -> Fault:
        for item in call.items:
            if is_step(item, Status.ASSERTED):
                check = Check(item.key, Status.LOCKED.value, ((item.key, b"6-ABORTING"),))
                assert world.store.check_and_put([check]) == [True]
        return Fault()

    world.faults.plan = abort_always
    with pytest.raises(ConflictError, match="aborted by another client before 2-ASSERTED"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.statuses() == [Status.ABORTED] * POLICY.attempts
    assert world.holder(X) == b""


def test_locks_taken_after_somebody_aborted_us_are_released() -> None:
    """Its row is finished by then; the owner still frees what came late."""
    world = World()

    def abort_and_finish(call: Call) -> Fault:
        for item in call.items:
            if is_step(item, Status.LOCKED):
                check = Check(item.key, Status.WRITTEN.value, ((item.key, b"7-ABORTED"),))
                world.store.check_and_put([check])
        return Fault()

    world.faults.plan = abort_and_finish
    with pytest.raises(ConflictError, match="before 1-LOCKED"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.holder(X) == b""


def test_a_committed_transaction_is_reported_though_the_store_fails_after(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    down = Fault(applied=frozenset(), reply=Reply.NOT_APPLIED)
    world.faults.plan = lambda call: (
        down if any(isinstance(i, Edit) for i in call.items) else Fault()
    )
    done = world.engine.commit([Mutation(X, b"1")])
    assert not done.complete
    assert Phase("roll forward", "failed", 1, 1) in world.events
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("txn", "WARNING")
    assert "roll forward of 1 left to others" in record.getMessage()
    assert done.transaction.decode() in record.getMessage()
    assert "NotApplied" in record.getMessage()
    world.faults.plan = lambda call: Fault()
    world.clock.advance(POLICY.courtesy_ms)
    assert world.engine.read([X])[X] == Cell(b"1", done.timestamp)
    world.engine.commit([Mutation(X, b"2")], [Exact(X, b"1")])


def test_a_store_that_fails_while_aborting_changes_no_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    down = Fault(applied=frozenset(), reply=Reply.NOT_APPLIED)
    world.faults.plan = lambda call: (
        down if any(is_step(i, Status.ABORTING) for i in call.items) else Fault()
    )
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Some(Y)])
    assert world.statuses() == [Status.LOCKED]
    assert "roll back of 1 left to others" in caplog.text


def test_nothing_is_printed_unless_a_program_asks_for_it() -> None:
    assert any(isinstance(each, NullHandler) for each in getLogger("txn").handlers)


def test_a_phase_that_stops_is_told_to_the_watch() -> None:
    world = World()
    after_status(world, Status.LOCKED, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit([Mutation(X, b"1")])
    last = [event for event in world.events if isinstance(event, Phase)][-1]
    assert (last.name, last.outcome, last.failed) == ("assert", "failed", 1)


def test_a_no_from_a_server_that_is_behind_is_asked_again() -> None:
    """Refused, and yet unchanged when it is read: that settles nothing."""
    world = World()
    behind: list[Key] = []

    def plan(call: Call) -> Fault:
        for item in call.items:
            steps = is_step(item, Status.LOCKED)
            if steps and not behind:
                behind.append(item.key)
                world.store.check_and_put([Check(item.key, b"0-WRITTEN", ((item.key, b"?"),))])
        if call.method == "read" and behind and call.items[0] == behind[0]:
            world.store.check_and_put([Check(behind[0], b"?", ((behind[0], b"0-WRITTEN"),))])
        return Fault()

    world.faults.plan = plan
    assert world.engine.commit([Mutation(X, b"1")]).complete
    assert behind


def test_a_holder_that_decides_while_it_is_aborted_stays_committed() -> None:
    world = World()
    holder = stopped_at(world, Status.LOCKED)
    plan_cell = column(b"txn", holder, b"plan")
    t = load_transaction(world.engine.context, read_rows(world.engine.context, [holder])[holder])
    decided: list[bytes] = []

    def decide_first(call: Call) -> Fault:
        for item in call.items:
            aborts = is_step(item, Status.ABORTING)
            if aborts and item.key.row == holder and not decided:
                t.plan = Plan(world.clock.wall_ms() + 1, (0,))
                key = status_key(b"txn", holder)
                puts = ((plan_cell, encode_plan(t.plan)), (key, Status.ASSERTED.value))
                assert world.store.check_and_put([Check(key, b"1-LOCKED", puts)]) == [True]
                decided.append(holder)
        return Fault()

    other = world.client(world.faults, seed=2)
    world.faults.plan = decide_first
    other.commit([Mutation(X, b"3")], [Exact(X, b"2")])
    assert decided
    assert world.engine.outcome(holder) is Outcome.COMMITTED
