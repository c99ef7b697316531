"""A transaction row that a person removes: what may go, and what becomes of its locks."""

from __future__ import annotations

import pytest

from recovery import LeftAlone, NothingToDo, Repaired, check, purge_row, repair, summary
from recovery.findings import RETENTION_MS
from recovery.scan import whole_row
from tests.unit.worlds import TABLE, World, X, stopped_at
from txn.client.parts import PartsClient
from txn.model import Edit, Mutation, Row
from txn.protocol.row import column
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.request import Outcome
from txn.testing.faulty import Call, Fault


def row_of(world: World, row_key: bytes) -> Row:
    found = whole_row(world.engine.context, row_key)
    assert found is not None
    return found


def test_a_finished_row_goes() -> None:
    world = World()
    done = world.engine.commit([Mutation(X, b"1")])
    purged = purge_row(world.engine.context, row_of(world, done.transaction))
    assert (purged, world.rows()) == (Repaired("deleted"), [])
    assert world.engine.outcome(done.transaction) is Outcome.UNKNOWN
    assert world.value(X) == b"1"


def test_an_unreadable_row_goes_and_its_locks_are_freed() -> None:
    world = World()
    row_key = stopped_at(world, Status.ASSERTED)
    world.store.write([Edit(column(b"txn", row_key, b"buffer"), b"?", world.clock.wall_ms() + 1)])
    context = world.engine.context
    assert purge_row(context, row_of(world, row_key)) == Repaired("deleted")
    world.clock.advance(1)
    for finding in check(context, grace_ms=0, scan=[TABLE]):
        repair(context, finding)
    assert summary(context, [TABLE]).is_quiet
    assert world.holder(X) == b""
    (poisoned,) = world.rows()
    assert (poisoned.row_key, poisoned.is_poisoned) == (row_key, True)
    world.clock.advance(RETENTION_MS + 1)
    for finding in check(context):
        repair(context, finding)
    assert world.rows() == []


@pytest.mark.parametrize(
    "status", [Status.WRITTEN, Status.LOCKED, Status.ASSERTED, Status.CLEANING]
)
def test_what_fsck_could_end_is_refused_unless_asked_for(status: Status) -> None:
    world = World()
    stopped_at(world, status)
    (row,) = world.rows()
    seen = row_of(world, row.row_key)
    assert isinstance(purge_row(world.engine.context, seen), LeftAlone)
    assert row_of(world, row.row_key) == seen
    assert purge_row(world.engine.context, seen, unfinished=True) == Repaired("deleted")
    assert world.rows() == []


def test_a_row_that_moved_on_stays() -> None:
    world = World()
    row_key = stopped_at(world, Status.ASSERTED)
    seen = row_of(world, row_key)
    world.clock.advance(world.policy.lock_ttl_ms)
    world.client(seed=3).commit([Mutation(X, b"3")])
    assert isinstance(purge_row(world.engine.context, seen, unfinished=True), NothingToDo)
    assert world.engine.outcome(row_key) is Outcome.COMMITTED


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_owner_that_decides_during_the_purge_keeps_its_row(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    owner = PartsClient(world.client(seed=2))
    transaction = owner.begin()
    newest = owner.write(transaction, 0, 0, [Mutation(X, b"2")])
    seen = row_of(world, transaction)

    def plan(call: Call) -> Fault:
        if call.method in ("write", "check_and_put"):
            owner.commit(transaction, [1], newest, ack="decided")
        return Fault()

    world.faults.plan = plan
    assert isinstance(purge_row(world.engine.context, seen, unfinished=True), NothingToDo)
    assert world.client(seed=3).read([X])[X].value == b"2"  # type: ignore[union-attr]
