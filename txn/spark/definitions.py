"""The options that say which columns make the row key and which cell each other column is.

They are read here without a schema. There are three notations (docs/spark.md): our own, `row` with
`columns` or `family`; `hbase.columns.mapping` of HBase's Spark connector; and the JSON document
`catalog` of SHC and of the connector. The last two write numbers as HBase's `Bytes` does, times as
milliseconds, and the columns of a row key without a separator. Only mappings that those two would
write differently are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import types

from txn.errors import InvalidRequestError
from txn.model import as_bytes
from txn.spark.codecs import DEFAULT_CODECS
from txn.spark.options import SourceOptions, is_number, match_name, parse_name, split_list
from txn.text import unescape

WAYS = {
    "row": ("row", "separator", "columns", "family"),
    "hbase.columns.mapping": ("hbase.columns.mapping", "hbase.table"),
    "catalog": ("catalog",),
}
"""The options of each notation."""

MAPPING = ("table", *(name for names in WAYS.values() for name in names))
"""The options of a mapping."""

CODERS = ("primitivetype", "org.apache.spark.sql.execution.datasources.hbase.types.primitivetype")
_COLUMN = re.compile(
    r"(?P<name>`(?:[^`]|``)+`|[^\s=`,]+)"
    r"(?:\s+(?P<type>[A-Za-z_]+(?:\([\d\s,]*\))?))?"
    r"(?:\s*=\s*(?:(?P<table>[^\s:/(]+|[^\s/(]+(?=\())(?:\((?P<row>.+)\))?/)?"
    r"(?P<family>[^\s:/]+):(?P<qualifier>\S+))?"
    r"(?:\s+as\s+(?P<codec>\S+))?"
)
_DECIMAL = re.compile(r"decimal(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_TYPES = {
    name: kind
    for kind in DEFAULT_CODECS
    if not issubclass(kind, types.ArrayType | types.DecimalType | types.MapType | types.StructType)
    for name in (kind.typeName(), kind().simpleString())  # such as long and bigint
}


class ColumnDefinition(NamedTuple):
    """A column as the options describe it. Row-key columns have no family and no qualifier.

    width: the number of bytes in a row key, if it was given. table, row: those of a cell of another
    row, where row has the text with its columns; empty: as the mapping's.
    """

    name: str
    kind: types.DataType | None = None
    family: bytes = b""
    qualifier: bytes = b""
    codec: str | None = None
    width: int | None = None
    table: bytes = b""
    row: str = ""


class TableDefinition(NamedTuple):
    """All columns of a table; those of the row key are in its order. separator: between the columns
    of a row key; empty: they have fixed widths and no separator. is_partial: a schema may lack some
    columns. other_rows: what is written besides, for each row of the data frame."""

    table: bytes
    columns: Sequence[ColumnDefinition]
    separator: bytes = b""
    is_partial: bool = False
    other_rows: Sequence[TableDefinition] = ()


def read_definition(options: SourceOptions, schema: types.StructType | None) -> TableDefinition:
    """Return the definition in the options, which must use one notation only."""
    given = {name for names in WAYS.values() for name in names if options.text(name)}
    match [way for way, names in WAYS.items() if given.intersection(names)]:
        case ["row"]:
            return _read_own(options, schema)
        case ["hbase.columns.mapping"]:
            found = _read_connector(options)
        case ["catalog"]:
            found = _read_catalog(options)
        case _:
            raise InvalidRequestError(
                "columns must be mapped in one way: by row with columns or family, by "
                "hbase.columns.mapping, or by catalog",
                given=sorted(given),
            )
    names = schema.names if schema else []
    columns = [each._replace(name=match_name(each.name, names)) for each in found.columns]
    return found._replace(columns=columns)


def _parse_type(text: str, column: str) -> types.DataType:
    """Return the type that a mapping names; nested types need a schema."""
    word = text.strip().lower()
    if found := _TYPES.get(word):
        return found()
    if match := _DECIMAL.fullmatch(word):
        precision, scale = int(match[1] or 10), int(match[2] or 0)
        if scale <= precision <= 38 and precision:
            return types.DecimalType(precision, scale)
    problem = "a mapping has an unknown type: give the type with .schema()"
    raise InvalidRequestError(problem, column=column, type=text)


def parse_schema(text: str) -> types.StructType:
    """Return the schema of a view: names and types such as `long`, `array<string>` and
    `map<string,long>`. Spark's own parser needs a session."""
    schema = types.StructType()
    for name, kind in (column.split() for column in text.split(", ")):
        container, _, inner = kind.removesuffix(">").partition("<")
        found: types.DataType = _TYPES[inner.rpartition(",")[2] or container]()
        if container == "array":
            found = types.ArrayType(found)
        elif container == "map":
            found = types.MapType(types.StringType(), found)
        schema.add(types.StructField(name, found))
    return schema


def check_columns(schema: types.StructType, known: types.StructType) -> None:
    for field in schema:
        if field.name not in known.names or known[field.name].dataType != field.dataType:
            problem = "there is no such column"
            raise InvalidRequestError(problem, column=field.name, known=known.simpleString())


def _read_own(options: SourceOptions, schema: types.StructType | None) -> TableDefinition:
    names = schema.names if schema else []
    row = _parse_columns("row", options.require("row"), names)
    if options.text("columns"):
        if options.text("family"):
            raise InvalidRequestError("options exclude each other", options=["columns", "family"])
        cells = _parse_columns("columns", options.require("columns"), names, has_cells=True)
    elif schema is None:
        raise InvalidRequestError("a mapping needs the option columns, or a .schema()")
    else:
        family = unescape(options.require("family"))
        keys = {column.name for column in row}
        others = [name for name in names if name not in keys]
        cells = [ColumnDefinition(name, None, family, name.encode()) for name in others]
    table = as_bytes("table", options.require("table"))
    separator = unescape(options.text("separator", "/") or "")
    rows = {_name_row(table, row): (row, list[ColumnDefinition]())}
    for cell in cells:
        parts = _parse_columns("columns", cell.row, names) if cell.row else row
        rows.setdefault(_name_row(cell.table or table, parts), (parts, []))[1].append(cell)
    main, *other_rows = (
        TableDefinition(place[0], parts + found, separator if len(parts) > 1 else b"")
        for place, (parts, found) in rows.items()
    )
    return main._replace(other_rows=other_rows)


def _name_row(table: bytes, parts: Sequence[ColumnDefinition]) -> tuple[bytes, Any]:
    return table, tuple((part.name, part.codec) for part in parts)


def _parse_columns(
    option: str, text: str, names: Sequence[str], *, has_cells: bool = False
) -> list[ColumnDefinition]:
    columns = []
    for column in map(str.strip, split_list(text)):
        match = _COLUMN.fullmatch(column)
        if match is None or (match["family"] is not None) != has_cells:
            cell = "=[table[(row)]/]family:qualifier" if has_cells else ""
            shape = f"name [type]{cell} [as codec]"
            problem = "an option is malformed"
            raise InvalidRequestError(problem, option=option, part=column, shape=shape)
        name = match_name(parse_name(match["name"]), names)
        kind = None if match["type"] is None else _parse_type(match["type"], name)
        table, family, qualifier = (
            unescape(match[part] or "") for part in ("table", "family", "qualifier")
        )
        columns.append(
            ColumnDefinition(
                name, kind, family, qualifier, match["codec"], None, table, match["row"] or ""
            )
        )
    return columns


def _read_connector(options: SourceOptions) -> TableDefinition:
    columns, option = [], "hbase.columns.mapping"
    for text in options.require(option).split(","):
        parts = text.split()
        if len(parts) != 3 or ":" not in parts[2]:
            shape = "NAME TYPE family:qualifier, or NAME TYPE :key"
            problem = "an option is malformed"
            raise InvalidRequestError(problem, option=option, part=text.strip(), shape=shape)
        family, _, qualifier = parts[2].partition(":")
        columns.append(_define_column(parts[0], parts[1], (family, qualifier)))
    columns.sort(key=lambda column: column.family != b"")  # the row key comes first
    if len(row := [column.name for column in columns if not column.family]) > 1:
        problem = "hbase.columns.mapping has several row keys, and no order of them: use catalog"
        raise InvalidRequestError(problem, columns=row)
    table = _name_table(options, options.text("hbase.table") or options.require("table"))
    return TableDefinition(table, columns, is_partial=True)


def _read_catalog(options: SourceOptions) -> TableDefinition:
    try:
        catalog = json.loads(options.require("catalog"))
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError("catalog is no JSON", why=str(error)) from error
    if not isinstance(catalog, dict):
        raise InvalidRequestError("catalog is no JSON object")
    table = _take(catalog, "table", dict)
    coder = str(table.get("tableCoder", "PrimitiveType"))
    if coder.lower() not in CODERS:
        raise InvalidRequestError("catalog has a coder that is not ours", tableCoder=coder)
    entries = _take(catalog, "columns", dict)
    columns = [
        _parse_catalog_column(name, _take(entries, name, dict, "columns.")) for name in entries
    ]
    keys = {str(entries[each.name].get("col")): each for each in columns if not each.family}
    parts = _take(catalog, "rowkey", str).split(":")
    if sorted(parts) != sorted(keys):
        raise InvalidRequestError(
            "catalog must have a column of family rowkey for each part of its rowkey, and no other",
            rowkey=parts,
            columns=sorted(keys),
        )
    name = f"{table.get('namespace', 'default')}:{_take(table, 'name', str, 'table.')}"
    ordered = [*(keys[part] for part in parts), *(each for each in columns if each.family)]
    return TableDefinition(_name_table(options, name), ordered, is_partial=True)


def _parse_catalog_column(name: str, entry: Mapping[str, Any]) -> ColumnDefinition:
    for unknown in sorted(entry.keys() - {"cf", "col", "type", "length", "codec"}):
        problem = "catalog says of a column what is not supported: name a codec"
        raise InvalidRequestError(problem, column=name, key=unknown)
    length = str(entry.get("length", ""))
    if length and (not is_number(length) or int(length) < 1):
        raise InvalidRequestError("catalog has a length that is none", column=name, length=length)
    kind, qualifier = _take(entry, "type", str, name), _take(entry, "col", str, name)
    family = str(entry.get("cf", "rowkey"))
    width = int(length) if length and family == "rowkey" else None
    cell = ("" if family == "rowkey" else family, qualifier)
    return _define_column(name, kind, cell, entry.get("codec"), width)


def _define_column(
    name: str,
    type_name: str,
    cell: tuple[str, str],
    codec: str | None = None,
    width: int | None = None,
) -> ColumnDefinition:
    """Return a column as the connector and SHC define it; without a family it is in the row key."""
    kind = _parse_type(type_name, name)
    if codec is None and isinstance(kind, types.DateType):
        raise InvalidRequestError(
            "dates are written as midnight of some zone there: describe it with row and columns",
            column=name,
        )
    if codec is None and isinstance(kind, types.TimestampType):
        codec = "millis"
    family, qualifier = cell if cell[0] else ("", "")
    return ColumnDefinition(name, kind, family.encode(), qualifier.encode(), codec, width)


def _name_table(options: SourceOptions, name: str) -> bytes:
    table = name.removeprefix("default:").encode()
    given = options.text("table")
    if given is not None and given.encode() != table:
        raise InvalidRequestError("two tables are named", table=given, mapping=name)
    return table


def _take(entry: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    value = entry.get(name)
    if not isinstance(value, kind):
        raise InvalidRequestError("catalog lacks a part", part=f"{where}{name}")
    return value
