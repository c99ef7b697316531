"""A part of a store that looks like a store of its own: tests on HBase share two tables."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, KeysView, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.integration.hbase import HBase
from txn.clock import ManualClock, SystemClock
from txn.model import Edit, Family, Key, Row, RowExclusion
from txn.protocol.protocols import protocol_key
from txn.protocol.row import FAMILY
from txn.protocol.statuses import PROTOCOLS, ProtocolName
from txn.stores import open_store
from txn.stores.base import Feature, Store, StoreWrapper


class ScopedStore(StoreWrapper):
    """The rows of another store that begin with a prefix; which ends in a byte below 0xff.

    tables: what is known of them already; they are not asked for, or made, again.
    """

    def __init__(
        self, inner: Store, prefix: bytes, tables: dict[bytes, Mapping[bytes, Family]]
    ) -> None:
        super().__init__(inner)
        self.features: frozenset[Feature] = inner.features
        self._prefix = prefix
        self._tables = tables

    def _around(self, name: str, items: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        assert isinstance(call, partial)
        options = {each: value for each, value in call.keywords.items() if each != "durable"}
        return _change_keys(call.func(*_change_keys(call.args, self._there), **options), self._here)

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

    def close(self) -> None:
        pass

    def _there(self, key: Key) -> Key:
        return key._replace(row=self._prefix + key.row)

    def _here(self, key: Key) -> Key:
        return key._replace(row=key.row.removeprefix(self._prefix))


def _change_keys(given: Any, change: Callable[[Key], Key]) -> Any:
    """Change each key in arguments or in an answer of a store."""
    match given:
        case Key():
            return change(given)
        case dict():
            return {_change_keys(k, change): _change_keys(v, change) for k, v in given.items()}
        case tuple() if hasattr(given, "_fields"):
            kind: Any = type(given)
            return kind._make(_change_keys(each, change) for each in given)
        case tuple():
            return tuple(_change_keys(each, change) for each in given)
        case list() | set() | frozenset() | KeysView():
            return [_change_keys(each, change) for each in given]
        case _:
            return given


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
