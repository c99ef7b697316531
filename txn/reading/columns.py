"""Range reads by columns, which make no objects for cells.

A store that reads columns hands over the values of the keys and of their locks. A row whose locks
are free is taken as it is, as in `scans`. Every other row is read again and resolved there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from typing import cast

from txn.model import Cell, Key, Row, new_tuple
from txn.protocol.context import Context, call_store
from txn.protocol.locks import find_held
from txn.reading.scans import HolderRows, Locked, resolve_page, scan_rows
from txn.spans import Span
from txn.stores.base import ColumnPage, ColumnReader

PAGE_ROWS = 4_096
PAGE_BYTES = 16_000_000
"""The bytes of values after which a page ends: a task has little memory."""

Columns = Sequence[tuple[bytes, bytes]]


def scan_columns(
    context: Context, wanted: Span, columns: Columns, locked: Locked
) -> Iterator[ColumnPage]:
    """Yield the rows of a span that have a value, each as of one instant, with the values of its
    columns in the given order."""
    if not hasattr(context.store, "read_columns"):
        yield from group_columns(scan_rows(context, wanted, locked), wanted.table, columns)
        return
    store, holder_rows = cast(ColumnReader, context.store), HolderRows(context, wanted.table)
    lock_of = context.rules.lock_of
    keys = [Key(b"-", family, column) for family, column in columns]
    locks = list(dict.fromkeys(lock_of(key)[1:3] for key in keys))
    start: bytes | None = wanted.start
    while start is not None:
        read = partial(store.read_columns, wanted.table, start, wanted.stop, [*columns, *locks])
        rows, found, start = call_store(context, read)
        values = found[: len(columns)]
        guards = zip(locks, found[len(columns) :], strict=True)
        held = sorted({place for lock, cells in guards for place in find_held(lock[1], cells)})
        page = _read_rows(context, wanted, [rows[place] for place in held])
        resolved = resolve_page(context, wanted, page, holder_rows, locked)
        for place, row in zip(held, resolved, strict=True):
            for column, cells in zip(columns, values, strict=True):
                cells[place] = _value_of(row, wanted.table, column)
        if all(None in cells for cells in values):  # a row may have no value
            nothing = (None,) * len(values)
            is_there = [cells != nothing for cells in zip(*values, strict=True)]
            rows = list(compress(rows, is_there))
            values = [list(compress(cells, is_there)) for cells in values]
        if rows:
            yield ColumnPage(rows, values)


def group_columns(rows: Iterable[Row], table: bytes, columns: Columns) -> Iterator[ColumnPage]:
    """Group rows by columns; rows without cells are left out. Cells are dropped at once: many live
    objects make garbage collection dominate."""
    names: list[bytes] = []
    values: list[list[bytes | None]] = [[] for _ in columns]
    size = 0
    for row in rows:
        if not row.cells:
            continue
        names.append(row.row)
        for column, cells in zip(columns, values, strict=True):
            value = _value_of(row, table, column)
            cells.append(value)
            size += len(value or b"")
        if len(names) >= PAGE_ROWS or size >= PAGE_BYTES:
            yield ColumnPage(names, values)
            names, values, size = [], [[] for _ in columns], 0
    if names:
        yield ColumnPage(names, values)


def _read_rows(context: Context, wanted: Span, names: Sequence[bytes]) -> list[Row]:
    """Read rows with their locks, each as of one instant."""
    columns = wanted.values or ()
    keys = [Key(name, family, column, wanted.table) for name in names for family, column in columns]
    found = call_store(context, lambda: context.store.read(keys)) if keys else {}
    rows: dict[bytes, dict[Key, Cell]] = {name: {} for name in names}
    for key, cell in found.items():
        if cell is not None:
            rows[key.row][key] = cell
    return [Row(name, cells) for name, cells in rows.items()]


def _value_of(row: Row, table: bytes, column: tuple[bytes, bytes]) -> bytes | None:
    cell = row.cells.get(new_tuple(Key, (row.row, *column, table)))
    return None if cell is None else cell.value
