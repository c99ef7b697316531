"""Check and repair of a fenced database: its locks are of rows and families, and count."""

from __future__ import annotations

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
from recovery.scan import whole_row
from tests.unit.worlds import TABLE, World, X, Y, Z, stopped_at
from txn.model import Delete, Edit, Mutation
from txn.protocol.row import column, marker_key
from txn.protocol.statuses import Status
from txn.testing.faulty import Call, Fault

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("rows_for_all")]

DAY_MS = 24 * 3_600_000
LOCK = X.row_lock
MARKER = marker_key(b"txn", b"token")
STRANGER = b"transaction.1700000000000." + b"f" * 32


def fenced() -> World:
    return World(protocol="fenced")


def found(world: World, **given: object) -> list[Finding]:
    return list(check(world.engine.context, **{"grace_ms": 0, "scan": [TABLE], **given}))


def only(world: World, **given: object) -> Finding:
    (finding,) = found(world, **given)
    return finding


def held(world: World, holder: bytes) -> None:
    """A lock request that lands whenever it likes."""
    world.store.write([Edit(LOCK, b"1@" + holder, world.clock.wall_ms() - 10)])


@pytest.mark.parametrize("status", [Status.WRITTEN, Status.ASSERTED])
def test_what_stopped_half_way_is_ended(status: Status) -> None:
    world = fenced()
    row_key = stopped_at(world, status)
    finding = only(world)
    kind = Kind.UNDECIDED if status is Status.WRITTEN else Kind.DECIDED
    assert (finding.kind, finding.transaction) == (kind, world.rows()[0].row_key)
    assert isinstance(repair(world.engine.context, finding), Repaired)
    assert summary(world.engine.context, [TABLE]).is_quiet
    assert world.value(X) == (None if status is Status.WRITTEN else b"2")
    assert row_key in (b"", finding.transaction)
    assert found(world) == []


def test_retention_counts_from_the_end_by_the_servers_time() -> None:
    """The status itself lies at its owner's time, when it began: one that worked for a day would
    lose its row, and with it its outcome, at once."""
    world = fenced()
    attempt = world.begun(Mutation(X, b"1"))
    world.clock.advance(DAY_MS)
    world.engine.commit([Mutation(Y, b"1")])
    row = world.rows()[0]
    old = column(b"txn", row.row_key, b"status"), column(b"txn", attempt.row_key, b"status")
    assert old[0] != old[1]
    late = attempt.row_key
    cells = whole_row(world.engine.context, row.row_key)
    assert cells is not None
    began = int(late.split(b".")[1])
    world.store.write(
        [
            Edit(column(b"txn", late, key.column), cell.value, began)
            for key, cell in cells.cells.items()
            if not key.column.startswith(b"at.")
        ]
    )
    at = column(b"txn", late, b"at.5-COMPLETE")
    world.store.write([Edit(at, b"", world.clock.wall_ms())])
    slow = next(row for row in world.rows() if row.row_key == late)
    assert slow.status_at == began and slow.since == world.clock.wall_ms()
    assert judge(slow, world.clock.wall_ms() + 1, 0, DAY_MS // 2) is None
    assert judge(slow, world.clock.wall_ms() + DAY_MS, 0, DAY_MS // 2) is not None


def test_rows_are_deleted_after_the_retention() -> None:
    world = fenced()
    done = world.engine.commit([Mutation(X, b"1")])
    world.clock.advance(DAY_MS + 1)
    assert isinstance(repair(world.engine.context, only(world)), Repaired)
    assert (world.rows(), found(world)) == ([], [])
    began = int(done.transaction.split(b".")[1])
    world.store.write([Edit(column(b"txn", done.transaction, b"status"), b"7-ABORTED", began + 7)])
    assert world.rows() == []


@pytest.mark.parametrize("is_there", [True, False])
def test_a_lock_of_a_finished_or_absent_holder_is_freed(is_there: bool) -> None:
    world = fenced()
    holder = world.engine.commit([Mutation(Y, b"1")]).transaction if is_there else STRANGER
    held(world, holder)
    finding = only(world)
    assert (finding.kind, finding.transaction) == (Kind.ORPHAN_LOCK, holder)
    assert finding.key == X._replace(column=b"")
    assert repair(world.engine.context, finding) == Repaired("freed")
    assert (world.value(LOCK), found(world)) == (b"1", [])
    assert isinstance(repair(world.engine.context, finding), NothingToDo)


def test_a_lock_that_changes_meanwhile_is_no_finding() -> None:
    world = fenced()
    held(world, STRANGER)
    seen: list[Call] = []

    def plan(call: Call) -> Fault:
        seen.append(call)
        if call.method == "read" and len(seen) > 1:
            world.store.write([Edit(LOCK, b"1", world.clock.wall_ms())])
        return Fault()

    world.faults.plan = plan
    assert found(world) == []


@pytest.mark.parametrize("value", [b"somebody's", b"1@somebody"])
def test_what_the_protocol_never_writes_is_reported(value: bytes) -> None:
    world = fenced()
    world.store.write([Edit(LOCK, value, 1)])
    finding = only(world)
    assert (finding.kind, finding.key) == (Kind.FOREIGN_CELL, LOCK)
    assert isinstance(repair(world.engine.context, finding), LeftAlone)


def test_locks_of_the_other_protocol_say_nothing_here() -> None:
    world = fenced()
    world.store.write([Edit(X.lock, b"", 1), Edit(X.tag, b"", 1), Edit(X, b"1", 1)])
    assert found(world, retention_ms=0) == []


def test_versions_past_the_protocol_are_reported() -> None:
    world = fenced()
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


def promised(world: World, retention_ms: int | None = 1_000) -> None:
    world.engine.commit([Mutation(X, b"1")], once="token", once_retention_ms=retention_ms)


def expired(world: World) -> Finding:
    """The marker's finding, after its promise and the retention."""
    world.clock.advance(DAY_MS + 2_000)
    (finding,) = (f for f in found(world) if f.kind is Kind.EXPIRED_MARKER)
    return finding


def test_a_marker_goes_when_its_promise_has_run_out_and_its_lock_counts_it() -> None:
    """Whoever has read the marker, and not yet its lock, must be refused; and no count comes
    again, for what is late."""
    world = fenced()
    promised(world)
    assert world.value(MARKER.row_lock) == b"1"
    finding = expired(world)
    assert repair(world.engine.context, finding) == Repaired("deleted")
    assert (world.cell(MARKER), world.value(MARKER.row_lock)) == (None, b"2")
    assert isinstance(repair(world.engine.context, finding), NothingToDo)
    assert not world.engine.commit([Mutation(X, b"2")], once="token").repeated
    assert world.engine.commit([Mutation(X, b"2")], once="token").repeated


@pytest.mark.parametrize("retention_ms", [None, 10 * DAY_MS])
def test_a_marker_that_is_promised_stays(retention_ms: int | None) -> None:
    world = fenced()
    promised(world, retention_ms)
    world.clock.advance(DAY_MS + 2_000)
    kinds = {finding.kind for finding, _ in repair_all(world.engine.context, found(world))}
    assert kinds == {Kind.EXPIRED}
    assert world.cell(MARKER) is not None


def test_a_marker_that_is_asked_for_meanwhile_stays() -> None:
    world = fenced()
    promised(world)
    finding = expired(world)
    lock = MARKER.row_lock
    cell = world.cell(lock)
    assert cell is not None
    world.store.write([Edit(lock, b"2@" + STRANGER, cell.timestamp + 1)])
    assert isinstance(repair(world.engine.context, finding), NothingToDo)
    world.store.write([Edit(lock, b"2", world.clock.wall_ms())])
    assert isinstance(repair(world.engine.context, finding), NothingToDo)
    assert world.cell(MARKER) is not None


def test_a_marker_of_the_six_phase_protocol_goes_as_well() -> None:
    world = fenced()
    done = world.clock.wall_ms()
    world.store.write([Edit(MARKER, STRANGER + b" 1000", done)])
    assert repair(world.engine.context, expired(world)) == Repaired("deleted")
    assert world.value(MARKER.row_lock) == b"1"


def test_a_key_without_a_value_keeps_its_lock() -> None:
    """It counts, and nothing may count from the beginning again."""
    world = fenced()
    world.engine.commit([Mutation(X, b"1")])
    world.engine.commit([Delete(X)])
    world.clock.advance(2 * DAY_MS)
    assert {finding.kind for finding in found(world)} == {Kind.EXPIRED}
    assert world.value(LOCK) == b"2"
