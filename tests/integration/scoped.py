"""A part of a store that looks like a store of its own: tests on HBase share two tables.

Making a table takes HBase a second. Each test gets rows that begin with a prefix of its own, which
is taken off again before the test sees them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.integration.hbase import HBase
from txn.clock import ManualClock, SystemClock
from txn.model import Cell, Check, Edit, Family, Key, Row, RowExclusion
from txn.protocol.protocols import protocol_key
from txn.protocol.row import FAMILY
from txn.protocol.statuses import PROTOCOLS, ProtocolName
from txn.stores import open_store
from txn.stores.base import Answers, Feature, Store


class ScopedStore:
    """The rows of another store that begin with a prefix; which ends in a byte below 0xff.

    tables: what is known of them already; they are not asked for, or made, again.
    """

    def __init__(
        self, inner: Store, prefix: bytes, tables: dict[bytes, Mapping[bytes, Family]]
    ) -> None:
        self.features: frozenset[Feature] = inner.features
        self._inner = inner
        self._prefix = prefix
        self._tables = tables

    def read(self, *groups: Collection[Key]) -> dict[Key, Cell | None]:
        there = [[self._there(key) for key in keys] for keys in groups]
        found = self._inner.read(*there)
        return {key: found[self._there(key)] for keys in groups for key in keys}

    def read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        found = self._inner.read_versions([self._there(key) for key in keys], count)
        return {key: found[self._there(key)] for key in keys}

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        there = [edit._replace(key=self._there(edit.key)) for edit in edits]
        self._inner.write(there, by_row=by_row)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        return self._inner.check_and_put([self._move(check) for check in checks])

    def check_and_read(
        self,
        checks: Sequence[Check],
        keys: Collection[Key],
        stamps: Collection[Key] = (),
        *,
        durable: bool = True,
    ) -> Answers:
        answers, found, times = self._inner.check_and_read(
            [self._move(check) for check in checks],
            [self._there(key) for key in keys],
            [self._there(key) for key in stamps],
        )
        return (
            answers,
            {key: found[self._there(key)] for key in keys},
            {key: times[self._there(key)] for key in stamps},
        )

    def _move(self, check: Check) -> Check:
        return check._replace(
            key=self._there(check.key),
            puts=tuple((self._there(key), value) for key, value in check.puts),
            edits=tuple(edit._replace(key=self._there(edit.key)) for edit in check.edits),
        )

    def scan(
        self,
        table: bytes,
        start: bytes = b"",
        stop: bytes | None = None,
        columns: Collection[tuple[bytes, bytes]] | None = None,
        exclude: RowExclusion | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[Row]:
        end = self._prefix + stop if stop else self._prefix[:-1] + bytes([self._prefix[-1] + 1])
        for row in self._inner.scan(
            table, self._prefix + start, end, columns, exclude, reverse=reverse
        ):
            cells = {self._here(key): cell for key, cell in row.cells.items()}
            yield Row(row.row.removeprefix(self._prefix), cells)

    def atomically(self, work: Callable[[], None]) -> None:
        self._inner.atomically(work)

    def list_tables(self) -> list[bytes]:
        return self._inner.list_tables()

    def describe(self, table: bytes) -> Mapping[bytes, Family] | None:
        if table not in self._tables:
            found = self._inner.describe(table)
            if found is None:
                return None
            self._tables[table] = found
        return self._tables[table]

    def ensure_table(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes] = ()
    ) -> None:
        if not set(families) <= set(self._tables.get(table, ())):
            self._inner.ensure_table(table, families, splits)

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        low, high = self._prefix + start, self._prefix + (stop or b"\xff")
        found = self._inner.find_splits(table, count, low, high)
        return [row.removeprefix(self._prefix) for row in found]

    def compact(self, table: bytes, purge_before_ms: int) -> None:
        self._inner.compact(table, purge_before_ms)

    def close(self) -> None:
        pass

    def _there(self, key: Key) -> Key:
        return key._replace(row=self._prefix + key.row)

    def _here(self, key: Key) -> Key:
        return key._replace(row=key.row.removeprefix(self._prefix))


class ServerClock(ManualClock):
    """The server's time, which goes by itself, and what a test adds to it or takes away."""

    def __init__(self) -> None:
        super().__init__(0)
        self._system = SystemClock()

    def wall_ms(self) -> int:
        return self._system.wall_ms() + super().wall_ms()

    def set_wall_ms(self, now_ms: int) -> None:
        super().set_wall_ms(now_ms - self._system.wall_ms())


class Worlds:
    """A HBase that is many worlds, one after the other."""

    def __init__(
        self,
        store: Store,
        tables: dict[bytes, Mapping[bytes, Family]],
        protocol: ProtocolName = "six-phase",
    ) -> None:
        self._store = store
        self._tables = dict(tables)
        self._protocol = protocol

    def opened(self) -> tuple[Store, ManualClock]:
        """A world without rows, and a clock near its server's."""
        prefix = uuid.uuid4().hex[:12].encode() + b"/"
        store = ScopedStore(self._store, prefix, self._tables)
        if self._protocol != "six-phase":
            store.write([Edit(protocol_key(b"txn"), PROTOCOLS[self._protocol].stored_name, 1)])
        return store, ServerClock()


@contextmanager
def worlds(hbase: HBase, gateway: str, protocol: ProtocolName = "six-phase") -> Iterator[Worlds]:
    """Worlds that have the tables data and other, through a gateway, which need not make them."""
    maker, store = open_store(hbase.thrift2), open_store(getattr(hbase, gateway))
    try:
        tables: dict[bytes, Mapping[bytes, Family]] = {
            b"txn": {FAMILY: Family(versions=1)},
            b"data": {b"d": Family()},
            b"other": {b"d": Family()},
        }
        for table, families in tables.items():
            maker.ensure_table(table, families)
        yield Worlds(store, tables, protocol)
    finally:
        store.close()
        maker.close()
