"""The fenced protocol: what it asks for, whom it waits for, and what it makes of what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.unit.worlds import POLICY, TABLE, World, X, Y, Z
from txn import Engine, Outcome
from txn.assertions import Exact, Not, Or, Some, Version
from txn.client.hot_keys import HotKeyTicket
from txn.clock import ManualClock, poll
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    ConflictError,
    CorruptRowError,
    DeadlineError,
    TableUnavailable,
)
from txn.model import Cell, Check, Delete, Edit, Family, Key, Mutation
from txn.policy import Policy
from txn.protocol import commit as commit_module
from txn.protocol import fenced, recovery
from txn.protocol.clocks import FUTURE_MS
from txn.protocol.codec import encode_plan
from txn.protocol.commit import prepare
from txn.protocol.locks import holder_of, read_lock
from txn.protocol.recovery import roll_forward
from txn.protocol.row import FREE, column
from txn.protocol.statuses import Status
from txn.protocol.transaction import begin_commit, load_transaction
from txn.request import Committed, bind_request
from txn.stores import open_store
from txn.tables.admin import Admin
from txn.testing.counting import CountingStore
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply

pytestmark = pytest.mark.usefixtures("rows_for_all")

Match = Callable[[Call], bool]
LOCK = X.row_lock
LOGS = b"logs"
FAR = Key("zz", "d", "x", LOGS)
CRASH = Fault(reply=Reply.CRASH)
IMPATIENT = replace(POLICY, attempts=1)


def fenced_world(policy: Policy = POLICY) -> World:
    world = World(policy, protocol="fenced")
    world.engine.commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    return world


def edits_of(call: Call) -> list[Edit]:
    checked = [edit for item in call.items if isinstance(item, Check) for edit in item.edits]
    return checked + [item for item in call.items if isinstance(item, Edit)]


def asks_for(status: Status) -> Match:
    """Match the call that brings a row to the status."""
    return lambda call: any(edit.value == status.value for edit in edits_of(call))


def locks(call: Call) -> bool:
    """Match the call that asks for locks."""
    checked = [item for item in call.items if isinstance(item, Check) and not item.puts]
    return any(b"@" in (edit.value or b"") for item in checked for edit in item.edits)


def reads(key: Key) -> Match:
    """Match a read of the key."""
    return lambda call: call.method == "read" and key in call.items


def before(world: World, match: Match, act: Callable[[], object], times: int = 1) -> None:
    """Let something happen before the next calls of the world's engine that match."""
    left = [act] * times

    def plan(call: Call) -> Fault:
        if left and match(call):
            left.pop()()
        return Fault()

    world.faults.plan = plan


def other(world: World, *mutations: Mutation | Delete) -> Committed:
    """Another client commits."""
    return world.client(seed=len(world.rows()) + 50).commit(mutations)


def dies(world: World, match: Match, *mutations: Mutation | Delete, lost: bool = False) -> bytes:
    """Let a client die at a call; return the row key of its transaction."""
    fault = Fault(frozenset(), Reply.CRASH) if lost else CRASH
    store = FaultyStore(world.store, lambda call: fault if match(call) else Fault())
    known = {row.row_key for row in world.rows()}
    with pytest.raises(Crash):
        world.client(store, seed=len(known) + 200).commit(mutations or [Mutation(X, b"2")])
    (row_key,) = {row.row_key for row in world.rows()} - known
    return row_key


def holder(world: World, key: Key = X) -> bytes:
    return holder_of(key.row_lock, world.cell(key.row_lock))


def commit(engine: Engine, *args: object) -> object:
    """Return what became of a transaction, an error too."""
    return engine.commit_many([args])[0]  # type: ignore[list-item]


def counted(requests: int) -> CountingStore:
    store = CountingStore(FaultyStore(open_store("memory://", ManualClock())))
    store.ensure_table(TABLE, {b"d": Family()})
    engine = Engine(store, clock=ManualClock(), rng=Random(1), protocol="fenced")
    rows = [Key(f"row-{i}", "d", "x", TABLE) for i in range(2 * requests)]
    for row in rows:
        engine.commit([Mutation(row, b"0")])
    store.reset()
    results = engine.commit_many(
        ([Mutation(a, b"1"), Mutation(b, b"1")], [Exact(a, b"0")])
        for a, b in zip(rows[::2], rows[1::2], strict=True)
    )
    assert all(isinstance(result, Committed) for result in results)
    return store


@pytest.mark.parametrize("requests", [1, 5])
def test_a_transfer_makes_five_requests_however_many_there_are(requests: int) -> None:
    trace = [call for call in counted(requests).trace if call.items]
    made = [(call.method, len(call.items)) for call in trace]
    assert [method for method, _ in made] == [
        "check_and_read",  # two values, or their timestamps, and two locks
        "check_and_put",  # the row, which compares nothing, and two locks
        "check_and_put",  # the decision
        "write",  # two values, two locks
        "check_and_put",  # 5-COMPLETE, which compares nothing
    ]
    assert [size for _, size in made] == [n * requests for n in (4, 3, 1, 4, 1)]
    row, *locks = (item for item in trace[1].items[: requests + 1] if isinstance(item, Check))
    assert row.expected is None and row.is_deferred
    assert all(lock.expected is not None for lock in locks[requests - 1 :])


def test_columns_of_one_row_share_a_lock() -> None:
    world = fenced_world()
    columns = [X._replace(column=b"c%d" % i) for i in range(12)]
    asked: list[int] = []
    before(world, locks, lambda: asked.append(1), times=9)
    world.engine.commit([Mutation(key, b"1") for key in columns])
    assert asked == [1]
    assert {world.value(key) for key in columns} == {b"1"}
    assert world.value(LOCK) == b"2"


def test_a_false_assertion_writes_nothing() -> None:
    world = fenced_world()
    calls = world.faults.calls
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Exact(X, b"other")])
    assert (world.faults.calls - calls, len(world.rows())) == (1, 1)


def test_a_false_assertion_of_two_rows_costs_a_second_look() -> None:
    world = fenced_world()
    calls = world.faults.calls
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(Z, b"1")], [Or(Exact(X, b"9"), Exact(Y, b"9"))])
    assert (world.faults.calls - calls, len(world.rows())) == (2, 1)


def test_an_overtaken_version_is_told_at_once_though_a_lock_is_held() -> None:
    """Versions only grow: nobody waits for a lock to learn what is known."""
    world = fenced_world()
    old = world.cell(X)
    other(world, Mutation(X, b"1"))
    dies(world, asks_for(Status.ASSERTED), lost=True)
    began_ms, calls = world.clock.monotonic_ms(), world.faults.calls
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"3")], [Version(X, old.timestamp if old else None)])
    assert (world.clock.monotonic_ms(), world.faults.calls) == (began_ms, calls + 1)


def test_a_lock_that_is_refused_and_found_free_is_asked_for_again() -> None:
    """The first request may still be granted, so that the lock may have to be released."""
    world = fenced_world(IMPATIENT)
    free = world.cell(LOCK)
    assert free is not None
    behind: list[Call] = []

    def plan(call: Call) -> Fault:
        if locks(call) and not behind:
            behind.append(call)
            world.store.write([Edit(LOCK, b"7", free.timestamp + 1)])
        elif behind and reads_lock(call):
            world.store.write([Edit(LOCK, free.value, free.timestamp + 1)])
        return Fault()

    def reads_lock(call: Call) -> bool:
        return call.method == "read" and LOCK in call.items

    world.faults.plan = plan
    assert world.engine.commit([Mutation(X, b"2"), Mutation(Y, b"2")]).complete
    assert behind
    assert (world.value(X), world.value(LOCK)) == (b"2", b"2")


def test_a_write_that_loses_a_race_keeps_its_other_locks() -> None:
    world = fenced_world(IMPATIENT)
    before(world, locks, lambda: other(world, Mutation(X, b"1")))
    world.engine.commit([Mutation(X, b"2"), Mutation(Y, b"2")])
    assert [world.value(key.row_lock) for key in (X, Y)] == [b"3", b"2"]


def test_a_write_that_loses_every_race_is_a_conflict() -> None:
    world = fenced_world(IMPATIENT)
    before(world, locks, lambda: other(world, Mutation(X, b"1")), times=fenced.MAX_REQUESTS + 1)
    with pytest.raises(ConflictError, match="key is locked"):
        world.engine.commit([Mutation(X, b"2")])
    assert (world.value(X), holder(world)) == (b"1", FREE)


def test_a_version_that_was_overtaken_before_its_lock_fails() -> None:
    world = fenced_world(IMPATIENT)
    cell = world.cell(X)
    before(world, locks, lambda: other(world, Mutation(X, b"1")))
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"2")], [Version(X, cell.timestamp if cell else None)])
    assert (world.value(X), holder(world)) == (b"1", FREE)


def test_a_commit_lies_above_what_it_reads_again() -> None:
    world = fenced_world(IMPATIENT)

    def come_between() -> None:
        clock = ManualClock(world.clock.wall_ms() + 5000)
        Engine(world.store, table=TABLE, clock=clock, rng=Random(9)).commit([Mutation(X, b"1")])

    before(world, locks, come_between)
    assert world.engine.commit([Mutation(X, b"2")]).timestamp > world.clock.wall_ms() + 5000
    assert world.value(X) == b"2"


def test_who_does_not_wait_fails_on_a_living_holder_and_names_it() -> None:
    world = fenced_world(IMPATIENT)
    row_key = dies(world, asks_for(Status.ASSERTED), lost=True)
    with pytest.raises(ConflictError) as caught:
        world.engine.commit([Mutation(X, b"3")])
    assert caught.value.facts["holder"] == row_key
    assert len(world.rows()) == 2


def test_a_living_holder_is_waited_for_with_nothing_written() -> None:
    world = fenced_world()
    row_key = dies(world, asks_for(Status.ASSERTED), lost=True)
    began_ms = world.clock.monotonic_ms()
    alone: list[int] = []
    before(world, lambda call: holder(world) == row_key, lambda: alone.append(len(world.rows())), 9)
    world.engine.commit([Mutation(X, b"3")])
    assert world.clock.monotonic_ms() >= began_ms + POLICY.lock_ttl_ms
    assert set(alone[:3]) == {2}
    assert world.value(X) == b"3"


def test_a_holder_that_never_lets_go_is_waited_for_until_the_deadline() -> None:
    world = fenced_world(replace(POLICY, lock_ttl_ms=60_000))
    dies(world, asks_for(Status.ASSERTED), lost=True)
    with pytest.raises(DeadlineError):
        world.engine.commit([Mutation(X, b"3")])
    assert len(world.rows()) == 2


@pytest.mark.parametrize("patient", [True, False], ids=["patient", "at once"])
def test_a_holder_that_came_first_is_met_at_the_lock(patient: bool) -> None:
    world = fenced_world()
    t = world.begun(Mutation(X, b"3"))
    contention = world.engine._backend._contention  # type: ignore[attr-defined]
    before(world, locks, lambda: dies(world, asks_for(Status.ASSERTED), lost=True))
    live = prepare(world.engine.context, [t], contention, patient)
    if patient:
        assert live == [t]
        assert holder(world) == t.row_key
    else:
        assert isinstance(t.failure, ConflictError)
        assert t.failure.facts["holder"] == holder(world) != t.row_key


@pytest.mark.parametrize("patient", [True, False], ids=["patient", "at once"])
def test_a_holder_that_has_decided_is_finished_at_the_lock(
    patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery.Resolver, "_is_abandoned", lambda *args: True)
    world = fenced_world()
    t = world.begun(Mutation(X, b"3"))
    contention = world.engine._backend._contention  # type: ignore[attr-defined]
    before(world, locks, lambda: dies(world, asks_for(Status.ASSERTED)))
    live = prepare(world.engine.context, [t], contention, patient)
    assert live == [t]
    assert (world.value(X), holder(world)) == (b"2", t.row_key)


def test_who_waits_in_order_is_late_at_its_deadline() -> None:
    world = fenced_world()
    t = world.begun(Mutation(X, b"3"))
    contention = world.engine._backend._contention  # type: ignore[attr-defined]

    def race() -> None:
        other(world, Mutation(X, b"1"))
        world.clock.advance(POLICY.deadline_ms // 2)

    before(world, locks, race, times=9)
    assert prepare(world.engine.context, [t], contention, True) == []
    assert isinstance(t.failure, DeadlineError)


def test_a_holder_that_died_at_2_is_finished() -> None:
    world = fenced_world()
    row_key = dies(world, asks_for(Status.ASSERTED), Mutation(X, b"2"), Delete(Y))
    assert world.engine.read([X])[X] is not None
    other(world, Mutation(X, b"3"))
    assert world.engine.outcome(row_key.decode()) is Outcome.COMMITTED
    assert (world.value(X), world.value(Y)) == (b"3", None)


def test_a_holder_that_died_at_6_is_released() -> None:
    world = fenced_world()
    row_key = dies(world, asks_for(Status.ASSERTED), lost=True)
    world.clock.advance(2 * POLICY.lock_ttl_ms)
    store = FaultyStore(
        world.store, lambda call: CRASH if asks_for(Status.ABORTING)(call) else Fault()
    )
    with pytest.raises(Crash):
        world.client(store, seed=7).commit([Mutation(X, b"3")])
    assert holder(world) == row_key
    other(world, Mutation(X, b"3"))
    assert world.engine.outcome(row_key.decode()) is Outcome.ABORTED
    assert holder(world) == FREE


def test_a_finished_transaction_is_not_put_again_by_a_helper_that_comes_late() -> None:
    world = fenced_world()
    row_key = dies(world, asks_for(Status.ASSERTED))
    (row,) = (row for row in world.rows() if row.row_key == row_key)
    helper = load_transaction(world.engine.context, row)
    other(world, Delete(X))
    world.store.compact(TABLE, world.clock.wall_ms() + 10)
    roll_forward(world.engine.context, [helper])
    assert world.value(X) is None
    assert helper.status is Status.COMPLETE


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("applied", [None, frozenset()], ids=["applied", "lost"])
def test_a_lost_reply_is_settled_within_the_attempt(
    number: int, applied: frozenset[int] | None
) -> None:
    world = fenced_world(IMPATIENT)
    world.faults.calls = 0
    lost = Fault(applied, Reply.MAYBE_APPLIED)
    world.faults.plan = lambda call: lost if call.number == number else Fault()
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")], [Exact(X, b"0"), Exact(Y, b"0")])
    assert [world.value(key) for key in (X, Y)] == [b"1", b"1"]
    assert [world.value(key.row_lock) for key in (X, Y)] == [b"2", b"2"]
    assert world.statuses() == [Status.COMPLETE] * 2


def test_an_attempt_whose_row_took_too_long_frees_the_locks_that_came_with_it() -> None:
    world = fenced_world(replace(IMPATIENT, deadline_ms=10**9, store_patience_ms=10**6))

    def slow() -> None:
        world.clock.advance(fenced.WRITTEN_WITHIN_MS + 1)

    before(world, asks_for(Status.WRITTEN), slow)
    made: list[str] = []
    slowly = world.faults.plan

    def plan(call: Call) -> Fault:
        made.append(call.method)
        return slowly(call)

    world.faults.plan = plan
    with pytest.raises(ConflictError, match="too long"):
        world.engine.commit([Mutation(X, b"1")])
    # The cells; row and lock; 6; the release of the lock; 7.
    assert made == ["read", *["check_and_put"] * 4]
    assert world.value(LOCK) == b"2"
    assert set(world.statuses()) == {Status.COMPLETE, Status.ABORTED}


def test_a_deadline_that_is_over_after_the_read_leaves_no_row() -> None:
    world = fenced_world()
    before(world, reads(X), lambda: world.clock.advance(POLICY.deadline_ms))
    with pytest.raises(DeadlineError, match="before the decision"):
        world.engine.commit([Mutation(X, b"1")])
    assert len(world.rows()) == 1


def test_a_deadline_that_is_over_after_the_locks_gives_them_back() -> None:
    world = fenced_world()
    before(world, locks, lambda: world.clock.advance(POLICY.deadline_ms))
    with pytest.raises(DeadlineError, match="before the decision"):
        world.engine.commit([Mutation(X, b"1")])
    assert (holder(world), set(world.statuses())) == (FREE, {Status.COMPLETE, Status.ABORTED})


def test_a_deadline_that_is_over_at_the_plan_aborts() -> None:
    world = fenced_world()
    t = world.begun(Mutation(X, b"1"))
    world.clock.advance(POLICY.deadline_ms)
    assert fenced.plan_commits(world.engine.context, [t]) == []
    assert isinstance(t.failure, DeadlineError)


def test_rows_that_change_between_all_looks_end_at_the_deadline() -> None:
    world = fenced_world()
    either = Or(Exact(X, b"9"), Exact(Y, b"9"))

    def change() -> None:
        other(world, Mutation(X, b"1"))
        world.clock.advance(POLICY.deadline_ms // 3)

    confirms = lambda call: reads(LOCK)(call) and X not in call.items  # noqa: E731
    before(world, confirms, change, times=9)
    with pytest.raises(DeadlineError, match="before the decision"):
        world.engine.commit([Mutation(Z, b"1")], [either])


def test_an_assertion_of_several_rows_that_has_come_true_commits() -> None:
    world = fenced_world()
    confirms = lambda call: reads(LOCK)(call) and X not in call.items  # noqa: E731
    before(world, confirms, lambda: other(world, Mutation(X, b"9")))
    world.engine.commit([Mutation(Z, b"1")], [Or(Exact(X, b"9"), Exact(Y, b"9"))])
    assert world.value(Z) == b"1"


def test_a_cell_of_the_far_future_is_refused() -> None:
    world = fenced_world()
    world.store.write([Edit(X, b"0", world.clock.wall_ms() + FUTURE_MS + 1)])
    with pytest.raises(AbortedError, match=r"future.*key=.*'x'"):
        world.engine.commit([Mutation(X, b"1")])
    assert len(world.rows()) == 1


def test_commits_go_above_what_another_clock_has_left_in_the_future() -> None:
    world = fenced_world()
    day_ms, began_ms = 24 * 3_600_000, world.clock.monotonic_ms()
    world.store.write([Edit(X, b"0", world.clock.wall_ms() + day_ms)])
    first = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    second = world.engine.commit([Mutation(Y, b"2"), Mutation(Z, b"2")])
    assert second.timestamp > first.timestamp > world.clock.wall_ms() + day_ms
    assert (world.value(X), world.value(Y)) == (b"1", b"2")
    assert world.clock.monotonic_ms() == began_ms


def test_a_cell_of_the_near_future_is_waited_for_a_little() -> None:
    world = fenced_world()
    at = world.clock.wall_ms() + POLICY.skew_ms * 3 // 4
    world.store.write([Edit(X, b"0", at)])
    began_ms = world.clock.monotonic_ms()
    assert world.engine.commit([Mutation(X, b"1")]).timestamp == at + 1
    assert world.clock.monotonic_ms() == began_ms + 2


def test_a_token_commits_once() -> None:
    world = fenced_world()
    first = world.engine.commit([Mutation(X, b"1")], [Exact(X, b"0")], once="job")
    again = world.engine.commit([Mutation(X, b"1")], [Exact(X, b"0")], once="job")
    assert (again.transaction, again.repeated) == (first.transaction, True)
    assert again.timestamp == first.timestamp


def test_a_token_is_found_out_at_the_lock_too() -> None:
    world = fenced_world()

    def other_copy() -> None:
        world.client(seed=9).commit([Mutation(X, b"1")], [Exact(X, b"0")], once="job")

    before(world, locks, other_copy)
    assert world.engine.commit([Mutation(X, b"1")], [Exact(X, b"0")], once="job").repeated


@pytest.mark.parametrize("waits", [False, True])
def test_a_block_that_scanned_says_so_before_it_looks(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_module, "prepare", lambda *given: prepare(*given[:3], waits))
    world = fenced_world()
    reached: list[set[Status | None]] = []
    looks = lambda call: call.method == "scan" and len(world.rows()) > 1  # noqa: E731
    before(world, looks, lambda: reached.append(set(world.statuses())))
    with world.engine.transaction() as t:
        assert len(list(t.scan(stop="y"))) == 1
        t.put(Z, b"1")
    assert reached == [{Status.COMPLETE, Status.LOCKED if waits else Status.WRITTEN}]
    assert world.value(Z) == b"1"


def gone(world: World) -> Admin:
    """A second table, that can be disabled."""
    world.store.ensure_table(LOGS, {b"d": Family()})
    return Admin(world.store._ordered, world.clock)  # type: ignore[attr-defined]


def test_a_table_that_goes_at_the_locks_leaves_what_was_read_again_evaluated() -> None:
    """The locks are asked for again, with success: a false assertion must fail all the same."""
    world = fenced_world()
    admin = gone(world)
    context, contention = world.engine.context, world.engine._backend._contention  # type: ignore[attr-defined]
    first, second = (
        begin_commit(context, bind_request(*request), POLICY.deadline_ms)
        for request in (([Mutation(X, b"1")], [Exact(X, b"0")]), ([Mutation(FAR, b"1")], []))
    )

    def race() -> None:
        other(world, Mutation(X, b"5"))
        admin.disable(LOGS)

    before(world, locks, race)
    assert prepare(context, [first, second], contention, True) == []
    assert isinstance(first.failure, AssertionFailedError)
    assert isinstance(second.failure.__cause__ if second.failure else None, TableUnavailable)


def test_an_absent_key_is_asserted_by_its_lock() -> None:
    """There is no value whose version could tell: the lock of its row and family counts."""
    world = fenced_world(IMPATIENT)
    before(world, locks, lambda: other(world, Mutation(Z, b"1")))
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Not(Some(Z))])
    assert world.value(X) == b"0"


def test_who_does_not_wait_goes_past_a_holder_that_is_finished() -> None:
    world = fenced_world(IMPATIENT)
    done = other(world, Mutation(Z, b"1")).transaction
    world.store.write([Edit(LOCK, b"7@" + done, world.clock.wall_ms() + 9)])
    world.engine.commit([Mutation(X, b"1")])
    assert (world.value(X), world.value(LOCK)) == (b"1", b"8")


def test_a_lock_that_others_take_while_its_holder_is_settled_is_not_asked_for() -> None:
    """Asked for from the value that was read again, it would be taken from who lives."""
    world = fenced_world(IMPATIENT)
    done = other(world, Mutation(Z, b"1")).transaction
    living: list[bytes] = []

    def plan(call: Call) -> Fault:
        if locks(call) and not living:
            world.store.write([Edit(LOCK, b"7@" + done, world.clock.wall_ms() + 9)])
        elif any(isinstance(item, Check) and item.expected == b"7@" + done for item in call.items):
            world.store.check_and_put([item for item in call.items if isinstance(item, Check)])
            living.append(dies(world, asks_for(Status.ASSERTED), lost=True))
        return Fault()

    world.faults.plan = plan
    with pytest.raises(ConflictError) as caught:
        world.engine.commit([Mutation(X, b"1")])
    assert caught.value.facts["holder"] == holder(world) == living[0]


def test_who_waits_in_order_for_one_that_never_lets_go_is_late() -> None:
    world = fenced_world(replace(POLICY, lock_ttl_ms=60_000))
    t = world.begun(Mutation(X, b"3"))
    contention = world.engine._backend._contention  # type: ignore[attr-defined]
    before(world, locks, lambda: dies(world, asks_for(Status.ASSERTED), lost=True))
    assert prepare(world.engine.context, [t], contention, True) == []
    assert isinstance(t.failure, DeadlineError)
    assert t.failure.facts["holder"] == holder(world)


def test_a_plan_without_counts_is_left_to_people() -> None:
    """As after a conversion that came too early: nobody can know which locks it has."""
    world = fenced_world(replace(POLICY, deadline_ms=500))
    row_key = dies(world, asks_for(Status.ASSERTED))
    (row,) = (row for row in world.rows() if row.row_key == row_key)
    plan = encode_plan(replace(row.plan, locks=())) if row.plan else b""
    world.store.write([Edit(column(b"txn", row_key, b"plan"), plan, world.clock.wall_ms() + 9)])
    result = commit(world.engine, [Mutation(X, b"3")], [])
    assert isinstance(result, AbortedError)
    assert isinstance(result.__cause__, CorruptRowError)
    assert (world.value(X), holder(world)) == (b"0", row_key)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_block_waits_for_keys_in_demand_before_it_reads_them(is_known: bool) -> None:
    world = fenced_world()
    world.store.check_and_put([Check(LOCK, b"1", ((LOCK, b"2@" + OTHERS),))])
    if is_known:
        world.engine._backend._contention.note_hot([LOCK])  # type: ignore[attr-defined]
    looks: list[Call] = []

    def let_go(call: Call) -> Fault:
        looks.append(call)
        if len(looks) == 2:
            free = ((LOCK, b"2"), (X, b"9"))
            world.store.check_and_put([Check(LOCK, b"2@" + OTHERS, free)])
        return Fault()

    world.faults.plan = let_go
    found = world.engine._backend.read_for_block([X], HotKeyTicket())
    assert (LOCK in found) is is_known
    cell = found[X]
    assert cell is not None and cell.value == b"9"


def test_what_a_block_has_read_beside_a_holder_is_read_again() -> None:
    world = fenced_world()
    world.engine.commit([Mutation(X, b"1")])
    before = world.cell(LOCK)
    assert before is not None
    held = read_lock(LOCK, before).take(OTHERS)
    with pytest.raises(ConflictError), world.engine.transaction() as t:
        world.store.check_and_put([Check(LOCK, before.value, ((LOCK, held),))])
        assert t.get(X) == b"1"
        world.clock.advance(1)
        free = read_lock(LOCK, Cell(held, 0)).give_back()
        world.store.check_and_put([Check(LOCK, held, ((LOCK, free), (X, b"2")))])
        t.get(Key(X.row, X.family, b"other", X.table))
        t.put(X, b"3")
    assert world.value(X) == b"2"


def test_a_block_keeps_the_lock_of_its_first_read_of_a_row() -> None:
    """A lock of a later read would hide that what was read first has changed."""
    world = fenced_world()
    world.engine.commit([Mutation(X, b"1")])
    with pytest.raises(ConflictError), world.engine.transaction() as t:
        assert t.get(X) == b"1"
        world.engine.commit([Mutation(X, b"2")])
        t.get(Key(X.row, X.family, b"other", X.table))
        t.put(X, b"3")
    assert world.value(X) == b"2"


OTHERS = b"transaction.1700000000000." + b"0" * 32


def test_a_read_that_meets_a_holder_looks_at_its_row_next() -> None:
    world = fenced_world()
    world.store.check_and_put([Check(LOCK, b"1", ((LOCK, b"2@" + OTHERS),))])
    looks: list[Call] = []
    world.faults.plan = lambda call: looks.append(call) or Fault()
    found = world.engine.read([X, Y])
    assert [cell and cell.value for cell in found.values()] == [b"0", b"0"]
    assert [LOCK in call.items for call in looks] == [True, False, True]


def far_world() -> World:
    """A fenced database whose clients are far from their store."""
    world = World(protocol="fenced")
    world.faults.features |= {"remote_calls"}
    return world


def test_many_rows_are_told_while_others_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txn.client.finisher.COMPLETE_WITHIN_S", 60)
    monkeypatch.setattr("txn.client.finisher.COMPLETED_AT_ONCE", 2)
    world = far_world()
    for value in (b"1", b"2", b"3"):
        world.engine.commit([Mutation(X, value), Mutation(Y, value)], ack="decided")
        assert poll(lambda: not world.holder(X) and not world.holder(Y), 60_000)
    assert poll(lambda: world.statuses().count(Status.COMPLETE) == 2, 60_000)
    world.engine.flush()


def test_a_row_far_away_is_told_within_a_moment() -> None:
    world = far_world()
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert poll(lambda: world.statuses() == [Status.COMPLETE], 60_000)


def test_a_child_leaves_to_its_parent_what_that_has_to_finish() -> None:
    world = far_world()
    finisher = world.engine._backend._finisher  # type: ignore[attr-defined]
    finisher._decided.append(world.begun(Mutation(X, b"1")))
    finisher._released.append(world.begun(Mutation(X, b"1")))
    world.events.clear()
    finisher._start()
    finisher._drain()
    world.engine.flush()
    assert world.rows() == world.events == []
