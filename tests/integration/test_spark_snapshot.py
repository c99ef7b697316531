"""`option("snapshot", "true")`: all tasks of a read show the table as it was at one instant."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.hbase import HBase
from txn import Key, Mutation, connect
from txn.client.parts import PartsClient
from txn.model import Family
from txn.protocol.statuses import PROTOCOLS, ProtocolName
from txn.spark import register

ROWS = [f"{number:03}" for number in range(120)]
SPLITS = [b"030", b"060", b"090"]
READS = 6

Given = dict[str, Any]


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> ProtocolName:
    found: ProtocolName = request.param
    return found


def make_table(uri: str, table: str, protocol: ProtocolName, versions: int = 1_000) -> Given:
    """Make a table in a database of its own; return the options that read it."""
    given = {"uri": uri, "transactions": f"txn-{table}", "table": table}
    with connect(uri, table=table, transactions=given["transactions"], protocol=protocol) as engine:
        engine.context.store.ensure_table(table.encode(), {b"d": Family(versions=versions)}, SPLITS)
        engine.commit([Mutation(Key(row, "d", "v"), b"0") for row in ROWS], labels={"at": "first"})
    more = {"row": "id string", "columns": "v string=d:v", "numPartitions": 4, "snapshot": True}
    return {**given, **more, "rowless": "skip"}


def read(spark: SparkSession, given: Given) -> DataFrame:
    return spark.read.format("txn").options(**given).load()


@contextmanager
def replacing_all(given: Given, pause_s: float) -> Iterator[list[int]]:
    """Replace all rows again and again, in parts, as an atomic data frame does; yield the numbers
    that were written."""
    over, done = Event(), [0]

    def write() -> None:
        with connect(given["uri"], table=given["table"], transactions=given["transactions"]) as e:
            client, table = PartsClient(e), given["table"]
            while not over.wait(pause_s):
                transaction, number = client.begin(), done[-1] + 1
                parts = [ROWS[start : start + 40] for start in range(0, len(ROWS), 40)]
                value = str(number)
                times = [
                    client.write(
                        transaction,
                        task,
                        0,
                        [Mutation(Key(row, "d", "v", table), value) for row in part],
                    )
                    for task, part in enumerate(parts)
                ]
                client.commit(transaction, [1] * len(parts), max(times))
                done.append(number)

    writer = Thread(target=write)
    writer.start()
    try:
        yield done
    finally:
        over.set()
        writer.join()


def check_reads(spark: SparkSession, given: Given) -> None:
    """Each read shows all rows, of one number: one that was written while it ran."""
    register(spark)
    with replacing_all(given, 0.05) as done:
        for _ in range(READS):
            before = done[-1]
            rows = read(spark, given).collect()
            assert sorted(row.id for row in rows) == ROWS
            (value,) = {row.v for row in rows}
            assert before <= int(value) <= done[-1] + 1
    assert len(done) > READS, "too few frames were written beside the reads"


def test_no_read_shows_a_mixture_of_two_frames(
    spark: SparkSession, tmp_path: Path, protocol: ProtocolName
) -> None:
    """Each frame is one transaction. Without the option a read beside it shows a part of it."""
    given = make_table(f"embedded://{tmp_path}/store?sync=off", "rows", protocol)
    check_reads(spark, given)


def test_no_read_of_hbase_shows_a_mixture(
    spark: SparkSession, hbase: HBase, protocol: ProtocolName
) -> None:
    """The same, where each task reads a region."""
    given = make_table(hbase.native, f"snapshot-{uuid.uuid4().hex[:8]}", protocol)
    check_reads(spark, given)


def test_a_data_frame_keeps_its_instant(spark: SparkSession, tmp_path: Path) -> None:
    """Spark plans it once, when it is first used. Where a version from then is not kept any more,
    the read fails and says which."""
    register(spark)
    uri = f"embedded://{tmp_path}/store?sync=off"
    for table, versions in (("many", 3), ("one", 1)):
        given = make_table(uri, table, "six-phase", versions)
        kept = read(spark, given).where("id = '007'")
        assert [row.v for row in kept.collect()] == ["0"]
        with connect(uri, table=table, transactions=given["transactions"]) as engine:
            engine.commit([Mutation(Key("007", "d", "v"), "1")])
        assert [row.v for row in read(spark, given).where("id = '007'").collect()] == ["1"]
        if versions > 1:
            assert [row.v for row in kept.union(kept).collect()] == ["0", "0"]
        else:
            with pytest.raises(PySparkException, match=r"let the family keep more VERSIONS.*'007'"):
                kept.collect()
