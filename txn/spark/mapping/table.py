"""A mapping that fits a schema: row keys and cells of rows, and rows of cells."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from txn.errors import InvalidRequestError
from txn.model import MAX_ROW, Key, check_key, new_tuple
from txn.spark.codecs import Cells, Codec, make_codec, name_codec, type_of_codec
from txn.spark.mapping.foreign import read_outline
from txn.spark.mapping.outline import ColumnSketch, Outline
from txn.spark.options import SourceOptions


@dataclass(frozen=True)
class MappedColumn:
    """A column of the schema that is a cell. place: which one of the schema it is."""

    name: str
    place: int
    family: bytes
    qualifier: bytes
    codec: Codec

    def encode(self, value: Any) -> bytes:
        """Return the cell of a value that is not None; InvalidRequestError names the column, also
        for an empty value, which HBase cannot tell from an absent one."""
        data = _encode(self, value)
        if not data:
            raise _make_empty_error(self)
        return data

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        """Return the cells of a column of a record batch, None for each null; as `encode`."""
        cells = _encode_array(self, values)
        if b"" in cells:
            raise _make_empty_error(self)
        return cells

    def decode_array(self, cells: Cells, rows: Sequence[bytes]) -> pa.Array:
        """Return the column of these rows; InvalidRequestError names the first bad cell."""
        return _decode_array(self, cells, rows)


@dataclass(frozen=True)
class KeyPart:
    """A column of the schema that is the row key, or a part of it. width: in bytes, if fixed."""

    name: str
    place: int
    codec: Codec
    width: int | None = None


@dataclass(frozen=True)
class TableMapping:
    """How rows of a schema are rows of a table. Columns of the schema that are neither in the row
    key nor cells are `besides`, by the caller's will."""

    table: bytes
    schema: StructType
    row: tuple[KeyPart, ...]
    separator: bytes
    columns: tuple[MappedColumn, ...]

    @classmethod
    def parse(
        cls, options: SourceOptions, schema: StructType | None, besides: Collection[str] = ()
    ) -> TableMapping:
        """Return the mapping that the options describe, for this schema or, without one, for one of
        the types that they name. Raise InvalidRequestError for what is unknown, twice or reserved.

        besides: columns of the schema that mean something else to the caller.
        """
        outline = read_outline(options, schema)
        known = _make_schema(outline) if schema is None else schema
        _check_names(outline, known, besides)
        return cls(
            outline.table,
            known,
            _make_row(outline, known),
            outline.separator,
            tuple(
                _make_column(outline.table, sketch, known)
                for sketch in outline.columns
                if sketch.name in known.names and sketch.name not in besides
            ),
        )

    def key_of(self, row: bytes, column: MappedColumn) -> Key:
        """Return the key of a column in a row."""
        return new_tuple(Key, (row, column.family, column.qualifier, self.table))

    def encode_rows(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the row keys of a record batch. Raise InvalidRequestError, with the column's name,
        where a part is null, empty or does not fit."""
        columns = []
        for part in self.row:
            cells = _encode_array(part, batch.column(part.place))
            columns.append([_check_part(self, part, cell) for cell in cells])
        if len(columns) == 1:
            return [self._join([part]) for part in columns[0]]
        return [self._join(parts) for parts in zip(*columns, strict=True)]

    def decode_rows(self, rows: Sequence[bytes]) -> list[pa.Array]:
        """Return the columns of the row key, in the order of `row`."""
        if len(self.row) == 1:
            return [_decode_array(self.row[0], rows, rows)]
        split = [self._split(row) for row in rows]
        return [
            _decode_array(part, [parts[place] for parts in split], rows)
            for place, part in enumerate(self.row)
        ]

    def _join(self, parts: Sequence[bytes]) -> bytes:
        row = self.separator.join(parts)
        if len(row) > MAX_ROW:
            raise InvalidRequestError("row key is too long", bytes=len(row), limit=MAX_ROW)
        return row

    def _split(self, row: bytes) -> list[bytes]:
        if self.separator:
            parts = row.split(self.separator)
        else:
            parts, start = [], 0
            for part in self.row:
                stop = len(row) if part.width is None else start + part.width
                parts.append(row[start:stop])
                start = stop
            if start != len(row):
                parts.append(row[start:])
        if len(parts) != len(self.row) or not all(parts):
            raise InvalidRequestError(
                "row key does not decode", row=row, columns=[part.name for part in self.row]
            )
        return parts


# ------------------------------------------------------------------------------ making one


def _make_schema(outline: Outline) -> StructType:
    fields = []
    for sketch in [*outline.row, *outline.columns]:
        kind = sketch.kind or (type_of_codec(sketch.codec) if sketch.codec else None)
        if kind is None:
            raise InvalidRequestError(
                "a column has no type: give it in the mapping, or all with .schema()",
                column=sketch.name,
            )
        fields.append(StructField(sketch.name, kind))
    return StructType(fields)


def _check_names(outline: Outline, schema: StructType, besides: Collection[str]) -> None:
    sketches = [*outline.row, *outline.columns]
    mapped = [sketch.name for sketch in sketches]
    cells = [(sketch.family, sketch.qualifier) for sketch in outline.columns]
    checked: tuple[tuple[str, list[Any]], ...] = (
        ("column", schema.names),
        ("mapped column", mapped),
        ("cell", cells),
    )
    for what, names in checked:
        if twice := {str(name) for name in names if names.count(name) > 1}:
            raise InvalidRequestError(f"a {what} is there twice", names=sorted(twice))
    if not outline.columns or not outline.row:
        raise InvalidRequestError("a mapping needs a row key, and a column that is a cell")
    if lost := [name for name in schema.names if name not in mapped and name not in besides]:
        raise InvalidRequestError(
            "columns of the schema are not mapped", columns=lost, mapped=mapped
        )
    needed = outline.row if outline.is_partial else sketches
    if missing := [sketch.name for sketch in needed if sketch.name not in schema.names]:
        raise InvalidRequestError("mapped columns are not in the schema", columns=missing)


def _make_row(outline: Outline, schema: StructType) -> tuple[KeyPart, ...]:
    parts = tuple(_make_part(outline, sketch, schema) for sketch in outline.row)
    for part in parts:
        if outline.separator and not part.codec.is_text:
            raise InvalidRequestError(
                "a row key with a separator is made of text: name a codec",
                column=part.name,
                codec=part.codec.name,
            )
    if not outline.separator and (loose := [part.name for part in parts[:-1] if not part.width]):
        raise InvalidRequestError(
            "a row key without a separator needs a fixed width for all columns but the last",
            columns=loose,
        )
    return parts


def _make_part(outline: Outline, sketch: ColumnSketch, schema: StructType) -> KeyPart:
    kind = schema[sketch.name].dataType
    codec = sketch.codec
    if codec is None and outline.separator and not isinstance(kind, StringType):
        is_time = name_codec(kind, sketch.name) == "iso"
        codec = "iso" if is_time else "text"  # a number's bytes would not do
    made = _make_codec(replace(sketch, codec=codec), schema)
    if sketch.width and made.width and sketch.width != made.width:
        raise InvalidRequestError(
            "length is not that of the type", column=sketch.name, length=sketch.width
        )
    return KeyPart(sketch.name, schema.names.index(sketch.name), made, sketch.width or made.width)


def _make_column(table: bytes, sketch: ColumnSketch, schema: StructType) -> MappedColumn:
    check_key(Key(b"-", sketch.family, sketch.qualifier, table))
    place = schema.names.index(sketch.name)
    codec = _make_codec(sketch, schema)
    return MappedColumn(sketch.name, place, sketch.family, sketch.qualifier, codec)


def _make_codec(sketch: ColumnSketch, schema: StructType) -> Codec:
    kind = schema[sketch.name].dataType
    if sketch.kind is not None and sketch.kind != kind:
        raise InvalidRequestError(
            "a column has one type in the schema and another in the mapping",
            column=sketch.name,
            schema=kind.simpleString(),
            mapping=sketch.kind.simpleString(),
        )
    return make_codec(sketch.codec or name_codec(kind, sketch.name), kind, sketch.name)


# ----------------------------------------------------------------- values, with their names


def _encode(column: MappedColumn, value: Any) -> bytes:
    try:
        return column.codec.encode(value)
    except Exception as error:  # a codec may be the user's own
        raise InvalidRequestError(
            "a value does not encode", column=column.name, codec=column.codec.name, why=str(error)
        ) from error


def _make_empty_error(column: MappedColumn) -> InvalidRequestError:
    return InvalidRequestError(
        "a value is empty, which HBase cannot tell from absent: use null", column=column.name
    )


def _encode_array(column: MappedColumn | KeyPart, values: pa.Array) -> list[bytes | None]:
    try:
        return column.codec.encode_array(values)
    except Exception as error:
        raise InvalidRequestError(
            "a value does not encode", column=column.name, codec=column.codec.name, why=str(error)
        ) from error


def _check_part(mapping: TableMapping, part: KeyPart, data: bytes | None) -> bytes:
    if not data:
        raise InvalidRequestError("a row key must not be null or empty", column=part.name)
    if mapping.separator and mapping.separator in data:
        raise InvalidRequestError(
            "a part of a row key has the separator in it",
            column=part.name,
            value=data,
            separator=mapping.separator,
        )
    if part.width is not None and len(data) != part.width:
        raise InvalidRequestError(
            "a part of a row key has not its width", column=part.name, value=data, width=part.width
        )
    return data


def _decode_array(column: MappedColumn | KeyPart, cells: Cells, rows: Sequence[bytes]) -> pa.Array:
    try:
        return column.codec.decode_array(cells)
    except Exception as error:
        _raise_bad_cell(column, cells, rows)
        raise InvalidRequestError(
            "cells do not decode", column=column.name, codec=column.codec.name, why=str(error)
        ) from error


def _raise_bad_cell(column: MappedColumn | KeyPart, cells: Cells, rows: Sequence[bytes]) -> None:
    """Find the cell for which all of them were refused."""
    for row, cell in zip(rows, cells, strict=True):
        try:
            column.codec.decode_array([cell])
        except Exception as error:
            raise InvalidRequestError(
                "a cell does not decode",
                row=row,
                column=column.name,
                codec=column.codec.name,
                why=str(error),
            ) from error
