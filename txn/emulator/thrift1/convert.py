"""Between Thrift 1's types and those of the tables: columns, rows, changes, scans, errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import thriftpy2

from txn.emulator.arguments import batch_of, range_of, refuse_negative
from txn.emulator.places import check_table
from txn.emulator.refusals import Internal, Several, format_error, make_internal, reason_of
from txn.emulator.scanners import Scan
from txn.errors import InvalidRequestError, TxnError
from txn.tables.cells import CellVersion
from txn.tables.filters.parsing import parse_filter
from txn.tables.operations import MAX_TIMESTAMP, Put, Range, Remove, Result, Selection
from txn.tables.refusal import Refused

IDL: ModuleType = thriftpy2.load(
    str(Path(__file__).with_name("hbase1.thrift")), module_name="txn_emulator_hbase1_thrift"
)
DECLARING = frozenset(
    {"createTable", "mutateRow", "mutateRowTs", "mutateRows", "mutateRowsTs", "checkAndPut"}
)
"""The methods that answer an illegal argument with the exception that the interface has for it."""

SEVERAL = "org.apache.hadoop.hbase.client.RetriesExhaustedWithDetailsException"
Columns = Sequence[bytes] | None


def explain_error(method: str, error: TxnError) -> Exception:
    """Return what HBase's Thrift 1 gateway raises for an error."""
    if isinstance(error, Several):
        return make_io_error(f"{SEVERAL}: {error}", can_retry=True)
    final = isinstance(error, InvalidRequestError) and reason_of(error) != "retries exhausted"
    if isinstance(error, InvalidRequestError) and reason_of(error) == "illegal argument":
        if method not in DECLARING:
            return make_internal(method, error)
        refused: Exception = IDL.IllegalArgument(message=format_error(error))
        return refused
    return make_io_error(format_error(error), can_retry=not final)


def make_io_error(message: str, *, can_retry: bool) -> Exception:
    """Return an IOError."""
    made: Exception = IDL.IOError(message=message, canRetry=can_retry)
    return made


def column_of(name: bytes | None) -> tuple[bytes, bytes | None]:
    """Return family and qualifier; None for the qualifier where there is no colon."""
    if name is None:
        raise Internal("no column")
    family, colon, qualifier = name.partition(b":")
    return family, qualifier if colon else None


def cell_of(name: bytes | None) -> tuple[bytes, bytes]:
    """Return family and qualifier, of which a change of one cell needs both."""
    family, qualifier = column_of(name)
    if qualifier is None:
        raise Internal("the column has no qualifier", column=name)
    return family, qualifier


def select_columns(columns: Columns, until: int = MAX_TIMESTAMP, versions: int = 1) -> Selection:
    """Return what is read: these columns (none: all), older than the timestamp."""
    if versions < 1:
        raise make_io_error("java.io.IOException: versions must be positive", can_retry=True)
    return Selection(
        columns=tuple(column_of(column) for column in columns or ()),
        versions=versions,
        until=_until(until),
    )


def changes(
    mutations: Iterable[Any], timestamp: int | None, ttl_ms: int | None
) -> tuple[list[Remove], list[Put]]:
    """Return the deletions and the puts among the mutations of a row; families are not put."""
    removes: list[Remove] = []
    puts: list[Put] = []
    for mutation in mutations:
        family, qualifier = column_of(mutation.column)
        if mutation.isDelete:
            removes.append(Remove(family, qualifier, timestamp))
        elif qualifier is not None and not family:
            raise Refused("illegal argument", "a put needs a family", column=mutation.column)
        elif qualifier is not None:
            puts.append(Put(family, qualifier, mutation.value or b"", timestamp, ttl_ms))
    return removes, puts


def is_durable(mutations: Iterable[Any]) -> bool:
    """Whether any of them is to survive a power failure; HBase goes by the last one."""
    return any(mutation.writeToWAL for mutation in mutations)


def scan_of(table: bytes, asked: Any) -> Scan:
    """Return what a TScan asks for."""
    return Scan(
        check_table(table),
        range_of(asked.startRow, asked.stopRow, reverse=bool(asked.reversed)),
        Selection(
            columns=tuple(column_of(column) for column in asked.columns or ()),
            until=MAX_TIMESTAMP if asked.timestamp is None else _until(asked.timestamp),
            filter=None if asked.filterString is None else parse_filter(asked.filterString),
            batch=batch_of(asked.batchSize),
        ),
        in_order=bool(asked.sortColumns),
    )


def range_of_prefix(prefix: bytes) -> Range:
    """Return the range of all rows that begin so."""
    kept = prefix.rstrip(b"\xff")
    return Range(prefix, kept[:-1] + bytes([kept[-1] + 1]) if kept else b"")


def cells(versions: Iterable[CellVersion]) -> list[Any]:
    """Return TCells."""
    return [IDL.TCell(value, timestamp) for _, _, timestamp, value in versions]


def row_results(results: Iterable[Result], *, in_order: bool = False) -> list[Any]:
    """Return TRowResults; rows without cells are left out."""
    return [_row_result(result, in_order) for result in results if result.versions]


def _row_result(result: Result, in_order: bool) -> Any:
    named = [
        (family + b":" + column, IDL.TCell(value, timestamp))
        for family, column, timestamp, value in result.versions
    ]
    if in_order:
        return IDL.TRowResult(result.row, None, [IDL.TColumn(*pair) for pair in named])
    return IDL.TRowResult(result.row, dict(named), None)


def _until(timestamp: int) -> int:
    refuse_negative(timestamp)
    return timestamp
