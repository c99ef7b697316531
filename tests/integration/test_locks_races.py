"""Many threads and processes at the same locks, killed, paused, and cut off from what keeps them.

Who has a lock takes the kernel's own for the same objects, which must be free: see lock_worker.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path as Folder
from random import Random

import pytest
from kazoo.client import KazooClient
from kazoo.handlers import utils

from tests.integration.lock_worker import (
    GUARDED,
    OUTAGE_SESSION_MS,
    PATIENT,
    SESSION_MS,
    opened,
    write_guarded,
)
from tests.integration.serving import wire
from tests.integration.workers import Start, starting
from tests.integration.zookeeper import ZooKeeper, zookeeper  # noqa: F401  (a fixture)
from tests.unit.interrupting import interrupt_each
from txn import Key, connect
from txn.clock import poll
from txn.errors import StoreError
from txn.locks import (
    LockLost,
    LockManager,
    Waiting,
    exclusive,
    open_manager,
    path,
    shared,
)
from txn.locks.opening import open_stored
from txn.locks.zookeeper import client
from txn.locks.zookeeper.client import CALL_WITHIN_S
from txn.locks.zookeeper.queues import ZooKeeperQueues
from txn.model import Delete

PROCESSES, KILLED = 5, 2
TURNS = 100
WITHIN_S = 240
LEASE_MS = 12_000


@pytest.fixture(params=["embedded", pytest.param("zookeeper", marks=pytest.mark.long)])
def uri(request: pytest.FixtureRequest, tmp_path: Folder) -> str:
    if request.param == "embedded":
        return f"embedded://{tmp_path}/locks?sync=off"
    server: ZooKeeper = request.getfixturevalue("zookeeper")
    return f"zookeeper://{server.hosts}/tests/{uuid.uuid4().hex}"


@pytest.fixture
def start() -> Iterator[Start]:
    with starting("tests.integration.lock_worker") as start:
        yield start


def wait_for_entries(folder: Folder, count: int) -> None:
    """Until locks have been taken so many times more."""
    entered = folder / "entered"
    entered.touch()
    wanted = entered.stat().st_size + count
    assert poll(lambda: entered.stat().st_size >= wanted, WITHIN_S * 1000)


@pytest.fixture
def base() -> str:
    """A path of a test in ZooKeeper."""
    return f"/tests/{uuid.uuid4().hex}"


def test_processes_of_two_threads_some_of_them_killed(
    uri: str, start: Start, tmp_path: Folder
) -> None:
    workers = [start("race", uri, tmp_path, seed) for seed in range(PROCESSES)]
    for worker in workers[:KILLED]:
        wait_for_entries(tmp_path, 2 * PROCESSES)
        worker.kill()
        worker.wait()
    wait_for_entries(tmp_path, TURNS)
    assert finish(tmp_path, workers[KILLED:]) == 0
    with open_manager(uri) as manager:
        assert poll(lambda: manager.locks() == [], WITHIN_S * 1000)


def finish(folder: Folder, workers: list[subprocess.Popen[str]]) -> int:
    """End a race, in which no two may have met; return how often one gave up."""
    (folder / "over").touch()
    said = [worker.communicate(timeout=WITHIN_S)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    return sum(json.loads(each.splitlines()[-1])["failed"] for each in said)


def test_a_paused_holder_cannot_harm(uri: str, start: Start, tmp_path: Folder) -> None:
    store = f"embedded://{tmp_path}/data?sync=off"
    with connect(store) as engine:
        engine.ensure_table(GUARDED, ["d"])
        paused = start("pause", uri, store)
        assert paused.stdin is not None
        assert paused.stdout is not None
        token = int(paused.stdout.readline())
        _, status = os.waitpid(paused.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        manager = opened(uri, "other", 10 * SESSION_MS)
        with manager.hold([exclusive("d/t")]) as held:
            assert held.tokens[path("d/t")] > token
            assert write_guarded(engine, "new", held.tokens[path("d/t")])
            os.kill(paused.pid, signal.SIGCONT)
            paused.stdin.write("stale\n")
            paused.stdin.flush()
            assert json.loads(paused.stdout.readline()) == {"written": False, "sure": False}
            held.check()
        manager.close()
        key = Key("object", "d", "v", GUARDED)
        cell = engine.read([key])[key]
        assert cell is not None
        assert cell.value == b"new"
        paused.stdin.close()
        paused.wait(WITHIN_S)


@pytest.mark.long
def test_zookeeper_is_killed_and_started_again_under_load(start: Start, tmp_path: Folder) -> None:
    """Sessions that outlast the outage keep their locks; whoever waits goes on waiting."""
    server = ZooKeeper(tmp_path / "zookeeper")
    server.start()
    try:
        uri = f"zookeeper://{server.hosts}/tests/outage"
        workers = [start("race", uri, tmp_path, seed, 0, OUTAGE_SESSION_MS) for seed in range(4)]
        longest_s = 0.0
        for _ in range(2):
            wait_for_entries(tmp_path, 40)
            began = time.monotonic()
            server.kill()
            time.sleep(0.5)
            server.start()
            longest_s = max(longest_s, time.monotonic() - began)
        wait_for_entries(tmp_path, 40)
        # Where the server takes very long to start calls come to their end.
        assert finish(tmp_path, workers) == 0 or longest_s > CALL_WITHIN_S / 2
        manager = open_manager(uri)
        assert manager.locks() == []
        manager.close()
    finally:
        server.kill()


@pytest.mark.parametrize("lost", ["lose", "lose_asked"], ids=["reply", "request"])
def test_a_lost_reply_or_request_is_found_again(
    zookeeper: ZooKeeper,  # noqa: F811
    base: str,
    lost: str,
) -> None:
    """Whoever makes a second node waits behind its first one, until its own session ends."""
    with (
        wire(zookeeper.port) as between,
        open_manager(f"zookeeper://{zookeeper.hosts}{base}") as other,
        open_manager(f"zookeeper://127.0.0.1:{between.port}{base}") as manager,
    ):
        manager.hold([shared("d/t")]).release()
        setattr(between, lost, lambda sent: between.lost == 0 and b"write-" in sent)
        with manager.hold([exclusive("d/t")], waiting=Waiting(retries=0)) as held:
            assert between.lost == 1
            held.check()
            seen = {str(lock.request): lock.token for lock in other.locks()}
            assert seen == {str(at): held.tokens[at.path] for at in held.requests}
        assert other.locks() == []


def client_of(manager: LockManager) -> KazooClient:
    backend = manager._backend
    assert isinstance(backend, ZooKeeperQueues)
    return backend.client._client


def test_no_folders_stay_behind(zookeeper: ZooKeeper, base: str) -> None:  # noqa: F811
    with open_manager(f"zookeeper://{zookeeper.hosts}{base}") as other:
        with open_manager(f"zookeeper://{zookeeper.hosts}{base}") as manager:
            manager.hold([exclusive("d/t/p=1")]).release()
            other.hold([exclusive("d/u")], explicit=True)
        client = client_of(other)
        assert client.get_children(base) == ["d"]
        assert [name for name in client.get_children(f"{base}/d") if "-" not in name] == ["u"]
        assert other.release(path("d/u")) == 1
        assert client.get_children(base) == []


def test_the_lost_reply_to_a_release_is_no_error(zookeeper: ZooKeeper, base: str) -> None:  # noqa: F811
    with (
        wire(zookeeper.port) as between,
        open_manager(f"zookeeper://127.0.0.1:{between.port}{base}") as manager,
    ):
        held = manager.hold([exclusive("d/t")])
        manager.locks()
        between.lose = lambda answer: between.lost == 0
        held.release()
        assert between.lost == 1
        assert manager.locks() == []


def test_a_holder_that_is_cut_off_is_told_before_others_get_its_lock(
    zookeeper: ZooKeeper,  # noqa: F811
    base: str,
) -> None:
    with open_manager(f"zookeeper://{zookeeper.hosts}{base}") as other:
        with wire(zookeeper.port) as between:
            manager = open_manager(f"zookeeper://127.0.0.1:{between.port}{base}", session_ms=3_000)
            held = manager.hold([exclusive("d/t")])
            assert not held.lost
        with other.hold([exclusive("d/t")], waiting=PATIENT):
            assert held.lost
            with pytest.raises(LockLost):
                held.check()
        manager.close()


def test_a_number_that_has_run_over_is_refused(zookeeper: ZooKeeper, base: str) -> None:  # noqa: F811
    """The order of a line is lost with it: two could have the same object."""
    base, seed = f"/tests/{uuid.uuid4().hex}", 7
    ticket = f"{Random(seed).getrandbits(128):032x}"
    with open_manager(f"zookeeper://{zookeeper.hosts}{base}", rng=Random(seed)) as manager:
        client = client_of(manager)
        client.create(f"{base}/d/write-{ticket}--2147483648", makepath=True)
        with pytest.raises(StoreError, match=rf"2\^31 .* folder='{base}/d'"):
            manager.hold([exclusive("d")])
        assert manager.locks() == []
        manager.hold([exclusive("d")]).release()


def test_a_session_in_a_store_that_others_end_tells_its_holder() -> None:
    """Its row was deleted because it was silent, and its owner only now wakes."""
    with connect("memory://") as engine:
        manager = open_stored(engine, lease_ms=LEASE_MS)
        held = manager.hold([exclusive("d/t")])
        (row,) = [row.row for row in engine.scan("locks", columns=[("s", "heartbeat")])]
        engine.commit([Delete(Key(row, "s", "heartbeat", "locks"))])
        with pytest.raises(LockLost):
            held.check()
        other = open_stored(engine, lease_ms=LEASE_MS)
        with other.hold([exclusive("d/t")], waiting=PATIENT):
            assert poll(lambda: held.lost, WITHIN_S * 1000)
        with manager.hold([exclusive("d/t")]) as again:
            again.check()
        other.close()
        manager.close()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_thread_leaves_the_session_to_others(
    zookeeper: ZooKeeper,  # noqa: F811
) -> None:
    """It left the condition of an answer locked, for which the driver's reader waited for ever."""
    uri = f"zookeeper://{zookeeper.hosts}/tests/{uuid.uuid4().hex}"
    with open_manager(uri) as one, open_manager(uri) as two:

        def act() -> None:
            with one.hold(exclusive("d/t"), waiting=Waiting(deadline_ms=10_000)):
                pass

        def check() -> None:
            began = time.monotonic()
            one.hold(exclusive("d/u")).release()
            two.hold(exclusive("d/t"), waiting=Waiting(deadline_ms=10_000)).release()
            assert time.monotonic() - began < 5

        interrupt_each([utils, client, threading], act, check, every=4)
