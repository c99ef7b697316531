"""The requests of HBase's Thrift 1 gateway, `hbase+thrift1://host:port`.

A checked write carries one cell. Several cells are several writes on the same condition, the
checked cell last; they end at the first "no". `isDelete` in them would write an empty value, so
markers go by mutateRowsTs. The gateway cannot set all that matters, so it creates no tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from urllib.parse import SplitResult

import happybase  # noqa: F401  (loads the next module from its own interface file)
from Hbase_thrift import BatchMutation, Hbase, Mutation, TCell, TRowResult, TScan

from txn.clock import Clock
from txn.errors import InvalidRequestError
from txn.model import Cell, Check, Edit, Family, Key, Row, new_tuple
from txn.stores.base import Families, Feature
from txn.stores.gateway import Connection, Pool, Request, check_reply, parse_gateway, require_whole
from txn.stores.hbase.places import Cells, KeysByRow, Versions, cut
from txn.stores.hbase.schema import FOREVER_S, shell_command
from txn.stores.hbase.store import BYTES_A_REQUEST, ROWS_A_REQUEST, HBaseStore, PageScan


def thrift1_store(parts: SplitResult, clock: Clock) -> HBaseStore:
    return HBaseStore(Pool(parse_gateway(parts), Hbase, clock), Thrift1(), clock)


NOW = (1 << 63) - 1  # means the server's time


class Thrift1:
    features: frozenset[Feature] = frozenset()

    def read(self, table: bytes, rows: KeysByRow, stamps: Collection[Key]) -> list[Request[Cells]]:
        """Send one getRowsWithColumns for all rows with the same wanted columns. It takes no
        filter, so the gateway sends the values of stamps too."""
        groups: dict[tuple[bytes, ...], list[bytes]] = {}
        for row, keys in rows.items():
            groups.setdefault(tuple(sorted(map(_column, keys))), []).append(row)
        read = partial(_read_rows, table, stamps)
        return [
            ("getRowsWithColumns", (table, part, [*columns], {}), read)
            for columns, names in groups.items()
            for part in cut(names, len, BYTES_A_REQUEST, ROWS_A_REQUEST)
        ]

    def read_versions(self, table: bytes, rows: KeysByRow, count: int) -> list[Request[Versions]]:
        return [
            ("getVer", (table, row, _column(key), count, {}), partial(_read_versions, key))
            for row, keys in rows.items()
            for key in keys
        ]

    def write(
        self, table: bytes, edits: Iterable[Edit], by_row: bool, is_deferred: bool = False
    ) -> list[Request[bool]]:
        times: dict[int | None, dict[bytes, list[Mutation]]] = {}
        for key, value, timestamp in edits:
            mutation = Mutation(value is None, _column(key), value, True)
            times.setdefault(timestamp, {}).setdefault(key[0], []).append(mutation)
        return [
            ("mutateRowsTs", (table, part, NOW if timestamp is None else timestamp, {}), bool)
            for timestamp, rows in times.items()
            for part in cut(
                [BatchMutation(row, mutations) for row, mutations in rows.items()],
                lambda batch: sum(len(one.value or b"") for one in batch.mutations),
                BYTES_A_REQUEST,
                ROWS_A_REQUEST,
            )
        ]

    def check(self, check: Check) -> list[Request[bool]]:
        key, expected, puts, _, _ = check
        condition = (key[3], key[0], _column(key), expected)
        mutations = [
            Mutation(False, _column(put), value, True)
            for put, value in sorted(puts, key=lambda item: item[0] == key)
        ]
        return [("checkAndPut", (*condition, mutation, {}), bool) for mutation in mutations]

    @check_reply
    def page(self, gateway: Connection, scan: PageScan) -> list[Row]:
        wanted = None if scan.columns is None else [*map(b":".join, scan.columns)]
        asked = TScan(
            startRow=scan.first,
            stopRow=scan.last or None,
            columns=wanted,
            caching=scan.rows,
            filterString=scan.sieve,
            reversed=scan.reverse or None,
        )
        scanner = gateway.ask("scannerOpenWithScan", scan.table, asked, {})
        found = gateway.ask("scannerGetList", scanner, scan.rows)
        gateway.ask("scannerClose", scanner)
        return [Row(result.row, _cells(scan.table, result)) for result in found]

    @check_reply
    def list_tables(self, gateway: Connection) -> list[bytes]:
        names: list[bytes] = gateway.ask("getTableNames")
        return names

    @check_reply
    def describe(self, gateway: Connection, table: bytes) -> dict[bytes, Family]:
        """Send one getColumnDescriptors, which shows version counts and TTLs only."""
        found = gateway.ask("getColumnDescriptors", table)
        return {
            name.rstrip(b":"): Family(
                versions=int(column.maxVersions),
                ttl_ms=None if column.timeToLive in (-1, FOREVER_S) else column.timeToLive * 1000,
            )
            for name, column in found.items()
        }

    @check_reply
    def starts(self, gateway: Connection, table: bytes) -> list[bytes]:
        found = gateway.ask("getTableRegions", table)
        return [each.startKey or b"" for each in found]

    def is_enabled(self, gateway: Connection, table: bytes) -> bool:
        return gateway.ask("isTableEnabled", table) is not False

    def create(
        self, gateway: Connection, table: bytes, families: Families, splits: Sequence[bytes]
    ) -> None:
        raise _cannot_make(table, shell_command("create", table, families, splits))

    def add(self, gateway: Connection, table: bytes, name: bytes, family: Family) -> None:
        raise _cannot_make(table, shell_command("alter", table, {name: family}))


def _column(key: Key) -> bytes:
    return key[1] + b":" + key[2]


@check_reply
def _read_rows(table: bytes, stamps: Collection[Key], found: list[TRowResult]) -> Cells:
    cells = {key: cell for result in found for key, cell in _cells(table, result).items()}
    lengths = {key: len(cells[key].value).to_bytes(4) for key in cells.keys() & stamps}
    return cells | {key: cells[key]._replace(value=length) for key, length in lengths.items()}


@check_reply
def _read_versions(key: Key, found: Sequence[TCell]) -> Versions:
    for cell in found:
        require_whole(cell.value, cell.timestamp)
    return {key: [Cell(cell.value, cell.timestamp) for cell in found]}


def _cells(table: bytes, result: TRowResult) -> Cells:
    require_whole(result.row)
    cells: Cells = {}
    for name, cell in result.columns.items():
        require_whole(cell.value, cell.timestamp)
        family, _, column = name.partition(b":")
        key = new_tuple(Key, (result.row, family, column, table))
        cells[key] = new_tuple(Cell, (cell.value, cell.timestamp))
    return cells


def _cannot_make(table: bytes, command: str) -> InvalidRequestError:
    return InvalidRequestError(
        "a Thrift 1 gateway cannot make a table that keeps its delete markers: make it through "
        "a Thrift 2 gateway, or in the HBase shell",
        table=table,
        command=command,
    )
