"""`spark.read.format("txn")` in a real Spark: what its rows are, and what its tasks are asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.unit.worlds import after_status
from txn import Engine, Key, Mutation, connect
from txn.protocol.attempt import ProtocolName
from txn.protocol.lock_cells import holder_of
from txn.protocol.phases import Status
from txn.spark import register
from txn.stores import open_store
from txn.testing.faulty import Crash, Fault, FaultyStore, Reply

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
COLUMNS = "v string=d:v, n bigint=d:count"


@pytest.fixture(params=get_args(ProtocolName))
def protocol(request: pytest.FixtureRequest) -> ProtocolName:
    found: ProtocolName = request.param
    return found


@pytest.fixture
def uri(spark: SparkSession, tmp_path: Path, protocol: ProtocolName) -> str:
    """A store on this machine with rows 000 to 299, each with a text and most with a number."""
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri, table="t", protocol=protocol) as engine:
        engine.ensure_table("t", ["d", "e"])
        for start in range(0, 300, 100):
            mutations = [
                mutation
                for number in range(start, start + 100)
                for mutation in mutations_of(f"{number:03}", number)
            ]
            engine.commit(mutations)
    return uri


def mutations_of(row: str, number: int) -> list[Mutation]:
    found = [
        Mutation(Key(row, "d", "v", "t"), f"text {number}"),
        Mutation(Key(row, "e", "other", "t"), b"\xff"),
    ]
    if number % 3:
        found.append(Mutation(Key(row, "d", "count", "t"), number.to_bytes(8)))
    return found


def frame(spark: SparkSession, uri: str, **options: Any) -> DataFrame:
    given = {"uri": uri, "table": "t", "row": "id string", "columns": COLUMNS, **options}
    return spark.read.format("txn").options(**given).load()


def stop_at(uri: str, status: Status, mutations: list[Mutation]) -> None:
    """Let a client die right after its transaction came to a status."""
    faults = FaultyStore(open_store(uri))
    after_status(SimpleNamespace(faults=faults), status, Fault(reply=Reply.CRASH))  # type: ignore[arg-type]
    with pytest.raises(Crash):
        Engine(faults, table="t").commit(mutations)


def test_a_table_is_a_data_frame(spark: SparkSession, uri: str) -> None:
    """Each row once, an absent cell as null, and cells of other columns not at all."""
    rows = frame(spark, uri, partitions=5).collect()
    assert sorted(map(tuple, rows)) == [
        (f"{number:03}", f"text {number}", number if number % 3 else None) for number in range(300)
    ]


def test_a_row_is_one_that_has_a_mapped_cell(spark: SparkSession, uri: str) -> None:
    """A row is what its cells are; others of the table say nothing here."""
    found = frame(spark, uri, columns="n bigint=d:count")
    assert found.count() == 200


def test_a_job_reads_in_parts(spark: SparkSession, uri: str) -> None:
    """They are read beside each other, and again alone where a task fails."""
    assert frame(spark, uri, partitions=4).rdd.getNumPartitions() == 4
    assert frame(spark, uri, partitions=1).rdd.getNumPartitions() == 1


def test_bounds_are_read_and_no_more(spark: SparkSession, uri: str) -> None:
    """A part of a large table is all that is wanted, most of the time."""
    assert frame(spark, uri, prefix="12").count() == 10
    assert frame(spark, uri, start="050", stop="055").count() == 5
    assert frame(spark, uri, start="5").count() == 0


def test_a_decided_transaction_is_seen_whole_and_an_undecided_one_not(
    spark: SparkSession, uri: str
) -> None:
    """Its owner died before it put its values: they are true from the decision on."""
    stop_at(uri, Status.ASSERTED, [*mutations_of("007", 7_000), *mutations_of("new", 1)])
    stop_at(uri, Status.WRITTEN, [*mutations_of("008", 8_000), *mutations_of("never", 1)])
    with connect(uri, table="t") as engine:
        rules = engine.context.rules
        lock = rules.lock_of(Key("007", "d", "v", "t"))
        assert holder_of(lock, engine.context.store.read([lock])[lock])
    rows = {row.id: row for row in frame(spark, uri, partitions=3).collect()}
    assert (rows["007"].v, rows["007"].n) == ("text 7000", 7_000)
    assert (rows["008"].v, rows["008"].n) == ("text 8", 8)
    assert rows.keys() - {"new"} == {f"{number:03}" for number in range(300)}
    assert rows["new"].v == "text 1"
