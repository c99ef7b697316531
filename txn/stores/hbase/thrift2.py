"""The requests of HBase's Thrift 2 gateway, `hbase+thrift2://host:port`.

A checked write is one checkAndPut with any cells of the row; to expect an absent cell it sends no
value. The interface is hbase2.thrift beside this file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import SplitResult

from txn.clock import Clock
from txn.errors import annotate
from txn.model import Cell, Check, Edit, Family, Key, Row, new_tuple
from txn.stores.base import Families, Feature
from txn.stores.gateway import (
    Connection,
    GatewayError,
    Pool,
    Request,
    check_reply,
    parse_gateway,
    require_whole,
)
from txn.stores.hbase import places
from txn.stores.hbase.idl import IDL
from txn.stores.hbase.places import Cells, KeysByRow, Versions
from txn.stores.hbase.schema import FOREVER_S, make_configuration, read_family
from txn.stores.hbase.store import BYTES_A_REQUEST, ROWS_A_REQUEST, HBaseStore, PageScan

DELETE_COLUMNS = IDL.TDeleteType.DELETE_COLUMNS
EQUAL = IDL.TCompareOperator.EQUAL
DEFERRED = IDL.TDurability.ASYNC_WAL
DURABILITIES = {IDL.TDurability.SKIP_WAL: "SKIP_WAL", DEFERRED: "ASYNC_WAL"}


def _narrow(kind: Any, *fields: str) -> Any:
    """Return a struct with only the fields that we send: unset fields cost time too."""
    spec = {number: field for number, field in kind.thrift_spec.items() if field[1] in fields}
    unset = [(field, None) for field in fields]
    return type(kind)(kind.__name__, (kind,), {"thrift_spec": spec, "default_spec": unset})


TColumn = _narrow(IDL.TColumn, "family", "qualifier", "timestamp")
TColumnValue = _narrow(IDL.TColumnValue, "family", "qualifier", "value", "timestamp")
TGet = _narrow(IDL.TGet, "row", "columns")
TGetStamps = _narrow(IDL.TGet, "row", "columns", "filterString")
TGetVersions = _narrow(IDL.TGet, "row", "columns", "maxVersions")
TPut = _narrow(IDL.TPut, "row", "columnValues", "durability")
TDelete = _narrow(IDL.TDelete, "row", "columns", "deleteType", "durability")


def thrift2_store(parts: SplitResult, clock: Clock) -> HBaseStore:
    return HBaseStore(Pool(parse_gateway(parts), IDL.THBaseService, clock), Thrift2(), clock)


class Thrift2:
    features: frozenset[Feature] = frozenset(
        {"multi_cell_check", "row_mutations", "describe", "remote_calls"}
    )

    def read(self, table: bytes, rows: KeysByRow, stamps: Collection[Key]) -> list[Request[Cells]]:
        def get(part: KeysByRow) -> Request[Cells]:
            gets = [_get(row, keys, stamps) for row, keys in part.items()]
            return "getMultiple", (table, gets), partial(_read_cells, table, part)

        return [*map(get, _divide(rows))]

    def read_versions(self, table: bytes, rows: KeysByRow, count: int) -> list[Request[Versions]]:
        def get(part: KeysByRow) -> Request[Versions]:
            gets = [
                TGetVersions(row, [TColumn(key[1], key[2]) for key in keys], count)
                for row, keys in part.items()
            ]
            return "getMultiple", (table, gets), partial(_read_versions, table, part)

        return [*map(get, _divide(rows))]

    def write(
        self, table: bytes, edits: Iterable[Edit], by_row: bool, is_deferred: bool = False
    ) -> list[Request[bool]]:
        """Send one put or putMultiple, one deleteMultiple, and a mutateRow for each row whose puts
        and deletes must be atomic. Many bytes take several requests."""
        puts: dict[bytes, list[Any]] = {}
        marks: dict[bytes, list[Any]] = {}
        size = 0
        for (row, family, column, _), value, timestamp in edits:
            if value is None:
                marks.setdefault(row, []).append(TColumn(family, column, timestamp))
            else:
                size += len(value)
                put = TColumnValue(family, column, value, timestamp)
                puts.setdefault(row, []).append(put)
        durability = DEFERRED if is_deferred else None
        mixed = sorted(puts.keys() & marks.keys()) if by_row else ()
        mutations = [_mutate(row, puts.pop(row), marks.pop(row), durability) for row in mixed]
        sent: list[tuple[str, Any]] = [("mutateRow", mutation) for mutation in mutations]
        if puts:
            tputs = [TPut(row, cells, durability) for row, cells in puts.items()]
            for part in _parts(tputs, size):  # a batch of one costs the servers half as much again
                sent.append(("put", part[0]) if len(part) == 1 else ("putMultiple", part))
        if marks:
            items, kind = marks.items(), DELETE_COLUMNS
            deletes = [TDelete(row, cells, kind, durability) for row, cells in items]
            sent += [("deleteMultiple", part) for part in _parts(deletes, 0)]
        return [(method, (table, change), bool) for method, change in sent]

    def check(self, check: Check) -> list[Request[bool]]:
        """Send one checkAndPut or checkAndDelete; for both puts and deletes, one checkAndMutate."""
        (row, family, column, table), expected, puts, edits, is_deferred = check
        durability = DEFERRED if is_deferred else None
        cells = [TColumnValue(key[1], key[2], value) for key, value in puts]
        marks = []
        for key, value, timestamp in edits:
            if value is None:
                marks.append(TColumn(key[1], key[2], timestamp))
            else:
                cells.append(TColumnValue(key[1], key[2], value, timestamp))
        place = (table, row, family, column)
        if cells and marks:
            change = _mutate(row, cells, marks, durability)
            return [("checkAndMutate", (*place, EQUAL, expected, change), bool)]
        if marks:
            delete = TDelete(row, marks, DELETE_COLUMNS, durability)
            return [("checkAndDelete", (*place, expected or None, delete), bool)]
        return [("checkAndPut", (*place, expected or None, TPut(row, cells, durability)), bool)]

    @check_reply
    def page(self, gateway: Connection, scan: PageScan) -> list[Row]:
        wanted = None if scan.columns is None else [IDL.TColumn(*each) for each in scan.columns]
        asked = IDL.TScan(
            scan.first,
            scan.last,
            wanted,
            caching=scan.rows,
            limit=scan.rows,
            filterString=scan.sieve,
            reversed=scan.reverse or None,
        )
        found = gateway.ask("getScannerResults", scan.table, asked, scan.rows)
        require_whole(*(each.row for each in found))
        return [Row(each.row, dict(_list_cells(scan.table, each.row, each))) for each in found]

    @check_reply
    def list_tables(self, gateway: Connection) -> list[bytes]:
        found = gateway.ask("getTableNamesByPattern", None, False)
        return [b"%b:%b" % (each.ns or b"default", each.qualifier) for each in found]

    @check_reply
    def describe(self, gateway: Connection, table: bytes) -> dict[bytes, Family]:
        found = gateway.ask("getTableDescriptor", _table_name(table))
        above = found.attributes or {}
        for column in found.columns or ():
            require_whole(column.name, column.maxVersions)
        return {
            column.name: read_family(
                column.maxVersions,
                column.timeToLive,
                DURABILITIES.get(found.durability),
                own=column.attributes or {},
                configured=column.configuration or {},
                above=above,
            )
            for column in found.columns or ()
        }

    @check_reply
    def starts(self, gateway: Connection, table: bytes) -> list[bytes]:
        found = gateway.ask("getAllRegionLocations", table)
        return [each.regionInfo.startKey or b"" for each in found]

    def is_enabled(self, gateway: Connection, table: bytes) -> bool:
        return gateway.ask("isTableEnabled", _table_name(table)) is not False

    def create(
        self, gateway: Connection, table: bytes, families: Families, splits: Sequence[bytes]
    ) -> None:
        """Send one createTable, after a createNamespace if needed."""
        name = _table_name(table)
        if name.ns is not None and name.ns.decode() not in gateway.ask("listNamespaces"):
            gateway.ask("createNamespace", IDL.TNamespaceDescriptor(name.ns.decode()))
        columns = [_column(family, settings) for family, settings in families.items()]
        gateway.ask("createTable", IDL.TTableDescriptor(name, columns), list(splits) or None)

    def add(self, gateway: Connection, table: bytes, name: bytes, family: Family) -> None:
        gateway.ask("addColumnFamily", _table_name(table), _column(name, family))


def _mutate(row: bytes, cells: Sequence[Any], marks: Sequence[Any], durability: int | None) -> Any:
    put = TPut(row, cells, durability)
    delete = TDelete(row, marks, DELETE_COLUMNS, durability)
    return IDL.TRowMutations(row, [IDL.TMutation(put=put), IDL.TMutation(deleteSingle=delete)])


def _get(row: bytes, keys: Sequence[Key], stamps: Collection[Key]) -> Any:
    valued = places.list_valued_columns(keys, stamps) if stamps else None
    columns = [TColumn(key[1], key[2]) for key in keys]
    if valued is None:
        return TGet(row, columns)
    return TGetStamps(row, columns, places.write_sieve(valued))


def _divide(rows: KeysByRow) -> list[KeysByRow]:
    if len(rows) <= ROWS_A_REQUEST:
        return [rows] if rows else []
    parts = places.cut([*rows], len, BYTES_A_REQUEST, ROWS_A_REQUEST)
    return [{row: rows[row] for row in part} for part in parts]


@check_reply
def _read_cells(table: bytes, rows: KeysByRow, found: Sequence[Any]) -> Cells:
    _require_all(rows, found)
    return {
        key: cell
        for row, result in zip(rows, found, strict=True)
        for key, cell in _list_cells(table, row, result)
    }


def _list_cells(table: bytes, row: bytes, result: Any) -> Iterator[tuple[Key, Cell]]:
    for cell in result.columnValues:
        family, column, value, timestamp = cell.family, cell.qualifier, cell.value, cell.timestamp
        require_whole(row, family, column, value, timestamp)
        yield new_tuple(Key, (row, family, column, table)), new_tuple(Cell, (value, timestamp))


@check_reply
def _read_versions(table: bytes, rows: KeysByRow, found: Sequence[Any]) -> Versions:
    _require_all(rows, found)
    versions: Versions = {}
    for row, result in zip(rows, found, strict=True):
        for key, cell in _list_cells(table, row, result):
            versions.setdefault(key, []).append(cell)
    return versions


def _require_all(rows: KeysByRow, found: Sequence[Any]) -> None:
    if len(found) != len(rows):
        message = annotate("rows are missing from the answer", asked=len(rows), got=len(found))
        raise GatewayError(message)


def _parts(items: list[Any], size: int) -> Iterable[list[Any]]:
    """Cut what is too large for one request; size: of all its values."""
    if len(items) <= ROWS_A_REQUEST and size <= BYTES_A_REQUEST:
        return [items]

    def measure(item: Any) -> int:
        return sum(len(cell.value) for cell in getattr(item, "columnValues", ()))

    return places.cut(items, measure, BYTES_A_REQUEST, ROWS_A_REQUEST)


def _table_name(table: bytes) -> Any:
    namespace, colon, name = table.rpartition(b":")
    return IDL.TTableName(namespace if colon else None, name)


def _column(name: bytes, family: Family) -> Any:
    return IDL.TColumnFamilyDescriptor(
        name=name,
        configuration=make_configuration(family),
        maxVersions=family.versions,
        timeToLive=FOREVER_S if family.ttl_ms is None else family.ttl_ms // 1000,
    )
