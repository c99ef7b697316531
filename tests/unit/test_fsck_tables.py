"""Check and repair of data tables: orphan locks, stale tags, versions past the protocol."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery import (
    Finding,
    InGrace,
    Kind,
    LeftAlone,
    NothingToDo,
    Repaired,
    check,
    compact,
    repair,
    repair_all,
)
from tests.unit.worlds import TABLE, World, X, Y, Z, after_status, ghost, stopped_at
from txn.assertions import Assertion, Version
from txn.model import Check, Delete, Edit, Key, Mutation
from txn.protocol.retire import can_retire
from txn.protocol.row import marker_key
from txn.protocol.statuses import Status
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply

DAY_MS = 24 * 3_600_000
STRANGER = b"transaction.1700000000000." + b"f" * 32
MINUTE_MS = 60_000


def found(
    world: World, grace_ms: int = 0, table: bytes = TABLE, young: InGrace | None = None
) -> list[Finding]:
    return list(check(world.engine.context, grace_ms=grace_ms, scan=[table], young=young))


def only(world: World) -> Finding:
    (finding,) = found(world)
    return finding


def lock(world: World, key: Key, holder: bytes) -> None:
    """A lock request that lands whenever it likes."""
    assert world.store.check_and_put([Check(key.lock, b"", ((key.lock, holder),))]) == [True]


def late_put(world: World, key: Key = X) -> None:
    """A second delivery of the put of a transaction that has long finished: its tag is back."""
    done = world.engine.commit([Mutation(key, b"2")])
    world.store.write([Edit(key, b"2", done.timestamp), Edit(key.tag, b"7", done.timestamp)])


@pytest.mark.parametrize("status", [None, Status.COMPLETE])
def test_a_lock_of_a_finished_or_absent_holder_is_freed(status: Status | None) -> None:
    """Once it is old: an owner that was aborted by others may just be freeing what it took."""
    world = World()
    holder, young = ghost(world, status), InGrace()
    world.clock.advance(20)
    assert found(world, MINUTE_MS, young=young) == []
    assert young.counts == {Kind.ORPHAN_LOCK: 1}
    assert 20 <= young.oldest_ms < MINUTE_MS
    world.clock.advance(MINUTE_MS)
    (finding,) = found(world, MINUTE_MS)
    assert (finding.kind, finding.key, finding.transaction) == (Kind.ORPHAN_LOCK, X, holder)
    assert repair(world.engine.context, finding) == Repaired("freed")
    assert found(world) == []
    assert world.cell(X.lock) is not None and world.holder(X) == b""

    row_key = stopped_at(world, Status.LOCKED)
    assert [item.kind for item in found(world)] == [Kind.UNDECIDED]
    assert repair(world.engine.context, finding) == NothingToDo("the lock is free, or another's")
    orphan = Finding(Kind.ORPHAN_LOCK, row_key, X)
    assert repair(world.engine.context, orphan) == NothingToDo("its holder is not finished")
    assert world.holder(X) == row_key


def test_what_is_no_transaction_is_somebodys_data() -> None:
    world = World()
    at = world.clock.wall_ms()
    world.store.write([Edit(X.lock, b"padlock", at), Edit(Y.tag, b"sale", at)])
    findings = found(world)
    assert [(item.kind, item.key) for item in findings] == [
        (Kind.FOREIGN_CELL, X.lock),
        (Kind.FOREIGN_CELL, Y.tag),
    ]
    for finding in findings:
        assert isinstance(repair(world.engine.context, finding), LeftAlone)
    assert world.holder(X) == b"padlock"


def test_the_markers_of_once_are_scanned_with_any_table() -> None:
    world = World()
    world.engine.commit([Mutation(X, b"1")], once="token")
    marker = marker_key(b"txn", b"token")
    lock(world, marker, STRANGER)
    assert [(item.kind, item.key) for item in found(world)] == [(Kind.ORPHAN_LOCK, marker)]
    assert len(found(world, table=b"txn")) == 1
    repair(world.engine.context, only(world))
    assert found(world) == []


def test_a_tag_of_a_finished_transaction_is_emptied_in_its_place() -> None:
    """Its timestamp is the witness of the last commit and must not change."""
    world = World()
    late_put(world)
    before = world.cell(X.tag)
    finding = only(world)
    assert (finding.kind, finding.key) == (Kind.STALE_TAG, X)
    young = InGrace()
    assert found(world, MINUTE_MS, young=young) == []
    assert young.counts == {Kind.STALE_TAG: 1}
    assert repair(world.engine.context, finding) == Repaired("emptied")
    after = world.cell(X.tag)
    assert before and after and (after.value, after.timestamp) == (b"", before.timestamp)
    assert found(world) == []
    world.engine.commit([Mutation(X, b"3")])
    assert repair(world.engine.context, finding) == NothingToDo("the tag has changed")

    late_put(world)
    stopped_at(world, Status.LOCKED)  # it has put nothing yet, so the tag is of somebody before it
    assert [item.kind for item in found(world)] == [Kind.UNDECIDED, Kind.STALE_TAG]
    for finding in found(world):
        repair(world.engine.context, finding)
    assert found(world) == []


def test_a_tag_of_a_transaction_that_is_putting_is_its_own() -> None:
    world = World()
    stopped_at(world, Status.PUT)
    assert [item.kind for item in found(world)] == [Kind.DECIDED]
    cell = world.cell(X.tag)
    assert cell is not None and cell.value == b"0"
    tag = Finding(Kind.STALE_TAG, None, X, {"value": cell.value, "timestamp": cell.timestamp})
    assert repair(world.engine.context, tag) == NothingToDo("the tag is its holder's")


def test_a_write_past_the_protocol_is_reported_and_kept() -> None:
    """Also when its row is gone: the empty tag's timestamp is that of the last commit."""
    world = World()
    done = world.engine.commit([Mutation(X, b"1")])
    for finding in check(world.engine.context, retention_ms=0):
        repair(world.engine.context, finding)
    assert world.rows() == []
    assert found(world) == []
    world.clock.advance(5)
    world.put(X, b"intruder")
    finding = only(world)
    assert (finding.kind, finding.key) == (Kind.FOREIGN_VERSION, X)
    assert finding.facts == {"version": world.clock.wall_ms(), "expected": done.timestamp}
    assert isinstance(repair(world.engine.context, finding), LeftAlone)
    assert world.value(X) == b"intruder"


def test_a_value_that_a_delete_had_hidden_is_reported() -> None:
    """A marker that a compaction dropped too early lets a late duplicate bring a value back."""
    world = World()
    first = world.engine.commit([Mutation(X, b"1")])
    last = world.engine.commit([Delete(X)])
    world.store.compact(TABLE, last.timestamp + 1)
    world.store.write([Edit(X, b"1", first.timestamp)])
    finding = only(world)
    assert finding.kind is Kind.FOREIGN_VERSION
    assert finding.facts == {"version": first.timestamp, "expected": last.timestamp}


def test_what_was_there_before_any_transaction_is_no_finding() -> None:
    world = World()
    world.put(X, b"bulk")
    assert found(world) == []
    stopped_at(world, Status.LOCKED)
    assert [item.kind for item in found(world)] == [Kind.UNDECIDED]


@pytest.mark.parametrize("status", [Status.ASSERTED, Status.PUT, Status.CLEANING])
@pytest.mark.parametrize("change", [Mutation(X, b"2"), Delete(X)], ids=["put", "delete"])
def test_a_commit_in_flight_may_have_its_old_or_its_new_version(
    status: Status, change: Mutation | Delete
) -> None:
    """Its puts are not atomic, and a reader of raw cells sees either."""
    world = World()
    world.engine.commit([Mutation(X, b"1")])
    after_status(world, status, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.client(world.faults, seed=60).commit([change])
    world.faults.crashed, world.faults.plan = False, lambda call: Fault()
    assert [item.kind for item in found(world)] == [Kind.DECIDED]
    if status is Status.ASSERTED:  # the tag has arrived and the value has not
        (plan,) = (row.plan for row in world.rows() if row.status is status)
        assert plan is not None
        world.store.write([Edit(X.tag, b"%d" % plan.replaced[0], plan.timestamp)])
        assert [item.kind for item in found(world)] == [Kind.DECIDED]
        world.store.write([Edit(X, b"intruder", world.clock.wall_ms() + 50)])
        assert [item.kind for item in found(world)] == [Kind.DECIDED, Kind.FOREIGN_VERSION]


def test_what_changes_between_the_looks_is_no_finding() -> None:
    """A commit may happen whole between the scan of a key and the look at its holder."""
    for number in range(1, 20):
        world = World()
        late_put(world)  # so that there is something to look at again
        stopped_at(world, Status.PUT, Y)
        done: list[object] = []

        def plan(
            call: Call, number: int = number, world: World = world, done: list[object] = done
        ) -> Fault:
            if call.number == number:
                other = world.client(seed=70)
                done.append(other.commit([Mutation(X, b"5"), Mutation(Y, b"5")]))
            return Fault()

        context = replace(world.engine.context, store=FaultyStore(world.store, plan))
        findings = list(check(context, grace_ms=0, scan=[TABLE]))
        assert all(item.kind in (Kind.STALE_TAG, Kind.DECIDED) for item in findings)
        assert not any(item.kind is Kind.STALE_TAG and item.key == Y for item in findings)
        if not done:
            return
    raise AssertionError("check does not end")


def test_a_ghost_of_a_transaction_that_is_nearly_complete_blames_nobody() -> None:
    """At 4-CLEANING its keys may be free and changed: its late lock tells nothing of a version."""
    world = World()
    holder = stopped_at(world, Status.CLEANING)
    assert world.store.check_and_put([Check(X.lock, holder, ((X.lock, b""),))]) == [True]
    world.client(seed=2).commit([Mutation(X, b"3")])
    lock(world, X, holder)
    assert [finding.kind for finding in found(world)] == [Kind.DECIDED]


def vacate(world: World, *assertions: Assertion) -> None:
    """Write and delete a key, and let a day pass."""
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")], assertions)
    world.engine.commit([Delete(X)])
    world.clock.advance(DAY_MS + 10)


def test_a_key_without_a_value_is_vacant_after_the_retention() -> None:
    """Deleted, or only ever asserted; one with a value is not, however old."""
    world = World()
    vacate(world, Version(Z, None))
    for retention_ms, expected in ((DAY_MS, [X, Z]), (2 * DAY_MS, [])):
        findings = check(world.engine.context, scan=[TABLE], retention_ms=retention_ms)
        assert [item.key for item in findings if item.kind is Kind.VACANT_KEY] == expected


def test_a_vacant_key_is_retired() -> None:
    """Else what was ever used stays for ever. A gateway that cannot do it leaves it."""
    world = World()
    vacate(world)
    context = world.engine.context
    retired = Repaired if can_retire(context) else LeftAlone
    results = list(repair_all(context, check(context, scan=[TABLE])))
    assert {(item.kind, type(result)) for item, result in results} == {
        (Kind.EXPIRED, Repaired),
        (Kind.VACANT_KEY, retired),
    }
    left = {row.row for row in world.store.scan(TABLE)}
    assert left == ({b"y"} if retired is Repaired else {b"x", b"y"})
    assert bool(list(check(context, scan=[TABLE]))) == (retired is LeftAlone)
    world.engine.commit([Mutation(X, b"2")])
    assert world.value(X) == b"2"


def test_a_compaction_leaves_nothing_of_a_retired_key() -> None:
    """A marker for each of its cells is kept as long as any other is."""
    world = World()
    world.engine.commit([Mutation(Y, b"1")])
    world.clock.advance(DAY_MS + 10)
    context = world.engine.context
    for _ in range(2):
        list(repair_all(context, check(context)))
        compact(context)  # it leaves a cell, by which the server tells its time
    kept = world.keys_kept()
    vacate(world)
    for expected in (kept + 1, kept):  # the lock's marker, which is of today, and then nothing
        list(repair_all(context, check(context, scan=[TABLE])))
        compact(context, tables=[TABLE])
        assert world.keys_kept() == expected
        world.clock.advance(DAY_MS + 10)


def test_a_key_that_is_used_again_is_not_retired() -> None:
    """A finding may be old."""
    world = World()
    vacate(world)
    (finding,) = [f for f in check(world.engine.context, scan=[TABLE]) if f.key == X]
    for change in (Mutation(X, b"2"), Delete(X)):
        world.engine.commit([change])
        result = repair(world.engine.context, finding)
        assert result == NothingToDo("somebody has locked it, or it has changed")
    assert world.cell(X.tag) is not None


def test_a_store_that_cannot_delete_on_a_condition_leaves_vacant_keys() -> None:
    """It says through what they can be retired, and has locked nothing."""
    world = World()
    vacate(world)
    world.faults.features -= {"row_mutations"}
    context = world.engine.context
    ((_, result),) = repair_all(context, [Finding(Kind.VACANT_KEY, None, X, {"newest": 1})])
    assert isinstance(result, LeftAlone)
    assert "Thrift 2" in result.why
    assert world.holder(X) == b""
