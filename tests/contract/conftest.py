"""The stores that keep the contract, by name; and what a real HBase is compared with."""

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
from tests.integration.scoped import ScopedStore
from txn.clock import SystemClock
from txn.model import Cell, Edit, Family, Key
from txn.stores import open_ordered, open_store
from txn.stores.base import Store
from txn.tables.admin import Admin

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: f"memory://{uuid.uuid4().hex}",
    "embedded": lambda path: f"embedded://{path}/store",
}
# The store under test, and the one that makes its tables.
ON_HBASE: dict[str, Callable[[HBase], tuple[str, str]]] = {
    "native": lambda found: (found.native, found.native),
    "thrift 2": lambda found: (found.thrift2, found.thrift2),
    "thrift 1": lambda found: (found.thrift1, found.thrift2),
}
FAMILIES = {b"d": Family(versions=3), b"e": Family(versions=1)}
EMULATOR, SERVED = "emulator", "served"


@dataclass(frozen=True)
class Subject:
    """A store under test, with a table that has the families d (3 versions) and e.

    maker: a store of the same cells that makes tables and checks several cells at once.
    operator: where its tables are disabled, a Thrift 1 gateway or a store on this machine.
    prefix: what all rows begin with, unseen, where others share the table.
    """

    uri: str
    store: Store
    table: bytes
    maker: Store
    operator: str
    prefix: bytes

    def key(self, row: str | bytes, column: str | bytes, family: str = "d") -> Key:
        return Key(row, family, column, self.table)

    def get(self, key: Key) -> Cell | None:
        return self.store.read([key])[key]

    def value_of(self, key: Key) -> bytes | None:
        cell = self.get(key)
        return cell and cell.value

    def fill(self, rows: list[bytes]) -> None:
        self.store.write([Edit(self.key(row, "x"), row[:10], 10) for row in rows])

    @contextmanager
    def another_client(self, options: str = "") -> Iterator[Store]:
        with closing(open_store(self.uri + options)) as store:
            yield scoped(store, self.table, self.prefix)

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


def scoped(store: Store, table: bytes, prefix: bytes) -> Store:
    return ScopedStore(store, prefix, {table: FAMILIES}) if prefix else store


@pytest.fixture
def own_table() -> None:
    """Asked for by tests that cannot share a table, each of which takes HBase a second."""


@pytest.fixture(scope="module")
def shared_table(hbase: HBase) -> bytes:
    table = f"contract-{uuid.uuid4().hex}".encode()
    with closing(open_store(hbase.thrift2)) as maker:
        maker.ensure_table(table, FAMILIES)
    return table


@pytest.fixture(params=[*STORES, EMULATOR, SERVED, *ON_HBASE])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    table, prefix = f"contract-{uuid.uuid4().hex}".encode(), b""
    if request.param in ON_HBASE:
        found = request.getfixturevalue("hbase")
        (uri, maker_uri), operator = ON_HBASE[request.param](found), found.thrift1
        if "own_table" not in request.fixturenames:
            table, prefix = request.getfixturevalue("shared_table"), uuid.uuid4().bytes + b"/"
    elif request.param == EMULATOR:
        found = request.getfixturevalue("emulator")
        uri, maker_uri, operator = found.thrift2, found.thrift2, found.thrift1
    elif request.param == SERVED:
        uri = maker_uri = request.getfixturevalue("txn_server")
        operator = SERVED_CELLS
    else:
        uri = maker_uri = operator = STORES[request.param](tmp_path)
    with closing(open_store(uri)) as store, closing(open_store(maker_uri)) as maker:
        if not prefix:
            maker.ensure_table(table, FAMILIES)
        its, makers = (scoped(each, table, prefix) for each in (store, maker))
        yield Subject(uri, its, table, makers, operator, prefix)


@pytest.fixture(scope="module")
def ends(hbase: HBase, emulator: HBase) -> Iterator[Ends]:
    """A real HBase and the emulator, by both services."""
    with open_ends(hbase, emulator) as found:
        yield found
