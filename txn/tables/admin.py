"""Making, changing and listing tables, families and namespaces, as HBase's clients do.

Names are bytes; `default:t` and `t` are the same table. Refused has the reason that HBase's error
is made from. What is dropped is gone at once; its cells are removed afterwards in short
transactions, by the next one if that was interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from txn.errors import CorruptRowError
from txn.tables import catalog
from txn.tables.catalog import CATALOG, TableCatalog
from txn.tables.entries import TableEntry
from txn.tables.kv.ordered import Reader, Writer
from txn.tables.operations import FamilySettings
from txn.tables.refusal import Refused

_NAMESPACE = CATALOG + b"namespace "
_NAMESPACE_STOP = CATALOG + b"namespace!"
_BUILT_IN = (b"default", b"hbase")

_Families = Mapping[bytes, FamilySettings]


class Region(NamedTuple):
    """A part of a table: its rows from start (included) to stop (excluded); b"" is open.

    number: of milliseconds, when it was made; HBase's region id.
    """

    start: bytes
    stop: bytes
    number: int


class Admin(catalog.OnCatalog):
    """The tables of a store, on the same catalog as `Tables` and `Rows`."""

    __slots__ = ()

    def create(
        self, name: bytes, families: Mapping[bytes, FamilySettings], splits: Sequence[bytes] = ()
    ) -> None:
        """Create a table; `table exists`, `namespace not found`."""
        name = catalog.plain(name)
        catalog.check_names(name, families)
        if b"" in splits or len(set(splits)) < len(splits):
            message = "split keys must be distinct and not empty"
            raise Refused("illegal argument", message, table=name)

        def body(writer: Writer) -> None:
            known = self._load(writer)
            if name in known.tables:
                raise Refused("table exists", "the table exists", table=name)
            _check_namespace(writer, _namespace_of(name))
            made = TableEntry(
                catalog.next_number(known),
                dict(families),
                splits=tuple(sorted(splits)),
                created_ms=self._clock.wall_ms(),
            )
            catalog.save(writer, known, name, made)

        self._store.write(body)

    def drop(self, name: bytes) -> None:
        """Drop a disabled table; `table not found`, `table not disabled`."""
        name = catalog.plain(name)

        def body(writer: Writer) -> None:
            known = self._load(writer)
            table = _require_disabled(known, name)
            catalog.save(writer, known, name, None)
            catalog.leave(writer, table)

        self._store.write(body)
        self.sweep()

    def truncate(self, name: bytes, *, keep_splits: bool = False) -> None:
        """Empty a disabled table and enable it; `table not found`, `table not disabled`."""
        name = catalog.plain(name)

        def body(writer: Writer) -> None:
            known = self._load(writer)
            table = _require_disabled(known, name)
            empty = TableEntry(
                catalog.next_number(known),
                table.families,
                splits=table.splits if keep_splits else (),
                created_ms=self._clock.wall_ms(),
            )
            catalog.save(writer, known, name, empty)
            catalog.leave(writer, table)

        self._store.write(body)
        self.sweep()

    def enable(self, name: bytes) -> None:
        """Enable a disabled table; `table not found`, `table not disabled`."""
        name = catalog.plain(name)

        def body(writer: Writer) -> None:
            known = self._load(writer)
            catalog.save(writer, known, name, replace(_require_disabled(known, name), enabled=True))

        self._store.write(body)

    def disable(self, name: bytes) -> None:
        """Disable an enabled table: reads and writes are refused; `table not enabled`."""
        name = catalog.plain(name)

        def body(writer: Writer) -> None:
            known = self._load(writer)
            catalog.save(writer, known, name, replace(known.table(name), enabled=False))

        self._store.write(body)

    def is_enabled(self, name: bytes) -> bool:
        """Return whether the table is enabled; `table not found`."""
        return self._find(name).enabled

    def exists(self, name: bytes) -> bool:
        """Return whether there is such a table."""
        return self.find(name) is not None

    def find(self, name: bytes) -> TableEntry | None:
        """Return a table, or None where there is none."""
        return self._store.read(self._load).tables.get(catalog.plain(name))

    def names(self, namespace: bytes | None = None) -> list[bytes]:
        """Return the names of all tables, or of a namespace's (`namespace not found`), sorted."""
        return list(self.tables(namespace))

    def tables(self, namespace: bytes | None = None) -> dict[bytes, TableEntry]:
        """Return the same tables by their names, all as of one instant."""

        def body(reader: Reader) -> dict[bytes, TableEntry]:
            if namespace is not None:
                _check_namespace(reader, namespace)
            tables = sorted(self._load(reader).tables.items())
            return {
                name: found for name, found in tables if namespace in {None, _namespace_of(name)}
            }

        return self._store.read(body)

    def user_tables(self) -> dict[bytes, TableEntry]:
        """Return the tables that HBase lists unless it is asked for those of the system, too."""
        tables = self.tables().items()
        return {name: table for name, table in tables if _namespace_of(name) != b"hbase"}

    def families(self, name: bytes) -> dict[bytes, FamilySettings]:
        """Return the families and their settings; `table not found`."""
        return dict(sorted(self._find(name).families.items()))

    def regions(self, name: bytes) -> list[Region]:
        """Return the regions in order of their rows; `table not found`."""
        return regions_of(self._find(name))

    def modify(self, name: bytes, families: Mapping[bytes, FamilySettings]) -> None:
        """Give the table exactly these families; the cells of those left out are deleted."""
        catalog.check_names(catalog.plain(name), families)
        self._alter(name, lambda _: families)

    def add_family(self, name: bytes, family: bytes, settings: FamilySettings) -> None:
        """Add a family; `do not retry` if it is there."""

        def change(families: _Families) -> _Families:
            if family in families:
                raise Refused("do not retry", "the family exists", table=name, family=family)
            return {**families, family: settings}

        self._alter(name, change)

    def modify_family(self, name: bytes, family: bytes, settings: FamilySettings) -> None:
        """Replace a family's settings; `no such column family`."""

        def change(families: _Families) -> _Families:
            _check_there(name, family, families)
            return {**families, family: settings}

        self._alter(name, change)

    def drop_family(self, name: bytes, family: bytes) -> None:
        """Delete a family and its cells; `no such column family`, or `do not retry` the last."""

        def change(families: _Families) -> _Families:
            _check_there(name, family, families)
            if len(families) == 1:
                raise Refused("do not retry", "a table keeps one family", table=name, family=family)
            return {each: kept for each, kept in families.items() if each != family}

        self._alter(name, change)

    def create_namespace(self, name: bytes, properties: Mapping[str, str]) -> None:
        """Create a namespace; `namespace exists`."""
        catalog.check_namespace_name(name)

        def body(writer: Writer) -> None:
            if name in _namespaces(writer):
                raise Refused("namespace exists", "the namespace exists", namespace=name)
            writer.put(_NAMESPACE + name, json.dumps(dict(properties)).encode())

        self._store.write(body)

    def modify_namespace(self, name: bytes, properties: Mapping[str, str]) -> None:
        """Replace a namespace's properties; `namespace not found`."""

        def body(writer: Writer) -> None:
            _check_namespace(writer, name)
            writer.put(_NAMESPACE + name, json.dumps(dict(properties)).encode())

        self._store.write(body)

    def drop_namespace(self, name: bytes) -> None:
        """Drop an empty namespace; `namespace not found`, `constraint`."""

        def body(writer: Writer) -> None:
            if name in _BUILT_IN:
                raise Refused("constraint", "the namespace is reserved", namespace=name)
            _check_namespace(writer, name)
            tables = [each for each in self._load(writer).tables if _namespace_of(each) == name]
            if tables:
                raise Refused("constraint", "the namespace has tables", namespace=name)
            writer.delete(_NAMESPACE + name)

        self._store.write(body)

    def namespaces(self) -> dict[bytes, dict[str, str]]:
        """Return all namespaces and their properties, `default` and `hbase` among them."""
        return self._store.read(_namespaces)

    def sweep(self) -> None:
        """Remove the cells of what was dropped, some thousands in each transaction."""
        while self._store.write(catalog.sweep, durable=False):
            pass

    def _find(self, name: bytes) -> TableEntry:
        return self._store.read(self._load).find(catalog.plain(name))

    def _alter(self, name: bytes, change: Callable[[_Families], _Families]) -> None:
        """Change the families in one transaction: another client may be changing them too."""
        name = catalog.plain(name)
        self.sweep()

        def body(writer: Writer) -> None:
            known = self._load(writer)
            families = change(known.find(name).families)
            catalog.check_names(name, families)
            catalog.alter(writer, known, name, families)

        self._store.write(body)
        self.sweep()


def regions_of(table: TableEntry) -> list[Region]:
    """Return the regions of a table in order of their rows."""
    edges = [b"", *table.splits, b""]
    return [Region(start, stop, table.created_ms) for start, stop in pairwise(edges)]


def _check_there(name: bytes, family: bytes, families: _Families) -> None:
    if family not in families:
        raise Refused("no such column family", "no such family", table=name, family=family)


def _require_disabled(known: TableCatalog, name: bytes) -> TableEntry:
    table = known.find(name)
    if table.enabled:
        raise Refused("table not disabled", "the table is enabled", table=name)
    return table


def _namespace_of(name: bytes) -> bytes:
    namespace, colon, _ = name.partition(b":")
    return namespace if colon else b"default"


def _namespaces(reader: Reader) -> dict[bytes, dict[str, str]]:
    found: dict[bytes, dict[str, str]] = {name: {} for name in _BUILT_IN}
    for key in reader.keys(_NAMESPACE, _NAMESPACE_STOP):
        stored = reader.get(key) or b""
        try:
            found[key[len(_NAMESPACE) :]] = dict(json.loads(stored))
        except ValueError as error:
            raise CorruptRowError(
                "the catalog does not decode", key=key, stored=stored[:200]
            ) from error
    return found


def _check_namespace(reader: Reader, name: bytes) -> None:
    if name not in _BUILT_IN and reader.get(_NAMESPACE + name) is None:
        raise Refused("namespace not found", "no such namespace", namespace=name)
