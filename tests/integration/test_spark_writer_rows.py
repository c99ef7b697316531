"""What a writer makes of rows: bad ones, those of several tables, tables that are not there yet."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.integration.hbase import HBase
from tests.integration.spark_requests import statuses
from tests.integration.test_spark_writer import scan
from txn import Key, Mutation, connect
from txn.protocol.statuses import ProtocolName
from txn.spark import Counts, Summary, register

ORDERS = "customer string, id long, state string"
MAPPING = {
    "table": "orders",
    "row": "id as text",
    "columns": "state=d:state, id=by_customer(customer, id)/i:order as text",
}


@pytest.fixture
def uri(tmp_path: Path, spark: SparkSession) -> str:
    """A store on this machine without tables of its own."""
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    connect(uri).close()
    return uri


@pytest.fixture
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


def write(frame: DataFrame, uri: str, **options: Any) -> None:
    frame.write.format("txn").mode("append").options(uri=uri, **{**MAPPING, **options}).save()


def make_orders(spark: SparkSession, count: int) -> DataFrame:
    customers = "concat('c', id % 7) customer"
    return spark.range(0, count, 1, 3).selectExpr(customers, "id", "'new' state")


def expect_orders(count: int, state: str = "new") -> dict[str, Any]:
    return {
        "orders": {f"{n}": {"state": state} for n in range(count)},
        "by_customer": {f"c{n % 7}/{n}": {"order": f"{n}"} for n in range(count)},
    }


@pytest.mark.parametrize("protocol", get_args(ProtocolName))
def test_a_row_and_its_index_entry_are_one_transaction(
    spark: SparkSession, tmp_path: Path, protocol: ProtocolName
) -> None:
    """An order that nobody finds by its customer, or one that is found and is not there, is what
    transactions are for; both tables are new."""
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    connect(uri, protocol=protocol).close()
    write(make_orders(spark, 60), uri, newTable="1", ifAbsent="true")
    assert {table: scan(uri, table) for table in ("orders", "by_customer")} == expect_orders(60)
    assert statuses(uri)["5-COMPLETE"] == 60
    paid = make_orders(spark, 70).selectExpr("customer", "id", "'paid' state")
    write(paid, uri, atomic="true", partKeys="11")
    expected = expect_orders(70, "paid")
    assert {table: scan(uri, table) for table in ("orders", "by_customer")} == expected
    with connect(uri) as engine:
        rows = [row for table in ("orders", "by_customer") for row in engine.scan(table)]
        assert len({cell.timestamp for row in rows for cell in row.cells.values()}) == 1
    reader = spark.read.format("txn").options(uri=uri, **MAPPING)
    with pytest.raises(Exception, match=r"only a writer has cells of several rows.*by_customer"):
        reader.load()
    with pytest.raises(Exception, match=r"only a writer has cells of several rows.*by_customer"):
        reader.schema(ORDERS).load().collect()


def test_bad_rows_are_kept_and_the_others_written(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    """One empty text of a million must not fail a job whose first batches are there already."""
    bad = {3: "''", 4: "null", 77: "'x'"}
    states = " ".join(f"when id = {n} then {state}" for n, state in bad.items())
    frame = make_orders(spark, 100).selectExpr(
        "if(id = 50, 'a/b', customer) customer", "id", f"case {states} else state end state"
    )
    counts = Counts.of(spark)
    with connect(uri) as engine:
        engine.ensure_table("rejects", ["r"])
        engine.ensure_table("orders", ["d"])
        engine.commit([Mutation(Key("77", "d", "state", "orders"), "mine")])
    options = {
        "newTable": "1",
        "jobId": "n",
        "counts": counts.name_accumulator(),
        "ifAbsent": "state",
    }
    write(frame, uri, rejects="table:rejects", **options)
    found = {row.pop("key"): row for row in scan(uri, "rejects").values()}
    assert sorted(found) == ["3", "50", "77"]
    assert "a value is empty" in found["3"]["reason"] and "column='state'" in found["3"]["reason"]
    assert "has the separator in it column='customer'" in found["50"]["reason"]
    assert "assertion failed" in found["77"]["reason"]
    assert json.loads(found["3"]["row"]) == {"customer": "c3", "id": 3, "state": ""}
    assert counts.summary() == Summary(committed=97, refused=3)
    assert len(scan(uri, "by_customer")) == 98 - 1
    write(frame, uri, rejects="table:rejects", **options)
    assert counts.summary() == Summary(committed=97, refused=3, repeated=100)
    write(frame.where("id = 3"), uri, rejects=f"{tmp_path}/rejects", **options)
    (line,) = next((tmp_path / "rejects").iterdir()).read_text().splitlines()
    assert json.loads(line)["key"] == "3"
    write(frame.where("id = 3"), uri, empty="null")
    assert "3" not in scan(uri, "orders") and "c3/3" in scan(uri, "by_customer")
    with pytest.raises(Exception, match=r"a value is empty.*column='state'"):
        write(frame.where("id in (2, 3)"), uri, onReject="count")


def test_a_stream_creates_its_tables_and_writes_all_rows(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    """A sink takes what other writers take."""
    make_orders(spark, 20).write.json(f"{tmp_path}/source")
    stream = spark.readStream.schema(ORDERS).json(f"{tmp_path}/source")
    options = {**MAPPING, "uri": uri, "newTable": "1", "checkpointLocation": f"{tmp_path}/c"}
    writer = stream.writeStream.format("txn").options(**options).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert {table: scan(uri, table) for table in ("orders", "by_customer")} == expect_orders(20)


def test_where_and_how_to_write_is_told(spark: SparkSession, uri: str) -> None:
    """`save("/path")` is the first thing that users of files try."""
    writer = make_orders(spark, 1).write.format("txn").options(uri=uri, newTable="1", **MAPPING)
    with pytest.raises(Exception, match=r"leave it out.*options uri and table path='/some/path'"):
        writer.mode("append").save("/some/path")
    with pytest.raises(Exception, match=r"leave it out.*options uri and table path='/some/path'"):
        spark.read.format("txn").options(uri=uri, **MAPPING).load("/some/path")
    with pytest.raises(Exception, match=r'"ErrorIfExists" mode. Please use either the "Append"'):
        writer.mode("error").save()
    with connect(uri) as engine:
        assert b"orders" not in engine.context.store.list_tables()


def test_columns_are_named_in_any_case(spark: SparkSession, uri: str) -> None:
    """As in `select`, in a mapping that is written and in one that is read."""
    frame = spark.sql("select 1L as Id, 'x' as `a``B`, 'y' as Ref, timestamp_millis(0) as At")
    columns = {"columns": "`A``b`=d:a, REF=d:ref, at=d:at", "row": "ID as text"}
    write(frame, uri, newTable="1", onceBy="REF", groupBy="ref", **columns)
    read = spark.read.format("txn").options(uri=uri, table="orders", **columns)
    found = read.schema("id long, `A``B` string, reF string, AT timestamp").load()
    assert found.exceptAll(frame).isEmpty() and found.count() == 1
    assert found.where("ref = 'y' and ID = 1").count() == 1


@pytest.mark.usefixtures("case_sensitive")
def test_columns_that_differ_in_case_are_two(spark: SparkSession, uri: str) -> None:
    """With `spark.sql.caseSensitive`, whose names have to be exact."""
    names = [StructField("id", LongType()), *(StructField(each, StringType()) for each in "aA")]
    frame = spark.createDataFrame([(1, "x", "y")], StructType(names))
    write(frame, uri, newTable="1", columns="A=d:upper, a=d:lower")
    assert scan(uri, "orders") == {"1": {"upper": "y", "lower": "x"}}
    with pytest.raises(Exception, match=r"several columns.*name='ID'"):
        other = frame.withColumnRenamed("a", "Id").withColumnRenamed("A", "iD")
        write(other.selectExpr("Id", "iD"), uri, row="ID", columns="iD=d:a")


def test_times_of_day_and_intervals_are_read_as_written(spark: SparkSession, uri: str) -> None:
    """Alone, within structs, and in a row key; months have a number."""
    frame = spark.sql(
        """select id, t, d, named_struct('t', array(t)) j,
        cast(m as int) m from values
        (1L, time '23:59:59.999999', interval '-1 02:03:04.5' day to second,
            interval '1-2' year to month),
        (2L, time '00:00:00', interval '106751991 04:00:54.775807' day to second, null)
        as (id, t, d, m)"""
    )
    where = {"uri": uri, "table": "orders", "row": "t, d, id", "columns": "j=d:j, m=d:m, id=t/d:i"}
    frame.write.format("txn").mode("append").options(**where, newTable="1").save()
    where |= {"columns": "j=d:j, m=d:m"}
    where |= {"row": "t, d, id"}
    read = spark.read.format("txn").options(**where).schema(frame.schema).load()
    assert read.exceptAll(frame).isEmpty() and frame.exceptAll(read).isEmpty()
    write(frame.select("id", "t", "d"), uri, newTable="1", table="c", columns="t=d:t, d=d:d")
    given = {"uri": uri, "table": "c", "row": "id as text", "columns": "t=d:t, d=d:d"}
    cells = spark.read.format("txn").options(**given)
    found = cells.schema(frame.select("id", "t", "d").schema).load()
    assert sorted(found.collect()) == sorted(frame.select("id", "t", "d").collect())
    with pytest.raises(Exception, match="an interval of months to int"):
        write(spark.sql("select 1L id, interval '1' month m"), uri, columns="m=d:m")


def test_tables_are_created_on_hbase_with_their_regions(spark: SparkSession, hbase: HBase) -> None:
    """Rows of both tables, in both modes, and those that do not encode."""
    register(spark)
    name = uuid.uuid4().hex
    given = {"uri": hbase.native, "transactions": f"txn-{name}"}
    connect(hbase.native, transactions=given["transactions"]).close()
    orders, entries = f"orders-{name}", f"by-{name}"
    columns = f"state=d:state, id={entries}(customer, id)/i:order as text"
    options = {**given, "table": orders, "row": "id as text", "columns": columns}
    options |= {"newTable": "3", "splitKeys": "3,6", "versions": "1"}
    frame = make_orders(spark, 30).selectExpr("customer", "id", "if(id = 9, '', state) state")
    with connect(hbase.native, transactions=given["transactions"]) as engine:
        engine.ensure_table(f"rejects-{name}", ["r"])
        write(frame, **options, rejects=f"table:rejects-{name}")
        assert [row.cells for row in engine.scan(f"rejects-{name}")]
        assert engine.context.store.find_splits(orders.encode(), 9) == [b"3", b"6"]
        families = engine.context.store.describe(orders.encode())
        assert families is not None and families[b"d"].versions == 1
        write(frame.selectExpr("customer", "id", "'paid' state"), **options, atomic="true")
        found = {int(row.row): row for row in engine.scan(orders)}
        assert sorted(found) == list(range(30))
        assert {cell.value for row in found.values() for cell in row.cells.values()} == {b"paid"}
        assert sum(1 for _ in engine.scan(entries)) == 30
