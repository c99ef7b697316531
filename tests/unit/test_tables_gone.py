"""A table that is disabled or dropped while transactions are at work with it, at each point."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from recovery import LeftAlone, Repaired, check, repair
from tests.unit.worlds import POLICY, World, X, Y, Z, is_step, stopped_at
from txn.errors import (
    AbortedError,
    CommitOutcomeUnknown,
    ConflictError,
    DeadlineError,
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreClosedError,
    TableUnavailable,
)
from txn.events import Event, Phase
from txn.model import Check, Family, Key, Mutation
from txn.protocol import recovery
from txn.protocol.statuses import Status
from txn.protocol.transaction import WRITTEN_WITHIN_MS
from txn.request import Committed, Outcome
from txn.tables.admin import Admin
from txn.testing.faulty import Call, Crash, Fault, Reply

OTHER = b"other"
FAR, NEAR = Key("far", "d", "x", OTHER), X
BOTH = [Mutation(NEAR, b"1"), Mutation(FAR, b"1")]


class Tables(World):
    """Two tables, and an operator. when: what the operator does as soon as a phase is done, or
    ("lock started") begins."""

    def __init__(self) -> None:
        self.when: dict[str, Callable[[], None]] = {}
        super().__init__()
        self.store.ensure_table(OTHER, {b"d": Family()})
        self.admin = Admin(self.store._ordered, self.clock)  # type: ignore[attr-defined]

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if isinstance(event, Phase) and event.outcome != "failed":
            name = event.name if event.outcome == "done" else f"{event.name} started"
            self.when.pop(name, lambda: None)()

    def disable(self) -> None:
        self.admin.disable(OTHER)

    def drop(self) -> None:
        self.admin.disable(OTHER)
        self.admin.drop(OTHER)

    def bring_back(self) -> None:
        if self.admin.find(OTHER) is not None:
            self.admin.enable(OTHER)
        else:
            self.store.ensure_table(OTHER, {b"d": Family()})

    def left_decided(self) -> bytes:
        """Let a client decide on both tables, and one of them be disabled before its puts."""
        self.when["decide"] = self.disable
        return self.engine.commit(BOTH).transaction


STOP = Fault(reply=Reply.CRASH)
GONE = pytest.mark.parametrize("gone", [Tables.disable, Tables.drop])


@GONE
@pytest.mark.parametrize("ack", ["complete", "decided"])
def test_a_decided_transaction_is_told_as_committed(
    gone: Callable[[Tables], None], ack: str
) -> None:
    world = Tables()
    world.when["decide"] = lambda: gone(world)
    done = world.engine.commit(BOTH, ack=ack)  # type: ignore[arg-type]
    world.engine.flush()
    assert not done.complete
    assert world.statuses() == [Status.ASSERTED]
    assert world.engine.outcome(done.transaction) is Outcome.COMMITTED
    world.bring_back()
    world.clock.advance(5_000)
    for finding in check(world.engine.context, grace_ms=0):
        assert isinstance(repair(world.engine.context, finding), Repaired)
    assert (world.value(NEAR), world.value(FAR)) == (b"1", b"1")
    assert world.statuses() == [Status.COMPLETE]


def test_locks_are_held_while_the_table_of_transactions_is_gone() -> None:
    """The unlocks travel with the step to 4, and cannot leave it out as they do a lock's table."""
    world = Tables()
    world.when["clean"] = lambda: world.admin.disable(b"txn")
    done = world.engine.commit(BOTH)
    assert not done.complete
    assert (world.holder(NEAR), world.holder(FAR)) == (done.transaction, done.transaction)
    world.admin.enable(b"txn")
    assert world.statuses() == [Status.PUT]
    (finding,) = check(world.engine.context, grace_ms=0)
    assert repair(world.engine.context, finding) == Repaired("rolled forward")
    assert (world.holder(NEAR), world.holder(FAR)) == (b"", b"")
    assert world.statuses() == [Status.COMPLETE]


def test_of_a_batch_only_those_wait_that_need_the_table() -> None:
    world = Tables()
    world.when["decide"] = world.disable
    results = world.engine.commit_many(
        [
            (BOTH, []),
            ([Mutation(Y, b"1")], []),
            ([Mutation(Y, b"2"), Mutation(Z, b"2")], []),
            ([Mutation(Y, b"3"), Mutation(FAR, b"3")], []),
        ]
    )
    complete = [isinstance(result, Committed) and result.complete for result in results]
    assert complete == [False, True, True, False]
    assert isinstance(results[0], Committed)
    assert type(results[3]) in (ConflictError, AbortedError, DeadlineError)
    assert "disabled" in str(results[3])
    assert (world.value(Y), world.value(Z)) == (b"2", b"2")


def test_the_finisher_goes_on_with_the_others(caplog: pytest.LogCaptureFixture) -> None:
    world = Tables()
    world.when["decide"] = world.disable
    world.engine.commit(BOTH, ack="decided")
    world.engine.commit([Mutation(Y, b"1")], ack="decided")
    world.engine.flush()
    assert sorted(map(str, world.statuses())) == ["2-ASSERTED", "5-COMPLETE"]
    assert "roll forward of 1 left to others" in caplog.text


def test_an_error_of_ours_does_not_hide_a_commit(caplog: pytest.LogCaptureFixture) -> None:
    world = Tables()

    def fail(edits: object, *, durable: bool) -> None:
        raise KeyError("a mistake of ours")

    world.faults.write = fail  # type: ignore[method-assign]
    assert not world.engine.commit(BOTH).complete
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("phase", ["lock", "decide", "put"])
def test_a_watch_that_fails_changes_nothing(phase: str, caplog: pytest.LogCaptureFixture) -> None:
    world = Tables()

    def fail() -> None:
        raise KeyError("a watch that raises")

    world.when[phase] = fail  # type: ignore[index]
    assert world.engine.commit(BOTH).complete
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "a watch that raises" in caplog.text


def test_what_was_undone_together_is_not_told_as_complete() -> None:
    world = Tables()

    def undone(work: Callable[[], None]) -> None:
        work()
        raise MaybeApplied("the disk is full")

    world.faults.atomically = undone  # type: ignore[method-assign]
    assert not world.engine.commit(BOTH).complete


@GONE
def test_whoever_meets_the_holder_is_told_of_its_own_key(gone: Callable[[Tables], None]) -> None:
    world = Tables()
    world.when["decide"] = lambda: gone(world)
    holder = world.engine.commit(BOTH).transaction
    with pytest.raises((ConflictError, DeadlineError)) as caught:
        world.client(seed=2).commit([Mutation(NEAR, b"2")])
    assert (caught.value.facts["key"], caught.value.facts["holder"]) == (NEAR, holder)
    assert str(holder) in str(caught.value)
    assert "other" in str(caught.value)
    assert isinstance(caught.value.__cause__, TableUnavailable)
    assert world.holder(NEAR) == holder


def test_a_reader_that_needs_nothing_of_the_table_is_answered() -> None:
    world = Tables()
    world.left_decided()
    reader = world.client(seed=2)
    assert reader.read([NEAR])[NEAR].value == b"1"  # type: ignore[union-attr]
    assert [row.cells[NEAR].value for row in reader.scan()] == [b"1"]
    with pytest.raises(TableUnavailable, match="disabled"):
        reader.read([FAR])


def test_a_holder_whose_server_does_not_answer_is_in_the_way() -> None:
    world = Tables()
    holder = world.left_decided()
    world.bring_back()

    def plan(call: Call) -> Fault:
        lost = call.method == "write" and any(item.key.table == OTHER for item in call.items)  # type: ignore[union-attr]
        return Fault(frozenset(), Reply.MAYBE_APPLIED) if lost else Fault()

    world.faults.plan = plan
    other = world.client(world.faults, seed=2)
    with pytest.raises((ConflictError, DeadlineError), match="the reply was lost") as caught:
        other.commit([Mutation(NEAR, b"2")])
    assert (caught.value.facts["key"], caught.value.facts["holder"]) == (NEAR, holder)
    with pytest.raises(StoreClosedError):
        world.faults.plan = closed_at_writes
        other.commit([Mutation(NEAR, b"2")])


def closed_at_writes(call: Call) -> Fault:
    if call.method == "write":
        raise StoreClosedError("the store is closed")
    return Fault()


def test_of_many_holders_that_stay_the_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "REMEMBERED", 1)
    world = Tables()
    for key in (X, Y):
        world.when["decide"] = world.disable
        world.engine.commit([Mutation(key, b"1"), Mutation(key._replace(table=OTHER), b"1")])
        world.bring_back()
    world.disable()
    other = world.client(seed=2)
    for key in (X, Y):
        with pytest.raises((ConflictError, DeadlineError), match="disabled"):
            other.commit([Mutation(key, b"2")])
    assert len(other._backend._resolver._stuck) == 1


def test_an_undecided_holder_is_released_without_the_table() -> None:
    world = Tables()
    world.faults.plan = lambda call: STOP if steps(call, Status.LOCKED) else Fault()
    with pytest.raises(Crash):
        world.engine.commit(BOTH)
    world.disable()
    other = world.client(seed=2)
    assert other.commit([Mutation(NEAR, b"2")]).complete
    assert Status.ABORTED in world.statuses()
    assert not {Status.WRITTEN, Status.LOCKED, Status.ABORTING} & set(world.statuses())
    world.bring_back()
    assert other.commit([Mutation(FAR, b"2")]).complete


@pytest.mark.parametrize("phase", ["lock started", "lock"])
@GONE
def test_before_the_decision_those_that_need_the_table_abort(
    gone: Callable[[Tables], None], phase: str
) -> None:
    world = Tables()
    world.when[phase] = lambda: gone(world)
    began_ms = world.clock.monotonic_ms()
    results = world.engine.commit_many([(BOTH, []), ([Mutation(Y, b"1")], [])])
    assert type(results[0]) is AbortedError
    assert "table=b'other'" in str(results[0])
    assert isinstance(results[1], Committed) and results[1].complete
    assert world.clock.monotonic_ms() == began_ms
    assert (world.value(NEAR), world.holder(NEAR)) == (None, b"")
    # A local store undoes the whole call that the table refuses, the row with its locks.
    aborted = ["7-ABORTED"] if phase == "lock" else []
    assert sorted(map(str, world.statuses())) == ["5-COMPLETE", *aborted]


def test_a_row_whose_write_took_long_is_given_up_though_a_table_went_meanwhile() -> None:
    """The request that the table refused may have written the row again, after the row had been
    aborted and deleted. A client that saw it aborted may still be about to free its locks."""
    world = Tables()
    world.policy = replace(POLICY, deadline_ms=2 * WRITTEN_WITHIN_MS)
    engine = world.client(world.faults)
    writes: list[Call] = []

    def plan(call: Call) -> Fault:
        if not any(is_step(item, Status.WRITTEN) for item in call.items):
            return Fault()
        writes.append(call)
        if len(writes) == 2:
            world.disable()
            world.clock.advance(WRITTEN_WITHIN_MS + 1)
        return Fault(reply=Reply.MAYBE_APPLIED) if len(writes) == 1 else Fault()

    world.faults.plan = plan
    far, near = engine.commit_many([([Mutation(FAR, b"1")], []), ([Mutation(NEAR, b"1")], [])])
    assert type(far) is AbortedError
    assert isinstance(near, Committed) and world.value(NEAR) == b"1"
    assert near.transaction not in {
        item.key.row for item in writes[0].items if isinstance(item, Check)
    }


@GONE
@pytest.mark.parametrize("applied", [(0,), (1,), (0, 1)], ids=["row", "lock", "both"])
def test_a_row_that_was_written_beside_a_lock_that_was_refused_is_aborted(
    gone: Callable[[Tables], None], applied: tuple[int, ...]
) -> None:
    world = Tables()

    def plan(call: Call) -> Fault:
        if steps(call, Status.WRITTEN) and world.admin.find(OTHER) is not None:
            checks = [item for item in call.items if isinstance(item, Check)]
            world.store.check_and_put([checks[i] for i in applied])
            gone(world)
        return Fault()

    world.faults.plan = plan
    with pytest.raises(AbortedError, match="table=b'other'"):
        world.engine.commit(BOTH)
    assert world.holder(NEAR) == b""
    assert world.statuses() == ([Status.ABORTED] if 0 in applied else [])


@pytest.mark.parametrize(("before", "phase"), [("lock started", "lock"), ("decide", "put")])
def test_a_phase_that_a_table_stops_counts_those_that_need_it_alone(
    before: str, phase: str
) -> None:
    world = Tables()
    world.when[before] = world.disable
    world.engine.commit_many([(BOTH, []), ([Mutation(Y, b"1")], []), ([Mutation(Z, b"1")], [])])
    ended = [e for e in world.events if isinstance(e, Phase) and e.outcome != "started"]
    told = [(e.outcome, e.transactions, e.failed) for e in ended if e.name == phase]
    assert told == [("failed", 1, 1), ("done", 2, 0)]


def test_a_table_that_was_dropped_is_told_at_the_door_from_then_on() -> None:
    world = Tables()
    world.engine.commit(BOTH)
    world.drop()
    assert list(world.engine.scan()) != []
    with pytest.raises(AbortedError):
        world.engine.commit(BOTH)
    count = len(world.rows())
    with pytest.raises(InvalidRequestError, match="no such table"):
        world.engine.commit(BOTH)
    assert len(world.rows()) == count
    world.bring_back()
    assert world.engine.commit(BOTH).complete


def test_a_table_that_is_gone_when_keys_in_demand_are_looked_at_aborts() -> None:
    world = Tables()
    world.engine._backend._contention._since_ms[FAR] = world.clock.monotonic_ms()
    world.disable()
    results = world.engine.commit_many([(BOTH, []), ([Mutation(Y, b"1")], [])])
    assert [type(result) for result in results] == [AbortedError, Committed]


def test_a_scanned_range_of_a_table_that_is_gone_aborts() -> None:
    world = Tables()
    world.when["lock"] = world.disable
    with pytest.raises(AbortedError, match="disabled"), world.engine.transaction() as t:
        assert t.scan(OTHER) == []
        t.put(NEAR, "1")
    assert world.statuses() == [Status.ABORTED]


def test_without_the_transaction_table_nothing_is_committed() -> None:
    world = Tables()
    world.admin.disable(b"txn")
    (result,) = world.engine.commit_many([(BOTH, [])])
    assert isinstance(result, NotApplied) and isinstance(result.__cause__, TableUnavailable)
    world.admin.enable(b"txn")
    assert world.rows() == []


def test_a_store_that_names_a_strange_table_ends_nothing() -> None:
    world = Tables()

    def plan(call: Call) -> Fault:
        if any(isinstance(item, Check) and item.expected.startswith(b"t") for item in call.items):
            raise TableUnavailable("no such table", b"strange")
        return Fault()

    world.faults.plan = plan
    done = world.engine.commit(BOTH)
    assert not done.complete
    assert world.holder(NEAR) == done.transaction


def test_a_decision_that_was_sent_and_refused_by_anything_is_unknown() -> None:
    world = Tables()

    def plan(call: Call) -> Fault:
        if steps(call, Status.ASSERTED):
            raise RuntimeError("a driver that is broken")
        return Fault()

    world.faults.plan = plan
    with pytest.raises(CommitOutcomeUnknown) as caught:
        world.engine.commit(BOTH)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_the_transaction_table_may_go_at_the_decision() -> None:
    world = Tables()
    world.when["assert"] = lambda: world.admin.disable(b"txn")
    with pytest.raises(CommitOutcomeUnknown) as caught:
        world.engine.commit(BOTH)
    world.admin.enable(b"txn")
    assert world.engine.outcome(caught.value.transaction) is Outcome.UNDECIDED


@GONE
def test_fsck_leaves_it_says_how_to_end_it_and_goes_on(gone: Callable[[Tables], None]) -> None:
    world = Tables()
    world.when["decide"] = lambda: gone(world)
    world.engine.commit(BOTH)
    stopped_at(world, Status.ASSERTED, Y)
    context = world.engine.context
    results = [repair(context, finding) for finding in check(context, grace_ms=0)]
    assert sorted(type(result).__name__ for result in results) == ["LeftAlone", "Repaired"]
    (left,) = (result for result in results if isinstance(result, LeftAlone))
    assert "table=b'other'" in left.why and "make it again" in left.why
    world.bring_back()
    (again,) = check(context, grace_ms=0)
    assert isinstance(repair(context, again), Repaired)
    assert (world.value(NEAR), world.value(FAR)) == (b"1", b"1")


def steps(call: Call, status: Status) -> bool:
    return any(is_step(item, status) for item in call.items)
