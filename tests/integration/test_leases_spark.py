"""A Spark job under a lease: it goes on while the lease is extended, and ends when it is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from tests.integration.gate import Gate
from txn.leases import LeaseAlreadyExistsError, exclusive, open_leases, shared
from txn.leases.service import LeaseService
from txn.locks import LockLost
from txn.locks.spark import watched

T = TypeVar("T")
DURATION_S = 15
SLOW = "SELECT gate(id) FROM RANGE(10)"
WITHIN_S = 120


@pytest.fixture
def leases(tmp_path: Path) -> Iterator[LeaseService]:
    with open_leases(f"sqlite:///{tmp_path}/leases.sqlite") as leases:
        yield leases


@pytest.fixture
def gate(spark: SparkSession, tmp_path: Path) -> Gate:
    found = Gate(tmp_path)
    found.make()
    found.register(spark)
    return found


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def begun(pool: ThreadPoolExecutor, spark: SparkSession, job: Callable[[], T]) -> Future[T]:
    return pool.submit(inheritable_thread_target(spark)(job))


def test_a_job_runs_under_its_lease_and_keeps_others_out(
    spark: SparkSession, gate: Gate, pool: ThreadPoolExecutor, leases: LeaseService
) -> None:
    """Also those who run no Spark and no lock manager. The object need not exist."""

    def job() -> int:
        with leases.hold([exclusive("default/made/p=1")], 3600) as held, watched(spark, held):
            return len(spark.sql(SLOW).collect())

    rows = begun(pool, spark, job)
    gate.wait_until_reached()
    with pytest.raises(LeaseAlreadyExistsError):
        leases.grab_lease([shared("default/made/p=1")], 1)
    gate.let_go()
    assert rows.result(WITHIN_S) == 10
    assert leases.list_lease() == []
    assert not set(spark.sparkContext.getJobTags())


def test_a_job_whose_lease_is_lost_is_stopped(
    spark: SparkSession, gate: Gate, pool: ThreadPoolExecutor, leases: LeaseService
) -> None:
    """It would go on to write over what the next holder is writing: a part is enough. Nobody opens
    the gate: the job ends because it is cancelled."""
    objects = [exclusive("default/made"), shared("default/read")]

    def job() -> None:
        with leases.hold(objects, DURATION_S) as held, watched(spark, held):
            spark.sql(SLOW).collect()

    lost = begun(pool, spark, job)
    gate.wait_until_reached()
    leases.force_drop_lease(["default/made"])
    leases.grab_lease([exclusive("default/made")], 3600)
    with pytest.raises(LockLost):
        lost.result(WITHIN_S)
    assert [str(each.request) for each in leases.list_lease()] == ["X default/made"]


def test_a_job_that_was_done_before_anybody_noticed_is_told_that_its_lease_was_lost(
    spark: SparkSession, leases: LeaseService
) -> None:
    """What it wrote may have been written over, or may have been written over another's."""
    with (
        leases.hold([exclusive("default/made")], 3600) as held,
        pytest.raises(LockLost),
        watched(spark, held),
    ):
        leases.force_drop_lease([])
        assert spark.range(3).count() == 3


def test_files_that_are_known_from_before_are_forgotten(
    spark: SparkSession, leases: LeaseService, tmp_path: Path
) -> None:
    """Spark keeps the list of a table's files: whoever had the lease before may have changed it."""
    spark.sql("CREATE TABLE kept (v BIGINT) USING parquet")
    try:
        spark.sql("INSERT INTO kept VALUES (1)")
        (file,) = spark.table("kept").inputFiles()
        Path(file.removeprefix("file://")).unlink()
        with leases.hold([shared("default/kept")], 3600) as held, watched(spark, held):
            assert spark.table("kept").count() == 0
    finally:
        spark.sql("DROP TABLE kept")
