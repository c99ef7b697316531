"""Read and classify the transaction rows of a store, and count what is unfinished or left over.

Rows are read lazily in byte order, one page of the store at a time; after an error of the store a
scan resumes behind its last row. Other rows, such as markers of `once`, are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import NamedTuple

from recovery.bounds import Budget, ReadLimits
from txn.arguments import check_calls
from txn.errors import CorruptRowError
from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Cell, Columns, Row, RowExclusion
from txn.protocol.codec import Buffer, decode_buffer
from txn.protocol.context import Context, call_store
from txn.protocol.listing import STATUS_CELLS, find_buckets, go_back, name_time, scan_transactions
from txn.protocol.locks import holder_of
from txn.protocol.ranges import stored_rows
from txn.protocol.row import (
    FAMILY,
    TransactionRow,
    column,
    created_ms,
    decode_row,
    follow,
    is_row_key,
    parent_of,
    read_rows,
    status_key,
)
from txn.protocol.statuses import FINISHED, Status
from txn.spans import Span

MAX_TIMESTAMP = (1 << 63) - 1
MARKERS = (b"once.", b"once/")
BATCH = 200
AHEAD_MS = 3_600_000  # how far a client's clock may be ahead before its rows are read one by one
STATUS = b"status"
NOTHING = Cell(b"", 0)
BY_VALUE = {status.encoded: status for status in Status}

OnRow = Callable[[bytes], None]  # gets the table of each row that is read, for a progress bar
OnProgress = Callable[[bytes, bytes], None]
"""Gets the table and row that a scan has reached, now and then; its exception ends the scan."""

STEP_MS = 500  # twice the intended time (ms) of one store scan that may yield nothing
MOST_COVERED_MS = 6 * 3_600_000


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts of a store. transactions: rows per status, or `no status`; parts count as rows
    with their own status. unfinished: those neither finished nor debris. locks, tags: in data
    tables and on the markers of `once`. Beside clients the counts are not of one instant."""

    transactions: Mapping[str, int]
    unfinished: int
    locks: int
    tags: int

    @property
    def is_quiet(self) -> bool:
        """Return True if nothing is unfinished or left over: no lock and no tag."""
        return not (self.unfinished or self.locks or self.tags)


class Head(NamedTuple):
    """A transaction row of which only the status was read. since: when it reached the status.
    heartbeat: its owner's last one; 0: none."""

    row_key: bytes
    status: Status
    since: int
    heartbeat: int = 0

    def find_alive_ms(self, now_ms: int, ahead_ms: int) -> int:
        """Return the time of the last sign that the owner is alive."""
        return max(self.since, trust_heartbeat(self.heartbeat, now_ms, ahead_ms))


def trust_heartbeat(heartbeat: int, now_ms: int, ahead_ms: int) -> int:
    """Return the time of a heartbeat; 0 if it lies further ahead: a client's clock may be wrong."""
    return heartbeat if heartbeat <= now_ms + ahead_ms else 0


def newest_old_ms(now_ms: int, age_ms: int) -> int:
    """Return the newest timestamp of this age; with age 0 all are old, even from a fast clock."""
    return now_ms - age_ms if age_ms else MAX_TIMESTAMP


def list_rows(context: Context, wanted: Span, on_row: OnRow) -> Iterator[Row]:
    for row in stored_rows(context, wanted):
        on_row(wanted.table)
        yield row


def leave_out(statuses: Iterable[Status]) -> RowExclusion:
    return RowExclusion(FAMILY, STATUS, frozenset(status.encoded for status in statuses))


def list_suspects(context: Context, wanted: Span, retention_ms: int) -> Iterator[Row]:
    """Yield the rows of a span of the transaction table, without rows that are finished and began
    within the retention; and rows without cells, which mark the position.

    Salt buckets and the times in them come in reverse order. The store itself leaves out the
    finished rows, and positions come meanwhile. The time of a row is in its key, by its owner's
    clock. If that was behind, the row is yielded all the same. If it was ahead, the row is yielded
    later by as much, at most by the retention and AHEAD_MS: rows further ahead are yielded at once.
    """
    now_ms = context.clock.wall_ms()
    old, ahead = newest_old_ms(now_ms, retention_ms) + 1, now_ms + AHEAD_MS
    last = wanted.stop
    for bucket in reversed(find_buckets(context) if old < ahead else ()):
        start = max(wanted.start, bucket + name_time(old))
        stop = bucket + name_time(ahead) if last is None else min(last, bucket + name_time(ahead))
        if start < stop:
            yield from _list_back(context, replace(wanted, start=stop, stop=last))
            yield from scan_in_steps(context, replace(wanted, start=start, stop=stop))
            last = start
    yield from _list_back(context, replace(wanted, stop=last))


def _list_back(context: Context, span: Span) -> Iterator[Row]:
    if span.stop is None or span.start < span.stop:
        yield from stored_rows(context, span, reverse=True)


def scan_in_steps(
    context: Context,
    span: Span,
    cells: Columns = None,
    *,
    step_ms: int = STEP_MS,
    first_ms: int = 600_000,
) -> Iterator[Row]:
    """Yield the unfinished rows of a span of one salt bucket, and after each store scan a row
    without cells that marks the position. Scans go back in time; each reads forward, as is fast.

    The store does not report how many finished rows it skips. So the time that a scan covers adapts
    to step_ms, and times without rows are skipped. first_ms: the time that the first scan covers.
    """
    clock, stop, covered_ms = context.clock, span.stop, first_ms
    exclude = leave_out(FINISHED)
    while True:
        rest = replace(span, stop=stop)
        newest = next(stored_rows(context, rest, cells=cells, reverse=True), None)
        if newest is None:
            return
        rest = replace(rest, start=max(span.start, go_back(newest.row, covered_ms)))
        began_ms = clock.monotonic_ms()
        yield from stored_rows(context, rest, exclude, cells)
        took_ms = clock.monotonic_ms() - began_ms
        if took_ms > step_ms // 2:
            covered_ms = max(1, covered_ms // 4)
        elif took_ms < step_ms // 8:
            covered_ms = min(2 * covered_ms, MOST_COVERED_MS)
        yield Row(rest.start, {})
        if rest.start <= span.start:
            return
        stop = rest.start


def list_statuses(
    context: Context, statuses: Collection[Status | None]
) -> Iterator[tuple[bytes, Status | None]]:
    """Yield the rows of `list_heads` by their keys and statuses, without decoding them."""
    known = [status for status in Status if status in statuses]
    if known:
        others = leave_out(set(Status) - set(known))
        for row in stored_rows(context, Span(context.table), others, STATUS_CELLS):
            for cell in row.cells.values():
                if cell.value in BY_VALUE:
                    yield row.row, BY_VALUE[cell.value]
    if None in statuses:
        for row in stored_rows(context, Span(context.table), leave_out(Status)):
            yield row.row, None


def list_heads(
    context: Context, statuses: Collection[Status | None], *, with_ages: bool = False
) -> Iterator[Row]:
    """Yield the rows of the transaction table with one of these statuses, without their requests.

    None: rows without a status, or with one that this version does not know; these come last, with
    all their cells. with_ages: with the times of the statuses; else `TransactionRow.since` of a
    fenced row is by its owner's clock.
    """
    known = [status for status in Status if status in statuses]
    if known:
        others = leave_out(set(Status) - set(known))
        cells = [*STATUS_CELLS, *((FAMILY, status.at) for status in known if with_ages)]
        for row in stored_rows(context, Span(context.table), others, cells):
            cell = row.cells.get(status_key(context.table, row.row), NOTHING)
            if cell.value in BY_VALUE:
                yield row
    if None in statuses:
        yield from stored_rows(context, Span(context.table), leave_out(Status))


def transactions(context: Context) -> Iterator[TransactionRow]:
    """Yield the transaction rows in byte order."""
    for row in stored_rows(context, Span(context.table)):
        if is_row_key(row.row):
            yield decode_row(row)


def whole_row(context: Context, row_key: bytes) -> Row | None:
    """Return all cells of a transaction row as of one instant, or None for an absent one."""
    return next(stored_rows(context, Span(context.table, row_key, row_key + b"\0")), None)


def read_requests(
    context: Context, row_keys: Sequence[bytes], limits: ReadLimits
) -> Iterator[tuple[bytes, Buffer | None]]:
    """Yield the requests of transaction rows within limits; None for one that is absent or does not
    decode. The first reads are small, since one request may have ten megabytes."""
    budget = Budget(context.clock, limits)
    for some in budget.divide(row_keys):
        if budget.over:
            return
        wanted = [column(context.table, row_key, b"buffer") for row_key in some]
        cells = call_store(context, partial(context.store.read, wanted))
        for key, cell in cells.items():
            buffer = None
            if cell is not None:
                budget.spend(Row(key.row, {key: cell}))
                with suppress(CorruptRowError):  # `fsck` reports it
                    buffer = decode_buffer(cell.value)
            yield key.row, buffer


def find_transaction(context: Context, row_key: bytes) -> TransactionRow | None:
    """Return a transaction row with all its cells; a part has the state of its transaction."""
    whole = parent_of(row_key)
    decisive = whole_row(context, whole) if whole else None  # first: see `read_row_cells`
    cells = whole_row(context, row_key)
    if cells is None or whole is None:
        return None if cells is None else decode_row(cells)
    return follow(decode_row(cells), decode_row(decisive or Row(whole, {})))


@check_calls
def summary(context: Context, tables: Iterable[bytes] = ()) -> Summary:
    """Count the transaction rows by status, and the locks and tags in the tables. Only the status
    is read of rows that are finished for good."""
    statuses: Counter[str] = Counter()
    due = _list_due(context, statuses)
    unfinished = 0
    while some := list(islice(due, BATCH)):
        unfinished += sum(not row.is_over for row in read_rows(context, some).values())
    counts: Counter[bytes] = Counter()
    for span in (Span(context.table, *MARKERS), *map(Span, tables)):
        for row_of_data in stored_rows(context, span):
            counts.update(
                suffix
                for key, cell in row_of_data.cells.items()
                for suffix in (LOCK_SUFFIX, TAG_SUFFIX)
                if key.column.endswith(suffix) and holder_of(key, cell)
            )
    return Summary(dict(statuses), unfinished, counts[LOCK_SUFFIX], counts[TAG_SUFFIX])


def list_old(context: Context, age_ms: int, most: int) -> list[int]:
    """Return when the first `most` rows began, of those older than this."""
    old = name_time(context.clock.wall_ms() - age_ms)
    listed = scan_transactions(context, high=old, cells=STATUS_CELLS, reverse=False)
    return [created_ms(row.row) for row in islice(listed, most) if is_row_key(row.row)]


def _list_due(context: Context, statuses: Counter[str]) -> Iterator[bytes]:
    """Count the statuses of transactions; yield the row keys of those that may be unfinished."""
    for row_key, status in list_statuses(context, (*Status, None)):
        if is_row_key(row_key):
            statuses[str(status or "no status")] += 1
            if status is None or not status.is_finished:
                yield row_key
