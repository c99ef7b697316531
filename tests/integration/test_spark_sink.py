"""`writeStream.format("txn")`: each row of a stream once, however often the query begins again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from recovery import check
from recovery.findings import Severity
from tests.integration.spark_cluster import run_application, wait_until
from tests.integration.spark_jobs import SMALL_BATCHES, add_file, write_stream
from tests.integration.spark_requests import statuses
from txn import Key, Mutation, connect
from txn.spark import register

WRITE = "tests.integration.spark_jobs:write_stream"


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


def test_a_batch_by_hand_is_written_once_by_its_number(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    """Spark gives sinks in Python no aggregates in update mode: `foreachBatch` takes those, and a
    job with the batch's number in its name does nothing twice."""
    register(spark)
    add_file(tmp_path / "source", "a", range(10))
    add_file(tmp_path / "source", "b", range(10))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    counted = stream.csv(f"{tmp_path}/source").groupBy("id").count()
    options = arguments(uri, tmp_path, columns="count=f:count as text", family="")["options"]

    def write(frame: DataFrame, number: int) -> None:
        writer = frame.write.format("txn").options(**options).option("job_id", f"counts-{number}")
        writer.mode("append").save()

    def run() -> None:
        writer = counted.writeStream.foreachBatch(write).outputMode("update")
        writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    forget_batch(tmp_path, 1)
    run()
    with connect(uri, table="rows") as engine:
        found = {row.row: [c.value for c in row.cells.values()] for row in engine.scan()}
    assert found == {b"%d" % row: [b"2"] for row in range(10)}
    assert statuses(uri)["5-COMPLETE"] == 20


@pytest.mark.parametrize(
    "options, mode, message",
    [
        ({}, "complete", "use the output mode append"),
        ({"job_id": "x"}, "append", "jobId goes with onceBy"),
        ({"colums": "v=f:v"}, "append", "unknown option"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], mode: str, message: str
) -> None:
    """Its error comes before a row is written, and says what to do."""
    uri = f"embedded://{tmp_path}/store"
    register(spark)
    add_file(tmp_path / "source", "a", range(3))
    rows = spark.readStream.schema("id long").csv(f"{tmp_path}/source")
    stream = rows.groupBy("id").count() if mode == "complete" else rows.selectExpr("id", "'a' v")
    given = arguments(uri, tmp_path, **options)["options"]
    writer = stream.writeStream.format("txn").options(**given).outputMode(mode)
    writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
    with pytest.raises(Exception, match=message):
        writer.trigger(availableNow=True).start().awaitTermination()
    assert not (tmp_path / "store").exists()
