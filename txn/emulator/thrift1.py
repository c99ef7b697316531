"""HBase's Thrift 1 service: rows, scanners and tables.

Clients can observe what HBase's gateway does in several steps (mutateRow: deletes, then puts) or
ignores (`isDelete` of a checkAndPut, a put without a qualifier). This module does the same. It uses
the interface's argument names. Methods ending in Ver, WithColumns, WithStop and Ts are their base
methods with another argument.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from io import StringIO
from typing import Any

import thriftpy2

from txn.clock import Clock
from txn.emulator import gateway
from txn.emulator.scanners import Scan, ScannerLimits, Scanners
from txn.errors import InvalidRequestError, TableUnavailable, TxnError
from txn.model import KEEP_DELETES_MS
from txn.spans import find_prefix_end
from txn.stores.local import LocalStore
from txn.tables import operations as ops
from txn.tables.admin import Admin
from txn.tables.catalog import Region, check_row, check_settings
from txn.tables.filters.parsing import parse_filter
from txn.tables.kv.ordered import OrderedStore

IDL: Any = thriftpy2.load_fp(
    StringIO(files(__package__).joinpath("hbase1.thrift").read_text()), "txn_emulator_hbase1_thrift"
)
SERVICE = IDL.Hbase
DECLARING = frozenset(
    {"createTable", "mutateRow", "mutateRowTs", "mutateRows", "mutateRowsTs", "checkAndPut"}
)
"""The methods whose interface declares IllegalArgument."""

COMPRESSIONS = ("BROTLI", "BZIP2", "GZ", "LZ4", "LZMA", "LZO", "NONE", "SNAPPY", "ZSTD")
BLOOM_FILTERS = ("NONE", "ROW", "ROWCOL", "ROWPREFIX_FIXED_LENGTH")

NOW = ops.MAX_TIMESTAMP

Attributes = dict[bytes, bytes] | None
Columns = Sequence[bytes] | None


def handler(store: OrderedStore, clock: Clock, limits: ScannerLimits | None = None) -> object:
    service = Gateway1(store, clock, limits or ScannerLimits())
    return gateway.join_services(SERVICE, explain_error, service)


def explain_error(method: str, error: TxnError) -> Exception:
    is_invalid, reason = isinstance(error, InvalidRequestError), gateway.reason_of(error)
    explained: Exception
    if isinstance(error, gateway.PartialFailure):
        text = f"{gateway.HBASE}.client.RetriesExhaustedWithDetailsException: {error}"
        explained = IDL.IOError(message=text, canRetry=True)
    elif not is_invalid or reason != "illegal argument":
        can_retry = not is_invalid or reason == "retries exhausted"
        explained = IDL.IOError(message=gateway.format_error(error), canRetry=can_retry)
    elif method in DECLARING:
        explained = IDL.IllegalArgument(message=gateway.format_error(error))
    else:
        explained = gateway.make_internal(method, error)
    return explained


class Gateway1:
    def __init__(self, store: OrderedStore, clock: Clock, limits: ScannerLimits) -> None:
        self._rows = gateway.PacedRows(store, clock)
        self._scanners = Scanners(self._rows, clock, limits)
        self._admin = Admin(store, clock)
        self._local = LocalStore(store, clock)
        self._clock = clock

    def get(
        self,
        tableName: bytes,
        row: bytes,
        column: bytes,
        timestamp: int = NOW,
        numVersions: int = 1,
        **_: Attributes,
    ) -> list[Any]:
        [result] = self._rows.get(tableName, [row], _select([column], timestamp, numVersions))
        return [IDL.TCell(value, timestamp) for _, _, timestamp, value in result.versions]

    def getRow(self, tableName: bytes, row: bytes, **given: Any) -> list[Any]:
        return self.getRows(tableName, [row], **given)

    def getRows(
        self,
        tableName: bytes,
        rows: Sequence[bytes],
        columns: Columns = None,
        timestamp: int = NOW,
        **_: Attributes,
    ) -> list[Any]:
        if not rows:
            return []
        with gateway.refuse_as_many(len(rows)):
            return _row_results(self._rows.get(tableName, rows, _select(columns, timestamp)))

    def mutateRow(
        self,
        tableName: bytes,
        row: bytes,
        mutations: Sequence[Any],
        timestamp: int = NOW,
        attributes: Attributes = None,
    ) -> None:
        """Apply the deletes, then the puts, which are later and so survive."""
        if not row:
            raise ops.Refused("illegal argument", "a row is 1 to 32767 bytes", bytes=0)
        at, ttl_ms = gateway.check_time(timestamp), gateway.ttl_of(attributes)
        removes, puts = _split_mutations(mutations, at, ttl_ms)
        gateway.check_sizes(row, puts)
        durable = is_durable(mutations)
        if removes:
            self._rows.mutate(tableName, [(row, removes)], durable=durable)
        if puts:
            self._rows.mutate(tableName, [(row, puts)], durable=durable)

    def mutateRows(
        self,
        tableName: bytes,
        rowBatches: Sequence[Any],
        timestamp: int = NOW,
        attributes: Attributes = None,
    ) -> None:
        """Apply the puts of all rows, then the deletes, which hide them."""
        changes: list[tuple[bytes, ops.Operations]] = []
        durable = False
        with gateway.refuse_as_many():
            ttl_ms = gateway.ttl_of(attributes)
        for batch in rowBatches:
            gateway.require(batch, "row", "mutations")
            for mutation in batch.mutations:
                if not mutation.isDelete:
                    _split_cell(mutation.column)
            with gateway.fail_internally():
                check_row(batch.row)
                at = gateway.check_time(timestamp)
                removes, puts = _split_mutations(batch.mutations, at, ttl_ms)
            gateway.check_sizes(batch.row, puts)
            if removes or puts:
                changes.append((batch.row, [*puts, *removes]))
            durable = durable or is_durable(batch.mutations)
        if changes:
            self._rows.mutate_all(tableName, changes, durable=durable)

    def deleteAll(
        self, tableName: bytes, row: bytes, column: bytes, timestamp: int = NOW, **_: Attributes
    ) -> None:
        remove = ops.Remove(*_split_column(column), gateway.check_time(timestamp))
        self._rows.mutate(tableName, [(row, [remove])])

    def deleteAllRow(self, tableName: bytes, row: bytes, timestamp: int = NOW, **_: Any) -> None:
        remove = ops.Remove(timestamp=gateway.check_time(timestamp))
        self._rows.mutate(tableName, [(row, [remove])])

    def checkAndPut(  # noqa: PLR0917  (they are the interface's)
        self,
        tableName: bytes,
        row: bytes,
        column: bytes,
        value: bytes | None,
        mput: Any,
        attributes: Attributes,
    ) -> bool:
        target = _split_cell(mput.column)
        condition = ops.Condition(*_split_cell(column), "=", value)
        put = ops.Put(*target, mput.value or b"", ttl_ms=gateway.ttl_of(attributes))
        gateway.check_sizes(row, [put])
        durable = mput.writeToWAL
        return self._rows.check_and_mutate(tableName, row, condition, [put], durable=durable)

    def atomicIncrement(self, tableName: bytes, row: bytes, column: bytes, value: int) -> int:
        family, qualifier = _split_column(column)
        add = ops.Add(family, qualifier or b"", value)
        [result] = self._rows.mutate(tableName, [(row, [add])])
        return int.from_bytes(result.versions[0].value, signed=True)

    def increment(self, increment: Any) -> None:
        table, row = increment.table, increment.row
        if not table or not row:
            raise gateway.InternalError("an increment needs a table and a row")
        add = ops.Add(*_split_cell(increment.column), increment.ammount or 0)
        self._rows.mutate(table, [(row, [add])])

    def incrementRows(self, increments: Sequence[Any]) -> None:
        for each in increments:
            self.increment(each)

    def append(self, append: Any) -> list[Any]:
        if not append.table or not append.row:
            raise gateway.InternalError("an append needs a table and a row")
        gateway.require(append, "columns", "values")
        if not append.columns or len(append.columns) != len(append.values):
            raise gateway.InternalError("an append needs columns, and as many values")
        appends = [
            ops.Append(*_split_cell(column), value)
            for column, value in zip(append.columns, append.values, strict=True)
        ]
        if not all(each.family for each in appends):
            raise gateway.InternalError("an append needs a family")
        [result] = self._rows.mutate(append.table, [(append.row, appends)])
        return [IDL.TCell(value, timestamp) for _, _, timestamp, value in result.versions]

    def scannerOpenWithScan(self, tableName: bytes, scan: Any, **_: Attributes) -> int:
        return self._scanners.open(scan_of(tableName, scan))

    def scannerOpen(
        self,
        tableName: bytes,
        startRow: bytes,
        columns: Columns,
        stopRow: bytes = b"",
        timestamp: int = NOW,
        **_: Attributes,
    ) -> int:
        selection = _select(columns, timestamp)
        scan = Scan(gateway.check_table(tableName), gateway.range_of(startRow, stopRow), selection)
        return self._scanners.open(scan)

    def scannerOpenWithPrefix(
        self, tableName: bytes, startAndPrefix: bytes, columns: Columns, **_: Attributes
    ) -> int:
        rows = ops.Range(startAndPrefix, find_prefix_end(startAndPrefix))
        return self._scanners.open(Scan(gateway.check_table(tableName), rows, _select(columns)))

    def scannerGet(self, id: int) -> list[Any]:
        return self.scannerGetList(id, 1)

    def scannerGetList(self, id: int, nbRows: int) -> list[Any]:
        found = self._scanners.next(
            id, nbRows, lambda scan, results: _row_results(results, in_order=scan.in_order)
        )
        if found is None:
            raise IDL.IllegalArgument(message="scanner ID is invalid")
        return found

    def scannerClose(self, id: int) -> None:
        if not self._scanners.close(id):
            raise IDL.IllegalArgument(message="scanner ID is invalid")

    def enableTable(self, tableName: bytes) -> None:
        self._admin.enable(gateway.check_table(tableName))

    def disableTable(self, tableName: bytes) -> None:
        self._admin.disable(gateway.check_table(tableName))

    def isTableEnabled(self, tableName: bytes) -> bool:
        return self._admin.table(gateway.check_table(tableName)).enabled

    def compact(self, tableNameOrRegionName: bytes) -> None:
        """Do nothing: there are no files to merge."""
        self._admin.table(_table_of(tableNameOrRegionName))

    def majorCompact(self, tableNameOrRegionName: bytes) -> None:
        """Drop expired cells and delete markers that no transaction needs."""
        table = _table_of(tableNameOrRegionName)
        self._admin.table(table)
        try:
            self._local.compact(table, self._clock.wall_ms() - KEEP_DELETES_MS)
        except TableUnavailable as error:
            raise error.__cause__ or error from None  # HBase's own error

    def getTableNames(self) -> list[bytes]:
        return list(self._admin.user_tables())

    def getTableNamesWithIsTableEnabled(self) -> dict[bytes, bool]:
        return {name: found.enabled for name, found in self._admin.user_tables().items()}

    def getColumnDescriptors(self, tableName: bytes) -> dict[bytes, Any]:
        families = self._admin.table(gateway.check_table(tableName)).families
        return {
            name + b":": IDL.ColumnDescriptor(
                name=name + b":",
                maxVersions=family.versions,
                compression=family.compression,
                inMemory=family.in_memory,
                bloomFilterType=family.bloom_filter,
                blockCacheEnabled=family.block_cache,
                timeToLive=gateway.ttl_s(family),
            )
            for name, family in sorted(families.items())
        }

    def getTableRegions(self, tableName: bytes) -> list[Any]:
        found = self._admin.find(gateway.check_table(tableName))
        return [_region(tableName, region) for region in found.regions] if found else []

    def createTable(self, tableName: bytes, columnFamilies: Sequence[Any]) -> None:
        with gateway.fail_internally():
            gateway.check_table(tableName)
        if self._admin.find(tableName) is not None:
            raise IDL.AlreadyExists(message="table name already in use")
        families = dict(map(_unpack_family, columnFamilies))
        if not families:
            raise ops.Refused("do not retry", "a table needs at least one family", table=tableName)
        try:
            self._admin.create(tableName, families)
        except ops.Refused as error:
            if error.reason != "table exists":
                raise
            raise IDL.AlreadyExists(message="table name already in use") from error

    def deleteTable(self, tableName: bytes) -> None:
        if self._admin.find(gateway.check_table(tableName)) is None:
            raise IDL.IOError(message="java.io.IOException: table does not exist", canRetry=True)
        self._admin.drop(tableName)

    def getRegionInfo(self, row: bytes) -> Any:
        """Return the last region whose row in `hbase:meta` is not after the given one."""
        table, _, rest = row.partition(b",")
        start, _, number = rest.rpartition(b",")
        wanted = table, start, number.partition(b".")[0]
        before = [
            (key, region)
            for name, known in self._admin.tables().items()
            for region in known.regions
            if (key := (name, region.start, b"%d" % region.number)) <= wanted
        ]
        if not before:
            message = f"java.io.IOException: Cannot find row in hbase:meta, row={row!r}"
            raise IDL.IOError(message=message, canRetry=True)
        (name, _, _), region = max(before)
        return _region(name, region)

    def getThriftServerType(self) -> int:
        return int(IDL.TThriftServerType.ONE)


def _split_column(name: bytes | None) -> tuple[bytes, bytes | None]:
    if name is None:
        raise gateway.InternalError("no column")
    family, colon, qualifier = name.partition(b":")
    return family, qualifier if colon else None


def _split_cell(name: bytes | None) -> tuple[bytes, bytes]:
    """Return family and qualifier; both are required to change a cell."""
    family, qualifier = _split_column(name)
    if qualifier is None:
        raise gateway.InternalError("the column has no qualifier", column=name)
    return family, qualifier


def _select(columns: Columns, until: int = NOW, versions: int = 1) -> ops.Selection:
    """Select columns (all if none are given) with timestamps before `until`."""
    if versions < 1:
        message = "java.io.IOException: versions must be positive"
        raise IDL.IOError(message=message, canRetry=True)
    names = tuple(map(_split_column, columns or ()))
    gateway.refuse_negative(until)
    return ops.Selection(names, versions, until=until)


def _split_mutations(
    mutations: Iterable[Any], timestamp: int | None, ttl_ms: int | None
) -> tuple[list[ops.Remove], list[ops.Put]]:
    """Return the deletes and puts of a row; a put of a whole family is ignored."""
    removes: list[ops.Remove] = []
    puts: list[ops.Put] = []
    for mutation in mutations:
        family, qualifier = _split_column(mutation.column)
        if mutation.isDelete:
            removes.append(ops.Remove(family, qualifier, timestamp))
        elif qualifier is not None and not family:
            raise ops.Refused("illegal argument", "a put needs a family", column=mutation.column)
        elif qualifier is not None:
            puts.append(ops.Put(family, qualifier, mutation.value or b"", timestamp, ttl_ms))
    return removes, puts


def is_durable(mutations: Iterable[Any]) -> bool:
    """Return True if any mutation must survive a power failure; HBase asks only the last."""
    return any(mutation.writeToWAL for mutation in mutations)


def scan_of(table: bytes, asked: Any) -> Scan:
    table = gateway.check_table(table)
    rows = gateway.range_of(asked.startRow, asked.stopRow, reverse=bool(asked.reversed))
    columns = tuple(map(_split_column, asked.columns or ()))
    until = NOW if asked.timestamp is None else asked.timestamp
    gateway.refuse_negative(until)
    filter_ = None if asked.filterString is None else parse_filter(asked.filterString)
    batch = gateway.batch_of(asked.batchSize)
    selection = ops.Selection(columns, until=until, filter=filter_, batch=batch)
    return Scan(table, rows, selection, in_order=bool(asked.sortColumns))


def _row_results(results: Iterable[ops.Result], *, in_order: bool = False) -> list[Any]:
    shown = []
    for row, versions, _ in results:
        named = [
            (family + b":" + column, IDL.TCell(value, timestamp))
            for family, column, timestamp, value in versions
        ]
        if named and in_order:
            shown.append(IDL.TRowResult(row, None, [IDL.TColumn(*pair) for pair in named]))
        elif named:
            shown.append(IDL.TRowResult(row, dict(named), None))
    return shown


def _unpack_family(column: Any) -> tuple[bytes, ops.FamilySettings]:
    if not column.name:
        raise IDL.IllegalArgument(message="column name is empty")
    name = column.name.partition(b":")[0]
    if column.compression.upper() not in COMPRESSIONS:
        raise ops.Refused("illegal argument", "unknown compression", given=column.compression)
    if column.bloomFilterType not in BLOOM_FILTERS:
        raise ops.Refused("illegal argument", "unknown bloom filter", given=column.bloomFilterType)
    settings = ops.FamilySettings(
        versions=column.maxVersions,
        ttl_ms=gateway.ttl_ms(column.timeToLive if column.timeToLive > 0 else gateway.FOREVER_S),
        compression=column.compression.upper(),
        bloom_filter=column.bloomFilterType,
        in_memory=column.inMemory,
        block_cache=column.blockCacheEnabled,
    )
    check_settings(name, settings)
    return name, settings


def _region(table: bytes, region: Region) -> Any:
    name = b"%s,%s,%d" % (table, region.start, region.number)
    digest = hashlib.md5(name, usedforsecurity=False).hexdigest()
    return IDL.TRegionInfo(
        startKey=region.start,
        endKey=region.stop,
        id=region.number,
        name=b"%s.%s." % (name, digest.encode()),
        version=1,
        serverName=gateway.HOST.encode(),
        port=gateway.PORT,
    )


def _table_of(name: bytes) -> bytes:
    return gateway.check_table(name.partition(b",")[0])
