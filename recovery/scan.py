"""Read and classify the transaction rows of a store, and count what is unfinished or left over.

Rows are read lazily in byte order, one page of the store at a time; after an error of the store a
scan resumes behind its last row. Other rows, such as the markers of `once`, are skipped. Nothing
here writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Cell, Columns, Row, RowExclusion, plain_table
from txn.protocol.context import Context, call_store
from txn.protocol.listing import NAME, find_buckets, name_time
from txn.protocol.locks import holder_of
from txn.protocol.ranges import stored_rows
from txn.protocol.row import (
    FAMILY,
    TransactionRow,
    created_ms,
    decode_row,
    follow,
    is_own,
    is_row_key,
    parent_of,
    read_rows,
    status_key,
    strip_database,
)
from txn.protocol.statuses import FINISHED, Status
from txn.spans import Span

MAX_TIMESTAMP = (1 << 63) - 1
MARKERS = (b"once.", b"once/")
BATCH = 200
MOST_BUCKETS = 100
AHEAD_MS = 3_600_000
"""How far a client's clock may be ahead before its rows are read one by one."""
STATUS = b"status"
NOTHING = Cell(b"", 0)
BY_VALUE = {status.encoded: status for status in Status}


OnRow = Callable[[bytes], None]
"""Gets the table of each row that is read, for a progress bar."""

OnProgress = Callable[[bytes, bytes], None]
"""Gets the table and row that a scan has reached, now and then; its exception ends the scan."""

STEP_MS = 500
"""Twice the intended time (ms) of one store scan that may yield nothing."""

MOST_COVERED_MS = 6 * 3_600_000


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts of a store. transactions: rows per status, or `no status`; parts count as rows
    with their own status. unfinished: those neither finished nor debris. locks, tags: in data
    tables and on the markers of `once`."""

    transactions: Mapping[str, int]
    unfinished: int
    locks: int
    tags: int

    @property
    def is_quiet(self) -> bool:
        """Return True if nothing is unfinished or left over: no lock and no tag."""
        return not (self.unfinished or self.locks or self.tags)


@dataclass(slots=True)
class Foreign:
    """The number of foreign rows in the transaction table, and the first of them."""

    count: int = 0
    first: bytes = b""

    def note(self, row: bytes) -> None:
        if not is_own(row):
            self.first = min(self.first, row) if self.count else row
            self.count += 1


def newest_old_ms(now_ms: int, age_ms: int) -> int:
    """Return the newest timestamp of this age; with age 0 all are old, even from a fast clock."""
    return now_ms - age_ms if age_ms else MAX_TIMESTAMP


class Head(NamedTuple):
    """A transaction row of which only the status was read. since: when it reached the status."""

    row_key: bytes
    status: Status
    since: int


def list_rows(
    context: Context,
    wanted: Span,
    on_row: OnRow,
    exclude: RowExclusion | None = None,
    cells: Columns = None,
) -> Iterator[Row]:
    """Yield the rows of `stored_rows`, and report each."""
    for row in stored_rows(context, wanted, exclude, cells):
        on_row(wanted.table)
        yield row


def leave_out(statuses: Iterable[Status]) -> RowExclusion:
    """Return the filter that leaves rows with these statuses out of a scan."""
    return RowExclusion(FAMILY, STATUS, frozenset(status.encoded for status in statuses))


def list_suspects(
    context: Context,
    wanted: Span,
    retention_ms: int,
    on_row: OnRow,
    on_progress: OnProgress = lambda table, row: None,
) -> Iterator[Row]:
    """Yield the rows of a span of the transaction table in reverse order, without rows that are
    finished and began within the retention.

    So each salt bucket is read from its newest row. The store itself leaves out the finished rows,
    and `on_progress` is called meanwhile. The time of a row is in its key, by its owner's clock. If
    that was behind, the row is yielded all the same. If it was ahead, the row is yielded later by
    as much, at most by the retention and AHEAD_MS: rows further ahead are yielded at once.
    """
    now_ms = context.clock.wall_ms()
    old, ahead = newest_old_ms(now_ms, retention_ms) + 1, now_ms + AHEAD_MS
    last = wanted.stop
    for bucket in reversed(find_buckets(context) if old < ahead else ()):
        start = max(wanted.start, bucket + name_time(old))
        stop = bucket + name_time(ahead) if last is None else min(last, bucket + name_time(ahead))
        if start < stop:
            yield from _list_back(
                context, replace(wanted, start=stop, stop=last), on_row, on_progress
            )
            for row in scan_in_steps(context, replace(wanted, start=start, stop=stop)):
                if row.cells:
                    on_row(wanted.table)
                    yield row
                else:
                    on_progress(wanted.table, row.row)
            last = start
    yield from _list_back(context, replace(wanted, stop=last), on_row, on_progress)


def _list_back(
    context: Context, span: Span, on_row: OnRow, on_progress: OnProgress
) -> Iterator[Row]:
    if span.stop is None or span.start < span.stop:
        for row in stored_rows(context, span, reverse=True):
            on_row(span.table)
            on_progress(span.table, row.row)
            yield row


def scan_in_steps(
    context: Context,
    span: Span,
    cells: Columns = None,
    *,
    step_ms: int = STEP_MS,
    first_ms: int = 600_000,
) -> Iterator[Row]:
    """Yield the unfinished rows of a span of one salt bucket, newest first, and after each store
    scan a row without cells that marks the position.

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
        rest = replace(rest, start=max(span.start, _go_back(newest.row, covered_ms)))
        began_ms = clock.monotonic_ms()
        yield from stored_rows(context, rest, exclude, cells, reverse=True)
        took_ms = clock.monotonic_ms() - began_ms
        if took_ms > step_ms // 2:
            covered_ms = max(1, covered_ms // 4)
        elif took_ms < step_ms // 8:
            covered_ms = min(2 * covered_ms, MOST_COVERED_MS)
        yield Row(rest.start, {})
        if rest.start <= span.start:
            return
        stop = rest.start


def _go_back(row_key: bytes, ms: int) -> bytes:
    """Return the start of a scan that covers this row and the time before it."""
    if not is_row_key(row_key):
        return row_key
    bucket = row_key[: row_key.index(NAME)]
    return bucket + name_time(created_ms(row_key) - ms)


def list_heads(
    context: Context,
    statuses: Collection[Status],
    on_row: OnRow,
    foreign: Foreign | None = None,
    *,
    with_ages: bool = False,
) -> Iterator[Head]:
    """Yield the heads of transaction rows with one of these statuses. Without ages, `since` of a
    fenced row may be by its owner's clock. foreign: counts foreign rows."""
    cells = [(FAMILY, STATUS), *((FAMILY, status.at) for status in statuses if with_ages)]
    others = leave_out(set(Status) - set(statuses))
    for row in list_rows(context, Span(context.table), on_row, others, cells):
        found = {key[2]: cell for key, cell in row.cells.items()}
        cell = found.get(STATUS, NOTHING)
        status = BY_VALUE.get(cell.value)
        if status is None or status not in statuses:
            continue  # see `list_without_status`
        if foreign is not None:
            foreign.note(row.row)
        if is_row_key(row.row):
            yield Head(row.row, status, found.get(status.at, cell).timestamp)


def list_without_status(
    context: Context, on_row: OnRow, foreign: Foreign | None = None
) -> Iterator[TransactionRow]:
    """Yield the transaction rows without a status, or with one that this version does not know."""
    for row in list_rows(context, Span(context.table), on_row, leave_out(Status)):
        if foreign is not None:
            foreign.note(row.row)
        if is_row_key(row.row) and (found := decode_row(row)).status is None:
            yield found


def transactions(context: Context) -> Iterator[TransactionRow]:
    """Yield the transaction rows in byte order."""
    for row in stored_rows(context, Span(context.table)):
        if is_row_key(row.row):
            yield decode_row(row)


def whole_row(context: Context, row_key: bytes) -> Row | None:
    """Return all cells of a transaction row as of one instant, or None for an absent one."""
    return next(stored_rows(context, Span(context.table, row_key, row_key + b"\0")), None)


def find_transaction(context: Context, row_key: bytes) -> TransactionRow | None:
    """Return a transaction row with all its cells; a part has the state of its transaction."""
    whole = parent_of(row_key)
    decisive = whole_row(context, whole) if whole else None  # first: see `read_row_cells`
    cells = whole_row(context, row_key)
    if cells is None or whole is None:
        return None if cells is None else decode_row(cells)
    return follow(decode_row(cells), decode_row(decisive or Row(whole, {})))


def find(context: Context, piece: bytes, on_row: OnRow = lambda table: None) -> Iterator[bytes]:
    """Yield the row keys that end with the piece, or begin with it if their bucket, the word
    `transaction` or the time is left out. Parts match only if the piece has a `-`, which no other
    row key has. A whole key, even without its bucket and database, is read directly."""
    if is_row_key(piece) and (parent_of(piece) or b".part-" not in piece):
        if whole_row(context, piece):
            yield piece
            return
        keys = [status_key(context.table, name) for name in _list_names(context, piece)]
        found = call_store(context, lambda: context.store.read(keys))
        yield from (key.row for key in keys if found[key])
        return
    for row in list_rows(context, Span(context.table), on_row):
        is_wanted = (parent_of(row.row) is not None) is reaches_part(piece)
        if is_wanted and is_row_key(row.row) and has_piece(row.row, piece):
            yield row.row


def _list_names(context: Context, row_key: bytes) -> list[bytes]:
    """Return the possible row keys where a bucket or a database was left out."""
    bare = strip_database(row_key)
    whole = parent_of(bare) or bare
    named = b"%b@%b%b" % (whole, plain_table(context.table), bare.removeprefix(whole))
    names = [bare, named]
    return [*names, *(b"%02d.%b" % (n, name) for n in range(MOST_BUCKETS) for name in names)]


def summary(context: Context, tables: Iterable[bytes] = ()) -> Summary:
    """Count the transaction rows by status, and the locks and tags in the tables. Only the status
    is read of rows that are finished for good."""
    statuses: Counter[str] = Counter()
    others: list[bytes] = []
    unfinished = 0
    for head in list_heads(context, tuple(Status), _pass):
        statuses[str(head.status)] += 1
        if not head.status.is_finished:
            others.append(head.row_key)
        if len(others) == BATCH:
            unfinished += _count_unfinished(context, others)
            others.clear()
    unfinished += _count_unfinished(context, others)
    for row in list_without_status(context, _pass):
        statuses["no status"] += 1
        unfinished += not row.is_over
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


def _count_unfinished(context: Context, row_keys: Collection[bytes]) -> int:
    rows = read_rows(context, row_keys) if row_keys else {}
    return sum(not row.is_over for row in rows.values())


def _pass(table: bytes) -> None:
    """Ignore a row."""


def has_piece(row_key: bytes, piece: bytes) -> bool:
    """Return True if a piece of a row key names its transaction: see `find`."""
    row_key, piece = strip_database(row_key), strip_database(piece)
    name = row_key[row_key.index(NAME) :]
    _, time, uid = name.split(b".", 2)
    begins = (row_key, name, time + b"." + uid, uid)
    return row_key.endswith(piece) or any(text.startswith(piece) for text in begins)


def reaches_part(piece: bytes) -> bool:
    """Return True if a piece of a row key reaches into the suffix of a part."""
    return b"-" in strip_database(piece)
