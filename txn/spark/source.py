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
    CHANGES: "txn.spark.changes:ChangeReader",
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
        return self.given.choice("view", (ROWS, *VIEWS), ROWS)

    def schema(self) -> StructType:
        known: StructType
        if self._view == ROWS:
            known = _import_name("txn.spark.reader:infer_schema")(self.given)
        else:
            known = _import_name(VIEWS[self._view]).known
        return known

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._view == CHANGES:
            raise InvalidRequestError("changes are a stream: use readStream", view=CHANGES)
        make = _import_name(VIEWS.get(self._view, "txn.spark.reader:make_reader"))
        reader: DataSourceReader = make(self.given, schema)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self._view != CHANGES:
            raise InvalidRequestError(
                "only changes are a stream: say view=changes", given=self._view
            )
        try:
            reader: DataSourceStreamReader = _import_name(VIEWS[CHANGES])(self.given, schema)
        except ImportError as error:
            raise InvalidRequestError("a change feed needs PySpark 4.2 or later") from error
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _refuse(overwrite, "use mode append; a table is not overwritten")
        is_atomic = self.given.flag("atomic")
        path = (
            "txn.spark.atomic:make_atomic_writer" if is_atomic else "txn.spark.writer:make_writer"
        )
        writer: DataSourceWriter = _import_name(path)(self.given, schema)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        _refuse(overwrite, "use the output mode append, or foreachBatch")
        make = _import_name("txn.spark.writer:make_stream_writer")
        writer: DataSourceStreamWriter = make(self.given, schema)
        return writer


def _import_name(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _refuse(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidRequestError(f"rows are only put and deleted by name: {instead}")


def register(spark: SparkSession) -> None:
    """Make `format("txn")` known to a session; repeated calls are allowed. Spark refuses a name
    that only the active session knows, so this uses a new thread, which has no active session."""
    with ThreadPoolExecutor(1) as alone:
        alone.submit(spark.dataSource.register, TxnDataSource).result()
