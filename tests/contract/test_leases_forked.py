"""The lease service in processes that were forked, whatever becomes of those that forked them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path as Folder
from typing import Any

import pytest

from txn.errors import StoreError
from txn.leases import databases, exclusive, open_leases

LONG_S = 3_600
WITHIN_S = 120
FORKING = """
import os, sys
from txn.leases import open_leases, shared

leases = open_leases(sys.argv[1])
leases.grab_lease([shared("d/t")], 3600)
child = os.fork()
for _ in range(20):
    leases.grab_lease([shared("d/t")], 3600)
    assert len(leases.list_lease()) >= 2
if not child:
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0
assert len(leases.list_lease()) == 41
assert len({lease.lease_id for lease in leases.list_lease()}) == 41
"""
LEFT_BEHIND = """
import os, sys
from txn.leases import exclusive, open_leases

leases = open_leases(sys.argv[1])
leases.grab_lease([exclusive("d/of_the_parent")], 3600)
reading, writing = os.pipe()
if os.fork():
    os.read(reading, 1)
    if sys.argv[2] == "closes":
        leases.close()
    print("left", flush=True)
    os._exit(0)
leases.grab_lease([exclusive("d/of_the_child")], 3600)
os.write(writing, b"!")
sys.stdin.readline()
leases.grab_lease([exclusive("d/of_the_orphan")], 3600)
print("granted", flush=True)
"""


def test_a_fork_gets_connections_of_its_own(database_url: str) -> None:
    """Two processes on one connection read each other's replies."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING, database_url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["closes", "dies"])
def test_what_a_fork_is_granted_outlives_its_parent(database_url: str, how: str) -> None:
    """A program that puts itself into the background forks and ends. SQLite's locks on its files
    are not inherited: the child thought that it had its parent's, and wrote to a file that whoever
    came last had deleted."""
    with subprocess.Popen(
        [sys.executable, "-c", LEFT_BEHIND, database_url, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "left\n"
        assert parent.wait(WITHIN_S) == 0
        with open_leases(database_url) as other:
            other.grab_lease([exclusive("d/of_another")], LONG_S)
            parent.stdin.write("\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "granted\n"
            found = other.list_lease()
    with open_leases(database_url) as later:
        assert later.list_lease() == found
    assert sorted((lease.lease_id, lease.table_name) for lease in found) == [
        (1, "of_the_parent"),
        (2, "of_the_child"),
        (3, "of_another"),
        (4, "of_the_orphan"),
    ]


def in_child(what: Any) -> int:
    """Do something in a forked process; return its exit code."""
    child = os.fork()
    if child == 0:
        try:
            what()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_fork_waits_for_what_is_under_way(tmp_path: Folder) -> None:
    """Transactions are short, and pools of processes fork at any time."""
    url = f"sqlite:///{tmp_path}/leases"
    is_over = threading.Event()
    with open_leases(url) as leases, ThreadPoolExecutor(2) as pool:

        def grab() -> int:
            count = 0
            while not is_over.is_set():
                leases.drop_lease(leases.grab_lease([exclusive("d/t")], LONG_S, LONG_S))
                count += 1
            return count

        def in_a_child() -> None:
            leases.drop_lease(leases.grab_lease([exclusive("d/t")], LONG_S, LONG_S))
            os._exit(0)

        grabbing = [pool.submit(grab) for _ in range(2)]
        try:
            assert [in_child(in_a_child) for _ in range(10)] == [0] * 10
        finally:
            is_over.set()
        assert all(each.result(WITHIN_S) for each in grabbing)
        assert leases.list_lease() == []


def test_a_fork_does_not_wait_for_its_own_transaction(tmp_path: Folder) -> None:
    """A signal handler may fork at any place, and would wait for itself."""
    with open_leases(f"sqlite:///{tmp_path}/leases") as leases:

        def in_a_child() -> None:
            with pytest.raises(StoreError, match="when this process was forked"):
                leases.list_lease()
            os._exit(0)

        def work(connection: Any) -> int:
            leases.connections.database.take_turn(connection, [])
            assert in_child(in_a_child) == 0
            return leases.connections.database.next_id(connection)

        assert leases.connections.run(work) == 1


def test_a_fork_within_a_transaction_cannot_use_the_leases(
    tmp_path: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way would look to it as if it were its own; the parent's is not disturbed."""
    monkeypatch.setattr(databases, "FORK_WITHIN_S", 0.1)
    url = f"sqlite:///{tmp_path}/leases"
    begun, forked = threading.Event(), threading.Event()
    with open_leases(url) as leases, open_leases(url) as idle, ThreadPoolExecutor(1) as pool:

        def work(connection: Any) -> int:
            leases.connections.database.take_turn(connection, [])
            begun.set()
            assert forked.wait(WITHIN_S)
            return leases.connections.database.next_id(connection)

        def in_a_child() -> None:
            for service in (leases, idle):
                with pytest.raises(StoreError, match="when this process was forked"):
                    service.list_lease()
            with pytest.raises(StoreError, match="when this process was forked"):
                open_leases(url)
            leases.close()
            os._exit(0)

        working = pool.submit(leases.connections.run, work)
        assert begun.wait(WITHIN_S)
        assert in_child(in_a_child) == 0
        forked.set()
        assert working.result(WITHIN_S) == 1
        assert idle.grab_lease([exclusive("d/t")], LONG_S) == 2


def test_a_fork_that_leaves_the_block_does_not_drop_what_its_parent_holds(
    database_url: str,
) -> None:
    """A program that forks within the block, and whose child returns or fails, still relies on its
    lease. The child may ask."""
    with open_leases(database_url) as leases:
        with leases.hold([exclusive("d/t")], LONG_S) as held:

            def in_a_child() -> None:
                with held:
                    held.check()
                held.release()
                os._exit(0)

            assert in_child(in_a_child) == 0
            held.check()
        assert leases.list_lease() == []


STOPPED = """
import os, signal, sys
from txn.leases import exclusive, open_leases, shared
from txn.locks import LockLost

leases = open_leases(sys.argv[1])
with leases.hold([exclusive("d/t"), shared("d/u")], float(sys.argv[2])) as held:
    print(held.lost, flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        held.check()
    except LockLost:
        print("lost", flush=True)
"""


@pytest.mark.parametrize("how", ["it ends", "a part is dropped"])
def test_a_holder_that_was_stopped_meanwhile_is_told_when_it_asks(
    database_url: str, how: str
) -> None:
    """Nobody can tell it before. What others have by then, it does not drop."""
    duration_s = LONG_S if how == "a part is dropped" else 0.5
    with (
        open_leases(database_url) as leases,
        subprocess.Popen(
            [sys.executable, "-c", STOPPED, database_url, str(duration_s)],
            stdout=subprocess.PIPE,
            text=True,
        ) as holder,
    ):
        assert holder.stdout is not None
        assert holder.stdout.readline()
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        if how == "a part is dropped":
            leases.force_drop_lease("d/t")
        other = leases.grab_lease([exclusive("d/t")], LONG_S, WITHIN_S)
        holder.send_signal(signal.SIGCONT)
        assert holder.stdout.readline() == "lost\n"
        assert holder.wait(WITHIN_S) == 0
        assert [lease.lease_id for lease in leases.list_lease()] == [other]
