"""`spark.read.format("txn")`: rows of a table as record batches.

Each row is read as of one instant, as in `Engine.scan`; different rows may have different instants.
A task that Spark runs again reads its rows as they are then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.types import StructType

from txn.errors import InvalidRequestError
from txn.spans import Span
from txn.spark.codecs import arrow_schema
from txn.spark.definitions import MAPPING
from txn.spark.mapping import TableMapping
from txn.spark.options import SourceOptions
from txn.spark.partitions import open_worker
from txn.spark.ranges import BOUNDS, PARTITIONS, RangeReader, push_filters

PUSHDOWN = "pushDownPredicate"
OPTIONS = (*MAPPING, *BOUNDS, PARTITIONS, PUSHDOWN)
_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


def infer_schema(options: SourceOptions) -> StructType:
    """Return the schema that the types of a mapping make."""
    options.check(OPTIONS)
    return TableMapping.parse(options, None).schema


def make_reader(options: SourceOptions, schema: StructType) -> TableReader:
    """Return the reader of a table.

    Spark refuses a reader with filter pushdown unless the session sets
    `spark.sql.python.filterPushdown.enabled`; then it plans in a process of that program. Spark
    also keeps the filters of a data frame's first query for its later ones, whose results are then
    wrong. So filters are taken only if the option `pushDownPredicate` says that there is one query.
    """
    options.check(OPTIONS)
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_able = _PUSHING in sys.modules or getattr(main, "name", None) == _PUSHING
    if is_able and options.flag(PUSHDOWN):
        return FilteringTableReader(options, schema)
    return TableReader(options, schema)


class TableReader(RangeReader):
    """Read the mapped columns of the rows that have at least one of them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._mapping = mapping = TableMapping.parse(options, schema)
        if not mapping.columns:
            raise InvalidRequestError("no column of the schema is a cell")
        families = [column.family for column in mapping.columns]
        super().__init__(options, [mapping.table], families)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        mapping, engine = self._mapping, open_worker(self.access).engine
        schema = arrow_schema(mapping.schema)
        columns = [(column.family, column.qualifier) for column in mapping.columns]
        table, ranges = partition.value
        for start, stop in ranges:
            span = Span(table, start, stop, frozenset(columns))
            for page in engine.backend.scan_columns(span, columns):
                yield _make_batch(mapping, schema, page.rows, page.values)


class FilteringTableReader(TableReader):
    """Read only the rows that filters on the row key leave."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply the filters that are ranges of rows; return those that Spark has to apply."""
        self.ranges, rest = push_filters(filters, self._mapping.row, self.ranges)
        return rest


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
