"""Pages on screens of all widths, for people with and without JavaScript, mouse or good eyes; and
what a person takes from a page: ids, times, searches."""

from __future__ import annotations

import csv
import json
import re
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from recovery.console import server
from tests.console.browser import find_violations
from tests.console.conftest import NARROW, WIDE, Browse, Serve
from tests.console.crashing import crash_client
from tests.console.served import ServedConsole
from tests.console.visits import ask, post
from txn import Key, Mutation, connect
from txn.leases import open_leases
from txn.locks import exclusive
from txn.protocol.statuses import Status

LONG = b"customer:eu-west-1:000000004711:2026-11-27T14:20:00.000Z:invoice"
PARTITION = "sales/orders/day=2026-11-27/region=a-region-with-quite-a-long-name"
LONG_KEY = f"stock/{LONG.decode()}/d:count"
OUTSIDE = """() => [...document.querySelectorAll("main *")].filter((each) => {
  const { left, right, width } = each.getBoundingClientRect();
  const isCut = each.matches("td, th") && each.scrollWidth > each.clientWidth;
  return width > 1 && each.checkVisibility() && (left < 0 || right > innerWidth || isCut);
}).filter((each) => !each.closest("svg, .long > a")).map((each) => each.outerHTML)"""


@pytest.fixture(scope="module")
def console(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedConsole:
    """Some commits, clients that died with locks on a long key, and a lease on a long partition."""
    uri = f"embedded://{tmp_path_factory.mktemp('screens')}/store"
    with connect(uri, table="stock") as engine:
        engine.ensure_table("stock", ["d"])
        for number in range(55):  # more than a page
            engine.commit([Mutation(Key("pears", "d", "left"), f"{number}")], labels={"job": "=1"})
    crash_client(uri, Status.LOCKED, [LONG, b"plums"])
    crash_client(uri, Status.ASSERTED, [b"figs"])
    leases = f"sqlite:///{tmp_path_factory.mktemp('leases')}/leases.sqlite"
    with open_leases(leases) as service:
        service.grab_lease([exclusive(PARTITION)], 3_600, user="ann")
    console = serve(uri, "--leases", leases)
    post(f"{console.url}/fsck", {"grace": "0s"})
    return console


def find_paths(url: str) -> list[str]:
    """Return the addresses of all pages, also of those that need a transaction, key or check."""
    found = re.search(
        r'href="(/transaction\?[^"]+)"', ask(f"{url}/transactions?status=1-LOCKED").body
    )
    while (check := re.search(r'"(/fsck/repair\?[^"]+)"', ask(f"{url}/fsck").body)) is None:
        pass
    assert found
    given = {"/transaction": found[1], "/fsck/repair": check[1].replace("&amp;", "&")}
    given["/transactions"] = "/transactions?status=unfinished"  # few rows are looked at quickly
    keys = ["/key?table=stock", f"/key?key={quote(LONG_KEY)}"]
    return [*(given.get(path, path) for path in server.PAGES), *keys, "/login"]


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_every_page_is_accessible_and_fits_its_screen(
    viewport: dict[str, int], scheme: str, console: ServedConsole, browse: Browse
) -> None:
    page = browse(console.url, viewport=viewport, color_scheme=scheme)
    for path in find_paths(console.url):
        page.goto(console.url + path)
        assert find_violations(page) == [], path
        assert page.evaluate(OUTSIDE) == [], path


def test_a_cell_of_a_narrow_screen_has_its_heading_beside_it(
    console: ServedConsole, browse: Browse
) -> None:
    page = browse(f"{console.url}/transactions?status=1-LOCKED", viewport=NARROW)
    cell = page.locator("tbody td", has_text="1-LOCKED")
    shown = cell.evaluate("each => getComputedStyle(each, '::before').content")
    assert shown.startswith('"Status ')
    expect(page.get_by_role("columnheader", name="Status", exact=True)).to_have_count(1)


@pytest.mark.parametrize("has_script", [True, False])
def test_the_search_is_folded_only_on_a_narrow_screen(
    has_script: bool, console: ServedConsole, browse: Browse
) -> None:
    page = browse(f"{console.url}/transactions", java_script_enabled=has_script, viewport=NARROW)
    button = page.get_by_role("button", name="Search", exact=True)
    expect(button).to_be_hidden()
    page.locator("summary", has_text="Search").press("Enter")
    expect(button).to_be_visible()
    page.set_viewport_size(WIDE)
    page.reload()
    expect(button).to_be_visible()
    expect(page.locator("summary", has_text="Search")).to_be_hidden()


@pytest.mark.parametrize("has_script", [True, False])
def test_a_long_key_is_shortened_and_opens(
    has_script: bool, console: ServedConsole, browse: Browse
) -> None:
    url = f"{console.url}/transactions?status=1-LOCKED"
    page = browse(url, java_script_enabled=has_script, viewport=NARROW)
    link = page.get_by_role("link", name=LONG_KEY)
    expect(link).to_have_css("white-space", "nowrap")
    box = link.bounding_box()
    assert box
    assert box["height"] < 30
    page.locator(".long summary").press("Enter")
    expect(link).to_have_css("white-space", "normal")
    wide = link.bounding_box()
    assert wide
    assert wide["height"] > box["height"]
    assert wide["x"] + wide["width"] <= NARROW["width"]


def test_the_header_keeps_one_line(console: ServedConsole, browse: Browse) -> None:
    page = browse(console.url + "/", viewport={"width": 800, "height": 600})
    page.get_by_role("button", name="Pause").click()
    page.evaluate("document.querySelector('.store span').textContent = 'store'.repeat(50)")
    middles = page.locator("header nav a, header .tools > *:not(.hidden), .store").evaluate_all(
        """all => all.map((each) => each.getBoundingClientRect()).map(
             ({ top, bottom }) => (top + bottom) / 2)"""
    )
    assert max(middles) - min(middles) < 3
    assert page.evaluate("document.documentElement.scrollWidth") == 800


def test_ids_and_keys_are_copied_whole(console: ServedConsole, browse: Browse) -> None:
    page = browse(
        f"{console.url}/transactions?status=1-LOCKED",
        permissions=["clipboard-read", "clipboard-write"],
    )
    for name, text in ("transaction ID", r"transaction\.\d{13}\.\w+@txn"), ("key", LONG_KEY):
        page.get_by_role("button", name=f"Copy {name}").first.click()
        expect(page.get_by_text("Copied")).to_have_count(1)
        assert re.fullmatch(text, page.evaluate("navigator.clipboard.readText()"))


def test_without_a_script_nothing_is_offered_that_needs_one(
    console: ServedConsole, browse: Browse
) -> None:
    page = browse(f"{console.url}/transactions", java_script_enabled=False)
    expect(page.get_by_role("button", name="Copy").first).to_be_hidden()
    expect(page.get_by_label("Times")).to_be_hidden()
    expect(page.get_by_text("times are UTC")).to_be_visible()


def read_time(page: Page) -> tuple[str, str]:
    """Return the moment of the first time on a page, and how it is shown."""
    shown = page.locator("main time:not([data-clock])").first
    return shown.get_attribute("datetime") or "", shown.inner_text()


def test_times_are_shown_as_the_visitor_wants_them(console: ServedConsole, browse: Browse) -> None:
    page = browse(f"{console.url}/transactions", timezone_id="Asia/Kolkata")
    moment, shown = read_time(page)
    assert moment.replace("T", " ")[:19] == shown
    page.get_by_label("Times").select_option("Local")
    page.goto(f"{console.url}/")
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


def test_a_search_can_be_bookmarked(console: ServedConsole, browse: Browse) -> None:
    page = browse(f"{console.url}/transactions")
    page.get_by_label("Table", exact=True).fill("stock")
    page.get_by_role("combobox", name="Status").select_option("unfinished")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    again = browse(page.url)
    expect(again).to_have_title(re.compile("^Transactions: table stock, status unfinished"))
    expect(again.locator("tbody tr")).to_have_count(2)
    expect(again.get_by_label("Table", exact=True)).to_have_value("stock")


def test_a_search_is_downloaded_with_all_its_pages(
    console: ServedConsole, browse: Browse, tmp_path: Path
) -> None:
    page = browse(f"{console.url}/transactions?label=job&status=5-COMPLETE")
    expect(page.locator("tbody tr")).to_have_count(50)
    saved = {}
    for name in ("CSV", "JSON"):
        with page.expect_download() as download:
            page.get_by_role("link", name=name).click()
        assert download.value.suggested_filename == f"transactions.{name.lower()}"
        saved[name] = tmp_path / name
        download.value.save_as(saved[name])
    document = json.loads(saved["JSON"].read_text())
    assert (len(document["transactions"]), document["complete"]) == (55, True)
    rows = list(csv.DictReader(saved["CSV"].read_text().splitlines()))
    assert [row["transaction"] for row in rows] == [
        each["transaction"] for each in document["transactions"]
    ]
    assert (rows[0]["first_key"], rows[0]["labels"]) == ("stock/pears/d:left", "job==1")


def test_a_download_of_a_wrong_search_is_an_error(console: ServedConsole) -> None:
    answer = ask(f"{console.url}/transactions.csv?key=none")
    assert answer.status == 400
    assert "a key is table/row/family:column" in answer.body
    assert "content-disposition" not in answer.headers
