"""Create, change and list tables, families and namespaces for HBase's clients.

Names are bytes; `default:t` and `t` are the same table. Refused carries the reason from which
HBase's error is made. A drop takes effect at once. Short transactions remove its cells afterwards;
if they are interrupted, the next drop continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from txn.documents import parse_stored
from txn.errors import CorruptRowError
from txn.model import plain_table
from txn.tables import catalog
from txn.tables.catalog import CATALOG, Families, TableCatalog, TableEntry
from txn.tables.kv.ordered import Reader, Writer
from txn.tables.operations import FamilySettings, Refused

_NAMESPACE = CATALOG + b"namespace "
_NAMESPACE_STOP = CATALOG + b"namespace!"
_BUILT_IN = (b"default", b"hbase")


class Admin(catalog.CatalogUser):
    """The tables of a store, on the same catalog as `LocalStore` and `Rows`."""

    __slots__ = ()

    def create(self, name: bytes, families: Families, splits: Sequence[bytes] = ()) -> None:
        """Create a table; `table exists`, `namespace not found`."""
        name = plain_table(name)
        catalog.check_names(name, families)
        if b"" in splits or len(set(splits)) < len(splits):
            message = "split keys must be distinct and not empty"
            raise Refused("illegal argument", message, table=name)

        def body(writer: Writer) -> None:
            known = self._load(writer)
            if name in known.tables:
                raise Refused("table exists", "the table exists", table=name)
            _check_namespace(writer, _namespace_of(name))
            catalog.save(writer, known, name, self._make_entry(known, dict(families), splits))

        self._ordered.write(body)

    def drop(self, name: bytes) -> None:
        """Drop a disabled table; `table not found`, `table not disabled`."""
        self._empty(name, lambda known, table: None)

    def truncate(self, name: bytes, *, keep_splits: bool = False) -> None:
        """Empty a disabled table and enable it; `table not found`, `table not disabled`."""

        def make_next(known: TableCatalog, table: TableEntry) -> TableEntry:
            return self._make_entry(known, table.families, table.splits if keep_splits else ())

        self._empty(name, make_next)

    def enable(self, name: bytes) -> None:
        """Enable a disabled table; `table not found`, `table not disabled`."""
        self._switch(name, True)

    def disable(self, name: bytes) -> None:
        """Disable an enabled table, so that reads and writes are refused; `table not enabled`."""
        self._switch(name, False)

    def find(self, name: bytes) -> TableEntry | None:
        return self._ordered.read(self._load).tables.get(plain_table(name))

    def table(self, name: bytes) -> TableEntry:
        """Return a table; `table not found`."""
        return self._ordered.read(self._load).find(plain_table(name))

    def tables(self, namespace: bytes | None = None) -> dict[bytes, TableEntry]:
        """Return all tables by name, or those of a namespace (`namespace not found`), sorted."""

        def body(reader: Reader) -> dict[bytes, TableEntry]:
            if namespace is not None:
                _check_namespace(reader, namespace)
            tables = sorted(self._load(reader).tables.items())
            return {name: each for name, each in tables if namespace in {None, _namespace_of(name)}}

        return self._ordered.read(body)

    def user_tables(self) -> dict[bytes, TableEntry]:
        tables = self.tables().items()
        return {name: table for name, table in tables if _namespace_of(name) != b"hbase"}

    def modify(self, name: bytes, families: Families) -> None:
        """Give the table exactly these families; the cells of dropped families are deleted."""
        catalog.check_names(plain_table(name), families)
        self._alter(name, lambda _: families)

    def add_family(self, name: bytes, family: bytes, settings: FamilySettings) -> None:
        """Add a family; `do not retry` if it exists."""

        def change(families: Families) -> Families:
            if family in families:
                raise Refused("do not retry", "the family exists", table=name, family=family)
            return {**families, family: settings}

        self._alter(name, change)

    def modify_family(self, name: bytes, family: bytes, settings: FamilySettings) -> None:
        """Replace a family's settings; `no such column family`."""

        def change(families: Families) -> Families:
            _check_there(name, family, families)
            return {**families, family: settings}

        self._alter(name, change)

    def drop_family(self, name: bytes, family: bytes) -> None:
        """Delete a family and its cells; `no such column family`, `do not retry` for the last."""

        def change(families: Families) -> Families:
            _check_there(name, family, families)
            if len(families) == 1:
                raise Refused("do not retry", "a table keeps one family", table=name, family=family)
            return {each: kept for each, kept in families.items() if each != family}

        self._alter(name, change)

    def create_namespace(self, name: bytes, properties: Mapping[str, str]) -> None:
        """Create a namespace; `namespace exists`."""
        if re.fullmatch(r"\w+", name.decode(errors="replace")) is None:
            raise Refused("illegal argument", "not a legal namespace name", namespace=name)

        def body(writer: Writer) -> None:
            if name in _read_namespaces(writer):
                raise Refused("namespace exists", "the namespace exists", namespace=name)
            writer.put(_NAMESPACE + name, json.dumps(dict(properties)).encode())

        self._ordered.write(body)

    def modify_namespace(self, name: bytes, properties: Mapping[str, str]) -> None:
        """Replace a namespace's properties; `namespace not found`."""

        def body(writer: Writer) -> None:
            _check_namespace(writer, name)
            writer.put(_NAMESPACE + name, json.dumps(dict(properties)).encode())

        self._ordered.write(body)

    def drop_namespace(self, name: bytes) -> None:
        """Drop an empty namespace; `namespace not found`, `constraint`."""

        def body(writer: Writer) -> None:
            if name in _BUILT_IN:
                raise Refused("constraint", "the namespace is reserved", namespace=name)
            _check_namespace(writer, name)
            if any(_namespace_of(each) == name for each in self._load(writer).tables):
                raise Refused("constraint", "the namespace has tables", namespace=name)
            writer.delete(_NAMESPACE + name)

        self._ordered.write(body)

    def namespaces(self) -> dict[bytes, dict[str, str]]:
        return self._ordered.read(_read_namespaces)

    def remove_garbage(self) -> None:
        """Remove the cells of dropped tables and families, some thousands in each transaction."""
        while self._ordered.write(catalog.remove_garbage, durable=False):
            pass

    def _make_entry(
        self, known: TableCatalog, families: Families, splits: Sequence[bytes]
    ) -> TableEntry:
        number, now_ms = catalog.next_number(known), self._clock.wall_ms()
        return TableEntry(number, families, splits=tuple(sorted(splits)), created_ms=now_ms)

    def _switch(self, name: bytes, enabled: bool) -> None:
        name = plain_table(name)

        def body(writer: Writer) -> None:
            known = self._load(writer)
            table = _require_disabled(known, name) if enabled else known.table(name)
            catalog.save(writer, known, name, replace(table, enabled=enabled))

        self._ordered.write(body)

    def _empty(
        self, name: bytes, make_next: Callable[[TableCatalog, TableEntry], TableEntry | None]
    ) -> None:
        name = plain_table(name)

        def body(writer: Writer) -> None:
            known = self._load(writer)
            table = _require_disabled(known, name)
            catalog.save(writer, known, name, make_next(known, table))
            catalog.mark_garbage(writer, table)

        self._ordered.write(body)
        self.remove_garbage()

    def _alter(self, name: bytes, change: Callable[[Families], Families]) -> None:
        """Change the families in one transaction, as another client may be changing them too."""
        name = plain_table(name)
        self.remove_garbage()

        def body(writer: Writer) -> None:
            known = self._load(writer)
            families = change(known.find(name).families)
            catalog.check_names(name, families)
            catalog.alter(writer, known, name, families)

        self._ordered.write(body)
        self.remove_garbage()


def _check_there(name: bytes, family: bytes, families: Families) -> None:
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


def _read_namespaces(reader: Reader) -> dict[bytes, dict[str, str]]:
    found: dict[bytes, dict[str, str]] = {name: {} for name in _BUILT_IN}
    for key in reader.keys(_NAMESPACE, _NAMESPACE_STOP):
        stored = reader.get(key) or b""
        try:
            found[key[len(_NAMESPACE) :]] = dict(parse_stored(stored))
        except (ValueError, TypeError) as error:
            message = "the catalog does not decode"
            raise CorruptRowError(message, key=key, stored=stored[:200]) from error
    return found


def _check_namespace(reader: Reader, name: bytes) -> None:
    if name not in _BUILT_IN and reader.get(_NAMESPACE + name) is None:
        raise Refused("namespace not found", "no such namespace", namespace=name)
