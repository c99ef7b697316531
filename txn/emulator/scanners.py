"""The open scanners of clients, and their positions.

A scanner is a position in a table, not a transaction: each call reads pages from where the last one
stopped. As in HBase, opening a scanner does not access the table, so the first call reports errors.
Scanners of clients that went away expire. Numbers start at a random value, so that a number from
another worker, or from before a restart, is unknown here.

A call consumes the results it returns, and nothing if it fails: it works on a copy of the position,
which it stores at the end. If the reply does not reach the client, the old position is restored.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from txn.clock import Clock
from txn.errors import StoreError
from txn.server.connection import Revocable
from txn.tables.operations import Range, Refused, Result, Selection
from txn.tables.rows import PAGE_BYTES, Resume, Rows

ROWS_A_PAGE = 1_000
VERSION_OVERHEAD = 64


@dataclass(frozen=True, slots=True)
class Scan:
    """The scan of a scanner. limit: most rows. in_order: show cells as a sorted list."""

    table: bytes
    rows: Range
    selection: Selection
    limit: int | None = None
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class ScannerLimits:
    """Bounds of the scanners of a process.

    open: most open scanners. lease_ms: how long an unused one lives. reply_bytes: size of one
    call's rows; the first is always returned. call_ms: time for reading in one call.
    """

    open: int = 10_000
    lease_ms: int = 120_000
    reply_bytes: int = 128 * 1024 * 1024
    call_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class _Position:
    """The progress of a scanner. left: how many rows may still be read. pending: results that were
    read; those before index `at` were returned."""

    left: int | None
    pending: Sequence[Result] = ()
    at: int = 0
    resume: Resume | None = None
    ended: bool = False

    def advance(self, count: int) -> tuple[Sequence[Result], _Position]:
        at = self.at + count
        if at < len(self.pending):
            return self.pending[self.at : at], replace(self, at=at)
        return self.pending[self.at :], replace(self, pending=(), at=0)


@dataclass(slots=True)
class _Scanner:
    scan: Scan
    position: _Position
    used_ms: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put_back(self, before: _Position, after: _Position) -> None:
        """Restore the position before a call, unless a later call has moved on."""
        with self.lock:
            if self.position is after:
                self.position = before


class Scanners:
    """Safe to share between threads; calls of one scanner run one at a time."""

    def __init__(self, rows: Rows, clock: Clock, limits: ScannerLimits) -> None:
        self._rows = rows
        self._clock = clock
        self._limits = limits
        self._open: OrderedDict[int, _Scanner] = OrderedDict()  # least recently used first
        self._next = random.SystemRandom().getrandbits(30)
        self._lock = threading.Lock()

    def open(self, scan: Scan) -> int:
        scanner = self._new(scan)
        with self._lock:
            self._expire()
            if len(self._open) >= self._limits.open:
                raise StoreError("too many open scanners", limit=self._limits.open)
            number = self._next
            self._next = (number + 1) & 0x7FFF_FFFF
            self._open[number] = scanner
        return number

    def next(
        self, number: int, count: int, show: Callable[[Scan, list[Result]], list[Any]]
    ) -> Revocable | None:
        """Return the next results, as `show` makes them; fewer than `count` only at the end.
        Returns None if there is no such scanner. After an error because of size or time, a call for
        fewer rows gets the same rows."""
        with self._lock:
            self._expire()
            scanner = self._open.get(number)
            if scanner is None:
                return None
            self._touch(number, scanner)
        with scanner.lock:
            before = scanner.position
            after, found = self._take(scanner, count)
            shown = Revocable(show(scanner.scan, found), partial(scanner.put_back, before, after))
            scanner.position = after
        with self._lock:
            if number in self._open:
                self._touch(number, scanner)
        return shown

    def close(self, number: int) -> bool:
        """Forget a scanner; return False if there was none."""
        with self._lock:
            self._expire()
            return self._open.pop(number, None) is not None

    def first(self, scan: Scan, count: int) -> list[Result]:
        return self._take(self._new(scan), count)[1]

    def _new(self, scan: Scan) -> _Scanner:
        position = _Position(scan.limit, ended=scan.limit == 0)
        return _Scanner(scan, position, self._clock.monotonic_ms())

    def _expire(self) -> None:
        oldest_ms = self._clock.monotonic_ms() - self._limits.lease_ms
        while self._open and next(iter(self._open.values())).used_ms < oldest_ms:
            self._open.popitem(last=False)

    def _touch(self, number: int, scanner: _Scanner) -> None:
        scanner.used_ms = self._clock.monotonic_ms()
        self._open.move_to_end(number)

    def _take(self, scanner: _Scanner, count: int) -> tuple[_Position, list[Result]]:
        if count < 0:
            raise Refused("illegal argument", "a number of rows is not negative", rows=count)
        due_ms = self._clock.monotonic_ms() + self._limits.call_ms
        position, found, size = scanner.position, list[Result](), 0
        while len(found) < count and (position.pending or not position.ended):
            if self._clock.monotonic_ms() > due_ms:
                if size <= PAGE_BYTES:  # keep the results for the next call, which continues
                    pending = [*found, *position.pending[position.at :]]
                    scanner.position = replace(position, pending=pending, at=0)
                raise StoreError("the scan took too long", limit=self._limits.call_ms)
            if not position.pending:
                position = self._fetch(scanner.scan, position, count - len(found))
            taken, position = position.advance(count - len(found))
            for result in taken:
                found.append(result)
                size += len(result.row) + sum(
                    len(value) + len(column) + VERSION_OVERHEAD
                    for _, column, _, value in result.versions
                )
                if size > self._limits.reply_bytes and len(found) > 1:
                    message = "too much for one reply: ask for fewer"
                    raise Refused("do not retry", message, rows=count)
        return position, found

    def _fetch(self, scan: Scan, position: _Position, count: int) -> _Position:
        left = position.left
        limit = min(count, ROWS_A_PAGE, count if left is None else left)
        page = self._rows.scan(
            scan.table, scan.rows, scan.selection, limit_rows=limit, resume=position.resume
        )
        if left is not None:
            left -= sum(not result.partial for result in page.results)
        ended = page.resume is None or left == 0
        return _Position(left, page.results, resume=page.resume, ended=ended)
