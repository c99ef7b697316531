"""What we make for HBase, on the emulator: engines over both Thrift stores, commands, the job.

The contract of the stores themselves is in tests/contract, on the emulator too.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.integration.commands import run_here
from tests.integration.emulator import emulated
from tests.integration.hbase import HBase
from tests.integration.serving import PATIENCE_S, client
from txn import Delete, Exact, Key, Mutation, Some, connect
from txn.clock import SystemClock
from txn.emulator.thrift2 import service as thrift2
from txn.server.connection import ServedInterface
from txn.server.options import listen
from txn.server.ports import Server
from txn.tables.admin import Admin
from txn.tables.kv.memory import MemoryStore
from txn.tables.kv.ordered import Reader
from txn.tables.operations import FamilySettings, Put
from txn.tables.rows import Rows

R = TypeVar("R")


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


@pytest.mark.parametrize(("value_bytes", "rows"), [(2_000_000, 20), (1, 4)], ids=str)
def test_rows_of_a_reply_that_nobody_took_are_returned_again(value_bytes: int, rows: int) -> None:
    """A client that gave up waiting, and comes back by another connection, misses none: neither
    where it was gone before a small reply, nor where it left in the middle of a large one."""
    store, clock = Gated(), SystemClock()
    Admin(store, clock).create(b"t", {b"d": FamilySettings()})
    puts = [Put(b"d", b"x", bytes(value_bytes))]
    Rows(store, clock).mutate(b"t", [(b"%03d" % number, puts) for number in range(rows)])
    served = ServedInterface(thrift2.SERVICE, thrift2.handler(store, clock))
    with Server([(listen("127.0.0.1", 0), served)]) as server:
        (port,) = server.ports
        with client(port, service=thrift2.SERVICE) as before:
            number = before.openScanner(b"t", thrift2.IDL.TScan())
            [first] = before.getScannerRows(number, 1)
        with client(port, service=thrift2.SERVICE) as impatient:
            store.entered.clear()
            store.let.clear()
            impatient._send("getScannerRows", scannerId=number, numRows=rows - 2)
            assert store.entered.wait(PATIENCE_S)
        store.let.set()
        with server._changed:
            assert server._changed.wait_for(lambda: not server._connections, PATIENCE_S)
        with client(port, service=thrift2.SERVICE) as after:
            others = after.getScannerRows(number, rows)
    assert [each.row for each in [first, *others]] == [b"%03d" % number for number in range(rows)]
