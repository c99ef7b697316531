"""`commit_partition` in Spark's tasks: workers that are killed, tasks that run twice, errors."""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from recovery import Kind, Repaired, check, repair
from tests.integration.spark_jobs import absent_request, statuses, token
from txn import Key, OptimisticTransaction, Policy, connect
from txn.spark import Counts, Summary, commit_partition, run_partition
from txn.spark.partitions import open_worker

ROWS = 200
PARTITIONS = 4
# What a killed worker leaves undecided is waited for so long by the task's next attempt.
POLICY = Policy(lock_ttl_ms=300)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri) as engine:
        engine.ensure_table("rows", ["f"])
    return uri


def make_task(uri: str, counts: Counts | None = None, **options: Any) -> Callable[..., Any]:
    """Return what commits the numbers of a partition, each once."""
    given: dict[str, Any] = {
        "to_request": absent_request,
        "once": token,
        "job": "rows",
        "table": "rows",
    }
    return partial(commit_partition, uri, **{**given, "counts": counts, **options})


def put_absent(block: OptimisticTransaction, row: int) -> None:
    key = Key(f"{row:05}", "f", "value")
    assert block.get(key) is None, "a row that is there is run again"
    block.put(key, str(row))


def assert_each_row_once(uri: str, rows: int) -> None:
    with connect(uri, table="rows") as engine:
        cells = engine.read([Key(f"{row:05}", "f", "value") for row in range(rows)])
    assert [cell and int(cell.value) for cell in cells.values()] == list(range(rows))
    found = statuses(uri)
    assert found["5-COMPLETE"] == rows
    assert found.keys() <= {"5-COMPLETE", "7-ABORTED"}


@pytest.mark.parametrize("way", ["commit", "run"])
def test_workers_killed_in_the_middle_change_nothing(
    spark: SparkSession, uri: str, way: str
) -> None:
    """A killed worker's rows are half-way, its locks held. The task runs again, and goes on."""
    counts = Counts.of(spark)

    def mortal(rows: Iterable[int]) -> Iterator[int]:
        context = TaskContext.get()
        assert context is not None
        for number, row in enumerate(rows):
            if number == 30 and context.attemptNumber() == 0:
                delay_s = 0.002 * context.partitionId()
                Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
            yield row
        if context.attemptNumber() == 0:
            signal.pause()

    if way == "commit":
        task = make_task(uri, counts, batch=10, policy=POLICY)
    else:
        given: Any = {"once": token, "job": "rows", "table": "rows", "counts": counts}
        task = partial(run_partition, uri, function=put_absent, batch=10, policy=POLICY, **given)
    numbers = spark.sparkContext.parallelize(range(ROWS), PARTITIONS)
    numbers.foreachPartition(lambda rows: task(mortal(rows)))
    summary = counts.summary()
    assert summary.committed + summary.repeated == ROWS
    assert summary.repeated >= 30 * PARTITIONS
    with connect(uri) as engine:  # rows of the dead that had locked nothing are in nobody's way
        for finding in list(check(engine.context, grace_ms=0)):
            assert finding.kind is Kind.UNDECIDED
            assert isinstance(repair(engine.context, finding), Repaired)
    assert_each_row_once(uri, ROWS)


def test_copies_of_a_task_at_the_same_time_change_nothing(spark: SparkSession, uri: str) -> None:
    """A copy runs beside the task itself. A worker keeps one engine for all its tasks."""
    counts = Counts.of(spark)
    task = make_task(uri, counts, batch=20)

    def run(part: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        before = open_worker.cache_info().misses
        task(part)
        assert gc.get_threshold()[0] >= 10_000 and gc.get_freeze_count() > 0
        yield os.getpid(), before, open_worker.cache_info().misses

    rows = [*range(ROWS), *range(ROWS)]
    tasks = spark.sparkContext.parallelize(rows, 2).mapPartitions(run).collect()
    tasks += spark.sparkContext.parallelize(rows, 4).mapPartitions(run).collect()
    summary = counts.summary()
    assert (summary.committed, summary.repeated) == (ROWS, 3 * ROWS)
    assert_each_row_once(uri, ROWS)
    for process in {process for process, _, _ in tasks}:
        before, after = zip(*(counts for each, *counts in tasks if each == process), strict=True)
        assert max(after) - min(before) == 1


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
def test_a_data_frame_is_committed_in_batches(spark: SparkSession, uri: str, kind: str) -> None:
    """A job that runs again finds what it committed; and one of no rows has a sum of none."""
    first, again, none = (Counts.of(spark) for _ in range(3))
    for rows, counts in ((ROWS, first), (ROWS, again), (0, none)):
        frame = spark.range(rows).repartition(2)
        map_batches = frame.mapInArrow if kind == "arrow" else frame.mapInPandas
        map_batches(make_batch_task(uri, counts), "nothing int").count()
    assert (first.summary(), again.summary()) == (Summary(committed=ROWS), Summary(repeated=ROWS))
    assert none.summary() == Summary()
    assert_each_row_once(uri, ROWS)


def make_batch_task(uri: str, counts: Counts) -> Callable[[Iterable[Any]], Iterator[Any]]:
    by_id = {"to_request": lambda row: absent_request(row["id"]), "once": "id"}
    task = make_task(uri, counts, **by_id)

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        task(batches)
        return iter(())

    return run


def test_pages_of_stages_have_counts(spark: SparkSession, uri: str) -> None:
    """Spark's own pages know nothing of accumulators in Python, of the data source neither."""
    counts = Counts.of(spark, "imports")
    numbers = spark.sparkContext.parallelize(range(100), 2)
    run = partial(numbers.foreachPartition, make_task(uri, counts))
    shown = [list_accumulators(spark, run) for _ in range(2)]
    assert shown == [{"imports committed": "100"}, {"imports repeated": "100"}]
    assert counts.summary() == Summary(committed=100, repeated=100)


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
