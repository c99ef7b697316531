"""Fenced transactions within one region, or one row and family, which have no transaction row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from recovery import convert
from tests.unit.worlds import (
    DOWN,
    LOST,
    TABLE,
    World,
    always,
    before,
    plan_before,
    record_calls,
    steps_to,
    stopped_at,
)
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
    Request,
    Some,
    Version,
)
from txn.assertions import Assertion
from txn.errors import NotApplied
from txn.model import Check, Edit
from txn.protocol.locks import NAMED, Contention, FencedLock, read_lock
from txn.protocol.row import strip_database
from txn.protocol.rowless import _commit
from txn.protocol.statuses import Status
from txn.protocol.transaction import begin_commit
from txn.request import bind_request
from txn.stores.base import put_single_checks
from txn.testing.faulty import NO_FAULT, Call, Fault, Reply

X, Y = Key("x", "d", "a", TABLE), Key("x", "d", "b", TABLE)
FAR, READ = Key("y", "d", "a", TABLE), Key("z", "d", "a", TABLE)
LOCK = X.row_lock
LATE = Fault(frozenset(), Reply.MAYBE_APPLIED, frozenset({0}))


class OneRow(World):
    """A world whose store changes one row at once. also: what its transactions change besides."""

    also: tuple[Mutation, ...] = ()

    def __init__(self, attempts: int = 3) -> None:
        super().__init__(Policy(attempts=attempts, store_patience_ms=10), "fenced", database=None)
        self.engine.read([X])
        self.faults.calls = 0

    def commit(self, *assertions: Assertion) -> Committed:
        return self.engine.commit([Mutation(X, b"1"), *self.also], assertions)

    @property
    def is_half(self) -> bool:
        return any((self.value(m.key) == m.value) is not (self.value(X) == b"1") for m in self.also)

    @property
    def lock(self) -> FencedLock:
        return read_lock(LOCK, self.cell(LOCK))

    def others(self, count: int) -> Callable[[], None]:
        other = self.client(seed=2)

        def commit() -> None:
            for number in range(count):
                other.commit([Mutation(X, b"other %d" % number)])

        return commit


class OneRegion(OneRow):
    also = (Mutation(FAR, b"1"),)

    def __init__(self, attempts: int = 3) -> None:
        super().__init__(attempts)
        self.faults.features |= {"many_row_checks"}

    def split(self) -> None:
        self.faults.put_if_all = partial(put_single_checks, self.faults)  # type: ignore


@pytest.fixture(params=[OneRow, OneRegion])
def world(request: pytest.FixtureRequest) -> OneRow:
    made: OneRow = request.param()
    return made


def locks(call: Call) -> bool:
    return call.method in ("check_and_put", "put_if_all")


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
def test_a_lost_answer_is_settled_by_the_lock(fault: Fault, world: OneRow) -> None:
    before(world, locks, fault=fault)
    done = world.commit()
    assert not world.is_half and not world.rows()
    assert world.lock == FencedLock(1, names=strip_database(done.transaction)[-8:])


@pytest.mark.parametrize("others", [1, NAMED - 1])
def test_a_commit_is_found_behind_others(others: int, world: OneRow) -> None:
    """A gateway has sent it twice: the first has succeeded, others came, the second says no."""
    then = world.others(others)

    def come_between() -> None:
        before(world, lambda call: True, then)

    before(world, locks, come_between, Fault(reply=Reply.MAYBE_APPLIED))
    assert world.commit().complete
    assert world.lock.taken == others + 1
    assert world.value(X) == b"other %d" % (others - 1)


def test_behind_too_many_others_the_outcome_is_unknown(world: OneRow) -> None:
    before(world, locks, world.others(NAMED + 1), LOST)
    with pytest.raises(CommitOutcomeUnknown):
        world.commit()


def test_one_whose_assertion_others_make_false_fails(world: OneRow) -> None:
    world.engine.commit([Mutation(X, b"0")])
    before(world, locks, world.others(1))
    with pytest.raises(AssertionFailedError):
        world.commit(Exact(X, "0"))
    assert world.value(X) == b"other 0" and world.value(FAR) is None


def test_others_that_are_always_faster_are_a_conflict(world: OneRow) -> None:
    before(world, locks, world.others(1), times=99)
    with pytest.raises(ConflictError, match="always faster"):
        world.commit()
    assert world.value(X) == b"other 0" and world.value(FAR) is None


@pytest.mark.parametrize(("fault", "error"), [(DOWN, NotApplied), (LOST, CommitOutcomeUnknown)])
def test_what_a_store_that_fails_has_done_is_told(
    fault: Fault, error: type[Exception], world: OneRow
) -> None:
    always(world, locks, fault)
    with pytest.raises(error):
        world.commit()
    assert world.value(X) is None


@pytest.mark.parametrize("fault", [DOWN, LOST])
def test_a_no_to_what_was_sent_twice_is_no_proof(fault: Fault, world: OneRow) -> None:
    """The first sending was carried out, and nobody can look: it was called `NotApplied`."""
    before(world, locks, lambda: always(world, lambda call: True, fault), Fault(twice=True))
    with pytest.raises(CommitOutcomeUnknown):
        world.commit()
    assert world.value(X) == b"1" and not world.is_half


def test_what_may_have_been_sent_is_settled_after_its_deadline(world: OneRow) -> None:
    before(world, locks, lambda: world.clock.advance(9), LOST)
    assert world.engine.commit([Mutation(X, b"1"), *world.also], deadline_ms=8).complete


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


def test_several_units_of_a_region_make_two_calls_and_no_row() -> None:
    world = OneRegion()
    calls = record_calls(world)
    done = world.commit(~Some(READ))
    assert [call.method for call in calls] == ["read", "put_if_all"] and not world.rows()
    cells = world.store.read([X, FAR, LOCK, FAR.row_lock, READ.row_lock])
    assert [cells[key] for key in (X, FAR)] == [Cell(b"1", done.timestamp)] * 2
    named = Cell(b"1 " + strip_database(done.transaction)[-8:], done.timestamp + 1)
    assert cells[LOCK] == cells[FAR.row_lock] == named
    assert cells[READ.row_lock] is None


def test_a_region_takes_any_number_of_transactions_that_assert_one_key() -> None:
    world = OneRegion()
    world.engine.commit([Mutation(READ, b"1")])
    requests = [([Mutation(Key(f"k{n}", "d", "a", TABLE), b"1")], [Some(READ)]) for n in range(9)]
    calls = record_calls(world)
    done = world.engine.commit_many(requests)
    assert all(isinstance(each, Committed) for each in done) and not world.rows()
    assert [len(call.items) for call in calls if locks(call)] == [9]


def test_a_false_assertion_over_several_units_fails_at_the_second_read() -> None:
    world = OneRegion()
    calls = record_calls(world)
    with pytest.raises(AssertionFailedError):
        world.commit(Some(READ) | Some(Y))
    assert [call.method for call in calls] == ["read", "read"]


def test_others_change_what_it_only_asserts() -> None:
    """It reads again, and its assertions hold still; or they do not."""
    world = OneRegion()
    put = partial(world.client(seed=2).commit, [Mutation(READ, b"1")])
    before(world, locks, put)
    assert world.commit(Exact(READ, "1") | ~Some(READ)).complete and not world.rows()
    before(world, locks, put)
    with pytest.raises(AssertionFailedError):
        world.commit(Version(READ, world.engine.read([READ])[READ].timestamp))  # type: ignore[union-attr]


@pytest.mark.parametrize("fault", [LOST, Fault(reply=Reply.MAYBE_APPLIED), LATE])
def test_a_region_that_is_split_after_a_lost_answer(fault: Fault) -> None:
    """The lost request is fenced off, should it still be under way, unless it took effect. It
    arrives when the ordinary protocol has begun."""
    world = OneRegion()
    split = plan_before(locks, world.split, fault)

    def plan(call: Call) -> Fault:
        if steps_to(Status.WRITTEN)(call) and world.faults.in_flight:
            world.faults.deliver()
        return split(call)

    world.faults.plan = plan
    done = world.commit(~Some(X), ~Some(READ))
    took_effect = fault.applied is None
    assert len(world.rows()) == (not took_effect) and not world.faults.in_flight
    assert world.store.read([X, FAR]) == dict.fromkeys([X, FAR], Cell(b"1", done.timestamp))
    assert world.lock.taken == (1 if took_effect else 2)


def test_a_region_that_is_split_before_anything_was_sent() -> None:
    world = OneRegion()
    before(world, locks, world.split, DOWN)
    assert world.commit().complete
    assert len(world.rows()) == 1 and world.lock.taken == 1


@pytest.mark.parametrize("fault", [NO_FAULT, LOST, DOWN])
def test_what_only_asserts_several_units(fault: Fault) -> None:
    world = OneRegion()
    world.engine.commit([Mutation(X, b"1")])
    lock = world.lock
    before(world, locks, fault=fault)
    assert world.engine.commit([], [Exact(X, "1"), ~Some(FAR)]).complete
    assert world.lock == lock and not world.rows()
    before(world, locks, world.others(1), fault)
    with pytest.raises(AssertionFailedError):
        world.engine.commit([], [Exact(X, "1"), ~Some(FAR)])
    before(world, locks, world.split, LOST)
    assert world.engine.commit([], [Some(X), ~Some(FAR)]).complete and len(world.rows()) == 1


def test_two_locks_that_disagree_were_changed_outside_the_protocol() -> None:
    world = OneRegion()

    def change() -> None:
        before(world, lambda call: True, lambda: world.put(FAR.row_lock, b"1"))
        world.clock.advance(3)

    before(world, locks, change, Fault(reply=Reply.MAYBE_APPLIED))
    with pytest.raises(CommitOutcomeUnknown):
        world.commit()


def test_a_batch_that_a_split_divides_locks_no_key_twice() -> None:
    """Its transactions share keys that they only assert, which the ordinary protocol locks."""
    world = OneRegion(attempts=1)
    world.split()
    y, z = Mutation(FAR, b"1"), Mutation(READ, b"1")
    done = world.engine.commit_many([([y], [~Some(X)]), ([z], [~Some(X)])])
    assert [type(each) for each in done] == [Committed, Committed]


@pytest.mark.parametrize("order", [1, -1])
def test_a_batch_locks_no_key_that_it_validates(order: int) -> None:
    world = OneRegion(attempts=1)
    world.split()
    y, z = Mutation(FAR, b"1"), Mutation(READ, b"1")
    requests = [Request((y,), (~Some(X),), validate=True), Request((z,), (~Some(X),))]
    done = world.engine.commit_many(requests[::order])
    assert [type(each) for each in done] == [Committed, Committed]
