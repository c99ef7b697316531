"""Pages on screens of all widths, as a person and a screen reader see them."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, ViewportSize, expect

from recovery.console import server
from tests.console.browser import HERE, NAMED, find_violations
from tests.console.conftest import NARROW, WIDE, Browse, Picture, Serve
from tests.console.crashing import HOSTILE, crash_client, stock_up
from tests.console.served import ServedConsole
from tests.console.visits import ask, post, wait_for
from txn import AssertionFailedError, Exact, Key, Mutation, Request, connect
from txn.leases import open_leases
from txn.locks import exclusive, open_manager
from txn.protocol.statuses import Status

LOCK_TTL_MS = 100
TRANSFERS = 60  # more than a page of the search
TABS = 8  # a browser has six connections to a server
OLD = "The console does not respond. This page is out of date."
UNTRUSTED = ("Cross-Origin-Opener-Policy",)
"""The browser says that it ignores this of a site that has no TLS and is not the loopback."""

PEARS, APPLES = (Key(row, "d", "count", "stock") for row in ("pears", "apples"))
LEFT = Request((Mutation(PEARS, "7"), Mutation(APPLES, "8")))
LONG = b"customer:eu-west-1:000000004711:2026-11-27T14:20:00.000Z:invoice"
LONG_KEY = f"stock/{LONG.decode()}/d:count"
PARTITION = "sales/orders/day=2026-11-27/region=a-region-with-quite-a-long-name"
OUTSIDE = """() => [...document.querySelectorAll("main *")].filter((each) => {
  const { left, right, width } = each.getBoundingClientRect();
  const isCut = each.matches("td, th") && each.scrollWidth > each.clientWidth;
  return width > 1 && each.checkVisibility() && (left < 0 || right > innerWidth || isCut);
}).filter((each) => !each.closest("svg, .long > a")).map((each) => each.outerHTML)"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def console(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedConsole:
    """A bank, one transfer that was refused, three clients that have died on their way, with locks
    on odd keys and a long one, and a lease on a long partition."""
    store = f"embedded://{tmp_path_factory.mktemp('screens')}/store"
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
    crash_client(store, Status.LOCKED, (LONG, *HOSTILE), LOCK_TTL_MS)
    crash_client(store, Status.ASSERTED, LEFT, LOCK_TTL_MS)
    crash_client(store, Status.CLEANING, [b"plums"], LOCK_TTL_MS)
    leases = f"sqlite:///{tmp_path_factory.mktemp('leases')}/leases.sqlite"
    with open_leases(leases) as service:
        service.grab_lease([exclusive(PARTITION)], 3_600, user="ann")
    console = serve(store, "--leases", leases)
    post(f"{console.url}/fsck", {"grace": "0s"})
    wait_for(f"{console.url}/fsck", "Results of the last check")
    return console


@pytest.fixture(scope="module")
def url(console: ServedConsole) -> str:
    return console.url


def find_transaction(url: str, query: str) -> str:
    """Return the address of the first transaction that a search shows."""
    found = re.search(r'href="(/transaction\?[^"]+)"', ask(f"{url}/transactions?{query}").body)
    assert found
    return url + found[1]


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
    expect(page.get_by_role("row", name=re.compile(r"^lock (under 1|[\d.]+) ms"))).to_be_visible()
    picture(page, "overview")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(NARROW)
    picture(page, "narrow", is_whole=False)


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


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("status=7-ABORTED", 1),
        ("status=unfinished", 3),
        ("table=stock", 4),
        ("key=stock/pears/d:count", 2),
        ("label=refused", 1),
        ("older=30d", 0),
    ],
)
def test_a_search_finds_what_was_asked_for(query: str, count: int, url: str) -> None:
    shown = ask(f"{url}/transactions?{query}")
    assert shown.body.count('href="/transaction?id=') == count
    assert ("No transactions found" in shown.words) is (count == 0)


def test_a_transaction_is_explained(url: str) -> None:
    left = ask(find_transaction(url, "status=2-ASSERTED"))
    assert re.search('aria-label="[^"]*0-WRITTEN at [^"]*2-ASSERTED at ', left.body)
    assert re.search("Repair .*roll it forward.*stock/pears/d:count 12 7 held", left.words)
    done = ask(find_transaction(url, f"label=number%3D{TRANSFERS - 1}"))
    assert "accounts/alice/d:balance 041 040" in done.words
    aborted = ask(find_transaction(url, "status=7-ABORTED")).words
    assert re.search("Abort reason .*seen.* accounts/alice/d:balance = 100 failed", aborted)
    gone = ask(f"{url}/transaction?id=transaction.{0:013}.{0:032}")
    assert (gone.status, "no such transaction" in gone.words) == (404, True)


def test_a_key_tells_who_holds_it(url: str) -> None:
    assert re.search("Lock held by .*2-ASSERTED", ask(f"{url}/key?key=stock/pears/d:count").words)
    shown = ask(f"{url}/key?key=accounts/alice/d:balance")
    assert re.search("Value 040 .*Lock free .*Earlier versions Value .*041 .*042", shown.words)
    earlier, _, recent = shown.body.partition("Recent transactions")
    assert earlier.count('href="/transaction?id=') == 2
    assert recent.count('href="/transaction?id=') == 10
    listed = ask(f"{url}/key?table=accounts")
    assert listed.body.count('href="/key?key=') == 2
    assert re.search(" stock \u2013 \\d+ ", ask(f"{url}/key").words)


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_every_page_is_accessible_and_fits_its_screen(
    viewport: ViewportSize, scheme: str, url: str, browse: Browse
) -> None:
    repair = re.search(r'"(/fsck/repair\?[^"]+)"', ask(f"{url}/fsck").body)
    assert repair
    given = {
        "/transaction": find_transaction(url, "status=1-LOCKED").removeprefix(url),
        "/fsck/repair": repair[1].replace("&amp;", "&"),
        "/transactions": "/transactions?status=unfinished",  # few rows are looked at quickly
    }
    keys = ["/key?table=accounts", f"/key?key={quote(LONG_KEY)}"]
    page = browse(url, viewport=viewport, color_scheme=scheme)
    for path in [*(given.get(path, path) for path in server.PAGES), *keys, "/login"]:
        page.goto(url + path)
        assert find_violations(page) == [], path
        assert page.evaluate(OUTSIDE) == [], path
        assert page.evaluate(OVERFLOW) <= 0, path


def test_a_person_logs_in_and_out_from_elsewhere_without_tls(
    console: ServedConsole, browse: Browse
) -> None:
    """There a browser sends no `Sec-Fetch-Site`."""
    page = browse(f"{console.url.replace(HERE, NAMED)}/locks", allowed=UNTRUSTED)
    page.get_by_label("Token").fill(console.token or "")
    page.get_by_role("main").get_by_role("button", name="Log in").click()
    expect(page).to_have_url(re.compile("/locks$"))
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_an_answer_has_one_event_and_ends(console: ServedConsole) -> None:
    """An open connection is one that the browser's other tabs do not have."""
    answer = ask(f"{console.url}/live/leases")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "event: part" in answer.body
    assert "retry: 2000" in answer.body
    mark = re.search(r"^id: (\w+)", answer.body, re.MULTILINE)
    assert mark
    again = ask(f"{console.url}/live/leases", headers={"Last-Event-ID": mark[1]})
    assert "event: same" in again.body
    assert "<p" not in again.body
    cookie = post(f"{console.url}/login", {"token": console.token or ""}).cookie
    sent = {"Host": NAMED, "Cookie": cookie}
    assert ask(f"{console.url}/live/overview", headers=sent).status == 200
    post(f"{console.url}/logout", {}, sent)
    assert ask(f"{console.url}/live/overview", headers=sent).status == 401


def test_pages_stay_up_to_date_in_all_tabs(serve: Serve, browse: Browse, tmp_path: Path) -> None:
    """Whoever looks into what goes wrong opens many: the seventh hung, and all after it."""
    store, leases = stock_up(tmp_path), f"sqlite:///{tmp_path}/leases.sqlite"
    open_leases(leases).close()
    console = serve(store, "--leases", leases)
    first = browse(f"{console.url}/", allowed=("ERR_CONNECTION_REFUSED",))
    first.get_by_text("Numbers").click()
    table = first.get_by_role("region", name="Minutes")
    table.focus()
    tabs = [first, *(first.context.new_page() for _ in range(TABS - 1))]
    *watching, locks, leased = tabs
    for tab in watching[1:]:
        tab.goto(f"{console.url}/")
    locks.goto(f"{console.url}/locks")
    leased.goto(f"{console.url}/leases")
    with (
        connect(store, table="stock") as engine,
        open_manager(store) as manager,
        open_leases(leases) as service,
    ):
        engine.commit([Mutation(Key("plums", "d", "left"), "5")])
        for tab in watching:
            expect(find_row(tab, "plums")).to_be_visible()
        expect(table).to_be_focused()  # a keyboard scrolls it
        lease = service.grab_lease([exclusive("stock/new")], 60, user="eve")
        with manager.hold([exclusive("stock/new")]):
            expect(locks.get_by_role("heading", name="new")).to_be_visible()
            expect(leased.get_by_role("rowheader", name="stock/new")).to_be_visible()
        service.drop_lease(lease)
        expect(locks.get_by_role("heading", name="new")).to_have_count(0)
        expect(leased.get_by_role("rowheader", name="stock/new")).to_have_count(0)
        assert console.stop() == 0
        expect(first.get_by_text(OLD)).to_be_visible()
        serve(store, "--port", console.url.rpartition(":")[2])
        engine.commit([Mutation(Key("cherries", "d", "left"), "5")])
        expect(find_row(first, "cherries")).to_be_visible()
        expect(first.get_by_text(OLD)).to_be_hidden()


def find_row(page: Page, row: str) -> Locator:
    return page.get_by_role("row", name=f"stock/{row}/d:left")
