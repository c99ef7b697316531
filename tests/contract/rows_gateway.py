"""The rows of a real HBase behind its Thrift 2 gateway, asked and answered as `Rows` is."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import thriftpy2
from thriftpy2.rpc import make_client
from thriftpy2.thrift import TException

from txn.errors import InvalidRequestError
from txn.tables.cells import CellVersion
from txn.tables.operations import (
    Add,
    Append,
    Condition,
    FamilySettings,
    Operation,
    Put,
    Range,
    Remove,
    Result,
    Selection,
)

IDL = Path(__file__).parents[2] / "txn" / "stores" / "hbase" / "hbase2.thrift"
TIMEOUT_MS = 300_000
MANY = 10_000


class GatewayRefused(InvalidRequestError):
    """The gateway answered with an exception."""


def _module() -> Any:
    return thriftpy2.load(str(IDL), module_name="rows_gateway_thrift")


@contextmanager
def gateway_rows(uri: str) -> Iterator[GatewayRows]:
    """Open a connection to the gateway that a store's URI names."""
    parts = urlsplit(uri)
    thrift = _module()
    client = make_client(thrift.THBaseService, parts.hostname, parts.port, timeout=TIMEOUT_MS)
    try:
        yield GatewayRows(thrift, client)
    finally:
        client.close()


class GatewayRows:
    """One connection."""

    def __init__(self, thrift: Any, client: Any) -> None:
        self._thrift = thrift
        self._client = client

    def create(self, table: bytes, families: Mapping[bytes, FamilySettings]) -> None:
        """Create a table with the settings that matter."""
        columns = [
            self._thrift.TColumnFamilyDescriptor(
                name=name,
                maxVersions=settings.versions,
                minVersions=settings.min_versions,
                timeToLive=None if settings.ttl_ms is None else settings.ttl_ms // 1000,
            )
            for name, settings in families.items()
        ]
        desc = self._thrift.TTableDescriptor(tableName=self._name(table), columns=columns)
        self._client.createTable(desc, None)

    def drop(self, table: bytes) -> None:
        """Disable and drop a table."""
        self._client.disableTable(self._name(table))
        self._client.deleteTable(self._name(table))

    def get(
        self, table: bytes, rows: Sequence[bytes], selection: Selection, text: bytes | None = None
    ) -> list[Result]:
        """Return what is selected of each row; the filter is given as text."""
        gets = [
            self._thrift.TGet(
                row=row,
                maxVersions=selection.versions,
                filterString=text,
                storeLimit=selection.store_limit,
                storeOffset=selection.store_offset or None,
                **self._shared(selection),
            )
            for row in rows
        ]
        found = self._call("getMultiple", table, gets)
        return [_result(one, row) for one, row in zip(found, rows, strict=True)]

    def scan(
        self, table: bytes, rows: Range, selection: Selection, text: bytes | None = None
    ) -> list[Result]:
        """Return the results of a scan; the filter is given as text."""
        scan = self._thrift.TScan(
            startRow=rows.start,
            stopRow=rows.stop,
            reversed=rows.reverse,
            maxVersions=selection.versions,
            filterString=text,
            batchSize=selection.batch,
            colFamTimeRangeMap={
                family: self._thrift.TTimeRange(since, until)
                for family, since, until in selection.family_times
            }
            or None,
            **self._shared(selection),
        )
        found = self._call("getScannerResults", table, scan, MANY)
        return [_result(one, one.row) for one in found]

    def mutate(
        self, table: bytes, mutations: Sequence[tuple[bytes, Sequence[Operation]]]
    ) -> list[Result]:
        """Carry out the operations, one after the other."""
        results = []
        for row, operations in mutations:
            versions: list[CellVersion] = []
            for operation in operations:
                versions += self._do(table, row, operation)
            results.append(Result(row, tuple(versions)))
        return results

    def check_and_mutate(
        self, table: bytes, row: bytes, condition: Condition, operations: Sequence[Operation]
    ) -> bool:
        """Carry out the operations if the condition holds."""
        names = {"<": 0, "<=": 1, "=": 2, "!=": 3, ">=": 4, ">": 5}
        mutations = [
            self._thrift.TMutation(put=self._put(row, one))
            if isinstance(one, Put)
            else self._thrift.TMutation(deleteSingle=self._delete(row, one))  # type: ignore[arg-type]
            for one in operations
        ]
        return bool(
            self._call(
                "checkAndMutate",
                table,
                row,
                condition.family,
                condition.column,
                names[condition.operator],
                condition.value,
                self._thrift.TRowMutations(row=row, mutations=mutations),
            )
        )

    def _do(self, table: bytes, row: bytes, operation: Operation) -> tuple[CellVersion, ...]:
        match operation:
            case Put():
                self._call("put", table, self._put(row, operation))
            case Remove():
                self._call("deleteSingle", table, self._delete(row, operation))
            case Add(family, column, by, ttl_ms):
                columns = [self._thrift.TColumnIncrement(family, column, by)]
                asked = self._thrift.TIncrement(
                    row=row, columns=columns, attributes=_attributes(ttl_ms), returnResults=True
                )
                return _result(self._call("increment", table, asked), row).versions
            case Append(family, column, value, ttl_ms):
                values = [self._thrift.TColumnValue(family, column, value)]
                asked = self._thrift.TAppend(
                    row=row, columns=values, attributes=_attributes(ttl_ms), returnResults=True
                )
                return _result(self._call("append", table, asked), row).versions
        return ()

    def _put(self, row: bytes, put: Put) -> Any:
        value = self._thrift.TColumnValue(put.family, put.column, put.value, put.timestamp)
        return self._thrift.TPut(row=row, columnValues=[value], attributes=_attributes(put.ttl_ms))

    def _delete(self, row: bytes, remove: Remove) -> Any:
        family, column, timestamp, exact = remove
        if family is None:
            return self._thrift.TDelete(row=row, timestamp=timestamp)
        kinds = self._thrift.TDeleteType
        if column is None:
            kind = kinds.DELETE_FAMILY_VERSION if exact else kinds.DELETE_FAMILY
        else:
            kind = kinds.DELETE_COLUMN if exact else kinds.DELETE_COLUMNS
        columns = [self._thrift.TColumn(family, column, timestamp)]
        return self._thrift.TDelete(row=row, columns=columns, deleteType=kind)

    def _shared(self, selection: Selection) -> dict[str, Any]:
        time_range = self._thrift.TTimeRange(selection.since, selection.until)
        columns = [self._thrift.TColumn(family, column) for family, column in selection.columns]
        return {"timeRange": time_range, "columns": columns or None}

    def _name(self, table: bytes) -> Any:
        return self._thrift.TTableName(ns=b"default", qualifier=table)

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._client, name)(*arguments)
        except TException as error:
            raise GatewayRefused(str(error)) from error


def _attributes(ttl_ms: int | None) -> dict[bytes, bytes] | None:
    return None if ttl_ms is None else {b"_ttl": struct.pack(">q", ttl_ms)}


def _result(found: Any, row: bytes) -> Result:
    versions = [
        CellVersion(cell.family, cell.qualifier or b"", cell.timestamp, cell.value or b"")
        for cell in found.columnValues or ()
    ]
    return Result(row, tuple(versions), bool(found.partial))
