"""What an operator does at night: see that clients have died, and repair what they left.

The console runs in this process, over a store in memory, in which they died ten minutes ago.
"""

import random
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Browse, Picture
from tests.console.crashing import BYTES, HOSTILE, QUOTES, SCRIPT, crash_engine
from tests.console.served import TOKEN, serve_here
from tests.console.visits import ask, post, wait_for
from txn import Engine, Key, Mutation
from txn.clock import ManualClock, SystemClock
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
from txn.text import escape

AGO_MS = 600_000
BEARER = {"Authorization": f"Bearer {TOKEN}"}


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


def run_check(url: str, **form: str) -> str:
    """Check; return the words of the page then."""
    assert post(f"{url}/fsck", {"grace": "0s"} | form).status == 303
    return wait_for(f"{url}/fsck", "Results of the last check").words


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
    shown = wait_for(f"{url}/fsck", "2 left by dead clients").words
    assert re.search("Checks and repairs.* repair of .* rolled forward", shown), shown
    again = ask(f"{url}/fsck/repair?id={address.partition('=')[2]}")
    assert (again.status, "there is nothing to repair" in again.body) == (400, True)


def test_marked_transactions_are_repaired_together(url: str, browse: Browse) -> None:
    page = browse(f"{url}/transactions")
    rows = page.get_by_role("region", name="Transactions").locator("tbody tr")
    expect(rows).to_have_count(4)
    assert page.get_by_role("checkbox").count() == 3
    ground = "each => getComputedStyle(each).backgroundColor"
    colors = {each.inner_text(): each.evaluate(ground) for each in page.locator(".state").all()}
    assert len(colors) == 3 and colors.pop("5-COMPLETE") == "rgba(0, 0, 0, 0)"
    assert len({*colors.values()} - {"rgba(0, 0, 0, 0)"}) == 1 and "1-LOCKED, left" in colors
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


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("marked=1", "nothing was marked"),
        ("check=1&marked=1", "nothing was marked"),
        ("marked=1&id=", "nothing was marked"),
        ("", ""),
        ("check=x", ""),
        ("check=999999", "check again"),
        ("check=-1", ""),
    ],
)
def test_what_was_not_marked_or_is_not_known_is_not_repaired(
    query: str, words: str, url: str
) -> None:
    answer = ask(f"{url}/fsck/repair?{query}")
    assert (answer.status, words in answer.words) == (400, True)


def test_what_is_over_is_left_out_of_what_was_marked(url: str) -> None:
    ids = re.findall(r'/transaction\?id=([^"]+)', ask(f"{url}/transactions").body)
    assert len(ids) == 4
    body = ask(f"{url}/fsck/repair?{'&'.join(f'id={each}' for each in ids)}").body
    assert "Repair 3 findings" in body
    assert "The others that were marked are over" in body
    many = ask(f"{url}/fsck/repair?{'&'.join(51 * ['id=' + ids[0]])}")
    assert (many.status, "too many are marked" in many.body) == (400, True)


def test_what_is_young_is_told_and_left_alone(url: str, store: Store) -> None:
    crash_engine(store, Status.LOCKED, (b"young",))
    shown = run_check(url, grace="1d")
    assert "Unfinished and ignored: 3 undecided, 1 decided." in shown
    assert "Repair…" not in shown and "Repair all" not in shown.partition("Results")[2]


def test_hostile_keys_are_shown_and_not_run(url: str, store: Store, browse: Browse) -> None:
    """Keys and values are anybody's bytes."""
    left = crash_engine(store, Status.LOCKED, HOSTILE)
    edits = [Edit(Key(row, "d", "x_lock", "stock"), b"<b>mine</b>\xff", 5) for row in HOSTILE]
    store.write(edits)
    run_check(url, tables="stock")
    page = browse(f"{url}/fsck")
    keys = page.get_by_role("region", name="foreign-cell", exact=True)
    for text in (SCRIPT.decode(), QUOTES.decode(), r"\xff\x00{{ 7*7 }}"):
        expect(keys.get_by_text(text, exact=False).first).to_be_visible()
    expect(keys.get_by_text("needs manual inspection").first).to_be_visible()
    assert keys.get_by_role("link", name="Repair…").count() == 0
    links = keys.get_by_role("link").all()
    assert all((link.get_attribute("href") or "").startswith("/key?key=stock%2F") for link in links)
    expect(page.locator("main script, main img")).to_have_count(0)
    for row in (SCRIPT, QUOTES, BYTES):
        page.goto(f"{url}/transaction?id={quote(left)}")
        expect(page.locator("main script, main img")).to_have_count(0)
        link = page.get_by_role("region", name="Mutations").get_by_role("link")
        link.nth(HOSTILE.index(row)).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(escape(row))
        expect(page.get_by_role("row", name=re.compile("^Lock held by"))).to_be_visible()
        expect(page.locator("main script, main img")).to_have_count(0)


def test_who_waits_for_whom_is_shown_as_a_tree(url: str, store: Store) -> None:
    now_ms = SystemClock().wall_ms()
    first, second, third, gone = (new_row_key(now_ms, at) for at in (0, 1, 2, 9))
    for row_key, rows in ((first, (b"a", b"k")), (second, (b"k",)), (third, (b"l",))):
        keys = [Key(row, b"d", b"count", b"stock") for row in rows]
        buffer = encode_buffer(Request(tuple(Mutation(key, b"1") for key in keys)), AGO_MS)
        cells = {b"status": b"0-WRITTEN", b"buffer": buffer}
        store.write(
            [Edit(column(b"txn", row_key, c), value, now_ms - 5_000) for c, value in cells.items()]
        )
    for row, holder in ((b"k", first), (b"l", gone)):
        store.write([Edit(Key(row, b"d", b"count_lock", b"stock"), holder, now_ms)])
    waits = (
        r"1-LOCKED left by a dead client \S+ 0-WRITTEN waits for stock/a/d:count"
        r" \S+ 0-WRITTEN waits for stock/k/d:count \S+ no status \S+ 0-WRITTEN waits"
    )
    shown = wait_for(f"{url}/", f"Waiting transactions .*{waits}")
    assert "3 left by dead clients" in shown.words


def test_what_the_doctor_says_is_shown_and_kept(url: str) -> None:
    assert "log in to run it" in ask(f"{url}/doctor").words
    for tables, verdict in (("stock absent", "table absent"), ("stock <b>", "table <b>")):
        assert post(f"{url}/doctor", {"tables": tables}, BEARER).status == 303
        shown = wait_for(f"{url}/doctor", f"Results .*table stock, family d .*{verdict} ").words
        assert "fine" in shown and "txn table create" in shown
