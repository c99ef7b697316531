"""`spark.read.format("txn")` and its like: which part of the package does what was asked for.

Spark pickles the data source into processes of its own, for planning, for tasks, for commits. So it
holds its options and nothing else, and each part is imported where it is needed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, NamedTuple

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


class ViewPaths(NamedTuple):
    """What `option("what", ..)` shows beside the rows of tables, by import paths, as recovery has
    one of them. reader: a class, made of the options and the schema that is wanted, which may have
    fewer columns. schema: all its columns."""

    reader: str
    schema: str


VIEWS = {
    "transactions": ViewPaths(
        "txn.spark.views:TransactionsReader", "txn.spark.views:TRANSACTIONS_SCHEMA"
    ),
    "locks": ViewPaths("txn.spark.views:LocksReader", "txn.spark.views:LOCKS_SCHEMA"),
    "findings": ViewPaths("recovery.spark:FindingsReader", "recovery.spark:FINDINGS_SCHEMA"),
}


class TxnDataSource(DataSource):
    """The format `txn`: see docs/spark.md for its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "txn"

    @property
    def given(self) -> SourceOptions:
        """The options, for typed access."""
        return SourceOptions(self.options)

    def schema(self) -> StructType:
        """Return the columns where no schema is given."""
        what = self.given.choice("what", (ROWS, CHANGES, *VIEWS), ROWS)
        if what in VIEWS:
            found: StructType = _load(VIEWS[what].schema)
            return found
        if what == CHANGES:
            from txn.spark import changes  # noqa: PLC0415

            return changes.CHANGES
        from txn.spark.reader import infer_schema  # noqa: PLC0415

        return infer_schema(self.given)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table's rows, or of what else was asked for."""
        what = self.given.choice("what", (ROWS, CHANGES, *VIEWS), ROWS)
        if what == CHANGES:
            raise InvalidRequestError("changes are a stream: use readStream", what=what)
        if what in VIEWS:
            found: DataSourceReader = _load(VIEWS[what].reader)(self.given, schema)
            return found
        from txn.spark.reader import make_reader  # noqa: PLC0415

        return make_reader(self.given, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of the change feed."""
        try:
            from txn.spark.changes import open_change_reader  # noqa: PLC0415
        except ImportError as error:
            raise InvalidRequestError("a change feed needs PySpark 4.2 or later") from error
        what = self.given.choice("what", (ROWS, CHANGES, *VIEWS), ROWS)
        if what != CHANGES:
            raise InvalidRequestError("only changes are a stream: say what=changes", given=what)
        return open_change_reader(self.given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a data frame, whose rows are transactions, or which is one."""
        if self.given.flag("atomic"):
            from txn.spark.atomic import make_atomic_writer  # noqa: PLC0415

            return make_atomic_writer(self.given, schema, overwrite)
        from txn.spark.writer import make_writer  # noqa: PLC0415

        return make_writer(self.given, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a micro batch."""
        from txn.spark.sink import make_stream_writer  # noqa: PLC0415

        return make_stream_writer(self.given, schema, overwrite)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def register(spark: SparkSession) -> None:
    """Make `format("txn")` known to a session, once or again. Spark refuses a name that the active
    session knows and this one does not; in a thread of its own no session is active."""
    with ThreadPoolExecutor(1) as alone:
        alone.submit(spark.dataSource.register, TxnDataSource).result()
