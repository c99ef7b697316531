"""Threads, SQL and the catalogue of a session, as its users have them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from txn import connect
from txn.spark import register

WITHHELD = "CREATE TEMPORARY VIEW name USING txn"


@pytest.fixture
def where(spark: SparkSession, tmp_path: Path) -> dict[str, str]:
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri) as engine:
        engine.ensure_table("rows", ["f"])
    return {"uri": uri, "table": "rows", "row": "id string", "columns": "v string=f:v"}


def make_frame(spark: SparkSession, *ids: str) -> DataFrame:
    return spark.createDataFrame([(each, "a") for each in ids], "id string, v string")


def write(frame: DataFrame, where: dict[str, str]) -> None:
    frame.write.format("txn").mode("append").options(**where).save()


def list_ids(spark: SparkSession, where: dict[str, str]) -> list[str]:
    return sorted(row.id for row in spark.read.format("txn").options(**where).load().collect())


def test_threads_write_after_registering(spark: SparkSession, where: dict[str, str]) -> None:
    """Spark looks for the format in the session that is active in the thread, and at first none is;
    reading needs nothing."""
    other = spark.newSession()
    register(other)
    frames = {session: make_frame(session, name) for session, name in ((spark, "1"), (other, "2"))}
    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(Py4JJavaError, match=r"ClassNotFoundException: txn\.DefaultSource"):
            threads.submit(write, frames[spark], where).result()
        assert threads.submit(list_ids, other, where).result() == []
    for session, frame in frames.items():
        with ThreadPoolExecutor(2, initializer=register, initargs=(session,)) as threads:
            for done in [threads.submit(write, frame, where) for _ in range(2)]:
                done.result()
    assert list_ids(spark, where) == ["1", "2"]


def list_options(where: dict[str, str]) -> str:
    return ", ".join(f"`{name}` '{value}'" for name, value in where.items())


def test_sql_reads_and_writes_by_views(spark: SparkSession, where: dict[str, str]) -> None:
    spark.read.format("txn").options(**where).load().createOrReplaceTempView("loaded")
    spark.sql(f"CREATE TEMPORARY VIEW made USING txn OPTIONS ({list_options(where)})")
    spark.sql("INSERT INTO loaded VALUES ('1', 'a')")
    spark.sql("INSERT INTO made SELECT id || 'x', v FROM loaded")
    make_frame(spark, "2").write.insertInto("made")
    for view in ("loaded", "made"):
        found = spark.sql(f"SELECT id FROM {view} WHERE v = 'a' ORDER BY id").collect()
        assert [row.id for row in found] == ["1", "1x", "2"]
        with pytest.raises(PySparkException, match="a table is not overwritten"):
            spark.sql(f"INSERT OVERWRITE {view} VALUES ('1', 'b')")
        spark.catalog.dropTempView(view)


def test_a_table_of_the_catalogue_has_its_options_from_each_statement(
    spark: SparkSession, where: dict[str, str]
) -> None:
    """Spark keeps them and gives them to no source in Python, however they were said."""
    options = list_options(where)
    with pytest.raises(PySparkException, match=WITHHELD):
        spark.sql(f"CREATE TABLE kept USING txn OPTIONS ({options})")
    with pytest.raises(PySparkException, match=WITHHELD):
        spark.sql(f"CREATE TABLE kept USING txn OPTIONS ({options}) AS SELECT '1' id, 'a' v")
    spark.sql(f"CREATE TABLE kept (id string, v string) USING txn OPTIONS ({options})")
    try:
        for statement in ("SELECT * FROM kept", "INSERT INTO kept VALUES ('1', 'a')"):
            with pytest.raises(PySparkException, match=WITHHELD):
                spark.sql(statement).collect()
        assert list_ids(spark, where) == []
        spark.sql(f"INSERT INTO kept WITH ({options}) VALUES ('1', 'a')")
        (row,) = spark.sql(f"SELECT * FROM kept WITH ({options}, `where` \"id = '1'\")").collect()
        assert tuple(row) == ("1", "a") == tuple(spark.read.options(**where).table("kept").first())
        # `saveAsTable` looks to a source like `save`, so it cannot be refused.
        write_table = make_frame(spark, "2").write.format("txn").mode("append").options(**where)
        write_table.saveAsTable("saved")
        with pytest.raises(PySparkException, match=WITHHELD):
            spark.table("saved").collect()
        assert spark.read.options(**where).table("saved").count() == 2
    finally:
        spark.sql("DROP TABLE kept")
        spark.sql("DROP TABLE IF EXISTS saved")
