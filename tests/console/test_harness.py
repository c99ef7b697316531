"""The browser of these tests sees what a page does wrong: else all of them would prove nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.console.browser import Complaints
from tests.console.conftest import Browse, Serve
from txn import Key, Mutation, connect


@pytest.fixture(scope="module")
def url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    store = f"embedded://{tmp_path_factory.mktemp('harness')}/store"
    with connect(store, table="stock") as engine:
        engine.ensure_table("stock", ["d"])
        engine.commit([Mutation(Key("apple", "d", "count"), "7")])
    return serve(store).url


def test_a_page_is_shown_without_a_complaint(url: str, browse: Browse) -> None:
    page = browse(f"{url}/")
    assert page.get_by_role("navigation", name="Pages").is_visible()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("fetch('http://elsewhere.example/x').catch(() => 0)", "Content Security Policy"),
        ("location = 'http://elsewhere.example/x'", "asked another machine"),
        ("console.error('broken')", "error: broken"),
        ("setTimeout(() => { throw new Error('broken'); })", "a script failed"),
        ("document.body.setAttribute('style', 'color: red')", "Content Security Policy"),
    ],
)
def test_what_a_page_does_wrong_is_complained_of(
    script: str, words: str, url: str, browse: Browse
) -> None:
    page = browse(f"{url}/", allowed=("",))
    complaints = Complaints(page, ())
    page.evaluate(script)
    page.wait_for_timeout(200)
    assert any(words in each for each in complaints.found), complaints.found


def test_a_console_ends_when_it_is_told_to(serve: Serve, tmp_path: Path) -> None:
    with connect(f"embedded://{tmp_path}/store"):
        pass
    assert serve(f"embedded://{tmp_path}/store").stop() == 0
