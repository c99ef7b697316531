"""The tables of HBase's Thrift 1 service: making, listing, describing and compacting them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txn.clock import Clock
from txn.emulator.families import FOREVER_S, check_settings, ttl_ms, ttl_s
from txn.emulator.places import CLUSTER, HOST, PORT, check_table, region_name
from txn.emulator.refusals import Internal
from txn.emulator.thrift1.convert import IDL, column_of, make_io_error
from txn.model import KEEP_DELETES_MS
from txn.tables.admin import Admin, Region, regions_of
from txn.tables.operations import FamilySettings
from txn.tables.refusal import Refused
from txn.tables.tables import TableStore

COMPRESSIONS = ("BROTLI", "BZIP2", "GZ", "LZ4", "LZMA", "LZO", "NONE", "SNAPPY", "ZSTD")
BLOOM_FILTERS = ("NONE", "ROW", "ROWCOL", "ROWPREFIX_FIXED_LENGTH")
REGION_VERSION = 1
_RegionKey = tuple[bytes, bytes, bytes]


class Tables1:
    """Everything of the interface that is about tables, and the server itself."""

    def __init__(self, admin: Admin, tables: TableStore, clock: Clock) -> None:
        self._admin = admin
        self._tables = tables
        self._clock = clock

    def enableTable(self, table: bytes) -> None:
        self._admin.enable(check_table(table))

    def disableTable(self, table: bytes) -> None:
        self._admin.disable(check_table(table))

    def isTableEnabled(self, table: bytes) -> bool:
        return self._admin.is_enabled(check_table(table))

    def compact(self, name: bytes) -> None:
        """Nothing: there are no files to merge."""
        self._admin.families(_table_of(name))

    def majorCompact(self, name: bytes) -> None:
        """Drop what has expired, and delete markers that no transaction needs any more."""
        table = _table_of(name)
        self._admin.families(table)
        self._tables.compact(table, self._clock.wall_ms() - KEEP_DELETES_MS)

    def getTableNames(self) -> list[bytes]:
        return list(self._admin.user_tables())

    def getTableNamesWithIsTableEnabled(self) -> dict[bytes, bool]:
        return {name: found.enabled for name, found in self._admin.user_tables().items()}

    def getColumnDescriptors(self, table: bytes) -> dict[bytes, Any]:
        families = self._admin.families(check_table(table))
        return {name + b":": _pack_family(name + b":", family) for name, family in families.items()}

    def getTableRegions(self, table: bytes) -> list[Any]:
        found = self._admin.find(check_table(table))
        return [] if found is None else [_region(table, region) for region in regions_of(found)]

    def createTable(self, table: bytes, families: Sequence[Any]) -> None:
        try:
            check_table(table)
        except Refused as error:
            raise Internal(str(error)) from error
        if self._admin.exists(table):
            raise IDL.AlreadyExists(message="table name already in use")
        wanted = dict(map(_unpack_family, families))
        if not wanted:
            raise Refused("do not retry", "a table needs at least one family", table=table)
        try:
            self._admin.create(table, wanted)
        except Refused as error:
            if error.reason != "table exists":
                raise
            raise IDL.AlreadyExists(message="table name already in use") from error

    def deleteTable(self, table: bytes) -> None:
        if not self._admin.exists(check_table(table)):
            raise make_io_error("java.io.IOException: table does not exist", can_retry=True)
        self._admin.drop(table)

    def getRegionInfo(self, row: bytes) -> Any:
        """The last region whose row of `hbase:meta` is not after the given one."""
        found: tuple[_RegionKey, bytes, Region] | None = None
        wanted = _region_key(row)
        for table, known in self._admin.tables().items():
            for region in regions_of(known):
                key = (table, region.start, b"%d" % region.number)
                if key <= wanted and (found is None or key > found[0]):
                    found = key, table, region
        if found is None:
            text = f"java.io.IOException: Cannot find row in hbase:meta, row={row!r}"
            raise make_io_error(text, can_retry=True)
        return _region(found[1], found[2])

    def getThriftServerType(self) -> int:
        number: int = IDL.TThriftServerType.ONE
        return number

    def getClusterId(self) -> str:
        return CLUSTER


def _unpack_family(column: Any) -> tuple[bytes, FamilySettings]:
    if not column.name:
        raise IDL.IllegalArgument(message="column name is empty")
    name, _ = column_of(column.name)
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
    return name, check_settings(name, settings)


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
    """Return the table of a table's or a region's name."""
    return check_table(name.partition(b",")[0])


def _region_key(row: bytes) -> _RegionKey:
    """Return a row of `hbase:meta` as what such rows are ordered by."""
    table, _, rest = row.partition(b",")
    start, _, number = rest.rpartition(b",")
    return table, start, number.partition(b".")[0]
