"""The scanners that clients have opened and not closed yet, and how far each has come.

A scanner is a place in a table, never a transaction: each call reads its pages from where the last
one stopped. As with HBase, opening looks at nothing, so that what is wrong with the table comes out
at the first call. Scanners of clients that went away end with their lease. Their numbers begin
anywhere: one that a client has from another worker, or from before a restart, is of nobody here.

A call takes from its scanner what it returns, and nothing if it fails: it works on a copy of the
place, which the scanner gets at the end. If the reply does not reach the client, it is put back.
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
from txn.server.replies import Revocable
from txn.tables.operations import Range, Result, Selection
from txn.tables.refusal import Refused
from txn.tables.rows import PAGE_BYTES, Resume, Rows

ROWS_A_PAGE = 1_000
VERSION_OVERHEAD = 64


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scanner reads; limit: at most so many rows. in_order: how its cells are shown."""

    table: bytes
    rows: Range
    selection: Selection
    limit: int | None = None
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class ScannerLimits:
    """Bounds of the scanners of a process.

    open: so many at once. lease_ms: how long one lives unused. reply_bytes: of one call's rows, of
    which the first is always returned. call_ms: how long one call may look for them.
    """

    open: int = 10_000
    lease_ms: int = 120_000
    reply_bytes: int = 128 * 1024 * 1024
    call_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class _Place:
    """How far a scanner has come. left: so many rows may follow what was read; pending: read, and
    returned up to `at`."""

    left: int | None
    pending: Sequence[Result] = ()
    at: int = 0
    resume: Resume | None = None
    ended: bool = False

    def advance(self, count: int) -> tuple[Sequence[Result], _Place]:
        """Return at most so many of the pending results, and the place after them."""
        at = self.at + count
        if at < len(self.pending):
            return self.pending[self.at : at], replace(self, at=at)
        return self.pending[self.at :], replace(self, pending=(), at=0)


@dataclass(slots=True)
class _Scanner:
    scan: Scan
    place: _Place
    used_ms: int
    lock: threading.Lock = field(default_factory=threading.Lock)


class Scanners:
    """Safe for threads; calls of one scanner take turns."""

    def __init__(
        self, rows: Rows, clock: Clock, limits: ScannerLimits, rng: random.Random | None = None
    ) -> None:
        self._rows = rows
        self._clock = clock
        self._limits = limits
        self._open: OrderedDict[int, _Scanner] = OrderedDict()  # the longest unused first
        self._next = (rng or random.SystemRandom()).getrandbits(30)
        self._lock = threading.Lock()

    def open(self, scan: Scan) -> int:
        """Return the number of a new scanner."""
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
        """Return the next results as they are to be shown, fewer only at the end.

        None: there is no such scanner. Where that is too much, or takes too long, a call for fewer
        gets the same rows.
        """
        with self._lock:
            self._expire()
            scanner = self._open.get(number)
            if scanner is None:
                return None
            self._touch(number, scanner)
        with scanner.lock:
            before = scanner.place
            after, found = self._take(scanner, count)
            shown = Revocable(show(scanner.scan, found), partial(_put_back, scanner, before, after))
            scanner.place = after
        with self._lock:
            if number in self._open:
                self._touch(number, scanner)
        return shown

    def close(self, number: int) -> bool:
        """Forget a scanner; return whether there was one."""
        with self._lock:
            self._expire()
            return self._open.pop(number, None) is not None

    def first(self, scan: Scan, count: int) -> list[Result]:
        """Return the first results of a scan that is not kept open."""
        return self._take(self._new(scan), count)[1]

    def _new(self, scan: Scan) -> _Scanner:
        place = _Place(scan.limit, ended=scan.limit == 0)
        return _Scanner(scan, place, self._clock.monotonic_ms())

    def _expire(self) -> None:
        oldest_ms = self._clock.monotonic_ms() - self._limits.lease_ms
        while self._open:
            number, scanner = next(iter(self._open.items()))
            if scanner.used_ms >= oldest_ms:
                return
            del self._open[number]

    def _touch(self, number: int, scanner: _Scanner) -> None:
        scanner.used_ms = self._clock.monotonic_ms()
        self._open.move_to_end(number)

    def _take(self, scanner: _Scanner, count: int) -> tuple[_Place, list[Result]]:
        """Return the next results, and the place after them."""
        if count < 0:
            raise Refused("illegal argument", "a number of rows is not negative", rows=count)
        due_ms = self._clock.monotonic_ms() + self._limits.call_ms
        place, found, size = scanner.place, list[Result](), 0
        while len(found) < count and (place.pending or not place.ended):
            if self._clock.monotonic_ms() > due_ms:
                if size <= PAGE_BYTES:  # what it found is kept for the next call, which goes on
                    pending = [*found, *place.pending[place.at :]]
                    scanner.place = replace(place, pending=pending, at=0)
                raise StoreError("the scan took too long", limit=self._limits.call_ms)
            if not place.pending:
                place = self._fetch(scanner.scan, place, count - len(found))
            taken, place = place.advance(count - len(found))
            for result in taken:
                found.append(result)
                size += _size(result)
                if size > self._limits.reply_bytes and len(found) > 1:
                    message = "too much for one reply: ask for fewer"
                    raise Refused("do not retry", message, rows=count)
        return place, found

    def _fetch(self, scan: Scan, place: _Place, count: int) -> _Place:
        """Return the place after one more page, whose results are pending."""
        limit = min(count, ROWS_A_PAGE, count if place.left is None else place.left)
        page = self._rows.scan(
            scan.table, scan.rows, scan.selection, limit_rows=limit, resume=place.resume
        )
        left = place.left
        if left is not None:
            left -= sum(not result.partial for result in page.results)
        ended = page.resume is None or left == 0
        return _Place(left, page.results, resume=page.resume, ended=ended)


def _put_back(scanner: _Scanner, before: _Place, after: _Place) -> None:
    """Go back to the place before a call, unless another call has gone on from there."""
    with scanner.lock:
        if scanner.place is after:
            scanner.place = before


def _size(result: Result) -> int:
    return len(result.row) + sum(
        len(value) + len(column) + VERSION_OVERHEAD for _, column, _, value in result.versions
    )
