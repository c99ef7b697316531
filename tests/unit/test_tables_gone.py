"""A table that is disabled or dropped while transactions are at work with it, at each point."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Literal

import pytest

from recovery import LeftAlone, Repaired, check, repair
from tests.unit.worlds import POLICY, World, X, Y, Z, after_status, is_step, stopped_at
from txn.client.local import LocalBackend
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
    """Two tables. when: what their operator does after a phase, or when it "started"."""

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

    def list_ended(self, phase: str) -> list[tuple[str, int, int]]:
        """What was told of a phase at its end: its outcome, and how many it was of."""
        told = [e for e in self.events if isinstance(e, Phase) and e.name == phase]
        return [(e.outcome, e.transactions, e.failed) for e in told if e.outcome != "started"]


GONE = pytest.mark.parametrize("gone", [Tables.disable, Tables.drop])


@GONE
@pytest.mark.parametrize("ack", ["complete", "decided"])
def test_a_decided_transaction_is_told_as_committed_and_waits(
    gone: Callable[[Tables], None],
    ack: Literal["complete", "decided"],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Told as failed, it would be sent again, and happen twice."""
    world = Tables()
    world.when["decide"] = lambda: gone(world)
    done = world.engine.commit(BOTH, ack=ack)
    assert world.engine.commit([Mutation(Y, b"1")], ack=ack).timestamp
    world.engine.flush()
    assert not done.complete
    assert sorted(map(str, world.statuses())) == ["2-ASSERTED", "5-COMPLETE"]
    assert "roll forward of 1 left to others" in caplog.text
    assert world.engine.outcome(done.transaction) is Outcome.COMMITTED

    other = world.client(seed=2)
    with pytest.raises((ConflictError, DeadlineError)) as caught:
        other.commit([Mutation(NEAR, b"2")])
    facts = caught.value.facts
    assert (facts["key"], facts["holder"]) == (NEAR, done.transaction)
    assert str(done.transaction) in str(caught.value) and "other" in str(caught.value)
    assert isinstance(caught.value.__cause__, TableUnavailable)
    assert world.holder(NEAR) == done.transaction
    assert other.read([NEAR])[NEAR].value == b"1"  # type: ignore[union-attr]
    assert [row.cells[row_key].value for row in other.scan() for row_key in row.cells] == [b"1"] * 2
    with pytest.raises((TableUnavailable, InvalidRequestError), match=r"disabled|no such table"):
        other.read([FAR])

    stopped_at(world, Status.ASSERTED, Z)
    context = world.engine.context
    results = [repair(context, finding) for finding in check(context, grace_ms=0)]
    assert sorted(type(result).__name__ for result in results) == ["LeftAlone", "Repaired"]
    (left,) = (result for result in results if isinstance(result, LeftAlone))
    assert "table=b'other'" in left.why and "make it again" in left.why
    world.bring_back()
    (again,) = check(context, grace_ms=0)
    assert isinstance(repair(context, again), Repaired)
    assert (world.value(NEAR), world.value(FAR)) == (b"1", b"1")
    assert set(world.statuses()) == {Status.COMPLETE, Status.ABORTED}


@pytest.mark.parametrize("kind", ["a mistake of ours", "a strange table", "undone together"])
def test_nothing_is_raised_after_the_decision(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    world = Tables()

    def fail(edits: object, **options: object) -> None:
        raise KeyError("a mistake of ours")

    def undo(work: Callable[[], None]) -> None:
        work()
        raise MaybeApplied("the disk is full")

    def refuse(call: Call) -> Fault:
        checks = [item for item in call.items if isinstance(item, Check)]
        if any((check.expected or b"").startswith(b"t") for check in checks):
            raise TableUnavailable("no such table", b"strange")
        return Fault()

    if kind == "a mistake of ours":
        world.faults.write = fail  # type: ignore[method-assign]
    elif kind == "undone together":
        world.faults.atomically = undo  # type: ignore[method-assign]
    else:
        world.faults.plan = refuse
    done = world.engine.commit(BOTH)
    assert not done.complete
    if kind == "a mistake of ours":
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
    if kind == "a strange table":  # else its locks would be asked for, and not freed, for ever
        assert world.holder(NEAR) == done.transaction


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
    assert world.list_ended("put")[:2] == [("failed", 1, 1), ("done", 1, 0)]
    assert (world.value(Y), world.value(Z)) == (b"2", b"2")


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

    def close(call: Call) -> Fault:
        if call.method == "write":
            raise StoreClosedError("the store is closed")
        return Fault()

    world.faults.plan = close
    with pytest.raises(StoreClosedError):
        other.commit([Mutation(NEAR, b"2")])


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
    assert isinstance(other._backend, LocalBackend)
    assert len(other._backend._resolver._stuck) == 1


def test_an_undecided_holder_is_released_without_the_table() -> None:
    """It has put nothing there; its lock in that table is a ghost when the table comes back."""
    world = Tables()
    after_status(world, Status.LOCKED, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit(BOTH)
    world.disable()
    other = world.client(seed=2)
    assert other.commit([Mutation(NEAR, b"2")]).complete
    assert set(world.statuses()) == {Status.COMPLETE, Status.ABORTED}
    world.bring_back()
    assert other.commit([Mutation(FAR, b"2")]).complete


@pytest.mark.parametrize(
    ("phase", "gone"),
    [
        ("keys in demand", Tables.disable),
        *product(["lock started", "lock"], [Tables.disable, Tables.drop]),
    ],
)
def test_before_the_decision_those_that_need_the_table_abort(
    gone: Callable[[Tables], None], phase: str
) -> None:
    world = Tables()
    if phase == "keys in demand":
        assert isinstance(world.engine._backend, LocalBackend)
        world.engine._backend._contention._since_ms[FAR] = world.clock.monotonic_ms()
        gone(world)
    else:
        world.when[phase] = lambda: gone(world)
    began_ms = world.clock.monotonic_ms()
    results = world.engine.commit_many([(BOTH, []), ([Mutation(Y, b"1")], [])])
    assert type(results[0]) is AbortedError
    assert "table=b'other'" in str(results[0])
    assert isinstance(results[1], Committed) and results[1].complete
    assert world.clock.monotonic_ms() == began_ms
    if phase == "lock started":
        assert world.list_ended("lock") == [("failed", 1, 1), ("done", 1, 0)]
    assert (world.value(NEAR), world.holder(NEAR)) == (None, b"")
    # A local store undoes the whole call that the table refuses, the row with its locks.
    aborted = ["7-ABORTED"] if phase == "lock" else []
    assert sorted(map(str, world.statuses())) == ["5-COMPLETE", *aborted]


def test_a_row_whose_write_took_long_is_given_up_though_a_table_went_meanwhile() -> None:
    """The request that was refused may have written the row again, after it had been deleted."""
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
        is_first = any(is_step(item, Status.WRITTEN) for item in call.items)
        if is_first and world.admin.find(OTHER) is not None:
            checks = [item for item in call.items if isinstance(item, Check)]
            world.store.check_and_put([checks[i] for i in applied])
            gone(world)
        return Fault()

    world.faults.plan = plan
    with pytest.raises(AbortedError, match="table=b'other'"):
        world.engine.commit(BOTH)
    assert world.holder(NEAR) == b""
    assert world.statuses() == ([Status.ABORTED] if 0 in applied else [])


def test_a_scanned_range_of_a_table_that_is_gone_aborts() -> None:
    world = Tables()
    world.when["lock"] = world.disable
    with pytest.raises(AbortedError, match="disabled"), world.engine.transaction() as t:
        assert t.scan(OTHER) == []
        t.put(NEAR, "1")
    assert world.statuses() == [Status.ABORTED]


def test_a_decision_that_was_sent_and_refused_by_anything_is_unknown() -> None:
    world = Tables()

    def plan(call: Call) -> Fault:
        if any(is_step(item, Status.ASSERTED) for item in call.items):
            raise RuntimeError("a driver that is broken")
        return Fault()

    world.faults.plan = plan
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit(BOTH)


@pytest.mark.parametrize("phase", ["before", "assert"])
def test_the_transaction_table_may_go(phase: str) -> None:
    """No transaction has it among its keys: it is the store that fails."""
    world = Tables()
    if phase == "before":
        world.admin.disable(b"txn")
    else:
        world.when[phase] = lambda: world.admin.disable(b"txn")
    (result,) = world.engine.commit_many([(BOTH, [])])
    world.admin.enable(b"txn")
    if phase == "before":
        assert isinstance(result, NotApplied) and isinstance(result.__cause__, TableUnavailable)
        assert world.rows() == []
    else:
        assert isinstance(result, CommitOutcomeUnknown)
        assert world.engine.outcome(result.transaction) is Outcome.UNDECIDED
