"""The tables and namespaces of HBase's Thrift 2 service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from txn.emulator.families import check_settings, texts_of, ttl_ms, ttl_s, with_texts
from txn.emulator.places import CLUSTER, DEFAULT_NAMESPACE, HOST, PORT, check_table
from txn.emulator.refusals import Internal
from txn.stores.hbase.idl import IDL
from txn.tables.admin import Admin, Region, regions_of
from txn.tables.entries import TableEntry
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

    def getRegionLocation(self, table: bytes, row: bytes, _: bool) -> Any:
        regions = self._admin.regions(check_table(table))
        found = next(region for region in reversed(regions) if region.start <= row)
        return _location(table, found)

    def getAllRegionLocations(self, table: bytes) -> list[Any]:
        found = self._admin.find(check_table(table))
        return [] if found is None else [_location(table, region) for region in regions_of(found)]

    # --------------------------------------------------------------------- descriptions

    def getTableDescriptor(self, table: Any) -> Any:
        name = _name(table)
        return _describe(name, self._admin.families(name))

    def getTableDescriptors(self, tables: Sequence[Any]) -> list[Any]:
        known = self._admin.tables()
        names = [_name(table) for table in tables] or self._admin.user_tables()
        return [_describe(name, known[name].families) for name in names if name in known]

    def getTableDescriptorsByPattern(self, regex: str | None, system: bool) -> list[Any]:
        found = self._matching(regex, system)
        return [_describe(name, table.families) for name, table in found.items()]

    def getTableDescriptorsByNamespace(self, namespace: str) -> list[Any]:
        found = self._admin.tables(namespace.encode())
        return [_describe(name, table.families) for name, table in found.items()]

    def getTableNamesByPattern(self, regex: str | None, system: bool) -> list[Any]:
        return [_table_name(name) for name in self._matching(regex, system)]

    def getTableNamesByNamespace(self, namespace: str) -> list[Any]:
        return [_table_name(name) for name in self._admin.names(namespace.encode())]

    def tableExists(self, table: Any) -> bool:
        return self._admin.exists(_name(table))

    def isTableEnabled(self, table: Any) -> bool:
        return self._admin.is_enabled(_name(table))

    def isTableDisabled(self, table: Any) -> bool:
        return not self._admin.is_enabled(_name(table))

    def isTableAvailable(self, table: Any) -> bool:
        found = self._admin.find(_name(table))
        return found is not None and found.enabled

    def isTableAvailableWithSplit(self, table: Any, splits: Sequence[bytes] | None) -> bool:
        found = self._admin.find(_name(table))
        if found is None or not found.enabled:
            return False
        starts = [region.start for region in regions_of(found)[1:]]
        return not splits or sum(map(starts.count, splits)) == len(splits)

    # ------------------------------------------------------------------------- changes

    def createTable(self, table: Any, splits: Sequence[bytes] | None) -> None:
        name = _name(table.tableName)
        if len(set(splits or ())) < len(splits or ()) or b"" in (splits or ()):
            raise Refused("illegal argument", "splits are not empty, and not repeated")
        self._admin.create(name, _families(name, table.columns), sorted(splits or ()))

    def deleteTable(self, table: Any) -> None:
        self._admin.drop(_name(table))

    def truncateTable(self, table: Any, keep_splits: bool) -> None:
        self._admin.truncate(_name(table), keep_splits=keep_splits)

    def enableTable(self, table: Any) -> None:
        self._admin.enable(_name(table))

    def disableTable(self, table: Any) -> None:
        self._admin.disable(_name(table))

    def addColumnFamily(self, table: Any, column: Any) -> None:
        self._admin.add_family(_name(table), column.name, _settings(column))

    def deleteColumnFamily(self, table: Any, family: bytes) -> None:
        self._admin.drop_family(_name(table), family)

    def modifyColumnFamily(self, table: Any, column: Any) -> None:
        self._admin.modify_family(_name(table), column.name, _settings(column))

    def modifyTable(self, table: Any) -> None:
        name = _name(table.tableName)
        self._admin.modify(name, _families(name, table.columns))

    # ---------------------------------------------------------------------- namespaces

    def createNamespace(self, namespace: Any) -> None:
        self._admin.create_namespace(namespace.name.encode(), namespace.configuration or {})

    def modifyNamespace(self, namespace: Any) -> None:
        self._admin.modify_namespace(namespace.name.encode(), namespace.configuration or {})

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

    def getSlowLogResponses(self, _: object, __: object) -> list[Any]:
        return []

    def clearSlowLogResponses(self, _: object) -> list[bool]:
        return []

    def _matching(self, regex: str | None, system: bool) -> dict[bytes, TableEntry]:
        """Return the tables whose names match as a whole, those of `default` with or without it."""
        tables = self._admin.tables() if system else self._admin.user_tables()
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
        raise Internal("not a legal table name")
    if table.ns in (None, b"", DEFAULT_NAMESPACE):
        return check_table(table.qualifier)
    return check_table(b"%s:%s" % (table.ns, table.qualifier))


def _table_name(name: bytes) -> Any:
    namespace, _, qualifier = name.rpartition(b":")
    return IDL.TTableName(namespace or DEFAULT_NAMESPACE, qualifier)


def _describe(name: bytes, families: Mapping[bytes, FamilySettings]) -> Any:
    columns = [_column(family, settings) for family, settings in sorted(families.items())]
    durability = IDL.TDurability.USE_DEFAULT
    return IDL.TTableDescriptor(_table_name(name), columns, TABLE_ATTRIBUTES, durability)


def _location(table: bytes, region: Region) -> Any:
    info = IDL.THRegionInfo(0, table, region.start, region.stop, False, False, 0)
    return IDL.THRegionLocation(IDL.TServerName(HOST, PORT, 0), info)


def _families(table: bytes, columns: Iterable[Any] | None) -> dict[bytes, FamilySettings]:
    if columns is None:
        raise Internal("no column families")
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
        raise Internal("a family needs a name")
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
    return check_settings(column.name, replace(given, **changes, configuration=configuration))


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
