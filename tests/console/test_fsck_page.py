"""The page of fsck as a person uses it: check, look, confirm, repair."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import NARROW, Browse, Serve
from tests.console.crashing import HOSTILE, QUOTES, SCRIPT, crash_client
from tests.console.served import ServedConsole
from tests.console.visits import ask, post
from txn import Key, Mutation, connect
from txn.model import Edit
from txn.protocol.statuses import Status
from txn.stores import open_store

LOCK = Key("pear", "d", "count_lock", "stock")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"embedded://{tmp_path_factory.mktemp('fsck')}/store"


@pytest.fixture(scope="module")
def console(serve: Serve, store: str) -> ServedConsole:
    with connect(store, table="stock") as engine:
        engine.ensure_table("stock", ["d"])
        engine.commit([Mutation(Key("apple", "d", "count"), "7")])
    return serve(store)


@pytest.fixture
def check(browse: Browse, console: ServedConsole) -> Callable[..., Page]:
    """Open the page and check, all that is unfinished unless another grace is given."""

    def start(grace: str = "0s", tables: str = "", **options: object) -> Page:
        page = browse(f"{console.url}/fsck", **options)
        page.get_by_label("Grace", exact=True).fill(grace)
        page.get_by_label("Data tables to scan").fill(tables)
        page.get_by_role("button", name="Check").click()
        expect(page.get_by_role("heading", name="Results of the last check")).to_be_visible()
        return page

    return start


def log_in(page: Page, console: ServedConsole) -> None:
    """Show the token in the form that is open."""
    page.get_by_label("Token").fill(console.token or "")
    page.get_by_role("main").get_by_role("button", name="Log in").click()


def find_kind(page: Page, kind: str) -> list[str]:
    """Return the row of a kind in the table of findings by kind."""
    table = page.get_by_role("region", name="Findings by kind")
    row = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=kind, exact=True))
    return row.get_by_role("cell").all_inner_texts()


def test_a_check_of_a_quiet_store_says_that_it_is_clean(check: Callable[..., Page]) -> None:
    page = check(tables="stock")
    expect(page.get_by_text("clean: no problems found.")).to_be_visible()
    assert page.get_by_role("link", name="Repair all").count() == 0


def test_what_is_young_is_told_and_left_alone(
    check: Callable[..., Page], store: str, console: ServedConsole
) -> None:
    crash_client(store, Status.LOCKED, (b"young",))
    page = check(grace="10m")
    expect(page.get_by_text("Unfinished and ignored: 1 undecided.")).to_be_visible()
    assert page.get_by_role("link", name="Repair").count() == 0
    crash_free(console)


def crash_free(console: ServedConsole) -> None:
    """Repair all that there is, as a program would."""
    bearer = {"Authorization": f"Bearer {console.token}"}
    post(f"{console.url}/fsck", {"grace": "0s"})
    number = wait_for_check(console.url)
    done = post(f"{console.url}/fsck/repair", {"check": number}, bearer)
    assert done.status == 303, done.body
    wait_until_over(console.url)


def wait_until_over(url: str) -> str:
    """Return the page once nothing is under way."""
    while "<progress" in (body := ask(f"{url}/fsck").body):
        pass
    return body


def wait_for_check(url: str) -> str:
    found = re.search(r"/fsck/repair\?check=(\d+)", wait_until_over(url))
    assert found
    return found[1]


def test_a_repair_is_done_with_the_keyboard_alone(
    check: Callable[..., Page], store: str, console: ServedConsole
) -> None:
    crash_client(store, Status.ASSERTED, (b"decided-one", b"decided-two"))
    crash_client(store, Status.LOCKED, (b"undecided-one",))
    page = check()
    assert find_kind(page, "decided")[0] == "1"
    assert find_kind(page, "undecided")[0] == "1"
    press_until(page, "Repair all…")
    expect(page.get_by_role("heading", level=1, name="Repair all")).to_be_visible()
    press_until(page, "log in to repair")
    page.get_by_label("Token").press_sequentially(console.token or "")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="What would be repaired")).to_contain_text("roll it")
    press_until(page, "Repair all")
    expect(page.get_by_role("heading", name="Results of the last repair")).to_be_visible()
    assert page.url == f"{console.url}/fsck"
    assert find_kind(page, "decided")[:4] == ["1", "1", "0", "0"]
    assert find_kind(page, "undecided")[:4] == ["1", "1", "0", "0"]
    with connect(store, table="stock") as engine:
        (cell,) = engine.read([Key("decided-one", "d", "count")]).values()
    assert cell is not None
    assert cell.value == SCRIPT


def press_until(page: Page, name: str) -> None:
    """Press Tab until what has this name has the focus, and then Enter."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText?.trim()") == name:
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"Tab does not lead to {name!r}")


def test_one_finding_is_repaired_and_the_others_stay(
    check: Callable[..., Page], store: str, console: ServedConsole
) -> None:
    crash_client(store, Status.LOCKED, (b"one",))
    crash_client(store, Status.LOCKED, (b"two",))
    page = check()
    found = page.get_by_role("region", name="undecided", exact=True)
    found.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Repair marked…").click()
    expect(page.get_by_text("abort it and release its locks")).to_be_visible()
    page.get_by_role("link", name="log in to repair").click()
    log_in(page, console)
    page.get_by_role("button", name="Repair this").click()
    expect(found.get_by_text("rolled back")).to_be_visible()
    assert found.get_by_role("link", name="Repair…").count() == 1
    page = check()
    assert find_kind(page, "undecided")[0] == "1"
    crash_free(console)


def test_hostile_keys_are_shown_and_not_run(
    check: Callable[..., Page], store: str, console: ServedConsole
) -> None:
    crash_client(store, Status.ASSERTED, HOSTILE)
    with_foreign_locks(store)
    page = check(tables="stock")
    keys = page.get_by_role("region", name="foreign-cell", exact=True)
    for text in (SCRIPT.decode(), QUOTES.decode(), r"\xff\x00{{ 7*7 }}"):
        expect(keys.get_by_text(text, exact=False).first).to_be_visible()
    assert page.locator("main script, main img").count() == 0
    links = keys.get_by_role("link").all()
    assert all((link.get_attribute("href") or "").startswith("/key?key=stock%2F") for link in links)
    crash_free(console)


def with_foreign_locks(uri: str) -> None:
    """Put into lock columns what the protocol never writes there."""
    store = open_store(uri)
    try:
        edits = [Edit(Key(row, "d", "x_lock", "stock"), b"<b>mine</b>\xff", 5) for row in HOSTILE]
        store.write(edits)
    finally:
        store.close()


def test_what_only_a_person_can_judge_has_no_repair(check: Callable[..., Page]) -> None:
    page = check(tables="stock")
    found = page.get_by_role("region", name="foreign-cell", exact=True)
    expect(found.get_by_text("needs manual inspection").first).to_be_visible()
    assert found.get_by_role("link", name="Repair…").count() == 0
    assert page.get_by_role("link", name="Repair all…").count() == 0


@pytest.mark.parametrize("color_scheme", ["dark", "light"])
def test_the_page_fits_a_narrow_screen(color_scheme: str, check: Callable[..., Page]) -> None:
    page = check(tables="stock", viewport=NARROW, color_scheme=color_scheme)
    grounds = {"dark": "rgb(20, 24, 29)", "light": "rgb(255, 255, 255)"}
    expect(page.locator("body")).to_have_css("background-color", grounds[color_scheme])
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"grace": "soon"}, "a duration is a number and ms, s, m, h or d"),
        ({"tables": "absent"}, "absent"),
        ({"tables": " ".join(map(str, range(101)))}, "too many tables"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_begun(
    form: dict[str, str], words: str, console: ServedConsole
) -> None:
    before = ask(f"{console.url}/fsck").body
    answer = post(f"{console.url}/fsck", form)
    assert answer.status == 400
    assert words in answer.body
    assert ask(f"{console.url}/fsck").body == before


@pytest.mark.parametrize("query", ["", "?check=x", "?check=999999", "?check=-1"])
def test_a_check_that_is_not_known_cannot_be_repaired(query: str, console: ServedConsole) -> None:
    assert ask(f"{console.url}/fsck/repair{query}").status == 400
