"""A distributed cluster keeps what it acknowledged when its servers are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import happybase
import pytest

from tests.integration.hbase import QUICK_JAVA
from txn.clock import SystemClock
from txn.cluster.cluster import Cluster, start
from txn.cluster.settings import Settings

pytestmark = pytest.mark.slow

COLUMN = b"d:x"
ROWS = {b"%03d" % number: b"value %d" % number for number in range(100)}
BACK_WITHIN_MS = 600_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = start(
        Settings(tmp_path / "hbase", distributed=True, region_servers=2, java_options=[QUICK_JAVA])
    )
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


def test_acknowledged_rows_survive_killed_servers(
    cluster: Cluster, connection: happybase.Connection
) -> None:
    """Tests of faults rest on this: what they then find missing, we have lost."""
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
