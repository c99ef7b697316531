"""`df.write.format("txn")`: rows become transactions, once, with their conditions and rejects."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.integration.spark_requests import patch_request, statuses
from tests.tracing import PROVIDER, SPANS_VARIABLE, id_of, read_spans, traced
from txn import Delete, Key, Mutation, connect
from txn.spark import Counts, Summary, commit_partition, register
from txn.tracing import capture_trace

ID = "id as text"
Cells = dict[str, tuple[str, int]]


@pytest.fixture
def uri(tmp_path: Path, spark: SparkSession) -> str:
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri) as engine:
        engine.ensure_table("rows", ["f"])
        engine.ensure_table("rejects", ["r"])
    return uri


def write(frame: DataFrame, uri: str, **options: Any) -> None:
    given = {"uri": uri, "table": "rows", "row": ID, "family": "f", **options}
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
    """A data frame in, each row committed, the numbers in the driver: the whole use."""
    counts = Counts.of(spark)
    frame = spark.range(1000).selectExpr("id", "string(id * 2) v").repartition(3)
    write(frame, uri, counts=counts.name_accumulator(), batchSize=100)
    assert scan(uri) == {str(number): {"v": str(number * 2)} for number in range(1000)}
    assert counts.summary() == Summary(committed=1000)
    assert versions(uri) == 1000


def test_rows_that_are_equal_are_each_written(spark: SparkSession, uri: str) -> None:
    """A token of what a row is must not take the second one for the first one again."""
    counts = Counts.of(spark)
    frame = spark.createDataFrame([(1, "a"), (1, "a"), (1, "a")], "id long, v string").coalesce(1)
    write(frame, uri, counts=counts.name_accumulator())
    assert counts.summary().committed == 3


def test_nulls_are_left_or_deleted(spark: SparkSession, uri: str) -> None:
    """A patch of some columns must not empty the others, and a whole row must."""
    put(uri, "1", "old")
    frame = spark.createDataFrame([(1, None, "b")], "id long, v string, w string")
    write(frame, uri)
    assert scan(uri) == {"1": {"v": "old", "w": "b"}}
    write(frame, uri, nulls="delete")
    assert scan(uri) == {"1": {"w": "b"}}


def test_rows_of_a_group_are_one_transaction(spark: SparkSession, uri: str) -> None:
    """An order and its lines are seen together or not at all."""
    frame = spark.range(100).selectExpr("id", "string(id) v", "id % 10 g")
    counts = Counts.of(spark)
    write(
        frame.repartition(3, "g").sortWithinPartitions("g"),
        uri,
        columns="v=f:v",
        family="",
        group_by="g",
        counts=counts.name_accumulator(),
    )
    assert len(scan(uri)) == 100
    assert counts.summary().committed == versions(uri) == 10


def test_a_group_that_is_scattered_is_refused(spark: SparkSession, uri: str) -> None:
    """Its second part would be another transaction, and nobody would know."""
    rows = [(1, "a", 1), (2, "b", 2), (3, "c", 1)]
    frame = spark.createDataFrame(rows, "id long, v string, g long").coalesce(1)
    with pytest.raises(Exception, match="do not stand together"):
        write(frame, uri, columns="v=f:v", family="", group_by="g")
    assert "3" not in scan(uri)


def test_what_is_there_already_fails_the_write(spark: SparkSession, uri: str) -> None:
    """Nothing is overwritten that was to be new, and the error names the row."""
    put(uri, "2", "mine")
    frame = spark.range(3).selectExpr("id", "'theirs' v").coalesce(1)
    with pytest.raises(Exception, match=r'AssertionFailedError.*row=.*"id": 2'):
        write(frame, uri, if_absent="true")
    assert scan(uri)["2"] == {"v": "mine"}


def test_a_version_that_was_read_must_still_be_there(spark: SparkSession, uri: str) -> None:
    """Reading, computing and writing back loses no update of anybody else."""
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


@pytest.mark.parametrize("as_text", [True, False])
def test_assertions_come_with_rows(spark: SparkSession, uri: str, as_text: bool) -> None:
    """What must hold may be of other cells than those that are written, and differ row by row."""
    put(uri, "1", "open", "state")
    put(uri, "2", "shut", "state")
    frame = spark.createDataFrame([(1, "x"), (2, "x")], "id long, v string")
    if as_text:
        must = (
            'concat(\'[{"exact": "rows/\', id, \'/f:state", "value": "open"},'
            ' {"not": {"some": "v"}}]\')'
        )
    else:
        must = "array(named_struct('exact', concat('rows/', id, '/f:state'), 'value', 'open'))"
    write(frame.selectExpr("*", f"{must} must"), uri, assertions="must", on_reject="count")
    assert scan(uri) == {"1": {"state": "open", "v": "x"}, "2": {"state": "shut"}}


def test_a_token_of_columns_outlives_the_job(spark: SparkSession, uri: str) -> None:
    """A job that is started again after it died must not pay anybody twice."""
    counts = Counts.of(spark)
    frame = spark.range(50).selectExpr("id", "string(id) v", "concat('event/', id) event")
    options = {"once_by": "event", "columns": "v=f:v", "family": "", "job_id": "payments"}
    for parts in (1, 3):
        named = {**options, "counts": counts.name_accumulator()}
        write(frame.repartition(parts), uri, **named)
    assert counts.summary() == Summary(committed=50, repeated=50)
    assert versions(uri) == 50


def test_a_job_with_a_name_is_run_again_for_nothing(spark: SparkSession, uri: str) -> None:
    """Without columns for a token, the name of the job and what its rows are will do."""
    frame = spark.createDataFrame([(1, "a"), (1, "a"), (2, "b")], "id long, v string").coalesce(1)
    counts = Counts.of(spark)
    write(frame, uri, job_id="nightly", counts=counts.name_accumulator())
    shuffled = frame.sort("v", ascending=False).coalesce(1)
    write(shuffled, uri, job_id="nightly", counts=counts.name_accumulator())
    assert counts.summary() == Summary(committed=3, repeated=3)


@pytest.mark.parametrize(
    "more", [{"on_reject": "count"}, {"rejects": "table:rejects", "group_by": "event"}]
)
def test_a_name_of_two_rows_is_an_error(
    spark: SparkSession, uri: str, more: dict[str, str]
) -> None:
    """The second row, or second part of a group that is split over partitions, counted as repeated,
    and was lost. No kind of reject hides it."""
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
    """Who loads a million rows looks at the ten that were refused afterwards."""
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
    """An attempt that rejected it may be lost, and the next one could write it: then it would be
    both, in the store and among the rejects."""
    put(uri, "1", "mine")
    frame = spark.createDataFrame([(1, "theirs")], "id long, v string")
    options = {"if_absent": "v", "rejects": "table:rejects", "job_id": "nightly"}
    write(frame, uri, **options)
    with connect(uri, table="rows") as engine:
        engine.commit([Delete(Key("1", "f", "v"))])
    write(frame, uri, **options)
    assert scan(uri) == {}
    assert len(scan(uri, "rejects")) == 1


def test_the_bad_row_of_many_is_named(spark: SparkSession, uri: str) -> None:
    """An error about one of ten thousand rows that a record batch has helps nobody."""
    frame = spark.range(100).selectExpr("if(id = 77, null, id) id", "string(id) v").coalesce(1)
    with pytest.raises(Exception, match=r'must not be null.*row=.*"v": "77"'):
        write(frame, uri)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"colums": "v=f:v"}, "unknown option"),
        ({"row": "key"}, "mapped columns are not in the schema|names no column|not mapped"),
        ({"family": "g"}, "no such family"),
        ({"table": "nowhere"}, "no such table"),
        ({"transactions": "mistyped"}, "no such transaction table.*mistyped"),
        ({"if_absent": "w"}, "no column of the mapping"),
        ({"if_version": "v"}, "type that does not fit"),
        ({"assertions": "nowhere"}, "names no column"),
        ({"once": "false", "job_id": "x"}, "exclude each other"),
        ({"on_reject": "fail", "rejects": "table:rejects"}, "exclude each other"),
        ({"rejects": "table:nowhere"}, "no such table"),
        ({"group_by": "id", "once_by": "v"}, "a group has one token"),
        ({"counts": "x"}, "counts are what"),
        ({"nulls": "zero"}, "unknown value"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_task(
    spark: SparkSession, uri: str, options: dict[str, str], message: str
) -> None:
    """Four attempts of every task would run into it, some after others had committed."""
    frame = spark.createDataFrame([(1, "a")], "id long, v string")
    with pytest.raises(Exception, match=message) as caught:
        write(frame, uri, **options)
    assert "PYTHON_DATA_SOURCE_ERROR" in str(caught.value)
    assert versions(uri) == 0


def test_a_table_is_not_overwritten(spark: SparkSession, uri: str) -> None:
    """The rows that are not in the data frame would have to go, and no transaction does that."""
    frame = spark.createDataFrame([(1, "a")], "id long, v string")
    given = {"uri": uri, "table": "rows", "row": ID, "family": "f"}
    with pytest.raises(Exception, match="use mode append"):
        frame.write.format("txn").mode("overwrite").options(**given).save()


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
    """A job is one trace, from the program that began it to each of its transactions."""
    frame = spark.range(6).selectExpr("id", "string(id) v").repartition(2)
    with traced() as spans, spans.tracer.start_as_current_span("driver") as driver:
        write(frame, uri, **capture_trace())
        task = partial(commit_partition, uri, to_request=patch_request, table="rows")
        counts = Counts.of(spark)
        frame.foreachPartition(partial(task, counts=counts, trace=capture_trace()))
    write(frame, uri)
    assert counts.summary() == Summary(committed=6)
    found = exported()
    assert {span["name"] for span in found} == {"txn.commit"}
    parent = f"0x{id_of(driver):016x}"
    assert Counter(span["parent_id"] for span in found) == {parent: 12, None: 6}
    assert {span["attributes"]["txn.outcome"] for span in found} == {"committed"}
