"""A standalone cluster as a person runs it: started, looked at, stopped and started again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import happybase
import psutil
import pytest

from tests.integration.hbase import QUICK_JAVA, HBase
from txn.cluster.cluster import Cluster, open_cluster, start
from txn.cluster.processes import ClusterError
from txn.cluster.settings import Settings

pytestmark = pytest.mark.slow

COLUMN = b"d:x"
READY_WITHIN_S = 120


def command(*arguments: object) -> list[str]:
    code = "from recovery.commands import main; main()"
    return [sys.executable, "-c", code, "hbase", *map(str, arguments)]


def txn(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def connect(port: int) -> happybase.Connection:
    return happybase.Connection("127.0.0.1", port, timeout=300_000)


def port_of(uri: str) -> int:
    return int(uri.rpartition(":")[2])


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def soon(look: Callable[[], bool]) -> bool:
    """Look until it is so: a busy gateway may leave a question unanswered for some seconds."""
    deadline = time.monotonic() + READY_WITHIN_S
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def put(port: int, number: bytes) -> None:
    connection = connect(port)
    connection.create_table("accounts", {"d": {}})
    connection.table("accounts").put(b"alice", {COLUMN: number})
    connection.close()


def value(port: int) -> bytes:
    connection = connect(port)
    row = connection.table("accounts").row(b"alice")
    connection.close()
    return row[COLUMN]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a cluster, which does not outlive the test."""
    folder = tmp_path / "a cluster"
    yield folder
    txn("stop", "--now", "--data", folder)


def test_cluster_is_started_seen_stopped_and_finds_its_data_again(
    folder: Path, hbase: HBase
) -> None:
    done = txn("start", "--data", folder, "--json", "--java-option", QUICK_JAVA)
    assert done.returncode == 0, done.stderr
    started = document(done)
    assert not {*started["uris"].values()} & {hbase.thrift1, hbase.thrift2}
    put(started["ports"]["thrift1"], b"100")

    ready = started | {"ready": True}
    assert soon(lambda: document(txn("status", "--data", folder, "--json")) == ready)
    assert list(started["uris"]) == ["native", "thrift1", "thrift2"]
    stores = re.findall(r"\bhbase\S*://\S+", txn("status", "--data", folder).stdout)
    assert stores == [*started["uris"].values()]
    again = txn("start", "--data", folder)
    assert again.returncode == 2
    assert "it is running: stop it first" in again.stderr

    pids = [each["pid"] for each in started["processes"]]
    stopped = document(txn("stop", "--data", folder, "--json"))
    assert stopped == {"stopped": ["master", "thrift1", "thrift2"], "killed": []}
    assert not [pid for pid in pids if is_running(pid)]
    looked = txn("status", "--data", folder, "--json")
    assert looked.returncode == 1
    assert not document(looked)["ready"]
    assert "it was not running" in txn("stop", "--data", folder).stdout

    again = start(Settings(folder, java_options=[QUICK_JAVA]))
    assert again.settings.ports == started["ports"]
    assert value(again.settings.ports["thrift1"]) == b"100"
    hurt_a_gateway_and_stop(again)
    connect(port_of(hbase.thrift1)).close()


def hurt_a_gateway_and_stop(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="no such process name='region7'"):
        cluster.kill("region7")
    with pytest.raises(ClusterError, match="the process is still running name='thrift2'"):
        cluster.restart("thrift2")
    cluster.kill("thrift2")
    assert not cluster.is_ready()
    open_cluster(cluster.settings.folder).restart("thrift2")
    assert soon(cluster.is_ready)
    cluster.stop(grace_ms=0)
    recorded = open_cluster(cluster.settings.folder).processes.values()
    assert not [each for each in recorded if each.is_alive]


def test_servers_listen_on_this_machine_only(hbase: HBase) -> None:
    if hbase.cluster is None:
        return  # it is somebody else's, and so is where it listens
    for process in hbase.cluster.processes.values():
        listening = [
            each.laddr
            for each in psutil.Process(process.pid).net_connections()
            if each.status == psutil.CONN_LISTEN
        ]
        assert listening
        assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_gateway_serves_many_connections_at_once(hbase: HBase) -> None:
    connections = [connect(port_of(hbase.thrift1)) for _ in range(100)]
    for connection in connections:
        connection.tables()
    for connection in connections:
        connection.close()


def test_failed_start_shows_the_log_and_leaves_nothing_running(folder: Path) -> None:
    done = txn("start", "--data", folder, "--set", "hbase.rootdir=nosuch:///place")
    assert done.returncode == 2
    assert re.search(r"No FileSystem for scheme.*nosuch", done.stderr)
    assert done.stderr.splitlines()[-1].startswith("error: a process has ended name=master")
    assert not [each for each in open_cluster(folder).processes.values() if each.is_alive]


def test_version_that_is_not_here_is_refused_with_those_that_are(folder: Path) -> None:
    for line in (["start", "--data", folder], ["fetch"]):
        done = txn(*line, "--version", "1.7")
        assert done.returncode == 2
        assert done.stderr.startswith("error: no such version of HBase here version=1.7 known=(")
    assert not folder.exists()


def test_foreground_start_ends_the_servers_when_it_is_asked_to_end(folder: Path) -> None:
    line = ["start", "--foreground", "--data", folder, "--java-option", QUICK_JAVA, "--json"]
    with subprocess.Popen(command(*line), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = "".join(iter(process.stdout.readline, "}\n"))
        pids = [each["pid"] for each in json.loads(said + "}")["processes"]]
        process.terminate()
    assert process.returncode == 0
    assert not [pid for pid in pids if is_running(pid)]


def test_marks_come_from_this_run(hbase: HBase) -> None:
    if hbase.cluster is None:
        return
    for process in hbase.cluster.processes.values():
        environ = psutil.Process(process.pid).environ()
        assert environ["HBASE_TXN_TEST_RUN"] == os.environ["HBASE_TXN_TEST_RUN"]
