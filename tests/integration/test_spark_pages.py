"""What the pages about Spark show, as it stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tests.docs.blocks import ROOT, Block, Reader, list_blocks, list_python, reader
from txn import Exact, Key, Mutation, connect
from txn.leases import exclusive, open_leases
from txn.spark import bind_partition, commit_partition, register
from txn.spark.atomic import ATOMIC
from txn.spark.changes import OPTIONS as FOLLOWING
from txn.spark.options import COMMON, POLICY
from txn.spark.reader import KEPT
from txn.spark.reader import OPTIONS as READING
from txn.spark.writer import WRITING

DOCS = ROOT / "docs"
ROWS = [("1", "new", 5, "a", "p"), ("2", "old", 7, "a", "q")]
COLUMNS = "id string, state string, total int, order string, payment string"
STORES = ("hbase://zk1,zk2,zk3", "hbase://zk1,zk2:2181", "hbase://zk1,zk2", "hbase://zk1:2181")


def test_the_page_for_users_of_spark_can_be_followed(spark: SparkSession, tmp_path: Path) -> None:
    """A load that is started again must not load twice, as the page promises."""
    uri = f"embedded://{tmp_path}/data"
    names = {"spark": spark, "__name__": "__main__"}  # so that workers are sent its functions
    with reader(tmp_path, names=names, instead={"embedded:///data": uri}) as somebody:
        somebody.follow(DOCS / "howto/spark.md")
    with connect(uri) as engine:
        tokens = [row.row for row in engine.scan("txn", prefix="once.")]
    assert len([each for each in tokens if b"flights-2026-11-25" in each]) == 2


@pytest.fixture
def somebody(spark: SparkSession, tmp_path: Path) -> Iterator[Reader]:
    """Who has Spark, the tables that the page speaks of, a data frame, and a stream of it."""
    register(spark)
    uri = f"embedded://{tmp_path}/data"
    with connect(uri) as engine:
        for table, family in [("flights", "d"), ("stock", "d"), ("users", "d")]:
            engine.ensure_table(table, [family])
        for table in ("orders", "rows"):
            engine.ensure_table(table, ["f"])
    instead = {**dict.fromkeys(STORES, uri), "embedded:///data": uri}
    instead |= {"/checkpoints": f"{tmp_path}/checkpoints", '"..."': f'"{tmp_path}/feed"'}
    where = {"uri": uri, "table": "rows", "row": "id", "family": "f"}
    frame = spark.createDataFrame(ROWS, COLUMNS)
    frame.write.parquet(f"{tmp_path}/payments")
    payments = spark.readStream.schema(COLUMNS).parquet(f"{tmp_path}/payments")
    names: dict[str, Any] = {"spark": spark, "uri": uri, "where": where, "frame": frame}
    names |= {"payments": payments, "apply": apply}
    names["__name__"] = "__main__"  # so that workers are sent its functions
    with reader(tmp_path, names=names, instead=instead) as found:
        yield found


def test_the_page_about_leases_holds_a_lease(spark: SparkSession, tmp_path: Path) -> None:
    (example,) = (code for code in list_python(DOCS / "leases.md") if "watched(" in code)
    spark.sql("CREATE DATABASE sales")
    try:
        columns = "(v BIGINT, day INT) USING parquet PARTITIONED BY (day)"
        spark.sql(f"CREATE TABLE sales.orders {columns}")
        spark.sql("CREATE TABLE sales.incoming USING parquet AS SELECT 5L AS v")
        with open_leases(f"sqlite:///{tmp_path}/leases") as leases:
            exec(example, {"spark": spark, "leases": leases, "exclusive": exclusive})
            assert leases.list_lease() == []
        assert spark.sql("SELECT v, day FROM sales.orders").collect() == [(5, 1)]
    finally:
        spark.sql("DROP DATABASE sales CASCADE")


def apply(frame: DataFrame, number: int) -> None:
    frame.collect()


def test_each_program_of_the_page_about_spark_runs(somebody: Reader, spark: SparkSession) -> None:
    blocks = [block for block in list_blocks(DOCS / "spark.md") if block.language == "python"]
    assert blocks
    for block in blocks:
        do(somebody, block, spark)
    with connect(somebody.names["uri"], table="rows") as engine:
        assert {row.row for row in engine.scan()} == {b"1", b"2"}
    with connect(somebody.names["uri"], table="orders") as engine:
        sums = {row.row: [cell.value for cell in row.cells.values()] for row in engine.scan()}
    assert sums == {b"new": [b"5"], b"old": [b"7"]}  # a stream ran the same blocks again
    assert somebody.names["counts"].summary().committed == len(ROWS)


def test_the_tables_of_options_have_those_of_the_code() -> None:
    """Of the fields of `Policy` they show two, and those of the view `findings` stand in a text."""
    tables = (DOCS / "spark.md").read_text().split("\n| option |")[1:]
    rows = [line.split("|")[1] for each in tables for line in each.split("\n\n")[0].split("\n")[2:]]
    shown = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    policy = {"lock_ttl_ms", "deadline_ms"}
    known = {*COMMON, *READING, *KEPT, *WRITING, *ATOMIC, *FOLLOWING}
    assert shown == known - {*POLICY} | (policy & {*POLICY})


def test_the_page_about_observing_hands_a_trace_to_tasks(somebody: Reader) -> None:
    (block,) = (each for each in list_blocks(DOCS / "observing.md") if "frame.rdd" in each.code)
    uri, where = somebody.names["uri"], somebody.names["where"]

    def to_request(row: Row) -> tuple[list[Mutation], list[Exact]]:
        key = Key(row["id"], "f", "state", "rows")
        return [Mutation(key, "seen")], [Exact(key, row["state"])]

    somebody.names |= {"bind_partition": bind_partition, "commit_partition": commit_partition}
    somebody.names |= {"to_request": to_request, "where": where}
    somebody.instead = {"to_request=...": "to_request=to_request"}
    somebody.do(block)
    with connect(uri, table="rows") as engine:
        cells = [cell.value for row in engine.scan() for cell in row.cells.values()]
    assert cells.count(b"seen") == len(ROWS)


def do(somebody: Reader, block: Block, spark: SparkSession) -> None:
    """Do what a block says, with the streams that it starts."""
    try:
        somebody.do(block)
        for query in spark.streams.active:
            query.processAllAvailable()
    finally:
        for query in spark.streams.active:
            query.stop()
