"""Fenced transactions of one row and family, which have no transaction row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from recovery import convert
from tests.unit.worlds import DOWN, LOST, TABLE, World, always, before, stopped_at
from txn import (
    AssertionFailedError,
    Cell,
    CommitOutcomeUnknown,
    Committed,
    ConflictError,
    DeadlineError,
    Exact,
    Key,
    Mutation,
    Outcome,
    Policy,
)
from txn.errors import NotApplied
from txn.model import Check, Edit
from txn.protocol.locks import NAMED, Contention, FencedLock, read_lock
from txn.protocol.row import strip_database
from txn.protocol.rowless import _commit
from txn.protocol.statuses import Status
from txn.protocol.transaction import begin_commit
from txn.request import bind_request
from txn.testing.faulty import Call, Fault, Reply

X, Y = Key("x", "d", "a", TABLE), Key("x", "d", "b", TABLE)
FAR = Key("y", "d", "a", TABLE)
LOCK = X.row_lock


class OneRow(World):
    def __init__(self) -> None:
        super().__init__(Policy(attempts=3, store_patience_ms=10), "fenced", database=None)
        self.engine.read([X])
        self.faults.calls = 0

    @property
    def lock(self) -> FencedLock:
        return read_lock(LOCK, self.cell(LOCK))

    def others(self, count: int) -> Callable[[], None]:
        other = self.client(seed=2)

        def commit() -> None:
            for number in range(count):
                other.commit([Mutation(X, b"other %d" % number)])

        return commit


def locks(call: Call) -> bool:
    return call.method == "check_and_put"


def test_it_makes_two_calls_and_no_row() -> None:
    world = OneRow()
    done = world.engine.commit(
        [Mutation(X, b"1"), Mutation(Y, b"1")], [Exact(X, "1") | ~Exact(X, "1")]
    )
    assert world.faults.calls == 2
    assert done.complete and world.value(Y) == b"1"
    assert world.store.read([X])[X] == Cell(b"1", done.timestamp)
    assert world.lock == FencedLock(1, names=strip_database(done.transaction)[-8:])
    assert world.engine.outcome(done.transaction) is Outcome.UNKNOWN


def test_it_makes_a_row_where_the_database_keeps_all_rows() -> None:
    world = OneRow()
    world.clock.advance(10)
    convert(world.engine.context, "fenced", rows="always")
    done = world.client().commit([Mutation(X, b"1")])
    assert [row.row_key for row in world.rows()] == [done.transaction]
    assert world.engine.outcome(done.transaction) is Outcome.COMMITTED


def test_what_only_asserts_is_done_when_it_is_read() -> None:
    world = OneRow()
    world.engine.commit([Mutation(X, b"1")])
    before = world.lock
    world.faults.calls = 0
    assert world.engine.commit([], [Exact(X, "1")]).complete
    assert world.faults.calls == 1 and world.lock == before
    with pytest.raises(AssertionFailedError):
        world.engine.commit([], [Exact(X, "2")])


def test_a_label_or_a_token_needs_a_row() -> None:
    world = OneRow()
    labelled = world.engine.commit([Mutation(X, b"1")], labels={"why": "test"})
    assert world.engine.outcome(labelled.transaction) is Outcome.COMMITTED
    first = world.engine.commit([Mutation(X, b"2")], once="token")
    assert world.engine.commit([Mutation(X, b"2")], once="token") == Committed(
        first.transaction, first.timestamp, repeated=True
    )


@pytest.mark.parametrize("fault", [LOST, Fault(reply=Reply.MAYBE_APPLIED)])
def test_a_lost_answer_is_settled_by_the_lock(fault: Fault) -> None:
    world = OneRow()
    before(world, locks, fault=fault)
    done = world.engine.commit([Mutation(X, b"1")])
    assert world.lock == FencedLock(1, names=strip_database(done.transaction)[-8:])


@pytest.mark.parametrize("others", [1, NAMED - 1])
def test_a_commit_is_found_behind_others(others: int) -> None:
    """A gateway has sent it twice: the first has succeeded, others came, the second says no."""
    world = OneRow()
    then = world.others(others)

    def come_between() -> None:
        before(world, lambda call: True, then)

    before(world, locks, come_between, Fault(reply=Reply.MAYBE_APPLIED))
    assert world.engine.commit([Mutation(X, b"1")]).complete
    assert world.lock.taken == others + 1
    assert world.value(X) == b"other %d" % (others - 1)


def test_behind_too_many_others_the_outcome_is_unknown() -> None:
    world = OneRow()
    before(world, locks, world.others(NAMED + 1), LOST)
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit([Mutation(X, b"1")])


def test_one_whose_assertion_others_make_false_fails() -> None:
    world = OneRow()
    world.engine.commit([Mutation(X, b"0")])
    before(world, locks, world.others(1))
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Exact(X, "0")])
    assert world.value(X) == b"other 0"


def test_others_that_are_always_faster_are_a_conflict() -> None:
    world = OneRow()
    before(world, locks, world.others(1), times=99)
    with pytest.raises(ConflictError, match="always faster"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value(X) == b"other 0"


@pytest.mark.parametrize(("fault", "error"), [(DOWN, NotApplied), (LOST, CommitOutcomeUnknown)])
def test_what_a_store_that_fails_has_done_is_told(fault: Fault, error: type[Exception]) -> None:
    world = OneRow()
    always(world, locks, fault)
    with pytest.raises(error):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value(X) is None


@pytest.mark.parametrize("fault", [DOWN, LOST])
def test_a_no_to_what_was_sent_twice_is_no_proof(fault: Fault) -> None:
    """The first sending was carried out, and nobody can look: it was called `NotApplied`."""
    world = OneRow()
    before(world, locks, lambda: always(world, lambda call: True, fault), Fault(twice=True))
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value(X) == b"1"


def test_one_whose_time_is_over_is_not_asked_for() -> None:
    context = OneRow().engine.context
    t = begin_commit(context, bind_request([Mutation(X, b"1")], table=TABLE), 0)
    _commit(context, [t], Contention(context, lambda holders: set()), False, [])
    assert isinstance(t.failure, DeadlineError)


def test_a_holder_that_cannot_be_looked_at_leaves_nothing_written() -> None:
    world = OneRow()

    def stop() -> None:
        lost = Fault(frozenset(), Reply.CRASH)
        stopped_at(world, Status.ASSERTED, X, fault=lost, also=[Mutation(FAR, b"2")])
        reads = iter(range(9))
        always(world, lambda call: call.method == "read" and next(reads) > 0, LOST)

    before(world, locks, stop)
    with pytest.raises(NotApplied, match="nothing was committed"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value(X) is None


def test_an_answer_that_nobody_believes_is_asked_for_again() -> None:
    world = OneRow()
    inner, asked = world.faults.check_and_put, []

    def refuse_once(checks: list[Check], *, durable: bool = True) -> list[bool]:
        asked.append(checks)
        return [False] if len(asked) == 1 else inner(checks, durable=durable)

    world.faults.check_and_put = refuse_once  # type: ignore[method-assign,assignment]
    assert world.engine.commit([Mutation(X, b"1")]).complete
    assert len(asked) == 2 and asked[0] == asked[1]


def test_names_are_carried_by_transactions_that_have_a_row() -> None:
    world = OneRow()
    alone = world.engine.commit([Mutation(X, b"1")])
    world.engine.commit([Mutation(X, b"2"), Mutation(FAR, b"2")])
    assert world.lock == FencedLock(2, names=b"-," + strip_database(alone.transaction)[-8:])
    assert world.lock.was_taken_by(alone.transaction, 1) is True
    assert world.lock.was_taken_by(alone.transaction, 2) is False
    world.store.write([Edit(LOCK, world.lock.take(b"transaction.1"), 10**15)])
    assert world.lock.was_taken_by(alone.transaction, 1) is True
    assert world.lock.was_taken_by(alone.transaction, 2) is False
