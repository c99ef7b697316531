"""Pages on screens of all widths, for people with and without JavaScript, mouse or good eyes; and
what a person takes from a page: ids, times, searches."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from recovery.console import server
from tests.console.browser import HERE, NAMED, Complaints, find_violations
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


def test_what_a_page_does_wrong_is_complained_of(url: str, browse: Browse) -> None:
    """Else all of these tests would prove nothing."""
    page = browse(f"{url}/", allowed=("",))
    complaints = Complaints(page, ())
    for script, words in (
        ("fetch('http://elsewhere.example/x').catch(() => 0)", "Content Security Policy"),
        ("console.error('broken')", "error: broken"),
        ("setTimeout(() => { throw new Error('broken'); })", "a script failed"),
        ("document.body.setAttribute('style', 'color: red')", "Content Security Policy"),
        ("location = 'http://elsewhere.example/x'", "asked another machine"),
    ):
        complaints.found.clear()
        page.evaluate(script)
        deadline = time.monotonic() + 15
        while not any(words in each for each in complaints.found):
            assert time.monotonic() < deadline, (script, complaints.found)
            page.wait_for_timeout(20)


def test_the_overview_tells_what_is_going_on(url: str, browse: Browse, picture: Picture) -> None:
    """How much is committed, how far transactions came, and which have been left by their owner."""
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
    """From the newest on; the rest is a click away, and each is shown once."""
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


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("key", "no key", "a key is table/row/family:column"),
        ("newer", "soon", "a duration is"),
    ],
)
def test_what_is_no_search_is_refused_in_words(
    field: str, value: str, words: str, url: str
) -> None:
    """And what was typed is still there to be mended; a download of it is no file."""
    page = ask(f"{url}/transactions?{field}={quote(value)}")
    assert (page.status, words in page.words) == (400, True)
    assert f'name="{field}" value="{value}"' in page.body
    answer = ask(f"{url}/transactions.csv?{field}={quote(value)}")
    assert (answer.status, words in answer.body) == (400, True)
    assert "content-disposition" not in answer.headers


def test_a_transaction_is_explained(url: str) -> None:
    """Its phases, what it changes, why it was aborted, and what becomes of it."""
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
    """And the way from its transactions back to it."""
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
    viewport: dict[str, int], scheme: str, url: str, browse: Browse
) -> None:
    """At 390 pixels counts, statuses and labels are on the screen, without scrolling sideways."""
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


@pytest.mark.parametrize("has_script", [True, False])
def test_a_narrow_screen_folds_the_search_and_long_keys(
    has_script: bool, url: str, browse: Browse
) -> None:
    """The results begin on the first screen; Enter opens either, and a screen reader reads a key
    whole in any case. Without a script nothing is offered that needs one."""
    address = f"{url}/transactions?status=1-LOCKED"
    page = browse(address, java_script_enabled=has_script, viewport=NARROW)
    cell = page.locator("tbody td", has_text="1-LOCKED")
    if has_script:
        content = cell.evaluate("each => getComputedStyle(each, '::before').content")
        assert content.startswith('"Status ')
    expect(page.get_by_role("columnheader", name="Status", exact=True)).to_have_count(1)
    link = page.get_by_role("link", name=LONG_KEY)
    expect(link).to_have_css("white-space", "nowrap")
    box = link.bounding_box()
    assert box and box["height"] < 30
    page.locator(".long summary").press("Enter")
    expect(link).to_have_css("white-space", "normal")
    wide = link.bounding_box()
    assert wide and wide["height"] > box["height"]
    assert wide["x"] + wide["width"] <= NARROW["width"]
    button = page.get_by_role("button", name="Search", exact=True)
    expect(button).to_be_hidden()
    page.locator("summary", has_text="Search").press("Enter")
    expect(button).to_be_visible()
    page.set_viewport_size(WIDE)
    page.reload()
    expect(button).to_be_visible()
    expect(page.locator("summary", has_text="Search")).to_be_hidden()
    if not has_script:
        expect(page.get_by_role("button", name="Copy").first).to_be_hidden()
        expect(page.get_by_label("Times")).to_be_hidden()
        expect(page.get_by_text("times are UTC")).to_be_visible()


def test_ids_and_keys_are_copied_whole(url: str, browse: Browse) -> None:
    """The page shows the beginning of an id; other tools take all of it."""
    rights = ["clipboard-read", "clipboard-write"]
    page = browse(f"{url}/transactions?status=1-LOCKED", permissions=rights)
    for name, text in ("transaction ID", r"transaction\.\d{13}\.\w+@txn"), ("key", LONG_KEY):
        page.get_by_role("button", name=f"Copy {name}").first.click()
        expect(page.get_by_text("Copied")).to_have_count(1)
        assert re.fullmatch(text, page.evaluate("navigator.clipboard.readText()"))


def read_time(page: Page) -> tuple[str, str]:
    """Return the moment of the first time on a page, and how it is shown."""
    shown = page.locator("main time:not([data-clock])").first
    return shown.get_attribute("datetime") or "", shown.inner_text()


def test_times_are_shown_as_the_visitor_wants_them(url: str, browse: Browse) -> None:
    """On the next page too, and where a part of the page is sent again."""
    page = browse(f"{url}/transactions", timezone_id="Asia/Kolkata")
    moment, shown = read_time(page)
    assert moment.replace("T", " ")[:19] == shown
    page.get_by_label("Times").select_option("Local")
    page.goto(f"{url}/")
    expect(page.get_by_text("times are local, Asia/")).to_be_visible()
    with page.expect_response(lambda answer: "event: part" in answer.text()):
        pass
    expect(page.get_by_text("As of").last).to_be_visible()
    moment, shown = read_time(page)
    shift = datetime.fromisoformat(f"{shown}Z") - datetime.fromisoformat(f"{moment[:19]}Z")
    assert shift.total_seconds() == 5.5 * 3600
    page.get_by_label("Times").select_option("Relative")
    age = page.locator("main time:not([data-clock])").first
    expect(age).to_have_text(re.compile(r"^\d+ (sec|min)\. ago$"))


def test_a_search_needs_no_mouse(url: str, browse: Browse) -> None:
    """A slash leads to the search, Enter sends it, and the first link skips what is on each
    page."""
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
    """Dark where the system is, and the other one after a click, also on the next page."""
    page = browse(f"{url}/transactions", color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Light").click()
    light = page.evaluate(ground)
    assert (dark, light) == ("rgb(20, 24, 29)", "rgb(255, 255, 255)")
    page.reload()
    expect(page.get_by_role("button", name="Dark")).to_be_visible()
    assert page.evaluate(ground) == light


def test_a_person_logs_in_and_out_from_elsewhere_without_tls(
    console: ServedConsole, browse: Browse
) -> None:
    """There a browser sends no `Sec-Fetch-Site`, and names the origin of a form only where the
    policy of its page lets it."""
    page = browse(f"{console.url.replace(HERE, NAMED)}/locks", allowed=UNTRUSTED)
    page.get_by_label("Token").fill(console.token or "")
    page.get_by_role("main").get_by_role("button", name="Log in").click()
    expect(page).to_have_url(re.compile("/locks$"))
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_an_answer_has_one_event_and_ends(console: ServedConsole) -> None:
    """A connection that stays open is one that the browser's other tabs do not have. Nothing more
    is sent to who has logged out, or whose twelve hours are over: each is asked for anew."""
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


def test_pages_stay_up_to_date_in_all_tabs_unless_they_are_paused_or_hidden(
    serve: Serve, browse: Browse, tmp_path: Path
) -> None:
    """Whoever looks into what goes wrong opens many: the seventh hung, and all after it. The
    console looks through its store for as long as somebody watches, and ends when it is told to."""
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
        leave_alone(*watching[:2], lambda: engine.commit([Mutation(Key("figs", "d", "left"), "5")]))
        read_heard = hear_trouble(first)
        assert console.stop() == 0
        expect(first.get_by_text(OLD)).to_be_visible()
        serve(store, "--port", console.url.rpartition(":")[2])
        engine.commit([Mutation(Key("cherries", "d", "left"), "5")])
        expect(find_row(first, "cherries")).to_be_visible()
        expect(first.get_by_text(OLD)).to_be_hidden()
        assert read_heard()


def find_row(page: Page, row: str) -> Locator:
    return page.get_by_role("row", name=f"stock/{row}/d:left")


def hear_trouble(page: Page) -> Callable[[], list[str]]:
    """Return how to read what a page says, from now on, of a console that does not answer."""
    page.evaluate(
        """() => {
          window.heard = [];
          const place = document.getElementById("trouble");
          new MutationObserver(() => window.heard.push(place.textContent)).observe(
            place, { childList: true });
        }"""
    )
    return lambda: [words for words in page.evaluate("window.heard") if words]


def leave_alone(paused: Page, hidden: Page, change: Callable[[], object]) -> None:
    """Pause one tab and hide another, and change something; then let them go on. A browser without
    a window hides no tab by itself."""
    turn = """(isHidden) => {
      Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    read_heard = hear_trouble(paused)
    paused.get_by_role("button", name="Pause").press("Enter")
    expect(paused.get_by_role("button", name="Resume")).to_be_visible()
    hidden.evaluate(turn, True)
    asked: list[str] = []
    hidden.on("request", lambda request: asked.append(request.url))
    change()
    hidden.wait_for_timeout(4_500)  # two times as long as it takes to be asked for again
    assert [each for each in asked if "/live/" in each] == []
    for tab in (paused, hidden):
        expect(find_row(tab, "figs")).to_have_count(0)
    paused.get_by_role("button", name="Resume").press("Enter")
    hidden.evaluate(turn, False)
    for tab in (paused, hidden):
        expect(find_row(tab, "figs")).to_be_visible()
    assert read_heard() == []
