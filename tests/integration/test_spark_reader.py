"""`spark.read.format("txn")`: rows, views, snapshots; and threads, SQL and the catalogue."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.hbase import HBase
from tests.unit.worlds import after_status
from txn import Delete, Engine, Exact, Key, Mutation, connect
from txn.model import Family
from txn.protocol.locks import holder_of
from txn.protocol.row import created_ms
from txn.protocol.statuses import ProtocolName, Status
from txn.spark import register
from txn.stores import open_store
from txn.testing.faulty import Crash, Fault, FaultyStore, Reply

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
IDS = [f"{number:02}" for number in range(60)]
COLUMNS = "v string=d:v, n bigint=d:count"
of_one = pytest.mark.parametrize("protocol", ["fenced"])
"""For what is the same whichever protocol a store has."""
every_protocol = pytest.mark.parametrize("protocol", get_args(ProtocolName))


@pytest.fixture
def uri(spark: SparkSession, tmp_path: Path, protocol: ProtocolName) -> str:
    """A store on this machine with rows 00 to 59, each with a text and most with a number."""
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri, table="t", protocol=protocol) as engine:
        engine.ensure_table("t", ["d", "e"])
        rows = [mutations_of(f"{number:02}", number) for number in range(60)]
        engine.commit([mutation for some in rows for mutation in some])
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
    register(spark)
    table = f"read-{uuid.uuid4().hex[:8]}"
    with connect(txn_server, table=table) as engine:
        engine.ensure_table(table, ["d"])
        engine.commit([Mutation(Key(f"{i:03}", "d", "v"), f"text {i}") for i in range(300)])
    rows = frame(spark, txn_server, table=table, columns="v string=d:v").collect()
    assert [(row.id, row.v) for row in rows] == [(f"{i:03}", f"text {i}") for i in range(300)]


def stop_at(uri: str, status: Status, mutations: list[Mutation | Delete], *checks: Exact) -> None:
    """Let a client die right after its transaction came to a status."""
    faults = FaultyStore(open_store(uri))
    after_status(SimpleNamespace(faults=faults), status, Fault(reply=Reply.CRASH))  # type: ignore[arg-type]
    with pytest.raises(Crash):
        Engine(faults, table="t").commit(mutations, checks)


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Tokyo"])
@of_one
def test_times_of_all_years_are_read_as_written(spark: SparkSession, uri: str, zone: str) -> None:
    """The usual end of validity is in the year 10000 of UTC, and the first day is in the year 0."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        written = spark.sql(
            """select id, t, t as millis, n, d, c, i, named_struct('t', array(t), 'c', c) as j from
            values ('1', timestamp '9999-12-31 23:59:59',
                timestamp_ntz '9999-12-31 23:59:59.999999', date '9999-12-31',
                time '23:59:59.999999', interval '-1 02:03:04.5' day to second),
            ('2', timestamp '0001-01-01 00:00:00', timestamp_ntz '0001-01-01', date '0001-01-01',
                time '00:00:00', interval '106751991 04:00:54.775807' day to second),
            ('3', timestamp '2024-03-10 02:30:00', null, date '1582-10-10', null, null)
            as (id, t, n, d, c, i)"""
        )
        columns = "t=d:t, millis=d:m as millis, n=d:n, d=d:d, c=d:c, i=d:i, j=d:j"
        options = {"uri": uri, "table": "times", "row": "id", "columns": columns}
        with connect(uri) as engine:
            engine.ensure_table("times", ["d"])
        written.write.format("txn").options(**options).mode("append").save()
        read = spark.read.format("txn").options(**options).schema(written.schema).load()
        assert read.exceptAll(written).isEmpty() and written.exceptAll(read).isEmpty()
        some = spark.read.format("txn").options(**{**options, "columns": "t=d:t"})
        found = some.schema("id string, t timestamp").load()
        assert found.where("t = timestamp '9999-12-31 23:59:59'").count() == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")


@of_one
def test_json_is_that_of_spark_itself(spark: SparkSession, uri: str) -> None:
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


@every_protocol
def test_a_table_is_a_data_frame(spark: SparkSession, uri: str) -> None:
    expected = [(f"{n:02}", f"text {n}", n if n % 3 else None) for n in range(60)]
    assert sorted(map(tuple, frame(spark, uri, numPartitions=3).collect())) == expected
    assert frame(spark, uri, columns="n bigint=d:count").count() == 40
    reading = spark.read.format("txn").options(uri=uri, table="t", row="id")
    found = reading.options(columns="v=d:v, n=d:count").schema("n bigint, id string, v string")
    assert tuple(found.load().collect()[1]) == (1, "01", "text 1")
    assert [frame(spark, uri, numPartitions=n).rdd.getNumPartitions() for n in (3, 1)] == [3, 1]
    assert frame(spark, uri, prefix="2").count() == 10
    assert frame(spark, uri, start="05", stop="10").count() == 5


@every_protocol
def test_a_decided_transaction_is_seen_and_an_undecided_not(spark: SparkSession, uri: str) -> None:
    """Its owner died before it put its values: they are true from the decision on."""
    stop_at(uri, Status.ASSERTED, [*mutations_of("07", 7_000), *mutations_of("new", 1)])
    stop_at(uri, Status.WRITTEN, [*mutations_of("08", 8_000), *mutations_of("never", 1)])
    with connect(uri, table="t") as engine:
        rules = engine.context.rules
        lock = rules.lock_of(Key("07", "d", "v", "t"))
        assert holder_of(lock, engine.context.store.read([lock])[lock])
    rows = {row.id: row for row in frame(spark, uri, numPartitions=2).collect()}
    assert (rows["07"].v, rows["07"].n) == ("text 7000", 7_000)
    assert (rows["08"].v, rows["08"].n) == ("text 8", 8)
    assert rows.keys() - {"new"} == set(IDS)
    assert rows["new"].v == "text 1"


@of_one
def test_a_condition_on_the_row_key_reads_no_other_rows(spark: SparkSession, uri: str) -> None:
    """Filters of Spark, which keeps those of the first query for the others, are not taken."""
    spark.conf.set(PUSHDOWN, "true")
    try:
        found = frame(spark, uri, where="id >= '20' and id < '40'", numPartitions=2)
        both = found.where("id = '21'").union(found.where("id = '22'"))
        assert [row.id for row in both.collect()] == ["21", "22"]
        assert [row.n for row in found.where("n > 37").collect()] == [38]
        assert (found.where("id = '41'").count(), found.count()) == (0, 20)
        assert frame(spark, uri, where="id in ('07', '08')").rdd.getNumPartitions() == 1
    finally:
        spark.conf.unset(PUSHDOWN)


@of_one
def test_what_cannot_be_read_is_told_before_any_task(spark: SparkSession, uri: str) -> None:
    """A task would fail four times before it is told; and nothing is made of a mistyped name."""
    with pytest.raises(PySparkException, match=r"no such transaction table.*mistyped"):
        frame(spark, uri, transactions="mistyped").count()
    with connect(uri) as engine:
        assert engine.context.store.describe(b"mistyped") is None
    nowhere = uri.replace("/store", "/mistyped")
    with pytest.raises(PySparkException, match="no such store"):
        frame(spark, nowhere).count()
    assert not Path(nowhere.partition("//")[2].partition("?")[0]).exists()


def test_regions_of_hbase_are_read_beside_each_other(spark: SparkSession, hbase: HBase) -> None:
    register(spark)
    table = f"regions-{uuid.uuid4().hex}"
    given = {"uri": hbase.native, "transactions": f"txn-{table}"}
    with connect(hbase.native, table=table, transactions=given["transactions"]) as engine:
        store = engine.context.store
        store.ensure_table(table.encode(), {b"d": Family()}, [b"20", b"40"])
        engine.commit([Mutation(Key(row, "d", "v"), f"text {row}") for row in IDS])
    found = frame(spark, table=table, columns="v string=d:v", **given)
    assert found.rdd.getNumPartitions() == 3
    assert sorted(row.id for row in found.collect()) == IDS
    few = frame(spark, table=table, columns="v string=d:v", numPartitions=2, stop="30", **given)
    assert (few.rdd.getNumPartitions(), few.count()) == (2, 30)


A, B = Key("a", "d", "x", "one"), Key("b", "d", "x", "two")


@pytest.fixture
def crashed(spark: SparkSession, tmp_path: Path, protocol: ProtocolName) -> str:
    """A store with a transaction that is finished, and one whose owner died with its locks."""
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri, protocol=protocol) as engine:
        engine.ensure_table("one", ["d"])
        engine.ensure_table("two", ["d"])
        engine.commit([Mutation(A, "1"), Mutation(B, "2")], once="token", labels={"job": "nightly"})
    stop_at(uri, Status.ASSERTED, [Mutation(A, "3"), Delete(B)], Exact(A, b"1"))
    return uri


def view(spark: SparkSession, uri: str, name: str, **options: str) -> DataFrame:
    return spark.read.format("txn").options(uri=uri, view=name, **options).load()


@every_protocol
def test_every_transaction_is_a_row(spark: SparkSession, crashed: str) -> None:
    rows = view(spark, crashed, "transactions").orderBy("created", "transaction").collect()
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


@every_protocol
def test_locks_that_are_held_are_rows(spark: SparkSession, crashed: str) -> None:
    found = view(spark, crashed, "locks", table="one, two")
    rows = sorted(found.collect(), key=lambda row: row.key)
    assert [(row.table, row.row, row.family) for row in rows] == [
        ("one", "a", "d"),
        ("two", "b", "d"),
    ]
    assert {row.column for row in rows} in ({"x"}, {None})
    assert {(row.status, row.state) for row in rows} == {("2-ASSERTED", "decided")}
    other = view(spark, crashed, "transactions").where("status = '2-ASSERTED'").first()
    assert other is not None
    assert {row.holder for row in rows} == {other.transaction}


def test_a_data_frame_keeps_its_instant(spark: SparkSession, tmp_path: Path) -> None:
    """Spark plans it once, when it is first used. Where a version is gone the read fails."""
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri) as engine:
        for table, versions in (("many", 3), ("one", 1)):
            engine.context.store.ensure_table(table.encode(), {b"d": Family(versions=versions)})
            given = {"table": table, "columns": "v string=d:v", "snapshot": True}
            kept, later = (frame(spark, uri, **given).where("id = '07'") for _ in range(2))
            for value, found in (("0", kept), ("1", later)):
                engine.commit([Mutation(Key(id, "d", "v", table), value) for id in ("07", "08")])
                assert [row.v for row in found.collect()] == [value]
            if versions > 1:
                assert [row.v for row in kept.union(kept).collect()] == ["0", "0"]
            else:
                with pytest.raises(PySparkException, match=r"keep more VERSIONS.*'07'"):
                    kept.collect()


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


def append(frame: DataFrame, where: dict[str, str]) -> None:
    frame.write.format("txn").mode("append").options(**where).save()


def list_ids(spark: SparkSession, where: dict[str, str]) -> list[str]:
    return sorted(row.id for row in spark.read.format("txn").options(**where).load().collect())


def test_threads_write_after_registering(spark: SparkSession, where: dict[str, str]) -> None:
    """Spark looks for the format in the thread's active session, and at first none is."""
    other = spark.newSession()
    register(other)
    frames = {session: make_frame(session, name) for session, name in ((spark, "1"), (other, "2"))}
    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(Py4JJavaError, match=r"ClassNotFoundException: txn\.DefaultSource"):
            threads.submit(append, frames[spark], where).result()
        assert threads.submit(list_ids, other, where).result() == []
    for session, frame in frames.items():
        with ThreadPoolExecutor(2, initializer=register, initargs=(session,)) as threads:
            for done in [threads.submit(append, frame, where) for _ in range(2)]:
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
        kept = spark.read.options(**where).table("kept").collect()
        assert [row] == kept == [("1", "a")]
        # `saveAsTable` looks to a source like `save`, so it cannot be refused.
        write_table = make_frame(spark, "2").write.format("txn").mode("append").options(**where)
        write_table.saveAsTable("saved")
        with pytest.raises(PySparkException, match=WITHHELD):
            spark.table("saved").collect()
        assert spark.read.options(**where).table("saved").count() == 2
    finally:
        spark.sql("DROP TABLE kept")
        spark.sql("DROP TABLE IF EXISTS saved")
