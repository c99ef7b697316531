"""`writeStream.format("txn")`: each row of a stream once, however often the query begins again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from recovery import check
from recovery.findings import Severity
from tests.integration.spark_jobs import add_file, write_stream
from tests.integration.spark_requests import list_statuses, statuses
from txn import InvalidRequestError, Key, Mutation, connect
from txn.protocol.statuses import Status
from txn.spark import make_batch_writer, register


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


def test_a_query_writes_each_row_once(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    """Of a batch the driver had not noted its end: another run of the query writes it again. A sink
    without tokens has it twice then."""
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


def test_a_sink_creates_its_tables(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    add_file(tmp_path / "source", "a", range(10))
    columns = "v=f:v, id=by_v(v)/i:id as text"
    write_stream(spark, **arguments(uri, tmp_path, family="", columns=columns, newTable="1"))
    with connect(uri) as engine:
        entries = {row.row: [c.value for c in row.cells.values()] for row in engine.scan("by_v")}
    assert entries == {b"%d" % row: [b"%d" % row] for row in range(10)}


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


def test_named_rows_happen_once(spark: SparkSession, uri: str, tmp_path: Path) -> None:
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


def test_a_complete_stream_is_refused(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    register(spark)
    add_file(tmp_path / "source", "a", range(3))
    rows = spark.readStream.schema("id long").csv(f"{tmp_path}/source").groupBy("id").count()
    writer = rows.writeStream.format("txn").options(**arguments(uri, tmp_path)["options"])
    writer = writer.outputMode("complete").option("checkpointLocation", f"{tmp_path}/checkpoint")
    with pytest.raises(Exception, match="use the output mode append"):
        writer.trigger(availableNow=True).start().awaitTermination()
    assert not statuses(uri)
