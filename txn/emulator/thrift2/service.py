"""HBase's Thrift 2 service: rows and scanners. Its tables are in the module beside this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from txn.clock import Clock
from txn.emulator.pacing import PacedRows
from txn.emulator.refusals import (
    Internal,
    change_all,
    join_services,
    refuse_as_many,
    refuse_once,
)
from txn.emulator.scanners import ScannerLimits, Scanners
from txn.emulator.thrift2 import convert
from txn.emulator.thrift2.tables import Tables2
from txn.stores.hbase.idl import IDL
from txn.tables.admin import Admin
from txn.tables.catalog import check_row
from txn.tables.kv.ordered import OrderedStore
from txn.tables.operations import Condition, Operation, Operator, Result, Selection
from txn.tables.rows import Rows

SERVICE: Any = IDL.THBaseService


def handler(store: OrderedStore, clock: Clock, limits: ScannerLimits | None = None) -> object:
    """Return what carries out the methods of the service on the tables of a store."""
    rows, admin = Rows(store, clock), Admin(store, clock)
    scanning = Scanning2(Scanners(rows, clock, limits or ScannerLimits()))
    parts = Data2(PacedRows(rows, clock)), scanning, Tables2(admin)
    return join_services(SERVICE, convert.explain_error, *parts)


class Data2:
    """Reading and changing rows."""

    def __init__(self, rows: PacedRows) -> None:
        self._rows = rows

    # ------------------------------------------------------------------------- reading

    def exists(self, table: bytes, get: Any) -> bool:
        return bool(self._got(table, [get])[0].versions)

    def existsAll(self, table: bytes, gets: Sequence[Any]) -> list[bool]:
        return [bool(found.versions) for found in self._got(table, gets)]

    def get(self, table: bytes, get: Any) -> Any:
        return self.getMultiple(table, [get])[0]

    def getMultiple(self, table: bytes, gets: Sequence[Any]) -> list[Any]:
        found = convert.results(self._got(table, gets))
        if any(get.existence_only for get in gets):
            raise Internal("what exists alone has no cells to show")
        return found

    def _got(self, table: bytes, gets: Sequence[Any]) -> list[Result]:
        """Read together the rows of which the same is asked."""
        groups: dict[Selection, list[int]] = {}
        for position, get in enumerate(gets):
            groups.setdefault(convert.selection_of(get), []).append(position)
        found: list[Result] = [Result(b"")] * len(gets)
        for selection, positions in groups.items():
            rows = [gets[position].row for position in positions]
            with refuse_as_many(len(gets)):
                results = self._rows.get(table, rows, selection)
            for position, result in zip(positions, results, strict=True):
                found[position] = result
        return found

    # ------------------------------------------------------------------------ changing

    def put(self, table: bytes, put: Any) -> None:
        self._change(table, put, convert.check_puts(put))

    def putMultiple(self, table: bytes, puts: Sequence[Any]) -> None:
        self._change_all(table, puts, convert.check_puts)

    def deleteSingle(self, table: bytes, delete: Any) -> None:
        self._change(table, delete, convert.removes_of(delete))

    def deleteMultiple(self, table: bytes, deletes: Sequence[Any]) -> list[Any]:
        self._change_all(table, deletes, convert.removes_of)
        return []

    def mutateRow(self, table: bytes, mutations: Any) -> None:
        operations = convert.mutations_of(mutations.row, mutations.mutations)
        self._rows.mutate(table, [(mutations.row, operations)], durable=_durable(mutations))

    def increment(self, table: bytes, increment: Any) -> Any:
        return self._compute(table, increment, convert.adds_of(increment))

    def append(self, table: bytes, append: Any) -> Any:
        return self._compute(table, append, convert.appends_of(append))

    def _change(self, table: bytes, change: Any, operations: Sequence[Operation]) -> None:
        durable = convert.is_durable(change)
        self._rows.mutate(table, [(change.row, operations)], durable=durable)

    def _change_all(
        self, table: bytes, changes: Sequence[Any], operations: Callable[[Any], Sequence[Operation]]
    ) -> None:
        if changes:
            rows = [(change.row, operations(change)) for change in changes]
            durable = any(map(convert.is_durable, changes))
            change_all(self._rows, table, rows, durable=durable)

    def _compute(self, table: bytes, change: Any, operations: Sequence[Operation]) -> Any:
        durable = convert.is_durable(change)
        [found] = self._rows.mutate(table, [(change.row, operations)], durable=durable)
        return convert.result(found if change.returnResults is not False else Result(b""))

    # ------------------------------------------------------------------------ checking

    def checkAndPut(  # noqa: PLR0917  (they are the interface's)
        self, table: bytes, row: bytes, family: bytes, column: bytes, value: bytes | None, put: Any
    ) -> bool:
        condition = Condition(family, column, "=", value)
        return self._check_and_mutate(table, row, condition, put, convert.check_puts(put))

    def checkAndDelete(  # noqa: PLR0917
        self,
        table: bytes,
        row: bytes,
        family: bytes,
        column: bytes,
        value: bytes | None,
        delete: Any,
    ) -> bool:
        condition = Condition(family, column, "=", value)
        return self._check_and_mutate(table, row, condition, delete, convert.removes_of(delete))

    def _check_and_mutate(
        self,
        table: bytes,
        row: bytes,
        condition: Condition,
        change: Any,
        operations: Sequence[Operation],
    ) -> bool:
        check_row(change.row)
        convert.check_same_row(row, change)
        durable = convert.is_durable(change)
        with refuse_once():
            return self._rows.check_and_mutate(table, row, condition, operations, durable=durable)

    def checkAndMutate(  # noqa: PLR0917
        self,
        table: bytes,
        row: bytes,
        family: bytes,
        column: bytes,
        operator: int,
        value: bytes | None,
        mutations: Any,
    ) -> bool:
        compared: Operator = convert.operator_of(operator)
        if value is None:
            raise Internal("a comparison needs a value")
        operations = convert.mutations_of(mutations.row, mutations.mutations)
        convert.check_same_row(row, mutations)
        condition = Condition(family, column, compared, value)
        return self._rows.check_and_mutate(
            table, row, condition, operations, durable=_durable(mutations)
        )


class Scanning2:
    """Opening, reading and closing scanners."""

    def __init__(self, scanners: Scanners) -> None:
        self._scanners = scanners

    def openScanner(self, table: bytes, scan: Any) -> int:
        return self._scanners.open(convert.scan_of(table, scan))

    def getScannerRows(self, number: int, count: int) -> list[Any]:
        found = self._scanners.next(number, count, lambda _, results: convert.results(results))
        if found is None:
            raise IDL.TIllegalArgument(message="Invalid scanner Id")
        return found

    def closeScanner(self, number: int) -> None:
        """Close it; as in HBase 2, one that is unknown may have expired and is no error."""
        self._scanners.close(number)

    def getScannerResults(self, table: bytes, scan: Any, count: int) -> list[Any]:
        return convert.results(self._scanners.first(convert.scan_of(table, scan), count))


def _durable(mutations: Any) -> bool:
    parts = [mutation.put or mutation.deleteSingle for mutation in mutations.mutations]
    return any(convert.is_durable(part) for part in parts if part is not None)
