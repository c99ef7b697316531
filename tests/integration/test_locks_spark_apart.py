"""Two Spark applications on the tables of one Hive metastore: one overwrites, the other reads.

They share nothing but the metastore, the files, and what keeps the locks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.integration.metastore import Metastore, metastore
from tests.integration.spark_cluster import Application, run_application
from tests.integration.zookeeper import ZooKeeper, zookeeper  # noqa: F401  (a fixture)

pytestmark = pytest.mark.long
ROWS, GENERATIONS = 20, 6
OVERWRITE = (
    "INSERT OVERWRITE TABLE {table} PARTITION (p=1) "
    f"SELECT /*+ REPARTITION(4) */ {{value}} FROM RANGE({ROWS})"
)
JOBS = "tests.integration.spark_jobs:"


class Named(NamedTuple):
    """An application that runs statements, and its name among the holders of locks."""

    name: str
    application: Application

    def run(self, sql: str, **details: Any) -> list[Any]:
        """Return the first column of the rows, or raise JobFailedError."""
        details |= {"sql": sql, "name": self.name}
        found: list[Any] = self.application.run(JOBS + "run_statement", **details)
        return found

    def explain(self, sql: str) -> list[str]:
        """Return what the statement would lock."""
        found: list[str] = self.application.run(JOBS + "explain_locks", sql=sql)
        return found


class Two(NamedTuple):
    writer: Named
    reader: Named


@pytest.fixture(scope="module")
def shared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    with metastore(spark, tmp_path_factory.mktemp("metastore")) as found:
        yield found


@pytest.fixture(scope="module")
def two(shared: Metastore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with ExitStack() as stack:
        found = []
        for name in ("application-0", "application-1"):
            run = run_application(tmp_path_factory.mktemp(name), None, shared.settings)
            found.append(Named(name, stack.enter_context(run)))
        yield Two(*found)


@pytest.fixture(params=["zookeeper", "embedded"])
def locks(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "embedded":
        return f"embedded://{tmp_path}/locks?sync=off"
    server: ZooKeeper = request.getfixturevalue("zookeeper")
    return f"zookeeper://{server.hosts}/tests/{uuid.uuid4().hex}"


@pytest.fixture
def table(two: Two) -> Iterator[str]:
    """A table of Hive's own kind with two partitions, the first one in several files."""
    two.writer.run("CREATE TABLE measured (v BIGINT) PARTITIONED BY (p INT) STORED AS PARQUET")
    two.writer.run(OVERWRITE.format(table="measured", value="id"))
    two.writer.run("INSERT INTO measured PARTITION (p=2) VALUES (7)")
    yield "measured"
    two.writer.run("DROP TABLE measured")


def test_under_locks_every_read_is_of_one_generation(two: Two, table: str, locks: str) -> None:
    """Nobody is stopped here: both run as fast as they can."""

    def write(generations: range) -> None:
        for generation in generations:
            two.writer.run(OVERWRITE.format(table=table, value=generation), locks=locks)

    def read() -> int:
        found = two.reader.run(f"SELECT v FROM {table} WHERE p = 1", locks=locks)
        assert found == found[:1] * ROWS
        return int(found[0])

    write(range(1))
    seen = []
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, range(1, GENERATIONS))
        while not writing.done():
            seen.append(read())
        writing.result()
    assert [*seen, read()] == sorted([*seen, GENERATIONS - 1])


def test_locks_are_known_from_the_metastore(
    two: Two, table: str, shared: Metastore, spark: SparkSession
) -> None:
    """Partitions, types and views of Hive's own kind, made by the other application or by Hive,
    whose views say nothing of the session that made them: all names in them are whole."""
    two.writer.run("CREATE TABLE days (v INT) PARTITIONED BY (d DATE, s STRING) STORED AS PARQUET")
    two.writer.run("INSERT INTO days PARTITION (d=DATE'2020-01-02', s='a/b') VALUES (1)")
    two.writer.run("CREATE VIEW both AS SELECT v FROM days JOIN measured USING (v) WHERE p = 2")
    shared.create_view(
        spark, "theirs", {"v": "bigint"}, "SELECT `m`.`v` FROM `default`.`measured` `m`"
    )
    try:
        assert two.reader.explain("SELECT * FROM both") == [
            "S default/both",
            "S default/days",
            "S default/days/d=2020-01-02",
            "S default/days/d=2020-01-02/s=a%2Fb",
            "S default/measured",
            "S default/measured/p=2",
        ]
        partitions = [f"S default/measured/p={number}" for number in (1, 2)]
        expected = ["S default/measured", *partitions, "S default/theirs"]
        assert two.reader.explain("SELECT * FROM theirs") == expected
        dynamic = f"INSERT OVERWRITE TABLE {table} PARTITION (p) SELECT 1, 2"
        assert two.reader.explain(dynamic) == ["X default/measured"]
    finally:
        for view in ("theirs", "both"):
            two.writer.run(f"DROP VIEW {view}")
        two.writer.run("DROP TABLE days")
