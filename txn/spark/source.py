"""`spark.read.format("txn")` and its like: choose the module for each request.

Spark pickles the data source into separate processes for planning, tasks and commits. So the source
holds only its options, and imports each module where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, NoReturn, cast

from pyspark.sql import DataFrame, SparkSession, datasource
from pyspark.sql.types import StructType

from txn.errors import InvalidRequestError
from txn.spark.options import SourceOptions

ROWS, CHANGES = "rows", "changes"
QUERY = "sql.streaming.queryId"
"""The property in which Spark keeps the id of a streaming query."""

VIEWS = {
    CHANGES: "txn.spark.changes:ChangeReader",
    "transactions": "txn.spark.views:TransactionsReader",
    "locks": "txn.spark.views:LocksReader",
    "findings": "recovery.spark:FindingsReader",
}
"""The readers of `option("view", ..)`, by import path; one is in recovery. Each is made of the
options and the wanted schema, which may have fewer columns than the reader's `known`."""


class TxnDataSource(datasource.DataSource):
    """The format `txn`: see docs/spark.md for its options."""

    @classmethod
    def name(cls) -> str:
        return "txn"

    @property
    def given(self) -> SourceOptions:
        """Return the options. Of a catalogue table Spark gives none, except to `CREATE TABLE`,
        which adds its own, such as `provider`."""
        options = SourceOptions(self.options)
        if not options.text("uri") or options.text("provider"):
            raise InvalidRequestError(
                "the option uri is missing, or Spark withholds it: a source in Python does not "
                "get the options of a catalogue table. Use CREATE TEMPORARY VIEW name USING txn "
                "OPTIONS (..), or name WITH (..) in each statement",
                option="uri",
            )
        return options

    @property
    def _view(self) -> str:
        return self.given.choice("view", (ROWS, *VIEWS), ROWS)

    def schema(self) -> StructType:
        if self._view == ROWS:
            return cast(StructType, _import_name("txn.spark.reader:infer_schema")(self.given))
        return cast(StructType, _import_name(VIEWS[self._view]).known)

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        if self._view == CHANGES:
            raise InvalidRequestError("changes are a stream: use readStream", view=CHANGES)
        make = _import_name(VIEWS.get(self._view, "txn.spark.reader:TableReader"))
        return cast(datasource.DataSourceReader, make(self.given, schema))

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        """Return the reader of changes. Spark replaces an error of this method by an
        UnboundLocalError, so the first use of the reader raises it."""
        try:
            if self._view != CHANGES:
                problem = "only changes are a stream: say view=changes"
                raise InvalidRequestError(problem, given=self._view)
            return cast(
                datasource.DataSourceStreamReader, _import_name(VIEWS[CHANGES])(self.given, schema)
            )
        except InvalidRequestError as error:
            return FailedStreamReader(error)
        except ImportError as error:
            failure = InvalidRequestError("a change feed needs PySpark 4.2 or later")
            failure.__cause__ = error
            return FailedStreamReader(failure)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        _refuse(overwrite, "use mode append; a table is not overwritten")
        is_atomic = self.given.flag("atomic")
        path = (
            "txn.spark.atomic:make_atomic_writer" if is_atomic else "txn.spark.writer:make_writer"
        )
        return cast(datasource.DataSourceWriter, _import_name(path)(self.given, schema))

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> datasource.DataSourceStreamWriter:
        _refuse(overwrite, "use the output mode append, or foreachBatch")
        if self.given.flag("atomic"):
            raise InvalidRequestError(
                "Spark tells a sink in Python too late which batch it writes: use "
                "foreachBatch(txn.spark.make_batch_writer(options))",
                option="atomic",
            )
        make = _import_name("txn.spark.writer:make_stream_writer")
        return cast(datasource.DataSourceStreamWriter, make(self.given, schema))


class FailedStreamReader(datasource.DataSourceStreamReader):
    def __init__(self, error: InvalidRequestError) -> None:
        self._error = error

    def _fail(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _fail


def _import_name(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _refuse(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidRequestError(f"rows are only put and deleted by name: {instead}")


def register(spark: SparkSession) -> None:
    """Make `format("txn")` known to a session; repeated calls are allowed.

    Spark looks for the format in the active session of the JVM's thread. A thread other than the
    main one has none: call this in each thread that writes, and the session becomes the active one
    there.
    """
    if not hasattr(spark, "dataSource"):
        raise InvalidRequestError("not a session of Spark 4", given=spark)
    # A new thread has no active session; Spark refuses a name that only the active one knows.
    with ThreadPoolExecutor(1) as alone:
        alone.submit(spark.dataSource.register, TxnDataSource).result()
    jvm = getattr(spark, "_jvm", None)  # none with Spark Connect, which needs no active session
    if jvm is not None and SparkSession.getActiveSession() is None:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)


def make_batch_writer(options: Mapping[str, Any]) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes each batch once, in any output mode.

    options: of `df.write.format("txn")`; with `atomic` each batch is one transaction. Without
    `onceBy` the name of the job is made of the query's id, which its checkpoint keeps, and the
    number of the batch.
    """
    given = SourceOptions(options)
    names_rows = given.text("onceBy") is not None
    if given.text("jobId") is not None and not names_rows:
        problem = "a stream has a name in its checkpoint: jobId goes with onceBy only"
        raise InvalidRequestError(problem, option="jobId")

    def write_batch(frame: DataFrame, number: int) -> None:
        writer = frame.write.format("txn").mode("append").options(**options)
        if not names_rows:
            query = frame.sparkSession.sparkContext.getLocalProperty(QUERY)
            if query is None:
                raise InvalidRequestError(
                    "Spark does not say which query a batch is of: call this in foreachBatch, and "
                    "leave PYSPARK_PIN_THREAD at true",
                    property=QUERY,
                )
            writer = writer.option("jobId", f"{query}/{number}")
        writer.save()

    return write_batch
