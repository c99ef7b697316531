"""Looks at locks that change nothing, wherever the locks are kept."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path as File

import pytest
from kazoo.client import KazooClient

from recovery import bounds
from recovery.bounds import Cached
from recovery.console.locks import make_tree
from recovery.opening import open_lock_view
from tests.integration.zookeeper import ZooKeeper, zookeeper  # noqa: F401
from txn.errors import CorruptRowError, StoreError
from txn.locks import Lock, LockRequest, Mode, Owner, exclusive, open_manager, path, shared
from txn.locks.model import LockReader
from txn.locks.queue import list_blockers
from txn.model import Edit, Key
from txn.stores import open_store


@pytest.fixture
def uri(tmp_path: File) -> str:
    return f"embedded://{tmp_path}/store"


def list_named(look: LockReader, most: int = 100) -> list[tuple[str, str, bool]]:
    return [
        (str(lock.request), lock.owner.name, lock.granted) for lock in look.list_first(most).locks
    ]


def list_cells(uri: str) -> list[object]:
    store = open_store(uri)
    try:
        return [row for table in (b"txn", b"locks") for row in store.scan(table)]
    finally:
        store.close()


def test_a_look_sees_what_the_manager_sees(uri: str) -> None:
    with open_manager(uri, name="ann") as manager, open_lock_view(uri) as look:
        with manager.hold([exclusive("a/b/c=1"), shared("d")]):
            manager.hold([shared("a/b")], explicit=True)
            assert list(look.list_first(100).locks) == manager.locks()
        assert list_named(look) == [("S a", "ann", True), ("S a/b", "ann", True)]


def test_a_session_that_has_died_is_not_ended_by_a_look(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txn.locks.stored.Session._renew", lambda session: None)
    with open_manager(uri, name="ann", lease_ms=10) as manager, open_lock_view(uri) as look:
        manager.hold([exclusive("a/b")])
        before = list_cells(uri)
        for _ in range(2):
            assert ("X a/b", "ann", True) in list_named(look)
            time.sleep(0.05)
        assert list_cells(uri) == before


def test_locks_of_a_session_that_was_ended_are_not_shown(uri: str) -> None:
    with open_manager(uri, name="ann", lease_ms=60_000) as manager:
        manager.hold([exclusive("a/b")])
        store = open_store(uri)
        rows = [
            row for row in store.scan(b"locks") for key in row.cells if key.column == b"heartbeat"
        ]
        store.write([Edit(Key(rows[0].row, "s", "heartbeat", "locks"), None, 2**62)])
        with open_lock_view(uri) as look:
            assert list_named(look) == []
        store.close()


def test_a_look_is_bounded_and_says_so(uri: str) -> None:
    wanted = [shared(f"a/t{number}") for number in range(9)]
    with open_manager(uri) as manager, open_lock_view(uri) as look, manager.hold(wanted):
        assert (len(look.list_first(10).locks), look.list_first(10).is_whole) == (10, True)
        assert (len(look.list_first(9).locks), look.list_first(9).is_whole) == (9, False)


def test_a_table_that_holds_no_locks_is_named(uri: str) -> None:
    with open_manager(uri), open_lock_view(uri) as look:
        store = open_store(uri)
        store.write([Edit(Key("a", "o", "queue", "locks"), b"[]", 1)])
        store.close()
        with pytest.raises(CorruptRowError, match="not a queue of locks"):
            look.list_first(10)


def test_zookeeper_is_looked_at_without_a_node_of_ours(zookeeper: ZooKeeper) -> None:  # noqa: F811
    uri = f"zookeeper://{zookeeper.hosts}/console/looks"
    with open_lock_view(uri) as look:
        assert list_named(look) == []
        client = KazooClient(zookeeper.hosts)
        client.start()
        assert client.exists("/console") is None
        client.stop()
        client.close()
        with open_manager(uri, name="ann") as manager, manager.hold([exclusive("a/b")]):
            assert list_named(look) == [("S a", "ann", True), ("X a/b", "ann", True)]
            assert look.list_first(1).is_whole is False


def make_lock(name: str, mode: Mode, granted: bool, at: str = "a") -> Lock:
    return Lock(LockRequest(path(at), mode), Owner(name, "h"), 1, granted)


S, X = Mode.SHARED, Mode.EXCLUSIVE
LINES = {
    "a writer waits for all readers": ([("r1", S, 1), ("r2", S, 1), ("w", X, 0)], {"w": "r1 r2"}),
    "a reader waits for the writer before it, not for readers": (
        [("r1", S, 1), ("w", X, 0), ("r2", S, 0)],
        {"w": "r1", "r2": "w"},
    ),
    "a reader that got in past a writer keeps it waiting": (
        [("r1", S, 1), ("w", X, 0), ("r2", S, 1)],
        {"w": "r1 r2"},
    ),
    "the second writer waits for the first": (
        [("w1", X, 1), ("w2", X, 0), ("w3", X, 0)],
        {"w2": "w1", "w3": "w1 w2"},
    ),
    "who holds waits for nobody": ([("r1", S, 1), ("r2", S, 1)], {}),
}


@pytest.mark.parametrize("about", LINES)
def test_who_waits_for_whom_follows_from_the_line(about: str) -> None:
    entries, waits = LINES[about]
    line = [make_lock(name, mode, bool(granted)) for name, mode, granted in entries]
    denying = {
        lock.owner.name: " ".join(each.owner.name for each in list_blockers(line, place))
        for place, lock in enumerate(line)
    }
    assert {name: others for name, others in denying.items() if others} == waits


def test_what_many_visitors_see_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "FRESH_S", 0.2)
    reads: list[str] = []

    def read() -> int:
        reads.append("read")
        if len(reads) == 1:
            return 7
        raise StoreError("away")

    cached = Cached(read)
    assert [cached.read() for _ in range(5)] == [7] * 5
    time.sleep(0.3)
    for _ in range(5):
        with pytest.raises(StoreError, match="away"):
            cached.read()
    assert len(reads) == 2


def test_a_tree_of_nothing_is_empty(uri: str) -> None:
    with ExitStack() as ends:
        ends.enter_context(open_manager(uri))
        look = ends.enter_context(open_lock_view(uri))
        tree = make_tree(look.list_first(5))
    assert (tree.databases, tree.waiters, tree.total) == ([], [], 0)
