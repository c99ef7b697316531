"""Reads of ranges: rows in order, each resolved as an atomic read resolves it.

A row that nobody holds is taken as the store gives it, since its cells come from one instant. A row
that is held is looked at as `reads` looks at keys: the row, its holders, the row again, its holders
again. Every key that a transaction ever wrote has left a lock and a tag in its row, deleted or not,
so nothing can come or go in a range without being seen by a second look at it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, takewhile

from txn.assertions import Version
from txn.codec import TransactionRow, marker_key
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    ConflictError,
    InvalidRequestError,
    StoreError,
    describe,
)
from txn.model import LOCK_SUFFIX, MAX_ROW, TAG_SUFFIX, Cell, Key, Row, as_bytes, check_key
from txn.protocol import Lock
from txn.reads import Snapshot, has_crossed, value_of
from txn.resolve import read_rows
from txn.steps import Context, Transaction, retried
from txn.waiting import Settle

SNAPSHOT_ROWS = 10_000
PAGE_ROWS = 100
RESERVED = (LOCK_SUFFIX, TAG_SUFFIX)

Cells = Mapping[Key, Cell | None]
Columns = Collection[tuple[str | bytes, str | bytes]]
Locked = Callable[[Sequence[Key]], Snapshot]
"""Reads keys under their locks."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows from start (included) to stop (excluded; None: the end), and (family, column) pairs of
    theirs (None: all)."""

    table: bytes
    start: bytes = b""
    stop: bytes | None = None
    columns: frozenset[tuple[bytes, bytes]] | None = None

    def __contains__(self, key: Key) -> bool:
        return (
            key.table == self.table
            and key.row >= self.start
            and (self.stop is None or key.row < self.stop)
            and (self.columns is None or (key.family, key.column) in self.columns)
        )

    @property
    def cells(self) -> list[tuple[bytes, bytes]] | None:
        """The columns that tell of the span's keys."""
        if self.columns is None:
            return None
        suffixes = (b"", *RESERVED)
        return [(family, column + end) for family, column in self.columns for end in suffixes]


def span(
    table: str | bytes | None,
    start: str | bytes = b"",
    stop: str | bytes | None = None,
    prefix: str | bytes | None = None,
    columns: Columns | None = None,
) -> Span:
    """Return what a user's arguments mean, or raise InvalidRequestError."""
    if table is None:
        raise InvalidRequestError("scan names no table and there is no default table")
    low, high = as_bytes("start", start), None if stop is None else as_bytes("stop", stop)
    if prefix is not None:
        if low or high:
            raise InvalidRequestError("a scan takes a prefix, or start and stop")
        low = as_bytes("prefix", prefix)
        high = _behind(low)
    wanted = None if columns is None else frozenset(_column(pair) for pair in columns)
    return Span(as_bytes("table", table), low, high or None, wanted)


# ------------------------------------------------------------------------------ row by row


def scan(context: Context, wanted: Span, locked: Locked) -> Iterator[Row]:
    """Yield the span's rows that have a value, each as of one instant."""
    rows = _rows(context, wanted)
    while page := list(islice(rows, PAGE_ROWS)):
        for row in _resolved(context, wanted, page, locked):
            if row.cells:
                yield row


def _rows(context: Context, wanted: Span) -> Iterator[Row]:
    """Yield the rows as they are stored; where the store fails, go on behind the last one."""
    rows: Iterator[Row] | None = None
    last: bytes | None = None

    def step() -> Row | None:
        nonlocal rows
        if rows is None:
            start = wanted.start if last is None else last
            rows = context.store.scan(wanted.table, start, wanted.stop, wanted.cells)
        try:
            return next(rows, None)
        except StoreError:
            rows = None
            raise

    while (row := retried(context, step)) is not None:
        if row.row != last:
            last = row.row
            yield row


def _resolved(context: Context, wanted: Span, page: Sequence[Row], locked: Locked) -> Iterator[Row]:
    held: dict[bytes, Cells] = {row.row: row.cells for row in page if _holders(row.cells)}
    found = {row.row: _plain(row.cells) for row in page if row.row not in held}
    for tries in range(context.policy.read_tries):
        if tries and held:
            context.clock.sleep_ms(context.policy.pause_ms(tries, context.random))
            held = _again(context, wanted, held)
        if held:
            found.update(_settled(context, wanted, held))
            held = {name: cells for name, cells in held.items() if name not in found}
    for name, cells in held.items():
        found[name] = _under_locks(context, wanted, name, cells, locked)
    return (Row(row.row, found[row.row]) for row in page)


def _settled(
    context: Context, wanted: Span, first: Mapping[bytes, Cells]
) -> dict[bytes, dict[Key, Cell]]:
    """Return the values of those rows that were the same at both looks."""
    holders = {holder for cells in first.values() for holder in _holders(cells)}
    rows = read_rows(context, holders) if holders else {}
    second = _again(context, wanted, first)
    crossed = _crossed(rows, read_rows(context, holders) if holders else {})
    return {
        name: _values(cells, rows)
        for name, cells in first.items()
        if second[name] == cells and not crossed & _holders(cells)
    }


def _again(context: Context, wanted: Span, rows: Collection[bytes]) -> dict[bytes, Cells]:
    """Look at some rows of a page again."""
    start, last = min(rows), max(rows)
    stop = last + b"\0" if len(last) < MAX_ROW else wanted.stop
    part = takewhile(
        lambda row: row.row <= last, _rows(context, replace(wanted, start=start, stop=stop))
    )
    found: dict[bytes, Cells] = {row.row: row.cells for row in part if row.row in rows}
    return {name: found.get(name, {}) for name in rows}


def _under_locks(
    context: Context, wanted: Span, name: bytes, cells: Cells, locked: Locked
) -> dict[Key, Cell]:
    """Return the values of a row that never stands still. Locks keep its known keys from changing;
    a key that was new to the row meanwhile shows in a look at it afterwards."""
    for _ in range(context.policy.read_tries):
        keys = _keys(cells)
        values = locked(keys)
        cells = _again(context, wanted, [name])[name]
        if values.keys() >= set(_keys(cells)):
            return {key: cell for key, cell in values.items() if cell is not None}
    raise ConflictError("row keeps growing", key=keys[-1])


# ---------------------------------------------------------------------- all of it at once


def view(
    context: Context, keys: Sequence[Key], spans: Sequence[Span]
) -> tuple[Snapshot, list[dict[Key, Cell]]] | None:
    """Return the cells of the keys, and those of each span, as of one instant, or None if writers
    left no such instant. Raise InvalidRequestError where a span has too many rows."""
    for tries in range(context.policy.read_tries):
        if tries:
            context.clock.sleep_ms(context.policy.pause_ms(tries, context.random))
        first = _look(context, keys, spans)
        holders = {holder for cells in first for holder in _holders(cells)}
        rows = read_rows(context, holders) if holders else {}
        if _look(context, keys, spans) != first:
            continue
        if not _crossed(rows, read_rows(context, holders) if holders else {}):
            values = {key: value_of(key, first[0], rows) for key in keys}
            return values, [_values(cells, rows) for cells in first[1:]]
    return None


def by_row(cells: Mapping[Key, Cell]) -> Iterator[Row]:
    """Yield the rows of cells that are in order."""
    for name, keys in groupby(cells, lambda key: key.row):
        yield Row(name, {key: cells[key] for key in keys})


def _look(context: Context, keys: Sequence[Key], spans: Sequence[Span]) -> list[Snapshot]:
    wanted = [cell for key in keys for cell in (key, key.lock, key.tag)]
    found = [retried(context, lambda: context.store.read(wanted)) if wanted else {}]
    for part in spans:
        rows = list(islice(_rows(context, part), SNAPSHOT_ROWS + 1))
        if len(rows) > SNAPSHOT_ROWS:
            raise InvalidRequestError(
                describe(
                    "too many rows for a snapshot, deleted ones included",
                    limit=SNAPSHOT_ROWS,
                    table=part.table,
                    start=part.start,
                    stop=part.stop,
                )
            )
        found.append({key: cell for row in rows for key, cell in row.cells.items()})
    return found


# --------------------------------------------------------------------------- under the locks


def guarded(lock: Lock, spans: Sequence[Span]) -> Lock:
    """Let a transaction go on, once it holds its locks, only if the spans have no keys but its own.

    Whoever adds a key to a span holds its lock until it is put. So of two transactions that each
    add to what the other scanned, the one that looks later sees the other's lock, or its key.
    """

    def locked(
        context: Context, transactions: Sequence[Transaction], settle: Settle
    ) -> list[Transaction]:
        live = lock(context, transactions, settle)
        for t in live:
            if not _has_committed(context, t):
                t.failure = _met(context, t, spans, settle)
        return [t for t in live if t.failure is None]

    return locked if spans else lock


def _has_committed(context: Context, t: Transaction) -> bool:
    """Whether the token's marker is there: what came into a span may be its own first commit."""
    if t.request.once is None:
        return False
    marker = marker_key(context.table, t.request.once)
    return retried(context, lambda: context.store.read([marker]))[marker] is not None


def _met(
    context: Context, t: Transaction, spans: Sequence[Span], settle: Settle
) -> AbortedError | None:
    mine = frozenset(t.keys)
    for part in spans:
        for row in _rows(context, part):
            for key in _keys(row.cells):
                if key not in mine and (failure := _stranger(t, key, row.cells, settle)):
                    return failure
    return None


def _stranger(t: Transaction, key: Key, cells: Cells, settle: Settle) -> AbortedError | None:
    cell, lock = cells.get(key), cells.get(key.lock)
    if lock and lock.value:
        settle({lock.value: [key.lock]})
        return ConflictError(
            "key of a scanned range is locked", key=key, holder=lock.value, transaction=t.row_key
        )
    if cell is None:
        return None
    return AssertionFailedError(Version(key, None), {key: cell}, transaction=t.row_key)


# ------------------------------------------------------------------------------- the details


def _holders(cells: Cells) -> set[bytes]:
    return {
        cell.value
        for key, cell in cells.items()
        if key.column.endswith(LOCK_SUFFIX) and cell and cell.value
    }


def _crossed(
    before: Mapping[bytes, TransactionRow], after: Mapping[bytes, TransactionRow]
) -> set[bytes]:
    return {holder for holder, row in before.items() if has_crossed(row, after[holder])}


def _plain(cells: Mapping[Key, Cell]) -> dict[Key, Cell]:
    return {key: cell for key, cell in cells.items() if not key.column.endswith(RESERVED)}


def _keys(cells: Iterable[Key]) -> list[Key]:
    """Return the keys that these cells tell of, in order."""
    return sorted({key for cell in cells if (key := _key_of(cell)).column})


def _key_of(cell: Key) -> Key:
    for suffix in RESERVED:
        if cell.column.endswith(suffix):
            return cell._replace(column=cell.column.removesuffix(suffix))
    return cell


def _values(cells: Cells, rows: Mapping[bytes, TransactionRow]) -> dict[Key, Cell]:
    found = {key: value_of(key, cells, rows) for key in _keys(cells)}
    return {key: cell for key, cell in found.items() if cell is not None}


def _behind(prefix: bytes) -> bytes:
    """Return the least row behind all that start with the prefix; empty: there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


def _column(pair: object) -> tuple[bytes, bytes]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InvalidRequestError(describe("columns are (family, column) pairs", given=pair))
    key = Key(b"-", *pair)
    check_key(key)
    return key.family, key.column
