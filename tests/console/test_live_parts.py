"""Parts of pages that stay up to date: for many tabs, and only for those who may look."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.console.browser import NAMED
from tests.console.conftest import Browse, Serve
from tests.console.served import ServedConsole
from tests.console.visits import ask, post
from txn import Engine, Key, Mutation, connect

TABS = 8  # a browser has six connections to a server
OLD = "The console does not respond. This page is out of date."


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"embedded://{tmp_path_factory.mktemp('live')}/store"


@pytest.fixture(scope="module")
def engine(store: str) -> Iterator[Engine]:
    with connect(store, table="stock") as engine:
        engine.ensure_table("stock", ["d"])
        yield engine


@pytest.fixture(scope="module")
def console(serve: Serve, engine: Engine, store: str) -> ServedConsole:
    return serve(store)


@pytest.fixture
def change(engine: Engine) -> Callable[[str], None]:
    """Commit something to a row, which the overview then shows."""

    def commit(row: str) -> None:
        engine.commit([Mutation(Key(row, "d", "left"), "5")])

    return commit


def show_row(page: Page, row: str) -> None:
    expect(page.get_by_role("row", name=f"stock/{row}/d:left")).to_be_visible()


def test_an_answer_has_one_event_and_ends(console: ServedConsole) -> None:
    answer = ask(f"{console.url}/live/leases")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "event: part" in answer.body
    assert "retry: 2000" in answer.body
    mark = re.search(r"^id: (\w+)", answer.body, re.MULTILINE)
    assert mark
    again = ask(f"{console.url}/live/leases", headers={"Last-Event-ID": mark[1]})
    assert "event: same" in again.body
    assert "<p" not in again.body


def test_who_has_logged_out_is_sent_nothing_more(console: ServedConsole) -> None:
    sent = {
        "Host": NAMED,
        "Cookie": post(f"{console.url}/login", {"token": console.token or ""}).cookie,
    }
    assert ask(f"{console.url}/live/overview", headers=sent).status == 200
    post(f"{console.url}/logout", {}, sent)
    assert ask(f"{console.url}/live/overview", headers=sent).status == 401


def test_many_tabs_of_a_browser_stay_up_to_date(
    console: ServedConsole, browse: Browse, change: Callable[[str], None]
) -> None:
    first = browse(f"{console.url}/")
    tabs = [first, *(first.context.new_page() for _ in range(TABS - 1))]
    for tab in tabs[1:]:
        tab.goto(f"{console.url}/")
    change("plums")
    for tab in tabs:
        show_row(tab, "plums")


def test_an_update_leaves_the_focus_on_a_table(
    console: ServedConsole, browse: Browse, change: Callable[[str], None]
) -> None:
    page = browse(f"{console.url}/")
    page.get_by_text("Numbers").click()
    table = page.get_by_role("region", name="Minutes")
    table.focus()
    change("cherries")
    show_row(page, "cherries")
    expect(table).to_be_focused()


def test_a_hidden_tab_asks_for_nothing(
    console: ServedConsole, browse: Browse, change: Callable[[str], None]
) -> None:
    page = browse(f"{console.url}/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    turn = """(isHidden) => {
      Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(turn, True)
    asked.clear()
    change("figs")
    page.wait_for_timeout(4_500)  # two times as long as it takes to be asked for again
    assert [each for each in asked if "/live/" in each] == []
    expect(page.get_by_role("row", name="stock/figs/d:left")).to_have_count(0)
    page.evaluate(turn, False)
    show_row(page, "figs")


def test_a_page_says_that_it_is_old_and_goes_on_with_the_next_console(
    serve: Serve, browse: Browse, tmp_path: Path
) -> None:
    store = f"embedded://{tmp_path}/store"
    with connect(store, table="stock") as engine:
        engine.ensure_table("stock", ["d"])
        console = serve(store)
        page = browse(f"{console.url}/", allowed=("ERR_CONNECTION_REFUSED",))
        heard = """() => {
          window.heard = [];
          const place = document.getElementById("trouble");
          new MutationObserver(() => window.heard.push(place.textContent)).observe(
            place, { childList: true });
        }"""
        page.evaluate(heard)
        page.wait_for_timeout(4_500)
        assert [words for words in page.evaluate("window.heard") if words] == []
        assert console.stop() == 0
        expect(page.get_by_text(OLD)).to_be_visible()
        serve(store, "--port", console.url.rpartition(":")[2])
        engine.commit([Mutation(Key("pears", "d", "left"), "5")])
        show_row(page, "pears")
        expect(page.get_by_text(OLD)).to_be_hidden()
