"""HBase's Thrift 1 service: rows and scanners. Its tables are in the module beside this one.

What HBase's gateway does in several steps (deletes, then puts, of one mutateRow), or leaves out in
silence (`isDelete` of a checkAndPut, a put without a qualifier), is done in the same way here,
because clients can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txn.clock import Clock
from txn.emulator.arguments import check_sizes, check_time, range_of, ttl_of
from txn.emulator.pacing import PacedRows
from txn.emulator.places import check_table
from txn.emulator.refusals import (
    Internal,
    change_all,
    fail_internally,
    join_services,
    refuse_as_many,
    require,
)
from txn.emulator.scanners import Scan, ScannerLimits, Scanners
from txn.emulator.thrift1 import convert
from txn.emulator.thrift1.convert import IDL, Columns
from txn.emulator.thrift1.tables import Tables1
from txn.tables.admin import Admin
from txn.tables.catalog import check_row
from txn.tables.cells import CellVersion
from txn.tables.kv.ordered import OrderedStore
from txn.tables.operations import (
    MAX_TIMESTAMP,
    Add,
    Append,
    Condition,
    Operation,
    Put,
    Remove,
    Result,
    Selection,
)
from txn.tables.refusal import Refused
from txn.tables.rows import Rows
from txn.tables.tables import TableStore

SERVICE: Any = IDL.Hbase

Attributes = dict[bytes, bytes] | None


def handler(store: OrderedStore, clock: Clock, limits: ScannerLimits | None = None) -> object:
    """Return what carries out the methods of the service on the tables of a store."""
    rows = Rows(store, clock)
    scanners = Scanners(rows, clock, limits or ScannerLimits())
    tables = Tables1(Admin(store, clock), TableStore(store, clock), clock)
    return join_services(
        SERVICE, convert.explain_error, Data1(PacedRows(rows, clock)), Scanning1(scanners), tables
    )


class Data1:
    """Reading and changing rows."""

    def __init__(self, rows: PacedRows) -> None:
        self._rows = rows

    # ------------------------------------------------------------------------- reading

    def get(self, table: bytes, row: bytes, column: bytes, _: Attributes) -> list[Any]:
        return self._cells(table, row, convert.select_columns([column]))

    def getVer(
        self, table: bytes, row: bytes, column: bytes, versions: int, _: Attributes
    ) -> list[Any]:
        return self._cells(table, row, convert.select_columns([column], versions=versions))

    def getVerTs(
        self, table: bytes, row: bytes, column: bytes, until: int, versions: int, _: Attributes
    ) -> list[Any]:
        return self._cells(table, row, convert.select_columns([column], until, versions))

    def getRow(self, table: bytes, row: bytes, _: Attributes) -> list[Any]:
        return self._read_rows(table, [row], None)

    def getRowWithColumns(
        self, table: bytes, row: bytes, columns: Columns, _: Attributes
    ) -> list[Any]:
        return self._read_rows(table, [row], columns)

    def getRowTs(self, table: bytes, row: bytes, until: int, _: Attributes) -> list[Any]:
        return self._read_rows(table, [row], None, until)

    def getRowWithColumnsTs(
        self, table: bytes, row: bytes, columns: Columns, until: int, _: Attributes
    ) -> list[Any]:
        return self._read_rows(table, [row], columns, until)

    def getRows(self, table: bytes, rows: Sequence[bytes], _: Attributes) -> list[Any]:
        return self._read_rows(table, rows, None)

    def getRowsWithColumns(
        self, table: bytes, rows: Sequence[bytes], columns: Columns, _: Attributes
    ) -> list[Any]:
        return self._read_rows(table, rows, columns)

    def getRowsTs(
        self, table: bytes, rows: Sequence[bytes], until: int, _: Attributes
    ) -> list[Any]:
        return self._read_rows(table, rows, None, until)

    def getRowsWithColumnsTs(
        self, table: bytes, rows: Sequence[bytes], columns: Columns, until: int, _: Attributes
    ) -> list[Any]:
        return self._read_rows(table, rows, columns, until)

    def _cells(self, table: bytes, row: bytes, selection: Selection) -> list[Any]:
        return convert.cells(self._rows.get(table, [row], selection)[0].versions)

    def _read_rows(
        self, table: bytes, rows: Sequence[bytes], columns: Columns, until: int = MAX_TIMESTAMP
    ) -> list[Any]:
        if not rows:
            return []
        selection = convert.select_columns(columns, until)
        with refuse_as_many(len(rows)):
            return convert.row_results(self._rows.get(table, rows, selection))

    # ------------------------------------------------------------------------ changing

    def mutateRow(
        self, table: bytes, row: bytes, mutations: Sequence[Any], attributes: Attributes
    ) -> None:
        self.mutateRowTs(table, row, mutations, MAX_TIMESTAMP, attributes)

    def mutateRowTs(
        self,
        table: bytes,
        row: bytes,
        mutations: Sequence[Any],
        timestamp: int,
        attributes: Attributes,
    ) -> None:
        """The deletes, then the puts, which come later and so survive them."""
        if not row:
            raise Refused("illegal argument", "a row is 1 to 32767 bytes", bytes=0)
        removes, puts = convert.changes(mutations, check_time(timestamp), ttl_of(attributes))
        check_sizes(row, puts)
        durable = convert.is_durable(mutations)
        if removes:
            self._rows.mutate(table, [(row, removes)], durable=durable)
        if puts:
            self._rows.mutate(table, [(row, puts)], durable=durable)

    def mutateRows(self, table: bytes, batches: Sequence[Any], attributes: Attributes) -> None:
        self.mutateRowsTs(table, batches, MAX_TIMESTAMP, attributes)

    def mutateRowsTs(
        self, table: bytes, batches: Sequence[Any], timestamp: int, attributes: Attributes
    ) -> None:
        """The puts of all rows, then the deletes, which therefore hide them."""
        changes: list[tuple[bytes, Sequence[Operation]]] = []
        durable = False
        with refuse_as_many():
            ttl_ms = ttl_of(attributes)
        for batch in batches:
            require(batch, "row", "mutations")
            for mutation in batch.mutations:
                if not mutation.isDelete:
                    convert.cell_of(mutation.column)
            with fail_internally():
                check_row(batch.row)
                removes, puts = convert.changes(batch.mutations, check_time(timestamp), ttl_ms)
            check_sizes(batch.row, puts)
            if removes or puts:
                changes.append((batch.row, [*puts, *removes]))
            durable = durable or convert.is_durable(batch.mutations)
        if changes:
            change_all(self._rows, table, changes, durable=durable)

    def deleteAll(self, table: bytes, row: bytes, column: bytes, attributes: Attributes) -> None:
        self.deleteAllTs(table, row, column, MAX_TIMESTAMP, attributes)

    def deleteAllTs(
        self, table: bytes, row: bytes, column: bytes, timestamp: int, _: Attributes
    ) -> None:
        family, qualifier = convert.column_of(column)
        remove = Remove(family, qualifier, check_time(timestamp))
        self._rows.mutate(table, [(row, [remove])])

    def deleteAllRow(self, table: bytes, row: bytes, attributes: Attributes) -> None:
        self.deleteAllRowTs(table, row, MAX_TIMESTAMP, attributes)

    def deleteAllRowTs(self, table: bytes, row: bytes, timestamp: int, _: Attributes) -> None:
        remove = Remove(timestamp=check_time(timestamp))
        self._rows.mutate(table, [(row, [remove])])

    def checkAndPut(  # noqa: PLR0917  (they are the interface's)
        self,
        table: bytes,
        row: bytes,
        column: bytes,
        value: bytes | None,
        mutation: Any,
        attributes: Attributes,
    ) -> bool:
        target = convert.cell_of(mutation.column)
        family, qualifier = convert.cell_of(column)
        put = Put(*target, mutation.value or b"", ttl_ms=ttl_of(attributes))
        check_sizes(row, [put])
        condition = Condition(family, qualifier, "=", value)
        return self._rows.check_and_mutate(
            table, row, condition, [put], durable=mutation.writeToWAL
        )

    # ------------------------------------------------------------------------- counting

    def atomicIncrement(self, table: bytes, row: bytes, column: bytes, by: int) -> int:
        family, qualifier = convert.column_of(column)
        found = self._add(table, row, Add(family, qualifier or b"", by))
        return int.from_bytes(found.value, signed=True)

    def increment(self, asked: Any) -> None:
        if not asked.table or not asked.row:
            raise Internal("an increment needs a table and a row")
        self._add(asked.table, asked.row, Add(*convert.cell_of(asked.column), asked.ammount or 0))

    def incrementRows(self, asked: Sequence[Any]) -> None:
        for increment in asked:
            self.increment(increment)

    def append(self, asked: Any) -> list[Any]:
        if not asked.table or not asked.row:
            raise Internal("an append needs a table and a row")
        require(asked, "columns", "values")
        if not asked.columns or len(asked.columns) != len(asked.values):
            raise Internal("an append needs columns, and as many values")
        appends = [
            Append(*convert.cell_of(column), value)
            for column, value in zip(asked.columns, asked.values, strict=True)
        ]
        if not all(append.family for append in appends):
            raise Internal("an append needs a family")
        [result] = self._rows.mutate(asked.table, [(asked.row, appends)])
        return convert.cells(result.versions)

    def _add(self, table: bytes, row: bytes, add: Add) -> CellVersion:
        [result] = self._rows.mutate(table, [(row, [add])])
        return result.versions[0]


class Scanning1:
    """Opening, reading and closing scanners."""

    def __init__(self, scanners: Scanners) -> None:
        self._scanners = scanners

    def scannerOpenWithScan(self, table: bytes, asked: Any, _: Attributes) -> int:
        return self._scanners.open(convert.scan_of(table, asked))

    def scannerOpen(self, table: bytes, start: bytes, columns: Columns, _: Attributes) -> int:
        return self._open(table, (start, b""), columns)

    def scannerOpenWithStop(
        self, table: bytes, start: bytes, stop: bytes, columns: Columns, _: Attributes
    ) -> int:
        return self._open(table, (start, stop), columns)

    def scannerOpenWithPrefix(
        self, table: bytes, prefix: bytes, columns: Columns, _: Attributes
    ) -> int:
        rows, selection = convert.range_of_prefix(prefix), convert.select_columns(columns)
        return self._scanners.open(Scan(check_table(table), rows, selection))

    def scannerOpenTs(
        self, table: bytes, start: bytes, columns: Columns, until: int, _: Attributes
    ) -> int:
        return self._open(table, (start, b""), columns, until)

    def scannerOpenWithStopTs(
        self, table: bytes, start: bytes, stop: bytes, columns: Columns, until: int, _: Attributes
    ) -> int:
        return self._open(table, (start, stop), columns, until)

    def scannerGet(self, number: int) -> list[Any]:
        return self.scannerGetList(number, 1)

    def scannerGetList(self, number: int, count: int) -> list[Any]:
        found = self._scanners.next(number, count, _show)
        if found is None:
            raise _unknown()
        return found

    def scannerClose(self, number: int) -> None:
        if not self._scanners.close(number):
            raise _unknown()

    def _open(
        self, table: bytes, rows: tuple[bytes, bytes], columns: Columns, until: int = MAX_TIMESTAMP
    ) -> int:
        selection = convert.select_columns(columns, until)
        return self._scanners.open(Scan(check_table(table), range_of(*rows), selection))


def _show(scan: Scan, results: list[Result]) -> list[Any]:
    return convert.row_results(results, in_order=scan.in_order)


def _unknown() -> Exception:
    error: Exception = IDL.IllegalArgument(message="scanner ID is invalid")
    return error
