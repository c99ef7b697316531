"""Fenced transactions of one row and family, which have no transaction row."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from txn import (
    AssertionFailedError,
    Cell,
    CommitOutcomeUnknown,
    Committed,
    ConflictError,
    DeadlineError,
    Delete,
    Engine,
    Exact,
    Key,
    Mutation,
    Outcome,
    Policy,
    StoreError,
)
from txn.clock import ManualClock
from txn.errors import NotApplied
from txn.model import Check, Edit, Family
from txn.protocol.locks import NAMED, Contention, FencedLock, read_lock
from txn.protocol.row import strip_database
from txn.protocol.single_row import commit_single_rows
from txn.protocol.transaction import begin_commit
from txn.request import bind_request
from txn.stores import open_store
from txn.testing.faulty import NO_FAULT, Call, Crash, Fault, FaultyStore, Reply

TABLE = b"data"
X, Y = Key("x", "d", "a", TABLE), Key("x", "d", "b", TABLE)
FAR = Key("y", "d", "a", TABLE)
LOCK = X.row_lock
POLICY = Policy(attempts=3, deadline_ms=5_000, store_patience_ms=10)
NOTHING = frozenset[int]()


class World:
    """A store, a clock, and clients of the fenced protocol."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = open_store("memory://", self.clock)
        self.store.ensure_table(TABLE, {b"d": Family()})
        self.faults = FaultyStore(self.store)
        self.engine = self.client(self.faults)
        self.engine.read([X])
        self.faults.calls = 0

    def client(self, store: FaultyStore, seed: int = 1) -> Engine:
        return Engine(
            store,
            table=TABLE,
            policy=POLICY,
            clock=self.clock,
            rng=Random(seed),
            protocol="fenced",
        )

    @property
    def lock(self) -> FencedLock:
        return read_lock(LOCK, self.store.read([LOCK])[LOCK])

    def value(self, key: Key = X) -> bytes | None:
        cell = self.store.read([key])[key]
        return cell and cell.value

    def others(self, count: int) -> Callable[[], None]:
        """Return what lets another client commit to X so many times."""
        other = self.client(FaultyStore(self.store), seed=2)

        def commit() -> None:
            for number in range(count):
                other.commit([Mutation(X, b"other %d" % number)])

        return commit


def before_the_step(world: World, work: Callable[[], None], fault: Fault = NO_FAULT) -> None:
    """Do this once, before the first checked write, which then has the fault."""
    seen: list[Call] = []

    def plan(call: Call) -> Fault:
        if call.method != "check_and_put" or seen:
            return Fault()
        seen.append(call)
        work()
        return fault

    world.faults.plan = plan


def test_it_makes_two_calls_and_no_row() -> None:
    world = World()
    done = world.engine.commit(
        [Mutation(X, b"1"), Mutation(Y, b"1")], [Exact(X, "1") | ~Exact(X, "1")]
    )
    assert world.faults.calls == 2
    assert done.complete and world.value(Y) == b"1"
    assert world.store.read([X])[X] == Cell(b"1", done.timestamp)
    assert world.lock == FencedLock(1, names=strip_database(done.transaction)[-8:])
    assert world.engine.outcome(done.transaction) is Outcome.UNKNOWN


def test_deletes_and_puts_go_together() -> None:
    world = World()
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    world.engine.commit([Delete(X), Mutation(Y, b"2")], [Exact(X, "1")])
    assert (world.value(), world.value(Y)) == (None, b"2")
    assert world.lock.taken == 2


def test_what_only_asserts_is_done_when_it_is_read() -> None:
    world = World()
    world.engine.commit([Mutation(X, b"1")])
    before = world.lock
    world.faults.calls = 0
    assert world.engine.commit([], [Exact(X, "1")]).complete
    assert world.faults.calls == 1 and world.lock == before
    with pytest.raises(AssertionFailedError):
        world.engine.commit([], [Exact(X, "2")])


def test_a_label_or_a_token_needs_a_row() -> None:
    world = World()
    labelled = world.engine.commit([Mutation(X, b"1")], labels={"why": "test"})
    assert world.engine.outcome(labelled.transaction) is Outcome.COMMITTED
    first = world.engine.commit([Mutation(X, b"2")], once="token")
    assert world.engine.commit([Mutation(X, b"2")], once="token") == Committed(
        first.transaction, first.timestamp, repeated=True
    )


@pytest.mark.parametrize("applied", [None, NOTHING])
def test_a_lost_answer_is_settled_by_the_lock(applied: frozenset[int] | None) -> None:
    world = World()
    lost = Fault(applied=applied, reply=Reply.MAYBE_APPLIED)
    before_the_step(world, lambda: None, lost)
    done = world.engine.commit([Mutation(X, b"1")])
    assert world.lock == FencedLock(1, names=strip_database(done.transaction)[-8:])


@pytest.mark.parametrize("others", [1, NAMED - 1])
def test_a_commit_is_found_behind_others(others: int) -> None:
    """A gateway has sent it twice: the first has succeeded, others came, the second says no."""
    world = World()
    then = world.others(others)
    sent: list[Call] = []

    def plan(call: Call) -> Fault:
        if call.method == "check_and_put" and not sent:
            sent.append(call)
            return Fault(reply=Reply.MAYBE_APPLIED)
        if sent and len(sent) == 1:
            sent.append(call)
            then()
        return Fault()

    world.faults.plan = plan
    assert world.engine.commit([Mutation(X, b"1")]).complete
    assert world.lock.taken == others + 1
    assert world.value() == b"other %d" % (others - 1)


def test_behind_too_many_others_the_outcome_is_unknown() -> None:
    world = World()
    then = world.others(NAMED + 1)
    before_the_step(world, then, Fault(applied=NOTHING, reply=Reply.MAYBE_APPLIED))
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit([Mutation(X, b"1")])


def test_one_that_others_overtake_goes_on_with_what_is_there() -> None:
    world = World()
    before_the_step(world, world.others(2))
    done = world.engine.commit([Mutation(X, b"1")])
    assert world.value() == b"1" and world.lock.taken == 3
    cell = world.store.read([X])[X]
    assert cell is not None and cell.timestamp == done.timestamp


def test_one_whose_assertion_others_make_false_fails() -> None:
    world = World()
    world.engine.commit([Mutation(X, b"0")])
    before_the_step(world, world.others(1))
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Exact(X, "0")])
    assert world.value() == b"other 0"


def test_others_that_are_always_faster_are_a_conflict() -> None:
    world = World()
    then = world.others(1)
    world.faults.plan = lambda call: (then() if call.method == "check_and_put" else None) or Fault()
    with pytest.raises(ConflictError, match="always faster"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value() == b"other 0"


def test_where_the_store_refuses_nothing_has_happened() -> None:
    world = World()
    refused = Fault(applied=NOTHING, reply=Reply.NOT_APPLIED)
    world.faults.plan = lambda call: refused if call.method == "check_and_put" else Fault()
    with pytest.raises(StoreError, match="refused"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value() is None


def test_where_the_store_does_not_answer_the_outcome_is_unknown() -> None:
    world = World()
    lost = Fault(applied=NOTHING, reply=Reply.MAYBE_APPLIED)
    world.faults.plan = lambda call: lost if call.method == "check_and_put" else Fault()
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit([Mutation(X, b"1")])


def test_a_no_that_cannot_be_looked_into_is_unknown() -> None:
    world = World()
    world.engine.commit([Mutation(X, b"0")])
    seen: list[Call] = []
    before_the_step(world, world.others(1))
    first = world.faults.plan

    def plan(call: Call) -> Fault:
        if call.method == "check_and_put":
            seen.append(call)
        return Fault(reply=Reply.MAYBE_APPLIED) if seen and call.method == "read" else first(call)

    world.faults.plan = plan
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value() == b"other 0"


@pytest.mark.parametrize("lost", [Reply.NOT_APPLIED, Reply.MAYBE_APPLIED])
def test_a_no_to_what_was_sent_twice_is_no_proof(lost: Reply) -> None:
    """The first sending was carried out, and nobody can look: it was called `NotApplied`."""
    world = World()
    sent: list[Call] = []

    def plan(call: Call) -> Fault:
        if sent:
            return Fault(NOTHING, lost)
        if call.method == "check_and_put":
            sent.append(call)
            return Fault(twice=True)
        return Fault()

    world.faults.plan = plan
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value() == b"1"


def test_it_is_not_asked_for_after_the_deadline() -> None:
    world = World()
    world.faults.plan = lambda call: world.clock.advance(600) or Fault()
    with pytest.raises(DeadlineError):
        world.engine.commit([Mutation(X, b"1")], deadline_ms=500)
    assert world.value() is None


def test_one_whose_time_is_over_is_not_asked_for() -> None:
    context = World().engine.context
    t = begin_commit(context, bind_request([Mutation(X, b"1")], table=TABLE), 0)
    commit_single_rows(context, [t], Contention(context, lambda holders: set()), False)
    assert isinstance(t.failure, DeadlineError)


def test_a_holder_that_cannot_be_looked_at_leaves_nothing_written() -> None:
    """The commit was refused, so the store's error is a definite one."""
    world = World()
    stopped = FaultyStore(world.store)
    stopped.plan = lambda call: (
        Fault(NOTHING, Reply.CRASH) if is_decision(call) else Fault()  # its locks stay
    )

    def stop() -> None:
        with pytest.raises(Crash):
            world.client(stopped, seed=3).commit([Mutation(X, b"2"), Mutation(FAR, b"2")])
        reads = iter(range(9))
        world.faults.plan = lambda call: (
            Fault(NOTHING, Reply.MAYBE_APPLIED)
            if call.method == "read" and next(reads) > 0
            else Fault()
        )

    before_the_step(world, stop)
    with pytest.raises(NotApplied, match="nothing was committed"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value() is None


def is_decision(call: Call) -> bool:
    return any(
        isinstance(item, Check) and any(edit.value == b"2-ASSERTED" for edit in item.edits)
        for item in call.items
    )


def test_an_answer_that_nobody_believes_is_asked_for_again() -> None:
    world = World()
    inner, asked = world.faults.check_and_put, []

    def refuse_once(checks: list[Check], *, durable: bool = True) -> list[bool]:
        asked.append(checks)
        return [False] if len(asked) == 1 else inner(checks, durable=durable)

    world.faults.check_and_put = refuse_once  # type: ignore[method-assign,assignment]
    assert world.engine.commit([Mutation(X, b"1")]).complete
    assert len(asked) == 2 and asked[0] == asked[1]


def test_it_goes_with_others_in_a_batch() -> None:
    world = World()
    requests = [([Mutation(X, b"1")], []), ([Mutation(FAR, b"1")], [Exact(FAR, "0")])]
    far = Key("z", "d", "a", TABLE)
    requests.append(([Mutation(far, b"1"), Mutation(far._replace(row=b"zz"), b"1")], []))
    first, second, third = world.engine.commit_many(requests)
    assert isinstance(first, Committed) and isinstance(third, Committed)
    assert isinstance(second, AssertionFailedError)
    assert world.engine.outcome(third.transaction) is Outcome.COMMITTED


def test_it_waits_for_who_holds_the_lock() -> None:
    world = World()
    dying = FaultyStore(world.store)
    holder = world.client(dying, seed=3)
    holder.read([X])
    decided = dying.calls + 3  # after the read, and the row with the locks
    dying.plan = lambda call: Fault(reply=Reply.CRASH) if call.number == decided else Fault()
    with pytest.raises(Crash):
        holder.commit([Mutation(X, b"2"), Mutation(FAR, b"2")])
    assert world.lock.holder
    world.engine.commit([Mutation(X, b"3")])
    assert world.value() == b"3" and world.value(FAR) == b"2"
    assert world.lock.taken == 2


def test_names_are_carried_by_transactions_that_have_a_row() -> None:
    """Else what came before them could not be told any more."""
    world = World()
    alone = world.engine.commit([Mutation(X, b"1")])
    world.engine.commit([Mutation(X, b"2"), Mutation(FAR, b"2")])
    assert world.lock == FencedLock(2, names=b"-," + strip_database(alone.transaction)[-8:])
    assert world.lock.was_taken_by(alone.transaction, 1) is True
    assert world.lock.was_taken_by(alone.transaction, 2) is False
    world.store.write([Edit(LOCK, world.lock.take(b"transaction.1"), 10**15)])
    assert world.lock.was_taken_by(alone.transaction, 1) is True
    assert world.lock.was_taken_by(alone.transaction, 2) is False
