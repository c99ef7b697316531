"""A standalone cluster as a person runs it: started, looked at, stopped and started again, also in
a later version. Most of it is `long`; the cluster that all tests share is looked at in any case."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import happybase
import psutil
import pytest

from tests.integration.commands import START, run_here
from tests.integration.hbase import QUICK_JAVA, HBase
from txn import Exact, Key, Mutation, connect
from txn.cluster.cluster import Cluster, open_cluster, start
from txn.cluster.jars import HBASE_VERSION
from txn.cluster.processes import ClusterError
from txn.cluster.settings import Settings, SettingsError

pytestmark = pytest.mark.slow

READY_WITHIN_S = 120
EARLIER = "2.5.8"
ALICE, BOB = Key("alice", "d", "balance", "accounts"), Key("bob", "d", "balance", "accounts")


def txn(*arguments: object) -> CompletedProcess[str]:
    return run_here("hbase", *map(str, arguments))


def document(done: CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def open_gateway(uri: str) -> happybase.Connection:
    return happybase.Connection("127.0.0.1", int(uri.rpartition(":")[2]), timeout=300_000)


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def soon(look: Callable[[], bool]) -> bool:
    """Look until it is so: a busy gateway may leave a question unanswered for some seconds."""
    deadline = time.monotonic() + READY_WITHIN_S
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a cluster, which does not outlive the test."""
    folder = tmp_path / "a cluster"
    yield folder
    txn("stop", "--now", "--data", folder)


@pytest.mark.long
def test_cluster_is_started_seen_stopped_and_finds_its_data_again(
    folder: Path, hbase: HBase
) -> None:
    done = txn("start", "--data", folder, "--json", "--java-option", QUICK_JAVA)
    assert done.returncode == 0, done.stderr
    started = document(done)
    assert not {*started["uris"].values()} & {hbase.thrift1, hbase.thrift2}
    with connect(started["uris"]["native"]) as engine:
        engine.ensure_table("accounts", ["d"])
        engine.commit([Mutation(ALICE, "100")])

    ready = started | {"ready": True}
    assert soon(lambda: document(txn("status", "--data", folder, "--json")) == ready)
    assert list(started["uris"]) == ["native", "thrift1", "thrift2"]
    stores = re.findall(r"\bhbase\S*://\S+", txn("status", "--data", folder).stdout)
    assert stores == [*started["uris"].values()]
    again = txn("start", "--data", folder)
    assert (again.returncode, "it is running: stop it first" in again.stderr) == (2, True)

    pids = [each["pid"] for each in started["processes"]]
    stopped = document(txn("stop", "--data", folder, "--json"))
    assert stopped == {"stopped": ["master", "thrift1", "thrift2"], "killed": []}
    assert not [pid for pid in pids if is_running(pid)]
    looked = txn("status", "--data", folder, "--json")
    assert (looked.returncode, document(looked)["ready"]) == (1, False)
    assert "it was not running" in txn("stop", "--data", folder).stdout

    cluster = start(Settings(folder, java_options=[QUICK_JAVA]))
    assert cluster.settings.ports == started["ports"]
    with connect(cluster.uris["thrift1"]) as engine:
        cell = engine.read([ALICE])[ALICE]
        assert cell and cell.value == b"100"
    hurt_a_gateway_and_stop(cluster)
    open_gateway(hbase.thrift1).close()


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


def test_servers_listen_on_this_machine_only_and_have_the_mark_of_this_run(hbase: HBase) -> None:
    """No database without a password may be offered to the network."""
    if hbase.cluster is None:
        return  # it is somebody else's, and so is where it listens
    for process in hbase.cluster.processes.values():
        running = psutil.Process(process.pid)
        connections = running.net_connections()
        listening = [each.laddr for each in connections if each.status == psutil.CONN_LISTEN]
        assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
        assert running.environ()["HBASE_TXN_TEST_RUN"] == os.environ["HBASE_TXN_TEST_RUN"]


@pytest.mark.long
def test_failed_start_shows_the_log_and_leaves_nothing_running(folder: Path) -> None:
    done = txn("start", "--data", folder, "--set", "hbase.rootdir=nosuch:///place")
    assert done.returncode == 2
    assert re.search(r"No FileSystem for scheme.*nosuch", done.stderr)
    assert done.stderr.splitlines()[-1].startswith("error: a process has ended name=master")
    assert not [each for each in open_cluster(folder).processes.values() if each.is_alive]


@pytest.mark.long
def test_foreground_start_ends_the_servers_when_it_is_asked_to_end(folder: Path) -> None:
    """An image and a service manager know only the process that they started."""
    line = ["start", "--foreground", "--data", str(folder), "--java-option", QUICK_JAVA, "--json"]
    with subprocess.Popen([*START, "hbase", *line], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = "".join(iter(process.stdout.readline, "}\n"))
        pids = [each["pid"] for each in json.loads(said + "}")["processes"]]
        process.terminate()
    assert process.returncode == 0
    assert not [pid for pid in pids if is_running(pid)]


@pytest.mark.long
def test_transactions_of_an_earlier_version_are_found_by_the_later_one(folder: Path) -> None:
    """People run 2.5, and upgrade it under their data; back is a way that HBase does not have."""
    earlier = Settings(folder, java_options=[QUICK_JAVA], version=EARLIER)
    cluster = start(earlier)
    with connect(cluster.uris["native"]) as engine:
        engine.ensure_table("accounts", ["d"])
        engine.commit([Mutation(ALICE, "100"), Mutation(BOB, "100")])
        moved = [Mutation(ALICE, "090"), Mutation(BOB, "110")]
        engine.commit(moved, [Exact(ALICE, "100"), Exact(BOB, "100")])
    cluster.stop()
    cluster = start(Settings(folder, java_options=[QUICK_JAVA], version=HBASE_VERSION))
    with connect(cluster.uris["native"]) as engine:
        balances = engine.read([ALICE, BOB])
        assert [cell and cell.value for cell in balances.values()] == [b"090", b"110"]
        engine.commit([Mutation(ALICE, "080")], [Exact(BOB, "110")])
    cluster.stop(grace_ms=0)
    with pytest.raises(SettingsError, match=rf"has='{HBASE_VERSION}' asked='{EARLIER}'"):
        start(earlier)
    assert open_cluster(folder).settings.version == HBASE_VERSION
