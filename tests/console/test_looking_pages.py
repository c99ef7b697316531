"""The overview, transactions and keys, by what a person sees of them in a browser."""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.console.conftest import NARROW, Browse, Picture, Serve
from tests.console.crashing import BYTES, HOSTILE, QUOTES, SCRIPT, crash_client
from tests.console.visits import ask
from txn import AssertionFailedError, Exact, Key, Mutation, Request, connect
from txn.model import Edit, Family
from txn.protocol.codec import encode_buffer
from txn.protocol.row import FAMILY, new_row_key
from txn.protocol.statuses import Status
from txn.stores import open_store
from txn.text import escape

LOCK_TTL_MS = 100
TRANSFERS = 60  # more than a page of the search
PEARS, APPLES = (Key(row, "d", "count", "stock") for row in ("pears", "apples"))
LEFT = Request((Mutation(PEARS, "7"), Mutation(APPLES, "8")))


@pytest.fixture(scope="module")
def url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bank, one transfer that was refused, and three clients that have died on their way."""
    store = f"embedded://{tmp_path_factory.mktemp('looking')}/store"
    with connect(store, table="accounts") as engine:
        engine.ensure_table("accounts", ["d"])
        alice, bob = Key("alice", "d", "balance"), Key("bob", "d", "balance")
        engine.commit([Mutation(alice, "100"), Mutation(bob, "100")])
        for number in range(TRANSFERS):
            with_alice = Exact(alice, f"{100 - number:03}")
            values = [Mutation(alice, f"{99 - number:03}"), Mutation(bob, f"{101 + number:03}")]
            labels = {"job": "transfer", "number": str(number)}
            engine.commit(values, [with_alice], labels=labels)
        with pytest.raises(AssertionFailedError):
            engine.commit([Mutation(bob, "000")], [Exact(alice, "100")], labels={"job": "refused"})
        engine.ensure_table("stock", ["d"])
        engine.commit([Mutation(PEARS, "12"), Mutation(APPLES, "3")], labels={"job": "count"})
    crash_client(store, Status.LOCKED, HOSTILE, LOCK_TTL_MS)
    crash_client(store, Status.ASSERTED, LEFT, LOCK_TTL_MS)
    crash_client(store, Status.CLEANING, [b"plums"], LOCK_TTL_MS)
    return serve(store).url


def test_the_overview_tells_what_is_going_on(url: str, browse: Browse, picture: Picture) -> None:
    page = browse(f"{url}/")
    unfinished = page.get_by_role("region", name="Longest silent")
    expect(unfinished.get_by_role("row")).to_have_count(4)
    expect(unfinished).to_contain_text("2-ASSERTED")
    funnel = page.get_by_role("row", name=re.compile("^5-COMPLETE"))
    expect(funnel).to_contain_text(f"{TRANSFERS + 2}")
    expect(page.get_by_role("row", name="accounts/alice/d:balance")).to_be_visible()
    expect(page.get_by_role("row", name="assertion failed 1")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("in each minute"))).to_be_visible()
    picture(page, "overview")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(NARROW)
    picture(page, "narrow", is_whole=False)


def test_the_overview_stays_up_to_date_and_can_be_paused(
    serve: Serve, browse: Browse, tmp_path: Path
) -> None:
    store = f"embedded://{tmp_path}/store"
    with connect(store, table="stock") as engine:
        engine.ensure_table("stock", ["d"])
        engine.commit([Mutation(Key("pears", "d", "left"), "5")])
        page = browse(serve(store).url + "/")
        expect(page.get_by_role("row", name="stock/pears/d:left")).to_be_visible()
        engine.commit([Mutation(Key("plums", "d", "left"), "5")])
        expect(page.get_by_role("row", name="stock/plums/d:left")).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Resume")).to_be_visible()
        engine.commit([Mutation(Key("figs", "d", "left"), "5")])
        page.wait_for_timeout(4_000)  # two times as long as a part takes to be sent again
        expect(page.get_by_role("row", name="stock/figs/d:left")).to_have_count(0)
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("row", name="stock/figs/d:left")).to_be_visible()


def test_a_status_that_nobody_knows_leads_to_no_search(
    serve: Serve, browse: Browse, tmp_path: Path
) -> None:
    uri = f"embedded://{tmp_path}/store"
    crash_client(uri, Status.LOCKED, [b"pears"])
    crash_client(uri, Status.ASSERTED, [b"plums"])
    store = open_store(uri)
    try:
        row = next(each.row for each in store.scan(b"txn") if b"transaction." in each.row)
        store.write([Edit(Key(row, FAMILY, b"status", b"txn"), b"9-NEW", 2**62)])
    finally:
        store.close()
    page = browse(serve(uri).url + "/")
    expect(page.get_by_role("rowheader", name="unknown status")).to_be_visible()
    expect(page.get_by_role("link", name="unknown status")).to_have_count(0)
    page.get_by_role("link", name="2-ASSERTED").click()
    rows = page.get_by_role("region", name="Transactions").locator("tbody tr")
    expect(rows).to_have_count(1)


def test_transactions_are_searched_page_by_page(url: str, browse: Browse, picture: Picture) -> None:
    page = browse(f"{url}/transactions?label=job%3Dtransfer")
    rows = page.get_by_role("region", name="Transactions").locator("tbody tr")
    expect(rows).to_have_count(50)
    first = rows.locator("td:first-child a").evaluate_all("all => all.map((each) => each.href)")
    page.get_by_role("link", name="Older transactions").click()
    expect(rows).to_have_count(TRANSFERS - 50)
    rest = rows.locator("td:first-child a").evaluate_all("all => all.map((each) => each.href)")
    assert len({*first, *rest}) == TRANSFERS
    expect(page.get_by_role("main")).to_contain_text("the beginning of the table")
    page.goto(f"{url}/transactions")
    picture(page, "transactions", is_whole=False)


def put_many(uri: str, number: int) -> None:
    """Put finished transactions that are newer than all others."""
    now_ms = time.time_ns() // 1_000_000
    buffer = encode_buffer(Request((Mutation(APPLES, "1"),)), 1_000)
    cells = {b"buffer": buffer, b"status": Status.COMPLETE.encoded, Status.COMPLETE.at: b""}
    with closing(open_store(uri)) as store:
        for first in range(0, number, 1_000):
            rows = [new_row_key(now_ms + at, at) for at in range(first, first + 1_000)]
            store.write(
                [Edit(Key(r, FAMILY, n, b"txn"), c, now_ms) for r in rows for n, c in cells.items()]
            )


def test_the_unfinished_of_the_overview_are_listed_at_once(
    serve: Serve, browse: Browse, tmp_path: Path
) -> None:
    uri = f"embedded://{tmp_path}/store"
    crash_client(uri, Status.LOCKED, [b"pears"])
    time.sleep(0.1)
    put_many(uri, 5_000)
    page = browse(serve(uri).url + "/")
    row = page.get_by_role("row", name=re.compile("^1-LOCKED"))
    expect(row.last).to_have_text(re.compile("1-LOCKED *1"))
    expect(page.get_by_role("main")).to_contain_text("As of ")  # the count is complete
    page.get_by_role("link", name="1-LOCKED").click()
    rows = page.get_by_role("region", name="Transactions").locator("tbody tr")
    assert rows.count() == 1
    expect(page.get_by_role("main")).to_contain_text("transactions are shown as of")


def test_a_search_continues_while_its_page_is_open_and_shows_what_it_finds(
    serve: Serve, browse: Browse, tmp_path: Path
) -> None:
    uri = f"embedded://{tmp_path}/store"
    crash_client(uri, Status.LOCKED, [b"pears"])
    time.sleep(0.1)
    put_many(uri, 60_000)
    page = browse(serve(uri).url + "/transactions?key=stock%2Fpears%2Fd%3Acount")
    expect(page.get_by_role("status").last).to_have_text(
        re.compile(r"Searching: [\d,]+ rows read, back to .*, about \d+ % of the rest")
    )
    rows = page.get_by_role("region", name="Transactions").locator("tbody tr")
    expect(rows).to_have_count(1, timeout=60_000)
    expect(page.get_by_role("main")).to_contain_text("the beginning of the table")


@pytest.mark.parametrize(
    ("field", "value", "count"),
    [
        ("Status", "7-ABORTED", 1),
        ("Status", "unfinished", 3),
        ("Table", "stock", 4),
        ("Key", "stock/pears/d:count", 2),
        ("Label", "refused", 1),
        ("In status for at least", "30d", 0),
    ],
)
def test_a_search_finds_what_was_asked_for(
    field: str, value: str, count: int, url: str, browse: Browse
) -> None:
    page = browse(f"{url}/transactions")
    if field == "Status":
        page.get_by_role("combobox", name=field).select_option(value)
    else:
        page.get_by_label(field, exact=True).fill(value)
    page.get_by_role("button", name="Search").click()
    if count:
        expect(page.get_by_role("region", name="Transactions").locator("tbody tr")).to_have_count(
            count
        )
    else:
        expect(page.get_by_text("No transactions found")).to_be_visible()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("Key", "no key", "a key is table/row/family:column"),
        ("In status for at most", "soon", "duration"),
    ],
)
def test_what_is_no_search_is_refused_in_words(
    field: str, value: str, words: str, url: str, browse: Browse
) -> None:
    page = browse(f"{url}/transactions", allowed=("400",))
    page.get_by_label(field, exact=True).fill(value)
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("alert")).to_contain_text(words)
    expect(page.get_by_label(field, exact=True)).to_have_value(value)


def test_a_transaction_is_explained(url: str, browse: Browse) -> None:
    page = browse(f"{url}/transactions?status=2-ASSERTED")
    page.locator("tbody td a.id").click()
    expect(page.get_by_role("img", name=re.compile("0-WRITTEN at .*2-ASSERTED at"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^Repair "))).to_contain_text("roll it forward")
    change = page.get_by_role("region", name="Mutations").get_by_role("row", name="stock/pears")
    expect(change.get_by_role("cell")).to_have_text(["stock/pears/d:count", "12", "7", "held"])
    page.goto(f"{url}/transactions?label=number%3D{TRANSFERS - 1}")
    page.locator("tbody td a.id").click()
    change = page.get_by_role("region", name="Mutations").get_by_role("row", name="accounts/alice")
    expect(change.get_by_role("cell")).to_have_text(["accounts/alice/d:balance", "041", "040", ""])
    page.goto(f"{url}/transactions?status=7-ABORTED")
    page.locator("tbody td a.id").click()
    expect(page.get_by_role("row", name=re.compile("^Abort reason"))).to_contain_text("seen")
    verdict = page.get_by_role("region", name="Assertions").locator("tbody tr")
    expect(verdict).to_contain_text(["accounts/alice/d:balance = 100"])
    expect(verdict.locator("td").last).to_have_text("failed")


def test_a_transaction_that_is_gone_is_said_to_be(url: str, browse: Browse) -> None:
    page = browse(f"{url}/transaction?id=transaction.{0:013}.{0:032}", allowed=("404",))
    expect(page.get_by_role("main")).to_contain_text("no such transaction")


def test_a_key_tells_who_holds_it(url: str, browse: Browse) -> None:
    page = browse(f"{url}/key")
    page.get_by_label("Key", exact=True).fill("stock/pears/d:count")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("row", name=re.compile("^Lock held by"))).to_contain_text("2-ASSERTED")
    page.get_by_label("Key", exact=True).fill("accounts/alice/d:balance")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("row", name="Value 040")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^Lock free"))).to_be_visible()
    last = page.get_by_role("region", name="Recent transactions").locator("tbody tr")
    expect(last).to_have_count(10)
    earlier = page.get_by_role("region", name="Earlier versions").locator("tbody tr")
    expect(earlier).to_contain_text(["041", "042"])
    expect(earlier.first.get_by_role("link")).to_have_attribute("href", re.compile("^/transaction"))
    page.get_by_label("Table").fill("accounts")
    page.get_by_role("button", name="List").click()
    expect(page.get_by_role("region", name="Keys").locator("tbody tr")).to_have_count(2)


def test_pages_say_what_they_leave_out(serve: Serve, tmp_path: Path) -> None:
    store = f"embedded://{tmp_path}/store"
    wide = [Key("row", "d", f"{number:04}", "wide") for number in range(1_007)]
    with closing(open_store(store)) as opened:
        opened.ensure_table(b"wide", {b"d": Family(versions=30)})
    with connect(store, table="wide") as engine:
        for number in range(12):
            engine.commit([Mutation(wide[0], f"{number}")])
        done = engine.commit([Mutation(key, "x") for key in wide]).transaction
    url = serve(store).url
    listed = ask(f"{url}/key?table=wide").body
    assert "The last row has 7 more values. To see one, enter its key" in listed
    assert "Next rows" in listed
    key = ask(f"{url}/key?key=wide/row/d:0000").body
    assert "There may be earlier versions that were not read." in key
    explained = ask(f"{url}/transaction?id={done.decode()}").body
    assert "0 of 1,007 keys, of which the first 200 were checked" in explained


@pytest.mark.parametrize("row", [SCRIPT, QUOTES, BYTES])
def test_a_hostile_row_key_is_shown_and_not_run(row: bytes, url: str, browse: Browse) -> None:
    page = browse(f"{url}/transactions?table=stock&status=1-LOCKED")
    page.locator("tbody td a.id").click()
    link = page.get_by_role("region", name="Mutations").get_by_role("link").nth(HOSTILE.index(row))
    expect(link).to_contain_text(escape(row))
    link.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(escape(row))
    expect(page.get_by_role("row", name=re.compile("^Lock held by"))).to_be_visible()
    expect(page.locator("main script, main img")).to_have_count(0)


@pytest.mark.parametrize("path", ["/", "/transactions", "/key?table=accounts"])
def test_a_narrow_screen_scrolls_tables_and_not_the_page(
    path: str, url: str, browse: Browse
) -> None:
    page = browse(url + path, viewport=NARROW)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0


def test_a_search_needs_no_mouse(url: str, browse: Browse) -> None:
    page = browse(f"{url}/transactions")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("ID", exact=True)).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("stock/pears/d:count")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Transactions").locator("tbody tr")).to_have_count(2)


def test_the_theme_follows_the_system_and_the_person(url: str, browse: Browse) -> None:
    page = browse(f"{url}/transactions", color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Light").click()
    light = page.evaluate(ground)
    assert (dark, light) == ("rgb(20, 24, 29)", "rgb(255, 255, 255)")
    page.reload()
    expect(page.get_by_role("button", name="Dark")).to_be_visible()
    assert page.evaluate(ground) == light
