"""What options say of a mapping, before it meets a schema: our own way of saying it.

    row      "id", "id bigint", "a string, b int", "id as long"
    columns  "v=d:v, n bigint=d:count as text"

A column is a name, in backquotes where it is no plain word, a type where no schema gives it, and a
codec where it is not the one of its type. In families and qualifiers `\\xNN` is a byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txn.errors import InvalidRequestError
from txn.model import as_bytes
from txn.spark.options import SourceOptions
from txn.text import unescape

MAPPING = (
    "table",
    "row",
    "separator",
    "columns",
    "family",
    "hbase.table",
    "hbase.columns.mapping",
    "catalog",
)
"""The options of a mapping."""

_COMMA = re.compile(r",(?![^(]*\))")
_COLUMN = re.compile(
    r"(?:`(?P<quoted>[^`]+)`|(?P<name>[^\s=`,]+))"
    r"(?:\s+(?P<type>[A-Za-z_]+(?:\([\d\s,]*\))?))?"
    r"(?:\s*=\s*(?P<family>[^\s:]+):(?P<qualifier>\S+))?"
    r"(?:\s+as\s+(?P<codec>\S+))?"
)
_DECIMAL = re.compile(r"decimal(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_TYPES: dict[str, type[DataType]] = {
    "string": StringType,
    "byte": ByteType,
    "tinyint": ByteType,
    "short": ShortType,
    "smallint": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "long": LongType,
    "bigint": LongType,
    "float": FloatType,
    "double": DoubleType,
    "boolean": BooleanType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ntz": TimestampNTZType,
}


@dataclass(frozen=True, slots=True)
class ColumnSketch:
    """A column as it was described. Those of the row key have no family and no qualifier.

    width: how many bytes it has in a row key, where that is told.
    """

    name: str
    kind: DataType | None = None
    family: bytes = b""
    qualifier: bytes = b""
    codec: str | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """All that was described. separator: between the columns of a row key; empty: they follow each
    other with fixed widths. is_partial: a schema may lack some of the columns."""

    table: bytes
    row: Sequence[ColumnSketch]
    columns: Sequence[ColumnSketch]
    separator: bytes = b""
    is_partial: bool = False


def parse_type(text: str, column: str) -> DataType:
    """Return the type that a mapping names; those with types in them need a schema."""
    word = text.strip().lower()
    if found := _TYPES.get(word):
        return found()
    if match := _DECIMAL.fullmatch(word):
        precision, scale = int(match[1] or 10), int(match[2] or 0)
        if scale <= precision <= 38 and precision:
            return DecimalType(precision, scale)
    raise InvalidRequestError(
        "a mapping has an unknown type: give the type with .schema()", column=column, type=text
    )


def outline_options(options: SourceOptions, schema: StructType | None) -> Outline:
    """Return what `row`, `separator`, `columns` and `family` say. Without `columns` all columns of
    the schema but those of the row key are in the family, under their own names."""
    row = parse_columns(options, "row", has_cells=False)
    if options.text("columns"):
        if options.text("family"):
            raise InvalidRequestError("options exclude each other", options=["columns", "family"])
        columns = parse_columns(options, "columns", has_cells=True)
    elif schema is None:
        raise InvalidRequestError("a mapping needs the option columns, or a .schema()")
    else:
        family = unescape(options.require("family"))
        keys = {sketch.name for sketch in row}
        names = [name for name in schema.names if name not in keys]
        columns = [ColumnSketch(name, None, family, name.encode()) for name in names]
    return Outline(
        as_bytes("table", options.require("table")),
        row,
        columns,
        unescape(options.text("separator", "/") or "") if len(row) > 1 else b"",
    )


def parse_columns(options: SourceOptions, option: str, has_cells: bool) -> list[ColumnSketch]:
    """Return the columns that an option names."""
    text = options.require(option)
    return [_parse_column(option, part.strip(), has_cells) for part in _COMMA.split(text)]


def _parse_column(option: str, text: str, has_cells: bool) -> ColumnSketch:
    match = _COLUMN.fullmatch(text)
    if match is None or (match["family"] is not None) != has_cells:
        shape = "name [type]=family:qualifier [as codec]" if has_cells else "name [type] [as codec]"
        raise InvalidRequestError("an option is malformed", option=option, part=text, shape=shape)
    name = match["quoted"] or match["name"]
    kind = None if match["type"] is None else parse_type(match["type"], name)
    family, qualifier = unescape(match["family"] or ""), unescape(match["qualifier"] or "")
    return ColumnSketch(name, kind, family, qualifier, match["codec"])
