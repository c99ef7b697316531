"""The change feed in Spark's streams: each transaction once over restarts."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import BinaryType, DataType, LongType, StructType

from txn import Delete, Engine, Key, Mutation, connect
from txn.errors import InvalidRequestError
from txn.protocol.statuses import ProtocolName
from txn.reading.feed import ChangesLostError
from txn.spark import register
from txn.spark.changes import CHANGES, ChangeReader
from txn.spark.definitions import check_columns
from txn.spark.options import SourceOptions

PATIENCE_S = 60
LABELS = {"job": "test"}  # which give fenced transactions of one row a row in any case


class Stream:
    """A query over a feed, started again on one checkpoint. batches: what each was told."""

    def __init__(self, spark: SparkSession, uri: str, folder: Path, **options: Any) -> None:
        register(spark)
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[list[Row]]] = {}
        given: dict[str, Any] = {
            "uri": uri,
            "delay_ms": 0,
            "view": "changes",
            "startingOffsets": "earliest",
        }
        self._reader = spark.readStream.format("txn").options(**{**given, **options})

    def run(self) -> None:
        """Let it tell all that is decided now, and end."""
        query = self._start(availableNow=True)
        assert query.awaitTermination(PATIENCE_S)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let it run meanwhile."""
        query = self._start(processingTime="50 milliseconds")
        try:
            yield
        finally:
            query.stop()

    def rows(self) -> list[Row]:
        """Return all that was told, as a consumer has it that takes each batch once."""
        return [row for _, told in sorted(self.batches.items()) for row in told[-1]]

    def transactions(self) -> Counter[str]:
        return Counter(row.transaction for row in self.rows())

    def forget_last_commit(self) -> int:
        """Make Spark believe that the last batch did not end; return its number."""
        last = max(self.batches)
        (self.checkpoint / "commits" / f"{last}").unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink()
        return last

    def _start(self, **trigger: Any) -> Any:
        def take(frame: DataFrame, number: int) -> None:
            told = frame.collect()
            self.batches.setdefault(number, []).append(told)

        writer = self._reader.load().writeStream.foreachBatch(take).trigger(**trigger)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()


@contextmanager
def engine_on(uri: str, **options: Any) -> Iterator[Engine]:
    with connect(uri, table="rows", **options) as engine:
        engine.ensure_table("rows", ["f"])
        engine.ensure_table("other", ["f"])
        yield engine
        engine.context.clock.sleep_ms(5)


def commit(engine: Engine, row: object, value: str, table: str = "rows") -> str:
    """Commit one change, and let a moment pass, so that its time is over."""
    done = engine.commit([Mutation(Key(str(row), "f", "v", table), value)], labels=LABELS)
    engine.context.clock.sleep_ms(3)
    return done.transaction.decode()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/store?sync=off"


@pytest.mark.parametrize(("protocol", "salt_buckets"), [("six-phase", 4), ("fenced", 1)])
def test_each_transaction_is_told_once(
    spark: SparkSession, uri: str, tmp_path: Path, protocol: ProtocolName, salt_buckets: int
) -> None:
    """Over restarts, batch by batch; and a batch whose end Spark forgot is told again as it was."""
    stream = Stream(spark, uri, tmp_path, maxTransactionsPerTrigger=4)
    with engine_on(uri, protocol=protocol, salt_buckets=salt_buckets) as engine:
        done = [commit(engine, i % 3, f"first {i}") for i in range(6)]
        stream.run()
        assert stream.transactions() == Counter(done)
        assert max(len(told[-1]) for told in stream.batches.values()) <= 4
        last = stream.forget_last_commit()
        done += [commit(engine, "more", f"second {i}") for i in range(5)]
        stream.run()
        first, again = stream.batches[last]
        assert again == first != []
        assert stream.transactions() == Counter(done)


def test_a_running_query_tells_what_happens(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    stream = Stream(spark, uri, tmp_path, startingOffsets="latest", tables="rows")
    with engine_on(uri) as engine:
        commit(engine, "a", "before")
        engine.context.clock.sleep_ms(20)
        with stream.running():
            wait_for(engine, lambda: stream.batches)
            began_ms = engine.context.clock.wall_ms()
            put = commit(engine, "a", "1")
            ended_ms = engine.context.clock.wall_ms()
            commit(engine, "b", "1", table="other")
            key = Key("a", "f", "v")
            deleted = engine.commit([Delete(key)]).transaction.decode()
            wait_for(engine, lambda: len(stream.rows()) >= 2)
    one, two = stream.rows()
    assert (one.table, one.row, one.family, one.column) == ("rows", b"a", "f", b"v")
    assert (one.kind, one.value, one.transaction, one.labels) == ("put", b"1", put, LABELS)
    assert (two.kind, two.value, two.transaction, two.labels) == ("delete", None, deleted, {})
    assert two.old_version == one.timestamp > one.old_version > 0
    assert began_ms <= round(one.committed_at.timestamp() * 1_000) <= ended_ms


def wait_for(engine: Engine, is_so: Any) -> None:
    clock = engine.context.clock
    due_ms = clock.monotonic_ms() + 1_000 * PATIENCE_S
    while not is_so():
        assert clock.monotonic_ms() < due_ms
        clock.sleep_ms(20)


def test_a_first_batch_begins_where_it_began(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    """At a later `latest`, what was committed meanwhile would be skipped."""
    stream = Stream(spark, uri, tmp_path, startingOffsets="latest")
    with engine_on(uri) as engine:
        commit(engine, "a", "before")
        stream.run()
        stream.forget_last_commit()
        done = [commit(engine, "a", f"{i}") for i in range(3)]
        stream.run()
    assert list(stream.transactions()) == done


def given(**options: str) -> SourceOptions:
    return SourceOptions({"uri": "memory://", **options})


def test_a_wrong_option_is_told_by_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """Spark replaces an error in making a reader by an UnboundLocalError."""
    stream = Stream(spark, f"embedded://{tmp_path}/store", tmp_path, startingOffsets="yesterday")
    with pytest.raises(StreamingQueryException, match="option='startingOffsets'"):
        stream.run()


@pytest.mark.parametrize("field", [("transaction", BinaryType()), ("balance", LongType())])
def test_a_schema_of_something_else_is_refused(field: tuple[str, DataType]) -> None:
    with pytest.raises(InvalidRequestError, match="no such column"):
        check_columns(StructType().add(*field), CHANGES)


def test_columns_can_be_left_out(uri: str) -> None:
    with engine_on(uri) as engine:
        done = commit(engine, "a", "1")
        schema = StructType([CHANGES["transaction"], CHANGES["row"]])
        assert read_by_hand(given(uri=uri, delay_ms="0", startingOffsets="earliest"), schema) == [
            (done, b"a")
        ]


def test_an_offset_that_is_too_old_is_an_error(uri: str) -> None:
    schema = StructType([CHANGES["transaction"]])
    with engine_on(uri) as engine:
        done = commit(engine, "a", "1")
        with pytest.raises(ChangesLostError, match="older than transaction rows are kept for"):
            read_by_hand(given(uri=uri, startingOffsets="1"), schema)
        lenient = given(uri=uri, startingOffsets="1", delay_ms="0", fail_on_data_loss="false")
        assert read_by_hand(lenient, schema) == [(done,)]


def read_by_hand(options: SourceOptions, schema: StructType) -> list[tuple[Any, ...]]:
    """Do what Spark does with a reader for the first two batches."""
    reader = ChangeReader(options, schema)
    try:
        limit = reader.getDefaultReadLimit()
        start = reader.latestOffset(reader.initialOffset(), limit)
        end = reader.latestOffset(start, limit)
        assert reader.partitions(reader.initialOffset(), start) == []
        copy = pickle.loads(pickle.dumps(ChangeReader(options, schema)))
        return [row for part in reader.partitions(start, end) for row in copy.read(part)]
    finally:
        reader.stop()
