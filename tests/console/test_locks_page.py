"""The pages of locks and of leases: who has what, and who waits for whom; looking makes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path as File

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import NARROW, Browse, Serve
from tests.console.visits import ask
from txn import Key, Mutation, connect
from txn.leases import open_leases
from txn.leases.opening import parse_url
from txn.leases.service import LeaseService
from txn.locks import LockManager, Path, Waiting, exclusive, open_manager, shared
from txn.stores import open_store

BOLD, HOSTILE = "<b>bold</b>", "day=<script>alert(1)</script>"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store in whose own table `ann` holds a partition, and `bob` and `eve` wait for it."""
    uri = f"embedded://{tmp_path_factory.mktemp('locks')}/store"
    with pytest.MonkeyPatch.context() as patch, ExitStack() as ends:
        patch.setattr("txn.locks.manager.socket.gethostname", lambda: "worker1")
        ann, bob, eve = (
            ends.enter_context(open_locks(uri, name)) for name in ("ann", "bob", "eve")
        )
        query = "INSERT OVERWRITE TABLE sales.orders PARTITION (day=1)"
        held = ann.hold([exclusive("sales/orders/day=1"), shared("sales/rates/day=1")], query=query)
        threads = [
            threading.Thread(target=wait_for_lock, args=(each, "sales/orders/day=1"))
            for each in (bob, eve)
        ]
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_for_waiters(ann, number)
        yield uri
        held.release()
        for thread in threads:
            thread.join()


def open_locks(uri: str, name: str) -> LockManager:
    return open_manager(uri, name=name, lease_ms=60_000)


def wait_for_lock(manager: LockManager, at: str) -> None:
    waiting = Waiting(retries=1_000, pause_ms=200, deadline_ms=300_000)
    manager.hold([exclusive(at)], waiting=waiting).release()


def wait_for_waiters(manager: LockManager, count: int) -> None:
    while sum(not lock.granted for lock in manager.locks()) < count:
        pass


@pytest.fixture(scope="module")
def url(serve: Serve, store: str) -> str:
    return serve(store).url


def rows_of(page: Page, name: str) -> list[str]:
    """Return the rows of a table, each as a text."""
    rows = page.get_by_role("region", name=name, exact=True).locator("tbody tr").all()
    return [" ".join(row.inner_text().split()) for row in rows]


def test_holders_and_the_queue_are_shown_at_their_objects(url: str, browse: Browse) -> None:
    page = browse(f"{url}/locks")
    held, first, second = rows_of(page, "sales/orders/day=1")
    assert held.startswith("held exclusive ann worker1 20")
    assert "INSERT OVERWRITE TABLE sales.orders" in held
    assert first.startswith("waiting, 1 exclusive bob worker1 20")
    assert second.startswith("waiting, 2 exclusive eve worker1 20")
    assert [row.split(" worker1 ")[0] for row in rows_of(page, "sales/rates/day=1")] == [
        "held shared ann"
    ]


def test_who_waits_is_told_for_whom(url: str, browse: Browse) -> None:
    page = browse(f"{url}/locks")
    first, second = rows_of(page, "Waiting requests")
    assert first.endswith("ann@worker1 (holds exclusive)")
    assert second.endswith("ann@worker1 (holds exclusive); bob@worker1 (requests exclusive)")


def test_partitions_stand_within_their_table_and_database(url: str, browse: Browse) -> None:
    page = browse(f"{url}/locks")
    inner = page.locator(".tree > li > ul > li", has=page.get_by_role("heading", name="orders"))
    expect(inner.locator("> ul > li > h3").first).to_have_text("day=1")
    expect(page.locator(".tree > li > h3")).to_have_text(["sales"])


def test_names_of_objects_are_shown_and_not_run(url: str, store: str, browse: Browse) -> None:
    with open_locks(store, "new") as manager:
        manager.hold([shared(Path(("stock", BOLD, HOSTILE)))], explicit=True)
    page = browse(f"{url}/locks")
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    expect(page.get_by_role("heading", name=BOLD)).to_be_visible()
    assert page.locator("main script, main b").count() == 0
    (row,) = rows_of(page, str(Path(("stock", BOLD, HOSTILE))))
    assert "explicit" in row
    with open_locks(store, "new") as manager:
        manager.release(Path(("stock", BOLD, HOSTILE)))


def test_what_changes_is_seen_without_loading_the_page_again(
    url: str, store: str, browse: Browse
) -> None:
    page = browse(f"{url}/locks")
    with open_locks(store, "new") as manager, manager.hold([shared("stock/new")]):
        expect(page.get_by_role("heading", name="stock")).to_be_visible()
    expect(page.get_by_role("heading", name="stock")).to_have_count(0)


def test_the_page_of_locks_fits_a_narrow_screen(url: str, browse: Browse) -> None:
    page = browse(f"{url}/locks", viewport=NARROW)
    expect(page.get_by_role("heading", name="rates")).to_be_visible()
    expect(page.locator("nav a").first).to_have_css("display", "block")
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]


def test_looking_at_locks_makes_no_table_of_them(serve: Serve, tmp_path: File) -> None:
    uri = f"embedded://{tmp_path}/store"
    with connect(uri, table="stock") as engine:
        engine.ensure_table("stock", ["d"])
        engine.commit([Mutation(Key("apple", "d", "count"), "7")])
    before = list_cells(uri)
    answer = ask(f"{serve(uri).url}/locks")
    assert "This store has no lock table" in answer.body
    assert list_cells(uri) == before


def list_cells(uri: str) -> list[object]:
    store = open_store(uri)
    try:
        assert store.describe(b"locks") is None
        return [*store.scan(b"txn"), *store.scan(b"stock")]
    finally:
        store.close()


def test_locks_of_another_store_are_shown_where_it_is_named(
    serve: Serve, store: str, browse: Browse, tmp_path: File
) -> None:
    uri = f"embedded://{tmp_path}/store"
    with connect(uri):
        pass
    page = browse(f"{serve(uri, '--locks', store).url}/locks")
    assert rows_of(page, "sales/orders/day=1")


@pytest.fixture(scope="module")
def leases(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('leases')}/leases.sqlite"
    with open_leases(url) as service:
        service.grab_lease([exclusive("sales/orders/day=1")], 3_600, user="ann")
        service.grab_lease([shared("sales/rates")], 3_600, user="bob")
    return url


@pytest.fixture(scope="module")
def leased(serve: Serve, store: str, leases: str) -> str:
    return serve(store, "--leases", leases).url


def test_leases_are_shown_with_their_users_and_times(leased: str, browse: Browse) -> None:
    page = browse(f"{leased}/leases")
    first, second = rows_of(page, "Leases")
    assert first.startswith("sales/orders/day=1 exclusive 1 ann 20")
    assert second.startswith("sales/rates shared 2 bob 20")


def test_a_new_lease_is_seen_without_loading_the_page_again(
    leased: str, leases: str, browse: Browse
) -> None:
    page = browse(f"{leased}/leases")
    with open_leases(leases) as service:
        lease = service.grab_lease([exclusive("stock/new")], 60, user="<i>eve</i>")
        expect(page.get_by_role("rowheader", name="stock/new")).to_be_visible()
        expect(page.get_by_role("cell", name="<i>eve</i>")).to_be_visible()
        service.drop_lease(lease)
        expect(page.get_by_role("rowheader", name="stock/new")).to_have_count(0)


def test_without_leases_the_page_says_how_to_name_them(url: str) -> None:
    answer = ask(f"{url}/leases")
    assert answer.status == 200
    assert "<code>--leases URL</code>" in answer.body


def test_looking_at_leases_makes_no_file_of_them(serve: Serve, store: str, tmp_path: File) -> None:
    answer = ask(f"{serve(store, '--leases', f'sqlite:///{tmp_path}/absent').url}/leases")
    assert answer.status == 400
    assert "no such file of leases" in answer.body
    assert not (tmp_path / "absent").exists()


def test_a_look_at_leases_is_bounded(leases: str) -> None:
    with LeaseService(parse_url(leases)) as service:
        service.connections.create_tables()
        assert len(service.list_lease(most=1)) == 1
