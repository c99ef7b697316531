"""The tables and namespaces of HBase's Thrift 2 service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from txn.emulator.families import texts_of, ttl_ms, ttl_s, with_texts
from txn.emulator.gateway import (
    CLUSTER,
    DEFAULT_NAMESPACE,
    HOST,
    PORT,
    InternalError,
    check_table,
)
from txn.stores.hbase.idl import IDL
from txn.tables.admin import Admin
from txn.tables.catalog import Region, TableEntry, check_settings
from txn.tables.filters.patterns import matcher
from txn.tables.operations import FamilySettings
from txn.tables.refusal import Refused

TABLE_ATTRIBUTES = {b"IS_META": b"false", b"hbase.store.file-tracker.impl": b"DEFAULT"}

# The typed fields of a family, and the settings that they are.
_FIELDS = {
    "maxVersions": "versions",
    "minVersions": "min_versions",
    "blockSize": "block_size",
    "inMemory": "in_memory",
    "blockCacheEnabled": "block_cache",
    "scope": "scope",
    "dfsReplication": "dfs_replication",
    "cacheBloomsOnWrite": "cache_blooms_on_write",
    "cacheDataOnWrite": "cache_data_on_write",
    "cacheIndexesOnWrite": "cache_indexes_on_write",
    "compressTags": "compress_tags",
    "evictBlocksOnClose": "evict_blocks_on_close",
}
_NAMED = {
    "bloomnFilterType": ("bloom_filter", IDL.TBloomFilterType, "ROW"),
    "compressionType": ("compression", IDL.TCompressionAlgorithm, "NONE"),
    "dataBlockEncoding": ("data_block_encoding", IDL.TDataBlockEncoding, "NONE"),
    "keepDeletedCells": ("keep_deleted_cells", IDL.TKeepDeletedCells, "FALSE"),
}


class Tables2:
    """Tables, their families and regions, namespaces, and the server itself."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    # ------------------------------------------------------------------------- regions

    def getRegionLocation(self, table: bytes, row: bytes, **_: object) -> Any:
        regions = self._admin.table(check_table(table)).regions
        found = next(region for region in reversed(regions) if region.start <= row)
        return _location(table, found)

    def getAllRegionLocations(self, table: bytes) -> list[Any]:
        found = self._admin.find(check_table(table))
        return [_location(table, region) for region in found.regions] if found else []

    # --------------------------------------------------------------------- descriptions

    def getTableDescriptor(self, table: Any) -> Any:
        name = _name(table)
        return _describe(name, self._admin.table(name))

    def getTableDescriptors(self, tables: Sequence[Any]) -> list[Any]:
        known = self._admin.tables()
        names = [_name(table) for table in tables] or self._admin.user_tables()
        return [_describe(name, known[name]) for name in names if name in known]

    def getTableDescriptorsByPattern(self, **given: Any) -> list[Any]:
        return [_describe(name, table) for name, table in self._match(**given).items()]

    def getTableDescriptorsByNamespace(self, name: str) -> list[Any]:
        found = self._admin.tables(name.encode())
        return [_describe(table, entry) for table, entry in found.items()]

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

    def isTableAvailable(self, tableName: Any) -> bool:
        found = self._admin.find(_name(tableName))
        return found is not None and found.enabled

    def isTableAvailableWithSplit(self, tableName: Any, splitKeys: Sequence[bytes] | None) -> bool:
        found = self._admin.find(_name(tableName))
        if found is None or not found.enabled:
            return False
        return not splitKeys or sum(map(found.splits.count, splitKeys)) == len(splitKeys)

    # ------------------------------------------------------------------------- changes

    def createTable(self, desc: Any, splitKeys: Sequence[bytes] | None) -> None:
        name, splits = _name(desc.tableName), splitKeys or ()
        if len(set(splits)) < len(splits) or b"" in splits:
            raise Refused("illegal argument", "splits are not empty, and not repeated")
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

    # ---------------------------------------------------------------------- namespaces

    def createNamespace(self, namespaceDesc: Any) -> None:
        name, properties = namespaceDesc.name.encode(), namespaceDesc.configuration or {}
        self._admin.create_namespace(name, properties)

    def modifyNamespace(self, namespaceDesc: Any) -> None:
        name, properties = namespaceDesc.name.encode(), namespaceDesc.configuration or {}
        self._admin.modify_namespace(name, properties)

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

    # -------------------------------------------------------------------------- server

    def getThriftServerType(self) -> int:
        number: int = IDL.TThriftServerType.TWO
        return number

    def getClusterId(self) -> str:
        return CLUSTER

    def getSlowLogResponses(self, **_: object) -> list[Any]:
        return []

    def clearSlowLogResponses(self, **_: object) -> list[bool]:
        return []

    def _match(self, regex: str | None, includeSysTables: bool) -> dict[bytes, TableEntry]:
        """Return the tables whose names match as a whole, those of `default` with or without it."""
        tables = self._admin.tables() if includeSysTables else self._admin.user_tables()
        if regex is None:
            return tables
        matches = matcher(regex.encode())
        prefix = DEFAULT_NAMESPACE + b":"
        return {
            name: table
            for name, table in tables.items()
            if matches(name) or (b":" not in name and matches(prefix + name))
        }


def _name(table: Any) -> bytes:
    """Return a table's name, its namespace before it unless it is the default one."""
    if table is None or b":" in table.qualifier:
        raise InternalError("not a legal table name")
    if table.ns in (None, b"", DEFAULT_NAMESPACE):
        return check_table(table.qualifier)
    return check_table(b"%s:%s" % (table.ns, table.qualifier))


def _table_name(name: bytes) -> Any:
    namespace, _, qualifier = name.rpartition(b":")
    return IDL.TTableName(namespace or DEFAULT_NAMESPACE, qualifier)


def _describe(name: bytes, table: TableEntry) -> Any:
    columns = [_column(family, settings) for family, settings in sorted(table.families.items())]
    durability = IDL.TDurability.USE_DEFAULT
    return IDL.TTableDescriptor(_table_name(name), columns, TABLE_ATTRIBUTES, durability)


def _location(table: bytes, region: Region) -> Any:
    info = IDL.THRegionInfo(0, table, region.start, region.stop, False, False, 0)
    return IDL.THRegionLocation(IDL.TServerName(HOST, PORT, 0), info)


def _families(table: bytes, columns: Iterable[Any] | None) -> dict[bytes, FamilySettings]:
    if columns is None:
        raise InternalError("no column families")
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
        raise InternalError("a family needs a name")
    given = with_texts(FamilySettings(), column.attributes or {})
    changes: dict[str, Any] = {
        setting: getattr(column, field)
        for field, setting in _FIELDS.items()
        if getattr(column, field) is not None
    }
    for field, (setting, kind, default) in _NAMED.items():
        if getattr(column, field) is not None:
            changes[setting] = kind._VALUES_TO_NAMES.get(getattr(column, field), default)
    if column.timeToLive is not None:
        changes["ttl_ms"] = ttl_ms(column.timeToLive)
    configuration = tuple((column.configuration or {}).items())
    settings = replace(given, **changes, configuration=configuration)
    check_settings(column.name, settings)
    return settings


def _column(name: bytes, settings: FamilySettings) -> Any:
    fields = {field: getattr(settings, setting) for field, setting in _FIELDS.items()}
    for field, (setting, kind, default) in _NAMED.items():
        names = kind._NAMES_TO_VALUES
        fields[field] = names.get(getattr(settings, setting), names[default])
    return IDL.TColumnFamilyDescriptor(
        name=name,
        attributes=texts_of(settings),
        configuration=dict(settings.configuration) or None,
        timeToLive=ttl_s(settings),
        **fields,
    )
