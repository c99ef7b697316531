"""One transaction explained: what is known of it at each point of its way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery import Kind, check, repair
from recovery.bounds import ReadLimits
from recovery.commands.show import explanation_document
from recovery.inspect import AssertionVerdict, Explanation, Unseen, explain
from recovery.search import row_document
from tests.unit.worlds import STEP_ALONE, TABLE, TAKEN, World, X, Y, Z, after_status, stopped_at
from txn.assertions import And, Assertion, Exact, Some
from txn.errors import AssertionFailedError, TableUnavailable
from txn.model import Cell, Delete, Edit, Key, Mutation
from txn.protocol.row import RowState, column, read_rows
from txn.protocol.statuses import ProtocolName, Status
from txn.testing.counting import CountingStore
from txn.testing.faulty import Call, Crash, Fault, Reply


def explained(world: World, row_key: bytes, grace_ms: int = 0) -> Explanation:
    found = explain(world.engine.context, row_key, grace_ms=grace_ms)
    assert found is not None
    return found


@pytest.fixture
def world() -> World:
    return World()


def test_a_finished_commit_is_explained(world: World) -> None:
    done = world.engine.commit(
        [Mutation(X, b"1"), Delete(Y)],
        [~Some(Z)],
        once="token",
        once_retention_ms=7,
        labels={"job": "load"},
    )
    found = explained(world, done.transaction)
    assert (found.row.state, found.row.status) == (RowState.FINISHED, Status.COMPLETE)
    assert [each.status for each in found.statuses] == TAKEN
    assert found.statuses[0].after_ms is None
    assert all(each.after_ms is not None for each in found.statuses[1:])
    assert (found.request.labels, found.request.once) == ({"job": "load"}, b"token")
    assert found.marker is not None and found.marker.retention_ms == 7
    assert found.row.plan and found.row.plan.timestamp == done.timestamp
    assert [(change.key, change.new) for change in found.changes][:2] == [(X, b"1"), (Y, None)]
    assert found.held == ()
    assert len(found.request.keys) == 4
    assert found.finding is None
    assert "retention" in found.advice
    assert found.verdicts == (AssertionVerdict.HELD,) * 2  # whatever has become of the cells since
    for status in Status:  # transports that send one cell at a time may not keep their times
        at = column(b"txn", done.transaction, b"at." + status.value)
        world.store.write([Edit(at, None, world.clock.wall_ms())])
    (each,) = explained(world, done.transaction).statuses
    assert (each.status, each.after_ms) == (Status.COMPLETE, None)


@pytest.mark.parametrize("status", list(Status)[:5])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "whole"])
def test_old_and_new_values_stand_side_by_side(world: World, status: Status, alone: bool) -> None:
    first = world.engine.commit([Mutation(X, b"1")])
    world.clock.advance(1)
    after_status(world, status, STEP_ALONE if alone else Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.client(world.faults, seed=50).commit([Mutation(X, b"2")], [Exact(X, b"1")])
    world.faults.crashed = False
    found = explained(world, world.rows()[-1].row_key)
    (change,) = found.changes
    assert change.new == b"2"
    assert change.replaced == (first.timestamp if status.is_decided else None)
    assert change.old == Cell(b"1", first.timestamp)
    # The locks are taken beside 0-WRITTEN, and released beside 4-CLEANING.
    assert change.held == (status is not (Status.WRITTEN if alone else Status.CLEANING))
    assert found.held == ((X,) if change.held else ())
    assert found.finding is not None
    assert found.finding.kind.remedy in found.advice


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_a_replaced_value_is_shown_for_as_long_as_the_store_keeps_it(
    protocol: ProtocolName,
) -> None:
    world = World(protocol=protocol)
    done = []
    for value in (b"0", b"1", b"2", b"3"):
        world.clock.advance(5)
        done.append(world.engine.commit([Mutation(X, value), Mutation(Y, value)]))
    shown = [explained(world, each.transaction).changes[0] for each in done]
    assert [change.replaced for change in shown] == [0, *(each.timestamp for each in done[:3])]
    assert [change.old and change.old.value for change in shown] == [None, None, b"1", b"2"]
    assert [change.unseen for change in shown] == [None, Unseen.NOT_KEPT, None, None]
    world.engine.commit([Delete(X)])
    change = explained(world, done[3].transaction).changes[0]
    assert (change.old, change.unseen) == (None, Unseen.NOT_KEPT)


@pytest.mark.parametrize("value", [b"junk", None])
@pytest.mark.parametrize("name", [b"buffer", b"plan", b"status"])
def test_a_damaged_row_is_explained_as_far_as_it_goes(name: bytes, value: bytes | None) -> None:
    world = World()
    row_key = stopped_at(world, Status.ASSERTED)
    world.store.write([Edit(column(b"txn", row_key, name), value, world.clock.wall_ms())])
    found = explained(world, row_key)
    assert found.row.state is RowState.UNREADABLE
    assert found.row.cause
    row = read_rows(world.engine.context, [row_key])[row_key]
    assert row_document(row, world.clock.wall_ms())["corrupt"] == found.row.cause
    assert "kept" in found.advice


@pytest.mark.parametrize(
    "wanted",
    [
        Some(Y),
        Exact(Z, b"n" * 900),
        ~Exact(Z, b"1") | Some(Y),
        And(*(Some(Key(f"{number:0300}", "d", "x", "data")) for number in range(9))),
    ],
)
def test_each_assertion_of_an_abort_has_its_verdict(world: World, wanted: Assertion) -> None:
    """The reason, which may be cut, names the one that failed; of the others nobody knows."""
    world.engine.commit([Mutation(Z, b"1")])
    with pytest.raises(AssertionFailedError) as caught:
        world.client(seed=5).commit([Mutation(X, b"1")], [Some(Z), wanted, Some(Z)])
    assert caught.value.transaction is not None
    found = explained(world, caught.value.transaction)
    assert "assertion failed" in (found.row.reason or "")
    assert (found.row.reason or "").endswith("…") is isinstance(wanted, And)
    assert [each.status for each in found.statuses][-2:] == [Status.ABORTING, Status.ABORTED]
    unknown = AssertionVerdict.UNKNOWN
    assert found.verdicts == (unknown, AssertionVerdict.FAILED, unknown)
    assert explanation_document(found)["verdicts"] == ["not known", "failed", "not known"]


def leave_undecided(world: World, *assertions: Assertion) -> bytes:
    """Let a client die before its decision, with its row written."""
    world.clock.advance(1)  # so that its row is the last one
    after_status(world, Status.WRITTEN, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.client(world.faults, seed=70).commit([Mutation(X, b"2")], assertions)
    world.faults.crashed, world.faults.plan = False, lambda call: Fault()
    return world.rows()[-1].row_key


def test_what_is_undecided_is_judged_on_the_cells_as_they_are(world: World) -> None:
    world.put(Y, b"1")
    row_key = leave_undecided(world, Some(Y), Some(Z))
    holds, unknown = AssertionVerdict.HOLDS, AssertionVerdict.UNKNOWN
    assert explained(world, row_key).verdicts == (holds, AssertionVerdict.FAILS)
    world.put(Z, b"1")
    found = explained(world, row_key, grace_ms=60_000)
    assert (found.verdicts, found.finding) == ((holds, holds), None)
    assert "within the grace" in found.advice and Kind.UNDECIDED.remedy in found.advice
    store = CountingStore(world.store)
    context = replace(world.engine.context, store=store)
    some = explain(context, row_key, limits=ReadLimits(rows=2))
    assert some is not None and (some.request.keys, some.keys_read) == ((X, Y, Z), 2)
    assert (some.verdicts, store.items["read"]) == ((holds, unknown), 4)
    for finding in check(context, grace_ms=0):
        repair(context, finding)
    found = explained(world, row_key)
    assert (found.row.status, found.verdicts) == (Status.ABORTED, (unknown, unknown))


def test_a_transaction_whose_table_is_gone_is_explained_without_its_cells(world: World) -> None:
    decided, undecided = stopped_at(world, Status.ASSERTED), leave_undecided(world, ~Some(Y))

    def refuse(call: Call) -> Fault:
        if call.method == "read" and any(key.table == TABLE for key in call.items):  # type: ignore[union-attr]
            raise TableUnavailable("no such table", TABLE)
        return Fault()

    world.faults.plan = refuse
    found = explained(world, decided)
    assert [(change.key, change.new, change.old) for change in found.changes] == [(X, b"2", None)]
    assert found.changes[0].unseen in (None, Unseen.NOT_READ)
    assert explained(world, undecided).verdicts == (AssertionVerdict.UNKNOWN,)
