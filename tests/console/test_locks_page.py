"""Locks and leases looked at: who has what, and who waits for whom; a look changes nothing."""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path as File

import pytest
from kazoo.client import KazooClient

from recovery.console.locks import make_tree
from recovery.opening import open_lock_view
from tests.console.conftest import Serve
from tests.console.crashing import stock_up
from tests.console.visits import ask, wait_for
from tests.integration.zookeeper import ZooKeeper, zookeeper  # noqa: F401
from txn.leases import open_leases
from txn.locks import (
    Lock,
    LockManager,
    LockRequest,
    Mode,
    Owner,
    Path,
    Waiting,
    exclusive,
    open_manager,
    path,
    shared,
)
from txn.locks.model import LockReader
from txn.locks.queue import list_blockers
from txn.stores import open_store

ODD = Path(("stock", "<b>bold</b>", "day=<script>alert(1)</script>"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store in whose own table `ann` holds a partition, and `bob` and `eve` wait for it."""
    uri = f"embedded://{tmp_path_factory.mktemp('locks')}/store"
    with pytest.MonkeyPatch.context() as patch, ExitStack() as ends:
        patch.setattr("txn.locks.manager.socket.gethostname", lambda: "worker1")
        ann, bob, eve = (
            ends.enter_context(open_manager(uri, name=name, lease_ms=60_000))
            for name in ("ann", "bob", "eve")
        )
        query = "INSERT OVERWRITE TABLE sales.orders PARTITION (day=1)"
        held = ann.hold([exclusive("sales/orders/day=1"), shared("sales/rates/day=1")], query=query)
        threads = [
            threading.Thread(target=wait_for_lock, args=(each, "sales/orders/day=1"))
            for each in (bob, eve)
        ]
        for number, thread in enumerate(threads, 1):
            thread.start()
            while sum(not lock.granted for lock in ann.locks()) < number:
                pass
        yield uri
        held.release()
        for thread in threads:
            thread.join()


def wait_for_lock(manager: LockManager, at: str) -> None:
    waiting = Waiting(retries=1_000, pause_ms=200, deadline_ms=300_000)
    manager.hold([exclusive(at)], waiting=waiting).release()


@pytest.fixture(scope="module")
def leases(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('leases')}/leases.sqlite"
    with open_leases(url) as service:
        service.grab_lease([exclusive("sales/orders/day=1")], 3_600, user="ann")
        service.grab_lease([shared("sales/rates")], 3_600, user="<i>bob</i>")
    return url


@pytest.fixture(scope="module")
def url(serve: Serve, store: str, leases: str) -> str:
    return serve(store, "--leases", leases).url


def test_holders_and_those_who_wait_are_shown_at_their_objects(url: str) -> None:
    """The second in a queue waits for the first as well: both must end before it gets its turn."""
    shown = ask(f"{url}/locks").words
    order = [
        r"sales/orders/day=1 bob@worker1 exclusive 20\S+ \S+ ann@worker1 \(holds exclusive\) sales",
        r"/orders/day=1 eve@worker1 exclusive 20\S+ \S+ ann@worker1 \(holds exclusive\);",
        r" bob@worker1 \(requests exclusive\) By object sales State .* orders State .*",
        r" day=1 State .*"
        r" held exclusive ann worker1 20\S+ \S+ session 1 INSERT OVERWRITE TABLE sales.orders .*",
        r" waiting, 1 exclusive bob worker1 20.* waiting, 2 exclusive eve worker1 20.*",
        r" rates State .* day=1 State .* held shared ann worker1 20",
    ]
    assert re.search("".join(order), shown), shown


def test_names_of_objects_are_shown_and_not_run(url: str, store: str) -> None:
    with open_manager(store, name="new") as manager:
        manager.hold([shared(ODD)], explicit=True)
        shown = wait_for(f"{url}/locks", "stock .*<b>bold</b> .*day=<script>alert.*> State")
        manager.release(ODD)
    assert "<b>" not in shown.body and "<script>" not in shown.body
    assert "held shared new worker1" in shown.words and "explicit" in shown.words


def test_a_look_makes_no_table_of_locks_and_no_file_of_leases(
    serve: Serve, store: str, tmp_path: File
) -> None:
    """Not even what a manager would make and note."""
    uri = stock_up(tmp_path)
    before = list_cells(uri)
    url = serve(uri).url
    assert "This store has no lock table" in ask(f"{url}/locks").body
    assert "<code>--leases URL</code>" in ask(f"{url}/leases").body
    url = serve(uri, "--locks", store, "--leases", f"sqlite:///{tmp_path}/absent").url
    assert "held exclusive ann" in ask(f"{url}/locks").words
    answer = ask(f"{url}/leases")
    assert (answer.status, "no such file of leases" in answer.body) == (400, True)
    assert not (tmp_path / "absent").exists()
    assert list_cells(uri) == before


def list_cells(uri: str) -> list[object]:
    store = open_store(uri)
    try:
        tables = store.list_tables()
        return [tables, *(row for table in tables for row in store.scan(table))]
    finally:
        store.close()


def test_leases_are_shown_with_their_users_and_times(url: str) -> None:
    shown = ask(f"{url}/leases").words
    assert "Until sales/orders/day=1 exclusive 1 ann 20" in shown
    assert "sales/rates shared 2 <i>bob</i> 20" in shown


@pytest.fixture
def uri(tmp_path: File) -> str:
    return f"embedded://{tmp_path}/store"


def list_named(look: LockReader, most: int = 100) -> list[tuple[str, str, bool]]:
    return [
        (str(lock.request), lock.owner.name, lock.granted) for lock in look.list_first(most).locks
    ]


def test_a_look_sees_what_the_manager_sees(uri: str) -> None:
    with open_manager(uri, name="ann") as manager, open_lock_view(uri) as look:
        tree = make_tree(look.list_first(5))
        assert (tree.databases, tree.waiters, tree.total) == ([], [], 0)
        with manager.hold([exclusive("a/b/c=1"), shared("d")]):
            manager.hold([shared("a/b")], explicit=True)
            assert list(look.list_first(100).locks) == manager.locks()
        assert list_named(look) == [("S a", "ann", True), ("S a/b", "ann", True)]


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


@pytest.mark.parametrize(
    ("line", "waits"),
    [
        ("r1:S+ r2:S+ w:X", {"w": "r1 r2"}),  # a writer waits for all readers
        ("r1:S+ w:X r2:S", {"w": "r1", "r2": "w"}),  # a reader waits for the writer before it
        ("r1:S+ w:X r2:S+", {"w": "r1 r2"}),  # one that got in past a writer keeps it waiting
        ("w1:X+ w2:X w3:X", {"w2": "w1", "w3": "w1 w2"}),
        ("r1:S+ r2:S+", {}),
    ],
)
def test_who_waits_for_whom_follows_from_the_line(line: str, waits: dict[str, str]) -> None:
    modes = {"S": Mode.SHARED, "X": Mode.EXCLUSIVE}
    locks = []
    for name, mode in (each.split(":") for each in line.split()):
        request = LockRequest(path("a"), modes[mode[0]])
        locks.append(Lock(request, Owner(name, "h"), 1, mode.endswith("+")))
    denying = {
        lock.owner.name: " ".join(each.owner.name for each in list_blockers(locks, place))
        for place, lock in enumerate(locks)
    }
    assert {name: others for name, others in denying.items() if others} == waits
