"""The operations of one mutation of a row, carried out in the caller's local transaction.

All operations happen at one server time. As in HBase, the values to add or append to, and the
newest versions, are determined before anything is written. A put at or below a marker of the same
mutation is masked. The new version of an Add or Append is above the one it replaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import assert_never

from txn.errors import InvalidRequestError
from txn.model import MAX_CELL, Cell, Key
from txn.tables import catalog, cells
from txn.tables.catalog import FamilyLayout, TableCatalog
from txn.tables.cells import CellVersion
from txn.tables.kv.ordered import Reader, Writer
from txn.tables.operations import Add, Append, Operation, Operations, Put, Refused, Remove

MAX_COLUMN = 131_072  # HBase accepts any that fits a cell; our keys are walked in pieces
KEY_VALUE_OVERHEAD = 20
_LENGTH_OVERHEAD = 4
_LONG = 8


def key_value_bytes(row: bytes, family: bytes, column: bytes, value: bytes) -> int:
    """Return the size of a cell as HBase's clients count it; its servers add 4 for the length."""
    return KEY_VALUE_OVERHEAD + len(row) + len(family) + len(column) + len(value)


def check_cells(row: bytes, operations: Iterable[Operation]) -> None:
    for operation in operations:
        if isinstance(operation, (Put, Append)):
            _check_size(row, operation)
        timestamp = operation.timestamp if isinstance(operation, Put) else None
        if timestamp is not None and not 0 <= timestamp <= cells.FOREVER:
            raise Refused("retries exhausted", "timestamps are not negative", timestamp=timestamp)


def prepare_changes(
    writer: Writer, known: TableCatalog, table: bytes, operations: Operations
) -> TableCatalog:
    """Return the catalog for the operations, or raise Refused. The first delete of a row or family
    marks the table as having masks."""
    found = known.table(table)
    for operation in operations:
        family, column = operation[:2]
        if family is not None:
            known.layout(table, family)
        if isinstance(column, bytes) and len(column) > MAX_COLUMN:
            facts = {"bytes": len(column), "limit": MAX_COLUMN}
            raise Refused("illegal argument", "the column is too long", **facts)
        timestamp = operation.timestamp if isinstance(operation, Remove) else None
        if timestamp is not None and not 0 <= timestamp <= cells.FOREVER:
            raise Refused("illegal argument", "timestamps are not negative", timestamp=timestamp)
    if not found.masked and deletes_whole(operations):
        catalog.save(writer, known, table, replace(found, masked=True))
        return catalog.load_catalog(writer)
    return known


def deletes_whole(operations: Iterable[Operation]) -> bool:
    """Return True if rows or families are deleted, which may change the catalog first."""
    return any(isinstance(one, Remove) and one.column is None for one in operations)


class RowChange:
    __slots__ = ("_known", "_layout", "_now", "_row", "_table", "_writer")

    def __init__(
        self, writer: Writer, known: TableCatalog, where: tuple[bytes, bytes], now_ms: int
    ) -> None:
        self._writer = writer
        self._known = known
        self._table, self._row = where
        self._layout = partial(known.layout, self._table)
        self._now = now_ms

    def carry_out(
        self, operations: Operations, put_ms: int | None = None
    ) -> tuple[CellVersion, ...]:
        """Carry out all operations; return what Adds and Appends put, in HBase's order. put_ms: the
        time of puts without one, if it is not the server's."""
        put_ms = self._now if put_ms is None else put_ms
        resolved: list[tuple[Put | Remove, bool]] = []
        exact: dict[tuple[bytes, bytes], int] = {}
        for given in operations:
            match given:
                case Put():
                    timestamp = put_ms if given.timestamp is None else given.timestamp
                    resolved.append((given._replace(timestamp=timestamp), False))
                case Add() | Append():
                    resolved.append((self._compute(given), True))
                case Remove():
                    resolved.append((self._date(given, exact), False))
                case _:
                    assert_never(given)
        results = []
        for operation, computed in resolved:
            if isinstance(operation, Remove):
                self._remove(operation)
            else:
                self._put(operation)
            if computed:
                results.append(CellVersion(*operation[:2], operation[3], operation[2]))  # type: ignore[arg-type]
        return tuple(sorted(results, key=lambda version: version[:2]))

    def _compute(self, operation: Add | Append) -> Put:
        family, column, _, ttl_ms = operation
        found = self._read_newest(family, column)
        old, at = found[0] if found else Cell(b"", -1)
        if ttl_ms is None and found:
            ttl_ms = cells.find_ttl(self._read_state(family, column), at)
        if isinstance(operation, Append):
            value = old + operation.value
        elif not found:
            value = _long(operation.by)
        elif len(old) != _LONG:
            raise Refused("do not retry", "the field is not a number of 8 bytes", bytes=len(old))
        else:
            value = _long(int.from_bytes(old) + operation.by)
        put = Put(family, column, value, max(self._now, at + 1), ttl_ms)
        _check_size(self._row, put)
        return put

    def _date(self, operation: Remove, exact: dict[tuple[bytes, bytes], int]) -> Remove:
        """Return the removal with its timestamp: the newest version's, the next one's, or now."""
        if operation.timestamp is not None:
            return operation
        family, column = operation.family, operation.column
        timestamp = self._now
        if operation.exact and family is not None and column is not None:
            number = exact[family, column] = exact.get((family, column), 0) + 1
            found = self._read_newest(family, column, number)
            if len(found) >= number:
                timestamp = found[number - 1].timestamp
        return operation._replace(timestamp=timestamp)

    def _read_newest(self, family: bytes, column: bytes, limit: int = 1) -> list[Cell]:
        state = self._read_state(family, column)
        return self._layout(family).read_versions(state, self._now, limit)

    def _read_state(self, family: bytes, column: bytes) -> bytes:
        return self._writer.get(catalog.cell_key(self._layout(family), self._row, column)) or b""

    def _put(self, put: Put) -> None:
        layout, at = self._layout(put.family), put.timestamp or 0
        if not _is_masked(self._writer, layout, self._row, at):
            name, limit = catalog.cell_key(layout, self._row, put.column), layout.versions
            old = self._writer.get(name) or b""
            new = cells.put_version(old, at, put.value, limit, self._now, ttl_ms=put.ttl_ms)
            self._store(name, old, new)

    def _remove(self, remove: Remove) -> None:
        family, column, timestamp, exact = remove
        at = timestamp or 0
        if family is None:
            for each in self._known.table(self._table).families:
                self._remove_family(each, at, exact)
        elif column is None:
            self._remove_family(family, at, exact)
        else:
            name = catalog.cell_key(self._layout(family), self._row, column)
            old = self._writer.get(name) or b""
            new = cells.delete_exact(old, at) if exact else cells.delete(old, at)
            self._store(name, old, new)

    def _remove_family(self, family: bytes, timestamp: int, exact: bool) -> None:
        """Mask the present cells and record the mask for later ones; so reads ignore the masks."""
        layout = self._layout(family)
        masks_key = catalog.masks_key(layout, self._row) or b""
        old = self._writer.get(masks_key) or b""
        mask, drop = cells.delete, cells.drop_versions
        if exact:
            mask, drop = cells.delete_exact, cells.drop_exact
        self._store(masks_key, old, mask(old, timestamp))
        for name in list(catalog.family_keys(self._writer, layout, catalog.escape_row(self._row))):
            state = self._writer.get(name) or b""
            self._store(name, state, drop(state, timestamp))

    def _store(self, name: bytes, old: bytes, new: bytes) -> None:
        if new is old:
            return
        if new:
            self._writer.put(name, new)
        else:
            self._writer.delete(name)


def write_edits(
    writer: Writer,
    known: TableCatalog,
    edits: Iterable[tuple[Key, bytes | None, int | None]],
    at_ms: int,
    now_ms: int,
) -> None:
    """Write versions and delete-column markers; those without a timestamp get `at_ms`. If one of
    them is refused, nothing is written."""
    get = writer.get
    changed: dict[bytes, bytes] = {}
    before = None
    for (row, family, column, table), value, given in edits:
        if (row, family, table) != before:  # a value is written with its tag
            before = row, family, table
            layout = known.layout(table, family)
            stem = catalog.cell_key(layout, row, b"")
        timestamp = at_ms if given is None else given
        if not 0 <= timestamp < cells.FOREVER:
            raise InvalidRequestError("not a timestamp in ms", timestamp=timestamp)
        name = stem + column
        old = changed[name] if name in changed else get(name) or b""
        if value is None:
            new = cells.delete(old, timestamp)
        elif layout.masks is not None and _is_masked(writer, layout, row, timestamp):
            continue
        else:
            new = cells.put_version(old, timestamp, value, layout.versions, now_ms)
        if new is not old:
            changed[name] = new
    writer.put_all(changed)


def _is_masked(reader: Reader, layout: FamilyLayout, row: bytes, timestamp: int) -> bool:
    key = catalog.masks_key(layout, row)
    masks = None if key is None else reader.get(key)
    return masks is not None and cells.masks(masks, timestamp)


def _check_size(row: bytes, put: Put | Append) -> None:
    size = key_value_bytes(row, put.family, put.column, put.value) + _LENGTH_OVERHEAD
    if size > MAX_CELL:
        raise Refused("do not retry", "the cell is too large", cell_bytes=size, limit=MAX_CELL)


def _long(number: int) -> bytes:
    """Return the number as 8 bytes; it wraps around as in Java."""
    return (number & ((1 << 64) - 1)).to_bytes(_LONG)
