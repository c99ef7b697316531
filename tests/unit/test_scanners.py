"""What clients have open: bounds, leases, and that no row is lost or comes twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from unittest.mock import patch

import pytest

from txn.clock import ManualClock
from txn.emulator import scanners as module
from txn.emulator.gateway import range_of
from txn.emulator.scanners import Scan, ScannerLimits, Scanners
from txn.errors import StoreError
from txn.model import MAX_ROW
from txn.tables.admin import Admin
from txn.tables.filters.parsing import parse_filter
from txn.tables.kv.memory import MemoryStore
from txn.tables.kv.ordered import Reader
from txn.tables.operations import FamilySettings, Put, Range, Refused, Result, Selection
from txn.tables.rows import Rows

R = TypeVar("R")
ALL = Scan(b"t", Range(), Selection())
SCANS = {
    "forwards": ALL,
    "backwards": Scan(b"t", Range(reverse=True), Selection()),
    "in batches": Scan(b"t", Range(), Selection(batch=2)),
    "with a limit": Scan(b"t", Range(), Selection(), limit=50),
    "with a filter": Scan(b"t", Range(), Selection(filter=parse_filter(b"PageFilter(70)"))),
}


class ShakyStore(MemoryStore):
    """A store whose reads take time, and one of which fails."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.read_ms = 0
        self.fails_in = 0

    def read(self, body: Callable[[Reader], R]) -> R:
        self._clock.advance(self.read_ms)
        self.fails_in -= 1
        if self.fails_in == 0:
            raise StoreError("the disk is gone")
        return super().read(body)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> ShakyStore:
    return ShakyStore(clock)


def opened(store: MemoryStore, clock: ManualClock, limits: ScannerLimits) -> Scanners:
    """Scanners of a table `t` of a hundred rows of 100 bytes in each of three cells."""
    Admin(store, clock).create(b"t", {b"d": FamilySettings()})
    rows = Rows(store, clock)
    puts = [Put(b"d", column, b"v" * 100) for column in (b"x", b"y", b"z")]
    rows.mutate(b"t", [(b"%02d" % n, puts) for n in range(100)])
    return Scanners(rows, clock, limits)


def show(_: Scan, results: list[Result]) -> list[Result]:
    return results


def read_to_the_end(scanners: Scanners, number: int, counts: list[int]) -> list[Any]:
    """Ask for these numbers of results, the last one until the end; again for what was refused."""
    found: list[Any] = []
    for attempt in range(1000):
        count = counts[min(attempt, len(counts) - 1)]
        try:
            got = scanners.next(number, count, show)
        except (ValueError, StoreError):
            continue
        assert got is not None
        if not got:
            return found
        found += got
    raise AssertionError("it does not end")


@pytest.fixture(params=SCANS, ids=str)
def scan(request: pytest.FixtureRequest) -> Scan:
    return SCANS[request.param]


def whole(scan: Scan) -> list[Any]:
    """What the scan finds where nothing goes wrong."""
    clock = ManualClock()
    scanners = opened(MemoryStore(), clock, ScannerLimits())
    return read_to_the_end(scanners, scanners.open(scan), [1000])


@pytest.mark.parametrize(
    "trouble",
    [
        (ScannerLimits(reply_bytes=5000), 0, module.PAGE_BYTES, [100, 40, 3]),
        (ScannerLimits(call_ms=1000), 400, module.PAGE_BYTES, [60]),
        (ScannerLimits(call_ms=1000), 400, 1000, [60, 60, 5]),
    ],
)
def test_a_scan_of_too_much_or_too_long_loses_no_rows(
    scan: Scan, store: ShakyStore, clock: ManualClock, trouble: tuple[Any, ...]
) -> None:
    """What was read in vain is returned by the next call, or read again."""
    limits, read_ms, page_bytes, counts = trouble
    scanners, store.read_ms = opened(store, clock, limits), read_ms
    with patch.multiple(module, ROWS_A_PAGE=7, PAGE_BYTES=page_bytes):
        assert read_to_the_end(scanners, scanners.open(scan), counts) == whole(scan)


@pytest.mark.parametrize("fails_in", [1, 2, 3, 4])
def test_a_store_that_fails_half_way_costs_no_rows(
    scan: Scan, store: ShakyStore, clock: ManualClock, fails_in: int
) -> None:
    scanners = opened(store, clock, ScannerLimits())
    number = scanners.open(scan)
    first = scanners.next(number, 10, show)
    store.fails_in = fails_in
    assert first is not None
    assert first + read_to_the_end(scanners, number, [60, 30]) == whole(scan)


def test_what_is_lost_is_returned_again(scan: Scan, store: ShakyStore, clock: ManualClock) -> None:
    def fail(_: Scan, __: list[Result]) -> list[Any]:
        raise RuntimeError("cannot be shown")

    scanners = opened(store, clock, ScannerLimits())
    number = scanners.open(scan)
    kept = scanners.next(number, 3, show)
    lost = scanners.next(number, 4, show)
    with pytest.raises(RuntimeError):
        scanners.next(number, 4, fail)
    assert kept is not None
    assert lost is not None
    kept.revoke()  # too late: the client has gone on
    lost.revoke()
    assert kept + read_to_the_end(scanners, number, [4]) == whole(scan)


def test_a_scanner_ends_with_its_lease(store: ShakyStore, clock: ManualClock) -> None:
    scanners = opened(store, clock, ScannerLimits(lease_ms=1000))
    used, forgotten = scanners.open(ALL), scanners.open(ALL)
    clock.advance(900)
    assert scanners.next(used, 1, show) is not None
    clock.advance(900)
    assert scanners.next(forgotten, 1, show) is None
    assert scanners.next(used, 1, show) is not None
    assert not scanners.close(forgotten)


def test_a_scanner_of_another_worker_is_not_taken_for_one_of_ours(clock: ManualClock) -> None:
    """A client that comes back to another worker must not be given what somebody else scans."""
    limits = ScannerLimits()
    here, there = opened(MemoryStore(), clock, limits), opened(MemoryStore(), clock, limits)
    number = there.open(ALL)
    here.open(ALL)
    assert here.next(number, 1, show) is None
    assert not here.close(number)


def test_only_so_many_scanners_are_open(store: ShakyStore, clock: ManualClock) -> None:
    scanners = opened(store, clock, ScannerLimits(open=2, lease_ms=1000))
    first = scanners.open(ALL)
    scanners.open(ALL)
    with pytest.raises(StoreError, match="too many open scanners"):
        scanners.open(ALL)
    assert scanners.close(first)
    scanners.open(ALL)
    clock.advance(1001)
    scanners.open(ALL)


def test_a_reply_is_bounded(store: ShakyStore, clock: ManualClock) -> None:
    scanners = opened(store, clock, ScannerLimits(reply_bytes=5000))
    with pytest.raises(ValueError, match="ask for fewer"):
        scanners.next(scanners.open(ALL), 100, show)
    assert len(scanners.next(scanners.open(ALL), 5, show) or ()) == 5
    narrow = Scanners(Rows(store, clock), clock, ScannerLimits(reply_bytes=100))
    assert len(read_to_the_end(narrow, narrow.open(ALL), [2, 1])) == 100, "none is skipped"


def test_a_range_names_the_length_of_the_bound_that_is_too_long() -> None:
    for bounds in ((bytes(MAX_ROW + 1), b""), (b"", bytes(MAX_ROW + 1))):
        with pytest.raises(Refused, match=f"bytes={MAX_ROW + 1}"):
            range_of(*bounds)
