"""A distributed cluster: regions that move between servers, and servers that are killed."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from random import Random
from threading import Thread

import happybase
import pytest

from tests.integration.batches import transferring
from tests.integration.hbase import QUICK_JAVA
from tests.integration.shuffling import Shuffler
from txn import Key, Mutation, StoreError, connect
from txn.clock import SystemClock, poll
from txn.cluster.cluster import Cluster, start
from txn.cluster.settings import Settings
from txn.protocol.statuses import ProtocolName
from txn.stores.hbase.native.store import NativeStore

pytestmark = [pytest.mark.slow, pytest.mark.long]

COLUMN = b"d:x"
ROWS = {b"%03d" % number: b"value %d" % number for number in range(100)}
BACK_WITHIN_MS = 600_000
MOVED_WITHIN_MS = 60_000  # the second server may still be on its way to the master
MOVES = 2
READERS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("distributed") / "hbase"
    cluster = start(Settings(folder, distributed=True, region_servers=2, java_options=[QUICK_JAVA]))
    yield cluster
    cluster.stop(grace_ms=0)


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[happybase.Connection]:
    connection = happybase.Connection(
        "127.0.0.1", cluster.settings.ports["thrift1"], timeout=BACK_WITHIN_MS
    )
    yield connection
    connection.close()


def holder(cluster: Cluster, connection: happybase.Connection, table: bytes) -> str:
    """The region server that has the table."""
    port = connection.client.getTableRegions(table)[0].port
    return next(name for name, each in cluster.processes.items() if each.port == port)


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_regions_move_while_batches_are_under_way(cluster: Cluster, protocol: ProtocolName) -> None:
    name = f"moved-{uuid.uuid4().hex[:8]}"
    with connect(
        cluster.uris["native"],
        table=name,
        transactions=f"{name}-txn",
        protocol=protocol,
        salt_buckets=4,
    ) as engine:
        store = engine.context.store
        assert isinstance(store, NativeStore)
        rng = Random(1)
        with transferring(engine, name):
            for table in (name, f"{name}-txn") * MOVES:
                assert poll(Shuffler(store, table.encode(), rng).move, MOVED_WITHIN_MS)


def test_a_server_that_stood_still_is_not_believed(
    cluster: Cluster, connection: happybase.Connection
) -> None:
    """It does not know that its regions are elsewhere, and answers reads as of before."""
    name = f"stopped-{uuid.uuid4().hex[:8]}"
    key = Key("row", "d", "x", name)
    seen: list[bytes | None] = []
    due_ms = SystemClock().monotonic_ms() + BACK_WITHIN_MS
    with (
        connect(cluster.uris["native"], table=name) as before,
        connect(f"{cluster.uris['native']}?timeout_ms=5000", table=name) as after,
    ):
        before.ensure_table(name, ["d"])
        before.commit([Mutation(key, b"old")])
        stopped = holder(cluster, connection, name.encode())
        if stopped == holder(cluster, connection, b"hbase:meta"):  # which takes a minute to replace
            store = before.context.store
            assert isinstance(store, NativeStore)
            assert poll(Shuffler(store, name.encode(), Random(1)).move, MOVED_WITHIN_MS)
            stopped = holder(cluster, connection, name.encode())
            before.read([key])
        cluster.processes[stopped].signal(signal.SIGSTOP)
        try:
            while SystemClock().monotonic_ms() < due_ms:
                try:
                    after.commit([Mutation(key, b"new")])
                    break
                except StoreError:
                    pass  # it may take more than one call until its regions are open again
        finally:
            cluster.processes[stopped].signal(signal.SIGCONT)

        def read() -> None:
            is_over = False
            while not is_over:
                cell = before.read([key])[key]
                seen.append(cell and cell.value)
                is_over = not cluster.processes[stopped].is_alive
                is_over = is_over or SystemClock().monotonic_ms() > due_ms

        readers = [Thread(target=read) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    assert not cluster.processes[stopped].is_alive, "it ends itself when it knows"
    cluster.restart(stopped)
    assert set(seen) == {b"new"}


def test_acknowledged_rows_survive_killed_servers(
    cluster: Cluster, connection: happybase.Connection
) -> None:
    connection.create_table("accounts", {"d": {}})
    table = connection.table("accounts")
    for row, value in ROWS.items():
        table.put(row, {COLUMN: value})

    killed = holder(cluster, connection, b"accounts")
    clock = SystemClock()
    began = clock.monotonic_ms()
    cluster.kill(killed)
    table.put(b"after", {COLUMN: b"1"})
    print(f"writable again {clock.monotonic_ms() - began} ms after {killed} was killed")
    assert holder(cluster, connection, b"accounts") != killed
    assert {row: cells[COLUMN] for row, cells in table.scan()} == {**ROWS, b"after": b"1"}

    cluster.restart(killed)
    cluster.kill("master")
    table.put(b"without a master", {COLUMN: b"2"})
    cluster.restart("master")
    cluster.kill("thrift2")
    cluster.restart("thrift2")
    assert all(process.is_alive for process in cluster.processes.values())
    assert table.row(b"without a master") == {COLUMN: b"2"}
