"""Many threads and processes at the same locks, killed, paused, and cut off from what keeps them.

What was held when is told by those who held it, on one clock; no two of them may have had the same
object in modes that deny each other, as long as each was still sure of its lock when it left.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path as Folder
from random import Random
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient

from tests.integration.lock_worker import (
    GUARDED,
    OUTAGE_SESSION_MS,
    PATIENT,
    SESSION_MS,
    opened,
    write_guarded,
)
from tests.integration.serving import wire
from tests.integration.workers import Start, starting, told
from tests.integration.zookeeper import ZooKeeper, zookeeper  # noqa: F401  (a fixture)
from txn import Key, connect
from txn.client.engine import Engine
from txn.clock import poll
from txn.errors import AbortedError, CommitOutcomeUnknown, StoreError
from txn.locks import LockLost, LockManager, Waiting, exclusive, path, shared
from txn.locks.opening import open_manager, open_stored
from txn.locks.zookeeper.client import CALL_WITHIN_S
from txn.locks.zookeeper.queues import ZooKeeperQueues
from txn.model import Delete
from txn.policy import Policy
from txn.stores import open_store
from txn.testing.faulty import Call, Fault, FaultyStore, Reply

PROCESSES, KILLED = 5, 2
TURNS = 25
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


class Stay(NamedTuple):
    """A time for which somebody had these objects."""

    name: str
    entered_ns: int
    left_ns: int
    modes: dict[str, str]
    tokens: dict[str, int]


def stays(log: Folder) -> list[Stay]:
    """Read who was sure to have held what and when. One that was killed tells of the moment when it
    had entered; its session may have ended before it was killed."""
    lines = told(log)
    left = {line["leave"]: line for line in lines if "leave" in line}
    found = []
    for line in lines:
        if "enter" in line:
            last = left.get(line["enter"], line)
            if last["sure"]:
                left_ns = last["at_ns"]
                stay = Stay(line["enter"], line["at_ns"], left_ns, line["modes"], line["tokens"])
                found.append(stay)
    return found


def check(found: list[Stay]) -> None:
    """No two had an object at once unless both only read it; exclusive tokens grow."""
    for at in {at for stay in found for at in stay.modes}:
        here = sorted((s for s in found if at in s.modes), key=lambda s: s.entered_ns)
        last_writer: Stay | None = None
        last_left: Stay | None = None
        for stay in here:
            before = last_left if stay.modes[at] == "X" else last_writer
            assert before is None or before.left_ns <= stay.entered_ns, (at, before, stay)
            if last_left is None or stay.left_ns > last_left.left_ns:
                last_left = stay
            if stay.modes[at] == "X":
                last_writer = stay
        tokens = [stay.tokens[at] for stay in here if stay.modes[at] == "X"]
        assert all(one < next_one for one, next_one in pairwise(tokens)), at


def wait_for_entries(log: Folder, count: int) -> None:
    """Until locks have been taken so many times."""
    assert poll(lambda: log.read_text().count("enter") >= count, WITHIN_S * 1000)


@pytest.fixture
def base() -> str:
    """A path of a test in ZooKeeper."""
    return f"/tests/{uuid.uuid4().hex}"


def test_processes_of_two_threads_some_of_them_killed(
    uri: str, start: Start, tmp_path: Folder
) -> None:
    log, rng = tmp_path / "log", Random(7)
    log.touch()
    workers = [start("race", uri, log, seed, TURNS) for seed in range(PROCESSES)]
    wait_for_entries(log, 4 * PROCESSES)
    for worker in workers[:KILLED]:
        time.sleep(rng.uniform(0.05, 0.3))
        worker.kill()
        worker.wait()
    for worker in workers[KILLED:]:
        said, _ = worker.communicate(timeout=WITHIN_S)
        assert json.loads(said) == {"failed": 0}
    found = stays(log)
    check(found)
    # On a busy machine a session may end before its process: then nobody is sure of its locks.
    assert len(found) >= (PROCESSES - KILLED) * TURNS


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
        log = tmp_path / "log"
        log.touch()
        uri = f"zookeeper://{server.hosts}/tests/outage"
        arguments = (uri, log, OUTAGE_SESSION_MS)
        workers = [start("race", uri, log, seed, 2 * TURNS, arguments[2]) for seed in range(4)]
        longest_s = 0.0
        for outage in (1, 2):
            wait_for_entries(log, 40 * outage)
            began = time.monotonic()
            server.kill()
            time.sleep(0.5)
            server.start()
            longest_s = max(longest_s, time.monotonic() - began)
        for worker in workers:
            said, _ = worker.communicate(timeout=WITHIN_S)
            # Where the server takes very long to start calls come to their end.
            assert json.loads(said) == {"failed": 0} or longest_s > CALL_WITHIN_S / 2
        found = stays(log)
        check(found)
        manager = open_manager(uri)
        assert manager.locks() == []
        manager.close()
    finally:
        server.kill()
    assert len(found) > 4 * 2 * TURNS


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


@pytest.mark.long
def test_who_is_cut_off_for_long_is_soon_there_again(zookeeper: ZooKeeper, base: str) -> None:  # noqa: F811
    """The server gives sessions their time once more when it is back, which must be enough: with
    pauses that double without end a client comes as late again as the outage was long."""
    with wire(zookeeper.port) as between:
        hosts = f"127.0.0.1:{between.port}"
        with open_manager(f"zookeeper://{hosts}{base}", session_ms=2 * SESSION_MS) as manager:
            between.lose_asked = lambda asked: True
            # doubled so often, a tenth of a second is an hour
            assert poll(lambda: between.lost >= 16, WITHIN_S * 1000)
            between.lose_asked = lambda asked: False
            manager.hold([exclusive("d/t")], waiting=PATIENT).release()


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


def test_a_release_leaves_the_parents_of_a_request_granted_meanwhile(
    zookeeper: ZooKeeper,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scan had passed the other partition before the request. The table then seemed not to be
    needed, and another client could lock it beside the locked partition."""
    uri = f"zookeeper://{zookeeper.hosts}/tests/{uuid.uuid4().hex}"
    both = [exclusive("d/t/p=1"), exclusive("d/t/p=2")]
    with open_manager(uri, name="one") as one, open_manager(uri, name="one") as late:
        backend = late._backend
        assert isinstance(backend, ZooKeeperQueues)
        list_children = backend.client.list_children
        with one.hold(both):  # the folders stay
            last = [lock.request.path for lock in backend.scan(path("d/t"))][1]

        def take_before_last(folders: Sequence[str]) -> list[list[str]]:
            if folders[0] == backend.folders.of(last) and not one.locks():
                one.hold(both, explicit=True)
            return list_children(folders)

        monkeypatch.setattr(backend.client, "list_children", take_before_last)
        assert late.release(last) == 1
        assert [str(lock.request.path) for lock in one.locks()][:2] == ["d", "d/t"]


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


def test_an_ended_session_tells_its_holder(zookeeper: ZooKeeper) -> None:  # noqa: F811
    with open_manager(f"zookeeper://{zookeeper.hosts}/tests/{uuid.uuid4().hex}") as manager:
        held = manager.hold([exclusive("d/t")])
        client = client_of(manager)
        thief = KazooClient(zookeeper.hosts, client_id=client.client_id)
        thief.start()
        thief.stop()
        thief.close()
        assert poll(lambda: held.lost, WITHIN_S * 1000)
        with pytest.raises(LockLost):
            held.check()
        with manager.hold([exclusive("d/t")], waiting=PATIENT) as again:
            again.check()


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


def test_a_store_that_loses_replies_leaves_no_lock_of_nobody() -> None:
    """A grant whose outcome is unknown to a request that failed would be held for ever."""
    rng, is_broken, left = Random(5), False, 0

    def plan(call: Call) -> Fault:
        nonlocal left
        if is_broken and rng.random() < 0.02:
            left = 30
        if left == 0:
            return Fault()
        left -= 1
        applied = frozenset(i for i in range(len(call.items)) if rng.random() < 0.5)
        return Fault(applied=applied, reply=Reply.MAYBE_APPLIED)

    store = FaultyStore(open_store("memory://"), plan)
    policy = Policy(lock_ttl_ms=100, store_patience_ms=20)
    waiting = Waiting(retries=1_000, pause_ms=5, deadline_ms=60_000, unlock_retries=0)
    failed = 0
    with (
        Engine(store, policy=policy) as engine,
        open_stored(engine, lease_ms=60_000, waiting=waiting) as manager,
    ):
        is_broken = True
        for _ in range(40):
            try:
                manager.hold([exclusive("d/t")]).release()
            except (StoreError, AbortedError, CommitOutcomeUnknown):
                failed += 1
        is_broken, left = False, 0
        with manager.hold([exclusive("d/t")]) as held:
            assert [lock.request for lock in manager.locks()] == list(held.requests)
        assert manager.locks() == []
    assert failed > 0
