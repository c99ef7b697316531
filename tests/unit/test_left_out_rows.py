"""`fsck` and `ls` find the same whether the store leaves rows out or everything is read.

The expectation reads each row of random tables, with no filter and in one scan.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from recovery import Finding, check
from recovery.commands import app
from recovery.findings import judge
from recovery.fsck import find_future
from recovery.scan import AHEAD_MS, find_transaction, list_suspects, scan_in_steps
from recovery.search import Query
from tests.unit.test_search import NOW_MS, TXN, Rows, order
from txn.model import Edit, Row
from txn.protocol import listing
from txn.protocol.context import Context
from txn.protocol.listing import NAME, NAME_END, find_buckets
from txn.protocol.row import (
    child_key,
    column,
    created_ms,
    decode_row,
    is_row_key,
    new_row_key,
    parent_of,
)
from txn.protocol.statuses import FINISHED, Status
from txn.spans import Span

DAY_MS = 24 * 3_600_000
AGES_MS = (0, 1, 7, 600, 50_000, DAY_MS - 1, DAY_MS + 1, 9 * DAY_MS, -AHEAD_MS - 1, -60_000)
VALUES = (None, b"9-NEW", *(status.encoded for status in Status))
SIZES = (listing.MOST_TURNED_BYTES, 3_000, 0)


def make_rows(seed: int, salt_buckets: int, count: int = 400) -> Rows:
    """A table of some hundred rows in any state, many of them begun at one time."""
    rng, rows = Random(seed), Rows()
    finished = [status.encoded for status in FINISHED]
    for _ in range(count):
        age_ms = rng.choice(AGES_MS) + rng.choice((0, 0, rng.randrange(100)))
        key = new_row_key(NOW_MS - age_ms, rng.getrandbits(128), salt_buckets)
        if rng.random() < 0.2:
            key = child_key(key, rng.randrange(2), rng.randrange(2))
        value = rng.choice(finished if rng.random() < 0.6 else VALUES)
        cells = {b"buffer": bytes(rng.randrange(300)), b"status": value}
        if rng.random() < 0.3:
            cells[rng.choice(list(Status)).at] = b""
        at_ms = NOW_MS - rng.choice(AGES_MS)
        edits = [Edit(column(TXN, key, n), v, at_ms) for n, v in cells.items() if v is not None]
        rows.store.write(edits)
    for name in (b"protocol", b"stranger", b"transaction.x", b"07.transaction.y"):
        rows.store.write([Edit(column(TXN, name, b"status"), b"5-COMPLETE", NOW_MS)])
    return rows


def find_all(context: Context) -> Iterator[tuple[str, bytes | None]]:
    """Judge every row. A key that is young hides only what is finished."""
    old_ms, ahead_ms = NOW_MS - DAY_MS, NOW_MS + AHEAD_MS
    for row in context.store.scan(TXN):
        if not is_row_key(row.row):
            if row.row != b"protocol" and not is_hidden(row, old_ms, ahead_ms):
                yield "foreign-row", row.row
            continue
        seen = find_transaction(context, row.row)
        assert seen is not None
        whole = parent_of(row.row)
        above = find_transaction(context, whole) if whole else None
        if is_hidden(row, old_ms, ahead_ms):
            continue
        is_kept = decode_row(row).status in FINISHED and above is not None and not above.is_over
        if (finding := judge(seen, NOW_MS)) and not is_kept:
            yield show(finding)
        yield from map(show, find_future(context, row))


def is_hidden(row: Row, old_ms: int, ahead_ms: int) -> bool:
    is_young = is_row_key(row.row) and old_ms < created_ms(row.row) < ahead_ms
    return is_young and read_status(row) in FINISHED


def read_status(row: Row) -> Status | None:
    """The known status in the cell that stores go by."""
    values = [cell.value for key, cell in row.cells.items() if key.column == b"status"]
    return next((status for status in Status if status.encoded in values), None)


def show(finding: Finding) -> tuple[str, bytes | None]:
    row = finding.key.row if finding.key else None
    return finding.kind.value, finding.transaction or row


@pytest.mark.parametrize("salt_buckets", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_fsck_finds_what_a_look_at_every_row_finds(seed: int, salt_buckets: int) -> None:
    rows = make_rows(seed, salt_buckets)
    expected = Counter(find_all(rows.context))
    assert Counter(map(show, check(rows.context))) == expected
    assert {"undecided", "aborting", "expired", "debris", "unreadable"} <= {
        kind for kind, _ in expected
    }


@pytest.mark.parametrize("salt_buckets", [1, 3])
def test_each_row_is_in_one_step_only(salt_buckets: int) -> None:
    """Steps meet at a millisecond in which rows began, and so do young rows, old ones and those
    ahead: a row of two steps would be reported twice."""
    rows = Rows()
    ages_ms = (*range(100), -AHEAD_MS, -AHEAD_MS + 1, DAY_MS, DAY_MS - 1)
    keys = [
        new_row_key(NOW_MS - age_ms, uid, salt_buckets) for age_ms in ages_ms for uid in range(9)
    ]
    rows.put(keys, Status.LOCKED)
    found = Counter(row.row for row in list_suspects(rows.context, Span(TXN), DAY_MS) if row.cells)
    assert found == Counter(keys)
    in_steps: Counter[bytes] = Counter()
    for bucket in find_buckets(rows.context):
        span = Span(TXN, bucket + NAME, bucket + NAME_END)
        in_steps.update(
            row.row for row in scan_in_steps(rows.context, span, first_ms=10) if row.cells
        )
    assert in_steps == Counter(keys)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("salt_buckets", [1, 3])
def test_ls_lists_what_a_look_at_every_row_lists(
    salt_buckets: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_TURNED_BYTES", size)
    rows = make_rows(5, salt_buckets, 150)
    serve(rows, monkeypatch)
    for status in (*Status, None):
        query = Query(statuses=frozenset({status}), with_parts=status is Status.PART)
        expected = [
            row.row.decode()
            for row in rows.context.store.scan(TXN)
            if read_status(row) is status and query.match(row, NOW_MS)
        ]
        expected.sort(key=text_order)
        for limit in (7, 10_000):
            found = run("--status", str(status or "none"), "--limit", str(limit))
            assert [line["transaction"] for line in found] == expected[-limit:]
    usual = Query(statuses=frozenset({*Status, None} - {Status.PART}))
    everything = [row.row for row in rows.context.store.scan(TXN) if usual.match(row, NOW_MS)]
    found = run("--limit", "10000")
    assert [line["transaction"].encode() for line in found] == sorted(everything, key=order)


def test_ls_counts_by_the_status_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(6, 3)
    serve(rows, monkeypatch)
    expected: Counter[str] = Counter()
    for row in rows.context.store.scan(TXN):
        if is_row_key(row.row) and parent_of(row.row) is None:
            expected[str(read_status(row) or "none")] += 1
    del expected[str(Status.PART)]  # of parts only
    found = run("--count")
    assert found[0] == {"statuses": expected, "total": expected.total()}
    assert run("--count", "--status", "5")[0]["total"] == expected["5-COMPLETE"] > 0


def text_order(row_key: str) -> bytes:
    return order(row_key.encode())


def serve(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def open_store_of(*_: Any) -> Iterator[Context]:
        yield rows.context

    monkeypatch.setattr(sys.modules["recovery.commands.ls"], "open_store_of", open_store_of)


def run(*options: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["ls", "--store", "memory://", "--json", *options])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("state") != "foreign"]
