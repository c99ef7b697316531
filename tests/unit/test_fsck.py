"""Check and repair of transaction rows: each status, ages, what does not decode, and races."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from recovery import Finding, InGrace, Kind, LeftAlone, Repaired, check, repair
from tests.unit.worlds import TABLE, World, X, Y, after_status
from txn.assertions import Assertion
from txn.errors import TableUnavailable
from txn.model import Check, Edit, Key, Mutation
from txn.protocol.row import column, is_row_key
from txn.protocol.statuses import Status
from txn.request import Outcome
from txn.testing.faulty import Call, Crash, Fault, Reply

HOUR_MS = 3_600_000
UNFINISHED = [
    (Status.WRITTEN, Kind.UNDECIDED, Status.ABORTED),
    (Status.LOCKED, Kind.UNDECIDED, Status.ABORTED),
    (Status.ASSERTED, Kind.DECIDED, Status.COMPLETE),
    (Status.PUT, Kind.DECIDED, Status.COMPLETE),
    (Status.CLEANING, Kind.DECIDED, Status.COMPLETE),
    (Status.ABORTING, Kind.ABORTING, Status.ABORTED),
]


def left_at(
    world: World,
    status: Status,
    assertions: Collection[Assertion] = (),
    keys: tuple[Key, ...] = (X, Y),
) -> bytes:
    """Let a client of X and Y die right after its row reached this status; return the row key."""
    world.clock.advance(1)  # so that its row is the last one
    if status is Status.ABORTING:
        row_key = left_at(world, Status.LOCKED)
        key = column(b"txn", row_key, b"status")
        puts = ((key, status.value),)
        assert world.store.check_and_put([Check(key, Status.LOCKED.value, puts)]) == [True]
        return row_key
    after_status(world, status, Fault(reply=Reply.CRASH))
    client = world.client(world.faults, seed=50)
    with pytest.raises(Crash):
        client.commit([Mutation(key, b"2") for key in keys], assertions)
    world.faults.crashed, world.faults.plan = False, lambda call: Fault()
    return world.rows()[-1].row_key


def found(world: World, **options: object) -> list[Finding]:
    return list(check(world.engine.context, **options))  # type: ignore[arg-type]


def mended(world: World, **options: object) -> list[object]:
    """Repair everything found, and see that nothing is found any more."""
    results: list[object] = [
        repair(world.engine.context, finding) for finding in found(world, **options)
    ]
    assert found(world, **options) == []
    return results


def put_column(world: World, row_key: bytes, name: bytes, value: bytes | None) -> None:
    """Damage a transaction row."""
    key = column(b"txn", row_key, name)
    cell = world.cell(key)
    world.store.write([Edit(key, value, cell.timestamp if cell else world.clock.wall_ms())])


@pytest.mark.parametrize(("status", "kind", "end"), UNFINISHED)
def test_within_the_grace_it_is_nobodys_business(status: Status, kind: Kind, end: Status) -> None:
    world = World()
    left_at(world, status)
    world.clock.advance(59_999)
    young = InGrace()
    assert found(world, young=young) == []
    assert (young.counts, young.oldest_ms) == ({kind: 1}, 59_999)
    world.clock.advance(1)
    young = InGrace()
    assert [finding.kind for finding in found(world, young=young)] == [kind]
    assert not young.counts


def test_a_row_that_is_not_ours_is_counted_named_and_left_alone() -> None:
    world = World()
    world.client().commit([Mutation(X, b"1")], once="token")
    ours = [Key(row, "t", "clock", b"txn") for row in ("doctor", "protocol")]
    theirs = [Key(row, "t", "x", b"txn") for row in ("apple", "transaction.1", "zebra")]
    world.store.write([Edit(key, b"1", 5) for key in (*ours, *theirs)])
    findings = found(world, scan=[TABLE])
    assert [(f.kind, f.key) for f in findings] == [(Kind.FOREIGN_ROW, key) for key in theirs[::-1]]
    assert findings[0].facts == {"cells": 1, "newest": 5}
    results = [repair(world.engine.context, finding) for finding in findings]
    assert results == [LeftAlone(Kind.FOREIGN_ROW.remedy)] * 3
    assert found(world) == findings


def test_a_beat_counts_as_a_sign_of_life_unless_it_is_of_the_future() -> None:
    """It is a client's clock; a fast one must not protect a dead owner for years."""
    world = World()
    row_key = left_at(world, Status.WRITTEN)
    world.clock.advance(50_000)
    put_column(world, row_key, b"beat", b"")
    world.clock.advance(50_000)
    assert found(world) == []
    world.clock.advance(10_000)
    assert [finding.kind for finding in found(world)] == [Kind.UNDECIDED]
    heartbeat = column(b"txn", row_key, b"beat")
    world.store.write([Edit(heartbeat, b"", world.clock.wall_ms() + 10_000 * HOUR_MS)])
    assert [finding.kind for finding in found(world)] == [Kind.UNDECIDED, Kind.FUTURE_CELL]


def test_finished_rows_expire_by_the_time_of_their_last_status() -> None:
    """One that took long to finish must not be forgotten at once: its outcome may be asked for."""
    world = World()
    row_key = left_at(world, Status.ASSERTED)
    world.clock.advance(100 * HOUR_MS)
    assert mended(world) != []  # it is complete now
    put_column(world, row_key, b"buffer", b"junk")
    world.clock.advance(24 * HOUR_MS - 1)
    assert found(world) == []
    assert world.engine.outcome(row_key) is Outcome.COMMITTED
    world.clock.advance(1)
    (finding,) = found(world)
    assert finding.kind is Kind.EXPIRED
    assert repair(world.engine.context, finding) == Repaired("deleted")
    assert world.rows() == []
    assert world.engine.outcome(row_key) is Outcome.UNKNOWN
    assert (world.value(X), world.value(Y)) == (b"2", b"2")


def test_debris_is_deleted_after_the_retention() -> None:
    """Until then it may be a row that is just being written, one cell at a time."""
    world = World()
    row_key = left_at(world, Status.WRITTEN)
    put_column(world, row_key, b"status", None)
    put_column(world, row_key, b"future", b"of a newer version")
    world.clock.advance(24 * HOUR_MS - 1)
    assert found(world) == []
    world.clock.advance(1)
    (finding,) = found(world)
    assert finding.kind is Kind.DEBRIS
    assert repair(world.engine.context, finding) == Repaired("deleted")
    assert not any(is_row_key(row.row) for row in world.store.scan(b"txn"))


def test_a_transaction_whose_table_is_gone_is_left_alone() -> None:
    world = World()
    row_key = left_at(world, Status.ASSERTED)
    (finding,) = found(world, grace_ms=0)

    def plan(call: Call) -> Fault:
        if call.method == "write":
            raise TableUnavailable("no such table", b"gone")
        return Fault()

    world.faults.plan = plan
    result = repair(world.engine.context, finding)
    assert isinstance(result, LeftAlone) and "no such table" in result.why
    assert world.holder(X) == row_key
