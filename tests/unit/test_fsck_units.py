"""Check and repair of a fenced database: its locks are of rows and families, and count."""

from __future__ import annotations

from typing import Any

import pytest

from recovery import (
    Finding,
    Kind,
    LeftAlone,
    NothingToDo,
    Repaired,
    check,
    repair,
    repair_all,
    summary,
)
from recovery.fsck import judge
from tests.unit.worlds import TABLE, World, X, Y, Z, after_status
from txn.model import Delete, Edit, Mutation
from txn.protocol.row import column, created_ms, marker_key
from txn.protocol.statuses import Status
from txn.testing.faulty import Crash, Fault, Reply

pytestmark = pytest.mark.usefixtures("rows_for_all")

DAY_MS = 24 * 3_600_000
LOCK = X.row_lock
MARKER = marker_key(b"txn", b"token")
STRANGER = b"transaction.1700000000000." + b"f" * 32


def found(world: World, **given: Any) -> list[Finding]:
    return list(check(world.engine.context, **{"grace_ms": 0, "scan": [TABLE], **given}))


def held(world: World, holder: bytes) -> None:
    """A lock request that lands whenever it likes."""
    world.store.write([Edit(LOCK, b"1@" + holder, world.clock.wall_ms() - 10)])


@pytest.mark.parametrize("is_there", [True, False])
def test_a_lock_of_a_finished_or_absent_holder_is_freed(is_there: bool) -> None:
    world = World(protocol="fenced")
    holder = world.engine.commit([Mutation(Y, b"1")]).transaction if is_there else STRANGER
    held(world, holder)
    (finding,) = found(world)
    assert (finding.kind, finding.transaction) == (Kind.ORPHAN_LOCK, holder)
    assert finding.key == X._replace(column=b"")
    assert repair(world.engine.context, finding) == Repaired("freed")
    assert (world.value(LOCK), found(world)) == (b"1", [])
    assert isinstance(repair(world.engine.context, finding), NothingToDo)


def test_versions_past_the_protocol_are_reported() -> None:
    world = World(protocol="fenced")
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1"), Mutation(Z, b"1")])
    world.engine.commit([Delete(Z)])
    assert found(world) == []
    world.clock.advance(10)
    other = X._replace(column=b"other")
    world.put(X, b"2")
    world.put(other, b"2")
    kinds = {(finding.kind, finding.key) for finding in found(world)}
    assert kinds == {(Kind.FOREIGN_VERSION, X), (Kind.FOREIGN_VERSION, other)}
    assert {finding.facts["below"] for finding in found(world)} == {done.timestamp + 1}
    world.engine.commit([Mutation(X, b"3"), Mutation(other, b"3")])
    assert found(world) == []


def test_retention_counts_from_the_end_by_the_servers_time() -> None:
    """Who worked for a day would else lose its row, and with it its outcome, at once."""
    world = World(protocol="fenced")
    began_ms = world.clock.wall_ms()
    after_status(world, Status.ASSERTED, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit([Mutation(X, b"1"), Delete(Y)])
    world.faults.crashed = False
    world.clock.advance(DAY_MS)
    (finding,) = found(world)
    assert (finding.kind, finding.transaction) == (Kind.DECIDED, world.rows()[0].row_key)
    assert isinstance(repair(world.engine.context, finding), Repaired)
    assert summary(world.engine.context, [TABLE]).is_quiet
    (row,) = world.rows()
    now_ms = world.clock.wall_ms()
    assert row.status_at < began_ms + 1_000 and row.since == now_ms and world.value(X) == b"1"
    assert judge(row, now_ms + 1, 0, DAY_MS // 2) is None
    world.clock.advance(DAY_MS - 1)
    assert found(world) == []
    world.clock.advance(1)
    (finding,) = found(world)
    assert repair(world.engine.context, finding) == Repaired("deleted")
    status = column(b"txn", row.row_key, b"status")
    world.store.write([Edit(status, b"7-ABORTED", created_ms(row.row_key) + 7)])
    assert (world.rows(), found(world)) == ([], [])
    assert (world.value(LOCK), world.value(Y.row_lock)) == (b"1", b"1")


@pytest.mark.parametrize("value", [b"somebody's", b"1@somebody"])
def test_what_the_protocol_never_writes_is_reported(value: bytes) -> None:
    """It may be data, and stays."""
    world = World(protocol="fenced")
    world.store.write([Edit(Y.lock, b"", 1), Edit(Y.tag, b"", 1), Edit(Y, b"1", 1)])
    assert found(world, retention_ms=0) == []
    world.store.write([Edit(LOCK, value, 1)])
    (finding,) = found(world)
    assert (finding.kind, finding.key) == (Kind.FOREIGN_CELL, LOCK)
    assert isinstance(repair(world.engine.context, finding), LeftAlone)


@pytest.mark.parametrize("promise_ms", [1_000, 10 * DAY_MS, None])
def test_a_marker_goes_when_its_promise_has_run_out_and_its_lock_counts_it(
    promise_ms: int | None,
) -> None:
    """Whoever has read the marker, and not yet its lock, must be refused."""
    world = World(protocol="fenced")
    world.engine.commit([Mutation(X, b"1")], once="token", once_retention_ms=promise_ms)
    lock = MARKER.row_lock
    marker, free = world.cell(MARKER), world.cell(lock)
    assert marker is not None and free is not None and free.value == b"1"
    world.clock.advance(DAY_MS + 2_000)
    results = found(world)
    if promise_ms != 1_000:
        kinds = {finding.kind for finding, _ in repair_all(world.engine.context, results)}
        assert (kinds, world.cell(MARKER)) == ({Kind.EXPIRED}, marker)
        return
    (finding,) = (each for each in results if each.kind is Kind.EXPIRED_MARKER)
    for since, value in enumerate((b"2@" + STRANGER, b"2", b"1"), 1):  # it is asked for, or was
        world.store.write([Edit(lock, value, free.timestamp + since)])
        if value != b"1":
            assert isinstance(repair(world.engine.context, finding), NothingToDo)
    (finding,) = (each for each in found(world) if each.kind is Kind.EXPIRED_MARKER)
    assert repair(world.engine.context, finding) == Repaired("deleted")
    assert (world.cell(MARKER), world.value(lock)) == (None, b"2")
    world.store.write([Edit(MARKER, marker.value, marker.timestamp)])  # a late put is hidden
    assert world.cell(MARKER) is None
    assert isinstance(repair(world.engine.context, finding), NothingToDo)
    assert not world.engine.commit([Mutation(X, b"2")], once="token").repeated
    assert world.engine.commit([Mutation(X, b"2")], once="token").repeated


def test_a_marker_of_the_six_phase_protocol_goes_as_well() -> None:
    """A conversion leaves it without a lock."""
    world = World(protocol="fenced")
    world.store.write([Edit(MARKER, STRANGER + b" 1000", world.clock.wall_ms())])
    world.clock.advance(DAY_MS + 2_000)
    (finding,) = found(world)
    assert repair(world.engine.context, finding) == Repaired("deleted")
    assert world.value(MARKER.row_lock) == b"1"
