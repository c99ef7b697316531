"""The commit path: what each phase leaves behind, and what its failures are reported as."""

from __future__ import annotations

import pytest

from tests.unit.worlds import POLICY, TABLE, World, X, Y, Z
from txn.assertions import Exact, Not, Some, Version
from txn.codec import FAMILY, Plan, column, encode_plan, status_key
from txn.engine import Committed, Outcome
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    DeadlineError,
    InvalidRequestError,
    MaybeApplied,
    StoreError,
)
from txn.model import Cell, Check, Delete, Edit, Family, Key, Mutation
from txn.phases import Status
from txn.protocol import lock_at_once, lock_in_order, write
from txn.resolve import Resolver, read_rows
from txn.steps import from_row
from txn.stores.faulty import Call, Crash, Fault, Reply
from txn.watch import Conflict, Helped, Phase


def after_status(world: World, status: Status, fault: Fault) -> None:
    """Let the next call that writes this status have the fault, once."""
    seen: list[Call] = []

    def plan(call: Call) -> Fault:
        wanted = any(
            isinstance(item, Check) and (item.puts[-1][1] == status.value) for item in call.items
        )
        if wanted and not seen:
            seen.append(call)
            return fault
        return Fault()

    world.faults.plan = plan


def stopped_at(world: World, status: Status, key: Key = X, value: bytes = b"2") -> bytes:
    """Let a client die right after its row reached this status; return the row key."""
    client = world.client(world.faults, seed=len(world.rows()) + 100)
    after_status(world, status, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        client.commit([Mutation(key, value)])
    world.faults.crashed = False
    world.faults.plan = lambda call: Fault()
    return world.holder(key)


# ------------------------------------------------------------------------------ it commits


def test_all_cells_get_one_timestamp_and_nothing_stays_locked() -> None:
    """The timestamp is the transaction's; locks and tags are empty when it is over."""
    world = World()
    world.put(Y, b"old")
    done = world.engine.commit([Mutation(X, b"1"), Delete(Y)], [Some(Y)])
    assert world.cell(X) == Cell(b"1", done.timestamp)
    assert world.cell(Y) is None
    for key in (X, Y):
        assert world.holder(key) == b""
        assert world.cell(key.tag) == Cell(b"", done.timestamp)
    assert done.complete and not done.repeated


def test_every_phase_is_in_the_row_with_its_time() -> None:
    """A person must be able to see where the time went."""
    world = World()
    done = world.engine.commit([Mutation(X, b"1")])
    (row,) = world.rows()
    assert (row.row_key, row.status) == (done.transaction, Status.COMPLETE)
    assert list(row.began) == [s for s in Status if s not in (Status.ABORTING, Status.ABORTED)]
    assert list(row.began.values()) == sorted(row.began.values())


def test_an_aborted_row_says_why() -> None:
    """The reason is for people; it names the assertion and what was seen."""
    world = World()
    world.put(X, b"1")
    with pytest.raises(AssertionFailedError) as caught:
        world.engine.commit([Mutation(Y, b"1")], [Some(X), Exact(X, b"2")])
    assert caught.value.assertion == Exact(X, b"2")
    assert caught.value.seen[X].value == b"1"
    (row,) = world.rows()
    assert row.status is Status.ABORTED
    assert row.reason is not None and "Exact" in row.reason and "b'1'" in row.reason
    assert world.value(Y) is None
    assert world.holder(X) == world.holder(Y) == b""


def test_assertions_alone_are_a_transaction() -> None:
    """It proves that all of them held at one instant."""
    world = World()
    world.put(X, b"1")
    assert world.engine.commit([], [Exact(X, b"1"), ~Some(Y)]).complete
    assert world.value(X) == b"1"


def test_the_commit_lies_above_everything_that_was_there() -> None:
    """Or its put would land under an earlier delete, or under a value from a faster clock."""
    world = World()
    first = world.engine.commit([Mutation(X, b"1")])
    world.clock.set_wall_ms(world.clock.wall_ms() - 10_000)
    second = world.engine.commit([Delete(X)])
    third = world.engine.commit([Mutation(X, b"3")])
    assert first.timestamp < second.timestamp < third.timestamp
    assert world.value(X) == b"3"


def test_a_cell_from_the_future_is_refused() -> None:
    """Following it would drag every later commit into the future as well."""
    world = World()
    world.store.write([Edit(X, b"1", world.clock.wall_ms() + POLICY.skew_ms + 5_000)])
    with pytest.raises(AbortedError, match="lies in the future") as caught:
        world.engine.commit([Mutation(X, b"2")])
    assert type(caught.value) is AbortedError
    assert world.statuses() == [Status.ABORTED]


def test_a_cell_that_outruns_the_clock_is_waited_for() -> None:
    """Each commit adds a millisecond, so a hot cell on a fast store would reach the limit."""
    world = World()
    world.store.write([Edit(X, b"1", world.clock.wall_ms() + POLICY.skew_ms - 100)])
    before = world.clock.wall_ms()
    world.engine.commit([Mutation(X, b"2")])
    assert world.clock.wall_ms() > before


def test_versions_are_compared_under_the_locks() -> None:
    """An optimistic client asserts what it has read."""
    world = World()
    first = world.engine.commit([Mutation(X, b"1")])
    world.engine.commit([Mutation(X, b"2")], [Version(X, first.timestamp), Version(Y, None)])
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"3")], [Version(X, first.timestamp)])
    assert world.value(X) == b"2"


# ---------------------------------------------------------------------------- many at once


def test_many_transactions_fail_and_commit_each_for_itself() -> None:
    """One false assertion in a batch is nobody else's business."""
    world = World()
    results = world.engine.commit_many(
        [([Mutation(X, b"1")], []), ([Mutation(Y, b"1")], [Some(Z)]), ([Mutation(Z, b"1")], [])]
    )
    assert isinstance(results[0], Committed)
    assert isinstance(results[1], AssertionFailedError)
    assert isinstance(results[2], Committed)
    assert [world.value(key) for key in (X, Y, Z)] == [b"1", None, b"1"]


def test_transactions_of_a_batch_that_share_a_key_happen_in_order() -> None:
    """A partition of a Spark job may touch one account twice."""
    world = World()
    results = world.engine.commit_many(
        [
            ([Mutation(X, b"1")], [~Some(X)]),
            ([Mutation(X, b"2"), Mutation(Y, b"2")], [Exact(X, b"1")]),
            ([Mutation(Y, b"3")], [Exact(Y, b"2")]),
        ]
    )
    assert [type(result) for result in results] == [Committed] * 3
    assert (world.value(X), world.value(Y)) == (b"2", b"3")


def test_a_batch_with_one_bad_request_writes_nothing() -> None:
    """Bad input is told before anything is written, and which one it is."""
    world = World()
    good, bad = ([Mutation(X, b"1")], []), ([Mutation(Key("a", "d", "x_lock"), b"1")], [])
    for wrong in (bad, [Mutation(X, b"1")], ([],)):
        with pytest.raises(InvalidRequestError, match="request=1"):
            world.engine.commit_many([good, wrong])  # type: ignore[list-item]
    assert world.rows() == []


def test_an_empty_batch_is_no_work() -> None:
    """The last batch of a partition may be empty."""
    world = World()
    assert world.engine.commit_many([]) == []
    assert world.faults.calls == 1  # that which made the transaction table


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (Key("a", "d", "x", "nowhere"), "no such table.*nowhere"),
        (Key("a", "e", "x"), "no such family.*known="),
    ],
)
def test_unknown_tables_and_families_are_named(key: Key, message: str) -> None:
    """Before anything is written, so that nothing is left to repair."""
    world = World()
    with pytest.raises(InvalidRequestError, match=message):
        world.engine.commit([Mutation(X, b"1"), Mutation(key, b"1")])
    with pytest.raises(InvalidRequestError, match=message):
        world.engine.read([key])
    assert world.rows() == []


def test_a_family_with_a_ttl_is_refused() -> None:
    """Its locks would expire under their holders."""
    world = World()
    world.store.ensure_table(b"short", {b"d": Family(ttl_ms=60_000)})
    with pytest.raises(InvalidRequestError, match="TTL"):
        world.engine.commit([Mutation(Key("a", "d", "x", "short"), b"1")])


# ------------------------------------------------------------------------------------ once


def test_a_repeat_answers_with_the_first_result() -> None:
    """Whoever repeats it, and though its own assertion fails by now because of itself."""
    world = World()
    first = world.engine.commit([Mutation(X, b"1")], [~Some(X)], once="job/7")
    again = world.client(seed=2).commit([Mutation(X, b"1")], [~Some(X)], once="job/7")
    assert again == Committed(first.transaction, first.timestamp, repeated=True)
    assert world.value(X) == b"1"


def test_a_failed_assertion_is_no_repeat() -> None:
    """The token is used up by a commit only."""
    world = World()
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Some(Y)], once="job/7")
    world.put(Y, b"1")
    assert not world.engine.commit([Mutation(X, b"1")], [Some(Y)], once="job/7").repeated


def test_one_token_twice_in_a_batch_commits_once() -> None:
    """The marker is a key like any other, and orders the two."""
    world = World()
    request = world.engine._checked([Mutation(X, b"1")], [~Some(X)], once="t")
    first, second = world.engine.commit_many([request, request])
    assert isinstance(first, Committed) and isinstance(second, Committed)
    assert (first.repeated, second.repeated) == (False, True)
    assert first.transaction == second.transaction


# ------------------------------------------------------------------------------- conflicts


@pytest.mark.parametrize("status", [Status.WRITTEN, Status.LOCKED])
def test_an_undecided_holder_is_aborted_after_its_lease(status: Status) -> None:
    """Nobody waits for the dead for longer than that, and not less for the living."""
    world = World()
    stopped_at(world, Status.LOCKED)
    began = world.clock.monotonic_ms()
    world.engine.commit([Mutation(X, b"3")])
    assert world.clock.monotonic_ms() - began >= POLICY.lease_ms
    assert world.value(X) == b"3"
    assert set(world.statuses()) == {Status.ABORTED, Status.COMPLETE}


@pytest.mark.parametrize("status", [Status.ASSERTED, Status.PUT, Status.CLEANING])
def test_a_decided_holder_is_finished_by_whoever_waits(status: Status) -> None:
    """It is committed: its value must be seen by the assertion of whoever comes next."""
    world = World()
    holder = stopped_at(world, status)
    world.engine.commit([Mutation(X, b"3")], [Exact(X, b"2")])
    assert world.value(X) == b"3"
    assert world.engine.outcome(holder) is Outcome.COMMITTED
    assert Helped(holder, "rolled forward") in world.events


def test_an_aborting_holder_is_released_at_once() -> None:
    """Nothing is left to wait for."""
    world = World()
    world.put(X, b"1")
    after_status(world, Status.ABORTING, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit([Mutation(X, b"2")], [Exact(X, b"0")])
    began = world.clock.monotonic_ms()
    world.client(seed=2).commit([Mutation(X, b"3")])
    assert world.clock.monotonic_ms() == began


def ghost(world: World, status: Status | None) -> bytes:
    """A lock that lands after its transaction has finished, or was never there."""
    row_key = b"transaction.1700000000000." + b"0" * 32
    if status is not None:
        row_key = world.engine.commit([Mutation(X, b"2")]).transaction
    world.store.check_and_put([Check(X.lock, b"", ((X.lock, row_key),))])
    return row_key


@pytest.mark.parametrize("status", [None, Status.COMPLETE])
def test_a_late_lock_of_a_finished_transaction_is_freed(status: Status | None) -> None:
    """It can never decide again, so its lock protects nothing."""
    world = World()
    holder = ghost(world, status)
    began = world.clock.monotonic_ms()
    world.client(seed=2).commit([Mutation(X, b"3")])
    assert world.clock.monotonic_ms() == began
    assert Helped(holder, "freed") in world.events


@pytest.mark.parametrize("name", [b"buffer", b"status"])
def test_debris_holds_nothing(name: bytes) -> None:
    """A row without status, or without buffer, is what is left of a deleted one."""
    world = World()
    row_key = ghost(world, None)
    value = Status.LOCKED.value if name == b"status" else b"junk"
    world.store.write([Edit(column(b"txn", row_key, name), value, world.clock.wall_ms())])
    world.client(seed=2).commit([Mutation(X, b"3")])
    assert world.value(X) == b"3"


def test_a_decided_row_that_does_not_decode_keeps_its_locks() -> None:
    """Nobody can know what it decided; freeing its lock would lose half of a commit."""
    world = World()
    holder = stopped_at(world, Status.ASSERTED)
    world.store.write([Edit(column(b"txn", holder, b"plan"), b"junk", world.clock.wall_ms())])
    with pytest.raises(DeadlineError, match=holder.decode()):
        world.client(seed=2).commit([Mutation(X, b"3")])
    assert world.holder(X) == holder


def test_an_undecided_row_that_does_not_decode_is_aborted() -> None:
    """Aborting is always safe, and its locks are freed as they are met."""
    world = World()
    holder = stopped_at(world, Status.LOCKED)
    world.store.write([Edit(column(b"txn", holder, b"buffer"), b"junk", world.clock.wall_ms())])
    world.client(seed=2).commit([Mutation(X, b"3")])
    assert world.value(X) == b"3"
    assert world.engine.outcome(holder) is Outcome.ABORTED


def test_a_conflict_is_told_to_the_watch() -> None:
    """Jobs count conflicts, and their owner sees who is in whose way."""
    world = World()
    holder = stopped_at(world, Status.ASSERTED)
    world.engine.commit([Mutation(X, b"3")])
    conflicts = [event for event in world.events if isinstance(event, Conflict)]
    assert conflicts and {(c.key, c.holder) for c in conflicts} == {(X, holder)}


def test_waiting_ends_at_the_deadline() -> None:
    """A holder that beats for ever must not keep others for ever."""
    world = World()
    holder = stopped_at(world, Status.LOCKED)
    beat = column(b"txn", holder, b"beat")

    def keep_alive(call: Call) -> Fault:
        world.store.write([Edit(beat, b"", world.clock.wall_ms())])
        return Fault()

    other = world.client(world.faults, seed=2)
    world.faults.plan = keep_alive
    began = world.clock.monotonic_ms()
    with pytest.raises(DeadlineError, match="waiting for a lock") as caught:
        other.commit([Mutation(X, b"3")])
    assert caught.value.transaction is not None
    assert world.clock.monotonic_ms() - began < 2 * POLICY.deadline_ms
    assert world.holder(X) == holder


def test_whoever_waits_beats() -> None:
    """Or the next in line takes it for dead, and a hot key ends in endless aborts."""
    world = World()
    stopped_at(world, Status.LOCKED, key=Y)
    waiting = world.client(seed=2)
    waiting.commit([Mutation(X, b"3"), Mutation(Y, b"3")])
    beats = [row.beat for row in world.rows() if row.status is Status.COMPLETE]
    assert max(beats) > 0


def test_a_waiting_owner_that_was_aborted_leaves_and_tries_again() -> None:
    """It sees so when it beats, and releases what it holds."""
    world = World()
    holder = stopped_at(world, Status.LOCKED, key=Y)
    aborted: list[bytes] = []

    def abort_the_waiting(call: Call) -> Fault:
        waiting = [r for r in world.rows() if r.status is Status.WRITTEN and r.row_key != holder]
        if call.method == "write" and waiting and not aborted:  # its first beat
            aborted.append(waiting[-1].row_key)
            key = status_key(b"txn", aborted[0])
            check = Check(key, Status.WRITTEN.value, ((key, Status.ABORTING.value),))
            assert world.store.check_and_put([check]) == [True]
        return Fault()

    world.faults.plan = abort_the_waiting
    world.client(world.faults, seed=2).commit([Mutation(X, b"3"), Mutation(Y, b"3")])
    assert aborted and world.engine.outcome(aborted[0]) is Outcome.ABORTED
    assert (world.value(X), world.value(Y)) == (b"3", b"3")


def test_a_lock_that_goes_between_request_and_look_is_asked_for_again() -> None:
    """A "no" whose lock is free when looked at is nobody's conflict."""
    world = World()
    context = world.engine.context
    t = world.begun(Mutation(X, b"1"))
    write(context, [t])
    world.store.check_and_put([Check(X.lock, b"", ((X.lock, b"somebody"),))])

    def let_go(call: Call) -> Fault:
        if call.method == "read":
            world.store.check_and_put([Check(X.lock, b"somebody", ((X.lock, b""),))])
        return Fault()

    world.faults.plan = let_go
    assert lock_at_once(context, [t], Resolver(context).settle) == [t]
    assert world.holder(X) == t.row_key


def test_in_order_too() -> None:
    """The same while waiting for one lock after the other."""
    world = World()
    context = world.engine.context
    t = world.begun(Mutation(X, b"1"))
    write(context, [t])
    world.store.check_and_put([Check(X.lock, b"", ((X.lock, b"somebody"),))])

    def let_go(call: Call) -> Fault:
        if call.method == "read":
            world.store.check_and_put([Check(X.lock, b"somebody", ((X.lock, b""),))])
        return Fault()

    world.faults.plan = let_go
    assert lock_in_order(context, [t], Resolver(context).settle) == [t]


def test_a_lock_that_is_lost_before_the_look_aborts() -> None:
    """Step 3 trusts no lock that it does not see; a server without its region may answer it."""
    world = World()
    other = b"transaction.1700000000000." + b"0" * 32
    stolen: list[bytes] = []

    def steal(call: Call) -> Fault:
        if call.method == "read" and X.lock in call.items and not stolen:
            stolen.append(world.holder(X))
            world.store.check_and_put([Check(X.lock, stolen[0], ((X.lock, other),))])
        return Fault()

    world.faults.plan = steal
    world.engine.commit([Mutation(X, b"1")])
    assert world.engine.outcome(stolen[0]) is Outcome.ABORTED
    assert world.value(X) == b"1"


def test_a_slow_attempt_aborts_at_its_deadline() -> None:
    """The caller was promised an answer by then; a commit after it would surprise."""
    world = World()

    def slow(call: Call) -> Fault:
        if call.method == "read":
            world.clock.advance(POLICY.deadline_ms + 1)
        return Fault()

    world.faults.plan = slow
    with pytest.raises(DeadlineError, match="before the decision"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value(X) is None and world.holder(X) == b""


# ------------------------------------------------------------------------- lost and late


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
    """A reply that is lost, and a "no" that is the second answer to a success, are read."""
    world = every_write(fault)
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert done.complete
    assert (world.value(X), world.value(Y)) == (b"1", b"1")
    assert world.holder(X) == world.holder(Y) == b""
    assert world.statuses() == [Status.COMPLETE]


@pytest.mark.parametrize("status", [Status.WRITTEN, Status.LOCKED])
def test_a_store_that_fails_before_the_decision_is_its_own_error(status: Status) -> None:
    """Nothing can commit any more; the row is left as a crash would leave it."""
    world = World()
    down = Fault(applied=frozenset(), reply=Reply.MAYBE_APPLIED)
    world.faults.plan = lambda call: (
        down
        if any(isinstance(i, Check) and i.puts[-1][1] == status.value for i in call.items)
        else Fault()
    )
    with pytest.raises(MaybeApplied):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value(X) is None


@pytest.mark.parametrize("applied", [True, False])
def test_a_decision_that_cannot_be_read_is_unknown(applied: bool) -> None:
    """Never "failed": it may have been taken."""
    world = World()
    lost = Fault(applied=None if applied else frozenset(), reply=Reply.MAYBE_APPLIED)

    def plan(call: Call) -> Fault:
        decision = any(
            isinstance(i, Check) and i.puts[-1][1] == Status.ASSERTED.value for i in call.items
        )
        return lost if decision else Fault()

    world.faults.plan = plan
    with pytest.raises(CommitOutcomeUnknown) as caught:
        world.engine.commit([Mutation(X, b"1")])
    assert isinstance(caught.value.__cause__, StoreError)
    expected = Outcome.COMMITTED if applied else Outcome.UNDECIDED
    assert world.client(seed=2).outcome(caught.value.transaction) is expected


def test_a_row_that_vanished_during_the_decision_is_unknown() -> None:
    """It may have been decided, finished by somebody and deleted while the answer was lost."""
    world = World()

    def plan(call: Call) -> Fault:
        for item in call.items:
            if isinstance(item, Check) and item.puts[-1][1] == Status.ASSERTED.value:
                now = world.clock.wall_ms() + 1
                world.store.write([Edit(item.key, None, now)])
        return Fault()

    world.faults.plan = plan
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit([Mutation(X, b"1")])


def test_an_abort_that_comes_before_the_decision_wins() -> None:
    """Exactly one of the two happens, and the caller is told which."""
    world = World()
    aborted: list[bytes] = []

    def abort_first(call: Call) -> Fault:
        for item in call.items:
            decides = isinstance(item, Check) and item.puts[-1][1] == Status.ASSERTED.value
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
    """Whoever is aborted again and again hears of it."""
    world = World()

    def abort_always(call: Call) -> Fault:
        for item in call.items:
            if isinstance(item, Check) and item.puts[-1][1] == Status.ASSERTED.value:
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
            if isinstance(item, Check) and item.puts[-1][1] == Status.LOCKED.value:
                check = Check(item.key, Status.WRITTEN.value, ((item.key, b"7-ABORTED"),))
                world.store.check_and_put([check])
        return Fault()

    world.faults.plan = abort_and_finish
    with pytest.raises(ConflictError, match="before 1-LOCKED"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.holder(X) == b""


def test_a_committed_transaction_is_reported_though_the_store_fails_after() -> None:
    """It is committed; who comes next finishes it."""
    world = World()
    down = Fault(applied=frozenset(), reply=Reply.NOT_APPLIED)
    world.faults.plan = lambda call: (
        down if any(isinstance(i, Edit) for i in call.items) else Fault()
    )
    done = world.engine.commit([Mutation(X, b"1")])
    assert not done.complete
    assert Phase("roll_forward", "failed", 1, 1) in world.events
    world.faults.plan = lambda call: Fault()
    world.clock.advance(POLICY.courtesy_ms)
    assert world.engine.read([X])[X] == Cell(b"1", done.timestamp)
    world.engine.commit([Mutation(X, b"2")], [Exact(X, b"1")])


def test_a_store_that_fails_while_aborting_changes_no_result() -> None:
    """The assertion was false whether or not its locks could be released."""
    world = World()
    down = Fault(applied=frozenset(), reply=Reply.NOT_APPLIED)
    world.faults.plan = lambda call: (
        down
        if any(isinstance(i, Check) and i.puts[-1][1] == b"6-ABORTING" for i in call.items)
        else Fault()
    )
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Some(Y)])
    assert world.statuses() == [Status.LOCKED]


def test_the_phases_are_told_to_the_watch_in_order() -> None:
    """Progress bars and metrics are built on it."""
    world = World()
    world.engine.commit([Mutation(X, b"1")])
    done = [e.name for e in world.events if isinstance(e, Phase) and e.outcome == "done"]
    assert done == ["write", "lock_at_once", "hold", "decide", "put", "clean", "unlock"]


def test_a_phase_that_stops_is_told_to_the_watch() -> None:
    """Also where an exception ends it."""
    world = World()
    after_status(world, Status.LOCKED, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit([Mutation(X, b"1")])
    last = world.events[-1]
    assert isinstance(last, Phase)
    assert (last.name, last.outcome, last.failed) == ("hold", "failed", 1)


def test_a_store_without_multi_cell_checks_gets_no_times() -> None:
    """There each cell of a checked put is a request of its own."""
    world = World()
    world.faults.features = frozenset()
    world.engine.commit([Mutation(X, b"1")])
    assert world.rows()[0].began == {}
    assert world.rows()[0].status is Status.COMPLETE


def test_the_marker_is_asserted_before_all_else() -> None:
    """See `with_marker`; this is what makes a repeat recognisable."""
    world = World()
    world.engine.commit([Mutation(X, b"1")], once="t")
    marker = Key("once.t", FAMILY, "done", "txn")
    (row,) = world.rows()
    assert row.buffer is not None
    assert row.buffer.request.assertions[0] == Not(Some(marker))
    assert world.value(marker) == row.row_key


def test_tables_are_told_apart() -> None:
    """The same row, family and column in two tables are two keys."""
    world = World()
    world.engine.ensure_table("other", ["d"])
    there = X._replace(table=b"other")
    world.engine.commit([Mutation(X, b"1"), Mutation(there, b"2")])
    assert (world.value(X), world.value(there)) == (b"1", b"2")
    assert world.store.describe(TABLE) is not None


def test_a_no_from_a_server_that_is_behind_is_asked_again() -> None:
    """Refused, and yet unchanged when it is read: that settles nothing."""
    world = World()
    behind: list[Key] = []

    def plan(call: Call) -> Fault:
        for item in call.items:
            steps = isinstance(item, Check) and item.puts[-1][1] == Status.LOCKED.value
            if steps and not behind:
                behind.append(item.key)
                world.store.check_and_put([Check(item.key, b"0-WRITTEN", ((item.key, b"?"),))])
        if call.method == "read" and call.items == tuple(behind):
            world.store.check_and_put([Check(behind[0], b"?", ((behind[0], b"0-WRITTEN"),))])
        return Fault()

    world.faults.plan = plan
    assert world.engine.commit([Mutation(X, b"1")]).complete
    assert behind


def test_a_holder_that_decides_while_it_is_aborted_stays_committed() -> None:
    """The two are compare-and-set on one cell: the later one is refused, and sees why."""
    world = World()
    holder = stopped_at(world, Status.LOCKED)
    plan_cell = column(b"txn", holder, b"plan")
    t = from_row(read_rows(world.engine.context, [holder])[holder])
    decided: list[bytes] = []

    def decide_first(call: Call) -> Fault:
        for item in call.items:
            aborts = isinstance(item, Check) and item.puts[-1][1] == Status.ABORTING.value
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
