"""The store contract over tables on this machine: `memory://` and `embedded:///path?sync=off`.

`memory://` is the reference for every other store. `embedded://` keeps its cells in a directory
that many processes may use at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import NoReturn

from txn.clock import Clock
from txn.errors import TableUnavailable
from txn.model import Cell, Check, Columns, Edit, Family, Key, Row, RowExclusion
from txn.stores.base import Feature
from txn.tables.kv.ordered import OrderedStore
from txn.tables.refusal import Reason, Refused
from txn.tables.tables import TableStore

UNAVAILABLE: frozenset[Reason] = frozenset(
    {"table not found", "table not enabled", "no such column family"}
)


class LocalStore:
    """Tables in an ordered key-value store of this process. Each call is one local transaction."""

    __slots__ = ("_ordered", "_tables")

    features: frozenset[Feature] = frozenset(
        {"multi_cell_check", "row_mutations", "describe", "instant_reads", "atomic"}
    )

    def __init__(self, ordered: OrderedStore, clock: Clock) -> None:
        self._ordered = ordered
        self._tables = TableStore(ordered, clock)

    def read(
        self, *groups: Collection[Key], beside: Callable[[], None] | None = None
    ) -> dict[Key, Cell | None]:
        """Run `beside`, then read all groups in one instant."""
        if beside is not None:
            beside()
        try:
            return self._tables.read(list(chain(*groups)))
        except Refused as error:
            _raise_meaning(error)

    def read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        try:
            return self._tables.read_versions(keys, count)
        except Refused as error:
            _raise_meaning(error)

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        try:
            self._tables.write(edits, durable=durable)
        except Refused as error:
            _raise_meaning(error)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        try:
            return self._tables.check_and_put(checks, durable=durable)
        except Refused as error:
            _raise_meaning(error)

    def scan(
        self,
        table: bytes,
        start: bytes = b"",
        stop: bytes | None = None,
        columns: Columns = None,
        exclude: RowExclusion | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[Row]:
        """Yield the rows, read some hundreds at a time; nothing is held between the pages."""
        try:
            yield from self._tables.scan(table, start, stop, columns, exclude, reverse=reverse)
        except Refused as error:
            _raise_meaning(error)

    def atomically(self, work: Callable[[], None]) -> None:
        self._ordered.atomically(work)

    def list_tables(self) -> list[bytes]:
        """Return all names except those of the emulator's own namespace."""
        return [name for name in self._tables.list_tables() if not name.startswith(b"hbase:")]

    def describe(self, table: bytes) -> Mapping[bytes, Family] | None:
        return self._tables.describe(table)

    def ensure_table(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes] = ()
    ) -> None:
        """Create what is missing; splits have no effect on one machine."""
        self._tables.ensure_table(table, families)

    def assign_table(self, table: bytes, database: bytes) -> None:
        try:
            self._tables.assign_table(table, database)
        except Refused as error:
            _raise_meaning(error)

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        """Find the splits with a few seeks for each, without reading the rows in between."""
        try:
            return self._tables.find_splits(table, count, start, stop)
        except Refused as error:
            _raise_meaning(error)

    def compact(self, table: bytes, purge_before_ms: int | None = None) -> None:
        """Do the work of HBase's major compaction, which nothing else does here."""
        try:
            self._tables.compact(table, purge_before_ms)
        except Refused as error:
            _raise_meaning(error)

    def close(self) -> None:
        self._ordered.close()


def _raise_meaning(error: Refused) -> NoReturn:
    """Translate a refusal by the tables. To a plain HBase client its request is wrong; here a table
    is gone that existed when the request was checked."""
    if error.reason not in UNAVAILABLE:
        raise error
    table = error.facts["table"]
    assert isinstance(table, bytes)
    raise TableUnavailable(str(error), table) from error
