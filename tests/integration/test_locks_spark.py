"""Spark jobs over Parquet tables under locks or a lease, stopped in the middle by a gate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from tests.docs.blocks import ROOT, list_python
from tests.integration.gate import Gate
from txn import Delete, Engine, Key
from txn.leases import exclusive, open_leases
from txn.leases.service import LeaseService
from txn.locks import LockDenied, LockLost, LockManager, Mode, Waiting, shared
from txn.locks.opening import open_stored
from txn.locks.spark import locked, locked_sql, session_requests, watched
from txn.stores import open_store

T = TypeVar("T")
ROWS = 20
LONG_MS = 60_000
LOST_MS = 15_000  # of which a third until it is noticed; it outlives any stall of the machine
OLD, NEW = list(range(ROWS)), list(range(1000, 1000 + ROWS))
NOT_AT_ALL = Waiting(retries=0)
READ = "SELECT /*+ COALESCE(1) */ gate(v) FROM {table} WHERE p = 1"
OVERWRITE = f"INSERT OVERWRITE TABLE {{table}} PARTITION (p=1) SELECT id + 1000 FROM RANGE({ROWS})"


@pytest.fixture
def gate(spark: SparkSession, tmp_path: Path) -> Gate:
    found = Gate(tmp_path)
    found.make()
    found.register(spark)
    return found


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    """A table with two partitions."""
    spark.sql("CREATE TABLE measured (v BIGINT, p INT) USING parquet PARTITIONED BY (p)")
    spark.sql(f"INSERT INTO measured PARTITION (p=1) SELECT id FROM RANGE({ROWS})")
    spark.sql("INSERT INTO measured PARTITION (p=2) VALUES (7)")
    yield "measured"
    spark.sql("DROP TABLE measured")


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(open_store("memory://")) as engine:
        yield engine


@pytest.fixture
def manager(engine: Engine) -> Iterator[LockManager]:
    with open_stored(engine, lease_ms=LONG_MS) as manager:
        yield manager


@pytest.fixture
def leases(tmp_path: Path) -> Iterator[LeaseService]:
    with open_leases(f"sqlite:///{tmp_path}/leases.sqlite") as leases:
        yield leases


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def begun(pool: ThreadPoolExecutor, spark: SparkSession, job: Callable[[], T]) -> Future[T]:
    return pool.submit(inheritable_thread_target(spark)(job))


def values(rows: list[Row]) -> list[int]:
    return sorted(row[0] for row in rows)


def stored(spark: SparkSession, table: str) -> list[int]:
    spark.catalog.refreshTable(table)
    return values(spark.sql(f"SELECT v FROM {table} WHERE p = 1").collect())


def test_under_locks_a_reader_sees_all_of_the_old_and_then_all_of_the_new(
    spark: SparkSession, table: str, gate: Gate, pool: ThreadPoolExecutor, manager: LockManager
) -> None:
    read = begun(pool, spark, lambda: locked_sql(spark, manager, READ.format(table=table)))
    gate.wait_until_reached()
    with pytest.raises(LockDenied, match=r"S default/measured/p=1 by .*COALESCE"):
        locked_sql(spark, manager, OVERWRITE.format(table=table), waiting=NOT_AT_ALL)
    write = begun(pool, spark, lambda: locked_sql(spark, manager, OVERWRITE.format(table=table)))
    gate.let_go()
    assert values(read.result()) == OLD
    write.result()
    assert values(locked_sql(spark, manager, READ.format(table=table))) == NEW
    assert manager.locks() == []


def test_a_job_whose_locks_are_lost_is_stopped(
    spark: SparkSession, table: str, gate: Gate, pool: ThreadPoolExecutor, engine: Engine
) -> None:
    """Nobody opens the gate: the job ends because it is cancelled."""
    with open_stored(engine, lease_ms=LOST_MS) as manager:
        job = begun(pool, spark, lambda: locked_sql(spark, manager, READ.format(table=table)))
        gate.wait_until_reached()
        (session,) = [row.row for row in engine.scan("locks", columns=[("s", "heartbeat")])]
        engine.commit([Delete(Key(session, "s", "heartbeat", "locks"))])
        with pytest.raises(LockLost):
            job.result(timeout=60)
    assert stored(spark, table) == OLD


def test_a_failed_statement_frees_locks(
    spark: SparkSession, table: str, manager: LockManager
) -> None:
    with pytest.raises(PySparkException):
        locked_sql(spark, manager, f"SELECT nothing FROM {table}")
    assert manager.locks() == []
    assert not set(spark.sparkContext.getJobTags())


def test_settings_say_how_to_wait(spark: SparkSession, table: str, manager: LockManager) -> None:
    spark.sql("SET hive.lock.numretries=0")
    try:
        with manager.hold([shared("default/measured/p=1")]):
            with pytest.raises(LockDenied):
                locked_sql(spark, manager, f"TRUNCATE TABLE {table}")
            spark.sql("SET hive.support.concurrency=false")
            locked_sql(spark, manager, f"TRUNCATE TABLE {table}")
    finally:
        spark.conf.unset("hive.lock.numretries")
        spark.conf.unset("hive.support.concurrency")
    assert stored(spark, table) == []


def test_a_table_that_grows_is_locked_anew(
    spark: SparkSession, table: str, manager: LockManager
) -> None:
    query = f"SELECT * FROM {table}"
    holds = manager.hold

    class Slow:
        """The manager, with somebody who adds a partition just before the first grant."""

        added = threading.Event()

        def hold(self, *given: object, **options: object) -> object:
            if not self.added.is_set():
                self.added.set()
                spark.sql(f"ALTER TABLE {table} ADD PARTITION (p=3)")
            return holds(*given, **options)  # type: ignore[arg-type]

    with locked(spark, Slow(), query) as held:  # type: ignore[arg-type]
        assert "S default/measured/p=3" in [str(request) for request in held.requests]
    assert manager.locks() == []


def test_the_catalogue_tells_partitions_views_and_types(spark: SparkSession, table: str) -> None:
    spark.sql("CREATE DATABASE far")
    spark.sql("CREATE TABLE far.odd (v INT, d DATE, s STRING) USING parquet PARTITIONED BY (d, s)")
    spark.sql("INSERT INTO far.odd PARTITION (d=DATE'2020-01-02', s='a/b=c d') VALUES (1)")
    spark.sql("USE far")
    spark.sql("CREATE VIEW near AS SELECT * FROM odd JOIN default.measured USING (v) WHERE p = 2")
    spark.sql("USE default")
    try:
        found = session_requests(spark, "SELECT * FROM far.near")
        assert [str(request) for request in found] == [
            "S default/measured",
            "S default/measured/p=2",
            "S far/near",
            "S far/odd",
            "S far/odd/d=2020-01-02",
            "S far/odd/d=2020-01-02/s=a%2Fb=c d",
        ]
        assert {request.mode for request in found} == {Mode.SHARED}
        named = "INSERT INTO far.odd PARTITION (s='x', d='2020-01-03') SELECT 1"
        assert str(session_requests(spark, named)[-1]) == "X far/odd/d=2020-01-03/s=x"
    finally:
        spark.sql("DROP DATABASE far CASCADE")


def test_the_example_of_the_page_runs(spark: SparkSession, table: str, tmp_path: Path) -> None:
    (code,) = (each for each in list_python(ROOT / "docs/locks.md") if "locked_sql" in each)
    spark.sql("CREATE TABLE t (v BIGINT, p INT) USING parquet PARTITIONED BY (p)")
    spark.sql("CREATE TABLE u USING parquet AS SELECT 5 AS v")
    try:
        uri = f"embedded://{tmp_path}/locks?sync=off"
        names: dict[str, Any] = {"spark": spark}
        exec(code.replace("zookeeper://zk1:2181/locks", uri), names)
        assert [str(request) for request in names["held"].requests][-1] == "S default/u"
        assert names["manager"].locks() == []
        names["manager"].close()
        assert spark.sql("SELECT v, p FROM t").collect() == [(5, 1)]
    finally:
        spark.sql("DROP TABLE t")
        spark.sql("DROP TABLE u")


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
    spark.sql("CREATE TABLE kept (v BIGINT) USING parquet")
    try:
        spark.sql("INSERT INTO kept VALUES (1)")
        (file,) = spark.table("kept").inputFiles()
        Path(file.removeprefix("file://")).unlink()
        with leases.hold([shared("default/kept")], 3600) as held, watched(spark, held):
            assert spark.table("kept").count() == 0
    finally:
        spark.sql("DROP TABLE kept")
