"""The order in which transactions are browsed, as numbers: when they were begun, then row keys.

A store scans forward only, and each bucket by itself. So a look backwards asks for windows between
two numbers, and each window is a range of row keys in each bucket, down to a single row.

    position = ((milliseconds * buckets + bucket) * 2^128 + uid) * 2^34 + part
    part     = 0, or 1 + task * 100,000 + number
    cursor   = a row key, or milliseconds(13 digits)
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from txn.errors import InvalidRequestError
from txn.model import Columns, Row, RowExclusion, plain_table
from txn.protocol.context import Context
from txn.protocol.ranges import stored_rows
from txn.protocol.row import FAMILY, child_key, child_range, is_row_key, parent_of, strip_database
from txn.protocol.statuses import Status
from txn.spans import Span

NAME = b"transaction."
BEHIND = b"transaction/"
"""Behind all transactions of a bucket."""
STATUS_CELLS = [(FAMILY, b"status")]
AGE_CELLS = [*STATUS_CELLS, *((FAMILY, status.at) for status in Status)]
END_MS = 10**13
PARTS_PASSED = 20
"""After so many rows of parts the rest of a transaction's are leapt over."""
_UID_BITS, _PART_BITS = 129, 34  # the last bit of the former: whether a database is named
_PARTS = 10**5
_CURSOR = re.compile(rb"\d{13}")


def find_firsts(context: Context) -> dict[bytes, bytes]:
    """Return the prefixes of row keys that are in use, in the order of these, each with the first
    row key that it has. One short scan for each, whatever the table holds."""
    found: dict[bytes, bytes] = {}
    at: bytes | None = b"00." + NAME
    while at is not None:
        row_key = _find_first(context, at, b"99." + BEHIND)
        if row_key is not None and is_row_key(row_key):
            found[row_key[:3]] = row_key
        at = None if row_key is None else _find_next_bucket(row_key)
    first = _find_first(context, NAME, BEHIND)
    return found if first is None else found | {b"": first}


def find_buckets(context: Context) -> tuple[bytes, ...]:
    """Return the prefixes of row keys that are in use, in order: none, `00.` and so on."""
    return tuple(find_firsts(context))


def _find_first(context: Context, start: bytes, stop: bytes) -> bytes | None:
    """Return the first row that is a transaction's, or lies behind those of its bucket. A foreign
    one may stand among them, and before all of them."""
    rows = stored_rows(context, Span(context.table, start, stop), cells=STATUS_CELLS)
    keys = (row.row for row in rows)
    return next((key for key in keys if is_row_key(key) or not _stands_among(key)), None)


def _stands_among(row_key: bytes) -> bool:
    return row_key.startswith(NAME) or row_key.startswith(NAME, 3)


def _find_next_bucket(row_key: bytes) -> bytes | None:
    """Return where the first bucket begins that begins behind a row."""
    starts = [b"%02d." % number + NAME for number in range(100)]
    return next((start for start in starts if start > row_key), None)


def list_transactions(
    context: Context,
    span: Span,
    cells: Columns = None,
    exclude: RowExclusion | None = None,
    passing: Callable[[Row], object] | None = None,
) -> Iterator[Row]:
    """Yield the rows of a span of one bucket. With `passing`, which is told of those that were read
    all the same, without the rows of parts: the most of a transaction's are leapt over."""
    at, stop = span.start, span.stop or BEHIND
    while at < stop:
        passed, rest, at = 0, replace(span, start=at), stop
        for row in stored_rows(context, rest, exclude, cells):
            whole = parent_of(row.row) if passing is not None else None
            if whole is None or passing is None:
                passed = 0
                yield row
                continue
            passed += 1
            passing(row)
            if passed > PARTS_PASSED:
                at = child_range(whole)[1]
                break


class Positions:
    """The positions of row keys in these buckets, and back."""

    def __init__(self, salt_buckets: Sequence[bytes], database: bytes = b"") -> None:
        self._database = b"@" + plain_table(database) if database else b""
        self.salt_buckets = tuple(sorted(salt_buckets, key=lambda prefix: prefix + NAME)) or (b"",)

    def find_time(self, ms: int) -> int:
        """Return the least position of a transaction that was begun at this time."""
        return (max(0, min(ms, END_MS)) * len(self.salt_buckets)) << (_UID_BITS + _PART_BITS)

    def find_row(self, row_key: bytes) -> int:
        """Return the position of a row key, also of one in a bucket that is not in use."""
        is_named, row_key = b"@" in row_key, strip_database(row_key)
        whole = parent_of(row_key) or row_key
        head = whole[: -len(b"%032x" % 0)]
        prefix, ms, uid = head[: head.index(NAME)], int(head[-14:-1]), int(whole[len(head) :], 16)
        rank = bisect_left(self.salt_buckets, prefix + NAME, key=lambda each: each + NAME)
        number = (ms * len(self.salt_buckets) + rank) << _UID_BITS
        if prefix not in self.salt_buckets:
            return number << _PART_BITS
        return (number | uid << 1 | is_named) << _PART_BITS | _find_part(row_key[len(whole) :])

    def read_cursor(self, cursor: bytes) -> int:
        """Return the position that a cursor says, or raise InvalidRequestError."""
        if _CURSOR.fullmatch(cursor):
            return self.find_time(int(cursor))
        if not is_row_key(cursor):
            raise InvalidRequestError(
                "neither a transaction row key nor a time of 13 digits", given=cursor
            )
        return self.find_row(cursor)

    def make_cursor(self, position: int) -> bytes:
        """Return a cursor that says this position, or one up to which there is no row."""
        ms, rank, uid, part = self._split(position)
        if part > _PARTS**2:
            ms, rank, uid, part = self._split(((position >> _PART_BITS) + 1) << _PART_BITS)
        if (rank, uid, part) == (0, 0, 0):
            return b"%013d" % ms
        return self.salt_buckets[rank] + NAME + b"%013d" % ms + self._make_end(uid, part)

    def find_start(self, rank: int, position: int) -> bytes:
        """Return the least row that a bucket can have at or behind a position."""
        ms, other, uid, part = self._split(position)
        prefix = self.salt_buckets[rank]
        ms += rank < other
        if ms >= END_MS:
            return prefix + BEHIND
        time = prefix + NAME + b"%013d" % ms
        is_inside = rank == other and (uid or part)
        return time + self._make_end(uid, part) if is_inside else time

    def find_created_ms(self, position: int) -> int:
        """Return the time of what is at a position."""
        return self._split(position)[0]

    def _split(self, position: int) -> tuple[int, int, int, int]:
        number, part = position >> _PART_BITS, position & ((1 << _PART_BITS) - 1)
        ms, rank = divmod(number >> _UID_BITS, len(self.salt_buckets))
        return ms, rank, number & ((1 << _UID_BITS) - 1), part

    def _make_end(self, uid: int, part: int) -> bytes:
        """Return what a row key has behind its time."""
        whole = b".%032x" % (uid >> 1) + (self._database if uid & 1 else b"")
        if part == 0:
            return whole
        if part > _PARTS**2:
            return child_range(whole)[1]
        return child_key(whole, *divmod(part - 1, _PARTS))


def _find_part(suffix: bytes) -> int:
    if not suffix:
        return 0
    task, number = suffix.removeprefix(b".part-").split(b"-")
    return 1 + int(task) * _PARTS + int(number)
