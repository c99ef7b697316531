"""Transactions, the newest first, a page at a time, whatever the size of the table.

A look goes back in windows of time, all buckets at once. A window that holds nothing is followed by
a longer one; one that holds more rows than are looked at together is cut shorter, where one
millisecond holds more of them down to a part of its row keys. Each row is looked at once on the way
through all pages, in the order of beginnings and row keys, also what clocks that are ahead have
begun. Nothing here writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from recovery.bounds import Budget, LookLimits, Stop
from recovery.console.positions import (
    AGE_CELLS,
    BEHIND,
    END_MS,
    NAME,
    STATUS_CELLS,
    Positions,
    find_firsts,
    list_transactions,
)
from recovery.scan import AHEAD_MS, has_piece, leave_out, reaches_part, whole_row
from txn.model import Columns, Key, Row, RowExclusion
from txn.protocol.context import Context, call_store
from txn.protocol.row import (
    COLUMNS,
    TransactionRow,
    column,
    decode_row,
    is_row_key,
    parent_of,
    strip_database,
)
from txn.protocol.statuses import Status
from txn.request import Request
from txn.spans import Span

MOST_AT_ONCE = 1_000
FIRST_WINDOW_MS = 10_000
UID_DIGITS = 32
DEFAULT = LookLimits()
_PIECE = re.compile(
    rb"(\d\d\.)?(?:transaction\.(\d{0,13})|(\d{13}))(?:\.([0-9a-f]{0,32}(?:\.part-[\d-]*)?))?"
)


@dataclass(frozen=True, slots=True)
class WantedTransactions:
    """Which transactions. Whatever is not given holds for all.

    id_: a piece of the row key, as `txn show` takes it. A whole one, or one that begins with the
    time, is gone straight to; 13 digits alone are a time. One with a `-` means rows of parts.
    key, table: which a request names. label: `name=value`, or a text within a label.
    statuses: None among them is a row without one. older_than_ms, newer_than_ms: for how long it
    has had its status; older ones whose row key says that they were begun more than an hour after
    that are not found. with_parts: rows of parts as well.
    """

    id_: bytes = b""
    key: Key | None = None
    table: bytes | None = None
    statuses: frozenset[Status | None] | None = None
    label: str | None = None
    older_than_ms: int | None = None
    newer_than_ms: int | None = None
    with_parts: bool = False

    @property
    def needs_request(self) -> bool:
        """Whether only a transaction's request tells if it is wanted."""
        return not (self.key is None and self.table is None and self.label is None)

    @property
    def needs_age(self) -> bool:
        """Whether it counts since when a row has its status."""
        return not (self.older_than_ms is None and self.newer_than_ms is None)

    @property
    def looks_at_parts(self) -> bool:
        """Whether rows of parts are wanted: nothing else has a `-`."""
        return self.with_parts or reaches_part(self.id_)

    def takes_key(self, row_key: bytes) -> bool:
        """Whether a row is wanted, as far as its key tells."""
        if parent_of(row_key) is not None and not self.looks_at_parts:
            return False
        return not self.id_ or has_piece(row_key, self.id_)

    def takes_status(self, row: TransactionRow, now_ms: int) -> bool:
        """Whether a row is wanted, as far as its status tells."""
        if self.statuses is not None and row.status not in self.statuses:
            return False
        age_ms = now_ms - (row.since or row.newest)
        if self.older_than_ms is not None and age_ms < self.older_than_ms:
            return False
        return self.newer_than_ms is None or age_ms <= self.newer_than_ms

    def takes_request(self, request: Request | None) -> bool:
        """Whether a row is wanted, as far as its request tells; one that does not decode is not."""
        if not self.needs_request:
            return True
        if request is None or not self._has_label(request):
            return False
        keys = request.keys
        if self.key is not None and self.key not in keys:
            return False
        return self.table is None or any(key.table == self.table for key in keys)

    def _has_label(self, request: Request) -> bool:
        if self.label is None:
            return True
        name, equals, text = self.label.partition("=")
        if equals:
            return request.labels.get(name) == text
        return any(name in each for label in request.labels.items() for each in label)


@dataclass(frozen=True, slots=True)
class TransactionPage:
    """Transactions, the newest first.

    next: from where to look further back; None: the beginning of the table was reached. looked: how
    many rows were looked at for these. stopped: why the look went no further, and back_to: to what
    time (ms, of row keys) it went; None: to the beginning.
    """

    rows: list[TransactionRow]
    next: bytes | None
    looked: int
    stopped: Stop
    back_to: int | None = None


class _Seen(NamedTuple):
    """A row as it was found in a window."""

    position: int
    cells: Row


class _TooMany(Exception):
    """A window holds more than is looked at together. first: before which position there is none of
    it, as far as is known; got: which part of the rest was read until there was too much."""

    def __init__(self, first: int, got: float) -> None:
        super().__init__(first, got)
        self.first = first
        self.got = got


class _OutOfBudget(Exception):
    """A limit was reached within a window."""


def browse(
    context: Context,
    wanted: WantedTransactions,
    before: bytes | None = None,
    limits: LookLimits = DEFAULT,
    count: int = 50,
) -> TransactionPage:
    """Return the newest transactions that are wanted, or those that come behind a cursor: the
    `next` of a page, a row key, or a time of 13 digits. InvalidRequestError for any other."""
    cells = whole_row(context, wanted.id_) if is_row_key(wanted.id_) else None
    if cells is not None:
        return TransactionPage([decode_row(cells)], None, 1, Stop.BEGINNING)
    return _Look(context, wanted, limits, count).find_page(before)


class _Look:
    """One look back: its windows, and what it has found."""

    def __init__(
        self, context: Context, wanted: WantedTransactions, limits: LookLimits, count: int
    ) -> None:
        self._context = context
        self._wanted = wanted
        self._count = count
        self._budget = Budget(context.clock, limits)
        self._now_ms = context.clock.wall_ms()
        firsts = find_firsts(context)
        self._at = Positions(list(firsts), context.table)
        self._oldest = min(map(self._at.find_row, firsts.values()), default=0)
        self._spans = _list_spans(self._at, wanted.id_)
        self._at_once = max(1, min(limits.rows, 2 * count))
        self._width = self._at.find_time(FIRST_WINDOW_MS)
        self._windows = 0
        self._looked = 0
        self._rows: list[TransactionRow] = []

    def find_page(self, before: bytes | None) -> TransactionPage:
        """Go back, window by window, until there is a reason to stop."""
        end = self._at.find_time(END_MS)
        high = end if before is None else min(end, self._at.read_cursor(before))
        low, high, last = self._find_range(high)
        age = self._find_age_limit(high)
        while high > last:
            low = max(low, last if high <= age else max(last, age))
            try:
                seen = self._read_window(low, high)
            except _OutOfBudget:
                return self._stop_at(high)
            except _TooMany as error:
                low = self._cut(error.first, high, error.got)
                continue
            page = self._take(seen, low, last)
            if page is not None:
                return page
            self._widen(len(seen), high - low)
            high, low = low, self._find_low(low)
            if high > last and (self._budget.over or high == age):
                return self._stop_at(high)
        return self._end()

    def _find_range(self, high: int) -> tuple[int, int, int]:
        """Return from where the first window goes, to where, and where the last one ends: before
        all that a time in the piece, or an age, leaves out."""
        first, behind = _find_times(self._wanted.id_)
        high = min(high, self._at.find_time(behind))
        now = self._at.find_time(self._now_ms + 1)
        low = now if high > now else self._find_low(high)
        if self._wanted.older_than_ms is not None:
            old_ms = self._now_ms - self._wanted.older_than_ms
            high = min(high, self._at.find_time(old_ms + AHEAD_MS))
            low = min(low, self._find_low(high))
        return low, high, self._at.find_time(first)

    def _find_low(self, high: int) -> int:
        """Return from where the next window goes: at the oldest row, from the beginning."""
        low = high - self._width
        return low if low >= self._oldest else 0

    def _find_age_limit(self, high: int) -> int:
        """Return the position that all of what is young enough lies behind by its row key; 0 where
        the look begins before it, or nothing is left out."""
        if self._wanted.newer_than_ms is None:
            return 0
        limit = self._at.find_time(self._now_ms - self._wanted.newer_than_ms)
        return limit if limit < high else 0

    # ------------------------------------------------------------------------------- windows

    def _read_window(self, low: int, high: int) -> list[_Seen]:
        """Return the rows of a window, the newest first."""
        found: dict[bytes, _Seen] = {}
        size, most = 0, self._budget.limits.bytes_ // 4
        for rank, got, row in self._list_window(low, high):
            if self._windows and self._budget.over:
                raise _OutOfBudget
            size += self._budget.spend(row)
            if not is_row_key(row.row):
                continue
            position = self._at.find_row(row.row)
            found[row.row] = _Seen(position, row)
            if len(found) > 1 and (len(found) > self._at_once or size > most):
                first = min(each.position for each in found.values())
                part = (position - first) / (high - first)
                raise _TooMany(first, (rank + part) / len(self._at.salt_buckets) if got else 1)
        self._windows += 1
        return sorted(found.values(), reverse=True, key=lambda each: each.position)

    def _list_window(self, low: int, high: int) -> Iterator[tuple[int, bool, Row]]:
        """Yield the rows of each bucket with the number of the bucket. Of those with a status it is
        that, where it tells enough; those without come behind them, with all that they have."""
        wanted = self._wanted
        cells: Columns = None
        if not wanted.needs_request:
            is_by_owner = self._context.rules.locks_rows
            cells = AGE_CELLS if wanted.needs_age and is_by_owner else STATUS_CELLS
        for rank in range(len(self._at.salt_buckets)):
            for row in self._list_bucket(rank, low, high, cells):
                yield rank, True, row
        if cells is not None and (wanted.statuses is None or None in wanted.statuses):
            for rank in range(len(self._at.salt_buckets)):
                for row in self._list_bucket(rank, low, high, None, leave_out(Status)):
                    yield rank, False, row

    def _list_bucket(
        self, rank: int, low: int, high: int, cells: Columns, exclude: RowExclusion | None = None
    ) -> Iterator[Row]:
        first, behind = self._spans[rank]
        start = max(first, self._at.find_start(rank, low))
        stop = min(behind, self._at.find_start(rank, high))
        span = Span(self._context.table, start, stop)
        passing = None if self._wanted.looks_at_parts else self._budget.spend
        return list_transactions(self._context, span, cells, exclude, passing)

    def _cut(self, first: int, high: int, got: float) -> int:
        """Return from where a window goes that may hold little enough: half of what holds too much,
        or as much as the part that was read until then."""
        width = min((high - first) // 2, int((high - first) * got * 0.75))
        self._width = max(1, width)
        return high - self._width

    def _widen(self, found: int, width: int) -> None:
        """Let more be looked at together, and the next window be as long as promises three quarters
        of that, or what is left of the limit, and no more than four times as long."""
        most = self._budget.limits.rows
        if found:
            self._at_once = max(1, min(2 * self._at_once, MOST_AT_ONCE, most))
        room = max(1, min(3 * self._at_once // 4, most - self._budget.rows))
        wanted = width * room // found if found else 4 * width
        self._width = max(1, min(4 * self._width, wanted))

    # -------------------------------------------------------------------------------- results

    def _take(self, seen: list[_Seen], low: int, last: int) -> TransactionPage | None:
        """Take what is wanted of a window; return the page where that is enough."""
        due = [each for each in seen if self._is_wanted(each.cells)]
        for left, (each, row) in enumerate(zip(due, self._load(due), strict=True), 1 - len(due)):
            if row is not None:
                self._rows.append(row)
            is_over = self._is_full or self._budget.over in (Stop.BYTES, Stop.TIME)
            if is_over and left < 0:
                self._looked += sum(other.position >= each.position for other in seen)
                return self._stop_at(each.position)
        self._looked += len(seen)
        if not self._is_full:
            return None
        return self._stop_at(low) if low > last else self._end()

    @property
    def _is_full(self) -> bool:
        return len(self._rows) >= self._count

    def _end(self) -> TransactionPage:
        return TransactionPage(self._rows, None, self._looked, Stop.BEGINNING)

    def _is_wanted(self, cells: Row) -> bool:
        if not self._wanted.takes_key(cells.row):
            return False
        row = decode_row(cells)
        if not self._wanted.takes_status(row, self._now_ms):
            return False
        return self._wanted.takes_request(row.buffer.request if row.buffer else None)

    def _load(self, found: list[_Seen]) -> Iterator[TransactionRow | None]:
        """Yield the rows wholly, some at a time, as they are now; None where one has changed and is
        not wanted any more."""
        if self._wanted.needs_request:
            yield from (decode_row(each.cells) for each in found)
            return
        for some in self._budget.divide(found):
            for row in self._read_parent([each.cells.row for each in some]):
                self._budget.spend(row, again=True)
                decoded = decode_row(row)
                is_there = bool(row.cells) and self._wanted.takes_status(decoded, self._now_ms)
                yield decoded if is_there else None

    def _read_parent(self, row_keys: list[bytes]) -> list[Row]:
        table = self._context.table
        keys = {row: [column(table, row, name) for name in COLUMNS] for row in row_keys}
        asked = [key for each in keys.values() for key in each]
        found = call_store(self._context, lambda: self._context.store.read(asked))
        return [
            Row(row, {key: cell for key in each if (cell := found[key]) is not None})
            for row, each in keys.items()
        ]

    def _stop_at(self, position: int) -> TransactionPage:
        over = Stop.FOUND if self._is_full else self._budget.over
        cursor = self._at.make_cursor(position)
        back_to = self._at.find_created_ms(position)
        return TransactionPage(self._rows, cursor, self._looked, over or Stop.AGE, back_to)


def _find_times(piece: bytes) -> tuple[int, int]:
    """Return from when, and until before when, what has the piece was begun."""
    match = _PIECE.fullmatch(strip_database(piece))
    if match is None:
        return 0, END_MS
    digits = match[2] if match[3] is None else match[3]
    return int(digits.ljust(13, b"0")), int(digits.ljust(13, b"9")) + 1


def _list_spans(at: Positions, piece: bytes) -> list[tuple[bytes, bytes]]:
    """Return from where to where in each bucket a row can have the piece."""
    match = _PIECE.fullmatch(strip_database(piece))
    spans = []
    for prefix in at.salt_buckets:
        first, behind = prefix + NAME, prefix + BEHIND
        if match is not None and match[1] not in (None, prefix):
            first = behind
        elif match is not None and match[4]:
            begins = first + (match[2] or match[3] or b"") + b"." + match[4][:UID_DIGITS]
            first, behind = begins, begins + b"g"
        spans.append((first, behind))
    return spans
