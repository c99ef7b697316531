"""The stores that keep the contract, by name. A store joins the suite with one line in STORES."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.hbase import HBase
from txn.model import Cell, Family, Key
from txn.stores import open_store
from txn.stores.base import Store
from txn.stores.counting import CountingStore
from txn.stores.faulty import FaultyStore

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: f"memory://{uuid.uuid4().hex}",
    "embedded": lambda path: f"embedded://{path}/store",
    "embedded without sync": lambda path: f"embedded://{path}/store?sync=off",
}
# Around another store; while they let it be, nobody can tell.
AROUND: dict[str, Callable[[Store], Store]] = {"faulty": FaultyStore, "counting": CountingStore}
# On a real HBase: the store under test, and the one that makes its tables.
ON_HBASE: dict[str, Callable[[HBase], tuple[str, str]]] = {
    "thrift 2": lambda found: (found.thrift2, found.thrift2),
    "thrift 1": lambda found: (found.thrift1, found.thrift2),
}
# The same on our emulator of it.
ON_EMULATOR = {f"emulator {name}": uris for name, uris in ON_HBASE.items()}
SERVED = "served"


@dataclass(frozen=True)
class Subject:
    """A store under test, with a table of its own that has the families d (3 versions) and e.

    maker: a store of the same cells that makes tables and checks several cells at once.
    """

    uri: str
    store: Store
    table: bytes
    maker: Store

    def key(self, row: str | bytes, column: str | bytes, family: str = "d") -> Key:
        return Key(row, family, column, self.table)

    def get(self, key: Key) -> Cell | None:
        return self.store.read([key])[key]

    def another_client(self) -> Store:
        return open_store(self.uri)


@pytest.fixture(params=[*STORES, *AROUND, *ON_EMULATOR, SERVED, *ON_HBASE])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param in ON_HBASE:
        uri, maker_uri = ON_HBASE[request.param](request.getfixturevalue("hbase"))
    elif request.param in ON_EMULATOR:
        uri, maker_uri = ON_EMULATOR[request.param](request.getfixturevalue("emulator"))
    elif request.param == SERVED:
        uri = maker_uri = request.getfixturevalue("txn_server")
    else:
        uri = maker_uri = STORES.get(request.param, STORES["memory"])(tmp_path)
    store = AROUND.get(request.param, lambda store: store)(open_store(uri))
    maker = store if maker_uri == uri else open_store(maker_uri)
    table = f"contract-{uuid.uuid4().hex}".encode()
    maker.ensure_table(table, {b"d": Family(versions=3), b"e": Family(versions=1)})
    yield Subject(uri, store, table, maker)
    maker.close()
    store.close()
