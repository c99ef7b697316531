"""The progress of a check, estimated from where its scans are.

The transaction table is read from its end to its beginning, and then each data table from its
beginning to its end. Bounds divide each table into parts: they are those of its regions, or lie at
similar numbers of keys. Within a part rows are assumed to lie as far apart as their keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import partial
from itertools import islice

from txn.protocol.context import Context, call_store
from txn.protocol.ranges import stored_rows
from txn.spans import Span
from txn.tables.kv.ordered import find_difference

PARTS = 100
DIGITS = 8  # how many bytes of two keys are compared, after their common prefix


class CheckProgress:
    """percent: how much is done, up to 99 while the check runs; it never falls."""

    def __init__(self, context: Context, tables: Collection[bytes]) -> None:
        self.percent = 0
        self._first = context.table
        names = dict.fromkeys((context.table, *tables))
        self._bounds = {table: find_bounds(context, table) for table in names}
        self._parts = sum(len(bounds) - 1 for bounds in self._bounds.values())

    def reach(self, table: bytes, row: bytes) -> None:
        names = [*self._bounds]
        before = islice(self._bounds.values(), names.index(table))
        done = find_position(self._bounds[table], row)
        if table == self._first:
            done = len(self._bounds[table]) - 1 - done
        done += sum(len(bounds) - 1 for bounds in before)
        self.percent = max(self.percent, min(99, int(100 * done / self._parts)))


def find_bounds(context: Context, table: bytes) -> list[bytes]:
    """Return the first row of a table, rows that divide it, and the last row; at least two."""
    rows = [next(stored_rows(context, Span(table), reverse=way), None) for way in (False, True)]
    first, last = (row.row if row else b"" for row in rows)
    splits = call_store(context, partial(context.store.find_splits, table, PARTS))
    return [first, *(split for split in splits if first < split < last), last]


def find_position(bounds: Sequence[bytes], row: bytes) -> float:
    """Return where a row is: the number of the parts before it, and the share of its own."""
    part = min(max(bisect_right(bounds, row) - 1, 0), len(bounds) - 2)
    low, high = bounds[part : part + 2]
    start = find_difference(low, high)
    begin, end, at = (
        int.from_bytes(each[start : start + DIGITS].ljust(DIGITS, b"\0"))
        for each in (low, high, row)
    )
    share = (at - begin) / (end - begin) if begin < end else 1.0
    return part + min(1.0, max(0.0, share))
