"""The tables and namespaces of HBase's Thrift 2 service.

HBase stores every setting of a family as text under a name, and shows some of them as typed fields
too. A typed field overrides the text of the same setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from txn.emulator import gateway
from txn.stores.hbase.idl import IDL
from txn.tables.admin import Admin
from txn.tables.catalog import Region, TableEntry, check_settings
from txn.tables.filters.patterns import matcher
from txn.tables.operations import FamilySettings, Refused

TABLE_ATTRIBUTES = {b"IS_META": b"false", b"hbase.store.file-tracker.impl": b"DEFAULT"}
LATIN = "latin-1"

_DEFAULTS = FamilySettings()


class _Setting(NamedTuple):
    """A setting as text and as a Thrift 2 field. is_shown: its default is shown as text, too."""

    text: bytes
    field: str | None
    read: Callable[[str], Any]
    is_shown: bool = False


def _flag(text: str) -> bool:
    return text.lower() == "true"


def _ttl(text: str) -> int | None:
    return None if text.upper() == "FOREVER" else gateway.ttl_ms(int(text))


_SETTINGS = {
    "versions": _Setting(b"VERSIONS", "maxVersions", int, True),
    "min_versions": _Setting(b"MIN_VERSIONS", "minVersions", int, True),
    "ttl_ms": _Setting(b"TTL", "timeToLive", _ttl, True),
    "keep_deleted_cells": _Setting(b"KEEP_DELETED_CELLS", "keepDeletedCells", str.upper, True),
    "new_version_behavior": _Setting(b"NEW_VERSION_BEHAVIOR", None, _flag),
    "compression": _Setting(b"COMPRESSION", "compressionType", str.upper, True),
    "bloom_filter": _Setting(b"BLOOMFILTER", "bloomnFilterType", str.upper, True),
    "data_block_encoding": _Setting(b"DATA_BLOCK_ENCODING", "dataBlockEncoding", str.upper, True),
    "block_size": _Setting(b"BLOCKSIZE", "blockSize", int, True),
    "in_memory": _Setting(b"IN_MEMORY", "inMemory", _flag, True),
    "block_cache": _Setting(b"BLOCKCACHE", "blockCacheEnabled", _flag, True),
    "scope": _Setting(b"REPLICATION_SCOPE", "scope", int, True),
    "dfs_replication": _Setting(b"DFS_REPLICATION", "dfsReplication", int),
    "cache_blooms_on_write": _Setting(b"CACHE_BLOOMS_ON_WRITE", "cacheBloomsOnWrite", _flag),
    "cache_data_on_write": _Setting(b"CACHE_DATA_ON_WRITE", "cacheDataOnWrite", _flag),
    "cache_indexes_on_write": _Setting(b"CACHE_INDEX_ON_WRITE", "cacheIndexesOnWrite", _flag),
    "compress_tags": _Setting(b"COMPRESS_TAGS", "compressTags", _flag),
    "evict_blocks_on_close": _Setting(b"EVICT_BLOCKS_ON_CLOSE", "evictBlocksOnClose", _flag),
    "prefetch_blocks_on_open": _Setting(b"PREFETCH_BLOCKS_ON_OPEN", None, _flag),
}
_BY_TEXT = {setting.text: name for name, setting in _SETTINGS.items()}
_ENUMS = {
    "bloom_filter": IDL.TBloomFilterType,
    "compression": IDL.TCompressionAlgorithm,
    "data_block_encoding": IDL.TDataBlockEncoding,
    "keep_deleted_cells": IDL.TKeepDeletedCells,
}


class Tables2:
    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def getRegionLocation(self, table: bytes, row: bytes, **_: object) -> Any:
        regions = self._admin.table(gateway.check_table(table)).regions
        found = next(region for region in reversed(regions) if region.start <= row)
        return _location(table, found)

    def getAllRegionLocations(self, table: bytes) -> list[Any]:
        found = self._admin.find(gateway.check_table(table))
        return [_location(table, region) for region in found.regions] if found else []

    def getTableDescriptor(self, table: Any) -> Any:
        name = _name(table)
        return _describe(name, self._admin.table(name))

    def getTableDescriptors(self, tables: Sequence[Any]) -> list[Any]:
        known = self._admin.tables()
        names = [_name(table) for table in tables] or self._admin.user_tables()
        return [_describe(name, known[name]) for name in names if name in known]

    def getTableDescriptorsByPattern(self, **given: Any) -> list[Any]:
        return [_describe(*found) for found in self._match(**given).items()]

    def getTableDescriptorsByNamespace(self, name: str) -> list[Any]:
        return [_describe(*found) for found in self._admin.tables(name.encode()).items()]

    def getTableNamesByPattern(self, **given: Any) -> list[Any]:
        return [_table_name(name) for name in self._match(**given)]

    def getTableNamesByNamespace(self, name: str) -> list[Any]:
        return [_table_name(table) for table in self._admin.tables(name.encode())]

    def tableExists(self, tableName: Any) -> bool:
        return self._admin.find(_name(tableName)) is not None

    def isTableEnabled(self, tableName: Any) -> bool:
        return self._admin.table(_name(tableName)).enabled

    def isTableDisabled(self, tableName: Any) -> bool:
        return not self.isTableEnabled(tableName)

    def isTableAvailable(self, tableName: Any, splitKeys: Sequence[bytes] | None = None) -> bool:
        found = self._admin.find(_name(tableName))
        if found is None or not found.enabled:
            return False
        return not splitKeys or sum(map(found.splits.count, splitKeys)) == len(splitKeys)

    def createTable(self, desc: Any, splitKeys: Sequence[bytes] | None) -> None:
        name, splits = _name(desc.tableName), splitKeys or ()
        self._admin.create(name, _families(name, desc.columns), splits)

    def deleteTable(self, tableName: Any) -> None:
        self._admin.drop(_name(tableName))

    def truncateTable(self, tableName: Any, preserveSplits: bool) -> None:
        self._admin.truncate(_name(tableName), keep_splits=preserveSplits)

    def enableTable(self, tableName: Any) -> None:
        self._admin.enable(_name(tableName))

    def disableTable(self, tableName: Any) -> None:
        self._admin.disable(_name(tableName))

    def addColumnFamily(self, tableName: Any, column: Any) -> None:
        self._admin.add_family(_name(tableName), column.name, _settings(column))

    def deleteColumnFamily(self, tableName: Any, column: bytes) -> None:
        self._admin.drop_family(_name(tableName), column)

    def modifyColumnFamily(self, tableName: Any, column: Any) -> None:
        self._admin.modify_family(_name(tableName), column.name, _settings(column))

    def modifyTable(self, desc: Any) -> None:
        name = _name(desc.tableName)
        self._admin.modify(name, _families(name, desc.columns))

    def createNamespace(self, namespaceDesc: Any) -> None:
        self._admin.create_namespace(namespaceDesc.name.encode(), namespaceDesc.configuration or {})

    def modifyNamespace(self, namespaceDesc: Any) -> None:
        self._admin.modify_namespace(namespaceDesc.name.encode(), namespaceDesc.configuration or {})

    def deleteNamespace(self, name: str) -> None:
        self._admin.drop_namespace(name.encode())

    def getNamespaceDescriptor(self, name: str) -> Any:
        found = self._admin.namespaces().get(name.encode())
        if found is None:
            raise Refused("namespace not found", "no such namespace", namespace=name)
        return IDL.TNamespaceDescriptor(name, found or None)

    def listNamespaceDescriptors(self) -> list[Any]:
        return [
            IDL.TNamespaceDescriptor(name.decode(), properties or None)
            for name, properties in sorted(self._admin.namespaces().items())
        ]

    def listNamespaces(self) -> list[str]:
        return [name.decode() for name in sorted(self._admin.namespaces())]

    def getThriftServerType(self) -> int:
        return int(IDL.TThriftServerType.TWO)

    def getSlowLogResponses(self, **_: object) -> list[Any]:
        return []

    def clearSlowLogResponses(self, **_: object) -> list[bool]:
        return []

    def _match(self, regex: str | None, includeSysTables: bool) -> dict[bytes, TableEntry]:
        """Return tables whose full names match; in the default namespace its prefix is optional."""
        tables = self._admin.tables() if includeSysTables else self._admin.user_tables()
        if regex is None:
            return tables
        matches = matcher(regex.encode())
        prefix = gateway.DEFAULT_NAMESPACE + b":"
        return {
            name: table
            for name, table in tables.items()
            if matches(name) or (b":" not in name and matches(prefix + name))
        }


def _name(table: Any) -> bytes:
    """Return the name of a table, with its namespace unless that is the default."""
    if table is None or b":" in table.qualifier:
        raise gateway.InternalError("not a legal table name")
    if table.ns in (None, b"", gateway.DEFAULT_NAMESPACE):
        return gateway.check_table(table.qualifier)
    return gateway.check_table(b"%s:%s" % (table.ns, table.qualifier))


def _table_name(name: bytes) -> Any:
    namespace, _, qualifier = name.rpartition(b":")
    return IDL.TTableName(namespace or gateway.DEFAULT_NAMESPACE, qualifier)


def _describe(name: bytes, table: TableEntry) -> Any:
    columns = [_column(family, settings) for family, settings in sorted(table.families.items())]
    durability = IDL.TDurability.USE_DEFAULT
    return IDL.TTableDescriptor(_table_name(name), columns, TABLE_ATTRIBUTES, durability)


def _location(table: bytes, region: Region) -> Any:
    info = IDL.THRegionInfo(0, table, region.start, region.stop, False, False, 0)
    return IDL.THRegionLocation(IDL.TServerName(gateway.HOST, gateway.PORT, 0), info)


def _families(table: bytes, columns: Iterable[Any] | None) -> dict[bytes, FamilySettings]:
    if columns is None:
        raise gateway.InternalError("no column families")
    found: dict[bytes, FamilySettings] = {}
    for column in columns:
        if column.name in found:
            raise Refused("illegal argument", "the family is there twice", family=column.name)
        found[column.name] = _settings(column)
    if not found:
        raise Refused("do not retry", "a table needs at least one family", table=table)
    return found


def _settings(column: Any) -> FamilySettings:
    if not column.name:
        raise gateway.InternalError("a family needs a name")
    changes: dict[str, Any] = {}
    others: list[tuple[str, str]] = []
    for text, shown in (column.attributes or {}).items():
        if text in _BY_TEXT:
            name = _BY_TEXT[text]
            try:
                changes[name] = _SETTINGS[name].read(shown.decode())
            except ValueError as error:
                facts = {"name": text, "value": shown}
                raise Refused("illegal argument", "not a setting", **facts) from error
        else:
            others.append((text.decode(LATIN), shown.decode(LATIN)))
    for name, setting in _SETTINGS.items():
        value = getattr(column, setting.field) if setting.field else None
        if value is None:
            continue
        if name in _ENUMS:
            value = _ENUMS[name]._VALUES_TO_NAMES.get(value, getattr(_DEFAULTS, name))
        changes[name] = gateway.ttl_ms(value) if name == "ttl_ms" else value
    configuration = tuple((column.configuration or {}).items())
    settings = FamilySettings(**changes, attributes=tuple(others), configuration=configuration)
    check_settings(column.name, settings)
    return settings


def _column(family: bytes, settings: FamilySettings) -> Any:
    fields: dict[str, Any] = {}
    texts = {name.encode(LATIN): value.encode(LATIN) for name, value in settings.attributes}
    for name, setting in _SETTINGS.items():
        value = getattr(settings, name)
        shown = gateway.ttl_s(settings) if name == "ttl_ms" else value
        if setting.is_shown or value != getattr(_DEFAULTS, name):
            text = str(shown).lower() if isinstance(shown, bool) else str(shown)
            texts[setting.text] = text.encode()
        if name in _ENUMS:
            values = _ENUMS[name]._NAMES_TO_VALUES
            shown = values.get(value, values[getattr(_DEFAULTS, name)])
        if setting.field:
            fields[setting.field] = shown
    texts[b"INDEX_BLOCK_ENCODING"] = b"NONE"
    fields |= {"attributes": texts, "configuration": dict(settings.configuration) or None}
    return IDL.TColumnFamilyDescriptor(name=family, **fields)
