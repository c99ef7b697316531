"""`writeStream.format("txn")`: each row of a stream once, however often the query begins again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from recovery import check
from recovery.findings import Severity
from tests.integration.spark_cluster import run_application, wait_until
from tests.integration.spark_jobs import (
    SMALL_BATCHES,
    add_file,
    write_batches_atomically,
    write_stream,
)
from tests.integration.spark_requests import statuses
from tests.integration.test_spark_atomic import list_statuses
from txn import InvalidRequestError, Key, Mutation, connect
from txn.protocol.statuses import Status
from txn.spark import make_batch_writer, register

WRITE = "tests.integration.spark_jobs:write_stream"
WRITE_ATOMICALLY = "tests.integration.spark_jobs:write_batches_atomically"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri) as engine:
        engine.ensure_table("rows", ["f"])
    return uri


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


def test_a_query_that_begins_again_after_each_batch_writes_each_row_once(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    """Of every second batch the driver had not noted its end: another run of the query writes that
    batch again. A sink without tokens has it twice then."""
    total = {"committed": 0, "repeated": 0}
    metrics = tmp_path / "metrics.jsonl"
    for number in range(3):
        add_file(tmp_path / "source", f"{number}", range(number * 20, number * 20 + 20))
        counted = write_stream(spark, **arguments(uri, tmp_path, metrics=str(metrics)))
        total = {name: total[name] + counted[name] for name in total}
        if number != 1:
            forget_batch(tmp_path, number)
    counted = write_stream(spark, **arguments(uri, tmp_path))
    assert counted["repeated"] == 20
    assert total == {"committed": 60, "repeated": 20}
    assert_each_row_once(uri, 60)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [(line["job"][-2:], line["committed"], line["repeated"]) for line in lines] == [
        ("-0", 20, 0),
        ("-0", 0, 20),
        ("-1", 20, 0),
        ("-2", 20, 0),
    ]


def test_a_driver_that_is_killed_in_a_batch_is_no_loss(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    """Everything of Spark dies at once, with rows that are written and rows that are half-way; the
    next driver runs the batch again, by the same names."""
    rows = 200
    add_file(tmp_path / "source", "a", range(rows))
    details = arguments(uri, tmp_path, batchSize="20", lock_ttl_ms="300")
    with run_application(tmp_path / "spark", "local[2]", settings=SMALL_BATCHES) as application:
        application.start(WRITE, **details, trouble={"pause_ms": 30})
        wait_until(lambda: statuses(uri)["5-COMPLETE"] >= 60)
        application.kill()
    assert 60 <= statuses(uri)["5-COMPLETE"] < rows
    counted = write_stream(spark, **details)
    assert counted["repeated"] >= 60
    assert counted["committed"] + counted["repeated"] == rows
    assert_each_row_once(uri, rows)


@pytest.mark.slow
def test_an_atomic_batch_happens_once_or_not_at_all(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    """The driver is killed in the second batch, when a task has written its part; then after it,
    before Spark has noted its end."""
    for number in range(2):
        add_file(tmp_path / "source", f"{number}", range(number * 20, number * 20 + 20))
    details = arguments(uri, tmp_path, lock_ttl_ms="1000")

    def is_in_second_batch() -> bool:
        wholes, parts = list_statuses(uri)
        return Status.COMPLETE in wholes and parts[Status.PART] > 0

    with run_application(tmp_path / "spark", "local[2]") as application:
        application.start(WRITE_ATOMICALLY, **details, trouble={"pause_ms": 500})
        wait_until(is_in_second_batch)
        application.kill()
    assert list_statuses(uri)[0] == [Status.COMPLETE, Status.WRITTEN]
    with connect(uri, table="rows") as engine:
        assert sum(1 for _ in engine.scan()) == 20
    for _ in range(2):
        write_batches_atomically(spark, **details)
        assert Counter(list_statuses(uri)[0]) == {Status.COMPLETE: 2, Status.ABORTED: 1}
        forget_batch(tmp_path, 1)
    with connect(uri, table="rows") as engine:
        found = list(engine.scan())
        timestamps = {cell.timestamp for row in found for cell in row.cells.values()}
    assert (len(found), len(timestamps)) == (40, 2)


def test_rejects_of_a_batch_that_is_run_again_are_there_once(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    """A file of rejects has the name of its batch, so that a second one takes its place."""
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


def test_a_batch_in_update_mode_is_written_once(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
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


def test_rows_that_are_named_happen_once_in_all_batches(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    """The name of a batch would else be a part of theirs."""
    register(spark)
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "id long, v string")
    options = arguments(uri, tmp_path)["options"]
    write = make_batch_writer({**options, "onceBy": "id"})
    for number in range(2):
        write(frame, number)
    assert statuses(uri)["5-COMPLETE"] == 2
    with pytest.raises(Exception, match=r"TokenReused.*token=b'rows/2'"):
        write(frame.where("id = 2").selectExpr("id", "'other' v"), 2)
    with pytest.raises(InvalidRequestError, match="call this in foreachBatch"):
        make_batch_writer(options)(frame, 0)


@pytest.mark.parametrize(
    "options, mode, message",
    [
        ({}, "complete", "use the output mode append"),
        ({"job_id": "x"}, "append", "jobId goes with onceBy"),
        ({"colums": "v=f:v"}, "append", "unknown option"),
        ({"atomic": "true"}, "append", "make_batch_writer"),
        ({"table": "absent"}, "append", "no such table"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], mode: str, message: str
) -> None:
    """Its error comes before a task is started, and says what to do."""
    uri = f"embedded://{tmp_path}/store"
    with connect(uri) as engine:
        engine.ensure_table("rows", ["f"])
    register(spark)
    add_file(tmp_path / "source", "a", range(3))
    rows = spark.readStream.schema("id long").csv(f"{tmp_path}/source")
    stream = rows.groupBy("id").count() if mode == "complete" else rows.selectExpr("id", "'a' v")
    given = arguments(uri, tmp_path, **options)["options"]
    writer = stream.writeStream.format("txn").options(**given).outputMode(mode)
    writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
    with pytest.raises(Exception, match=message):
        writer.trigger(availableNow=True).start().awaitTermination()
    assert not statuses(uri)
