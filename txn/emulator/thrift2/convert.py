"""Between Thrift 2's types and those of the tables: rows, changes, conditions, scans, errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from thriftpy2.thrift import TApplicationException

from txn.emulator.arguments import batch_of, check_sizes, check_time, range_of, time_of, ttl_of
from txn.emulator.places import check_table
from txn.emulator.refusals import (
    Internal,
    Several,
    format_error,
    format_family_error,
    make_internal,
    reason_of,
)
from txn.emulator.scanners import Scan
from txn.errors import InvalidRequestError, TxnError, annotate
from txn.stores.hbase.idl import IDL
from txn.tables.catalog import check_row
from txn.tables.filters.parsing import parse_filter
from txn.tables.operations import (
    MAX_TIMESTAMP,
    Add,
    Append,
    Operation,
    Operator,
    Put,
    Remove,
    Result,
    Selection,
)
from txn.tables.refusal import Refused

OF_SEVERAL = frozenset({"mutateRow", "checkAndMutate"})
"""The methods that HBase carries out as a request about many rows."""

OF_FAMILIES = frozenset({"addColumnFamily", "modifyColumnFamily", "deleteColumnFamily"})
_ColumnValue = IDL.TColumnValue
PUT_TYPE = 4
OPERATORS: dict[int, Operator] = {0: "<", 1: "<=", 2: "=", 3: "!=", 4: ">=", 5: ">", 6: "no-op"}
NOT_DURABLE = (IDL.TDurability.SKIP_WAL, IDL.TDurability.ASYNC_WAL)


def explain_error(method: str, error: TxnError) -> Exception:
    """Return what HBase's Thrift 2 gateway raises for an error."""
    if isinstance(error, Refused) and (
        error.reason == "retries exhausted"
        or (method in OF_SEVERAL and error.reason != "illegal argument")
    ):
        error = Several(error)
    if isinstance(error, Several):
        return make_io_error(str(error), can_retry=True)
    if not isinstance(error, InvalidRequestError):
        return make_io_error(format_error(error), can_retry=True)
    if reason_of(error) == "illegal argument":
        return make_internal(method, error)
    if method in OF_FAMILIES:
        return make_io_error(format_family_error(error), can_retry=False)
    return make_io_error(format_error(error), can_retry=False)


def make_io_error(message: str, *, can_retry: bool) -> Exception:
    """Return a TIOError."""
    made: Exception = IDL.TIOError(message=message, canRetry=can_retry)
    return made


def selection_of(get: Any) -> Selection:
    """Return what a TGet asks for of its row."""
    if get.maxVersions is not None and get.maxVersions < 1:
        raise make_io_error("versions must be positive", can_retry=True)
    _refuse_bytes(get)
    since, until = _times(get)
    limit = get.storeLimit
    return Selection(
        columns=columns_of(get.columns),
        versions=1 if get.maxVersions is None else get.maxVersions,
        since=since,
        until=until,
        filter=None if get.filterString is None else parse_filter(get.filterString),
        # HBase looks at the limit only after the first cell.
        store_limit=None if limit is None or limit < 0 else max(limit, 1),
        store_offset=get.storeOffset or 0,
    )


def scan_of(table: bytes, asked: Any) -> Scan:
    """Return what a TScan asks for."""
    _refuse_bytes(asked)
    since, until = _range(asked.timeRange)
    versions = 1 if asked.maxVersions is None else asked.maxVersions
    return Scan(
        check_table(table),
        range_of(asked.startRow, asked.stopRow, reverse=bool(asked.reversed)),
        Selection(
            columns=columns_of(asked.columns),
            versions=max(versions, 1),
            since=since,
            until=until,
            family_times=tuple(
                (family, *_range(times))
                for family, times in (asked.colFamTimeRangeMap or {}).items()
            ),
            filter=None if asked.filterString is None else parse_filter(asked.filterString),
            batch=batch_of(asked.batchSize),
        ),
        limit=_limit(asked.limit, versions),
    )


def columns_of(columns: Iterable[Any] | None) -> tuple[tuple[bytes, bytes | None], ...]:
    """Return columns; one without a qualifier is a whole family."""
    return tuple((column.family, column.qualifier) for column in columns or ())


def check_puts(put: Any) -> list[Put]:
    """Return the operations of a TPut, where HBase's client looks at their sizes."""
    puts = puts_of(put)
    check_sizes(put.row, puts)
    return puts


def puts_of(put: Any) -> list[Put]:
    """Return the operations of a TPut."""
    if not put.columnValues or not all(cell.family for cell in put.columnValues):
        raise Internal("no columns to insert, or no family")
    ttl_ms, at = ttl_of(put.attributes), _first_time(put.timestamp)
    times = [at if cell.timestamp is None else time_of(cell.timestamp) for cell in put.columnValues]
    return [
        Put(cell.family, cell.qualifier, cell.value, time, ttl_ms)
        for cell, time in zip(put.columnValues, times, strict=True)
    ]


def removes_of(delete: Any) -> list[Operation]:
    """Return the operations of a TDelete; an empty list of columns means the row, as in HBase."""
    if not delete.columns:
        whole = delete.timestamp if delete.columns is None else None
        return [Remove(timestamp=_first_time(whole))]
    kind = delete.deleteType
    if kind not in IDL.TDeleteType._VALUES_TO_NAMES:
        raise Internal("a delete of columns needs its type", type=kind)
    columns = delete.columns
    if kind == IDL.TDeleteType.DELETE_FAMILY:  # HBase forgets what it was told of a family before
        columns = {column.family: column for column in columns}.values()
    return [_remove(column, kind) for column in columns]


def mutations_of(row: bytes, mutations: Iterable[Any]) -> list[Operation]:
    """Return the operations of TMutations, which are all of one row."""
    check_row(row)
    found: list[Operation] = []
    for mutation in mutations:
        part = mutation.put or mutation.deleteSingle
        if part is None:
            raise TApplicationException(TApplicationException.PROTOCOL_ERROR, "Unrecognized type 0")
        check_row(part.row)
        if part.row != row:
            text = "The row in the recently added Mutation doesn't match the original one"
            raise make_io_error(annotate(text, row=part.row, original=row), can_retry=True)
        found += puts_of(part) if mutation.put else removes_of(part)
    if not found:
        raise Internal("no mutations")
    return found


def check_same_row(row: bytes, change: Any) -> None:
    """Refuse a change of another row than the one that is checked."""
    if change.row != row:
        text = "the row of the action doesn't match the original one"
        raise Refused("do not retry", text, row=change.row, original=row)


def adds_of(increment: Any) -> list[Operation]:
    """Return the operations of a TIncrement."""
    if not increment.columns:
        raise Internal("no columns to increment")
    ttl_ms = ttl_of(increment.attributes)
    return [
        Add(column.family, column.qualifier, 1 if column.amount is None else column.amount, ttl_ms)
        for column in increment.columns
    ]


def appends_of(append: Any) -> list[Operation]:
    """Return the operations of a TAppend; their timestamps mean nothing."""
    if not append.columns or not all(cell.family for cell in append.columns):
        raise Internal("no columns to append to, or no family")
    ttl_ms = ttl_of(append.attributes)
    return [Append(cell.family, cell.qualifier, cell.value, ttl_ms) for cell in append.columns]


def operator_of(number: int) -> Operator:
    """Return how a condition compares."""
    operator = OPERATORS.get(number)
    if operator is None:
        text = f"Required field 'compareOp' was not present! Struct: checkAndMutate {number}"
        raise TApplicationException(TApplicationException.PROTOCOL_ERROR, text)
    return operator


def is_durable(change: Any) -> bool:
    """Whether the change is to survive a power failure."""
    return change.durability not in NOT_DURABLE


def result(found: Result) -> Any:
    """Return a TResult; nothing there has no row."""
    row, versions, partial = found
    values = [
        _ColumnValue(family, column, value, timestamp, None, PUT_TYPE)
        for family, column, timestamp, value in versions
    ]
    return IDL.TResult(row if values else None, values, False, partial)


def results(found: Sequence[Result]) -> list[Any]:
    """Return TResults."""
    return [result(one) for one in found]


def _remove(column: Any, kind: int) -> Remove:
    types = IDL.TDeleteType
    timestamp = _first_time(column.timestamp)
    if kind == types.DELETE_FAMILY_VERSION:
        if column.timestamp is None:
            raise Internal("a delete of a version of a family needs its timestamp")
        return Remove(column.family, None, timestamp, exact=True)
    if kind == types.DELETE_FAMILY:
        return Remove(column.family, None, timestamp)
    qualifier = column.qualifier or b""
    return Remove(column.family, qualifier, timestamp, exact=kind == types.DELETE_COLUMN)


def _first_time(*timestamps: int | None) -> int | None:
    """Return the first timestamp that is given; None, like HBase's greatest, is "now"."""
    for timestamp in timestamps:
        if timestamp is not None:
            return check_time(timestamp)
    return None


def _times(get: Any) -> tuple[int, int]:
    """Return the timestamps that a TGet reads; a single one goes before a range."""
    if get.timestamp is None:
        return _range(get.timeRange)
    if not 0 <= get.timestamp < MAX_TIMESTAMP:
        raise Refused("illegal argument", "not a timestamp to read", timestamp=get.timestamp)
    return get.timestamp, get.timestamp + 1


def _range(times: Any) -> tuple[int, int]:
    if times is None:
        return 0, MAX_TIMESTAMP
    since, until = times.minStamp, times.maxStamp
    if since < 0 or until < since:
        raise Refused("illegal argument", "not a range of timestamps", since=since, until=until)
    return since, until


def _limit(limit: int | None, versions: int) -> int | None:
    """Return how many rows a scan may find; HBase takes what is not positive for all of them."""
    if versions < 1:
        return 0
    return limit if limit is not None and limit > 0 else None


def _refuse_bytes(asked: Any) -> None:
    if asked.filterBytes is not None:
        raise make_io_error(
            "java.io.IOException: filters of HBase's Java client are not supported: send the "
            "filter language (filterString)",
            can_retry=True,
        )
