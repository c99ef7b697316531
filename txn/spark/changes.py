"""`spark.readStream.format("txn")`: the change feed of `txn.reading.feed` as a streaming source.

One Python process plans the offsets for as long as the query runs. Each micro batch is split into
tasks in the order of decisions; the tasks read the changes. A new query begins with an empty batch,
which records the start offset, so that a restart does not move it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from txn.client.engine import Engine
from txn.errors import InvalidRequestError
from txn.reading import feed
from txn.spark.definitions import check_columns, parse_schema
from txn.spark.options import SourceOptions, is_number
from txn.spark.partitions import open_worker

OPTIONS = (
    *("startingOffsets", "maxTransactionsPerTrigger", "failOnDataLoss", "tables", "rowless"),
    *("delayMs", "latenessMs", "retentionMs", "numPartitions"),
)
MOST = 100_000
FEWEST_IN_TASK = 500
SHORTEST_REST_MS = 100
IDLE_SHARE = 5
"""An idle query spends at most one part in this many of its time on scans."""
CHANGES = parse_schema(
    "table string, row binary, family string, column binary, kind string, value binary, "
    "old_version long, timestamp long, committed_at timestamp, transaction string, "
    "labels map<string,string>"
)
"""The columns of a change. `timestamp` is the commit timestamp: the new version of the key, which
orders the changes of a key. `committed_at` is the server's time of the decision."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plan micro batches, with an engine and the last scan as state, and read them in tasks."""

    known = CHANGES

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check(OPTIONS)
        check_columns(schema, CHANGES)
        self._columns = schema.names
        self._access = options.access()
        self._start = (options.text("startingOffsets") or "latest").lower()
        if self._start not in ("latest", "earliest") and not is_number(self._start):
            raise InvalidRequestError(
                "an option has an unknown value",
                option="startingOffsets",
                value=self._start,
                choices=["latest", "earliest", "a time in ms"],
            )
        self._delay_ms = options.whole("delayMs", None, 0)
        self._lateness_ms = options.whole("latenessMs", feed.LATENESS_MS)
        self._retention_ms = options.whole("retentionMs", feed.RETENTION_MS)
        self._is_strict = options.flag("failOnDataLoss", True)
        self._max_transactions = options.whole("maxTransactionsPerTrigger", MOST)
        self._tables = {name.encode() for name in options.names("tables")} or None
        self._skips_rowless = options.choice("rowless", ("refuse", "skip"), "refuse") == "skip"
        self._partitions = options.whole("numPartitions", 8)
        self._engine: Engine | None = None
        self._feed: feed.ChangeFeed | None = None
        self._target_ms: int | None = None
        self._rests_until_ms = 0

    # ----------------------------------------------------------------------------- in planning

    def initialOffset(self) -> dict[str, Any]:
        """Return a placeholder, which the first (empty) batch replaces by an offset."""
        return {"start": self._start}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxTransactionsPerTrigger` as rows: Spark cannot limit transactions."""
        return ReadMaxRows(self._max_transactions)

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the present time as the end of a query that stops by itself."""
        self._target_ms = self._open().now_ms()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or `start` itself if nothing is new."""
        changes = self._open()
        if "start" in start:
            place = start["start"]
            if place == "earliest":
                return changes.find_earliest().encode()
            return feed.Offset(changes.now_ms() if place == "latest" else int(place)).encode()
        clock = changes.context.clock
        began_ms = clock.monotonic_ms()
        if self._target_ms is None and began_ms < self._rests_until_ms:
            return start
        most = None if isinstance(limit, ReadAllAvailable) else self._max_transactions
        since = feed.decode_offset(start)
        end = changes.find_end(since, most=most, by_ms=self._target_ms)
        if end is not since:
            return end.encode()
        ended_ms = clock.monotonic_ms()
        rest_ms = max((IDLE_SHARE - 1) * (ended_ms - began_ms), SHORTEST_REST_MS)
        self._rests_until_ms = ended_ms + rest_ms
        return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end or "start" in start:
            return []
        part = self._open().list_part(feed.decode_offset(start), feed.decode_offset(end))
        size = max(-(-len(part) // self._partitions), FEWEST_IN_TASK)
        return [InputPartition(list(some)) for some in feed.split_part(part, size)]

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = self._feed = None

    def _open(self) -> feed.ChangeFeed:
        if self._feed is None:
            self._engine = self._access.open_engine()
            context = self._engine.context
            feed.refuse_rowless(context, self._skips_rowless)
            given_ms = self._delay_ms
            delay_ms = feed.Bounds.of_store(context).delay_ms if given_ms is None else given_ms
            bounds = feed.Bounds(delay_ms, self._lateness_ms, self._retention_ms)
            self._feed = feed.ChangeFeed(context, bounds, is_strict=self._is_strict)
        return self._feed

    # -------------------------------------------------------------------------------- in tasks

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        context = open_worker(self._access).engine.context
        changes = feed.read_changes(
            context, partition.value, tables=self._tables, is_strict=self._is_strict
        )
        for change in changes:
            row = {
                "table": (change.key.table or b"").decode(errors="replace"),
                "row": change.key.row,
                "family": change.key.family.decode(errors="replace"),
                "column": change.key.column,
                "kind": "delete" if change.value is None else "put",
                "value": change.value,
                "old_version": change.replaced or None,
                "timestamp": change.timestamp,
                "committed_at": _EPOCH + timedelta(milliseconds=change.decided_ms),
                "transaction": change.transaction.decode(),
                "labels": dict(change.labels),
            }
            yield tuple(row[name] for name in self._columns)
