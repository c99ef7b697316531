"""The unfinished of a whole table: found in steps, counted, the oldest kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from recovery.console.search import OLDEST, UNKNOWN, Unfinished, UnfinishedScan
from tests.unit.test_search import NOW_MS, TXN, Fetching, Rows
from txn.errors import StoreError
from txn.model import Edit, Row
from txn.protocol.listing import strip_bucket
from txn.protocol.row import column, new_row_key
from txn.protocol.statuses import FENCED, Status
from txn.testing.faulty import Fault, FaultyStore, Reply


def scan_all(scan: UnfinishedScan, ms: int = 1_000) -> Unfinished:
    """Go on to the end of a round."""
    while not (found := scan.advance(ms)).is_complete:
        pass
    return found


def test_the_unfinished_are_counted_and_the_oldest_are_kept() -> None:
    rows = Rows()
    rows.put([new_row_key(NOW_MS - at, at) for at in range(500)])
    old = rows.put([b"01." + new_row_key(NOW_MS - 10**9, 1)], Status.LOCKED, at_ms=5)
    ahead = rows.put([new_row_key(NOW_MS + 10**9, 1)], Status.ASSERTED, at_ms=3)
    rows.put([b"00." + new_row_key(NOW_MS - at, at) for at in range(9)], Status.WRITTEN)
    rows.put([new_row_key(NOW_MS, 7_777)], Status.ABORTED)
    scan = UnfinishedScan(rows.context)
    found = scan_all(scan)
    assert found.statuses == {"0-WRITTEN": 9, "1-LOCKED": 1, "2-ASSERTED": 1}
    assert found.rows == 11
    assert [head.row_key for head in found.oldest[:2]] == [*ahead, *old]
    assert [(head.status, head.since) for head in found.oldest[:2]] == [
        (Status.ASSERTED, 3),
        (Status.LOCKED, 5),
    ]
    assert scan.latest == found
    assert found.has_all


def test_only_the_oldest_and_the_first_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.console.search.MAX_HEADS", 70)
    rows = Rows()
    for at in range(100):
        rows.put([new_row_key(NOW_MS - at, at)], Status.LOCKED, at_ms=NOW_MS - at)
    found = scan_all(UnfinishedScan(rows.context))
    assert (found.rows, len(found.heads), found.has_all) == (100, 70, False)
    assert [head.since for head in found.oldest] == [*range(NOW_MS - 99, NOW_MS - 99 + OLDEST)]


def test_those_with_a_status_are_listed_newest_first() -> None:
    rows = Rows()
    keys = [b"%02d." % (at % 3) + new_row_key(NOW_MS - at, at) for at in range(9)]
    rows.put(keys, Status.LOCKED)
    rows.put([new_row_key(NOW_MS - 4, 99)], Status.WRITTEN)
    found = scan_all(UnfinishedScan(rows.context))
    listed = found.select([Status.LOCKED], strip_bucket(keys[2]))
    assert [head.row_key for head in listed] == keys[3:]
    assert found.select([Status.PUT], b"x") == []


def test_a_round_begins_anew() -> None:
    rows = Rows()
    (row_key,) = rows.put([new_row_key(NOW_MS, 1)], Status.LOCKED)
    scan = UnfinishedScan(rows.context)
    assert scan_all(scan).rows == 1
    rows.put([row_key], Status.COMPLETE, at_ms=NOW_MS + 1)
    rows.clock.advance(5)
    found = scan_all(scan)
    assert (found.rows, found.oldest, found.as_of) == (0, [], NOW_MS + 5)
    assert scan_all(UnfinishedScan(Rows().context)).rows == 0


def test_what_is_finished_is_not_sent() -> None:
    rows = Rows()
    rows.put([new_row_key(NOW_MS - 100 * at, at) for at in range(20_000)])
    rows.put([new_row_key(NOW_MS - 100_000, 77_777)], Status.PUT)
    store = Fetching(rows.store)
    found = scan_all(UnfinishedScan(replace(rows.context, store=store)))
    assert found.rows == 1
    assert store.rows < 50
    assert store.calls["scan"] < 50


class Pondering(Fetching):
    """A store that takes a millisecond for each row that it passes."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows.store)
        self.slowest = 0
        self._rows_of = rows

    def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
        table, start, stop = args[:3]
        if len(args) > 4 and args[4]:  # the filter has to look at each
            passed = sum(1 for _ in self._rows_of.store.scan(table, start, stop, args[3]))
            self.slowest = max(self.slowest, passed)
            self._rows_of.clock.advance(passed)
        yield from super().scan(*args, **options)


def test_a_step_takes_about_the_time_that_it_is_given() -> None:
    rows, rng = Rows(), Random(1)
    for far in (0, 10**7, 10**10):
        keys = [new_row_key(NOW_MS - far - 10 * at, rng.getrandbits(99)) for at in range(3_000)]
        rows.put(keys)
        rows.put(keys[::500], Status.LOCKED, at_ms=NOW_MS + 1)
    store = Pondering(rows)
    scan = UnfinishedScan(replace(rows.context, store=store))
    steps = []
    while True:
        began_ms = rows.clock.monotonic_ms()
        found = scan.advance(400)
        steps.append(rows.clock.monotonic_ms() - began_ms)
        if found.is_complete:
            break
        assert scan.latest is None
    assert found.statuses == {"1-LOCKED": 18}
    assert len(steps) > 10
    assert max(steps) <= 1_000
    assert store.calls["scan"] < 400


def test_a_step_that_fails_leaves_no_round_that_seems_whole() -> None:
    rows = Rows()
    rows.put([new_row_key(NOW_MS - at, at) for at in range(5)], Status.LOCKED)
    faulty = FaultyStore(rows.store, lambda call: Fault())
    scan = UnfinishedScan(replace(rows.context, store=faulty))
    failing = Fault(frozenset(), Reply.NOT_APPLIED)
    for failed in (1, 2):  # the look for buckets, and the first stretch
        scans = iter(range(1, 10))
        faulty.plan = lambda call, at=failed, seen=scans: (  # type: ignore[misc]
            failing if next(seen, 99) > at else Fault()
        )
        with pytest.raises(StoreError):
            scan.advance(1_000)
        assert scan.latest is None
    faulty.plan = lambda call: Fault()
    found = scan_all(scan)
    assert (found.statuses, found.is_complete) == ({"1-LOCKED": 5}, True)


@pytest.mark.parametrize("prefix", [b"", b"00."])
def test_rows_of_others_hide_nothing(prefix: bytes) -> None:
    rows = Rows()
    rows.put([prefix + new_row_key(NOW_MS, 1)], Status.LOCKED)
    for junk in (b"transaction.0junk", b"transaction.", b"transaction.zebra"):
        rows.store.write([Edit(column(TXN, prefix + junk, b"status"), b"x", NOW_MS)])
    assert scan_all(UnfinishedScan(rows.context)).statuses == {"1-LOCKED": 1}


def test_a_status_of_a_newer_version_is_counted_as_unknown() -> None:
    rows = Rows()
    strange = column(TXN, new_row_key(NOW_MS, 1), b"status")
    rows.store.write([Edit(strange, b"9-NEW", NOW_MS)])
    found = scan_all(UnfinishedScan(rows.context))
    assert (found.statuses, found.oldest) == ({UNKNOWN: 1}, [])


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_a_status_is_as_old_as_the_server_says(protocol: str) -> None:
    rows = Rows()
    row_key = new_row_key(NOW_MS, 1)
    cells = {b"status": (b"2-ASSERTED", 7), Status.ASSERTED.at: (b"", 9)}
    rows.store.write([Edit(column(TXN, row_key, name), *cell) for name, cell in cells.items()])
    fenced = protocol == "fenced"
    context = replace(rows.context, rules=FENCED) if fenced else rows.context
    assert scan_all(UnfinishedScan(context)).oldest[0].since == (9 if fenced else 7)
