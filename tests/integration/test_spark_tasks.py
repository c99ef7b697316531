"""`commit_partition` in Spark's tasks: workers that are killed, tasks that run twice, errors."""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession

from recovery import Kind, Repaired, check, repair
from tests.integration.spark_requests import absent_request, statuses, token
from txn import Key, OptimisticTransaction, Policy, connect
from txn.spark import Counts, Summary, bind_partition, commit_partition, register, run_partition
from txn.spark.partitions import open_worker

ROWS = 2_000
PARTITIONS = 8
# What a killed worker leaves undecided is waited for so long by the task's next attempt.
POLICY = Policy(lock_ttl_ms=300)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri) as engine:
        engine.ensure_table("rows", ["f"])
    return uri


def assert_each_row_once(uri: str, rows: int) -> None:
    with connect(uri, table="rows") as engine:
        cells = engine.read([Key(f"{row:05}", "f", "value") for row in range(rows)])
    assert [cell and int(cell.value) for cell in cells.values()] == list(range(rows))
    found = statuses(uri)
    assert found["5-COMPLETE"] == rows
    assert found.keys() <= {"5-COMPLETE", "7-ABORTED"}


def test_tasks_commit_their_rows_and_count_them(spark: SparkSession, uri: str) -> None:
    """This is the whole use: a DataFrame in, each row committed, the numbers in the driver."""
    counts = Counts.of(spark)

    def task(rows: Iterable[tuple[int]]) -> None:
        numbers = (row[0] for row in rows)
        commit_partition(
            uri, numbers, absent_request, once=token, job="rows", table="rows", counts=counts
        )

    spark.range(ROWS).repartition(PARTITIONS).foreachPartition(task)
    assert counts.summary().committed == ROWS
    assert_each_row_once(uri, ROWS)


def test_workers_killed_in_the_middle_change_nothing(spark: SparkSession, uri: str) -> None:
    """A worker that the kernel kills dies inside a commit; its rows are half-way, its locks held.
    The task runs again: it finds what was committed, finishes or undoes the rest, and goes on."""
    counts = Counts.of(spark)

    def mortal(rows: Iterable[int]) -> Iterator[int]:
        context = TaskContext.get()
        assert context is not None
        for number, row in enumerate(rows):
            if number == 30 and context.attemptNumber() == 0:
                delay_s = 0.002 * context.partitionId()
                Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
            yield row

    def task(rows: Iterable[int]) -> None:
        commit_partition(
            uri,
            mortal(rows),
            absent_request,
            once=token,
            job="rows",
            table="rows",
            counts=counts,
            batch=10,
            policy=POLICY,
        )

    spark.sparkContext.parallelize(range(ROWS), PARTITIONS).foreachPartition(task)
    summary = counts.summary()
    assert summary.committed + summary.repeated == ROWS
    assert summary.repeated >= 30 * PARTITIONS
    with connect(uri) as engine:  # rows of the dead that had locked nothing are in nobody's way
        for finding in list(check(engine.context, grace_ms=0)):
            assert finding.kind is Kind.UNDECIDED
            assert isinstance(repair(engine.context, finding), Repaired)
    assert_each_row_once(uri, ROWS)


def test_copies_of_a_task_at_the_same_time_change_nothing(spark: SparkSession, uri: str) -> None:
    """A speculative copy runs beside the task itself, over the same rows in the same order."""
    counts = Counts.of(spark)
    rows = [*range(500), *range(500)]

    def task(part: Iterable[int]) -> None:
        commit_partition(
            uri, part, absent_request, once=token, job="rows", table="rows", counts=counts, batch=20
        )

    spark.sparkContext.parallelize(rows, 2).foreachPartition(task)
    summary = counts.summary()
    assert (summary.committed, summary.repeated) == (500, 500)
    assert_each_row_once(uri, 500)


def test_the_error_of_a_job_names_the_request(spark: SparkSession, uri: str) -> None:
    """It is all that whoever started the job gets to see. It is the last attempt's error, so with
    `once` the rows that an earlier attempt committed are not taken for the failure."""

    def task(rows: Iterable[int]) -> None:
        commit_partition(uri, rows, absent_request, once=token, job="rows", table="rows")

    with connect(uri, table="rows") as engine:
        engine.commit(absent_request(7).mutations)
    with pytest.raises(Exception, match=r"PartitionError: request failed.*row=7"):
        spark.sparkContext.parallelize(range(20), 2).foreachPartition(task)


def test_a_worker_keeps_one_engine_for_all_its_tasks(spark: SparkSession, uri: str) -> None:
    """Opening a store for each task is slow, and an LMDB directory opens once a process."""

    def task(rows: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        before = opened()
        commit_partition(uri, rows, absent_request, table="rows")
        yield os.getpid(), before, opened()

    def opened() -> int:
        return open_worker.cache_info().misses

    tasks = spark.sparkContext.parallelize(range(200), 20).mapPartitions(task).collect()
    for process in {process for process, _, _ in tasks}:
        before, after = zip(*(counts for each, *counts in tasks if each == process), strict=True)
        assert max(after) - min(before) == 1


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
def test_a_data_frame_is_committed_in_batches_and_counted(
    spark: SparkSession, uri: str, kind: str
) -> None:
    """Its rows come as Arrow or pandas has them; a job that runs again finds what it committed."""
    frame = spark.range(ROWS).repartition(PARTITIONS)
    map_batches = frame.mapInArrow if kind == "arrow" else frame.mapInPandas
    first, again = Counts.of(spark), Counts.of(spark)
    for counts in (first, again):
        map_batches(batch_task(uri, counts), "nothing int").count()
    assert (first.summary().committed, first.summary().repeated) == (ROWS, 0)
    assert (again.summary().committed, again.summary().repeated) == (0, ROWS)
    assert_each_row_once(uri, ROWS)


def batch_task(uri: str, counts: Counts) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def task(batches: Iterable[Any]) -> Iterator[Any]:
        commit_partition(
            uri,
            batches,
            lambda row: absent_request(row["id"]),
            once=lambda row: token(row["id"]),
            job="rows",
            table="rows",
            counts=counts,
        )
        return iter(())

    return task


def test_a_frame_without_rows_commits_nothing(spark: SparkSession, uri: str) -> None:
    """A day on which nothing happened has no tasks, or tasks without batches, and a sum of none."""
    counts = Counts.of(spark)
    spark.range(0).mapInArrow(batch_task(uri, counts), "nothing int").count()
    assert counts.summary() == Summary()


def test_the_error_of_a_frame_names_its_row(spark: SparkSession, uri: str) -> None:
    """As that of a partition does, by the names of the columns."""
    with connect(uri, table="rows") as engine:
        engine.commit(absent_request(7).mutations)
    with pytest.raises(Exception, match=r"PartitionError: request failed.*'id': 7"):
        task = batch_task(uri, Counts.of(spark))
        spark.range(20).mapInArrow(task, "nothing int").count()


def test_a_worker_looks_for_garbage_less_often(spark: SparkSession, uri: str) -> None:
    """The objects of a batch made Python do so for a sixth of a commit's time."""

    def task(rows: Iterable[int]) -> Iterator[tuple[int, int]]:
        commit_partition(uri, rows, absent_request, once=token, job="rows", table="rows")
        yield gc.get_threshold()[0], gc.get_freeze_count()

    (found,) = spark.sparkContext.parallelize([1], 1).mapPartitions(task).collect()
    young, frozen = found
    assert young >= 10_000
    assert frozen > 0


def test_blocks_run_in_tasks_and_pages_of_stages_have_the_counts(
    spark: SparkSession, uri: str
) -> None:
    """Spark's own pages know nothing of accumulators in Python, of the data source neither."""

    def run(block: OptimisticTransaction, row: Row) -> None:
        key = Key(f"{row['id']:05}", "f", "value")
        assert block.get(key) is None
        block.put(key, str(row["id"]))

    counts = Counts.of(spark, "imports")
    task = bind_partition(
        run_partition, uri, run, once="id", job="rows", table="rows", counts=counts
    )
    frame = spark.range(100)
    where = {"uri": uri, "table": "rows", "row": "id", "columns": "value=f:value as text"}
    where |= {"counts": counts.name_accumulator(), "ifAbsent": "true", "onReject": "count"}
    register(spark)
    rows = frame.selectExpr("lpad(id + 99, 5, '0') id", "id value")
    writer = rows.write.format("txn").options(**where).mode("append")
    shown = [
        list_accumulators(spark, lambda: frame.rdd.foreachPartition(task)),
        list_accumulators(spark, lambda: frame.rdd.foreachPartition(task)),
        list_accumulators(spark, writer.save),
    ]
    assert shown[:2] == [{"imports committed": "100"}, {"imports repeated": "100"}]
    assert (shown[2]["imports committed"], shown[2]["imports refused"]) == ("199", "1")
    assert counts.summary() == Summary(committed=199, repeated=100, refused=1)


def list_accumulators(spark: SparkSession, job: Callable[[], None]) -> dict[str, str]:
    """Run a job of one stage; return the accumulators that Spark has for its page."""
    context: Any = spark.sparkContext
    context.setJobGroup(name := uuid.uuid4().hex, "")
    job()
    (number,) = context.statusTracker().getJobIdsForGroup(name)
    (stage,) = context.statusTracker().getJobInfo(number).stageIds
    found = context._jsc.sc().statusStore().lastStageAttempt(stage).accumulatorUpdates()
    updates = [found.apply(place) for place in range(found.size())]
    return {update.name(): update.value() for update in updates}
