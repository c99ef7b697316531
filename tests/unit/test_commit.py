"""Commits of the six-phase path: what they leave behind, whom they meet, and calls that fail."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.worlds import (
    DOWN,
    LOST,
    POLICY,
    TAKEN,
    World,
    X,
    Y,
    after_status,
    always,
    before,
    is_step,
    steps_to,
    stopped_at,
    writes,
)
from txn.assertions import Exact, Some
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    DeadlineError,
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreError,
)
from txn.events import Helped, Phase
from txn.host.owner import name_owner
from txn.model import Cell, Check, Delete, Edit, Family, Key, Mutation
from txn.protocol.clocks import FUTURE_MS
from txn.protocol.codec import Plan, encode_plan
from txn.protocol.commit import WRITTEN_WITHIN_MS
from txn.protocol.row import FAMILY, column, status_key
from txn.protocol.statuses import Status
from txn.request import Committed, Outcome, Request
from txn.stores.base import Answers
from txn.testing.faulty import NO_FAULT, Call, Crash, Fault, FaultyStore, Reply, faultless


@pytest.fixture
def world() -> World:
    return World()


def test_all_cells_get_one_timestamp_and_nothing_stays_locked(world: World) -> None:
    world.put(Y, b"old")
    done = world.engine.commit([Mutation(X, b"1"), Delete(Y)], [Some(Y)])
    assert world.cell(X) == Cell(b"1", done.timestamp)
    assert world.cell(Y) is None
    for key in (X, Y):
        assert world.holder(key) == b""
        assert world.cell(key.tag) == Cell(b"", done.timestamp)
    assert done.complete and not done.repeated


def test_every_phase_is_in_the_row_with_its_time(world: World) -> None:
    done = world.engine.commit([Mutation(X, b"1")])
    (row,) = world.rows()
    assert (row.row_key, row.status) == (done.transaction, Status.COMPLETE)
    assert list(row.began) == TAKEN
    assert list(row.began.values()) == sorted(row.began.values())


def test_an_aborted_row_says_why(world: World) -> None:
    world.put(X, b"1")
    with pytest.raises(AssertionFailedError) as caught:
        world.engine.commit([Mutation(Y, b"1")], [Some(X), Exact(X, b"2")])
    assert caught.value.assertion == Exact(X, b"2")
    assert caught.value.seen[X].value == b"1"
    (row,) = world.rows()
    assert row.status is Status.ABORTED
    assert row.reason == "assertion failed: assertion data/x/d:x = 2, seen data/x/d:x = 1"
    assert world.value(Y) is None
    assert world.holder(X) == world.holder(Y) == b""


def test_the_commit_lies_above_everything_that_was_there(world: World) -> None:
    """Or its put would land under an earlier delete, or under a value from a faster clock."""
    first = world.engine.commit([Mutation(X, b"1")])
    world.clock.set_wall_ms(world.clock.wall_ms() - 10_000)
    second = world.engine.commit([Delete(X)])
    third = world.engine.commit([Mutation(X, b"3")])
    assert first.timestamp < second.timestamp < third.timestamp
    assert world.value(X) == b"3"


def test_transactions_of_a_batch_that_share_a_key_happen_in_order(world: World) -> None:
    results = world.engine.commit_many(
        [
            ([Mutation(X, b"1")], [~Some(X)]),
            ([Mutation(X, b"2"), Mutation(Y, b"2")], [Exact(X, b"1")]),
            ([Mutation(Y, b"3")], [Exact(Y, b"2")]),
        ]
    )
    assert [type(result) for result in results] == [Committed] * 3
    assert (world.value(X), world.value(Y)) == (b"2", b"3")


def test_a_batch_with_one_bad_request_writes_nothing(world: World) -> None:
    good = Request((Mutation(X, b"1"),))
    bad = Request((Mutation(Key("a", "d", "x_lock"), b"1"),))
    wrong: Any
    for wrong in (bad, [Mutation(X, b"1")], ([],)):
        with pytest.raises(InvalidRequestError, match="request=1"):
            world.engine.commit_many([good, wrong])
    assert world.rows() == []


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (Key("a", "d", "x", "nowhere"), "no such table.*nowhere"),
        (Key("a", "e", "x"), "no such family.*known="),
    ],
)
def test_unknown_tables_and_families_are_named(world: World, key: Key, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        world.engine.commit([Mutation(X, b"1"), Mutation(key, b"1")])
    with pytest.raises(InvalidRequestError, match=message):
        world.engine.read([key])
    assert world.rows() == []


@pytest.mark.parametrize("name", ["transaction.1", "once.token", "doctor"])
def test_no_transaction_touches_the_transaction_table(world: World, name: str) -> None:
    families, key = world.store.describe(b"txn"), Key(name, FAMILY, "status", "txn")
    also = key._replace(table=b"default:txn")
    asserts = Request((Mutation(X, b"1"),), (~(Some(X) | Some(key)),))
    for given in (Request((Mutation(key, b"1"),)), Request((Delete(key),)), asserts):
        with pytest.raises(InvalidRequestError, match=r"transaction table.*request=0"):
            world.engine.commit_many([given])
    for call in (
        lambda: world.engine.ensure_table("txn", ["d"]),
        lambda: world.engine.ensure_table("default:txn", ["d"]),
        lambda: world.engine.commit([Mutation(also, b"1")]),
        lambda: world.engine.run(lambda t: t.put(X, t.get(key) or b"none")),
    ):
        with pytest.raises(InvalidRequestError, match="the transaction table is the protocol's"):
            call()
    assert (world.engine.read([key]), world.rows()) == ({key: None}, [])
    assert world.store.describe(b"txn") == families


def test_a_family_with_a_ttl_is_refused(world: World) -> None:
    world.store.ensure_table(b"short", {b"d": Family(ttl_ms=60_000)})
    with pytest.raises(InvalidRequestError, match="TTL"):
        world.engine.commit([Mutation(Key("a", "d", "x", "short"), b"1")])


def test_a_failed_assertion_is_no_repeat(world: World) -> None:
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Some(Y)], once="job/7")
    world.put(Y, b"1")
    assert not world.engine.commit([Mutation(X, b"1")], [Some(Y)], once="job/7").repeated


def test_an_answer_from_before_its_locks_aborts_a_transaction() -> None:
    world = World(replace(POLICY, attempts=1))
    world.put(X, b"0")
    row_key = stopped_at(world, Status.LOCKED)
    past = world.store.read([X, X.lock, X.tag])
    assert world.value(X.lock) == row_key
    store = FaultyStore(world.store)  # answers reads under locks from the past
    check_and_read = store.check_and_read

    def answer_late(*args: Any, **given: Any) -> Answers:
        answers, found, times = check_and_read(*args, **given)
        return answers, {key: past.get(key, cell) for key, cell in found.items()}, times

    store.check_and_read = answer_late  # type: ignore[method-assign]
    world.clock.advance(POLICY.lock_ttl_ms)
    later = world.client(seed=2)
    for _ in range(2):
        with suppress(AbortedError):
            later.commit([Mutation(X, b"2")])
        world.clock.advance(POLICY.lock_ttl_ms)
    assert world.value(X) == b"2"
    with pytest.raises(ConflictError):
        world.client(store, seed=3).commit([Mutation(X, b"3")], [Exact(X, b"0")])
    assert world.value(X) == b"2"


@pytest.mark.parametrize("applied", [None, frozenset()], ids=["1-LOCKED", "0-WRITTEN"])
def test_an_undecided_holder_is_aborted_after_its_lease(
    world: World, applied: frozenset[int] | None
) -> None:
    after_status(world, Status.LOCKED, Fault(applied, Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit([Mutation(X, b"2")])
    began = world.clock.monotonic_ms()
    world.client(seed=2).commit([Mutation(X, b"3")])
    assert world.clock.monotonic_ms() - began >= POLICY.lock_ttl_ms
    assert world.value(X) == b"3"
    assert set(world.statuses()) == {Status.ABORTED, Status.COMPLETE}


@pytest.mark.parametrize("status", [Status.ASSERTED, Status.PUT, Status.CLEANING])
def test_a_decided_holder_is_finished_by_whoever_waits(world: World, status: Status) -> None:
    holder = stopped_at(world, status)
    world.engine.commit([Mutation(X, b"3")], [Exact(X, b"2")])
    assert world.value(X) == b"3"
    assert world.engine.outcome(holder) is Outcome.COMMITTED
    (helped,) = [event for event in world.events if isinstance(event, Helped)]
    assert (helped, helped.owner) == (Helped(holder, "rolled forward"), name_owner())


@pytest.mark.parametrize("early", [False, True])
def test_a_slow_attempt_aborts_at_its_deadline(world: World, early: bool) -> None:
    world.faults.reads_early = lambda: early

    def slow(call: Call) -> Fault:
        if call.method == "read":
            world.clock.advance(POLICY.deadline_ms + 1)
        return Fault()

    world.faults.plan = slow
    with pytest.raises(DeadlineError, match="before the decision"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value(X) is None and world.holder(X) == b""


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


@pytest.mark.parametrize("status", [Status.WRITTEN, Status.LOCKED])
def test_a_store_that_fails_before_the_decision_has_committed_nothing(
    world: World, status: Status
) -> None:
    always(world, steps_to(status), LOST)
    with pytest.raises(NotApplied, match="nothing was committed: the reply was lost") as caught:
        world.engine.commit([Mutation(X, b"1")])
    assert isinstance(caught.value.__cause__, MaybeApplied)
    assert world.value(X) is None


@pytest.mark.parametrize("lost_before", [False, True])
def test_a_decision_that_was_certainly_not_sent_is_not_taken(
    world: World, lost_before: bool
) -> None:
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


@pytest.mark.parametrize("applied", [True, False])
def test_a_decision_that_cannot_be_read_is_unknown(world: World, applied: bool) -> None:
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
    world: World, age_ms: int, error: type[Exception]
) -> None:
    """Rows are kept for longer than some minutes, so a new one was undone by a crash."""

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


@pytest.mark.parametrize(
    ("step", "before_it", "end"),
    [
        (Status.ASSERTED, Status.LOCKED, Status.ABORTING),
        (Status.LOCKED, Status.WRITTEN, Status.ABORTED),
    ],
)
def test_attempts_that_others_abort_are_bounded_and_their_locks_released(
    world: World, step: Status, before_it: Status, end: Status
) -> None:
    def abort() -> None:
        status = status_key(b"txn", world.holder(X))
        aborted = [Check(status, before_it.value, ((status, end.value),))]
        assert world.store.check_and_put(aborted) == [True]

    before(world, steps_to(step), abort, times=99)
    with pytest.raises(ConflictError, match=f"before {step}"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.statuses() == [Status.ABORTED] * POLICY.attempts
    assert world.holder(X) == b""


def test_a_committed_transaction_is_reported_though_the_store_fails_after(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_no_from_a_server_that_is_behind_is_asked_again(world: World) -> None:
    """Refused, and yet unchanged when it is read: that settles nothing."""
    behind: list[Key] = []

    def plan(call: Call) -> Fault:
        for item in call.items:
            if isinstance(item, Check) and is_step(item, Status.LOCKED) and not behind:
                behind.append(item.key)
                world.store.check_and_put([Check(item.key, b"0-WRITTEN", ((item.key, b"?"),))])
        if call.method == "read" and behind and call.items[0] == behind[0]:
            world.store.check_and_put([Check(behind[0], b"?", ((behind[0], b"0-WRITTEN"),))])
        return NO_FAULT

    world.faults.plan = plan
    assert world.engine.commit([Mutation(X, b"1")]).complete
    assert behind


def test_a_holder_that_decides_while_it_is_aborted_stays_committed(world: World) -> None:
    holder = stopped_at(world, Status.LOCKED)
    status, plan = status_key(b"txn", holder), encode_plan(Plan(world.clock.wall_ms() + 1, (0,)))
    puts = ((column(b"txn", holder, b"plan"), plan), (status, Status.ASSERTED.value))

    def aborts(call: Call) -> bool:
        return any(isinstance(item, Check) and item.key == status for item in call.items)

    decision = Check(status, b"1-LOCKED", puts)
    before(world, aborts, lambda: world.store.check_and_put([decision]))
    world.client(world.faults, seed=2).commit([Mutation(X, b"3")], [Exact(X, b"2")])
    assert world.engine.outcome(holder) is Outcome.COMMITTED


def test_a_cell_from_the_future_is_refused(world: World) -> None:
    """Following it would drag every later commit into the future as well, for ever."""
    world.store.write([Edit(X, b"1", world.clock.wall_ms() + FUTURE_MS + 5_000)])
    with pytest.raises(AbortedError, match=r"lies in the future.*key=.*'x'") as caught:
        world.engine.commit([Mutation(X, b"2")])
    assert type(caught.value) is AbortedError
    assert world.statuses() == [Status.ABORTED]
