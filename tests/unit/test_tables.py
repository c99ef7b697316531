"""What the tables do beyond the contract of a store: bounded pages, names, garbage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from txn.clock import ManualClock
from txn.errors import CorruptRowError, InvalidRequestError
from txn.model import Edit, Family, Key
from txn.stores.local import LocalStore
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.memory import MemoryStore
from txn.tables.kv.ordered import Reader
from txn.tables.pages import PAGE_CELLS, PAGE_ROWS

R = TypeVar("R")
TABLE = b"t"


class Counting(MemoryStore):
    """A memory store that counts its read transactions."""

    reads = 0

    def read(self, body: Callable[[Reader], R]) -> R:
        self.reads += 1
        return super().read(body)


def tables(store: MemoryStore | LmdbStore, clock: ManualClock | None = None) -> LocalStore:
    found = LocalStore(store, clock or ManualClock())
    found.ensure_table(TABLE, {b"d": Family(), b"t": Family(ttl_ms=1000)})
    return found


def key(row: str, column: str = "x", family: str = "d") -> Key:
    return Key(row, family, column, TABLE)


@pytest.mark.parametrize("kind", ["memory", "embedded"])
def test_a_refused_edit_leaves_no_other_of_its_call(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else LmdbStore(str(tmp_path / "store"), sync=False)
    found = tables(store)

    def work() -> None:
        with pytest.raises(InvalidRequestError):
            found.write([Edit(key("x"), b"1", 1), Edit(key("y"), b"1", -1)])
        found.write([Edit(key("z"), b"1", 1)])

    found.atomically(work)
    assert [row.row for row in found.scan(TABLE)] == [b"z"]
    store.close()


@pytest.mark.parametrize(
    ("rows", "columns", "wanted"),
    [(PAGE_ROWS * 3, 1, None), (3, PAGE_CELLS, None), (PAGE_CELLS, 3, {(b"d", b"y")})],
)
def test_a_scan_is_many_short_transactions(
    rows: int, columns: int, wanted: set[tuple[bytes, bytes]] | None
) -> None:
    store = Counting()
    found = tables(store)
    found.write(
        [
            Edit(key(f"{row:05d}", f"x{column}"), b"1", 1)
            for row in range(rows)
            for column in range(columns)
        ]
    )
    store.reads = 0
    assert len(list(found.scan(TABLE, columns=wanted))) == (0 if wanted else rows)
    assert store.reads >= 3


NAMES = [b"", b".dot", b"\xff"]


@pytest.mark.parametrize(
    ("table", "families", "match"),
    [
        *((name, {b"d": Family()}, "table name") for name in NAMES),
        *((name, {b"d": Family()}, "table name") for name in (b"two words", b"-dash", b"x" * 256)),
        *((TABLE, {name: Family()}, "family name") for name in NAMES),
        *((TABLE, {n: Family()}, "family name") for n in (b"a:b", b"a/b", b"\0", b"x" * 128)),
        (TABLE, {b"new": Family(versions=0)}, "must be positive"),
        (TABLE, {b"new": Family(ttl_ms=0)}, "must be positive"),
        (b"new", {}, "at least one family"),
    ],
)
def test_a_table_that_hbase_refuses_is_refused(
    table: bytes, families: dict[bytes, Family], match: str
) -> None:
    """A program that works here must work on HBase. 00 would also end a family in a key."""
    with pytest.raises(InvalidRequestError, match=match):
        tables(MemoryStore()).ensure_table(table, families)


def test_a_key_or_timestamp_that_hbase_refuses_is_refused() -> None:
    """The engine fills in its default table; a store has none."""
    found = tables(MemoryStore())
    with pytest.raises(InvalidRequestError, match="names no table"):
        found.read([Key("r", "d", "x")])
    for timestamp in (-1, 1 << 63):
        with pytest.raises(InvalidRequestError, match="timestamp"):
            found.write([Edit(key("r"), b"1", 5), Edit(key("s"), b"1", timestamp)])
    assert found.read([key("r")]) == {key("r"): None}


def test_a_catalog_that_does_not_decode_is_reported() -> None:
    store = MemoryStore()
    tables(store)
    store.write(lambda writer: writer.put(bytes(4) + b"table t", b"{"))
    with pytest.raises(CorruptRowError, match="does not decode"):
        LocalStore(store, ManualClock()).describe(TABLE)
