"""`df.write.format("txn")` and `writeStream`: rows become transactions, once, however often."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import DataFrame, SparkSession

from recovery import check
from recovery.findings import Severity
from tests.integration.spark_jobs import (
    add_file,
    list_statuses,
    patch_request,
    statuses,
    write_stream,
)
from tests.tracing import PROVIDER, SPANS_VARIABLE, id_of, read_spans, traced
from txn import Delete, InvalidRequestError, Key, Mutation, connect
from txn.protocol.statuses import ProtocolName, Status
from txn.spark import Counts, Summary, commit_partition, make_batch_writer, register
from txn.tracing import capture_trace

BY_V = {"columns": "v=f:v", "family": ""}
ORDERS = {
    "table": "orders",
    "row": "id as text",
    "family": "",
    "columns": "state=d:state, id=by_customer(customer, id)/i:order as text",
    "newTable": "1",
}


@pytest.fixture
def uri(tmp_path: Path, spark: SparkSession) -> str:
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri) as engine:
        engine.ensure_table("rows", ["f"])
        engine.ensure_table("rejects", ["r"])
    return uri


def write(frame: DataFrame, uri: str, **options: Any) -> None:
    given = {"uri": uri, "table": "rows", "row": "id as text", "family": "f", **options}
    frame.write.format("txn").mode("append").options(**given).save()


def put(uri: str, row: str, value: str, column: str = "v") -> int:
    with connect(uri, table="rows") as engine:
        return engine.commit([Mutation(Key(row, "f", column), value)]).timestamp


def scan(uri: str, table: str = "rows") -> dict[str, dict[str, str]]:
    with connect(uri) as engine:
        return {
            row.row.decode(): {
                key.column.decode(): c.value.decode() for key, c in row.cells.items()
            }
            for row in engine.scan(table)
        }


def versions(uri: str) -> int:
    """How many transactions committed anything."""
    return statuses(uri)["5-COMPLETE"]


def test_each_row_is_a_transaction_and_is_counted(spark: SparkSession, uri: str) -> None:
    counts = Counts.of(spark)
    frame = spark.range(50).selectExpr("id", "string(id * 2) v").repartition(2)
    write(frame, uri, counts=counts.name_accumulator(), batchSize=10)
    assert scan(uri) == {str(number): {"v": str(number * 2)} for number in range(50)}
    assert counts.summary() == Summary(committed=50)
    assert versions(uri) == 50


def test_rows_of_a_group_are_one_transaction(spark: SparkSession, uri: str) -> None:
    """The second part of one that is scattered would be another transaction."""
    frame = spark.range(20).selectExpr("id", "string(id) v", "id % 5 g")
    sorted_frame = frame.repartition(2, "g").sortWithinPartitions("g")
    write(sorted_frame, uri, **BY_V, group_by="g")
    assert len(scan(uri)) == 20
    assert versions(uri) == 5
    with pytest.raises(Exception, match="do not stand together"):
        write(frame.selectExpr("id + 100 id", "v", "g").coalesce(1), uri, **BY_V, group_by="g")
    assert "105" not in scan(uri)


def test_a_version_that_was_read_must_still_be_there(spark: SparkSession, uri: str) -> None:
    seen, other = put(uri, "1", "a"), put(uri, "2", "a")
    rows = [(1, "b", seen), (2, "b", other - 1), (3, "b", None)]
    frame = spark.createDataFrame(rows, "id long, v string, seen long")
    counts = Counts.of(spark)
    options = {"on_reject": "count", "counts": counts.name_accumulator()}
    write(frame, uri, if_version="seen", **options)
    assert scan(uri) == {"1": {"v": "b"}, "2": {"v": "a"}, "3": {"v": "b"}}
    assert counts.summary() == Summary(committed=2, refused=1)
    write(frame.filter("id = 3"), uri, if_version="v=seen", **options)
    assert counts.summary() == Summary(committed=2, refused=2)


def test_assertions_come_with_rows(spark: SparkSession, uri: str) -> None:
    """What must hold may be of other cells than those that are written, and differ row by row."""
    put(uri, "1", "open", "state")
    put(uri, "2", "shut", "state")
    must = "array(named_struct('exact', concat('rows/', id, '/f:state'), 'value', 'open')) must"
    frame = spark.createDataFrame([(1, "x"), (2, "x")], "id long, v string").selectExpr("*", must)
    write(frame, uri, assertions="must", on_reject="count")
    assert scan(uri) == {"1": {"state": "open", "v": "x"}, "2": {"state": "shut"}}


def test_tokens_outlive_the_job(spark: SparkSession, uri: str) -> None:
    """A job that is started again after it died must not pay twice; rows that are equal are two."""
    rows = [(1, "a", "one"), (1, "a", "two"), (2, "b", "three")]
    frame = spark.createDataFrame(rows, "id long, v string, event string")
    ways = {"pay": (frame, {"once_by": "event", **BY_V}), "nightly": (frame.drop("event"), {})}
    for job, (some, options) in ways.items():
        counts = Counts.of(spark)
        for again in (some.coalesce(1), some.sort("id", ascending=False).coalesce(1)):
            write(again, uri, job_id=job, counts=counts.name_accumulator(), **options)
        assert counts.summary() == Summary(committed=3, repeated=3)


@pytest.mark.parametrize(
    "more", [{"on_reject": "count"}, {"rejects": "table:rejects", "group_by": "event"}]
)
def test_a_name_of_two_rows_is_wrong(spark: SparkSession, uri: str, more: dict[str, str]) -> None:
    """The second row counted as repeated, and was lost. No kind of reject hides it."""
    rows = [(number, str(number), "e") for number in range(10)]
    frame = spark.createDataFrame(rows, "id long, v string, event string").repartition(2, "id")
    options = {"once_by": "event", "columns": "v=f:v", "family": "", **more}
    with pytest.raises(Exception, match=r"TokenReused.*token=b'rows/e'.*repartition by the group"):
        write(frame, uri, **options)
    found = scan(uri)
    assert len(found) < len(rows)
    assert scan(uri, "rejects") == {}
    one = frame.where(f"id = {min(found)}")
    if "group_by" not in more:
        write(one, uri, **options)  # the same row again is a repeat
        assert scan(uri) == found


@pytest.mark.parametrize("place", ["table", "folder"])
def test_rejects_are_kept_with_reason_and_row(
    spark: SparkSession, uri: str, tmp_path: Path, place: str
) -> None:
    for row in ("3", "5"):
        put(uri, row, "mine")
    frame = spark.range(10).selectExpr("id", "'theirs' v").repartition(2)
    rejects = "table:rejects" if place == "table" else f"file://{tmp_path}/rejects"
    metrics = tmp_path / "metrics.jsonl"
    write(frame, uri, if_absent="v", rejects=rejects, metrics=str(metrics))
    found = (
        [{**each, "row": json.loads(each["row"])} for each in scan(uri, "rejects").values()]
        if place == "table"
        else [
            json.loads(line)
            for file in (tmp_path / "rejects").iterdir()
            for line in file.read_text().splitlines()
        ]
    )
    assert sorted(each["key"] for each in found) == ["3", "5"]
    assert [each["row"]["v"] for each in found] == ["theirs"] * 2
    assert all("assertion failed" in each["reason"] for each in found)
    (line,) = metrics.read_text().splitlines()
    assert {"committed": 8, "refused": 2, "tasks": 2}.items() <= json.loads(line).items()


def test_a_rejected_row_stays_rejected(spark: SparkSession, uri: str) -> None:
    """The next attempt could write it: then it would be in the store and among the rejects."""
    put(uri, "1", "mine")
    frame = spark.createDataFrame([(1, "theirs")], "id long, v string")
    options = {"if_absent": "v", "rejects": "table:rejects", "job_id": "nightly"}
    write(frame, uri, **options)
    with connect(uri, table="rows") as engine:
        engine.commit([Delete(Key("1", "f", "v"))])
    write(frame, uri, **options)
    assert scan(uri) == {}
    assert len(scan(uri, "rejects")) == 1


def test_options_that_do_not_fit_are_refused_before_any_task(spark: SparkSession, uri: str) -> None:
    """Four attempts of every task would run into it, some after others had committed."""
    frame = spark.createDataFrame([(1, "a")], "id long, v string")
    with pytest.raises(Exception, match="no such table") as caught:
        write(frame, uri, table="nowhere")
    assert "PYTHON_DATA_SOURCE_ERROR" in str(caught.value)
    assert versions(uri) == 0


@pytest.fixture
def exported(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[dict[str, Any]]]:
    """Let workers of Spark trace; return what reads their spans."""
    found = tmp_path / "spans"
    (tmp_path / "sitecustomize.py").write_text(PROVIDER)
    environment = spark.sparkContext.environment
    monkeypatch.setitem(environment, "PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(environment, SPANS_VARIABLE, str(found))
    register(spark)  # with this environment
    return lambda: read_spans(found)


def test_spans_of_tasks_are_under_the_driver_s(
    spark: SparkSession, uri: str, exported: Callable[[], list[dict[str, Any]]]
) -> None:
    frame = spark.range(6).selectExpr("id", "string(id) v").repartition(2)
    with traced() as spans, spans.tracer.start_as_current_span("driver") as driver:
        write(frame, uri, **capture_trace())
        counts = Counts.of(spark)
        given: dict[str, Any] = {"to_request": patch_request, "table": "rows", "counts": counts}
        task: Callable[..., Any] = partial(commit_partition, uri, **given)
        frame.foreachPartition(partial(task, trace=capture_trace()))
    write(frame, uri)
    assert counts.summary() == Summary(committed=6)
    found = exported()
    assert {span["name"] for span in found} == {"txn.commit"}
    parent = f"0x{id_of(driver):016x}"
    assert Counter(span["parent_id"] for span in found) == {parent: 12, None: 6}
    assert {span["attributes"]["txn.outcome"] for span in found} == {"committed"}


def make_orders(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr(
        "concat('c', id % 7) customer", "id", "'new' state"
    )


def expect_orders(count: int, state: str = "new") -> dict[str, Any]:
    return {
        "orders": {f"{n}": {"state": state} for n in range(count)},
        "by_customer": {f"c{n % 7}/{n}": {"order": f"{n}"} for n in range(count)},
    }


@pytest.mark.parametrize("protocol", get_args(ProtocolName))
def test_a_row_and_its_index_entry_are_one_transaction(
    spark: SparkSession, tmp_path: Path, protocol: ProtocolName
) -> None:
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    connect(uri, protocol=protocol).close()
    write(make_orders(spark, 20), uri, **ORDERS, ifAbsent="true")
    assert {table: scan(uri, table) for table in ("orders", "by_customer")} == expect_orders(20)
    assert versions(uri) == 20
    paid = make_orders(spark, 25).selectExpr("customer", "id", "'paid' state")
    write(paid, uri, **ORDERS, atomic="true", partKeys="11")
    expected = expect_orders(25, "paid")
    assert {table: scan(uri, table) for table in ("orders", "by_customer")} == expected
    with connect(uri) as engine:
        rows = [row for table in ("orders", "by_customer") for row in engine.scan(table)]
        assert len({cell.timestamp for row in rows for cell in row.cells.values()}) == 1


def test_bad_rows_are_kept_and_the_others_written(spark: SparkSession, uri: str) -> None:
    """One empty text of a million must not fail a job whose first batches are there already."""
    bad = {3: "''", 4: "null", 17: "'x'"}
    states = " ".join(f"when id = {n} then {state}" for n, state in bad.items())
    frame = make_orders(spark, 30).selectExpr(
        "if(id = 20, 'a/b', customer) customer", "id", f"case {states} else state end state"
    )
    counts = Counts.of(spark)
    with connect(uri) as engine:
        engine.ensure_table("orders", ["d"])
        engine.commit([Mutation(Key("17", "d", "state", "orders"), "mine")])
    options = {**ORDERS, "jobId": "n", "ifAbsent": "state", "rejects": "table:rejects"}
    write(frame, uri, counts=counts.name_accumulator(), **options)
    found = {row.pop("key"): row for row in scan(uri, "rejects").values()}
    assert sorted(found) == ["17", "20", "3"]
    assert "a value is empty" in found["3"]["reason"] and "column='state'" in found["3"]["reason"]
    assert "has the separator in it column='customer'" in found["20"]["reason"]
    assert "assertion failed" in found["17"]["reason"]
    assert json.loads(found["3"]["row"]) == {"customer": "c3", "id": 3, "state": ""}
    assert counts.summary() == Summary(committed=27, refused=3)
    assert len(scan(uri, "by_customer")) == 28 - 1
    write(frame, uri, counts=counts.name_accumulator(), **options)
    assert counts.summary() == Summary(committed=27, refused=3, repeated=30)
    write(frame.where("id = 3"), uri, **ORDERS, empty="null")
    assert "3" not in scan(uri, "orders") and "c3/3" in scan(uri, "by_customer")
    with pytest.raises(Exception, match=r"a value is empty.*column='state'"):
        write(frame.where("id in (2, 3)"), uri, **ORDERS, onReject="count")


def arguments(uri: str, folder: Path, **more: Any) -> dict[str, Any]:
    """Return those of a stream out of a folder's `source`."""
    options = {"uri": uri, "table": "rows", "row": "id as text", "family": "f", **more}
    paths = {"source": f"{folder}/source", "checkpoint": f"{folder}/checkpoint"}
    return {**paths, "options": options}


def forget_batch(folder: Path, number: int) -> None:
    """Leave of a batch what is left where the driver dies between its end and the note of it."""
    for name in (f"{number}", f".{number}.crc"):
        (folder / "checkpoint" / "commits" / name).unlink()


def assert_each_row_once(uri: str, rows: int) -> None:
    with connect(uri, table="rows") as engine:
        found = sorted(int(row.row) for row in engine.scan())
        severities = {each.kind.severity for each in check(engine.context, grace_ms=0)}
    assert found == list(range(rows))
    assert Severity.REPORT_ONLY not in severities
    assert statuses(uri)["5-COMPLETE"] == rows


def test_a_query_writes_each_row_once(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    """The driver had not noted a batch's end: another run of the query writes it again."""
    given = arguments(uri, tmp_path, metrics=str(tmp_path / "metrics.jsonl"))
    for number in range(2):
        add_file(tmp_path / "source", f"{number}", range(number * 20, number * 20 + 20))
        write_stream(spark, **given)
        if number == 0:
            forget_batch(tmp_path, 0)
    assert_each_row_once(uri, 40)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["job"][-2:], line["committed"], line["repeated"]) for line in lines] == [
        ("-0", 20, 0),
        ("-0", 0, 20),
        ("-1", 20, 0),
    ]


def test_an_atomic_batch_happens_once(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    for number in range(2):
        add_file(tmp_path / "source", f"{number}", range(number * 20, number * 20 + 20))
    write_stream(spark, **arguments(uri, tmp_path, atomic="true"))
    forget_batch(tmp_path, 1)
    write_stream(spark, **arguments(uri, tmp_path, atomic="true"))
    assert list_statuses(uri)[0] == [Status.COMPLETE] * 2
    with connect(uri, table="rows") as engine:
        found = list(engine.scan())
    timestamps = {cell.timestamp for row in found for cell in row.cells.values()}
    assert (len(found), len(timestamps)) == (40, 2)


def test_rejects_of_a_batch_are_kept_once(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    with connect(uri, table="rows") as engine:
        engine.commit([Mutation(Key("3", "f", "v"), "mine")])
    add_file(tmp_path / "source", "a", range(10))
    more = {"if_absent": "true", "rejects": str(tmp_path / "rejects")}
    write_stream(spark, **arguments(uri, tmp_path, **more))
    forget_batch(tmp_path, 0)
    write_stream(spark, **arguments(uri, tmp_path, **more))
    (file,) = (tmp_path / "rejects").iterdir()
    (line,) = file.read_text().splitlines()
    assert json.loads(line)["row"] == {"id": 3, "v": "3"}


def test_a_batch_in_update_mode_happens_once(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    """Spark gives sinks in Python no aggregates in update mode: `foreachBatch` takes those."""
    register(spark)
    add_file(tmp_path / "source", "a", range(10))
    add_file(tmp_path / "source", "b", range(10))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    counted = stream.csv(f"{tmp_path}/source").groupBy("id").count()
    options = arguments(uri, tmp_path, columns="count=f:count as text", family="")["options"]

    def run() -> None:
        writer = counted.writeStream.foreachBatch(make_batch_writer(options)).outputMode("update")
        writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    forget_batch(tmp_path, 1)
    run()
    with connect(uri, table="rows") as engine:
        found = {row.row: [c.value for c in row.cells.values()] for row in engine.scan()}
    assert found == {b"%d" % row: [b"2"] for row in range(10)}
    assert statuses(uri)["5-COMPLETE"] == 20
    with pytest.raises(InvalidRequestError, match="call this in foreachBatch"):
        make_batch_writer(options)(make_orders(spark, 1), 0)
