"""What we make for HBase, on the emulator: engines over both Thrift stores, commands, the job.

The contract of the stores themselves is in tests/contract, on the emulator too.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

from tests.integration.commands import run_here
from tests.integration.emulator import emulated
from tests.integration.hbase import HBase
from tests.integration.serving import PATIENCE_S, client
from txn import Delete, Exact, Key, Mutation, Some, connect
from txn.clock import SystemClock
from txn.emulator import thrift1
from txn.emulator.thrift2 import service as thrift2
from txn.server.connection import ServedInterface
from txn.server.listening import listen
from txn.server.ports import Server
from txn.tables.admin import Admin
from txn.tables.kv.memory import MemoryStore
from txn.tables.kv.ordered import Reader
from txn.tables.operations import FamilySettings, Put
from txn.tables.rows import Rows

R = TypeVar("R")
TWO = thrift2.IDL


@pytest.fixture
def accounts(emulator: HBase) -> Iterator[str]:
    """A table of two accounts, and the transaction table, made through Thrift 2."""
    name = f"accounts-{uuid.uuid4().hex[:8]}"
    with connect(emulator.thrift2) as engine:
        engine.ensure_table(name, ["d"])
        engine.commit([Mutation(account(name, who), b"100") for who in ("alice", "bob")])
    yield name


def account(table: str, who: str) -> Key:
    return Key(who, "d", "balance", table)


def test_a_transaction_commits_through_both_services_and_commands_find_nothing_wrong(
    emulator: HBase, accounts: str
) -> None:
    keys = [account(accounts, who) for who in ("alice", "bob")]
    for number, uri in enumerate((emulator.thrift1, emulator.thrift2)):
        with connect(uri) as engine:
            engine.commit([Mutation(key, b"%d" % number) for key in keys], [Some(keys[0])])
            found = engine.read(keys)
            assert {cell and cell.value for cell in found.values()} == {b"%d" % number}
        examined = run_here("doctor", "--store", uri, "--json", accounts)
        assert examined.returncode == 0, examined.stdout + examined.stderr
        verdicts = {json.loads(line)["verdict"] for line in examined.stdout.splitlines()}
        assert "wrong" not in verdicts
        checked = run_here("fsck", "--store", uri, "--scan", accounts)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("kind", ["thrift1", "thrift2"])
def test_a_table_that_was_made_without_the_emulator_can_be_deleted_from(
    tmp_path: Path, kind: str
) -> None:
    """Clients of HBase's services look whether its markers are kept, as they are."""
    with emulated(tmp_path / "store") as found:
        with connect(f"embedded://{tmp_path}/store?sync=off", table="made") as engine:
            engine.ensure_table("made", ["d"])
        with connect(getattr(found, kind), table="made") as engine:
            key = Key("row", "d", "v")
            engine.commit([Mutation(key, b"1")])
            engine.commit([Delete(key)], [Exact(key, b"1")])
            assert engine.read([key]) == {key: None}


class Dropping(MemoryStore):
    """A store one of whose tables is dropped after the next read of anything."""

    table: bytes | None = None

    def read(self, body: Callable[[Reader], R]) -> R:
        result = super().read(body)
        if self.table is not None:
            dropped, self.table = self.table, None
            admin = Admin(self, SystemClock())
            admin.disable(dropped)
            admin.drop(dropped)
        return result


@pytest.mark.parametrize(
    "listed",
    [
        lambda one, two: one.getTableNamesWithIsTableEnabled(),
        lambda one, two: one.getRegionInfo(b"z,,1"),
        lambda one, two: one.getTableRegions(b"a"),
        lambda one, two: two.getTableDescriptorsByPattern(None, False),
        lambda one, two: two.getTableDescriptorsByNamespace("default"),
        lambda one, two: two.getTableDescriptors([TWO.TTableName(None, b"a")]),
        lambda one, two: two.isTableAvailable(TWO.TTableName(None, b"a")),
        lambda one, two: two.getAllRegionLocations(b"a"),
    ],
)
def test_a_list_of_tables_is_of_one_instant(listed: Callable[[Any, Any], object]) -> None:
    """It must not fail because somebody drops a table: whoever lists has nothing to do with it."""
    store, clock = Dropping(), SystemClock()
    for name in (b"a", b"b"):
        Admin(store, clock).create(name, {b"d": FamilySettings()})
    one, two = thrift1.handler(store, clock), thrift2.handler(store, clock)
    store.table = b"a"
    listed(one, two)
    assert store.table is None


def test_what_hbase_tries_for_a_minute_is_refused_at_once(emulator: HBase, accounts: str) -> None:
    """With the error that it ends with there: a batch with a filter of whole rows, a TTL that is no
    number, and a put at a negative time."""
    table, one, two = accounts.encode(), thrift1.IDL, thrift2.IDL
    rows, odd = b"PageFilter(1)", {b"_ttl": b"1234567"}
    put = one.Mutation(column=b"d:balance", value=b"1")
    with client(urlsplit(emulator.thrift1).port or 0, service=thrift1.SERVICE) as first:
        number = first.scannerOpenWithScan(table, one.TScan(batchSize=1, filterString=rows), {})
        for method, arguments in (
            ("scannerGetList", [number, 1]),
            ("mutateRow", [table, b"r", [put], odd]),
            ("checkAndPut", [table, b"r", b"d:balance", b"", put, odd]),
        ):
            with pytest.raises(one.IOError, match="RetriesExhaustedException") as caught:
                getattr(first, method)(*arguments)
            assert caught.value.canRetry
    cells = [two.TColumnValue(b"d", b"balance", b"1")]
    late = [two.TColumnValue(b"d", b"balance", b"1", -1)]
    with client(urlsplit(emulator.thrift2).port or 0, service=thrift2.SERVICE) as second:
        for method, arguments in (
            ("getScannerResults", [table, two.TScan(batchSize=1, filterString=rows), 1]),
            ("put", [table, two.TPut(b"r", cells, attributes=odd)]),
            ("put", [table, two.TPut(b"r", late)]),
        ):
            with pytest.raises(two.TIOError, match="Failed 1 action") as failed:
                getattr(second, method)(*arguments)
            assert failed.value.canRetry
        put_it = two.TMutation(put=two.TPut(b"alice", cells))
        changed = two.TRowMutations(b"alice", [put_it])
        nothing = (table, b"alice", b"d", b"balance", two.TCompareOperator.NO_OP)
        with pytest.raises(two.TIOError) as failed:
            second.checkAndMutate(*nothing, b"100", changed)
        assert failed.value.canRetry
        assert not second.exists(table, two.TGet(b"r"))


class Gated(MemoryStore):
    """A store whose reads wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.let = threading.Event(), threading.Event()
        self.let.set()

    def read(self, body: Callable[[Reader], R]) -> R:
        self.entered.set()
        assert self.let.wait(PATIENCE_S)
        return super().read(body)


OPENINGS: dict[str, tuple[Any, Callable[[Any], int], str, str]] = {
    "thrift1": (
        thrift1,
        lambda c: c.scannerOpenWithScan(b"t", thrift1.IDL.TScan(), {}),
        "scannerGetList",
        "nbRows",
    ),
    "thrift2": (
        thrift2,
        lambda c: c.openScanner(b"t", thrift2.IDL.TScan()),
        "getScannerRows",
        "numRows",
    ),
}


@pytest.mark.parametrize("kind", OPENINGS)
@pytest.mark.parametrize(("value_bytes", "rows"), [(2_000_000, 20), (1, 4)], ids=str)
def test_rows_of_a_reply_that_nobody_took_are_returned_again(
    kind: str, value_bytes: int, rows: int
) -> None:
    """A client that gave up waiting, and comes back by another connection, misses none: neither
    where it was gone before a small reply, nor where it left in the middle of a large one."""
    service, start, method, count_name = OPENINGS[kind]
    store, clock = Gated(), SystemClock()
    Admin(store, clock).create(b"t", {b"d": FamilySettings()})
    puts = [Put(b"d", b"x", bytes(value_bytes))]
    Rows(store, clock).mutate(b"t", [(b"%03d" % number, puts) for number in range(rows)])
    served = ServedInterface(service.SERVICE, service.handler(store, clock))
    with Server([(listen("127.0.0.1", 0), served)]) as server:
        (port,) = server.ports
        with client(port, service=service.SERVICE) as before:
            number = start(before)
            [first] = getattr(before, method)(number, 1)
        with client(port, service=service.SERVICE) as impatient:
            store.entered.clear()
            store.let.clear()
            impatient._send(method, id=number, scannerId=number, **{count_name: rows - 2})
            assert store.entered.wait(PATIENCE_S)
        store.let.set()
        with server._changed:
            assert server._changed.wait_for(lambda: not server._connections, PATIENCE_S)
        with client(port, service=service.SERVICE) as after:
            others = getattr(after, method)(number, rows)
    assert [each.row for each in [first, *others]] == [b"%03d" % number for number in range(rows)]
