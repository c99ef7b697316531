"""`option("view", "transactions")` and `"locks"`: unfinished transactions and held locks.

Both only read. Times are the server's, except `created`, which is by the owner's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from txn.model import LOCK_SUFFIX, Key, Row
from txn.protocol.context import Context, call_store
from txn.protocol.locks import holder_of
from txn.protocol.ranges import key_of_cell, stored_rows
from txn.protocol.row import (
    FREE,
    TransactionRow,
    created_ms,
    decode_row,
    follow,
    is_row_key,
    parent_of,
    read_rows,
)
from txn.request import TRANSACTIONS, Request
from txn.spans import Span
from txn.spark.codecs import arrow_schema
from txn.spark.definitions import check_columns, parse_schema
from txn.spark.options import SourceOptions
from txn.spark.partitions import divide_batches, open_worker
from txn.spark.ranges import BOUNDS, PARTITIONS, RangeReader
from txn.text import escape, key_text

BATCH_ROWS = 1_000
BATCH_BYTES = 16_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


TRANSACTIONS_SCHEMA = parse_schema(
    "transaction string, parent string, status string, state string, created timestamp, "
    "since timestamp, age_ms long, statuses map<string,timestamp>, commit_timestamp long, "
    "tables array<string>, keys int, mutations int, assertions int, once string, "
    "labels map<string,string>, lock_ttl_ms long, heartbeat timestamp, reason string, "
    "corrupt string, bytes long"
)
LOCKS_SCHEMA = parse_schema(
    "table string, row string, family string, column string, key string, holder string, "
    "status string, state string, created timestamp, since timestamp, age_ms long"
)


class ViewReader(RangeReader):
    """Read ranges of rows of some tables as records. known: all columns of the view."""

    known: ClassVar[StructType]
    options: ClassVar[tuple[str, ...]] = (*BOUNDS, PARTITIONS)

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check(self.options)
        check_columns(schema, self.known)
        super().__init__(options, self.list_tables(options))
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        table, ranges = partition.value
        context, schema = open_worker(self.access).engine.context, arrow_schema(self._schema)
        rows = (
            row for start, stop in ranges for row in stored_rows(context, Span(table, start, stop))
        )
        for some in divide_batches(rows, _weigh, size=BATCH_ROWS, max_bytes=BATCH_BYTES):
            if records := self.describe_rows(context, some):
                yield pa.RecordBatch.from_pylist(records, schema=schema)

    def list_tables(self, options: SourceOptions) -> list[bytes]:
        raise NotImplementedError

    def describe_rows(self, context: Context, rows: Sequence[Row]) -> list[dict[str, Any]]:
        raise NotImplementedError


class TransactionsReader(ViewReader):
    """A record for each parent or child record in the transaction table."""

    known = TRANSACTIONS_SCHEMA

    def list_tables(self, options: SourceOptions) -> list[bytes]:
        return [(options.text("transactions") or TRANSACTIONS).encode()]

    def describe_rows(self, context: Context, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Describe each row. A child that lags behind its parent has the parent's state."""
        now_ms = context.clock.wall_ms()
        found = [(row, decode_row(row)) for row in rows if is_row_key(row.row)]
        wholes = {whole for _, each in found if each.follows and (whole := parent_of(each.row_key))}
        known = read_rows(context, wholes) if wholes else {}
        return [_describe_transaction(context, row, each, known, now_ms) for row, each in found]


class LocksReader(ViewReader):
    """A record for each lock held in some tables, read whole, at the time it was read."""

    known = LOCKS_SCHEMA
    options = (*ViewReader.options, "table")

    def list_tables(self, options: SourceOptions) -> list[bytes]:
        options.require("table")
        return [name.encode() for name in options.names("table")]

    def describe_rows(self, context: Context, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Return each held lock with its holder, whose row is read right after the lock."""
        held = {
            key: holder
            for row in rows
            for key, cell in row.cells.items()
            if key.column.endswith(LOCK_SUFFIX) and (holder := holder_of(key, cell)) != FREE
        }
        if not held:
            return []
        holders = read_rows(context, set(held.values()))
        # A lock whose holder has ended may have been released since the scan.
        doubtful = [key for key, holder in held.items() if holders[holder].is_over]
        again = call_store(context, lambda: context.store.read(doubtful)) if doubtful else {}
        for key in doubtful:
            if holder_of(key, again[key]) != held[key]:
                del held[key]
        now_ms = context.clock.wall_ms()
        return [_describe_lock(key, holders[holder], now_ms) for key, holder in held.items()]


def _weigh(row: Row) -> int:
    return sum(len(cell.value) for cell in row.cells.values())


def _describe_transaction(
    context: Context,
    stored: Row,
    row: TransactionRow,
    wholes: Mapping[bytes, TransactionRow],
    now_ms: int,
) -> dict[str, Any]:
    whole = parent_of(row.row_key)
    if whole is not None and whole in wholes:
        row = follow(row, wholes[whole])
    request = row.buffer.request if row.buffer else None
    return {
        "transaction": escape(row.row_key),
        "parent": None if whole is None else escape(whole),
        "created": _time(created_ms(row.row_key)),
        **_describe_status(row, now_ms),
        "statuses": {str(status): _time(at) for status, at in row.began.items()},
        "commit_timestamp": row.plan.timestamp if row.plan else None,
        **(_describe_request(context, request) if request else {}),
        "lock_ttl_ms": row.buffer.lock_ttl_ms if row.buffer else None,
        "heartbeat": _time(row.heartbeat),
        "reason": row.reason,
        "corrupt": row.cause,
        "bytes": _weigh(stored),
    }


def _describe_request(context: Context, request: Request) -> dict[str, Any]:
    tables = {key.table for key in request.keys if key.table} - {context.table}
    return {
        "tables": sorted(map(escape, tables)),
        "keys": len(request.keys),
        "mutations": len(request.mutations),
        "assertions": len(request.assertions),
        "once": None if request.once is None else escape(request.once),
        "labels": dict(request.labels),
    }


def _describe_lock(lock: Key, holder: TransactionRow, now_ms: int) -> dict[str, Any]:
    key = key_of_cell(lock)
    is_named = is_row_key(holder.row_key)
    return {
        "table": escape(key.table or b""),
        "row": escape(key.row),
        "family": escape(key.family),
        "column": escape(key.column) if key.column else None,
        "key": key_text(key),
        "holder": escape(holder.row_key),
        "created": _time(created_ms(holder.row_key)) if is_named else None,
        **_describe_status(holder, now_ms),
    }


def _describe_status(row: TransactionRow, now_ms: int) -> dict[str, Any]:
    return {
        "status": None if row.status is None else str(row.status),
        "state": row.state.value,
        "since": _time(row.since),
        "age_ms": max(0, now_ms - row.since) if row.since else None,
    }


def _time(ms: int) -> datetime | None:
    return _EPOCH + timedelta(milliseconds=ms) if 0 < ms <= _LATEST_MS else None
