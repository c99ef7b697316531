"""Scanning transaction rows: what each calls for, what is counted, and the kinds of findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from recovery import Finding, Kind, LeftAlone, NothingToDo, Repaired, check
from recovery.findings import Severity, Tally
from recovery.scan import (
    summary,
    transactions,
    whole_row,
)
from recovery.search import find
from tests.unit.worlds import TABLE, BreakingOff, World, X, Y, stopped_at
from txn.assertions import Some
from txn.client.parts import PartsClient
from txn.errors import AssertionFailedError, InvalidRequestError, TableUnavailable
from txn.model import Cell, Edit, Key, Mutation, Row, RowExclusion, check_exclusion
from txn.protocol.codec import Buffer, Plan
from txn.protocol.row import (
    RowState,
    TransactionRow,
    child_key,
)
from txn.protocol.statuses import Status
from txn.request import Request


@pytest.mark.parametrize(
    ("status", "row", "state"),
    [
        (Status.PART, {}, RowState.UNDECIDED),
        (Status.WRITTEN, {}, RowState.UNDECIDED),
        (Status.LOCKED, {}, RowState.UNDECIDED),
        (Status.ASSERTED, {}, RowState.DECIDED),
        (Status.PUT, {}, RowState.DECIDED),
        (Status.CLEANING, {}, RowState.DECIDED),
        (Status.COMPLETE, {}, RowState.FINISHED),
        (Status.ABORTING, {}, RowState.ABORTING),
        (Status.ABORTED, {}, RowState.FINISHED),
        (None, {"buffer": None}, RowState.DEBRIS),
        (Status.LOCKED, {"buffer": None}, RowState.UNDECIDED),
        (Status.ABORTING, {"buffer": None}, RowState.ABORTING),
        (Status.ASSERTED, {"buffer": None}, RowState.UNREADABLE),
        (Status.ASSERTED, {"plan": None}, RowState.UNREADABLE),
        (Status.COMPLETE, {"buffer": None}, RowState.FINISHED),
        (None, {"corrupt": "unknown status"}, RowState.UNREADABLE),
        (Status.PUT, {"corrupt": "junk"}, RowState.UNREADABLE),
    ],
)
def test_each_status_calls_for_something(
    status: Status | None, row: dict[str, Any], state: RowState
) -> None:
    whole = TransactionRow(b"row", status, buffer=Buffer(Request(()), 1), plan=Plan(7, ()))
    assert replace(whole, **row).state is state


@pytest.mark.parametrize("salt_buckets", [1, 100])
def test_a_transaction_is_found_by_a_piece_of_its_key(salt_buckets: int) -> None:
    """People copy what they can see of it."""
    world = World(salt_buckets=salt_buckets)
    context, client = world.engine.context, PartsClient(world.engine)
    other = world.engine.commit([Mutation(X, b"1")]).transaction
    world.clock.advance(1)
    whole, on_row = client.begin(), list[bytes]()
    parts = [child_key(whole, *of) for of in ((0, 0), (0, 1), (1, 0))]
    for n, of in enumerate(((0, 0), (0, 1), (1, 0))):
        client.write(whole, *of, [Mutation(Key(f"{n}", "d", "x", TABLE), b"1")])
    time, uid = whole[whole.index(b"transaction.") :].split(b".")[1:]
    names = (whole, b"transaction.%b.%b" % (time, uid), b"%b.%b" % (time, uid), uid)
    for piece in (*names, whole[:-1], time, uid[:12], uid[-12:], whole.partition(b"@")[0]):
        assert list(find(context, piece)) == [whole]
    for name in names:
        assert list(find(context, name + b".part-00000-00001")) == [parts[1]]
        assert list(find(context, name + b".part-00000")) == parts[:2]
        assert list(find(context, name + b".part-")) == parts
    assert list(find(context, b"part-00001-00000")) == list(find(context, b"1-00000")) == parts[2:]
    assert sorted(find(context, b"transaction.")) == sorted([other, whole])
    gone = whole.replace(b"transaction.17", b"transaction.16")
    for missing in (b"nothing", gone[gone.index(b"transaction.") :]):
        assert list(find(context, missing, on_row.append)) == []
    row = whole_row(context, whole)
    assert row is not None
    world.store.write([Edit(key, None, cell.timestamp) for key, cell in row.cells.items()])
    assert list(find(context, whole)) == list(find(context, uid)) == []
    assert list(find(context, parts[0])) == parts[:1]


def test_the_summary_counts_what_a_quiet_store_has_none_of() -> None:
    """A job that ends with no lock, no tag and no unfinished row has left nothing behind."""
    world = World()
    context = world.engine.context
    world.engine.commit([Mutation(X, b"1")], once="token")
    with pytest.raises(AssertionFailedError):
        world.engine.commit([], [Some(Y)])
    quiet = summary(context, [TABLE])
    assert quiet.is_quiet
    assert quiet.transactions == {"5-COMPLETE": 1, "7-ABORTED": 1}
    stopped_at(world, Status.PUT, Y)
    marker = Key(b"once.token", b"t", b"done", b"txn")
    world.store.write([Edit(marker.lock, b"somebody", world.clock.wall_ms() + 10)])
    loud = summary(context, [TABLE])
    assert (loud.unfinished, loud.locks, loud.tags) == (1, 2, 1)
    assert not loud.is_quiet


def test_every_look_goes_on_where_the_store_failed() -> None:
    world = World()
    rows = [Key(b"%03d" % number, "d", "x", TABLE) for number in range(100)]
    world.engine.commit_many([([Mutation(key, b"1")], []) for key in rows])
    stopped_at(world, Status.ASSERTED, key=rows[-1])
    context = world.engine.context
    expected = summary(context, [TABLE])
    breaking = replace(context, store=BreakingOff(world.store))
    assert len(list(transactions(breaking))) == 101
    assert len(list(find(breaking, b"transaction"))) == 101
    assert summary(breaking, [TABLE]) == expected
    assert not expected.is_quiet
    on_row: Counter[bytes] = Counter()
    findings = list(
        check(
            breaking, grace_ms=0, retention_ms=0, scan=[TABLE], on_row=lambda t: on_row.update([t])
        )
    )
    assert on_row == {b"txn": 102, TABLE: 100}
    assert Counter(finding.kind for finding in findings) == {Kind.EXPIRED: 100, Kind.DECIDED: 1}


def test_a_table_that_goes_amid_a_look_is_told_at_once() -> None:
    world = World()
    for _ in range(3):
        world.engine.commit([Mutation(X, b"1")])

    class Going(BreakingOff):
        def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
            yield from islice(self._inner.scan(*args, **options), 2)
            raise TableUnavailable("gone", b"txn")

    context = replace(world.engine.context, store=Going(world.store))
    with pytest.raises(TableUnavailable, match="gone"):
        list(transactions(context))


def test_a_row_is_left_out_by_the_value_of_one_cell() -> None:
    exclude = RowExclusion(b"d", b"x", frozenset({b"out"}))
    family = Key("r", "e", "x", "data")
    assert exclude.matches(Row(b"r", {family: Cell(b"in", 1), X: Cell(b"out", 1)}))
    assert not exclude.matches(Row(b"r", {family: Cell(b"out", 1), X: Cell(b"in", 1)}))
    assert not exclude.matches(Row(b"r", {family: Cell(b"out", 1)}))
    check_exclusion(None, exclude)
    check_exclusion([(b"d", b"x")], exclude)
    with pytest.raises(InvalidRequestError, match="lack the one"):
        check_exclusion([(b"e", b"x")], exclude)


OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_in_the_operators_page(kind: Kind) -> None:
    lines = OPERATIONS.read_text().splitlines()
    (line,) = [line for line in lines if f"| `{kind.value}` |" in line]
    assert kind.meaning in line
    assert kind.remedy in line
    assert kind.severity.value in line
    assert kind.remedy.startswith("nothing") == (kind.severity is Severity.REPORT_ONLY)


def test_a_tally_tells_what_became_of_findings() -> None:
    tally = Tally()
    tally.add(Finding(Kind.DECIDED))
    assert (tally.left, tally.is_repair, tally.rolled_forward) == (1, False, 0)
    tally = Tally()
    for kind, result in (
        (Kind.DECIDED, Repaired("rolled forward")),
        (Kind.UNDECIDED, Repaired("rolled back")),
        (Kind.ABORTING, Repaired("rolled back")),
        (Kind.ORPHAN_LOCK, Repaired("freed")),
        (Kind.UNDECIDED, NothingToDo("its owner has moved on")),
        (Kind.UNREADABLE, LeftAlone("it does not decode")),
    ):
        tally.add(Finding(kind), result)
    assert (tally.rolled_forward, tally.rolled_back, tally.cleaned_up) == (1, 2, 1)
    assert (tally.found, tally.moved_on, tally.left, tally.is_repair) == (6, 1, 1, True)
    assert tally.count_kinds()[Kind.UNDECIDED] == 2
