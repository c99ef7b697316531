"""Conflicts: what becomes of somebody else's lock, and of those who wait for it."""

from __future__ import annotations

import pytest

from tests.unit.worlds import (
    POLICY,
    World,
    X,
    after_status,
    ghost,
    is_step,
    step_past_put,
    stopped_at,
)
from txn.assertions import Exact
from txn.errors import DeadlineError
from txn.events import Helped
from txn.host.owner import name_owner
from txn.model import Check, Edit, Mutation
from txn.protocol.recovery import roll_forward
from txn.protocol.row import column, read_rows
from txn.protocol.statuses import Status
from txn.protocol.transaction import load_transaction
from txn.request import Outcome
from txn.testing.faulty import Call, Crash, Fault, Reply


@pytest.mark.parametrize("applied", [None, frozenset()], ids=["1-LOCKED", "0-WRITTEN"])
def test_an_undecided_holder_is_aborted_after_its_lease(applied: frozenset[int] | None) -> None:
    world = World()
    after_status(world, Status.LOCKED, Fault(applied, Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit([Mutation(X, b"2")])
    began = world.clock.monotonic_ms()
    world.client(seed=2).commit([Mutation(X, b"3")])
    assert world.clock.monotonic_ms() - began >= POLICY.lock_ttl_ms
    assert world.value(X) == b"3"
    assert set(world.statuses()) == {Status.ABORTED, Status.COMPLETE}


@pytest.mark.parametrize("status", [Status.ASSERTED, Status.PUT, Status.CLEANING])
def test_a_decided_holder_is_finished_by_whoever_waits(status: Status) -> None:
    world = World()
    holder = stopped_at(world, status)
    world.engine.commit([Mutation(X, b"3")], [Exact(X, b"2")])
    assert world.value(X) == b"3"
    assert world.engine.outcome(holder) is Outcome.COMMITTED
    (helped,) = [event for event in world.events if isinstance(event, Helped)]
    assert (helped, helped.owner) == (Helped(holder, "rolled forward"), name_owner())


def test_an_aborting_holder_is_released_after_a_moment() -> None:
    """Its owner is most likely at it. Nobody waits for a lease."""
    world = World()
    world.put(X, b"1")
    after_status(world, Status.ABORTING, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit([Mutation(X, b"2")], [Exact(X, b"0")])
    began = world.clock.monotonic_ms()
    world.client(seed=2).commit([Mutation(X, b"3")])
    assert POLICY.courtesy_ms <= world.clock.monotonic_ms() - began < POLICY.lock_ttl_ms


def test_a_late_lock_of_a_finished_transaction_is_freed() -> None:
    world = World()
    holder = ghost(world, Status.COMPLETE)
    began = world.clock.monotonic_ms()
    world.client(seed=2).commit([Mutation(X, b"3")])
    assert world.clock.monotonic_ms() == began
    (helped,) = [event for event in world.events if isinstance(event, Helped)]
    assert helped == Helped(holder, "freed")


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
    world = World()
    holder = stopped_at(world, Status.ASSERTED)
    world.store.write([Edit(column(b"txn", holder, b"plan"), b"junk", world.clock.wall_ms())])
    with pytest.raises(DeadlineError, match=holder.decode()):
        world.client(seed=2).commit([Mutation(X, b"3")])
    assert world.holder(X) == holder


def test_an_undecided_row_that_does_not_decode_is_aborted() -> None:
    world = World()
    holder = stopped_at(world, Status.LOCKED)
    world.store.write([Edit(column(b"txn", holder, b"buffer"), b"junk", world.clock.wall_ms())])
    world.client(seed=2).commit([Mutation(X, b"3")])
    assert world.value(X) == b"3"
    assert world.engine.outcome(holder) is Outcome.ABORTED


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


@pytest.mark.parametrize("early", [False, True])
def test_a_slow_attempt_aborts_at_its_deadline(early: bool) -> None:
    world = World()
    world.faults.reads_early = lambda: early

    def slow(call: Call) -> Fault:
        if call.method == "read":
            world.clock.advance(POLICY.deadline_ms + 1)
        return Fault()

    world.faults.plan = slow
    with pytest.raises(DeadlineError, match="before the decision"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value(X) is None and world.holder(X) == b""


def test_a_helper_that_is_overtaken_cleans_up_what_it_put() -> None:
    """Its put brings the tags back after somebody else has finished the transaction."""
    world = World()
    holder = stopped_at(world, Status.ASSERTED)
    is_outdated: list[Call] = []

    def finish_first(call: Call) -> Fault:
        if call.method == "write" and not is_outdated:
            is_outdated.append(call)
            other = world.client(seed=3).context
            roll_forward(other, [load_transaction(other, read_rows(other, [holder])[holder])])
        return Fault()

    helper = world.client(world.faults, seed=2).context
    world.faults.plan = finish_first
    roll_forward(helper, [load_transaction(helper, read_rows(helper, [holder])[holder])])
    assert is_outdated
    assert world.value(X.tag) == b""
    assert world.holder(X) == b""


def test_a_helper_may_step_past_3_put_meanwhile() -> None:
    """It is of a version that left 3-PUT out. No lock is freed while the row is at 2-ASSERTED."""
    world = World()
    before: list[Status | None] = []

    def older(call: Call) -> Fault:
        for item in call.items:
            if isinstance(item, Check) and is_step(item, Status.PUT):
                step_past_put(world, item.key.row)
                before.extend(world.statuses())
            elif isinstance(item, Check) and item.key == X.lock and item.expected:
                before.extend(world.statuses())
        return Fault()

    world.faults.plan = older
    world.engine.commit([Mutation(X, b"2")])
    assert before == [Status.CLEANING, Status.CLEANING]
    assert world.statuses() == [Status.COMPLETE]
    assert world.holder(X) == world.value(X.tag) == b""
