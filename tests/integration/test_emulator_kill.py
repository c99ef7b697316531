"""What is left when `txn serve`, or a part of it, is killed: everything that was acknowledged."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from thriftpy2.thrift import TException
from thriftpy2.transport import TTransportException

from tests.integration.commands import run_here
from tests.integration.serving import PATIENCE_S, Served, client, served
from txn import CommitOutcomeUnknown, Key, Mutation, StoreError, connect
from txn.clock import poll
from txn.emulator.thrift2 import service as thrift2

IDL = thrift2.IDL
BROKEN = (OSError, EOFError, TTransportException, TException)
PORTS = ("--thrift2", "0", "--transactional", "0")
ENOUGH = 30  # writes before the kill


def found(store: str) -> None:
    """Make the store with its table."""
    with connect(store) as engine:
        engine.ensure_table("data", ["d"])


@contextmanager
def writing(server: Served, name: str) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Clients that write until the server is gone, or another one is in its place; the rows that
    were acknowledged, by puts and by commits. The block begins once there are enough of each."""
    puts: list[bytes] = []
    commits: list[bytes] = []
    enough, stop = threading.Event(), threading.Event()

    def put() -> None:
        with suppress(*BROKEN), client(server.ports["thrift2"], service=thrift2.SERVICE) as c:
            while not stop.is_set():
                row = b"%b-put%06d" % (name.encode(), len(puts))
                c.put(b"data", IDL.TPut(row=row, columnValues=[IDL.TColumnValue(b"d", b"v", row)]))
                puts.append(row)
                if min(len(puts), len(commits)) >= ENOUGH:
                    enough.set()

    def commit() -> None:
        with (
            suppress(StoreError, CommitOutcomeUnknown),
            connect(server.uris["transactional"], table="data") as engine,
        ):
            while not stop.is_set():
                row = b"%b-commit%06d" % (name.encode(), len(commits))
                keys = [Key(row, "d", "v"), Key(row + b"'", "d", "v")]
                engine.commit([Mutation(key, row) for key in keys], ack="decided")
                commits.append(row)

    with ThreadPoolExecutor(2) as pool:
        works = [pool.submit(put), pool.submit(commit)]
        try:
            assert enough.wait(PATIENCE_S * 3)
            yield puts, commits
        finally:
            stop.set()
        for work in works:
            work.result(PATIENCE_S)


def check(server: Served, puts: list[bytes], commits: list[bytes]) -> None:
    """All of it is there, and each transaction wholly."""
    with client(server.ports["thrift2"], service=thrift2.SERVICE) as c:
        results = c.getMultiple(b"data", [IDL.TGet(row=row) for row in puts])
        assert [result.columnValues[0].value for result in results] == puts
    with connect(server.uris["transactional"], table="data") as engine:
        keys = [Key(row, "d", "v") for row in commits]
        keys += [Key(row + b"'", "d", "v") for row in commits]
        cells = engine.read(keys)
        assert all(cell and cell.value == key.row.rstrip(b"'") for key, cell in cells.items())


@pytest.mark.parametrize("options", [pytest.param("", marks=pytest.mark.long), "?sync=off"])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, options: str) -> None:
    """Twice over, on the same store; what was in flight is repaired as it is met."""
    store = f"embedded://{tmp_path}/store{options}"
    found(store)
    puts: list[bytes] = []
    commits: list[bytes] = []
    for turn in range(2):
        with served(store, tmp_path / "log", *PORTS) as server:
            check(server, puts, commits)
            with writing(server, f"turn{turn}") as (more_puts, more_commits):
                server.kill()
            puts += more_puts
            commits += more_commits
    with served(store, tmp_path / "log", *PORTS) as server:
        check(server, puts, commits)
        assert server.stop() == 0


def test_sigterm_ends_with_0_and_loses_nothing(tmp_path: Path) -> None:
    store = f"embedded://{tmp_path}/store?sync=off"
    found(store)
    with (
        served(store, tmp_path / "log", *PORTS) as server,
        writing(server, "load") as (puts, commits),
    ):
        assert server.stop() == 0
    with served(store, tmp_path / "log", *PORTS) as server:
        check(server, puts, commits)
    assert "Traceback" not in (tmp_path / "log").read_text()


def children(pid: int) -> set[int]:
    """The processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    store = f"embedded://{tmp_path}/store?sync=off"
    found(store)
    with served(store, tmp_path / "log", *PORTS, "--workers", "2") as server:
        workers = children(server.process.pid)
        assert len(workers) == 2
        with writing(server, "one") as (puts, commits):
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
        assert poll(lambda: len(children(server.process.pid) - workers) == 2, PATIENCE_S * 1000)
        check(server, puts, commits)
        assert (tmp_path / "log").read_text().count("a worker has ended: replaced") == 2
        assert server.stop() == 0


def test_no_worker_outlives_its_supervisor(tmp_path: Path) -> None:
    """They would keep the ports, and nobody would replace or stop them."""
    store = f"embedded://{tmp_path}/store"
    with served(store, tmp_path / "log", *PORTS, "--workers", "2") as server:
        workers = children(server.process.pid)
        server.kill()
        assert poll(lambda: not any(map(alive, workers)), PATIENCE_S * 1000)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_listens_on_this_machine_alone_unless_told_otherwise(tmp_path: Path) -> None:
    other = "127.0.0.2"  # of this machine too, but not where it listens
    with (
        served("memory://", tmp_path / "log", *PORTS) as alone,
        pytest.raises(ConnectionRefusedError),
    ):
        socket.create_connection((other, alone.ports["thrift2"]), PATIENCE_S)
    with served("memory://", tmp_path / "log", *PORTS, "--bind", other) as told:
        socket.create_connection((other, told.ports["thrift2"]), PATIENCE_S).close()


def test_what_cannot_be_served_is_said_at_once() -> None:
    for message, *arguments in (
        ("has one worker", "memory://", "--workers", "2", *PORTS),
        ("error: ", "hbase+thrift2://h", *PORTS),
        ("error: ", "x", *PORTS),
        ("give a port for one", "memory://"),
    ):
        refused = run_here("serve", "--store", *arguments)
        assert refused.returncode != 0 and message in refused.stderr
