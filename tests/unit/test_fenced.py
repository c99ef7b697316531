"""The fenced protocol: what it asks for, whom it waits for, and what it makes of what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from tests.unit.worlds import (
    POLICY,
    TABLE,
    World,
    X,
    Y,
    Z,
    before,
    plan_before,
    steps_to,
)
from txn.assertions import Assertion, Exact, Not, Or, Some, Version
from txn.client.hot_keys import HotKeyTicket
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    ConflictError,
    CorruptRowError,
    DeadlineError,
)
from txn.model import Check, Delete, Edit, Key, Mutation
from txn.policy import Policy
from txn.protocol import fenced, recovery
from txn.protocol.clocks import FUTURE_MS
from txn.protocol.codec import encode_plan
from txn.protocol.commit import prepare
from txn.protocol.recovery import roll_forward
from txn.protocol.row import FREE, column
from txn.protocol.statuses import Status
from txn.protocol.transaction import PendingCommit, load_transaction
from txn.request import Committed
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply

pytestmark = pytest.mark.usefixtures("rows_for_all")

Match = Callable[[Call], bool]
LOCK = X.row_lock


@pytest.fixture
def world() -> World:
    return fenced_world()


@pytest.fixture
def impatient() -> World:
    return fenced_world(replace(POLICY, attempts=1))


def fenced_world(policy: Policy = POLICY) -> World:
    world = World(policy, protocol="fenced")
    world.engine.commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    return world


def locks(call: Call) -> bool:
    checked = [item for item in call.items if isinstance(item, Check) and not item.puts]
    return any(b"@" in (edit.value or b"") for item in checked for edit in item.edits)


def reads(key: Key) -> Match:
    return lambda call: call.method == "read" and key in call.items


def confirms(call: Call) -> bool:
    return reads(LOCK)(call) and X not in call.items


def other(world: World, *mutations: Mutation | Delete) -> Committed:
    return world.client(seed=len(world.rows()) + 50).commit(mutations)


def dies(world: World, *mutations: Mutation | Delete, decided: bool = False) -> bytes:
    """Let a client die at its decision; return the row key of its transaction."""
    store = FaultyStore(world.store)
    fault = Fault(None if decided else frozenset(), Reply.CRASH)
    store.plan = plan_before(steps_to(Status.ASSERTED), fault=fault)
    known = {row.row_key for row in world.rows()}
    with pytest.raises(Crash):
        world.client(store, seed=len(known) + 200).commit(mutations or [Mutation(X, b"2")])
    (row_key,) = {row.row_key for row in world.rows()} - known
    return row_key


def prepare_alone(world: World, t: PendingCommit, *, patient: bool) -> list[PendingCommit]:
    contention = world.engine._backend._contention  # type: ignore[attr-defined]
    return prepare(world.engine.context, [t], contention, patient)


@pytest.mark.parametrize(
    ("asserted", "calls"), [(Exact(X, b"9"), 1), (Or(Exact(X, b"9"), Exact(Y, b"9")), 2)]
)
def test_a_false_assertion_writes_nothing(world: World, asserted: Assertion, calls: int) -> None:
    before = world.faults.calls
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(Z, b"1")], [asserted])
    assert (world.faults.calls - before, len(world.rows())) == (calls, 1)


def test_a_write_that_loses_a_race_keeps_its_other_locks(impatient: World) -> None:
    before(impatient, locks, lambda: other(impatient, Mutation(X, b"1")))
    impatient.engine.commit([Mutation(X, b"2"), Mutation(Y, b"2")])
    assert [impatient.value(key.row_lock) for key in (X, Y)] == [b"3", b"2"]


def test_a_write_that_loses_every_race_is_a_conflict(impatient: World) -> None:
    before(
        impatient, locks, lambda: other(impatient, Mutation(X, b"1")), times=fenced.MAX_REQUESTS + 1
    )
    with pytest.raises(ConflictError, match="key is locked"):
        impatient.engine.commit([Mutation(X, b"2")])
    assert (impatient.value(X), impatient.holder(X)) == (b"1", FREE)


def test_a_version_that_was_overtaken_before_its_lock_fails(impatient: World) -> None:
    cell = impatient.cell(X)
    before(impatient, locks, lambda: other(impatient, Mutation(X, b"1")))
    with pytest.raises(AssertionFailedError):
        impatient.engine.commit([Mutation(X, b"2")], [Version(X, cell.timestamp if cell else None)])
    assert (impatient.value(X), impatient.holder(X)) == (b"1", FREE)


def test_a_living_holder_is_waited_for_with_nothing_written(world: World) -> None:
    row_key = dies(world)
    began_ms = world.clock.monotonic_ms()
    alone: list[int] = []
    is_held = lambda call: world.holder(X) == row_key  # noqa: E731
    before(world, is_held, lambda: alone.append(len(world.rows())), times=9)
    world.engine.commit([Mutation(X, b"3")])
    assert world.clock.monotonic_ms() >= began_ms + POLICY.lock_ttl_ms
    assert set(alone[:3]) == {2}
    assert world.value(X) == b"3"


@pytest.mark.parametrize("patient", [True, False], ids=["patient", "at once"])
def test_a_holder_that_came_first_is_met_at_the_lock(world: World, patient: bool) -> None:
    t = world.begun(Mutation(X, b"3"))
    before(world, locks, lambda: dies(world))
    live = prepare_alone(world, t, patient=patient)
    if patient:
        assert live == [t]
        assert world.holder(X) == t.row_key
    else:
        assert isinstance(t.failure, ConflictError)
        assert t.failure.facts["holder"] == world.holder(X) != t.row_key


@pytest.mark.parametrize("patient", [True, False], ids=["patient", "at once"])
def test_a_holder_that_has_decided_is_finished_at_the_lock(
    patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery.Resolver, "_is_abandoned", lambda *args: True)
    world = fenced_world()
    t = world.begun(Mutation(X, b"3"))
    before(world, locks, lambda: dies(world, decided=True))
    live = prepare_alone(world, t, patient=patient)
    assert live == [t]
    assert (world.value(X), world.holder(X)) == (b"2", t.row_key)


def test_who_waits_in_order_is_late_at_its_deadline(world: World) -> None:
    t = world.begun(Mutation(X, b"3"))

    def race() -> None:
        other(world, Mutation(X, b"1"))
        world.clock.advance(POLICY.deadline_ms // 2)

    before(world, locks, race, times=9)
    assert prepare_alone(world, t, patient=True) == []
    assert isinstance(t.failure, DeadlineError)


def test_a_finished_transaction_is_not_put_again_by_a_helper_that_comes_late(world: World) -> None:
    row_key = dies(world, decided=True)
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
    impatient: World, number: int, applied: frozenset[int] | None
) -> None:
    impatient.faults.calls = 0
    lost = Fault(applied, Reply.MAYBE_APPLIED)
    impatient.faults.plan = lambda call: lost if call.number == number else Fault()
    impatient.engine.commit(
        [Mutation(X, b"1"), Mutation(Y, b"1")], [Exact(X, b"0"), Exact(Y, b"0")]
    )
    assert [impatient.value(key) for key in (X, Y)] == [b"1", b"1"]
    assert [impatient.value(key.row_lock) for key in (X, Y)] == [b"2", b"2"]
    assert impatient.statuses() == [Status.COMPLETE] * 2


def test_an_attempt_whose_row_took_too_long_frees_the_locks_that_came_with_it() -> None:
    world = fenced_world(replace(POLICY, attempts=1, deadline_ms=10**9, store_patience_ms=10**6))
    slow = lambda: world.clock.advance(fenced.WRITTEN_WITHIN_MS + 1)  # noqa: E731
    slowly, made = plan_before(steps_to(Status.WRITTEN), slow), list[str]()

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


@pytest.mark.parametrize(("match", "left"), [(reads(X), set()), (locks, {Status.ABORTED})])
def test_a_deadline_that_is_over_before_the_decision_gives_all_back(
    world: World, match: Callable[[Call], bool], left: set[Status]
) -> None:
    before(world, match, lambda: world.clock.advance(POLICY.deadline_ms))
    with pytest.raises(DeadlineError, match="before the decision"):
        world.engine.commit([Mutation(X, b"1")])
    assert (world.holder(X), set(world.statuses())) == (FREE, {Status.COMPLETE, *left})


def test_a_deadline_that_is_over_at_the_plan_aborts(world: World) -> None:
    t = world.begun(Mutation(X, b"1"))
    world.clock.advance(POLICY.deadline_ms)
    assert fenced.plan_commits(world.engine.context, [t]) == []
    assert isinstance(t.failure, DeadlineError)


def test_rows_that_change_between_all_looks_end_at_the_deadline(world: World) -> None:
    either = Or(Exact(X, b"9"), Exact(Y, b"9"))

    def change() -> None:
        other(world, Mutation(X, b"1"))
        world.clock.advance(POLICY.deadline_ms // 3)

    before(world, confirms, change, times=9)
    with pytest.raises(DeadlineError, match="before the decision"):
        world.engine.commit([Mutation(Z, b"1")], [either])


def test_an_assertion_of_several_rows_that_has_come_true_commits(world: World) -> None:
    before(world, confirms, lambda: other(world, Mutation(X, b"9")))
    world.engine.commit([Mutation(Z, b"1")], [Or(Exact(X, b"9"), Exact(Y, b"9"))])
    assert world.value(Z) == b"1"


def test_a_cell_of_the_far_future_is_refused(world: World) -> None:
    world.store.write([Edit(X, b"0", world.clock.wall_ms() + FUTURE_MS + 1)])
    with pytest.raises(AbortedError, match=r"future.*key=.*'x'"):
        world.engine.commit([Mutation(X, b"1")])
    assert len(world.rows()) == 1


def test_a_cell_of_the_near_future_is_waited_for_a_little(world: World) -> None:
    at = world.clock.wall_ms() + POLICY.skew_ms * 3 // 4
    world.store.write([Edit(X, b"0", at)])
    began_ms = world.clock.monotonic_ms()
    assert world.engine.commit([Mutation(X, b"1")]).timestamp == at + 1
    assert world.clock.monotonic_ms() == began_ms + 2


def test_an_absent_key_is_asserted_by_its_lock(impatient: World) -> None:
    """There is no value whose version could tell: the lock of its row and family counts."""
    before(impatient, locks, lambda: other(impatient, Mutation(Z, b"1")))
    with pytest.raises(AssertionFailedError):
        impatient.engine.commit([Mutation(X, b"1")], [Not(Some(Z))])
    assert impatient.value(X) == b"0"


def test_who_does_not_wait_goes_past_a_holder_that_is_finished(impatient: World) -> None:
    done = other(impatient, Mutation(Z, b"1")).transaction
    impatient.store.write([Edit(LOCK, b"7@" + done, impatient.clock.wall_ms() + 9)])
    impatient.engine.commit([Mutation(X, b"1")])
    assert (impatient.value(X), impatient.value(LOCK)) == (b"1", b"8")


def test_who_waits_in_order_for_one_that_never_lets_go_is_late() -> None:
    world = fenced_world(replace(POLICY, lock_ttl_ms=60_000))
    t = world.begun(Mutation(X, b"3"))
    before(world, locks, lambda: dies(world))
    assert prepare_alone(world, t, patient=True) == []
    assert isinstance(t.failure, DeadlineError) and t.failure.facts["holder"] == world.holder(X)


def test_a_lock_that_others_take_while_its_holder_is_settled_is_not_asked_for(
    impatient: World,
) -> None:
    """Asked for from the value that was read again, it would be taken from who lives."""
    done = other(impatient, Mutation(Z, b"1")).transaction
    living: list[bytes] = []

    def plan(call: Call) -> Fault:
        if locks(call) and not living:
            impatient.store.write([Edit(LOCK, b"7@" + done, impatient.clock.wall_ms() + 9)])
        elif any(isinstance(item, Check) and item.expected == b"7@" + done for item in call.items):
            impatient.store.check_and_put([item for item in call.items if isinstance(item, Check)])
            living.append(dies(impatient))
        return Fault()

    impatient.faults.plan = plan
    with pytest.raises(ConflictError) as caught:
        impatient.engine.commit([Mutation(X, b"1")])
    assert caught.value.facts["holder"] == impatient.holder(X) == living[0]


def test_a_lock_that_is_refused_and_found_free_is_asked_for_again(impatient: World) -> None:
    free = impatient.cell(LOCK)
    assert free is not None

    def catch_up() -> None:
        impatient.store.write([Edit(LOCK, free.value, free.timestamp + 1)])

    def fall_behind() -> None:
        impatient.store.write([Edit(LOCK, b"7", free.timestamp + 1)])
        before(impatient, reads(LOCK), catch_up)

    before(impatient, locks, fall_behind)
    assert impatient.engine.commit([Mutation(X, b"2"), Mutation(Y, b"2")]).complete
    assert (impatient.value(X), impatient.value(LOCK)) == (b"2", b"2")


def test_a_plan_without_counts_is_left_to_people() -> None:
    world = fenced_world(replace(POLICY, deadline_ms=500))
    row_key = dies(world, decided=True)
    (row,) = (row for row in world.rows() if row.row_key == row_key)
    plan = encode_plan(replace(row.plan, locks=())) if row.plan else b""
    world.store.write([Edit(column(b"txn", row_key, b"plan"), plan, world.clock.wall_ms() + 9)])
    with pytest.raises(AbortedError) as caught:
        world.engine.commit([Mutation(X, b"3")])
    assert isinstance(caught.value.__cause__, CorruptRowError)
    assert (world.value(X), world.holder(X)) == (b"0", row_key)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_block_waits_for_keys_in_demand_before_it_reads_them(
    world: World, is_known: bool
) -> None:
    world.store.check_and_put([Check(LOCK, b"1", ((LOCK, b"2@" + OTHERS),))])
    if is_known:
        world.engine._backend._contention.note_hot([LOCK])  # type: ignore[attr-defined]

    def let_go() -> None:
        free = ((LOCK, b"2"), (X, b"9"))
        world.store.check_and_put([Check(LOCK, b"2@" + OTHERS, free)])

    looks = count(1)
    before(world, lambda call: next(looks) == 2, let_go)
    found = world.engine._backend.read_for_block([X], HotKeyTicket())
    assert (LOCK in found) is is_known
    cell = found[X]
    assert cell is not None and cell.value == b"9"


def test_a_block_keeps_the_lock_of_its_first_read_of_a_row(world: World) -> None:
    """A lock of a later read would hide that what was read first has changed."""
    world.engine.commit([Mutation(X, b"1")])
    with pytest.raises(ConflictError), world.engine.transaction() as t:
        assert t.get(X) == b"1"
        world.engine.commit([Mutation(X, b"2")])
        t.get(Key(X.row, X.family, b"other", X.table))
        t.put(X, b"3")
    assert world.value(X) == b"2"


OTHERS = b"transaction.1700000000000." + b"0" * 32
