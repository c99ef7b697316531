"""Jobs for applications of spark_cluster: functions of a session, and the trouble that rows meet;
and what Spark tests commit. In a module of its own, which Python workers can import."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import LongType

from txn import Key, Mutation, Request, Some
from txn.protocol.row import decode_row, is_row_key, parent_of
from txn.protocol.statuses import Status
from txn.spark import Counts, make_batch_writer, register
from txn.stores import open_store

SMALL_BATCHES = {
    "spark.buffer.size": "256",
    "spark.sql.execution.pandas.udf.buffer.size": "256",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    "spark.sql.execution.python.udf.maxRecordsPerBatch": "20",
}
"""Settings with which a task commits its first rows long before it has read the last ones."""
HANGS_S = 300


@dataclass(frozen=True)
class Trouble:
    """What the rows of a partition meet in some attempts of its task, and nowhere else.

    pause_ms: before each row. fails_at, dies_at: the row with that id raises an error, or kills the
    Python worker that computes it, once the file `gate` is there. hangs_at: it makes that file, and
    then nothing comes for a long time; attempts that are in no trouble wait for the file before
    their first row.
    """

    partition: int = 0
    attempts: int = 1
    pause_ms: int = 0
    fails_at: int | None = None
    dies_at: int | None = None
    hangs_at: int | None = None
    gate: str = ""

    def meet(self, row: int) -> int:
        """Return the row, if it comes through."""
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != self.partition:
            return row
        if context.attemptNumber() >= self.attempts:
            if self.hangs_at is not None:
                self._wait_for_gate()
            return row
        time.sleep(self.pause_ms / 1000)
        if self.gate and row in (self.fails_at, self.dies_at):
            self._wait_for_gate()
        if row == self.fails_at:
            raise RuntimeError("trouble")
        if row == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if row == self.hangs_at:
            Path(self.gate).touch()
            time.sleep(HANGS_S)
        return row

    def _wait_for_gate(self) -> None:
        while not Path(self.gate).exists():
            time.sleep(0.05)


def write_range(
    spark: SparkSession,
    *,
    rows: int,
    parts: int,
    options: dict[str, Any],
    trouble: dict[str, Any] | None = None,
) -> dict[str, int]:
    """Write a range of rows, in partitions, with some trouble; return what was counted."""
    register(spark)
    counts = Counts.of(spark)
    frame = _make_trouble(spark.range(0, rows, 1, parts), trouble).selectExpr("id", "string(id) v")
    counted = {} if "atomic" in options else {"counts": counts.name_accumulator()}
    frame.write.format("txn").mode("append").options(**options, **counted).save()
    return asdict(counts.summary())


def write_stream(
    spark: SparkSession,
    *,
    source: str,
    checkpoint: str,
    options: dict[str, Any],
    trouble: dict[str, Any] | None = None,
) -> dict[str, int]:
    """Write the files of a folder, one a micro batch; return what was counted."""
    register(spark)
    counts = Counts.of(spark)
    files = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).csv(source)

    def write_batch(frame: DataFrame, number: int) -> None:
        rows = frame.repartition(2).selectExpr("id", "string(id) v")
        make_batch_writer(options)(rows, number)

    if "atomic" in options:
        writer = files.writeStream.foreachBatch(write_batch)
    else:
        frame = _make_trouble(files, trouble).selectExpr("id", "string(id) v")
        counted = {"counts": counts.name_accumulator()}
        writer = frame.writeStream.format("txn").options(**options, **counted)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start().awaitTermination()
    return asdict(counts.summary())


def add_file(source: Path, name: str, rows: range) -> None:
    """Put rows into the folder that `write_stream` reads, as one file."""
    source.mkdir(exist_ok=True)
    hidden = source / f".{name}"
    hidden.write_text("".join(f"{row}\n" for row in rows))
    hidden.rename(source / f"{name}.csv")


def _make_trouble(frame: DataFrame, trouble: dict[str, Any] | None) -> DataFrame:
    if trouble is None:
        return frame
    given = Trouble(**trouble)
    # Without types, by which Spark would look for another kind of function.
    meet = udf(lambda row: given.meet(row), LongType())  # noqa: PLW0108
    return frame.withColumn("id", meet("id"))


def absent_request(row: int) -> Request:
    """Return the transaction that puts a row which must not be there yet."""
    key = Key(f"{row:05}", "f", "value")
    return Request((Mutation(key, str(row)),), (~Some(key),))


def token(row: int) -> str:
    """Return a row's token."""
    return f"row/{row}"


def list_statuses(
    uri: str, transactions: str = "txn"
) -> tuple[list[Status | None], Counter[Status | None]]:
    """Return the statuses of transactions, and those of parts."""
    store = open_store(uri)
    try:
        found = [row for row in store.scan(transactions.encode()) if is_row_key(row.row)]
    finally:
        store.close()
    rows = [decode_row(row) for row in found]
    wholes = [row.status for row in rows if parent_of(row.row_key) is None]
    return wholes, Counter(row.status for row in rows if parent_of(row.row_key))


def statuses(uri: str) -> Counter[str]:
    """Return how many transaction rows have each status."""
    wholes, parts = list_statuses(uri)
    return Counter(str(status) for status in [*wholes, *parts.elements()])


def patch_request(row: dict[str, object]) -> Request:
    """Return the transaction that puts a row of a data frame over what is there."""
    return Request((Mutation(Key(str(row["id"]), "f", "v"), str(row["v"])),))
