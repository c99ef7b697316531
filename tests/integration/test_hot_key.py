"""Thirty-two clients at one key: everyone commits within its deadline, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench.crowd import Crowd, work
from tests.integration.hbase import HBase
from txn import Policy, connect

ROOT = Path(__file__).parents[2]
CLIENTS = 32
WITHIN_MS = 400_000


def all_commit(uri: str, times: int, processes: int) -> None:
    """See that each counts one key up so often. The processes of the bench are its own to reap."""
    sizes = ("--clients", CLIENTS, "--times", times, "--processes", processes)
    options = ("hot", "--json", "--store", uri, "--deadline-ms", WITHIN_MS, *sizes)
    line = [sys.executable, "-m", "tests.bench.crowd", *map(str, options)]
    said = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(said.stdout)
    everyone_got_on(found["waits"], found["failed"], times)
    assert found["counted"] == CLIENTS * times


def everyone_got_on(waits: Sequence[Sequence[float]], failed: Sequence[str], times: int) -> None:
    assert failed == []
    assert [len(client) for client in waits] == [times] * CLIENTS
    assert max(wait for client in waits for wait in client) < WITHIN_MS


@pytest.mark.slow
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 4])
def test_everyone_at_a_hot_key_gets_on(tmp_path: Path, processes: int) -> None:
    all_commit(f"embedded://{tmp_path}/store", 10, processes)


def test_everyone_at_a_hot_key_gets_on_in_memory() -> None:
    uri, policy = "memory://hot-key", Policy(deadline_ms=WITHIN_MS, attempts=1_000)
    crowd = Crowd(uri, "hot", "hot", CLIENTS, 1, 5, WITHIN_MS)
    with connect(uri, table="hot", policy=policy) as engine:
        engine.ensure_table("hot", ["d"])
        waits, _, failed, _ = work(engine, crowd, 0, lambda: None)
        everyone_got_on(waits, failed, crowd.times)
        key = crowd.key("hot")
        cell = engine.read([key])[key]
    assert cell is not None
    assert int.from_bytes(cell.value) == CLIENTS * crowd.times


@pytest.mark.long
@pytest.mark.parametrize("way", ["native", "thrift2"])
def test_everyone_at_a_hot_key_of_hbase_gets_on(hbase: HBase, way: str) -> None:
    all_commit(getattr(hbase, way), 1, 4)
