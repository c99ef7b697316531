"""`spark.read.format("txn")` and its like: which part of the package does what was asked for.

Spark pickles the data source into processes of its own, for planning, for tasks, for commits. So it
holds its options and nothing else, and each part is imported where it is needed.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from txn.errors import InvalidRequestError
from txn.spark.options import SourceOptions


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
        """Return what a change is."""
        from txn.spark.changes import CHANGES  # noqa: PLC0415

        self.given.choice("what", ("changes",), "changes")
        return CHANGES

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of the change feed."""
        try:
            from txn.spark.changes import open_change_reader  # noqa: PLC0415
        except ImportError as error:
            raise InvalidRequestError("a change feed needs PySpark 4.2 or later") from error
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


def register(spark: SparkSession) -> None:
    """Make `format("txn")` known to a session."""
    spark.dataSource.register(TxnDataSource)
