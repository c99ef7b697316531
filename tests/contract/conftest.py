"""The stores that keep the contract, by name. A store joins the suite with one line in STORES."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import happybase
import pytest

from tests.contract.both import Ends, open_ends
from tests.integration.emulator import SERVED_CELLS
from tests.integration.hbase import HBase
from txn.clock import SystemClock
from txn.model import Cell, Family, Key
from txn.stores import open_ordered, open_store
from txn.stores.base import Store
from txn.tables.admin import Admin
from txn.testing.counting import CountingStore
from txn.testing.faulty import FaultyStore

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: f"memory://{uuid.uuid4().hex}",
    "embedded": lambda path: f"embedded://{path}/store",
    "embedded without sync": lambda path: f"embedded://{path}/store?sync=off",
}
# Around another store; while they let it be, nobody can tell.
AROUND: dict[str, Callable[[Store], Store]] = {"faulty": FaultyStore, "counting": CountingStore}
# On a real HBase: the store under test, and the one that makes its tables.
ON_HBASE: dict[str, Callable[[HBase], tuple[str, str]]] = {
    "native": lambda found: (found.native, found.native),
    "thrift 2": lambda found: (found.thrift2, found.thrift2),
    "thrift 1": lambda found: (found.thrift1, found.thrift2),
}
# The same on our emulator of it.
ON_EMULATOR = {f"emulator {name}": uris for name, uris in ON_HBASE.items() if name != "native"}
SERVED = "served"


@dataclass(frozen=True)
class Subject:
    """A store under test, with a table of its own that has the families d (3 versions) and e.

    maker: a store of the same cells that makes tables and checks several cells at once.
    operator: where its tables are disabled, a Thrift 1 gateway or a store on this machine.
    """

    uri: str
    store: Store
    table: bytes
    maker: Store
    operator: str
    name: str

    def key(self, row: str | bytes, column: str | bytes, family: str = "d") -> Key:
        return Key(row, family, column, self.table)

    def get(self, key: Key) -> Cell | None:
        return self.store.read([key])[key]

    def another_client(self) -> Store:
        return open_store(self.uri)

    def hurried_client(self) -> Store:
        """One that waits for the answers of a gateway for four seconds."""
        hurry = "?timeout_ms=4000" if self.uri.startswith("hbase") else ""
        return AROUND.get(self.name, lambda store: store)(open_store(self.uri + hurry))

    @contextmanager
    def disabled(self, table: bytes) -> Iterator[None]:
        """Let the table be disabled for a block."""
        parts = urlsplit(self.operator)
        if parts.scheme == "hbase+thrift1":
            with closing(happybase.Connection(parts.hostname, parts.port)) as connection:
                connection.disable_table(table)
                yield
                connection.enable_table(table)
        else:
            with closing(open_ordered(self.operator)) as ordered:
                admin = Admin(ordered, SystemClock())
                admin.disable(table)
                yield
                admin.enable(table)


@pytest.fixture(params=[*STORES, *AROUND, *ON_EMULATOR, SERVED, *ON_HBASE])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param in ON_HBASE:
        found = request.getfixturevalue("hbase")
        (uri, maker_uri), operator = ON_HBASE[request.param](found), found.thrift1
    elif request.param in ON_EMULATOR:
        found = request.getfixturevalue("emulator")
        (uri, maker_uri), operator = ON_EMULATOR[request.param](found), found.thrift1
    elif request.param == SERVED:
        uri = maker_uri = request.getfixturevalue("txn_server")
        operator = SERVED_CELLS
    else:
        uri = maker_uri = operator = STORES.get(request.param, STORES["memory"])(tmp_path)
    store = AROUND.get(request.param, lambda store: store)(open_store(uri))
    maker = store if maker_uri == uri else open_store(maker_uri)
    table = f"contract-{uuid.uuid4().hex}".encode()
    maker.ensure_table(table, {b"d": Family(versions=3), b"e": Family(versions=1)})
    yield Subject(uri, store, table, maker, operator, request.param)
    maker.close()
    store.close()


@pytest.fixture(scope="module")
def ends(hbase: HBase, emulator: HBase) -> Iterator[Ends]:
    """A real HBase and the emulator, by both services."""
    with open_ends(hbase, emulator) as found:
        yield found
