"""The messages of ranges, and of the store's contract, as the Transactional service carries it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from txn.errors import InvalidRequestError
from txn.model import Cell, Check, Columns, Edit, Family, Key, Row, RowExclusion
from txn.service.messages import IDL, pack_cells, pack_key, unpack_cells, unpack_key
from txn.spans import Span, make_span
from txn.stores.hbase.places import row_after

# Those of a Family, in their order, as the interface names them.
SETTINGS = (
    "versions",
    "ttlMs",
    "keepDeletesMs",
    "durability",
    "newVersionBehavior",
    "replicas",
    "database",
)


def pack_versions(found: Mapping[Key, Sequence[Cell]]) -> list[Any]:
    """Return the messages of the versions of keys."""
    return [
        IDL.Versions(pack_key(key), [IDL.Cell(*cell) for cell in cells])
        for key, cells in found.items()
    ]


def unpack_versions(packed: Sequence[Any]) -> dict[Key, list[Cell]]:
    """Return the versions of the keys of messages."""
    return {
        unpack_key(each.key): [Cell(cell.value, cell.timestamp) for cell in each.cells]
        for each in packed
    }


def pack_edit(edit: Edit) -> Any:
    """Return the message of a put or a mark."""
    return IDL.Edit(pack_key(edit.key), edit.timestamp, edit.value)


def unpack_edit(packed: Any) -> Edit:
    """Return the edit of a message."""
    return Edit(unpack_key(packed.key), packed.value, packed.timestamp)


def pack_check(check: Check) -> Any:
    """Return the message of a checked write."""
    puts = [IDL.Mutation(pack_key(key), value) for key, value in check.puts]
    edits = [pack_edit(edit) for edit in check.edits]
    return IDL.Check(pack_key(check.key), check.expected, puts, edits)


def unpack_check(packed: Any) -> Check:
    """Return the checked write of a message."""
    puts = tuple((unpack_key(put.key), _value(put)) for put in packed.puts)
    edits = tuple(unpack_edit(each) for each in packed.edits)
    return Check(unpack_key(packed.key), packed.expected, puts, edits)


def _value(packed: Any) -> bytes:
    if packed.value is None:
        raise InvalidRequestError("a put lacks its value", key=unpack_key(packed.key))
    value: bytes = packed.value
    return value


def pack_page(rows: Iterable[Row], following: bytes | None) -> Any:
    """Return the message of rows, and where those begin that may come behind them."""
    packed = [IDL.StoredRow(row.row, pack_cells(row.cells)) for row in rows]
    return IDL.Page(packed, following is not None, following)


def unpack_page(packed: Any) -> tuple[list[Row], bytes | None]:
    """Return the rows of a page, and where those begin that may come behind them. A server of an
    older version only says whether there may be any."""
    rows = []
    for row in packed.rows:
        cells = unpack_cells(row.cells)
        rows.append(Row(row.row, {key: cell for key, cell in cells.items() if cell is not None}))
    following = packed.following or (row_after(rows[-1].row) if rows else None)
    return rows, following if packed.more else None


def pack_span(span: Span) -> Any:
    """Return the message of a range."""
    return IDL.Span(span.table, span.start, span.stop, pack_columns(span.columns))


def unpack_span(packed: Any) -> Span:
    """Return the range of a message; InvalidRequestError where there is no such range."""
    return make_span(packed.table, packed.start, packed.stop, None, unpack_columns(packed.columns))


def pack_columns(columns: Columns) -> Any:
    """Return the messages of columns, or None for all of them."""
    return None if columns is None else [IDL.Column(*pair) for pair in columns]


def unpack_columns(packed: Sequence[Any] | None) -> Columns:
    """Return the columns of a message, or None for all of them."""
    return None if packed is None else [(each.family, each.column) for each in packed]


def pack_unless(exclude: RowExclusion | None) -> dict[str, Any]:
    """Return the arguments, by their names, that say which rows a scan leaves out."""
    if exclude is None:
        return {}
    column = IDL.Column(exclude.family, exclude.column)
    return {"judged": column, "leftOut": sorted(exclude.values)}


def unpack_unless(judged: Any, left_out: Sequence[bytes] | None) -> RowExclusion | None:
    """Return which rows a scan leaves out."""
    if judged is None:
        return None
    return RowExclusion(judged.family, judged.column, frozenset(left_out or ()))


def pack_families(families: Mapping[bytes, Family]) -> list[Any]:
    """Return the messages of families by their names."""
    return [
        IDL.Family(name, **dict(zip(SETTINGS, astuple(family), strict=True)))
        for name, family in families.items()
    ]


def unpack_families(packed: Iterable[Any]) -> dict[bytes, Family]:
    """Return the families of messages by their names."""
    return {each.name: Family(*(getattr(each, name) for name in SETTINGS)) for each in packed}
