"""`df.write.format("txn")` and `writeStream.format("txn")`: a transaction per row, or row group.

Spark makes the writer once per job, while planning, and pickles it to all attempts of all tasks and
to the final commit. It carries the name of the job, with which tokens begin. So a task that runs
again, or twice at once, commits nothing twice.

The tokens of a stream begin with the query's id and the number of the micro batch, which tasks read
from their job's properties. The checkpoint keeps the id, and a batch that runs again keeps its
number. So the batch finds what its earlier run committed.

The options `onReject` and `rejects` keep rows that failed an assertion, met a conflict or do not
encode. In a table a reject takes the token of its row. So a row is either written or rejected,
whatever the other attempts of its task do. In a folder each attempt of a task has its own file,
under a hidden name until it has succeeded and the write ends.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from txn.client.engine import Engine
from txn.errors import AbortedError, AssertionFailedError, InvalidRequestError, TxnError
from txn.model import Family, Key, Mutation, plain_table
from txn.request import Ack, Committed, Request
from txn.spark import partitions
from txn.spark.mapping import TableMapping
from txn.spark.options import SourceOptions, split_list
from txn.spark.requests import REQUESTS, RequestBuilder, SourceRows, parse_requests
from txn.text import escape, reason_text, unescape
from txn.tracing import W3C, Headers

NEW_TABLE = ("newTable", "splitKeys", "versions")
REJECTS = ("onReject", "rejects", "rejectsFamily")
WRITING = (*REQUESTS, *REJECTS, *NEW_TABLE, "counts", "metrics", "batchSize", "ack", *W3C)

STREAMING = ("checkpointLocation", "queryName")
"""Spark's own options, which it passes along with those of a stream."""

TABLE = "table:"
BATCH = 500
RETENTION_MS = 7 * 24 * 3_600_000
"""The retention of tokens of an unnamed job: none of its tasks runs again a week after a commit."""


class Rejects(NamedTuple):
    """What is done about rejects. They fail the task unless they are at least counted. A conflict,
    or a value that does not encode, rejects a row only if rejects are kept."""

    is_counted: bool = False
    table: bytes | None = None
    family: bytes = b"r"
    folder: Path | None = None

    @property
    def are_kept(self) -> bool:
        return self.table is not None or self.folder is not None

    def name_files(self, job: str, files: Sequence[str | None]) -> None:
        """Rename the files of successful attempts to `NAME-0.jsonl` and so on. Delete the files of
        other attempts, and those of an earlier run of the same job."""
        if self.folder is None:
            return
        named = {f"{job}-{place}.jsonl": file for place, file in enumerate(files) if file}
        for name, file in named.items():
            try:
                (self.folder / file).replace(self.folder / name)
            except FileNotFoundError as error:
                problem = "rejects need a folder that tasks and driver share"
                raise InvalidRequestError(problem, file=self.folder / file) from error
        for left in self.folder.glob(f"{job}-*.jsonl"):
            if left.name not in named:
                left.unlink(missing_ok=True)
        self.drop_files(job)

    def drop_files(self, job: str) -> None:
        for left in self.folder.glob(f".{job}-*.rejects") if self.folder else ():
            left.unlink(missing_ok=True)


@dataclass
class RejectKeeper:
    """Keep the rejects of an attempt of a task. file: the name of its file, if it has one.
    unmade: the rows that make no request, until `flush`."""

    rejects: Rejects
    engine: Engine
    job: str
    partition: int
    file: str | None = None
    unmade: list[tuple[SourceRows, Request, TxnError]] = field(default_factory=list)
    summary: partitions.Summary = field(default_factory=partitions.Summary)

    def refuse_unmade(self, rows: SourceRows, request: Request, why: TxnError) -> None:
        """Keep the rows of a request that cannot be made; the request has their token."""
        self.unmade.append((rows, request, why))
        if len(self.unmade) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Write the rows that make no request, and count them."""
        repeated, count = self._keep(self.unmade), len(self.unmade)
        self.summary += partitions.Summary(repeated=repeated, refused=count - repeated)
        self.unmade.clear()

    def refuse(self, refused: partitions.Refused[SourceRows]) -> int:
        """Keep the refused requests of a batch, or raise PartitionError. Return how many of them
        another attempt had already decided, and so are repeated."""
        kind = AbortedError if self.rejects.are_kept else AssertionFailedError
        for rows, _, why in refused:
            if not (self.rejects.is_counted and isinstance(why, kind)):
                raise partitions.make_error(rows, why) from why
        return self._keep(refused)

    def _keep(self, refused: partitions.Refused[SourceRows]) -> int:
        repeated = 0
        if refused and self.rejects.table is not None:
            results = self.engine.commit_many([self._make_record(*each) for each in refused])
            for (rows, _, _), result in zip(refused, results, strict=True):
                if not isinstance(result, Committed):
                    raise partitions.make_error(rows, result) from result
                repeated += result.repeated
        elif refused and (folder := self.rejects.folder) is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.file = self.file or f".{self.job}-{self.partition}-{uuid.uuid4().hex}.rejects"
            with open(folder / self.file, "a", encoding="utf-8") as file:
                for rows, _, why in refused:
                    document = self._describe(rows, why)
                    document["row"] = json.loads(document["row"])
                    file.write(json.dumps(document, ensure_ascii=False) + "\n")
        return repeated

    def _make_record(self, rows: SourceRows, request: Request, why: TxnError) -> Request:
        document = {name: text for name, text in self._describe(rows, why).items() if text}
        token = request.once or json.dumps(document).encode()
        row = b"%s/%s" % (rows[0].row, blake2b(token, digest_size=8).hexdigest().encode())
        keys = [Key(row, self.rejects.family, name, self.rejects.table) for name in document]
        mutations = tuple(map(Mutation, keys, document.values()))
        return replace(request, mutations=mutations, assertions=())

    def _describe(self, rows: SourceRows, why: TxnError) -> dict[str, Any]:
        return {
            "reason": reason_text(why) if isinstance(why, AbortedError) else str(why),
            "key": ",".join(dict.fromkeys(escape(row.row) for row in rows)),
            "row": rows.text(),
            "job": self.job,
        }


def parse_rejects(options: SourceOptions) -> Rejects:
    where = options.text("rejects")
    usual = "count" if where else "fail"
    is_counted = options.choice("onReject", ("fail", "count"), usual) == "count"
    if where and not is_counted:
        problem = "options exclude each other"
        raise InvalidRequestError(problem, options=["onReject=fail", "rejects"])
    if not where:
        return Rejects(is_counted)
    if where.startswith(TABLE):
        table = where.removeprefix(TABLE).encode()
        return Rejects(True, table, (options.text("rejectsFamily") or "r").encode())
    return Rejects(True, folder=Path(where.removeprefix("file://")).absolute())


class NewTables(NamedTuple):
    """How missing tables are created. splits: the first row keys of all regions but the first, in
    the table of the mapping's main row; another table has one region."""

    splits: tuple[bytes, ...]
    versions: int

    @classmethod
    def parse(cls, options: SourceOptions) -> NewTables | None:
        """Return what the options say, or None without `newTable`."""
        regions = options.whole("newTable", None)
        text = options.text("splitKeys")
        given = [name for name in NEW_TABLE if options.text(name) is not None]
        if regions is None and given:
            raise InvalidRequestError("an option goes with newTable only", options=given)
        if regions is None:
            return None
        splits = [unescape(key.strip()) for key in split_list(text)] if text else []
        if len(splits) != regions - 1 or splits != sorted(set(splits)) or b"" in splits:
            raise InvalidRequestError(
                "splitKeys are the first row keys of all regions but the first, in order: "
                "newTable=1 needs none, newTable=3 two",
                newTable=regions,
                splitKeys=splits,
            )
        return cls(tuple(splits), options.whole("versions", Family().versions))

    def create(self, engine: Engine, mapping: TableMapping) -> None:
        """Create the tables of the mapping that are missing; existing ones stay as they are."""
        store, database = engine.context.store, plain_table(engine.context.table)
        family = Family(self.versions, database=database)
        for table in dict.fromkeys(row.table for row in mapping.rows):
            names = [c.family for row in mapping.rows if row.table == table for c in row.columns]
            if store.describe(table) is None:
                splits = self.splits if table == mapping.table else ()
                store.ensure_table(table, dict.fromkeys(names, family), splits)


class WritePlan(NamedTuple):
    """What the tasks of a write need. counts: an accumulator of the driver. metrics: a file that
    gets a line of JSON at the end. trace: the headers of the transactions' parent span. new_tables:
    how missing tables are created, if they are."""

    access: partitions.Access
    builder: RequestBuilder
    rejects: Rejects
    batch: int = BATCH
    ack: Ack = "decided"
    counts: str | None = None
    metrics: Path | None = None
    trace: Headers | None = None
    new_tables: NewTables | None = None

    @classmethod
    def parse(
        cls,
        options: SourceOptions,
        schema: StructType,
        *,
        more: Sequence[str] = (),
        retention_ms: int | None = None,
    ) -> WritePlan:
        """Return the plan that the options define, or raise InvalidRequestError for a bad one.
        more: options that others read. retention_ms: of the tokens of this run alone."""
        options.check({*WRITING, *more})
        counts, metrics = options.text("counts"), options.text("metrics")
        if counts is not None and not counts.isdecimal():
            problem = "counts are what Counts.name_accumulator returns"
            raise InvalidRequestError(problem, counts=counts)
        return cls(
            options.access(),
            parse_requests(options, schema, retention_ms),
            parse_rejects(options),
            options.whole("batchSize", BATCH),
            options.ack("decided"),
            counts,
            Path(metrics.removeprefix("file://")).absolute() if metrics else None,
            {name: text for name in W3C if (text := options.text(name))},
            NewTables.parse(options),
        )

    def check_store(self) -> None:
        """Create the tables that may be created. Raise InvalidRequestError if a table or family is
        absent or closed to transactions, and StoreError if the store does not answer."""
        with self.access.open_engine() as engine:
            if self.rejects.table is not None:
                cell = Key(b"-", self.rejects.family, b"reason", self.rejects.table)
                engine.check_request(Request((Mutation(cell, b"-"),)))
            if self.new_tables is not None:
                self.new_tables.create(engine, self.builder.mapping)
            engine.check_request(self.builder.sample_request())

    def write_rows(self, batches: Iterable[pa.RecordBatch], name: str, job: str) -> TaskReport:
        """Commit the rows of a task. name: the prefix of tokens; job: the name of this run of the
        write. When it returns, all commits are complete."""
        partition, worker = partitions.find_partition(), partitions.open_worker(self.access)
        keeper = RejectKeeper(self.rejects, worker.engine, job, partition)
        reject = keeper.refuse_unmade if self.rejects.are_kept else None
        requests = self.builder.build_requests(batches, f"{name}/{partition}".encode(), reject)
        summary = partitions.commit_requests(
            worker, requests, keeper.refuse, batch=self.batch, ack=self.ack, trace=self.trace
        )
        keeper.flush()
        summary += keeper.summary
        if self.counts is not None:
            partitions.Counts.find(self.counts).add(summary)
        return TaskReport(job, summary, keeper.file)

    def end_job(self, job: str, reports: Sequence[TaskReport]) -> None:
        """Rename the files of rejects, and write the metrics; called where the driver is."""
        self.rejects.name_files(job, [report.rejects for report in reports])
        if self.metrics is not None:
            total = sum((report.summary for report in reports), partitions.Summary())
            line = {"job": job, "tasks": len(reports), **asdict(total)}
            self.metrics.parent.mkdir(parents=True, exist_ok=True)
            with open(self.metrics, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class TaskReport(datasource.WriterCommitMessage):
    job: str
    summary: partitions.Summary
    rejects: str | None


@dataclass
class TxnWriter(datasource.DataSourceArrowWriter):
    """The writer of a job. name: the prefix of its tokens."""

    plan: WritePlan
    name: str
    job: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> datasource.WriterCommitMessage:
        return self.plan.write_rows(iterator, self.name, self.job)

    def commit(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        self.plan.end_job(self.job, _list_reports(messages))

    def abort(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        self.plan.rejects.drop_files(self.job)


@dataclass
class TxnStreamWriter(datasource.DataSourceStreamArrowWriter):
    """The writer of a micro batch. Spark makes another one to end the batch."""

    plan: WritePlan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> datasource.WriterCommitMessage:
        query = _read_property("sql.streaming.queryId")
        batch = _read_property("streaming.sql.batchId")
        return self.plan.write_rows(iterator, f"{query}/{batch}", f"{query}-{batch}")

    def commit(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:
        """End a batch, which may happen twice if the driver dies."""
        reports = _list_reports(messages)
        for job in {report.job for report in reports}:
            self.plan.end_job(job, reports)

    def abort(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:
        for job in {report.job for report in _list_reports(messages)}:
            self.plan.rejects.drop_files(job)


def make_writer(options: SourceOptions, schema: StructType) -> TxnWriter:
    """Return the writer of a job, or raise InvalidRequestError before any task runs."""
    name = options.text("jobId")
    retention_ms = None if name else RETENTION_MS
    plan = WritePlan.parse(options, schema, more=("atomic",), retention_ms=retention_ms)
    plan.check_store()
    job = uuid.uuid4().hex
    return TxnWriter(plan, name or job, job)


def make_stream_writer(options: SourceOptions, schema: StructType) -> TxnStreamWriter:
    """Return the writer of a micro batch, or raise InvalidRequestError before any task runs."""
    if options.text("jobId") is not None and not options.text("onceBy"):
        problem = "a stream has a name in its checkpoint: jobId goes with onceBy only"
        raise InvalidRequestError(problem, option="jobId")
    plan = WritePlan.parse(options, schema, more=STREAMING)
    plan.check_store()
    return TxnStreamWriter(plan)


def _list_reports(messages: list[datasource.WriterCommitMessage | None]) -> list[TaskReport]:
    return [message for message in messages if isinstance(message, TaskReport)]


def _read_property(name: str) -> str:
    context = TaskContext.get()
    value = context.getLocalProperty(name) if context else None
    if not value:
        raise InvalidRequestError("Spark does not say which batch a task belongs to", property=name)
    return value
