"""The scanners that clients have opened and not closed yet, and how far each has come.

A scanner is a place in a table, never a transaction: each call reads its pages from where the last
one stopped. As with HBase, opening looks at nothing, so that what is wrong with the table comes out
at the first call. Scanners of clients that went away end with their lease. Their numbers begin
anywhere: one that a client has from another worker, or from before a restart, is of nobody here.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from txn.clock import Clock
from txn.errors import StoreError
from txn.tables.operations import Range, Result, Selection
from txn.tables.refusal import Refused
from txn.tables.rows import Resume, Rows

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

    open: so many at once. lease_ms: how long one lives unused. reply_bytes: of one call's rows,
    call_ms: how long one call may look for them.
    """

    open: int = 10_000
    lease_ms: int = 120_000
    reply_bytes: int = 128 * 1024 * 1024
    call_ms: int = 60_000


@dataclass(slots=True)
class _Scanner:
    scan: Scan
    left: int | None
    used_ms: int
    pending: deque[Result] = field(default_factory=deque)
    resume: Resume | None = None
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Scanners:
    """Safe for threads; calls of one scanner take turns."""

    def __init__(
        self, rows: Rows, clock: Clock, limits: ScannerLimits, chance: random.Random | None = None
    ) -> None:
        self._rows = rows
        self._clock = clock
        self._limits = limits
        self._open: OrderedDict[int, _Scanner] = OrderedDict()  # the longest unused first
        self._next = (chance or random.SystemRandom()).getrandbits(30)
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

    def next(self, number: int, count: int) -> tuple[Scan, list[Result]] | None:
        """Return the next results, fewer only at the end; None if there is no such scanner."""
        with self._lock:
            self._expire()
            scanner = self._open.get(number)
            if scanner is None:
                return None
            self._touch(number, scanner)
        with scanner.lock:
            found = self._take(scanner, count)
        with self._lock:
            if number in self._open:
                self._touch(number, scanner)
        return scanner.scan, found

    def close(self, number: int) -> bool:
        """Forget a scanner; return whether there was one."""
        with self._lock:
            self._expire()
            return self._open.pop(number, None) is not None

    def first(self, scan: Scan, count: int) -> list[Result]:
        """Return the first results of a scan that is not kept open."""
        return self._take(self._new(scan), count)

    def _new(self, scan: Scan) -> _Scanner:
        return _Scanner(scan, scan.limit, self._clock.monotonic_ms(), ended=scan.limit == 0)

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

    def _take(self, scanner: _Scanner, count: int) -> list[Result]:
        if count < 0:
            raise Refused("illegal argument", "a number of rows is not negative", rows=count)
        due_ms = self._clock.monotonic_ms() + self._limits.call_ms
        found: list[Result] = []
        size = 0
        while len(found) < count and (scanner.pending or not scanner.ended):
            if not scanner.pending:
                self._fetch(scanner, count - len(found))
                size += _size(scanner.pending)
            while scanner.pending and len(found) < count:
                found.append(scanner.pending.popleft())
            if size > self._limits.reply_bytes:
                raise Refused("do not retry", "too much for one reply: ask for fewer", rows=count)
            if self._clock.monotonic_ms() > due_ms:
                raise StoreError("the scan took too long", limit=self._limits.call_ms)
        return found

    def _fetch(self, scanner: _Scanner, count: int) -> None:
        scan = scanner.scan
        limit = min(count, ROWS_A_PAGE, count if scanner.left is None else scanner.left)
        page = self._rows.scan(
            scan.table, scan.rows, scan.selection, limit_rows=limit, resume=scanner.resume
        )
        scanner.pending.extend(page.results)
        scanner.resume = page.resume
        if scanner.left is not None:
            scanner.left -= sum(not result.partial for result in page.results)
        scanner.ended = page.resume is None or scanner.left == 0


def _size(results: Iterable[Result]) -> int:
    size = 0
    for result in results:
        for _, column, _, value in result.versions:
            size += len(value) + len(column) + VERSION_OVERHEAD
    return size
