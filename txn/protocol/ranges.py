"""Ranges as they are stored, and their validation, which excludes phantoms.

Every key that a transaction wrote leaves a lock and a tag in its row; after a delete, for a day at
least. So a key that appears or disappears changes the result of a second read within minutes. A
range that two reads found equal was in that state at every instant in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

from txn.assertions import Version
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    ConflictError,
    DeadlineError,
    StoreClosedError,
    StoreError,
    TableUnavailable,
)
from txn.model import LOCK_SUFFIX, RESERVED, TAG_SUFFIX, Cell, Columns, Key, Row, RowExclusion
from txn.protocol.context import Context, are_apart, call_store
from txn.protocol.locks import Resolve, holder_of
from txn.protocol.row import FREE
from txn.protocol.transaction import TOO_LATE, PendingCommit, is_late, send_heartbeats_between
from txn.spans import Span


def stored_rows(
    context: Context,
    wanted: Span,
    exclude: RowExclusion | None = None,
    cells: Columns = None,
    *,
    reverse: bool = False,
) -> Iterator[Row]:
    """Yield the rows as they are stored, in reverse order with reverse=True. If the store fails,
    continue after the last row that was yielded.

    exclude: the rows to leave out, as in a store's scan. cells: read these columns only, instead of
    all cells that concern the span's keys.
    """
    rows: Iterator[Row] = iter(())
    last: bytes | None = None
    columns = wanted.cells if cells is None else cells

    def begin() -> Row | None:
        nonlocal rows
        start, stop = wanted.start, wanted.stop
        if last is not None:
            start, stop = (start, last) if reverse else (last, stop)
        rows = context.store.scan(wanted.table, start, stop, columns, exclude, reverse=reverse)
        return next((row for row in rows if row.row != last), None)

    while True:
        row = call_store(context, begin)
        try:
            while row is not None:
                last = row.row
                yield row
                row = next(rows, None)
        except (StoreClosedError, TableUnavailable):
            raise
        except StoreError:  # the next scan continues, or raises in the end
            continue
        return


def key_of_cell(cell: Key) -> Key:
    """Return the key to which a cell belongs as value, lock or tag."""
    for suffix in RESERVED:
        if cell.column.endswith(suffix):
            return cell._replace(column=cell.column.removesuffix(suffix))
    return cell


def keys_of_cells(cells: Iterable[Key]) -> list[Key]:
    return [key for key in list_lockable(cells) if key.column]


def list_lockable(cells: Iterable[Key]) -> list[Key]:
    """Return the cells' keys in order, and a key without a column for each row-family lock."""
    return sorted({key_of_cell(cell) for cell in cells})


def is_meaningful(cell: Key, found: Cell) -> bool:
    """Whether a cell has meaning by itself: a value or a held lock. Free locks and tags only show
    whether a key has changed between two reads."""
    if cell.column.endswith(LOCK_SUFFIX):
        return holder_of(cell, found) != FREE
    return not cell.column.endswith(TAG_SUFFIX)


class Digest:
    """A digest that shows whether two reads found the same cells. The remains of deleted keys may
    not fit into memory, and are only compared."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=32)

    def add(self, cells: Mapping[Key, Cell]) -> None:
        """Add the cells of a row, with values and timestamps, in key order."""
        for (row, family, column, table), (value, timestamp) in sorted(cells.items()):
            parts = (table or b"", row, family, column, value)
            numbers = (*map(len, parts), timestamp)
            self._hash.update(b"%d %d %d %d %d %d " % numbers + b"".join(parts))

    @property
    def value(self) -> bytes:
        """Equal for equal cells added in the same order."""
        return self._hash.digest()


def find_phantom(
    context: Context, t: PendingCommit, batch: Sequence[PendingCommit], resolve: Resolve
) -> AbortedError | None:
    """Return why the transaction, which holds its locks, must fail: its ranges have a key that it
    does not name. None: at some instant since the call they had none.

    A deleted key's remains may have been there when a read began, and gone before the read reached
    them. So if any remains are found, a second read must find the same.
    """
    mine = {cell for key in t.keys for cell in (key, *context.rules.guards_of(key))}
    before, before_ms = Digest().value, context.clock.monotonic_ms()
    for _ in range(context.policy.read_tries):
        rest, began_ms = Digest(), context.clock.monotonic_ms()
        rows = (row for wanted in t.spans for row in stored_rows(context, wanted))
        for row in send_heartbeats_between(context, batch, rows):
            others = {key: cell for key, cell in row.cells.items() if key not in mine}
            for key in list_lockable(others):
                cell, lock = others.get(key), others.get(key.lock)
                if lock and (holder := holder_of(key.lock, lock)):
                    resolve({holder: {key.lock: lock}})
                    words = "key of a scanned range is locked"
                    return ConflictError(words, key=key, holder=holder, transaction=t.row_key)
                if cell is not None:
                    absent, seen = Version(key, None), {key: cell}
                    return AssertionFailedError(absent, seen, transaction=t.row_key)
            rest.add(others)
        if is_late(context, t):
            return DeadlineError(TOO_LATE, transaction=t.row_key)
        if rest.value == before and not are_apart(context, before_ms):
            return None
        before, before_ms = rest.value, began_ms
    return ConflictError("scanned rows keep changing", transaction=t.row_key)
