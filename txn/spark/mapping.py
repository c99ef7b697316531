"""A mapping that fits a schema: it encodes rows as row keys and cells, and decodes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from txn.errors import InvalidRequestError
from txn.model import MAX_ROW, Key, check_key, new_tuple
from txn.spark.codecs import Cells, Codec, make_codec, name_codec, type_of_codec
from txn.spark.definitions import ColumnDefinition, TableDefinition, read_definition
from txn.spark.options import SourceOptions, match_name


class MappedColumn(NamedTuple):
    """A column of the schema that is a cell, the row key, or a part of the row key.

    place: its position in the schema. family, qualifier: empty in the row key. width: in bytes, if
    fixed. drops_empty: whether an empty value counts as null.
    """

    name: str
    place: int
    codec: Codec
    family: bytes = b""
    qualifier: bytes = b""
    width: int | None = None
    drops_empty: bool = False

    def encode(self, value: Any) -> bytes:
        """Return the cell of a value that is not None. InvalidRequestError names the column; it is
        also raised for an empty value, which HBase cannot distinguish from an absent one."""
        cell: bytes = self._call("a value does not encode", self.codec.encode, value)
        self._refuse_empty([cell])
        return cell

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        cells: list[bytes | None]
        cells = self._call("a value does not encode", self.codec.encode_array, values)
        if self.family and self.drops_empty:
            return [cell or None for cell in cells]
        if self.family:
            self._refuse_empty(cells)
        return cells

    def decode_array(self, cells: Cells, rows: Sequence[bytes]) -> pa.Array:
        """Return the column of these rows; InvalidRequestError names the first bad cell."""
        try:
            return self._call("cells do not decode", self.codec.decode_array, cells)
        except InvalidRequestError:
            for row, cell in zip(rows, cells, strict=True):
                self._call("a cell does not decode", self.codec.decode_array, [cell], row=row)
            raise

    def _refuse_empty(self, cells: Cells) -> None:
        if b"" in cells:
            raise InvalidRequestError(
                "a value is empty, which HBase cannot tell from absent: use null, or the option "
                "empty=null",
                column=self.name,
            )

    def _call(self, problem: str, convert: Callable[[Any], Any], given: Any, **at: object) -> Any:
        try:
            return convert(given)
        except Exception as error:  # a user's codec may raise anything
            raise InvalidRequestError(
                problem, **at, column=self.name, codec=self.codec.name, why=str(error)
            ) from error


class TableMapping(NamedTuple):
    """The mapping between rows of a schema and rows of a table. row: the columns of the row key, in
    order; columns: those that are cells; other_rows: of what a writer writes besides."""

    table: bytes
    schema: StructType
    row: tuple[MappedColumn, ...]
    separator: bytes
    columns: tuple[MappedColumn, ...]
    other_rows: tuple[TableMapping, ...] = ()

    @classmethod
    def parse(
        cls,
        options: SourceOptions,
        schema: StructType | None,
        others: Collection[str] = (),
        naming: Collection[str] = (),
        *,
        is_written: bool = False,
    ) -> TableMapping:
        """Return the mapping in the options for this schema, or for one of the mapping's own types.

        others: columns with another meaning for the caller, which are not cells. naming: columns
        that are cells only if they are mapped. is_written: whether it may have other rows. Raise
        InvalidRequestError for columns that are unknown, repeated or reserved.
        """
        definition = read_definition(options, schema)
        if definition.other_rows and not is_written:
            raise InvalidRequestError(
                "only a writer has cells of several rows: leave out those of others, or read each "
                "table by itself",
                tables=[row.table for row in definition.other_rows],
            )
        known = _make_schema(definition) if schema is None else schema
        _check_names(definition, known, [*others, *naming])
        rows = [definition, *definition.other_rows]
        both = [column for row in rows for column in row.columns if column.name in others]
        if both and not (options.text("family") and all(column.family for column in both)):
            problem = "a column that has timestamps or assertions cannot be a cell as well"
            raise InvalidRequestError(problem, columns=sorted(column.name for column in both))
        drops_empty = options.choice("empty", ("error", "null"), "error") == "null"
        main, *other_rows = (_map_row(row, known, others, drops_empty) for row in rows)
        return main._replace(other_rows=tuple(other_rows))

    @property
    def rows(self) -> tuple[TableMapping, ...]:
        """Return the mappings of all rows that a row of the schema writes, this one first."""
        return self, *self.other_rows

    def key_of(self, row: bytes, column: MappedColumn) -> Key:
        return new_tuple(Key, (row, column.family, column.qualifier, self.table))

    def find_column(self, name: str) -> MappedColumn:
        """Return the cell column with this name, or raise InvalidRequestError."""
        known = {column.name: column for column in self.columns}
        if found := known.get(match_name(name, known)):
            return found
        problem = "no column of the mapping is a cell by this name"
        raise InvalidRequestError(problem, column=name, known=[*known])

    def encode_rows(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the row keys of a record batch. InvalidRequestError names a column with a part
        that is null, empty or does not fit."""
        columns = []
        for part in self.row:
            cells = part.encode_array(batch.column(part.place))
            columns.append([self._check_part(part, cell) for cell in cells])
        rows = [self.separator.join(parts) for parts in zip(*columns, strict=True)]
        if (longest := max(map(len, rows), default=0)) > MAX_ROW:
            raise InvalidRequestError("row key is too long", bytes=longest, limit=MAX_ROW)
        return rows

    def decode_rows(self, rows: Sequence[bytes]) -> list[pa.Array]:
        """Return the columns of the row key, in the order of `row`."""
        if len(self.row) == 1:
            return [self.row[0].decode_array(rows, rows)]
        split = [self._split(row) for row in rows]
        return [
            part.decode_array([parts[place] for parts in split], rows)
            for place, part in enumerate(self.row)
        ]

    def _check_part(self, part: MappedColumn, data: bytes | None) -> bytes:
        if not data:
            raise InvalidRequestError("a row key must not be null or empty", column=part.name)
        if self.separator and self.separator in data:
            problem = "a part of a row key has the separator in it"
            raise InvalidRequestError(
                problem, column=part.name, value=data, separator=self.separator
            )
        if part.width is not None and len(data) != part.width:
            problem = "row-key column has the wrong width"
            raise InvalidRequestError(problem, column=part.name, value=data, width=part.width)
        return data

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
            problem = "row key does not decode"
            raise InvalidRequestError(problem, row=row, columns=[part.name for part in self.row])
        return parts


def _make_schema(definition: TableDefinition) -> StructType:
    schema = StructType()
    for column in definition.columns:
        kind = column.kind or (type_of_codec(column.codec) if column.codec else None)
        if kind is None:
            problem = "a column has no type: give it in the mapping, or all with .schema()"
            raise InvalidRequestError(problem, column=column.name)
        schema.add(column.name, kind)
    return schema


def _check_names(definition: TableDefinition, schema: StructType, others: Collection[str]) -> None:
    rows = [definition, *definition.other_rows]
    _refuse_repeated("column", schema.names)
    _refuse_repeated("mapped column", [column.name for column in definition.columns])
    for each in rows:
        keys = [column.name for column in each.columns if not column.family]
        cells = [(column.family, column.qualifier) for column in each.columns if column.family]
        _refuse_repeated("column of a row key", keys)
        _refuse_repeated("cell", cells)
        if not keys or not cells:
            raise InvalidRequestError("a mapping needs a row key, and a column that is a cell")
    mapped = [column.name for row in rows for column in row.columns]
    if lost := [name for name in schema.names if name not in mapped and name not in others]:
        problem = "columns of the schema are not mapped"
        raise InvalidRequestError(problem, columns=lost, mapped=mapped)
    keys = [column.name for column in definition.columns if not column.family]
    needed = keys if definition.is_partial else mapped
    if missing := [name for name in needed if name not in schema.names]:
        raise InvalidRequestError("mapped columns are not in the schema", columns=missing)


def _refuse_repeated(what: str, names: Sequence[Any]) -> None:
    if twice := {str(name) for name in names if names.count(name) > 1}:
        raise InvalidRequestError(f"a {what} is there twice", names=sorted(twice))


def _map_row(
    definition: TableDefinition, schema: StructType, others: Collection[str], drops_empty: bool
) -> TableMapping:
    columns = [
        _map_column(definition, column, schema)._replace(drops_empty=drops_empty)
        for column in definition.columns
        if column.name in schema.names and column.name not in others
    ]
    row = tuple(column for column in columns if not column.family)
    separator = definition.separator
    for part in row:
        if separator and not part.codec.is_text:
            problem = "a row key with a separator is made of text: name a codec"
            raise InvalidRequestError(problem, column=part.name, codec=part.codec.name)
    if not separator and (loose := [part.name for part in row[:-1] if not part.width]):
        problem = "a row key without a separator needs a fixed width for all columns but the last"
        raise InvalidRequestError(problem, columns=loose)
    cells = tuple(column for column in columns if column.family)
    return TableMapping(definition.table, schema, row, separator, cells)


def _map_column(
    definition: TableDefinition, column: ColumnDefinition, schema: StructType
) -> MappedColumn:
    kind, name = schema[column.name].dataType, column.name
    if column.kind is not None and column.kind != kind:
        problem = "a column has one type in the schema and another in the mapping"
        raise InvalidRequestError(
            problem, column=name, schema=kind.simpleString(), mapping=column.kind.simpleString()
        )
    codec_name = column.codec or name_codec(kind, name)
    if column.family:
        check_key(Key(b"-", column.family, column.qualifier, definition.table))
    elif definition.separator and column.codec is None and codec_name not in ("utf-8", "iso"):
        codec_name = "text"  # binary numbers do not fit beside a separator
    codec = make_codec(codec_name, kind, name)
    width, place = column.width or codec.width, schema.names.index(name)
    if codec.width and width != codec.width:
        raise InvalidRequestError("length is not that of the type", column=name, length=width)
    return MappedColumn(name, place, codec, column.family, column.qualifier, width)
