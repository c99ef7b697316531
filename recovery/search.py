"""The search for transactions, newest first: by id, key, table, status, label or age.

A page stays within its limits, whatever the size of the table, and says where the next one begins.
All pages together read each row once. Nothing here writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from recovery.bounds import Budget, ReadLimits, Stop
from recovery.scan import AHEAD_MS, OnRow, whole_row
from txn.documents import Document
from txn.errors import InvalidRequestError
from txn.model import Key, Row
from txn.protocol.context import Context
from txn.protocol.listing import NAME, NAME_END, name_time, scan_transactions, strip_bucket
from txn.protocol.row import (
    TransactionRow,
    created_ms,
    decode_row,
    is_row_key,
    parent_of,
    strip_database,
)
from txn.protocol.statuses import Status
from txn.request import Request
from txn.text import escape

DEFAULT = ReadLimits()
COUNT = 50
_TIME = re.compile(rb"\d{13}")
_PIECE = re.compile(
    rb"(?:\d\d\.)?(?:transaction\.(\d{0,13}|\d{13}\.[0-9a-f]*)|(\d{13}(?:\.[0-9a-f]*)?))"
    rb"(?:\.part-[\d-]*)?"
)


@dataclass(frozen=True, slots=True)
class Query:
    """The criteria of a search; an absent field matches every transaction.

    id_: a piece of the row key, as `txn show` takes it; with a `-` it matches parts. The search
    goes directly to a whole row key or one that begins with the time; 13 digits alone are a time.
    key, table: named by the request. label: `name=value`, or a text within a label. statuses: None
    among them is a row without a status. older_than_ms, newer_than_ms: the age of the row's status.
    with_parts: also find the rows of parts.
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
    def finds_parts(self) -> bool:
        """Return True if the id means parts: no other row key has a `-`."""
        return self.with_parts or b"-" in strip_database(self.id_)

    @property
    def needs_request(self) -> bool:
        """Return True if the query looks into the requests of transactions."""
        return not (self.key is None and self.table is None and self.label is None)

    @property
    def is_for_unfinished(self) -> bool:
        """Return True if only unfinished transactions can match."""
        statuses = self.statuses or (None,)
        return all(status is not None and not status.is_finished for status in statuses)

    def match(self, row: Row, now_ms: int) -> TransactionRow | None:
        """Return the transaction of a row if the query matches it."""
        if not is_row_key(row.row) or not self.matches_key(row.row):
            return None
        found = decode_row(row)
        request = found.buffer.request if found.buffer else None
        is_found = self._matches_status(found, now_ms) and self._matches_request(request)
        return found if is_found else None

    def matches_key(self, row_key: bytes) -> bool:
        """Return True if the query may match a transaction with this row key."""
        if parent_of(row_key) is not None and not self.finds_parts:
            return False
        if not self.id_:
            return True
        row_key, piece = strip_database(row_key), strip_database(self.id_)
        name = row_key[row_key.index(NAME) :]
        _, time, uid = name.split(b".", 2)
        begins = (row_key, name, time + b"." + uid, uid)
        return row_key.endswith(piece) or any(text.startswith(piece) for text in begins)

    def _matches_status(self, row: TransactionRow, now_ms: int) -> bool:
        if self.statuses is not None and row.status not in self.statuses:
            return False
        age_ms = max(0, now_ms - (row.since or row.newest))
        if self.older_than_ms is not None and age_ms < self.older_than_ms:
            return False
        return self.newer_than_ms is None or age_ms <= self.newer_than_ms

    def _matches_request(self, request: Request | None) -> bool:
        if not self.needs_request:
            return True
        if request is None:  # it may not decode
            return False
        keys = request.keys
        if self.key is not None and self.key not in keys:
            return False
        if self.table is not None and all(key.table != self.table for key in keys):
            return False
        if self.label is None:
            return True
        name, equals, text = self.label.partition("=")
        if equals:
            return request.labels.get(name) == text
        return any(name in each for label in request.labels.items() for each in label)


@dataclass(frozen=True, slots=True)
class SearchPage:
    """Transactions, the newest first.

    next: the cursor of the next page; None: the beginning of the table was reached. read: the
    number of rows read. stopped: why the page ends. back_to: the time (ms) at which the last row
    read began; None: the beginning was reached.
    """

    rows: list[TransactionRow]
    next: bytes | None
    read: int
    stopped: Stop
    back_to: int | None = None


def find_page(
    context: Context,
    query: Query,
    before: bytes | None = None,
    limits: ReadLimits = DEFAULT,
    count: int = COUNT,
) -> SearchPage:
    """Return the newest matches, or those before a cursor: the `next` of a page, a row key, or a
    time of 13 digits. Raise InvalidRequestError for any other cursor."""
    cells = whole_row(context, query.id_) if is_row_key(query.id_) else None
    if cells is not None:
        return SearchPage([decode_row(cells)], None, 1, Stop.BEGINNING)
    now_ms = context.clock.wall_ms()
    low, high = _find_range(query, now_ms)
    if before is not None:
        high = min(high, read_cursor(before))
    since = b"" if query.newer_than_ms is None else name_time(now_ms - query.newer_than_ms)
    is_cut = low < since < high  # older rows that were finished late may match
    budget = Budget(context.clock, limits)
    rows: list[TransactionRow] = []
    low = since if is_cut else low
    for row in scan_transactions(context, low, high, with_parts=query.finds_parts):
        budget.spend(row)
        if (found := query.match(row, now_ms)) is not None:
            rows.append(found)
        stop = Stop.FOUND if len(rows) >= count else budget.over
        if stop is not None:
            back_to = created_ms(row.row) if is_row_key(row.row) else None
            return SearchPage(rows, row.row, budget.rows, stop, back_to)
    if is_cut:
        cursor = since.removeprefix(NAME)
        return SearchPage(rows, cursor, budget.rows, Stop.AGE, int(cursor))
    return SearchPage(rows, None, budget.rows, Stop.BEGINNING)


def find(context: Context, piece: bytes, on_row: OnRow = lambda table: None) -> Iterator[bytes]:
    """Yield the row keys that a piece names, oldest first: they end with it, or begin with it if
    their bucket, the word `transaction` or the time is left out. Parts match only if the piece has
    a `-`, which no other row key has."""
    if is_row_key(piece) and whole_row(context, piece):
        yield piece
        return
    query = Query(piece)
    low, high = _find_range(query, context.clock.wall_ms())
    for row in scan_transactions(context, low, high, with_parts=query.finds_parts, reverse=False):
        on_row(context.table)
        if is_row_key(row.row) and query.matches_key(row.row):
            yield row.row


def read_cursor(cursor: bytes) -> bytes:
    position = NAME + cursor if _TIME.fullmatch(cursor) else strip_bucket(cursor)
    if not position.startswith(NAME):
        words = "neither a transaction row key nor a time of 13 digits"
        raise InvalidRequestError(words, given=cursor)
    return position


def _find_range(query: Query, now_ms: int) -> tuple[bytes, bytes]:
    low, high = NAME, NAME_END
    if match := _PIECE.fullmatch(strip_database(query.id_)):
        low = NAME + (match[1] if match[2] is None else match[2])
        high = low + b"g"  # greater than any digit
    if query.older_than_ms is not None:
        high = min(high, name_time(now_ms - query.older_than_ms + AHEAD_MS))
    return low, high


def row_document(row: TransactionRow, now_ms: int) -> Document:
    """Return a transaction as `txn ls --json` and downloads show it."""
    request = row.buffer.request if row.buffer else None
    whole = parent_of(row.row_key)
    return {
        "transaction": escape(row.row_key),
        "status": str(row.status) if row.status else None,
        "state": row.state.value,
        "created": created_ms(row.row_key),
        "since": row.since,
        "age_ms": max(0, now_ms - row.since) if row.since else None,
        "keys": len(request.keys) if request else None,
        "labels": dict(request.labels) if request else {},
        "owner": row.owner or None,
        "reason": row.reason,
        "corrupt": row.cause,
        "part_of": None if whole is None else escape(whole),
        "parts": None if row.parts is None else list(row.parts),
    }
