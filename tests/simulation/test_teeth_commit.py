"""Safeguards of the statuses and the decision, each with and without: the test fails if taking it
out does no harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation.breaking import deliver_all
from tests.simulation.puppets import (
    Puppet,
    asks_for,
    finishes,
    frees,
    lock_without_row,
    plans,
    poisons,
    sleeps,
    when,
)
from tests.simulation.variants import (
    believe,
    decide_as_any_other_call,
    hold_reading_first,
    patch_steps,
    poison_plainly,
    step_compared,
    step_plainly,
)
from tests.simulation.world import POLICY, TRANSACTIONS, World, key
from txn import AbortedError, CommitOutcomeUnknown, Committed, Exact, Mutation, NotApplied
from txn.clock import ManualClock
from txn.model import Check
from txn.protocol import commit as commit_module
from txn.protocol import prepare as prepare_module
from txn.protocol import recovery as recovery_module
from txn.protocol import six_phase as six_phase_module
from txn.protocol import transaction as transaction_module
from txn.protocol.context import Context
from txn.protocol.row import column, status_key
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.protocol.transaction import Transaction
from txn.testing.faulty import NO_FAULT, Call, Crash, Fault, Reply

X, Y = key("x"), key("y")
DAY_MS = 24 * 3_600_000
ADD = [Mutation(X, b"1")], [Exact(X, b"0")]
NONE: frozenset[int] = frozenset()
with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
Patch = pytest.MonkeyPatch


def world_with(value: bytes, protocol: ProtocolName = "six-phase") -> World:
    world = World(protocol=protocol)
    world.engine().commit([Mutation(X, value)])
    return world


def status_of(world: World, row_key: bytes) -> bytes | None:
    name = status_key(TRANSACTIONS, row_key)
    return world.values([name])[name]


class Ahead(ManualClock):
    """A clock that is ahead of the server's, and at another millisecond each time."""

    def __init__(self) -> None:
        super().__init__()
        self.advance(5000)

    def wall_ms(self) -> int:
        self.advance(1)
        return super().wall_ms()


pytestmark = pytest.mark.usefixtures("rows_for_all")


# ------------------------------------------------------------------------ changes of status


@with_and_without
def test_every_change_of_status_compares(rule: bool, monkeypatch: Patch) -> None:
    """The owner's clock is ahead. An aborter's plain 6-ABORTING would lie below the owner's plain
    1-LOCKED and be hidden; T2 takes the released lock, and the owner decides all the same."""
    world = world_with(b"0")
    if not rule:
        patch_steps(monkeypatch, step_plainly, recovery_module)
    owner = Puppet(world, lambda engine: engine.commit_many([ADD])[0], clock=Ahead())
    owner.until(asks_for(Status.ASSERTED))
    aborter = world.engine().context
    t = transaction_module.load_transaction(world.engine().context, world.rows()[-1])
    recovery_module.roll_back(aborter, [t], lambda _: "taken for dead")
    assert isinstance(world.engine().commit_many([ADD])[0], Committed)
    assert isinstance(owner.finish(), AbortedError if rule else Committed)


@with_and_without
def test_a_row_that_was_deleted_stays_deleted(rule: bool, monkeypatch: Patch) -> None:
    """The owner is paused, aborted, and its row is deleted. It wakes. A plain 1-LOCKED on the
    absent row would let it decide without a buffer, which nobody can finish."""
    world = world_with(b"0")
    monkeypatch.setattr(six_phase_module, "assert_under_locks", hold_reading_first)
    if not rule:
        patch_steps(monkeypatch, step_plainly, recovery_module)
    owner = Puppet(
        world,
        lambda engine: engine.commit_many([ADD])[0],
        faults=when(asks_for(Status.ASSERTED), Fault(reply=Reply.CRASH)),
        clock=Ahead(),
    )
    owner.until(asks_for(Status.LOCKED))
    row_key = world.rows()[-1].row_key
    with monkeypatch.context() as patch:
        patch_steps(patch, step_compared, recovery_module)
        world.mend()
        world.collect()
    if rule:
        owner.until(lambda call: call.method == "read")
        assert status_of(world, row_key) is None
        return
    with pytest.raises(Crash):
        owner.finish()
    assert status_of(world, row_key) == Status.ASSERTED.value
    with pytest.raises(AssertionError):
        world.mend()
    assert world.values([X]) == {X: b"0"}, "decided, and nobody can know what"


@with_and_without
def test_a_paused_helper_does_not_bring_a_row_back(rule: bool, monkeypatch: Patch) -> None:
    """A helper is paused before 4-CLEANING until the row is finished and deleted. A plain put would
    bring the row back for good: without a buffer, never again finished."""
    world = world_with(b"0")
    stopped, _ = world.client(when(lambda call: call.method == "write", Fault(NONE, Reply.CRASH)))
    with pytest.raises(Crash):
        stopped.commit(*ADD)
    row_key = world.rows()[-1].row_key
    if not rule:
        patch_steps(monkeypatch, step_plainly, recovery_module)
    helper = Puppet(world, lambda engine: world.mend(engine.context), clock=Ahead())
    helper.until(asks_for(Status.CLEANING))
    with monkeypatch.context() as patch:
        patch_steps(patch, step_compared, recovery_module)
        world.mend()
        world.collect()
    helper.step()
    assert status_of(world, row_key) == (None if rule else Status.CLEANING.value)


@with_and_without
def test_a_row_that_may_have_been_deleted_is_not_used(rule: bool, monkeypatch: Patch) -> None:
    """The owner writes its row, hears no answer and is stopped for a day. The row is aborted by two
    helpers, of whom one is stopped before it frees the locks, and fsck deletes it. The owner sends
    the row again, locks and reads; the helper wakes, and frees the lock for T2."""
    if not rule:
        monkeypatch.setattr(prepare_module, "WRITTEN_WITHIN_MS", 10 * DAY_MS)
    world = world_with(b"0")
    owner = Puppet(
        world,
        lambda engine: engine.commit_many([ADD])[0],
        faults=when(asks_for(Status.WRITTEN), Fault(reply=Reply.MAYBE_APPLIED)),
        policy=replace(POLICY, deadline_ms=10 * DAY_MS, attempts=1),
    )
    owner.until(sleeps)
    helper = Puppet(world, lambda engine: world.mend(engine.context))
    helper.until(frees)
    world.mend()
    world.clock.advance(DAY_MS)
    world.collect()
    owner.until(asks_for(Status.ASSERTED))
    helper.step()
    assert isinstance(world.engine().commit_many([ADD])[0], Committed)
    assert isinstance(owner.finish(), AbortedError if rule else Committed)


@with_and_without
def test_a_row_whose_poison_may_have_been_collected_is_not_used(
    rule: bool, monkeypatch: Patch
) -> None:
    """T1's lock arrives without its row, and T1 is stopped for a day. A helper poisons the row, and
    is stopped before it frees the lock; fsck deletes the poisoned row. T1 sends its row again, and
    has its lock; the helper wakes, and frees the lock for T2."""
    if not rule:
        monkeypatch.setattr(prepare_module, "WRITTEN_WITHIN_MS", 10 * DAY_MS)
    world = world_with(b"0")
    owner = Puppet(
        world,
        lambda engine: engine.commit_many([ADD])[0],
        faults=lock_without_row(),
        policy=replace(POLICY, deadline_ms=10 * DAY_MS, attempts=1),
    )
    owner.until(sleeps)
    helper = Puppet(world, lambda engine: world.mend(engine.context))
    assert helper.until(frees)
    world.clock.advance(DAY_MS)
    world.collect()
    owner.until(asks_for(Status.ASSERTED))
    helper.step()
    assert isinstance(world.engine().commit_many([ADD])[0], Committed)
    assert isinstance(owner.finish(), AbortedError if rule else Committed)


@with_and_without
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_poison_compares(rule: bool, protocol: ProtocolName, monkeypatch: Patch) -> None:
    """T1's lock arrives before its row. T2 meets the lock, finds no row, and is about to poison it;
    T1's row arrives, T1 decides, and dies. Plain poison would hide the decision."""
    if not rule:
        poison_plainly(monkeypatch)
    world = world_with(b"0", protocol)
    stop = when(finishes(X), Fault(NONE, Reply.CRASH))
    first = Puppet(
        world, lambda engine: engine.commit(*ADD), faults=plans(lock_without_row(), stop)
    )
    first.until(sleeps)
    second = Puppet(world, lambda engine: engine.commit_many([ADD])[0])
    assert second.until(poisons)
    with pytest.raises(Crash):
        first.finish()
    second.step()
    if rule:
        world.mend()
        assert world.values([X]) == {X: b"1"}
    else:
        with pytest.raises(AssertionError, match="unreadable"):
            world.mend()


# ------------------------------------------------------------------------------ the decision


@with_and_without
def test_a_no_to_the_decision_is_read_and_not_believed(rule: bool, monkeypatch: Patch) -> None:
    """The first reply was lost and the gateway has sent the request again, which answers "no". A
    client that believes it reports a committed transaction as aborted."""
    if not rule:
        monkeypatch.setattr(commit_module, "decide", believe)
    world = world_with(b"0")
    client, _ = world.client(when(asks_for(Status.ASSERTED), Fault(twice=True)))
    (result,) = client.commit_many([ADD])
    world.mend()
    assert world.values([X]) == {X: b"1"}
    assert isinstance(result, Committed if rule else AbortedError)


@with_and_without
def test_a_lost_decision_is_unknown_and_not_failed(rule: bool, monkeypatch: Patch) -> None:
    """The decision was sent, nothing is answered, the row still says 1-LOCKED; later the request
    lands. A client that has said "failed" has lied."""
    if not rule:
        monkeypatch.setattr(commit_module, "decide", decide_as_any_other_call)
    world = world_with(b"0")
    lost = Fault(NONE, Reply.MAYBE_APPLIED, late=frozenset({0}))
    client, store = world.client(lambda call: lost if asks_for(Status.ASSERTED)(call) else NO_FAULT)
    (result,) = client.commit_many([ADD])
    deliver_all(store)
    world.mend()
    assert world.values([X]) == {X: b"1"}
    assert isinstance(result, CommitOutcomeUnknown if rule else NotApplied)


@with_and_without
def test_the_plan_comes_with_the_decision(rule: bool, monkeypatch: Patch) -> None:
    """The owner dies right after its decision. Without the plan nobody knows at which timestamp to
    put the values, nor whether they were put already."""
    if not rule:
        for module in (commit_module, recovery_module):
            monkeypatch.setattr(module, "column", nowhere)
    world = world_with(b"0")
    client, _ = world.client(when(asks_for(Status.ASSERTED), Fault(reply=Reply.CRASH)))
    with pytest.raises(Crash):
        client.commit(*ADD)
    monkeypatch.undo()
    if rule:
        world.mend()
        assert world.values([X]) == {X: b"1"}
    else:
        with pytest.raises(AssertionError, match="unreadable"):
            world.mend()


def nowhere(table: bytes, row_key: bytes, name: bytes) -> object:
    return column(table, row_key, b"lost" if name == b"plan" else name)


@with_and_without
def test_the_status_is_the_last_cell_of_its_row(rule: bool, monkeypatch: Patch) -> None:
    """Where a checked write carries one cell, the owner may die between two of them: a decision
    that comes before its plan is one that nobody can finish."""
    if not rule:
        make_step = decision_first(transaction_module.make_step)
        monkeypatch.setattr(transaction_module, "make_step", make_step)
    world = World(one_cell=True)
    world.engine().commit([Mutation(X, b"0")])
    plan_or_decision = plans(
        when(asks_for_plan, Fault(reply=Reply.CRASH)),
        when(asks_for(Status.ASSERTED), Fault(reply=Reply.CRASH)),
    )
    client, _ = world.client(plan_or_decision)
    with pytest.raises(Crash):
        client.commit(*ADD)
    monkeypatch.undo()
    if rule:
        world.mend()
        assert world.values([X]) == {X: b"0"}
    else:
        with pytest.raises(AssertionError, match="unreadable"):
            world.mend()


def decision_first(in_order: Callable[..., Check]) -> Callable[..., Check]:
    def check(
        context: Context, t: Transaction, new: Status, cells: transaction_module.Cells
    ) -> Check:
        found = in_order(context, t, new, cells)
        return found._replace(puts=found.puts[::-1]) if new is Status.ASSERTED else found

    return check


def asks_for_plan(call: Call) -> bool:
    return any(
        isinstance(item, Check) and any(key.column == b"plan" for key, _ in item.puts)
        for item in call.items
    )
