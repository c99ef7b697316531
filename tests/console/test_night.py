"""What an operator does at night: see that clients have died, and repair what they left.

The console runs in this process, over a store in memory, in which they died ten minutes ago.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest

from recovery.console.pages import SORTS, show_overview
from recovery.console.settings import ConsoleSettings
from recovery.console.state import PATIENT, Console
from tests.console.browser import find_violations
from tests.console.conftest import NARROW, WIDE, Browse, Picture
from tests.console.crashing import crash_engine
from tests.console.served import PATIENCE_S, TOKEN, serve_here
from tests.console.visits import ask
from txn import Engine, Key, Mutation
from txn.clock import ManualClock, SystemClock
from txn.errors import NotApplied
from txn.events import silent
from txn.host.owner import name_owner
from txn.model import Edit
from txn.policy import Policy
from txn.protocol.codec import encode_buffer
from txn.protocol.context import Context
from txn.protocol.row import column, new_row_key
from txn.protocol.statuses import SIX_PHASE, Status
from txn.request import Request
from txn.stores import open_store
from txn.stores.base import Store
from txn.testing.faulty import Fault, FaultyStore

AGO_MS = 600_000
DASH = "\u2013"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().wall_ms() - AGO_MS)


@pytest.fixture
def store(clock: ManualClock) -> Store:
    return open_store("memory://", clock)


@pytest.fixture
def url(store: Store, clock: ManualClock) -> Iterator[str]:
    """A shop in which three clients have died: two before their decision, and one after it."""
    engine = Engine(store, clock=clock)
    engine.ensure_table("stock", ["d"])
    engine.commit([Mutation(Key("apple", "d", "count", "stock"), "7")])
    for status, row in ((Status.LOCKED, b"a"), (Status.LOCKED, b"b"), (Status.ASSERTED, b"c")):
        left = Request((Mutation(Key(row, "d", "count", "stock"), "8"),))
        crash_engine(store, status, left, clock)
    clock.advance(AGO_MS)
    context = Context(store, b"txn", SystemClock(), random.Random(1), Policy(), silent, SIX_PHASE)
    with serve_here(context) as url:
        yield url


def log_in(page: Page) -> None:
    page.get_by_role("link", name="log in to repair").click()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("main").get_by_role("button", name="Log in").click()


def test_from_the_banner_to_a_clean_store(url: str, browse: Browse, picture: Picture) -> None:
    page = browse(f"{url}/")
    banner = page.get_by_role("region", name="Left by dead clients")
    expect(banner).to_contain_text("3 left by dead clients, oldest 10 min")
    color = banner.locator("strong").evaluate("each => getComputedStyle(each).color")
    red, green, blue = map(int, re.findall(r"\d+", color))
    assert red > 2 * max(green, blue)
    for path in ("/transactions", "/key", "/locks", "/leases", "/fsck", "/doctor"):
        assert "3 left by dead clients" in ask(url + path).body, path
    assert "left by dead clients" not in ask(f"{url}/login").body
    old = page.context.new_page()
    old.goto(f"{url}/transactions")
    seen = old.get_by_role("region", name="Left by dead clients")
    expect(seen).to_be_visible()
    banner.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name="Results of the last check")).to_be_visible()
    picture(page, "fsck")
    banner.get_by_role("link", name="Repair all…").click()
    wanted = page.get_by_role("region", name="What would be repaired")
    expect(page.get_by_text("Left by dead clients:")).to_be_visible()
    expect(wanted.get_by_role("row", name="undecided 2 abort it")).to_be_visible()
    expect(wanted.get_by_role("row", name="decided 1 roll it forward")).to_be_visible()
    log_in(page)
    page.get_by_role("button", name="Repair all").click()
    jobs = page.get_by_role("region", name="Checks and repairs").locator("tbody tr")
    expect(jobs).to_have_count(2)
    expect(jobs.first.get_by_role("cell").last).to_have_text("done")
    done = [each.get_by_role("cell").all_inner_texts()[1:8] for each in jobs.all()]
    assert [(cells[0], cells[1], *cells[5:]) for cells in done] == [
        ("127.0.0.1", "repair of all", "3", "3"),
        ("127.0.0.1", "check", "3", ""),
    ]
    expect(banner).to_have_count(0)
    expect(seen).to_have_count(0)  # on a page that was opened before
    assert "left by dead clients" not in ask(f"{url}/doctor").body
    assert ask(f"{url}/fsck/repair?left=1").status == 400


def test_a_transaction_is_repaired_from_its_own_page(
    url: str, browse: Browse, picture: Picture
) -> None:
    page = browse(f"{url}/transactions?status=2-ASSERTED")
    page.get_by_role("region", name="Transactions").locator("tbody a").first.click()
    address = page.url
    picture(page, "transaction")
    page.get_by_role("link", name="Repair…", exact=True).click()
    expect(page.get_by_text("roll it forward: put its values")).to_be_visible()
    log_in(page)
    page.get_by_role("button", name="Repair this").click()
    expect(page.get_by_role("row", name="Last repair rolled forward")).to_be_visible()
    assert page.url == address
    expect(page.get_by_role("row", name="Status 5-COMPLETE")).to_be_visible()
    page.goto(f"{url}/fsck")
    jobs = page.get_by_role("region", name="Checks and repairs").locator("tbody tr")
    expect(jobs).to_have_count(1)
    expect(jobs).to_contain_text("repair of")
    expect(jobs).to_contain_text("rolled forward")
    number = address.partition("=")[2]
    again = ask(f"{url}/fsck/repair?id={number}")
    assert (again.status, "there is nothing to repair" in again.body) == (400, True)
    expect(page.get_by_role("region", name="Left by dead clients")).to_contain_text("2 left by")


@pytest.mark.parametrize("viewport", [WIDE, NARROW])
def test_marked_transactions_are_repaired_together(
    viewport: dict[str, int], url: str, browse: Browse
) -> None:
    page = browse(f"{url}/transactions", viewport=viewport)
    rows = page.get_by_role("region", name="Transactions").locator("tbody tr")
    expect(rows).to_have_count(4)
    assert page.get_by_role("checkbox").count() == 3
    ground = "each => getComputedStyle(each).backgroundColor"
    colors = {each.inner_text(): each.evaluate(ground) for each in page.locator(".state").all()}
    assert len(colors) == 3 and colors.pop("5-COMPLETE") == "rgba(0, 0, 0, 0)"
    assert len({*colors.values()} - {"rgba(0, 0, 0, 0)"}) == 1 and "1-LOCKED, left" in colors
    assert find_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    page.get_by_role("navigation", name="Status").get_by_role("link", name="1-LOCKED").click()
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Mark all").press("Enter")
    page.get_by_role("checkbox").last.press("Space")
    assert [each.is_checked() for each in page.get_by_role("checkbox").all()] == [True, False]
    page.get_by_role("button", name="Mark all").press("Enter")
    page.get_by_role("button", name="Repair marked…").press("Enter")
    expect(page.get_by_role("heading", name="Repair 2 findings")).to_be_visible()
    assert page.get_by_text(name_owner()).count() == 2
    log_in(page)
    page.get_by_role("button", name="Repair these").press("Enter")
    jobs = page.get_by_role("region", name="Checks and repairs").locator("tbody tr")
    expect(jobs).to_contain_text("repair of 2 marked")
    expect(jobs).to_contain_text("2x rolled back")
    page.goto(f"{url}/transactions?status=unfinished")
    expect(rows).to_have_count(1)


def read_column(url: str, sort: str, column: str) -> list[str]:
    cells = re.findall(rf'data-label="{column}"[^>]*>(.*?)</td>', ask(f"{url}&sort={sort}").body)
    return [re.sub("<[^>]*>", "", each) for each in cells]


def test_a_search_is_sorted_by_each_column(url: str) -> None:
    url += "/transactions?table=stock"
    for name, (heading, _) in SORTS.items():
        found = read_column(url, name, heading.removeprefix("#"))
        assert len(found) == 4
        assert found == sorted(found) or name == "age"
        assert sorted(found) == sorted(read_column(url, f"-{name}", heading.removeprefix("#")))
    statuses = read_column(url, "-status", "Status")
    assert statuses == ["5-COMPLETE", "2-ASSERTED, left", *["1-LOCKED, left"] * 2]
    started = read_column(url, "started", "Started")
    assert (
        read_column(url, "age", "Started")
        == started[::-1]
        == read_column(url, "-started", "Started")
    )
    body = ask(f"{url}&sort=status").body
    assert 'aria-sort="ascending"><a href="/transactions?table=stock&amp;sort=-status">' in body
    assert "Only the 4 transactions of this page are sorted" in body
    assert ask(f"{url}&sort=size").status == 400


@pytest.mark.parametrize("query", ["marked=1", "check=1&marked=1", "marked=1&id="])
def test_nothing_marked_is_not_everything(query: str, url: str) -> None:
    answer = ask(f"{url}/fsck/repair?{query}")
    assert (answer.status, "nothing was marked" in answer.body) == (400, True)


def test_what_is_over_is_left_out_of_what_was_marked(url: str) -> None:
    ids = re.findall(r'/transaction\?id=([^"]+)', ask(f"{url}/transactions").body)
    assert len(ids) == 4
    body = ask(f"{url}/fsck/repair?{'&'.join(f'id={each}' for each in ids)}").body
    assert "Repair 3 findings" in body
    assert "The others that were marked are over" in body
    many = ask(f"{url}/fsck/repair?{'&'.join(51 * ['id=' + ids[0]])}")
    assert (many.status, "too many are marked" in many.body) == (400, True)


def test_who_waits_for_whom_is_shown_as_a_tree(url: str, store: Store, browse: Browse) -> None:
    now_ms = SystemClock().wall_ms()
    rows = {name: new_row_key(now_ms, at) for at, name in enumerate(("first", "second", "third"))}
    wanted = {"first": (b"a", b"k"), "second": (b"k",), "third": (b"l",)}
    for name, row_key in rows.items():
        keys = [Key(row, b"d", b"count", b"stock") for row in wanted[name]]
        buffer = encode_buffer(Request(tuple(Mutation(key, b"1") for key in keys)), AGO_MS)
        cells = {b"status": b"0-WRITTEN", b"buffer": buffer}
        store.write(
            [Edit(column(b"txn", row_key, c), value, now_ms - 5_000) for c, value in cells.items()]
        )
    holders = {b"k": rows["first"], b"l": new_row_key(now_ms, 9)}
    locks = {Key(row, b"d", b"count_lock", b"stock"): holder for row, holder in holders.items()}
    store.write([Edit(lock, holder, now_ms) for lock, holder in locks.items()])
    page = browse(f"{url}/")
    tree = page.get_by_role("heading", name="Waiting transactions").locator("+ ul")
    below = tree.locator("li").nth(0).locator("li")
    expect(tree).to_contain_text("1-LOCKED left by a dead client")
    expect(below.nth(0)).to_contain_text("0-WRITTEN waits for stock/a/d:count")
    expect(below.nth(0).locator("li")).to_contain_text("0-WRITTEN waits for stock/k/d:count")
    expect(page.locator("main > div > ul.tree > li").last).to_contain_text("no status")
    expect(page.get_by_role("region", name="Left by dead clients")).to_contain_text("3 left by")


def test_the_overview_has_the_latency_of_each_phase(url: str, browse: Browse) -> None:
    page = browse(f"{url}/")
    table = page.get_by_role("region", name="Latency by phase")
    heads = ["Phase", "p50", "p95", "p99", "Sampled"]
    expect(table.get_by_role("columnheader")).to_have_text(heads)
    expect(table.get_by_role("row", name="lock under 1 ms")).to_be_visible()


def test_the_keys_page_lists_the_tables(url: str, browse: Browse) -> None:
    page = browse(f"{url}/key")
    row = page.get_by_role("region", name="Tables").get_by_role("row", name="stock")
    cells = row.get_by_role("cell").all_inner_texts()
    assert cells[0] == DASH
    assert int(cells[1]) > 3
    row.get_by_role("link", name="stock").click()
    expect(page.get_by_role("region", name="Keys")).to_contain_text("stock/apple/d:count")


def test_an_old_look_does_not_make_the_living_dead(store: Store, clock: ManualClock) -> None:
    crash_engine(store, Status.LOCKED, [b"a"], clock)
    context = Context(store, b"txn", clock, random.Random(1), Policy(), silent, SIX_PHASE)
    with closing(Console(ConsoleSettings("memory://", TOKEN), context)) as console:
        console.background.visit()
        due_s = time.monotonic() + PATIENCE_S
        while console.background.unfinished is None and time.monotonic() < due_s:
            time.sleep(0.01)
        console.background.close()
        app = Starlette()
        app.state.console = console
        clock.advance(AGO_MS)
        facts = show_overview(HttpRequest({"type": "http", "app": app}))
    ((_, silent_ms, _, owner),) = facts["oldest"]
    assert (silent_ms, owner) == (0, "alive: within its lock TTL")


class StoreWithoutMaster(FaultyStore):
    def list_tables(self) -> list[bytes]:
        raise NotApplied("the master does not answer")


def test_a_key_can_be_shown_while_the_tables_cannot_be_listed(store: Store) -> None:
    masterless = StoreWithoutMaster(store, lambda call: Fault())
    context = Context(
        masterless, b"txn", SystemClock(), random.Random(1), PATIENT, silent, SIX_PHASE
    )
    with serve_here(context) as url:
        page = ask(f"{url}/key")
    assert page.status == 200
    assert "The tables cannot be listed: the master does not answer" in page.body
    assert 'name="key"' in page.body
