"""Every transaction row of a store, classified, and the counts of what a quiet store has none of.

Rows come lazily and in byte order, a page of the store at a time; where the store fails, a look
goes on behind its last row. Rows of the transaction table that are no transaction's, such as the
markers of `once`, are passed over. Nothing here writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Row
from txn.protocol.attempt import Context
from txn.protocol.lock_cells import holder_of
from txn.protocol.ranges import stored_rows
from txn.protocol.row import (
    RowState,
    TransactionRow,
    decode_row,
    follow,
    is_row_key,
    whole_of,
)
from txn.spans import Span

MAX_TIMESTAMP = (1 << 63) - 1
MARKERS = (b"once.", b"once/")
_NAME = b"transaction."


Looked = Callable[[bytes], None]
"""Is told the table of each row that was looked at, for a progress bar."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a store holds, counted. transactions: how many rows have each status, or `no status`;
    unfinished: how many of them are neither finished nor debris. locks and tags: in data tables
    and on the markers of `once`."""

    transactions: Mapping[str, int]
    unfinished: int
    locks: int
    tags: int

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way and nothing was left: no lock, no tag, all finished."""
        return not (self.unfinished or self.locks or self.tags)


def newest_old_ms(now_ms: int, age_ms: int) -> int:
    """Return the newest timestamp that is so old. With an age of 0 everything is, even what a
    server wrote whose clock is ahead of ours."""
    return now_ms - age_ms if age_ms else MAX_TIMESTAMP


def list_rows(context: Context, wanted: Span, looked: Looked) -> Iterator[Row]:
    """Yield the rows as they are stored, and tell of each."""
    for row in stored_rows(context, wanted):
        looked(wanted.table)
        yield row


def transactions(
    context: Context,
    start: bytes = b"",
    stop: bytes | None = None,
    looked: Looked = lambda table: None,
) -> Iterator[TransactionRow]:
    """Yield the transaction rows from start (included) to stop (excluded), in byte order."""
    for row in list_rows(context, Span(context.table, start, stop), looked):
        if is_row_key(row.row):
            yield decode_row(row)


def whole_row(context: Context, row_key: bytes) -> Row | None:
    """Return all cells of a transaction row as of one instant, or None for an absent one."""
    return next(stored_rows(context, Span(context.table, row_key, row_key + b"\0")), None)


def find_transaction(context: Context, row_key: bytes) -> TransactionRow | None:
    """Return a transaction row with all its cells, a part as its transaction has it; None for an
    absent one."""
    cells, whole = whole_row(context, row_key), whole_of(row_key)
    if cells is None:
        return None
    row = decode_row(cells)
    if whole is None or not row.follows:
        return row
    of_whole = whole_row(context, whole)
    return follow(row, decode_row(of_whole) if of_whole else TransactionRow(whole))


def find(context: Context, part: bytes, looked: Looked = lambda table: None) -> Iterator[bytes]:
    """Yield the row keys that end with the part, or begin with it when their bucket, the word
    `transaction` or the time is left out."""
    if is_row_key(part) and whole_row(context, part):
        yield part
        return
    for row in list_rows(context, Span(context.table), looked):
        if is_row_key(row.row) and _is_part(part, row.row):
            yield row.row


def summary(context: Context, tables: Iterable[bytes] = ()) -> Summary:
    """Count the transaction rows by status, and the locks and tags that the tables hold."""
    statuses: Counter[str] = Counter()
    unfinished = 0
    for row in transactions(context):
        statuses[str(row.status) if row.status else "no status"] += 1
        unfinished += row.state not in (RowState.FINISHED, RowState.DEBRIS)
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


def _is_part(part: bytes, row_key: bytes) -> bool:
    name, uid = row_key[row_key.index(_NAME) :], row_key[row_key.rindex(b".") + 1 :]
    begins = (row_key, name, name[len(_NAME) :], uid)
    return row_key.endswith(part) or any(text.startswith(part) for text in begins)
