"""`spark.read.format("txn")`: rows of a table as record batches.

Each row is read as of one instant, as in `Engine.scan`; different rows may have different instants.
A task that Spark runs again reads its rows as they are then. Of a snapshot, all rows are as of the
instant that the planner found, whenever a task reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from txn.errors import InvalidRequestError
from txn.reading.columns import group_columns
from txn.reading.feed import LATENESS_MS, RETENTION_MS, Bounds, refuse_rowless
from txn.reading.instants import find_instant, restore_rows
from txn.spans import Span
from txn.spark.codecs import arrow_schema
from txn.spark.definitions import MAPPING
from txn.spark.mapping import TableMapping
from txn.spark.options import SourceOptions
from txn.spark.partitions import open_worker
from txn.spark.ranges import BOUNDS, PARTITIONS, RangeReader, select_ranges

WHERE, SNAPSHOT = "where", "snapshot"
OPTIONS = (*MAPPING, *BOUNDS, PARTITIONS, WHERE, SNAPSHOT)
KEPT = ("latenessMs", "retentionMs", "rowless")
"""More options of a snapshot, as of a change feed."""


def infer_schema(options: SourceOptions) -> StructType:
    """Return the schema that the types of a mapping make."""
    _check(options)
    return TableMapping.parse(options, None).schema


def _check(options: SourceOptions) -> None:
    options.check((*OPTIONS, *KEPT) if options.flag(SNAPSHOT) else OPTIONS)


class TableReader(RangeReader):
    """Read the mapped columns of the rows that have at least one of them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        _check(options)
        self._mapping = mapping = TableMapping.parse(options, schema)
        if not mapping.columns:
            raise InvalidRequestError("no column of the schema is a cell")
        super().__init__(options, [mapping.table], [column.family for column in mapping.columns])
        if (where := options.text(WHERE)) is not None:
            self.ranges = select_ranges(where, mapping.row, self.ranges, schema.names)
        self._bounds: Bounds | None = None
        if options.flag(SNAPSHOT):
            lateness_ms = options.whole("latenessMs", LATENESS_MS)
            self._bounds = Bounds(0, lateness_ms, options.whole("retentionMs", RETENTION_MS))
            self._skips_rowless = options.choice("rowless", ("refuse", "skip"), "refuse") == "skip"

    def partitions(self) -> Sequence[InputPartition]:
        """Return for each task its table and ranges, and of a snapshot its instant."""
        parts = super().partitions()
        if self._bounds is None:
            return parts
        with self.access.open_engine() as engine:
            refuse_rowless(engine.context, self._skips_rowless)
            instant = find_instant(engine.context, self._bounds)
        return [InputPartition((*part.value, instant)) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        mapping, engine = self._mapping, open_worker(self.access).engine
        schema = arrow_schema(mapping.schema)
        columns = [(column.family, column.qualifier) for column in mapping.columns]
        table, ranges, *instants = partition.value
        spans = [Span(table, start, stop, frozenset(columns)) for start, stop in ranges]
        if instants and spans:
            found = chain.from_iterable(map(engine.backend.scan, spans))
            rows = restore_rows(engine.context, spans, instants[0], found)
            pages = group_columns(rows, table, columns)
        else:
            scan = engine.backend.scan_columns
            pages = chain.from_iterable(scan(span, columns) for span in spans)
        for page in pages:
            arrays: list[pa.Array | None] = [None] * len(schema)
            for part, decoded in zip(mapping.row, mapping.decode_rows(page.rows), strict=True):
                arrays[part.place] = decoded
            for column, cells in zip(mapping.columns, page.values, strict=True):
                arrays[column.place] = column.decode_array(cells, page.rows)
                if not schema.field(column.place).nullable and None in cells:
                    problem = "a cell is absent, and its column must not be null"
                    raise InvalidRequestError(
                        problem, row=page.rows[cells.index(None)], column=column.name
                    )
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
