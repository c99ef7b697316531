"""`writeStream.format("txn")`: each row of a micro batch a transaction, or each group of rows,
exactly once however often the query is started again.

Tokens are under the query's id and the batch's number, which tasks are told as properties of their
job. The id is kept in the checkpoint, and a batch that is run again has its number again; so what
an earlier run had committed of it is found to be there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from txn.errors import InvalidRequestError
from txn.spark.options import SourceOptions
from txn.spark.tasks import WritePlan, parse_plan
from txn.spark.writer import list_reports

STREAMING = ("checkpointLocation", "queryName", "path")
"""Options that are Spark's own, and come with ours."""

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"


class TxnStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a micro batch; for the end of the batch Spark makes another one."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Commit the rows of a task."""
        query, batch = _read_property(QUERY), _read_property(BATCH)
        return self.plan.write_rows(iterator, f"{query}/{batch}", f"{query}-{batch}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """End a batch: everything is committed already. It may end twice, if the driver dies."""
        reports = list_reports(messages)
        for job in {report.job for report in reports}:
            self.plan.end_job(job, reports)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """End a batch that failed; it will be run again."""
        for job in {report.job for report in list_reports(messages)}:
            self.plan.abort_job(job)


def make_stream_writer(
    options: SourceOptions, schema: StructType, overwrite: bool
) -> TxnStreamWriter:
    """Return the writer of a micro batch. Raise InvalidRequestError for options that do not fit."""
    if overwrite:
        raise InvalidRequestError(
            "rows are only put and deleted by name: use the output mode append, or foreachBatch"
        )
    if options.text("job_id") is not None and not options.text("once_by"):
        raise InvalidRequestError(
            "a stream has a name in its checkpoint: job_id goes with once_by only", option="job_id"
        )
    plan = parse_plan(options, schema, more=STREAMING)
    return TxnStreamWriter(plan)


def _read_property(name: str) -> str:
    context = TaskContext.get()
    value = context.getLocalProperty(name) if context else None
    if not value:
        raise InvalidRequestError("Spark does not tell of which batch a task is", property=name)
    return value
