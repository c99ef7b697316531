"""`spark.read.format("txn")`: rows of a table as record batches.

Each row is read as of one instant, as in `Engine.scan`; different rows may have different instants.
A task that Spark runs again reads its rows as they are then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from txn.errors import InvalidRequestError
from txn.spans import Span
from txn.spark.codecs import arrow_schema
from txn.spark.definitions import MAPPING
from txn.spark.mapping import TableMapping
from txn.spark.options import SourceOptions
from txn.spark.partitions import open_worker
from txn.spark.ranges import BOUNDS, PARTITIONS, RangeReader, select_ranges

PUSHDOWN, WHERE = "pushDownPredicate", "where"
OPTIONS = (*MAPPING, *BOUNDS, PARTITIONS, WHERE)


def infer_schema(options: SourceOptions) -> StructType:
    """Return the schema that the types of a mapping make."""
    _check(options)
    return TableMapping.parse(options, None).schema


def _check(options: SourceOptions) -> None:
    if options.text(PUSHDOWN) is not None:
        raise InvalidRequestError(
            "this option made Spark answer a data frame's later queries by the filters of an "
            "earlier one, and is gone: say where, such as where=\"id >= 'a' AND id < 'b'\"",
            option=PUSHDOWN,
        )
    options.check(OPTIONS)


class TableReader(RangeReader):
    """Read the mapped columns of the rows that have at least one of them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        _check(options)
        self._mapping = mapping = TableMapping.parse(options, schema)
        if not mapping.columns:
            raise InvalidRequestError("no column of the schema is a cell")
        families = [column.family for column in mapping.columns]
        super().__init__(options, [mapping.table], families)
        if (where := options.text(WHERE)) is not None:
            self.ranges = select_ranges(where, mapping.row, self.ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        mapping, engine = self._mapping, open_worker(self.access).engine
        schema = arrow_schema(mapping.schema)
        columns = [(column.family, column.qualifier) for column in mapping.columns]
        table, ranges = partition.value
        for start, stop in ranges:
            span = Span(table, start, stop, frozenset(columns))
            for page in engine.backend.scan_columns(span, columns):
                yield _make_batch(mapping, schema, page.rows, page.values)


def _make_batch(
    mapping: TableMapping,
    schema: pa.Schema,
    names: Sequence[bytes],
    values: Sequence[Sequence[bytes | None]],
) -> pa.RecordBatch:
    arrays: list[pa.Array | None] = [None] * len(schema)
    for part, decoded in zip(mapping.row, mapping.decode_rows(names), strict=True):
        arrays[part.place] = decoded
    for column, cells in zip(mapping.columns, values, strict=True):
        arrays[column.place] = column.decode_array(cells, names)
        if not schema.field(column.place).nullable and None in cells:
            raise InvalidRequestError(
                "a cell is absent, and its column must not be null",
                row=names[cells.index(None)],
                column=column.name,
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
