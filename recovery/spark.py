"""fsck on Spark executors: the tables are divided into shares, each checked by one task.

A task does `fsck.check` for its rows and, if it repairs, `repair_all`. It reads again first, so a
task may run twice. The findings lack what a task repaired before it died.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from multiprocessing import cpu_count
from pathlib import Path
from re import fullmatch
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from recovery import findings
from recovery.fsck import check_data, check_transactions, handle_findings, list_data, require_tables
from recovery.opening import open_store_of
from recovery.tables import check_counts
from txn.errors import InvalidRequestError
from txn.host.extras import import_extra
from txn.model import as_bytes, check_items, check_whole
from txn.policy import Policy
from txn.protocol.context import Context, call_store
from txn.request import TRANSACTIONS
from txn.spans import Span
from txn.text import escape

with import_extra("spark"):
    from pyspark import RDD, StorageLevel
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceReader, InputPartition
    from pyspark.sql.types import StringType, StructField, StructType

    from txn.spark.definitions import check_columns
    from txn.spark.options import SourceOptions
    from txn.spark.ranges import PARTITIONS, divide_ranges
    from txn.spark.session import local_session

COLUMNS = (
    *("kind", "severity", "transaction", "table", "row", "family", "column"),
    *("facts", "result", "why"),
)
FINDINGS_SCHEMA = StructType([StructField(name, StringType()) for name in COLUMNS])
"""The columns of findings. Bytes are text, with `\\xNN` for unprintable ones; facts is a JSON
object. result and why are null without a repair."""
OPTIONS = ("graceMs", "retentionMs", "scan", PARTITIONS)
REPORT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Inspection:
    """What each task needs. policy None: the default one."""

    uri: str = field(repr=False)
    transactions: str
    ages: findings.Ages
    repairs: bool = False
    policy: Policy | None = None


class Share(NamedTuple):
    """Part of the transaction table or a data table; counted: tables whose lock counts to check."""

    span: Span
    is_data: bool
    counted: Sequence[bytes] = ()


Reported = findings.FindingResult | findings.Tally
"""A finding of a task or, at its end, the rows and young items that it counted."""


def fsck(
    spark: SparkSession,
    uri: str,
    *,
    transactions: str = TRANSACTIONS,
    grace_ms: int = findings.GRACE_MS,
    retention_ms: int = findings.RETENTION_MS,
    scan: Collection[str | bytes] = (),
    repair: bool = False,
    partitions: int | None = None,
    policy: Policy | None = None,
) -> DataFrame:
    """Find on executors what crashed clients left; return a data frame with a line per finding.

    scan: data tables to check as well. partitions: the most shares per table; None: as many as
    Spark has cores, and on HBase one per region.

    Without repair, each use of the data frame runs the check anew. With repair, everything is done
    when this returns, transactions first, and the data frame has the results. Raises StoreError,
    and InvalidRequestError for an absent table or store.
    """
    wanted = Inspection(uri, transactions, findings.Ages(grace_ms, retention_ms), repair, policy)
    shares = plan_shares(wanted, scan, partitions, spark.sparkContext.defaultParallelism)
    found = (repair_shares if repair else find_on_executors)(spark, wanted, shares)
    return spark.createDataFrame(found.flatMap(list_lines), FINDINGS_SCHEMA, verifySchema=False)


def plan_shares(
    wanted: Inspection, scan: Collection[str | bytes], partitions: int | None, cores: int
) -> list[Share]:
    """Divide the work: the transaction table first, then the data tables."""
    if partitions is not None:
        check_whole("partitions", partitions, 1)
    tables = [as_bytes("scan", table) for table in check_items("scan", scan)]
    with open_store_of(wanted.uri, wanted.transactions, mends=wanted.repairs) as context:
        require_tables(context, tables)
        spans = [(Span(context.table), False), *((s, True) for s in list_data(context, tables))]
        shares = []
        for span, is_data in spans:
            whole = [(span.start, span.stop)]
            divide = partial(divide_ranges, context.store, span.table, whole, partitions, cores)
            for ranges in call_store(context, divide):  # those of a task are adjacent
                shares.append(Share(replace(span, start=ranges[0][0], stop=ranges[-1][1]), is_data))
        if tables and context.rules.locks_rows:
            shares.append(Share(Span(context.table), True, tables))
        return shares


def find_on_executors(
    spark: SparkSession, wanted: Inspection, shares: Sequence[Share]
) -> RDD[Reported]:
    """Return the future findings of tasks, one task for each share."""
    divided = spark.sparkContext.parallelize(shares, max(1, len(shares)))
    return divided.mapPartitions(partial(inspect_shares, wanted))


def repair_shares(
    spark: SparkSession,
    wanted: Inspection,
    shares: Sequence[Share],
    progress: Callable[[int], None] = lambda done: None,
) -> RDD[Reported]:
    """Check all shares, repair if wanted, and return what was found, which executors keep on disk.
    Transactions come first, so that their locks are no orphans afterwards.

    progress: gets the number of finished shares now and then.
    """
    stages = [[share for share in shares if share.is_data is is_data] for is_data in (False, True)]
    kept, done = [], 0
    for stage in stages if wanted.repairs else [shares]:
        found = find_on_executors(spark, wanted, stage).persist(StorageLevel.DISK_ONLY)
        _run(spark, found, progress, done)
        kept.append(found)
        done += len(stage)
        progress(done)  # Spark may not have counted its last tasks yet
    return spark.sparkContext.union(kept)


def list_lines(found: Reported) -> Iterator[tuple[str | None, ...]]:
    """Yield the line of a finding, in the order of COLUMNS, or none for another report."""
    if isinstance(found, findings.Tally):
        return
    finding, result = found
    document, key = findings.finding_document(finding), finding.key
    names = (key.table, key.row, key.family, key.column) if key else (None,) * 4
    became = findings.result_document(result) if result else {}
    yield (
        *(document[name] for name in ("kind", "severity", "transaction")),
        *(None if name is None else escape(name) for name in names),
        json.dumps(document["facts"], ensure_ascii=False),
        *(became.get(name) for name in ("result", "why")),
    )


@contextmanager
def open_session(master: str) -> Iterator[SparkSession]:
    """Start a session on a Spark master; `local[*]` and its like are this machine."""
    local = fullmatch(r"local(?:\[(\d+|\*)(?:, *\d+)?\])?", master)
    with ExitStack() as stack:
        if local is not None:
            cores = local[1] or "1"
            folder = Path(stack.enter_context(TemporaryDirectory()))
            number = cpu_count() if cores == "*" else int(cores)
            yield stack.enter_context(local_session("txn fsck", folder, cores=number))
            return
        builder = SparkSession.Builder().appName("txn fsck").master(master)
        try:
            session = builder.config("spark.log.level", "ERROR").getOrCreate()
        except PySparkException as error:
            raise InvalidRequestError("Spark does not start", master=master) from error
        stack.callback(session.stop)
        yield session


class FindingsReader(DataSourceReader):
    """`spark.read.format("txn").option("view", "findings")`: fsck as a view, which never repairs.

    More options: graceMs, retentionMs, scan (comma-separated tables) and numPartitions.
    """

    known = FINDINGS_SCHEMA

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check(OPTIONS)
        check_columns(schema, FINDINGS_SCHEMA)
        access = options.access()
        grace_ms = options.whole("graceMs", findings.GRACE_MS, 0)
        ages = findings.Ages(grace_ms, options.whole("retentionMs", findings.RETENTION_MS, 0))
        name = as_bytes("transactions", access.transactions).decode()
        self._wanted = Inspection(access.uri, name, ages, policy=access.policy)
        self._scan = options.names("scan")
        self._partitions = options.whole(PARTITIONS, None)
        self._places = [COLUMNS.index(name) for name in schema.names]

    def partitions(self) -> Sequence[InputPartition]:
        shares = plan_shares(self._wanted, self._scan, self._partitions, cpu_count())
        return [InputPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        for found in inspect_shares(self._wanted, [partition.value]):
            for row in list_lines(found):
                yield tuple(row[place] for place in self._places)


# ---------------------------------------------------------------------------------- in a task


_OPENED = ExitStack()  # the open resources of this process, for all its tasks


@cache
def _open_context(uri: str, transactions: str, policy: Policy | None) -> Context:
    """Return this process's context of a store. It is not an engine, as in `txn.spark`, which would
    create a transaction table and refuse protocols that can only be read."""
    context = _OPENED.enter_context(open_store_of(uri, transactions))
    return replace(context, policy=policy) if policy else context


def inspect_shares(wanted: Inspection, shares: Iterable[Share]) -> Iterator[Reported]:
    """Yield the findings of the shares, repaired if wanted, and the other reports."""
    context = _open_context(wanted.uri, wanted.transactions, wanted.policy)
    tally = findings.Tally()

    def count(table: bytes) -> None:
        tally.rows += 1

    for share in shares:
        if share.counted:
            found = check_counts(context, share.counted)
        else:
            check = check_data if share.is_data else check_transactions
            options = findings.CheckOptions(wanted.ages, count, tally.young)
            found = check(context, share.span, options)
        yield from handle_findings(context, found, do_repair=wanted.repairs)
    yield tally


# ------------------------------------------------------------------------------ in the driver


def _run(
    spark: SparkSession, found: RDD[Reported], progress: Callable[[int], None], done: int = 0
) -> None:
    """Run the tasks. done: how many shares had been finished before."""
    context, group = spark.sparkContext, f"txn-fsck-{uuid.uuid4().hex}"

    def count() -> None:
        context.setJobGroup(group, "txn fsck", interruptOnCancel=True)
        found.count()

    executor, tracker = ThreadPoolExecutor(1, "txn-fsck"), context.statusTracker()
    work = executor.submit(count)
    try:
        while not wait([work], REPORT_EVERY_S).done:
            jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
            stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
            progress(done + sum(stage.numCompletedTasks for stage in stages if stage))
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        executor.shutdown(wait=False)
    work.result()
