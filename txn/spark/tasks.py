"""What the writer and the sink have in common: the plan of a write, which goes to its tasks, what a
task does, and what is done of its rejects and counts when all tasks have ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from txn.errors import InvalidRequestError
from txn.request import Ack
from txn.spark.committing import Counts, Summary, commit_requests
from txn.spark.drafting import DRAFTING, Drafting, parse_drafting
from txn.spark.options import SourceOptions
from txn.spark.rejects import REJECTING, RejectPlace, drop_files, name_files, parse_rejects
from txn.spark.workers import Access, open_worker
from txn.tracing import W3C, Headers

WRITING = (*DRAFTING, *REJECTING, "counts", "metrics", "batch", "ack", *W3C)
"""The options of a write."""

BATCH = 500


@dataclass(frozen=True)
class WritePlan:
    """All that the tasks of a write have to know. counts: accumulators of the driver. metrics: a
    file for a line of JSON, when all tasks have ended. trace: the headers of the span that is the
    parent of its transactions'."""

    access: Access
    drafting: Drafting
    rejects: RejectPlace
    batch: int = BATCH
    ack: Ack = "decided"
    counts: str | None = None
    metrics: Path | None = None
    trace: Headers | None = None

    def check_store(self) -> None:
        """Raise InvalidRequestError where the store lacks a table or family, or where transactions
        may not use one; StoreError where it cannot be reached."""
        with self.access.open_engine() as engine:
            engine.check_request(self.drafting.list_samples())
            if self.rejects.table is not None:
                engine.check_request(self.rejects.list_samples())

    def write_rows(self, batches: Iterable[pa.RecordBatch], name: str, job: str) -> TaskReport:
        """Commit the rows of a task. name: of the write, under which its tokens are; job: the name
        of this run of it. When it returns, all is complete."""
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        worker = open_worker(self.access)
        rejects = self.rejects.open_rejects(worker.engine, job, str(partition))
        wanted = self.drafting.draft_requests(batches, f"{name}/{partition}".encode())
        summary = commit_requests(
            worker, wanted, rejects.refuse, batch=self.batch, ack=self.ack, trace=self.trace
        )
        if self.counts is not None:
            Counts.find_accumulators(self.counts).add(summary)
        return TaskReport(job, partition, summary, rejects.file)

    def end_job(self, job: str, reports: Sequence[TaskReport]) -> None:
        """Name the files of rejects, and write the metrics; called where the driver is."""
        if self.rejects.folder is not None:
            name_files(self.rejects.folder, job, [report.rejects for report in reports])
        if self.metrics is not None:
            total = add_summaries([report.summary for report in reports])
            line = {"job": job, "tasks": len(reports), **asdict(total)}
            self.metrics.parent.mkdir(parents=True, exist_ok=True)
            with open(self.metrics, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def abort_job(self, job: str) -> None:
        """Take away what rejects have left of a job that failed. What it committed stays."""
        if self.rejects.folder is not None:
            drop_files(self.rejects.folder, job)


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """What a task tells: of the run of its write, what it counted, and its file of rejects."""

    job: str
    partition: int
    summary: Summary
    rejects: str | None


def parse_plan(
    options: SourceOptions,
    schema: StructType,
    *,
    more: Sequence[str] = (),
    retention_ms: int | None = None,
) -> WritePlan:
    """Return the plan that the options make; InvalidRequestError where something does not fit.
    more: options that somebody else reads. retention_ms: of tokens that are of this run alone."""
    options.check({*WRITING, *more})
    counts, metrics = options.text("counts"), options.text("metrics")
    if counts is not None and len(counts.split(",")) != len(fields(Counts)):
        raise InvalidRequestError("counts are what Counts.name_accumulators returns", counts=counts)
    return WritePlan(
        options.access(),
        parse_drafting(options, schema, retention_ms),
        parse_rejects(options),
        options.whole("batch", BATCH),
        options.ack("decided"),
        counts,
        Path(metrics.removeprefix("file://")).absolute() if metrics else None,
        {name: text for name in W3C if (text := options.text(name))},
    )


def add_summaries(summaries: Iterable[Summary]) -> Summary:
    """Return the sums of what several tasks counted."""
    every = list(summaries)
    names = [field.name for field in fields(Summary)]
    return Summary(**{name: sum(getattr(each, name) for each in every) for name in names})
