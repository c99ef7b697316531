"""Transactions and locks as data frames: what is under way, for whoever has only Spark at hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.unit.worlds import after_status
from txn import Delete, Engine, Exact, Key, Mutation, connect
from txn.model import Edit
from txn.protocol.row import column, created_ms, status_key
from txn.protocol.statuses import ProtocolName, Status
from txn.spark import register
from txn.stores import open_store
from txn.testing.faulty import Crash, Fault, FaultyStore, Reply

A, B = Key("a", "d", "x", "one"), Key("b", "d", "x", "two")


@pytest.fixture(params=get_args(ProtocolName))
def uri(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> str:
    """A store with a transaction that is finished, and one whose owner died with its locks."""
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri, protocol=request.param) as engine:
        engine.ensure_table("one", ["d"])
        engine.ensure_table("two", ["d"])
        engine.commit([Mutation(A, "1"), Mutation(B, "2")], once="token", labels={"job": "nightly"})
    faults = FaultyStore(open_store(uri))
    after_status(SimpleNamespace(faults=faults), Status.ASSERTED, Fault(reply=Reply.CRASH))  # type: ignore[arg-type]
    with pytest.raises(Crash):
        Engine(faults).commit([Mutation(A, "3"), Delete(B)], [Exact(A, b"1")])
    return uri


def frame(spark: SparkSession, uri: str, **options: str) -> DataFrame:
    return spark.read.format("txn").options(uri=uri, **options).load()


def test_every_transaction_is_a_row(spark: SparkSession, uri: str) -> None:
    """What `txn ls` and `txn show` tell, to be counted and joined."""
    rows = frame(spark, uri, view="transactions").orderBy("created", "transaction").collect()
    (first,) = [row for row in rows if row.once]
    (second,) = [row for row in rows if row.status == "2-ASSERTED"]
    assert (first.once, first.labels, first.state) == ("token", {"job": "nightly"}, "finished")
    assert first.tables == ["one", "two"]
    assert (second.state, second.keys, second.mutations, second.assertions) == ("decided", 2, 2, 1)
    assert (second.once, second.reason, second.corrupt, second.parent) == (None,) * 4
    assert second.lock_ttl_ms > 0
    assert second.bytes > 50
    assert 0 <= second.age_ms < 600_000
    assert second.commit_timestamp > 0
    assert second.statuses["2-ASSERTED"] == second.since
    millis = round(second.created.timestamp() * 1000)
    assert millis == created_ms(second.transaction.encode())


def test_a_time_that_no_year_holds_is_none(spark: SparkSession, uri: str) -> None:
    """One cell of it, in microseconds perhaps, would end every look at the table."""
    store = open_store(uri)
    for row in store.scan(b"txn"):
        if (status := row.cells.get(status_key(b"txn", row.row))) is not None:
            store.write([Edit(status_key(b"txn", row.row), status.value, 2**62)])
            began = column(b"txn", row.row, b"at." + status.value)
            store.write([Edit(began, b"", 2**62)])
    store.close()
    rows = frame(spark, uri, view="transactions").collect()
    assert {row.since for row in rows} == {None} and {row.age_ms for row in rows} == {0}


def test_locks_that_are_held_are_rows(spark: SparkSession, uri: str) -> None:
    """Free locks stay in their cells, and are nobody's business."""
    found = frame(spark, uri, view="locks", table="one, two")
    rows = sorted(found.collect(), key=lambda row: row.key)
    assert [(row.table, row.row, row.family) for row in rows] == [
        ("one", "a", "d"),
        ("two", "b", "d"),
    ]
    assert {row.column for row in rows} in ({"x"}, {None})
    assert {(row.status, row.state) for row in rows} == {("2-ASSERTED", "decided")}
    other = frame(spark, uri, view="transactions").where("status = '2-ASSERTED'").first()
    assert other is not None
    assert {row.holder for row in rows} == {other.transaction}


def test_some_columns_are_enough(spark: SparkSession, uri: str) -> None:
    """Spark tells a source of Python nothing of the columns that it wants: a schema does."""
    reading = spark.read.format("txn").options(uri=uri, view="transactions")
    found = reading.schema("status string, keys int").load()
    assert ("2-ASSERTED", 2) in [tuple(row) for row in found.collect()]
    with pytest.raises(PySparkException, match="no such column"):
        reading.schema("status int").load().collect()


def test_locks_of_no_table_are_refused(spark: SparkSession, uri: str) -> None:
    """To find none is an answer that may be believed."""
    with pytest.raises(PySparkException, match="option='table'"):
        frame(spark, uri, view="locks").collect()
    with pytest.raises(PySparkException, match="no such table"):
        frame(spark, uri, view="locks", table="onetwo").collect()
