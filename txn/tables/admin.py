"""Making, changing and listing tables, families and namespaces, as HBase's clients do.

Names are bytes; `default:t` and `t` are the same table. Refused has the reason that HBase's error
is made from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from txn.clock import Clock
from txn.tables.operations import FamilySettings
from txn.tables.ordered import OrderedStore


class Region(NamedTuple):
    """A part of a table: its rows from start (included) to stop (excluded); b"" is open.

    number: of milliseconds, when it was made; HBase's region id.
    """

    start: bytes
    stop: bytes
    number: int


class Admin:
    """The tables of a store, on the same catalog as `Tables` and `Rows`."""

    __slots__ = ("_clock", "_store")

    def __init__(self, store: OrderedStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def create(
        self, name: bytes, families: Mapping[bytes, FamilySettings], splits: Sequence[bytes] = ()
    ) -> None:
        """Create a table; `table exists`, `namespace not found`."""
        raise NotImplementedError

    def drop(self, name: bytes) -> None:
        """Drop a disabled table; `table not found`, `table not disabled`."""
        raise NotImplementedError

    def truncate(self, name: bytes, *, keep_splits: bool = False) -> None:
        """Empty a disabled table and enable it; `table not found`, `table not disabled`."""
        raise NotImplementedError

    def enable(self, name: bytes) -> None:
        """Enable a disabled table; `table not found`, `table not disabled`."""
        raise NotImplementedError

    def disable(self, name: bytes) -> None:
        """Disable an enabled table: reads and writes are refused; `table not enabled`."""
        raise NotImplementedError

    def is_enabled(self, name: bytes) -> bool:
        """Return whether the table is enabled; `table not found`."""
        raise NotImplementedError

    def exists(self, name: bytes) -> bool:
        """Return whether there is such a table."""
        raise NotImplementedError

    def names(self, namespace: bytes | None = None) -> list[bytes]:
        """Return the names of all tables, or of a namespace's (`namespace not found`), sorted."""
        raise NotImplementedError

    def families(self, name: bytes) -> dict[bytes, FamilySettings]:
        """Return the families and their settings; `table not found`."""
        raise NotImplementedError

    def regions(self, name: bytes) -> list[Region]:
        """Return the regions in order of their rows; `table not found`."""
        raise NotImplementedError

    def modify(self, name: bytes, families: Mapping[bytes, FamilySettings]) -> None:
        """Give the table exactly these families; the cells of those left out are deleted."""
        raise NotImplementedError

    def add_family(self, name: bytes, family: bytes, settings: FamilySettings) -> None:
        """Add a family; `do not retry` if it is there."""
        raise NotImplementedError

    def modify_family(self, name: bytes, family: bytes, settings: FamilySettings) -> None:
        """Replace a family's settings; `no such column family`."""
        raise NotImplementedError

    def drop_family(self, name: bytes, family: bytes) -> None:
        """Delete a family and its cells; `no such column family`."""
        raise NotImplementedError

    def create_namespace(self, name: bytes, properties: Mapping[str, str]) -> None:
        """Create a namespace; `namespace exists`."""
        raise NotImplementedError

    def modify_namespace(self, name: bytes, properties: Mapping[str, str]) -> None:
        """Replace a namespace's properties; `namespace not found`."""
        raise NotImplementedError

    def drop_namespace(self, name: bytes) -> None:
        """Drop an empty namespace; `namespace not found`, `constraint`."""
        raise NotImplementedError

    def namespaces(self) -> dict[bytes, dict[str, str]]:
        """Return all namespaces and their properties, `default` and `hbase` among them."""
        raise NotImplementedError
