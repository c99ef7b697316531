"""`spark.read.format("txn")` and its like: choose the module for each request.

Spark pickles the data source into separate processes for planning, tasks and commits. So the source
holds only its options, and imports each module where it is needed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from txn.errors import InvalidRequestError
from txn.spark.options import SourceOptions

ROWS, CHANGES = "rows", "changes"

VIEWS = {
    "transactions": "txn.spark.views:TransactionsReader",
    "locks": "txn.spark.views:LocksReader",
    "findings": "recovery.spark:FindingsReader",
}
"""The readers of `option("view", ..)`, by import path; one is in recovery. Each is made of the
options and the wanted schema, which may have fewer columns than the reader's `known`."""


class TxnDataSource(DataSource):
    """The format `txn`: see docs/spark.md for its options."""

    @classmethod
    def name(cls) -> str:
        return "txn"

    @property
    def given(self) -> SourceOptions:
        return SourceOptions(self.options)

    @property
    def _view(self) -> str:
        return self.given.choice("view", (ROWS, CHANGES, *VIEWS), ROWS)

    def schema(self) -> StructType:
        view = self._view
        if view in VIEWS:
            known: StructType = _import_reader(VIEWS[view]).known
            return known
        if view == CHANGES:
            from txn.spark import changes  # noqa: PLC0415

            return changes.CHANGES
        from txn.spark.reader import infer_schema  # noqa: PLC0415

        return infer_schema(self.given)

    def reader(self, schema: StructType) -> DataSourceReader:
        view = self._view
        if view == CHANGES:
            raise InvalidRequestError("changes are a stream: use readStream", view=view)
        if view in VIEWS:
            reader: DataSourceReader = _import_reader(VIEWS[view])(self.given, schema)
            return reader
        from txn.spark.reader import make_reader  # noqa: PLC0415

        return make_reader(self.given, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            from txn.spark.changes import ChangeReader  # noqa: PLC0415
        except ImportError as error:
            raise InvalidRequestError("a change feed needs PySpark 4.2 or later") from error
        if self._view != CHANGES:
            raise InvalidRequestError(
                "only changes are a stream: say view=changes", given=self._view
            )
        return ChangeReader(self.given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if self.given.flag("atomic"):
            from txn.spark.atomic import make_atomic_writer  # noqa: PLC0415

            return make_atomic_writer(self.given, schema, overwrite)
        from txn.spark.writer import make_writer  # noqa: PLC0415

        return make_writer(self.given, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from txn.spark.writer import make_stream_writer  # noqa: PLC0415

        return make_stream_writer(self.given, schema, overwrite)


def _import_reader(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def register(spark: SparkSession) -> None:
    """Make `format("txn")` known to a session; repeated calls are allowed. Spark refuses a name
    that only the active session knows, so this uses a new thread, which has no active session."""
    with ThreadPoolExecutor(1) as alone:
        alone.submit(spark.dataSource.register, TxnDataSource).result()
