"""Scanning transaction rows: what each calls for, what is passed over, and what is counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from recovery import Kind, check
from recovery.scan import find, summary, transactions, whole_row
from tests.unit.worlds import TABLE, TAKEN, BreakingOff, World, X, Y, stopped_at
from txn.assertions import Some
from txn.errors import AssertionFailedError
from txn.model import Edit, Key, Mutation
from txn.protocol.phases import Status
from txn.protocol.row import RowState, TransactionRow, column, created_ms
from txn.testing.counting import CountingStore

STATES = {
    Status.PART: RowState.UNDECIDED,
    Status.WRITTEN: RowState.UNDECIDED,
    Status.LOCKED: RowState.UNDECIDED,
    Status.ASSERTED: RowState.DECIDED,
    Status.PUT: RowState.DECIDED,
    Status.CLEANING: RowState.DECIDED,
    Status.COMPLETE: RowState.FINISHED,
    Status.ABORTING: RowState.ABORTING,
    Status.ABORTED: RowState.FINISHED,
}


@pytest.mark.parametrize("status", Status)
def test_each_status_calls_for_something(status: Status) -> None:
    """Recovery is a table from status to work, and this is the table."""
    world = World()
    stopped_at(world, Status.ASSERTED)
    (row,) = world.rows()
    changed = TransactionRow(row.row_key, status, buffer=row.buffer, plan=row.plan)
    assert changed.state is STATES[status]


def test_a_row_without_status_or_without_buffer_is_debris() -> None:
    """A decided row always has both, so such a row is what is left of a finished one."""
    assert TransactionRow(b"row").state is RowState.DEBRIS
    assert TransactionRow(b"row", Status.LOCKED).state is RowState.DEBRIS
    assert TransactionRow(b"row", Status.COMPLETE).state is RowState.FINISHED


def test_what_may_be_decided_and_does_not_decode_is_unreadable() -> None:
    """Guessing at it could lose a commit."""
    assert TransactionRow(b"row", corrupt="unknown status").state is RowState.UNREADABLE
    assert TransactionRow(b"row", Status.PUT, corrupt="junk").state is RowState.UNREADABLE


def test_a_decided_row_without_a_plan_is_unreadable() -> None:
    """It cannot be finished: nobody knows at which timestamp."""
    world = World()
    row_key = stopped_at(world, Status.ASSERTED)
    plan = column(b"txn", row_key, b"plan")
    cell = world.cell(plan)
    assert cell is not None
    world.store.write([Edit(plan, None, cell.timestamp)])
    (row,) = world.rows()
    assert row.corrupt is None
    assert row.state is RowState.UNREADABLE


def test_rows_that_are_no_transactions_are_passed_over() -> None:
    """The markers of `once` live in the same table."""
    world = World()
    done = world.engine.commit([Mutation(X, b"1")], once="token")
    found = list(transactions(world.engine.context))
    assert [row.row_key for row in found] == [done.transaction]
    assert len(list(world.store.scan(b"txn"))) == 3  # and the name of the protocol


def test_rows_come_lazily() -> None:
    """A store may hold more rows than fit into memory."""
    world = World()
    for _ in range(3):
        world.engine.commit([Mutation(X, b"1")])
    rows = transactions(world.engine.context)
    first = next(rows).row_key
    rows.close()
    assert first == world.rows()[0].row_key


@pytest.mark.parametrize("buckets", [1, 100])
def test_a_transaction_is_found_by_a_part_of_its_key(buckets: int) -> None:
    """People copy what they can see of it."""
    world = World()
    context = world.engine.context
    world.engine._backend._buckets = buckets
    keys = [world.engine.commit([Mutation(X, b"1")]).transaction for _ in range(3)]
    for row_key in keys:
        name = row_key[row_key.index(b"transaction.") :]
        uid = name.split(b".")[2]
        for part in (row_key, name, uid, uid[:12], uid[-12:], row_key[:-1]):
            assert list(find(context, part)) == [row_key]
    assert sorted(find(context, b"transaction.")) == sorted(keys)
    assert sorted(find(context, b"%d" % created_ms(keys[0]))) == sorted(keys)
    assert list(find(context, b"transaction.1700000000000." + b"0" * 32)) == []
    assert list(find(context, b"nothing")) == []


def test_a_whole_row_has_every_cell_or_is_none() -> None:
    """Deleting a row must not leave a column behind that reading it does not name."""
    world = World()
    row_key = world.engine.commit([Mutation(X, b"1")]).transaction
    row = whole_row(world.engine.context, row_key)
    assert row is not None
    names = {key.column for key in row.cells}
    assert names == {b"buffer", b"status", b"plan"} | {b"at." + status.value for status in TAKEN}
    assert whole_row(world.engine.context, row_key + b"0") is None


def test_the_summary_counts_what_a_quiet_store_has_none_of() -> None:
    """A job that ends with no lock, no tag and no unfinished row has left nothing behind."""
    world = World()
    world.engine.commit([Mutation(X, b"1")], once="token")
    with pytest.raises(AssertionFailedError):
        world.engine.commit([], [Some(Y)])
    quiet = summary(world.engine.context, [TABLE])
    assert quiet.is_quiet
    assert quiet.transactions == {"5-COMPLETE": 1, "7-ABORTED": 1}
    stopped_at(world, Status.PUT, Y)
    loud = summary(world.engine.context, [TABLE])
    assert (loud.unfinished, loud.locks, loud.tags) == (1, 1, 1)
    assert not loud.is_quiet


def test_the_summary_sees_the_markers_of_once() -> None:
    """They are locked and tagged like any key, in the transaction table."""
    world = World()
    world.engine.commit([Mutation(X, b"1")], once="token")
    marker = Key(b"once.token", b"t", b"done", b"txn")
    world.store.write([Edit(marker.lock, b"somebody", world.clock.wall_ms() + 10)])
    assert summary(world.engine.context).locks == 1


def test_a_scan_is_one_call_for_any_number_of_rows() -> None:
    """The rows are not read one by one."""
    world = World()
    for _ in range(5):
        world.engine.commit([Mutation(X, b"1")])
    counting = CountingStore(world.store)
    context = world.client(counting).context  # type: ignore[arg-type]
    counting.reset()
    assert len(list(transactions(context))) == 5
    assert counting.calls == {"scan": 1}


def test_every_look_goes_on_where_the_store_failed() -> None:
    """A gateway's restart costs a page, not the whole look; nothing is missed or counted twice."""
    world = World()
    rows = [Key(b"%03d" % number, "d", "x", TABLE) for number in range(100)]
    world.engine.commit_many([([Mutation(key, b"1")], []) for key in rows])
    stopped_at(world, Status.ASSERTED, key=rows[-1])
    context = world.engine.context
    expected = summary(context, [TABLE])
    breaking = replace(context, store=BreakingOff(world.store))  # type: ignore[arg-type]
    assert len(list(transactions(breaking))) == 101
    assert len(list(find(breaking, b"transaction"))) == 101
    assert summary(breaking, [TABLE]) == expected
    assert not expected.is_quiet
    looked: Counter[bytes] = Counter()
    findings = list(
        check(
            breaking, grace_ms=0, retention_ms=0, scan=[TABLE], looked=lambda t: looked.update([t])
        )
    )
    assert looked == {b"txn": 102, TABLE: 100}
    assert Counter(finding.kind for finding in findings) == {Kind.EXPIRED: 100, Kind.DECIDED: 1}
