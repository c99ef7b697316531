"""`spark.read.format("txn")` in a real Spark: what its rows are, and what its tasks read."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.hbase import HBase
from tests.unit.worlds import after_status
from txn import Engine, Key, Mutation, connect
from txn.model import Family
from txn.protocol.locks import holder_of
from txn.protocol.statuses import ProtocolName, Status
from txn.spark import register
from txn.stores import open_store
from txn.testing.faulty import Crash, Fault, FaultyStore, Reply

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
of_one = pytest.mark.parametrize("protocol", ["fenced"])
"""For what is the same whichever protocol a store has."""

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


def test_rows_are_read_through_a_server(spark: SparkSession, txn_server: str) -> None:
    """Its scans are those of a store; there is nothing by which to divide them."""
    register(spark)
    table = f"read-{uuid.uuid4().hex[:8]}"
    with connect(txn_server, table=table) as engine:
        engine.ensure_table(table, ["d"])
        engine.commit([Mutation(Key(f"{i:04}", "d", "v"), f"text {i}") for i in range(1_200)])
    rows = frame(spark, txn_server, table=table, columns="v string=d:v").collect()
    assert [(row.id, row.v) for row in rows] == [(f"{i:04}", f"text {i}") for i in range(1_200)]


def stop_at(uri: str, status: Status, mutations: list[Mutation]) -> None:
    """Let a client die right after its transaction came to a status."""
    faults = FaultyStore(open_store(uri))
    after_status(SimpleNamespace(faults=faults), status, Fault(reply=Reply.CRASH))  # type: ignore[arg-type]
    with pytest.raises(Crash):
        Engine(faults, table="t").commit(mutations)


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "UTC", "Asia/Tokyo"])
@of_one
def test_times_of_all_years_are_read_as_they_were_written(
    spark: SparkSession, uri: str, zone: str
) -> None:
    """The usual end of validity is in the year 10000 of UTC, and the first day is in the year 0."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone or "")
    try:
        written = spark.sql(
            """select id, t, t as millis, n, d, named_struct('t', array(t), 'n', n) as j from values
            ('1', timestamp '9999-12-31 23:59:59', timestamp_ntz '9999-12-31 23:59:59.999999',
                date '9999-12-31'),
            ('2', timestamp '0001-01-01 00:00:00', timestamp_ntz '0001-01-01', date '0001-01-01'),
            ('3', timestamp '2024-03-10 02:30:00', null, date '1582-10-10') as (id, t, n, d)"""
        )
        columns = "t=d:t, millis=d:m as millis, n=d:n, d=d:d, j=d:j"
        options = {"uri": uri, "table": "times", "row": "id", "columns": columns}
        with connect(uri) as engine:
            engine.ensure_table("times", ["d"])
        written.write.format("txn").options(**options).mode("append").save()
        read = spark.read.format("txn").options(**options).schema(written.schema).load()
        assert read.exceptAll(written).isEmpty() and written.exceptAll(read).isEmpty()
        assert read.where("t = timestamp '9999-12-31 23:59:59'").count() == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")


@of_one
def test_json_is_that_of_spark_itself(spark: SparkSession, uri: str) -> None:
    """Whoever compares a cell with what `to_json` makes must find the same."""
    frame = spark.sql(
        """select cast(id as string) as id, named_struct('f', cast(id / 10 as float), 'd', id / 3,
        'e', array(id * 1e6D, 1e-5D, double('NaN'), double('-Infinity'), -0D), 's', char(id) || 'é',
        'b', id > 3, 'x', binary(char(id)), 'n', nullif(id, 7), 'm', map('k', id, 'z', null),
        'day', date '0001-01-01') as v, to_json(v) as j from range(1, 40)"""
    )
    options = {"uri": uri, "table": "t", "row": "id", "columns": "v=d:j, j=e:j"}
    frame.write.format("txn").options(**options).mode("append").save()
    with connect(uri) as engine:
        keys = [(Key(str(n), "d", "j", "t"), Key(str(n), "e", "j", "t")) for n in range(1, 40)]
        cells = engine.read([key for pair in keys for key in pair])
    for ours, theirs in keys:
        assert cells[ours].value == cells[theirs].value  # type: ignore[union-attr]


@of_one
def test_every_session_is_registered_by_itself(spark: SparkSession, uri: str) -> None:
    """Spark looks for the name among those of the active session, which is another one's."""
    other = spark.newSession()
    with pytest.raises((PySparkException, Py4JError), match="DATA_SOURCE_NOT_FOUND"):
        frame(other, uri)
    for session in (other, spark, other, other.newSession()):
        register(session)
        assert frame(session, uri).count() == 300
    assert SparkSession.getActiveSession() is spark


def test_a_table_is_a_data_frame(spark: SparkSession, uri: str) -> None:
    """Each row once, an absent cell as null, and cells of other columns not at all."""
    rows = frame(spark, uri, numPartitions=5).collect()
    assert sorted(map(tuple, rows)) == [
        (f"{number:03}", f"text {number}", number if number % 3 else None) for number in range(300)
    ]


@of_one
def test_a_row_is_one_that_has_a_mapped_cell(spark: SparkSession, uri: str) -> None:
    """A row is what its cells are; others of the table say nothing here."""
    found = frame(spark, uri, columns="n bigint=d:count")
    assert found.count() == 200


@of_one
def test_a_job_reads_in_parts(spark: SparkSession, uri: str) -> None:
    """They are read beside each other, and again alone where a task fails."""
    assert frame(spark, uri, numPartitions=4).rdd.getNumPartitions() == 4
    assert frame(spark, uri, numPartitions=1).rdd.getNumPartitions() == 1


@of_one
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
    rows = {row.id: row for row in frame(spark, uri, numPartitions=3).collect()}
    assert (rows["007"].v, rows["007"].n) == ("text 7000", 7_000)
    assert (rows["008"].v, rows["008"].n) == ("text 8", 8)
    assert rows.keys() - {"new"} == {f"{number:03}" for number in range(300)}
    assert rows["new"].v == "text 1"


@of_one
def test_a_condition_on_the_row_key_reads_no_other_rows(spark: SparkSession, uri: str) -> None:
    """It is said of a data frame, so that all of its queries have the same rows; filters of Spark,
    which keeps those of the first query for the others, are not taken."""
    spark.conf.set(PUSHDOWN, "true")
    try:
        found = frame(spark, uri, where="id >= '100' and id < '200'", numPartitions=4)
        both = found.where("id = '101'").union(found.where("id = '102'"))
        assert [row.id for row in both.collect()] == ["101", "102"]
        assert [row.n for row in found.where("n > 198").collect()] == [199]
        assert (found.where("id = '201'").count(), found.count()) == (0, 100)
        assert frame(spark, uri, where="id in ('007', '008')").rdd.getNumPartitions() == 1
    finally:
        spark.conf.unset(PUSHDOWN)


@of_one
def test_a_bad_cell_is_named(spark: SparkSession, uri: str) -> None:
    """Somewhere among millions of rows there is one that another program wrote."""
    with connect(uri, table="t") as engine:
        engine.commit([Mutation(Key("123", "d", "count"), "12")])
    with pytest.raises(PySparkException, match="row=b'123' column='n' codec='long'"):
        frame(spark, uri).collect()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "absent"}, "no such table"),
        ({"transactions": "mistyped"}, "no such transaction table.*mistyped"),
        ({"columns": "v string=x:v"}, "no such family"),
        ({"columns": "v=d:v"}, "has no type"),
        ({"colums": "v=d:v"}, "unknown option"),
        ({"where": "v = 'a'"}, "where is about a row key"),
        ({"pushDownPredicate": "true"}, "say where"),
        ({"view": "row"}, "unknown value"),
    ],
)
def test_what_cannot_be_read_is_told_before_any_task(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], words: str
) -> None:
    """A task would fail four times before it is told."""
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri) as engine:
        engine.ensure_table("t", ["d"])
    with pytest.raises(PySparkException, match=words):
        frame(spark, uri, **options).count()
    with connect(uri) as engine:
        assert engine.context.store.describe(b"mistyped") is None


def test_a_mistyped_store_is_not_made(spark: SparkSession, tmp_path: Path) -> None:
    """An empty result, and a folder that nobody wanted, would be all that tells of it."""
    register(spark)
    with pytest.raises(PySparkException, match="no such store"):
        frame(spark, f"embedded://{tmp_path}/mistyped").count()
    assert not (tmp_path / "mistyped").exists()


@of_one
def test_a_catalog_and_a_schema_describe_the_same_rows(spark: SparkSession, uri: str) -> None:
    """Jobs that were written for another connector read with the options that they have."""
    catalog = {
        "table": {"namespace": "default", "name": "t"},
        "rowkey": "key",
        "columns": {
            "id": {"cf": "rowkey", "col": "key", "type": "string"},
            "v": {"cf": "d", "col": "v", "type": "string"},
            "n": {"cf": "d", "col": "count", "type": "bigint"},
        },
    }
    ways: list[dict[str, str]] = [
        {"catalog": json.dumps(catalog)},
        {
            "hbase.table": "t",
            "hbase.columns.mapping": "id STRING :key, v STRING d:v, n BIGINT d:count",
        },
        {"table": "t", "row": "id", "columns": "v=d:v, n=d:count"},
    ]
    for way in ways:
        reading = spark.read.format("txn").options(uri=uri, prefix="00", **way)
        found = reading.schema("n bigint, id string, v string").load()
        assert found.columns == ["n", "id", "v"]
        assert tuple(found.collect()[1]) == (1, "001", "text 1")


def text_of(table: str, row: str) -> Mutation:
    return Mutation(Key(row, "d", "v", table), f"text {row}")


def test_regions_of_hbase_are_read_beside_each_other(spark: SparkSession, hbase: HBase) -> None:
    """Natively: each task asks the server of its region."""
    register(spark)
    table = f"regions-{uuid.uuid4().hex}"
    given = {"uri": hbase.native, "transactions": f"txn-{table}"}
    with connect(hbase.native, table=table, transactions=given["transactions"]) as engine:
        store = engine.context.store
        store.ensure_table(table.encode(), {b"d": Family()}, [b"100", b"200"])
        engine.commit([text_of(table, f"{number:03}") for number in range(300)])
    found = frame(spark, table=table, columns="v string=d:v", **given)
    assert found.rdd.getNumPartitions() == 3
    assert sorted(row.id for row in found.collect()) == [f"{number:03}" for number in range(300)]
    few = frame(spark, table=table, columns="v string=d:v", numPartitions=2, stop="150", **given)
    assert (few.rdd.getNumPartitions(), few.count()) == (2, 150)
