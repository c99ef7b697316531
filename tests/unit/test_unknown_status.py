"""A row whose status nobody knows, of a newer version or by mistake: one transaction's trouble."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from recovery import LeftAlone, check, repair
from tests.unit.worlds import World, X, Y, is_step, stopped_at
from txn.errors import CommitOutcomeUnknown, ConflictError, CorruptRowError, DeadlineError
from txn.model import Check, Edit, Mutation
from txn.protocol.row import RowState, status_key
from txn.protocol.statuses import Status
from txn.request import Committed
from txn.testing.faulty import Call, Fault

REQUESTS = [([Mutation(X, b"1")], []), ([Mutation(Y, b"1")], [])]


def spoil(world: World, row_key: bytes) -> None:
    """Give a row a status that nobody knows."""
    world.store.write([Edit(status_key(b"txn", row_key), b"9-NEW", world.clock.wall_ms() + 1)])


def spoiled_before(status: Status) -> tuple[World, Sequence[object], bytes]:
    """Commit two transactions, of which the first one's row is spoiled before it gets there."""
    world = World()
    spoiled: list[bytes] = []

    def plan(call: Call) -> Fault:
        steps = [item for item in call.items if isinstance(item, Check)]
        if not spoiled and steps and is_step(steps[0], status):
            spoiled.append(steps[0].key.row)
            spoil(world, spoiled[0])
        return Fault()

    world.faults.plan = plan
    return world, world.engine.commit_many(REQUESTS), spoiled[0]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.WRITTEN, CorruptRowError),
        (Status.LOCKED, CorruptRowError),
        (Status.ASSERTED, CommitOutcomeUnknown),
    ],
)
def test_one_bad_row_of_a_batch_fails_its_own_transaction(
    status: Status, error: type[Exception]
) -> None:
    world, results, bad = spoiled_before(status)
    assert type(results[0]) is error
    assert bad in str(results[0]).encode() and "9-NEW" in str(results[0].__cause__ or results[0])
    assert isinstance(results[1], Committed) and results[1].complete
    assert world.value(Y) == b"1"
    if status is not Status.WRITTEN:
        assert world.holder(X) == bad  # which may be committed: nobody frees its locks


@pytest.mark.parametrize("status", [Status.PUT, Status.CLEANING, Status.COMPLETE])
def test_a_row_that_goes_bad_after_the_decision_is_committed(status: Status) -> None:
    _, results, _ = spoiled_before(status)
    assert [isinstance(result, Committed) and result.complete for result in results] == [
        False,
        True,
    ]


def test_the_locks_of_a_row_that_goes_bad_are_kept() -> None:
    world, _, bad = spoiled_before(Status.PUT)
    assert (world.holder(X), world.holder(Y)) == (bad, b"")


def test_the_locks_of_a_row_that_goes_bad_after_3_put_are_released() -> None:
    world, _, bad = spoiled_before(Status.CLEANING)
    assert (world.holder(X), world.holder(Y)) == (b"", b"")
    assert (world.value(X), world.value(X.tag)) == (b"1", b"")
    (row,) = (row for row in world.rows() if row.row_key == bad)
    assert row.state is RowState.UNREADABLE


@pytest.mark.parametrize("status", [Status.LOCKED, Status.ASSERTED])
def test_a_holder_whose_row_goes_bad_as_it_is_ended_is_in_the_way(status: Status) -> None:
    world = World()
    holder = stopped_at(world, status)
    step = Status.ABORTING if status is Status.LOCKED else Status.PUT

    def plan(call: Call) -> Fault:
        if any(is_step(i, step) for i in call.items):
            spoil(world, holder)
        return Fault()

    world.faults.plan = plan
    other = world.client(world.faults, seed=2)
    with pytest.raises((ConflictError, DeadlineError)) as caught:
        other.commit([Mutation(X, b"3")])
    assert (caught.value.facts["key"], caught.value.facts["holder"]) == (X, holder)
    assert "9-NEW" in str(caught.value)
    assert isinstance(caught.value.__cause__, CorruptRowError)
    assert world.holder(X) == holder


def test_the_same_holder_met_again_is_named_with_the_cause() -> None:
    world = World()
    holder = stopped_at(world, Status.ASSERTED)
    spoil(world, holder)
    results = world.client(seed=2).commit_many(REQUESTS)
    assert isinstance(results[0], ConflictError | DeadlineError)
    assert "9-NEW" in str(results[0]) and results[0].facts["holder"] == holder
    assert isinstance(results[1], Committed)


@pytest.mark.parametrize("status", [Status.LOCKED, Status.ASSERTED])
def test_fsck_leaves_a_row_that_goes_bad_as_it_is_ended(status: Status) -> None:
    world = World()
    holder = stopped_at(world, status)
    (finding,) = check(world.engine.context, grace_ms=0)
    step = Status.ABORTING if status is Status.LOCKED else Status.PUT

    def plan(call: Call) -> Fault:
        if any(is_step(i, step) for i in call.items):
            spoil(world, holder)
        return Fault()

    world.faults.plan = plan
    result = repair(world.engine.context, finding)
    assert isinstance(result, LeftAlone) and "9-NEW" in result.why
    assert world.holder(X) == holder
