"""What every lock manager promises, asked of each: on ZooKeeper, and in a store. Stores are equal
(test_contract.py), so one of each protocol is asked everything, and HBase what takes a session.

Two managers stand for two processes: they share nothing but what keeps the locks.
"""

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor as Pool
from dataclasses import dataclass, field, replace
from pathlib import Path as Folder
from typing import Any

import pytest

from tests.integration.zookeeper import ZooKeeper, zookeeper  # noqa: F401  (a fixture)
from txn.client.connect import connect
from txn.clock import SystemClock, poll
from txn.locks import (
    LockDenied,
    LockLost,
    LockManager,
    LockRequest,
    Waiting,
    exclusive,
    open_manager,
    path,
    shared,
)

AT_ONCE = Waiting(retries=0)
FAIR = Waiting(retries=20_000, pause_ms=20, deadline_ms=120_000)
HIVE = Waiting(retries=20_000, pause_ms=20, deadline_ms=120_000, fairness="hive")
CLOCK = SystemClock()
PATIENCE_MS = 120_000


@dataclass
class Subject:
    """A manager, and others of the same locks."""

    uri: str
    details: dict[str, Any] = field(default_factory=dict)
    opened: list[LockManager] = field(default_factory=list)

    def another(self, name: str = "other") -> LockManager:
        self.opened.append(open_manager(self.uri, name=name, **self.details))
        return self.opened[-1]


ALL = ["zookeeper", "fenced", "embedded", "hbase"]
on_all = pytest.mark.parametrize("subject", ALL, indirect=True)


@pytest.fixture(params=ALL[:-1])
def subject(request: pytest.FixtureRequest, tmp_path: Folder) -> Iterator[Subject]:
    details = {}
    if request.param == "zookeeper":
        server = request.getfixturevalue("zookeeper")
        uri = f"zookeeper://{server.hosts}/tests/{uuid.uuid4().hex}"
    elif request.param == "fenced":
        uri = f"memory://{uuid.uuid4().hex}"
        request.addfinalizer(connect(uri, protocol="fenced").close)
    elif request.param == "embedded":
        uri = f"embedded://{tmp_path}/store?sync=off"
    else:
        uri = request.getfixturevalue("hbase").native
        details["table"] = f"locks-{uuid.uuid4().hex[:8]}"
    found = Subject(uri, details)
    yield found
    for manager in found.opened:
        manager.close()


@pytest.fixture
def one(subject: Subject) -> LockManager:
    return subject.another("one")


@pytest.fixture
def two(subject: Subject) -> LockManager:
    return subject.another("two")


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(8) as found:
        yield found


def wait_for_waiters(manager: LockManager, at: str, count: int) -> None:
    """Wait until so many wait for an object."""
    assert poll(
        lambda: sum(not lock.granted for lock in manager.locks(path(at))) == count, PATIENCE_MS
    )


def granted(manager: LockManager, *requests: LockRequest) -> bool:
    """Whether a request is granted at once; then it is given back."""
    try:
        manager.hold(requests, waiting=AT_ONCE).release()
    except LockDenied:
        return False
    return True


def test_every_parent_is_taken_as_shared(one: LockManager, two: LockManager) -> None:
    with one.hold([exclusive("d/t/p=1/q=2")]) as held:
        assert [str(each) for each in held.requests] == [
            "S d",
            "S d/t",
            "S d/t/p=1",
            "X d/t/p=1/q=2",
        ]
        assert not granted(two, exclusive("d/t"))
        assert not granted(two, exclusive("d"))
        assert not granted(two, shared("d/t/p=1/q=2"))
        assert granted(two, exclusive("d/t/p=1/q=3"))
        assert granted(two, exclusive("d/u"))
    with one.hold([exclusive("d/t")]):
        assert not granted(two, shared("d/t/p=1"))
        assert granted(two, shared("d/t2/p=1"))


def test_a_request_that_waits_keeps_nothing_but_its_place(
    one: LockManager, two: LockManager, pool: Pool
) -> None:

    def of_two() -> list[str]:
        return [str(lock.request) for lock in one.locks() if lock.owner.name == "two"]

    with one.hold([exclusive("d/m")]):
        requests = [exclusive("d/a"), exclusive("d/m"), exclusive("d/z")]
        waiting = pool.submit(two.hold, requests, waiting=FAIR)
        assert poll(lambda: of_two() == ["X d/m"], PATIENCE_MS)
        assert {str(lock.request) for lock in one.locks()} >= {"S d", "X d/m"}
        # Not d/a as well: there it might meet us, and then it would have a second place.
        assert granted(one, exclusive("d/z"))
    waiting.result(PATIENCE_MS / 1000).release()


def test_a_reader_that_comes_after_a_waiting_writer_waits_behind_it(
    one: LockManager, two: LockManager, subject: Subject, pool: Pool
) -> None:
    reader = one.hold([shared("d/t")])
    writer = pool.submit(two.hold, [exclusive("d/t")], waiting=FAIR)
    wait_for_waiters(one, "d/t", 1)
    late = subject.another("late")
    for fairness in (AT_ONCE, replace(AT_ONCE, fairness="hive")):
        with pytest.raises(LockDenied) as denied:
            late.hold([shared("d/t")], waiting=fairness)
        assert [lock.owner.name for lock in denied.value.holders] == ["two"]
    reader.release()
    with writer.result(PATIENCE_MS / 1000):
        assert not granted(late, shared("d/t"))
    assert granted(late, shared("d/t"))


def test_with_the_fairness_of_hive_readers_pass_a_waiting_writer(
    one: LockManager, two: LockManager, subject: Subject, pool: Pool
) -> None:
    """What Hive's model says: a writer has no place while it sleeps between its retries."""
    reader = one.hold([shared("d/t")])
    writer = pool.submit(two.hold, [exclusive("d/t")], waiting=HIVE)
    late = subject.another("late")
    for _ in range(10):
        patient = replace(HIVE, pause_ms=5)
        following = late.hold([shared("d/t")], waiting=patient)
        reader.release()
        reader = following
        assert not writer.done()
    reader.release()
    writer.result(PATIENCE_MS / 1000).release()


@pytest.mark.parametrize(
    "waiting",
    [Waiting(retries=2, pause_ms=10), Waiting(retries=1_000_000, pause_ms=50, deadline_ms=200)],
    ids=["retries", "deadline"],
)
def test_a_waiter_that_gives_up_leaves_no_place(
    one: LockManager, two: LockManager, waiting: Waiting
) -> None:
    with one.hold([shared("d/t")]):
        began_ms = CLOCK.monotonic_ms()
        with pytest.raises(LockDenied):
            two.hold([exclusive("d/t")], waiting=waiting)
        assert CLOCK.monotonic_ms() - began_ms >= (waiting.deadline_ms or 0)
        assert granted(two, shared("d/t"))


@on_all
def test_locks_tell_who_holds_and_who_waits(one: LockManager, two: LockManager, pool: Pool) -> None:
    before_ms = CLOCK.wall_ms()
    with one.hold([exclusive("d/t/p=1"), shared("d x/y")], query="insert"):
        waiting = pool.submit(two.hold, [shared("d/t/p=1")], query="select", waiting=FAIR)
        wait_for_waiters(one, "d/t/p=1", 1)
        seen = one.locks(path("d/t/p=1"))
        assert [(str(lock.request), lock.owner.name, lock.owner.query) for lock in seen] == [
            ("X d/t/p=1", "one", "insert"),
            ("S d/t/p=1", "two", "select"),
        ]
        assert [lock.granted for lock in seen] == [True, False]
        assert {lock.owner.host for lock in seen} == {socket.gethostname()}
        assert all(before_ms <= lock.since_ms <= CLOCK.wall_ms() for lock in seen)
        whole = [lock.request.path for lock in one.locks()]
        assert whole == sorted(whole)
        assert path("d x/y") in whole
    waiting.result(PATIENCE_MS / 1000).release()
    assert one.locks() == []


@on_all
def test_implicit_locks_end_with_their_session(subject: Subject, two: LockManager) -> None:
    ending = subject.another("ending")
    held = ending.hold([exclusive("d/t")])
    ending.close()
    assert held.lost
    assert granted(two, exclusive("d/t"))


@on_all
def test_explicit_locks_survive_their_session(subject: Subject, two: LockManager) -> None:
    """LOCK TABLE is given in one session and UNLOCK TABLE in another."""
    subject.another("ending").hold([exclusive("d/t")], explicit=True)
    subject.opened[-1].close()
    assert not granted(two, shared("d/t"))
    assert [lock.explicit for lock in two.locks()] == [True, True]
    assert two.release(path("d/t")) == 0  # another's
    assert subject.another("ending").release(path("d/t")) == 1
    assert two.locks() == []


def test_a_fork_that_leaves_the_block_releases_nothing_that_its_parent_holds(
    one: LockManager, two: LockManager
) -> None:
    with one.hold([exclusive("d/t")]) as held:
        child = os.fork()
        if child == 0:
            try:
                held.__exit__()
                held.release()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        held.check()
        assert not granted(two, shared("d/t"))
    assert granted(two, exclusive("d/t"))


def test_anybodys_explicit_locks_can_be_given_back_by_force(
    one: LockManager, two: LockManager
) -> None:
    one.hold([exclusive("d/t"), exclusive("d/u")], explicit=True)
    assert two.release(path("d/t"), force=True) == 1
    assert {str(lock.request) for lock in two.locks()} == {"S d", "X d/u"}
    assert two.release(path("d"), force=True) == 0  # the lock on d/u needs it
    assert two.release(path("d/u"), force=True) == 1
    assert two.locks() == []


def test_a_holder_knows_that_it_holds(one: LockManager, two: LockManager) -> None:
    with one.hold([exclusive("d/t")]) as held:
        assert not granted(one, exclusive("d/t"))  # a request stands for itself, not its manager
        assert two.release(path("d/t"), force=True) == 0  # only explicit ones are given back so
        held.check()
        assert not held.lost
        off = Waiting(enabled=False)  # `hive.support.concurrency=false`
        with two.hold([exclusive("d/t")], waiting=off) as nothing:
            assert (nothing.requests, nothing.tokens, nothing.lost) == ((), {}, False)
            nothing.check()
    with pytest.raises(LockLost):
        held.check()
    held.release()


def test_fencing_tokens_grow_with_every_exclusive_grant(
    one: LockManager, two: LockManager, pool: Pool
) -> None:
    tokens = []
    for manager in (one, two, one):
        with manager.hold([exclusive("d/t")]) as held:
            tokens.append(held.tokens[path("d/t")])
            following = pool.submit(two.hold, [exclusive("d/t")], waiting=FAIR)
            wait_for_waiters(one, "d/t", 1)
        with following.result(PATIENCE_MS / 1000) as held:
            tokens.append(held.tokens[path("d/t")])
    assert tokens == sorted(set(tokens))
    assert tokens[0] > 0


@on_all
def test_a_token_of_an_explicit_lock_is_below_those_of_whoever_waited_for_it(
    one: LockManager, two: LockManager, subject: Subject, pool: Pool
) -> None:
    """It is made to stay only after others have come to stand behind it."""
    first = one.hold([exclusive("d/t")])
    explicit = pool.submit(two.hold, [exclusive("d/t")], explicit=True, waiting=FAIR)
    wait_for_waiters(one, "d/t", 1)
    third = subject.another("third")
    last = pool.submit(third.hold, [exclusive("d/t")], waiting=FAIR)
    wait_for_waiters(one, "d/t", 2)
    first.release()
    held = explicit.result(PATIENCE_MS / 1000)
    seen = {lock.owner.name: lock.token for lock in one.locks(path("d/t"))}
    assert seen["two"] == held.tokens[path("d/t")]
    held.check()
    held.release()
    with last.result(PATIENCE_MS / 1000) as following:
        assert following.tokens[path("d/t")] > held.tokens[path("d/t")]


def test_any_name_can_be_locked(one: LockManager, two: LockManager) -> None:
    """Values of partitions are anything: slashes, signs, other scripts, what looks like a lock."""
    looks = f"read-{'0' * 32}-0000000001"
    names = ["a/b", "p=2026-11-22 00:00:00", "%2F", "日本", "x" * 200, looks, "..."]
    for name in names:
        wanted = exclusive(f"d/t/{name.replace('%', '%25').replace('/', '%2F')}")
        assert wanted.path.parts == ("d", "t", name)
        with one.hold([wanted]):
            assert not granted(two, wanted)
            assert wanted in {lock.request for lock in two.locks()}


def test_names_that_differ_by_case_are_one_and_values_are_not(
    one: LockManager, two: LockManager
) -> None:
    with one.hold([exclusive("Sales/ORDERS/Day=Mon")]) as held:
        assert held.tokens[path("sales/orders/DAY=Mon")] > 0
        assert not granted(two, exclusive("sales/orders"))
        assert not granted(two, exclusive("SALES"))
        assert not granted(two, shared("sales/orders/day=Mon"))
        assert granted(two, exclusive("sales/orders/day=mon"))
        seen = [str(lock.request) for lock in two.locks(path("sales/Orders"))]
        assert sorted(seen) == ["S sales/orders", "X sales/orders/day=Mon"]
    one.hold([exclusive("Sales/Orders")], explicit=True)
    assert one.release(path("sales/orders")) == 1
    assert two.locks() == []


@on_all
def test_nobody_waits_in_a_circle(subject: Subject, pool: Pool) -> None:
    objects = [f"d/{name}" for name in "abcd"]
    start = threading.Barrier(8, timeout=60)

    def work(number: int) -> int:
        manager = subject.another(f"worker {number}")
        start.wait()
        for turn in range(6):
            wanted = {objects[(number + turn + step) % 4] for step in range(1 + number % 3)}
            manager.hold([exclusive(at) for at in wanted], waiting=FAIR).release()
        return 6

    assert sum(pool.map(work, range(8))) == 48
