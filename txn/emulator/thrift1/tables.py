"""The tables of HBase's Thrift 1 service: creating, listing, describing and compacting them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txn.clock import Clock
from txn.emulator.gateway import (
    CLUSTER,
    FOREVER_S,
    HOST,
    PORT,
    check_table,
    fail_internally,
    region_name,
    ttl_ms,
    ttl_s,
)
from txn.emulator.thrift1 import IDL
from txn.model import KEEP_DELETES_MS
from txn.stores.local import LocalStore
from txn.tables.admin import Admin
from txn.tables.catalog import Region, check_settings
from txn.tables.operations import FamilySettings
from txn.tables.refusal import Refused

COMPRESSIONS = ("BROTLI", "BZIP2", "GZ", "LZ4", "LZMA", "LZO", "NONE", "SNAPPY", "ZSTD")
BLOOM_FILTERS = ("NONE", "ROW", "ROWCOL", "ROWPREFIX_FIXED_LENGTH")
REGION_VERSION = 1


class Tables1:
    def __init__(self, admin: Admin, tables: LocalStore, clock: Clock) -> None:
        self._admin = admin
        self._tables = tables
        self._clock = clock

    def enableTable(self, tableName: bytes) -> None:
        self._admin.enable(check_table(tableName))

    def disableTable(self, tableName: bytes) -> None:
        self._admin.disable(check_table(tableName))

    def isTableEnabled(self, tableName: bytes) -> bool:
        return self._admin.table(check_table(tableName)).enabled

    def compact(self, tableNameOrRegionName: bytes) -> None:
        """Do nothing: there are no files to merge."""
        self._admin.table(_table_of(tableNameOrRegionName))

    def majorCompact(self, tableNameOrRegionName: bytes) -> None:
        """Drop expired cells and delete markers that no transaction needs."""
        table = _table_of(tableNameOrRegionName)
        self._admin.table(table)
        self._tables.compact(table, self._clock.wall_ms() - KEEP_DELETES_MS)

    def getTableNames(self) -> list[bytes]:
        return list(self._admin.user_tables())

    def getTableNamesWithIsTableEnabled(self) -> dict[bytes, bool]:
        return {name: found.enabled for name, found in self._admin.user_tables().items()}

    def getColumnDescriptors(self, tableName: bytes) -> dict[bytes, Any]:
        families = self._admin.table(check_table(tableName)).families
        return {
            name + b":": _pack_family(name + b":", family)
            for name, family in sorted(families.items())
        }

    def getTableRegions(self, tableName: bytes) -> list[Any]:
        found = self._admin.find(check_table(tableName))
        return [_region(tableName, region) for region in found.regions] if found else []

    def createTable(self, tableName: bytes, columnFamilies: Sequence[Any]) -> None:
        with fail_internally():
            check_table(tableName)
        if self._admin.find(tableName) is not None:
            raise IDL.AlreadyExists(message="table name already in use")
        families = dict(map(_unpack_family, columnFamilies))
        if not families:
            raise Refused("do not retry", "a table needs at least one family", table=tableName)
        try:
            self._admin.create(tableName, families)
        except Refused as error:
            if error.reason != "table exists":
                raise
            raise IDL.AlreadyExists(message="table name already in use") from error

    def deleteTable(self, tableName: bytes) -> None:
        if self._admin.find(check_table(tableName)) is None:
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
        number: int = IDL.TThriftServerType.ONE
        return number

    def getClusterId(self) -> str:
        return CLUSTER


def _unpack_family(column: Any) -> tuple[bytes, FamilySettings]:
    if not column.name:
        raise IDL.IllegalArgument(message="column name is empty")
    name = column.name.partition(b":")[0]
    if column.compression.upper() not in COMPRESSIONS:
        raise Refused("illegal argument", "unknown compression", given=column.compression)
    if column.bloomFilterType not in BLOOM_FILTERS:
        raise Refused("illegal argument", "unknown bloom filter", given=column.bloomFilterType)
    settings = FamilySettings(
        versions=column.maxVersions,
        ttl_ms=ttl_ms(column.timeToLive if column.timeToLive > 0 else FOREVER_S),
        compression=column.compression.upper(),
        bloom_filter=column.bloomFilterType,
        in_memory=column.inMemory,
        block_cache=column.blockCacheEnabled,
    )
    check_settings(name, settings)
    return name, settings


def _pack_family(name: bytes, family: FamilySettings) -> Any:
    return IDL.ColumnDescriptor(
        name=name,
        maxVersions=family.versions,
        compression=family.compression,
        inMemory=family.in_memory,
        bloomFilterType=family.bloom_filter,
        blockCacheEnabled=family.block_cache,
        timeToLive=ttl_s(family),
    )


def _region(table: bytes, region: Region) -> Any:
    return IDL.TRegionInfo(
        startKey=region.start,
        endKey=region.stop,
        id=region.number,
        name=region_name(table, region),
        version=REGION_VERSION,
        serverName=HOST.encode(),
        port=PORT,
    )


def _table_of(name: bytes) -> bytes:
    return check_table(name.partition(b",")[0])
