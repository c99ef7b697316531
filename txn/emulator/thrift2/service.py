"""HBase's Thrift 2 service: rows and scanners, with the interface's argument names. Its tables are
in the module beside this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from thriftpy2.thrift import TApplicationException

from txn.clock import Clock
from txn.emulator import gateway
from txn.emulator.scanners import Scan, ScannerLimits, Scanners
from txn.emulator.thrift2.tables import Tables2
from txn.errors import InvalidRequestError, TxnError, annotate
from txn.stores.hbase.idl import IDL
from txn.tables import operations as ops
from txn.tables.admin import Admin
from txn.tables.catalog import check_row
from txn.tables.filters.parsing import parse_filter
from txn.tables.kv.ordered import OrderedStore

SERVICE: Any = IDL.THBaseService
OF_MANY_ROWS = frozenset({"mutateRow", "checkAndMutate"})  # as HBase executes them
OF_FAMILIES = frozenset({"addColumnFamily", "modifyColumnFamily", "deleteColumnFamily"})
OF_FAMILY = ("do not retry", "no such column family")
OPERATORS: dict[int, ops.Operator] = {0: "<", 1: "<=", 2: "=", 3: "!=", 4: ">=", 5: ">", 6: "no-op"}
NOT_DURABLE = (IDL.TDurability.SKIP_WAL, IDL.TDurability.ASYNC_WAL)

_ColumnValue = IDL.TColumnValue
_PUT_TYPE = 4


def handler(store: OrderedStore, clock: Clock, limits: ScannerLimits | None = None) -> object:
    rows = gateway.PacedRows(store, clock)
    data = Data2(rows, Scanners(rows, clock, limits or ScannerLimits()))
    return gateway.join_services(SERVICE, explain_error, data, Tables2(Admin(store, clock)))


def explain_error(method: str, error: TxnError) -> Exception:
    if isinstance(error, ops.Refused) and (
        error.reason == "retries exhausted"
        or (method in OF_MANY_ROWS and error.reason != "illegal argument")
    ):
        error = gateway.PartialFailure(error)
    reason, is_partial = gateway.reason_of(error), isinstance(error, gateway.PartialFailure)
    can_retry = is_partial or not isinstance(error, InvalidRequestError)
    if reason == "illegal argument" and not can_retry:
        return gateway.make_internal(method, error)
    text = str(error) if is_partial else gateway.format_error(error)
    if method in OF_FAMILIES and reason in OF_FAMILY:
        text = f"{gateway.HBASE}.InvalidFamilyOperationException: {error}"
    explained: Exception = IDL.TIOError(message=text, canRetry=can_retry)
    return explained


class Data2:
    def __init__(self, rows: gateway.PacedRows, scanners: Scanners) -> None:
        self._rows = rows
        self._scanners = scanners

    def exists(self, table: bytes, tget: Any) -> bool:
        return bool(self._read(table, [tget])[0].versions)

    def existsAll(self, table: bytes, tgets: Sequence[Any]) -> list[bool]:
        return [bool(found.versions) for found in self._read(table, tgets)]

    def get(self, table: bytes, tget: Any) -> Any:
        return self.getMultiple(table, [tget])[0]

    def getMultiple(self, table: bytes, tgets: Sequence[Any]) -> list[Any]:
        found = [*map(_pack_result, self._read(table, tgets))]
        if any(get.existence_only for get in tgets):
            raise gateway.InternalError("what exists alone has no cells to show")
        return found

    def _read(self, table: bytes, gets: Sequence[Any]) -> list[ops.Result]:
        groups: dict[ops.Selection, list[int]] = {}
        for position, get in enumerate(gets):
            groups.setdefault(_selection_of(get), []).append(position)
        found: dict[int, ops.Result] = {}
        for selection, positions in groups.items():
            rows = [gets[position].row for position in positions]
            with gateway.refuse_as_many(len(gets)):
                results = self._rows.get(table, rows, selection)
            found.update(zip(positions, results, strict=True))
        return [found[position] for position in range(len(gets))]

    def put(self, table: bytes, tput: Any) -> None:
        self._change(table, tput, _check_puts(tput))

    def putMultiple(self, table: bytes, tputs: Sequence[Any]) -> None:
        self._change_all(table, tputs, _check_puts)

    def deleteSingle(self, table: bytes, tdelete: Any) -> None:
        self._change(table, tdelete, _removes_of(tdelete))

    def deleteMultiple(self, table: bytes, tdeletes: Sequence[Any]) -> list[Any]:
        self._change_all(table, tdeletes, _removes_of)
        return []

    def mutateRow(self, table: bytes, trowMutations: Any) -> None:
        operations, durable = _operations_of(trowMutations)
        self._rows.mutate(table, [(trowMutations.row, operations)], durable=durable)

    def increment(self, table: bytes, tincrement: Any) -> Any:
        if not tincrement.columns:
            raise gateway.InternalError("no columns to increment")
        ttl_ms = gateway.ttl_of(tincrement.attributes)
        adds = [
            ops.Add(each.family, each.qualifier, 1 if each.amount is None else each.amount, ttl_ms)
            for each in tincrement.columns
        ]
        return self._compute(table, tincrement, adds)

    def append(self, table: bytes, tappend: Any) -> Any:
        """Append to cells; the given timestamps are ignored."""
        cells = tappend.columns
        if not cells or not all(cell.family for cell in cells):
            raise gateway.InternalError("no columns to append to, or no family")
        ttl_ms = gateway.ttl_of(tappend.attributes)
        appends = [ops.Append(cell.family, cell.qualifier, cell.value, ttl_ms) for cell in cells]
        return self._compute(table, tappend, appends)

    def _change(self, table: bytes, change: Any, operations: ops.Operations) -> ops.Result:
        durable = is_durable(change)
        return self._rows.mutate(table, [(change.row, operations)], durable=durable)[0]

    def _compute(self, table: bytes, change: Any, operations: ops.Operations) -> Any:
        found = self._change(table, change, operations)
        return _pack_result(found if change.returnResults is not False else ops.Result(b""))

    def _change_all(
        self, table: bytes, changes: Sequence[Any], operations: Callable[[Any], ops.Operations]
    ) -> None:
        if changes:
            rows = [(change.row, operations(change)) for change in changes]
            self._rows.mutate_all(table, rows, durable=any(map(is_durable, changes)))

    def checkAndPut(self, *, tput: Any, **given: Any) -> bool:
        return self._check_and_mutate(tput, _check_puts(tput), **given)

    def checkAndDelete(self, *, tdelete: Any, **given: Any) -> bool:
        return self._check_and_mutate(tdelete, _removes_of(tdelete), **given)

    def _check_and_mutate(
        self,
        change: Any,
        operations: ops.Operations,
        *,
        table: bytes,
        row: bytes,
        family: bytes,
        qualifier: bytes,
        value: bytes | None,
    ) -> bool:
        check_row(change.row)
        _check_same_row(row, change)
        condition, durable = ops.Condition(family, qualifier, "=", value), is_durable(change)
        try:
            return self._rows.check_and_mutate(table, row, condition, operations, durable=durable)
        except ops.Refused as refused:  # HBase's clients do not retry checked changes
            if refused.reason != "retries exhausted":
                raise
            raise ops.Refused("do not retry", str(refused)) from refused

    def checkAndMutate(
        self,
        *,
        table: bytes,
        row: bytes,
        family: bytes,
        qualifier: bytes,
        compareOperator: int,
        value: bytes | None,
        rowMutations: Any,
    ) -> bool:
        operator = OPERATORS.get(compareOperator)
        if operator is None:
            text = "Required field 'compareOp' was not present! Struct: checkAndMutate"
            kind = TApplicationException.PROTOCOL_ERROR
            raise TApplicationException(kind, f"{text} {compareOperator}")
        if value is None:
            raise gateway.InternalError("a comparison needs a value")
        operations, durable = _operations_of(rowMutations)
        _check_same_row(row, rowMutations)
        condition = ops.Condition(family, qualifier, operator, value)
        return self._rows.check_and_mutate(table, row, condition, operations, durable=durable)

    def openScanner(self, table: bytes, tscan: Any) -> int:
        return self._scanners.open(scan_of(table, tscan))

    def getScannerRows(self, scannerId: int, numRows: int) -> list[Any]:
        found = self._scanners.next(scannerId, numRows, lambda _, rows: [*map(_pack_result, rows)])
        if found is None:
            raise IDL.TIllegalArgument(message="Invalid scanner Id")
        return found

    def closeScanner(self, scannerId: int) -> None:
        """Close a scanner. As in HBase 2, an unknown one may have expired and is no error."""
        self._scanners.close(scannerId)

    def getScannerResults(self, table: bytes, tscan: Any, numRows: int) -> list[Any]:
        return [*map(_pack_result, self._scanners.first(scan_of(table, tscan), numRows))]


def _selection_of(get: Any) -> ops.Selection:
    """Return the selection of a TGet; a single timestamp overrides a time range."""
    if get.maxVersions is not None and get.maxVersions < 1:
        raise IDL.TIOError(message="versions must be positive", canRetry=True)
    _refuse_bytes(get)
    if get.timestamp is None:
        since, until = _time_range(get.timeRange)
    elif 0 <= get.timestamp < ops.MAX_TIMESTAMP:
        since, until = get.timestamp, get.timestamp + 1
    else:
        raise ops.Refused("illegal argument", "not a timestamp to read", timestamp=get.timestamp)
    limit = get.storeLimit
    return ops.Selection(
        columns=_columns_of(get.columns),
        versions=1 if get.maxVersions is None else get.maxVersions,
        since=since,
        until=until,
        filter=None if get.filterString is None else parse_filter(get.filterString),
        # HBase checks the limit only after the first cell.
        store_limit=None if limit is None or limit < 0 else max(limit, 1),
        store_offset=get.storeOffset or 0,
    )


def scan_of(table: bytes, asked: Any) -> Scan:
    """Return the scan of a TScan; as in HBase, a limit that is not positive means no limit."""
    _refuse_bytes(asked)
    since, until = _time_range(asked.timeRange)
    versions = 1 if asked.maxVersions is None else asked.maxVersions
    limit = asked.limit if asked.limit is not None and asked.limit > 0 else None
    return Scan(
        gateway.check_table(table),
        gateway.range_of(asked.startRow, asked.stopRow, reverse=bool(asked.reversed)),
        ops.Selection(
            columns=_columns_of(asked.columns),
            versions=max(versions, 1),
            since=since,
            until=until,
            family_times=tuple(
                (family, *_time_range(times))
                for family, times in (asked.colFamTimeRangeMap or {}).items()
            ),
            filter=None if asked.filterString is None else parse_filter(asked.filterString),
            batch=gateway.batch_of(asked.batchSize),
        ),
        limit=0 if versions < 1 else limit,
    )


def _refuse_bytes(asked: Any) -> None:
    if asked.filterBytes is not None:
        raise IDL.TIOError(
            message="java.io.IOException: filters of HBase's Java client are not supported: send "
            "the filter language (filterString)",
            canRetry=True,
        )


def _time_range(times: Any) -> tuple[int, int]:
    if times is None:
        return 0, ops.MAX_TIMESTAMP
    since, until = times.minStamp, times.maxStamp
    if since < 0 or until < since:
        raise ops.Refused("illegal argument", "not a range of timestamps", since=since, until=until)
    return since, until


def _columns_of(columns: Iterable[Any] | None) -> tuple[tuple[bytes, bytes | None], ...]:
    return tuple((column.family, column.qualifier) for column in columns or ())


def _check_puts(put: Any) -> list[ops.Put]:
    """Return the puts of a TPut, for methods where HBase's client checks their sizes."""
    puts = _puts_of(put)
    gateway.check_sizes(put.row, puts)
    return puts


def _puts_of(put: Any) -> list[ops.Put]:
    if not put.columnValues or not all(cell.family for cell in put.columnValues):
        raise gateway.InternalError("no columns to insert, or no family")
    ttl_ms, at = gateway.ttl_of(put.attributes), _check_optional_time(put.timestamp)
    return [
        ops.Put(cell.family, cell.qualifier, cell.value, time, ttl_ms)
        for cell in put.columnValues
        for time in [at if cell.timestamp is None else gateway.time_of(cell.timestamp)]
    ]


def _removes_of(delete: Any) -> list[ops.Operation]:
    """Return the operations of a TDelete. As in HBase, an empty list of columns means the row."""
    if not delete.columns:
        whole = delete.timestamp if delete.columns is None else None
        return [ops.Remove(timestamp=_check_optional_time(whole))]
    kind, types, columns = delete.deleteType, IDL.TDeleteType, delete.columns
    if kind not in types._VALUES_TO_NAMES:
        raise gateway.InternalError("a delete of columns needs its type", type=kind)
    if kind == types.DELETE_FAMILY:  # in HBase the last column of a family wins
        columns = {column.family: column for column in columns}.values()
    removes: list[ops.Operation] = []
    for column in columns:
        timestamp = _check_optional_time(column.timestamp)
        if kind == types.DELETE_FAMILY_VERSION and column.timestamp is None:
            raise gateway.InternalError("a delete of a version of a family needs its timestamp")
        is_family = kind in (types.DELETE_FAMILY, types.DELETE_FAMILY_VERSION)
        qualifier = None if is_family else column.qualifier or b""
        exact = kind in (types.DELETE_COLUMN, types.DELETE_FAMILY_VERSION)
        removes.append(ops.Remove(column.family, qualifier, timestamp, exact))
    return removes


def _operations_of(mutations: Any) -> tuple[list[ops.Operation], bool]:
    """Return the operations of TRowMutations, and whether any must survive a power failure."""
    row = mutations.row
    check_row(row)
    found: list[ops.Operation] = []
    durable = False
    for mutation in mutations.mutations:
        part = mutation.put or mutation.deleteSingle
        if part is None:
            raise TApplicationException(TApplicationException.PROTOCOL_ERROR, "Unrecognized type 0")
        check_row(part.row)
        if part.row != row:
            text = "The row in the recently added Mutation doesn't match the original one"
            raise IDL.TIOError(message=annotate(text, row=part.row, original=row), canRetry=True)
        found += _puts_of(part) if mutation.put else _removes_of(part)
        durable = durable or is_durable(part)
    if not found:
        raise gateway.InternalError("no mutations")
    return found, durable


def _check_same_row(row: bytes, change: Any) -> None:
    if change.row != row:
        text = "the row of the action doesn't match the original one"
        raise ops.Refused("do not retry", text, row=change.row, original=row)


def _check_optional_time(timestamp: int | None) -> int | None:
    """Return the timestamp; None and HBase's greatest mean "now"."""
    return None if timestamp is None else gateway.check_time(timestamp)


def is_durable(change: Any) -> bool:
    return change.durability not in NOT_DURABLE


def _pack_result(found: ops.Result) -> Any:
    row, versions, partial = found
    values = [
        _ColumnValue(family, column, value, timestamp, None, _PUT_TYPE)
        for family, column, timestamp, value in versions
    ]
    return IDL.TResult(row if values else None, values, False, partial)
