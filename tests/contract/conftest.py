"""The stores that keep the contract, by name. A store joins the suite with one line in STORES."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from txn.model import Cell, Family, Key
from txn.stores import open_store
from txn.stores.base import Store

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: f"memory://{uuid.uuid4().hex}",
    "embedded": lambda path: f"embedded://{path}/store",
    "embedded without sync": lambda path: f"embedded://{path}/store?sync=off",
}


@dataclass(frozen=True)
class Subject:
    """A store under test, with a table of its own that has the families d (3 versions) and e."""

    uri: str
    store: Store
    table: bytes

    def key(self, row: str | bytes, column: str | bytes, family: str = "d") -> Key:
        return Key(row, family, column, self.table)

    def get(self, key: Key) -> Cell | None:
        return self.store.read([key])[key]

    def another_client(self) -> Store:
        return open_store(self.uri)


@pytest.fixture(params=STORES)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    uri = STORES[request.param](tmp_path)
    store = open_store(uri)
    table = f"contract-{uuid.uuid4().hex}".encode()
    store.ensure_table(table, {b"d": Family(versions=3), b"e": Family(versions=1)})
    yield Subject(uri, store, table)
    store.close()
