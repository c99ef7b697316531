"""The requests of HBase's Thrift 1 gateway, `hbase+thrift1://host:port`.

A checked write carries one cell. Several cells are several writes on the same condition, the
checked cell last; they end at the first "no". `isDelete` in them would write an empty value, so
markers go by mutateRowsTs. The gateway cannot show or set all settings that matter, so it creates
no tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import SplitResult

import happybase  # noqa: F401  (loads the next module from its own interface file)
from Hbase_thrift import BatchMutation, Hbase, Mutation, TRowResult, TScan

from txn.clock import Clock
from txn.errors import InvalidRequestError
from txn.model import Cell, Check, Columns, Edit, Family, Key, Row, new_tuple
from txn.stores.base import Feature
from txn.stores.gateway import Job, Pool, make_requests, parse_gateway, run_request
from txn.stores.hbase.places import KeysByRow, cut
from txn.stores.hbase.schema import FOREVER_S, shell_command
from txn.stores.hbase.store import BYTES_A_REQUEST, ROWS_A_REQUEST, HBaseStore, PageScan


def thrift1_store(parts: SplitResult, clock: Clock) -> HBaseStore:
    """Return the store behind the Thrift 1 gateway of a URI, without sending anything yet."""
    return HBaseStore(Pool(parse_gateway(parts), Hbase, clock), Thrift1(), clock)


NOW = (1 << 63) - 1  # means the server's time


class Thrift1:
    features: frozenset[Feature] = frozenset()

    def read(self, table: bytes, rows: KeysByRow) -> list[Job[dict[Key, Cell]]]:
        """Send one getRowsWithColumns for all rows with the same wanted columns."""
        groups: dict[tuple[bytes, ...], list[bytes]] = {}
        for row, keys in rows.items():
            groups.setdefault(tuple(sorted(map(_column, keys))), []).append(row)
        return [
            _read(table, names[start : start + ROWS_A_REQUEST], columns)
            for columns, names in groups.items()
            for start in range(0, len(names), ROWS_A_REQUEST)
        ]

    def read_versions(
        self, table: bytes, rows: KeysByRow, count: int
    ) -> list[Job[dict[Key, list[Cell]]]]:
        return [_read_versions(table, key, count) for keys in rows.values() for key in keys]

    def write(self, table: bytes, edits: Sequence[Edit], by_row: bool) -> list[Job[None]]:
        times: dict[int | None, dict[bytes, list[Mutation]]] = {}
        for key, value, timestamp in edits:
            mutation = Mutation(value is None, _column(key), value, True)
            times.setdefault(timestamp, {}).setdefault(key[0], []).append(mutation)
        return [
            run_request(
                _call("mutateRowsTs", table, part, NOW if timestamp is None else timestamp, {})
            )
            for timestamp, rows in times.items()
            for part in _parts([BatchMutation(row, mutations) for row, mutations in rows.items()])
        ]

    def check(self, check: Check) -> Job[bool]:
        key, expected, puts, _ = check
        column = _column(key)
        for put, value in sorted(puts, key=lambda item: item[0] == key):
            mutation = Mutation(False, _column(put), value, True)
            moved = yield _call("checkAndPut", key[3], key[0], column, expected, mutation, {})
            if not moved:
                return False
        return True

    def page(self, scan: PageScan, columns: Columns) -> Job[list[Row]]:
        wanted = None if columns is None else [b":".join(column) for column in columns]
        asked = TScan(
            startRow=scan.first,
            stopRow=scan.last or None,
            columns=wanted,
            caching=scan.rows,
            filterString=scan.sieve,
            reversed=scan.reverse or None,
        )
        scanner = yield _call("scannerOpenWithScan", scan.table, asked, {})
        found = yield _call("scannerGetList", scanner, scan.rows)
        yield _call("scannerClose", scanner)
        return [Row(result.row, _cells(scan.table, result)) for result in found]

    def list_tables(self) -> Job[list[bytes]]:
        names: list[bytes] = yield _call("getTableNames")
        return names

    def describe(self, table: bytes) -> Job[dict[bytes, Family]]:
        """Send one getColumnDescriptors, which shows version counts and TTLs only."""
        found = yield _call("getColumnDescriptors", table)
        return {
            name.rstrip(b":"): Family(
                versions=column.maxVersions,
                ttl_ms=None if column.timeToLive in (-1, FOREVER_S) else column.timeToLive * 1000,
            )
            for name, column in found.items()
        }

    def starts(self, table: bytes) -> Job[list[bytes]]:
        found = yield _call("getTableRegions", table)
        return [each.startKey or b"" for each in found]

    def is_enabled(self, table: bytes) -> Job[bool]:
        return (yield _call("isTableEnabled", table)) is not False

    def create(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes]
    ) -> Job[None]:
        """Raise an error with the shell command to use instead."""
        raise _cannot_make(table, shell_command("create", table, families, splits))
        yield

    def add(self, table: bytes, name: bytes, family: Family) -> Job[None]:
        """Raise an error with the shell command to use instead."""
        raise _cannot_make(table, shell_command("alter", table, {name: family}))
        yield


_call = make_requests(Hbase)


def _column(key: Key) -> bytes:
    return key[1] + b":" + key[2]


def _read(table: bytes, rows: Sequence[bytes], columns: Sequence[bytes]) -> Job[dict[Key, Cell]]:
    found = yield _call("getRowsWithColumns", table, list(rows), list(columns), {})
    return {key: cell for result in found for key, cell in _cells(table, result).items()}


def _read_versions(table: bytes, key: Key, count: int) -> Job[dict[Key, list[Cell]]]:
    found = yield _call("getVer", table, key.row, _column(key), count, {})
    return {key: [Cell(cell.value, cell.timestamp) for cell in found]}


def _cells(table: bytes, result: TRowResult) -> dict[Key, Cell]:
    cells: dict[Key, Cell] = {}
    for name, cell in result.columns.items():
        family, _, column = name.partition(b":")
        key = new_tuple(Key, (result.row, family, column, table))
        cells[key] = new_tuple(Cell, (cell.value, cell.timestamp))
    return cells


def _parts(batches: Sequence[BatchMutation]) -> Iterator[list[BatchMutation]]:
    return cut(
        batches,
        lambda batch: sum(len(one.value or b"") for one in batch.mutations),
        BYTES_A_REQUEST,
        ROWS_A_REQUEST,
    )


def _cannot_make(table: bytes, command: str) -> InvalidRequestError:
    return InvalidRequestError(
        "a Thrift 1 gateway cannot make a table that keeps its delete markers: make it through "
        "a Thrift 2 gateway, or in the HBase shell",
        table=table,
        command=command,
    )
