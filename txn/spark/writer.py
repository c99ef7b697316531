"""`df.write.format("txn")`: each row of a data frame a transaction, or each group of rows.

Spark makes the writer once for a job, where it is planned, and pickles it to all attempts of all
its tasks, and to the commit at the end. So it carries the name of the job: rows have tokens under
that name, and whatever runs again, beside itself or after it was lost, commits nothing twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from txn.spark.options import SourceOptions, refuse_overwrite
from txn.spark.tasks import TaskReport, WritePlan, parse_plan

RETENTION_MS = 7 * 24 * 3_600_000
"""For so long the tokens of a job are kept that has no name but the one of this run: no task of it
runs again a week after it committed something."""


class TxnWriter(DataSourceArrowWriter):
    """The writer of a job. name: what its tokens are under."""

    def __init__(self, plan: WritePlan, name: str, job: str) -> None:
        self.plan = plan
        self.name = name
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Commit the rows of a task."""
        return self.plan.write_rows(iterator, self.name, self.job)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the job: everything is committed already."""
        self.plan.end_job(self.job, list_reports(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """End a job that failed. What its tasks committed stays."""
        self.plan.abort_job(self.job)


def make_writer(options: SourceOptions, schema: StructType, overwrite: bool) -> TxnWriter:
    """Return the writer of a job that is being planned. Raise InvalidRequestError for options that
    do not fit the schema or the store, before any task runs."""
    refuse_overwrite(overwrite)
    name = options.text("job_id")
    retention_ms = None if name else RETENTION_MS
    plan = parse_plan(options, schema, more=("atomic",), retention_ms=retention_ms)
    plan.check_store()
    job = uuid.uuid4().hex
    return TxnWriter(plan, name or job, job)


def list_reports(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    """Return what the attempts that count have told."""
    return [message for message in messages if isinstance(message, TaskReport)]
