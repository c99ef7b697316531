"""The transaction rows of all salt buckets, merged in the order in which they began.

A row key is the salt bucket, if any, followed by the start time. So each bucket is sorted by start
time, and merging one scan per bucket sorts the whole table. A position in this order is a row key,
or a prefix of one, without its bucket.

HBase takes about seven times as long to pass over a row in a reverse scan. So where it leaves out
rows, the newest-first order comes from parts of the table that are each read forward.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace

from txn.model import Columns, Row, RowExclusion, cell_bytes
from txn.protocol.context import Context
from txn.protocol.ranges import stored_rows
from txn.protocol.row import FAMILY, child_range, created_ms, is_row_key, parent_of
from txn.spans import Span

NAME = b"transaction."
NAME_END = b"transaction/"
"""A position after all transactions of a bucket."""
STATUS_CELLS = [(FAMILY, b"status")]
LATEST_MS = 10**13 - 1
MAX_PARTS = 20
"""After this many part rows, the scan skips the rest of a transaction's parts."""
MOST_TURNED_BYTES = 2_000_000
"""The most bytes that are read forward and yielded backward."""

_STARTS = [b"%02d." % number + NAME for number in range(100)]


def name_time(ms: int) -> bytes:
    """Return the position before all transactions that began at this time."""
    return NAME + b"%013d" % max(0, min(ms, LATEST_MS))


def strip_bucket(row_key: bytes) -> bytes:
    """Return the position of a row key: the key without its salt bucket."""
    return row_key[3:] if row_key[2:3] == b"." else row_key


def find_buckets(context: Context) -> list[bytes]:
    """Return the salt prefixes in use, and an empty one for rows without a salt. Costs one short
    scan for each prefix, whatever the size of the table."""
    found: list[bytes] = []
    start: bytes | None = _STARTS[0]
    while start is not None:
        span = Span(context.table, start, b"99." + NAME_END)
        row = next(stored_rows(context, span, cells=STATUS_CELLS), None)
        if row is None:
            break
        if row.row.startswith(NAME, 3):
            found.append(row.row[:3])
        start = next((each for each in _STARTS if each > row.row), None)
    return [*found, b""]


def go_back(row_key: bytes, ms: int) -> bytes:
    """Return the start of a scan that covers this row and the time before it."""
    if not is_row_key(row_key):
        return row_key
    return row_key[: row_key.index(NAME)] + name_time(created_ms(row_key) - ms)


def scan_transactions(
    context: Context,
    low: bytes = NAME,
    high: bytes = NAME_END,
    *,
    cells: Columns = None,
    exclude: RowExclusion | None = None,
    with_parts: bool = True,
    reverse: bool = True,
    salt_buckets: Sequence[bytes] | None = None,
) -> Iterator[Row]:
    """Yield the rows from position low (included) to high (excluded), newest first, or oldest first
    with reverse=False.

    Foreign rows are yielded as well. Without with_parts, at most MAX_PARTS part rows and a few more
    are yielded for each transaction. salt_buckets: the result of `find_buckets`; None: it is called
    first. Reading n rows reads one extra row of each bucket.
    """

    def scan_bucket(bucket: bytes) -> Iterator[Row]:
        rest: Span | None = Span(context.table, bucket + low, bucket + high)
        while rest is not None and rest.start < (rest.stop or NAME_END):
            span, rest, parts = rest, None, 0
            if reverse and exclude is not None and exclude.values:
                rows = _scan_back(context, span, cells, exclude)
            else:
                rows = stored_rows(context, span, exclude, cells, reverse=reverse)
            for row in rows:
                yield row
                whole = None if with_parts else parent_of(row.row)
                parts = 0 if whole is None else parts + 1
                if whole is not None and parts > MAX_PARTS:
                    first, end = child_range(whole)
                    rest = replace(span, stop=first) if reverse else replace(span, start=end)
                    break

    scans = map(scan_bucket, find_buckets(context) if salt_buckets is None else salt_buckets)
    return heapq.merge(*scans, key=lambda row: strip_bucket(row.row), reverse=reverse)


def _scan_back(
    context: Context, span: Span, cells: Columns, exclude: RowExclusion
) -> Iterator[Row]:
    """Yield rows in reverse, from parts that are read forward. A part begins at the newest row that
    is left; the time that it covers doubles until its rows are too large to keep."""
    covered_ms = 1
    while newest := next(stored_rows(context, span, cells=cells, reverse=True), None):
        part = replace(span, start=max(span.start, go_back(newest.row, covered_ms)))
        rows, size = [], 0
        for row in stored_rows(context, part, exclude, cells):
            rows.append(row)
            size += sum(cell_bytes(key, cell.value) for key, cell in row.cells.items())
            if size > MOST_TURNED_BYTES:
                break
        if size <= MOST_TURNED_BYTES:
            yield from reversed(rows)
        elif covered_ms > 1:
            covered_ms = max(1, covered_ms // 8)
            continue
        else:
            yield from stored_rows(context, part, exclude, cells, reverse=True)
        covered_ms, span = 2 * covered_ms, replace(span, stop=part.start)
