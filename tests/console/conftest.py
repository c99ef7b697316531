"""The console of a store and a browser in front of it.

The browser is one for the tests of a module, and not of a run: while it is there, Playwright's
event loop counts as running, and tests of other modules that run one of their own would fail.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.console.browser import Complaints, run_browser
from tests.console.served import ServedConsole, serve_store
from tests.packages import PackageError

PICTURES = Path(__file__).parents[2] / "docs" / "console"
WIDE, NARROW = ViewportSize(width=1200, height=560), ViewportSize(width=390, height=844)
PATIENCE_MS = 15_000
SHOWN_STORE = "embedded:///var/lib/shop"

Serve = Callable[..., ServedConsole]
Browse = Callable[..., Page]
Picture = Callable[..., None]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Start consoles: `serve(uri, "--locks", ...)`. All are stopped at the end of the module."""
    folder = tmp_path_factory.mktemp("consoles")
    with ExitStack() as ends:

        def start(store: str, *arguments: str) -> ServedConsole:
            log = folder / f"{len(list(folder.iterdir()))}.log"
            return ends.enter_context(serve_store(store, log, *arguments))

        yield start


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Without one a test is skipped, which CI does not accept."""
    expect.set_options(timeout=PATIENCE_MS)
    try:
        with run_browser() as found:
            yield found
    except PackageError as error:
        pytest.skip(f"no Chromium: {error}")


@pytest.fixture
def browse(browser: Browser) -> Iterator[Browse]:
    """Open a page of a new visitor: `browse(url, color_scheme="dark", viewport=NARROW)`. At the end
    of the test nothing may have been complained of but `allowed`, parts of the browser's words."""
    complaints: list[Complaints] = []
    with ExitStack() as ends:

        def start(url: str, *, allowed: tuple[str, ...] = (), **options: Any) -> Page:
            options = {"viewport": WIDE, "reduced_motion": "reduce"} | options
            context = browser.new_context(**options)
            ends.callback(context.close)
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            complaints.append(Complaints(page, allowed))
            page.goto(url)
            return page

        yield start
    assert [words for each in complaints for words in each.found] == []


@pytest.fixture
def picture() -> Picture:
    """Keep a picture of a page for the documentation, where TXN_PICTURES=1 asks for pictures. The
    store in it has a name that tells nothing of this machine, and its font is the same on all."""

    def take(page: Page, name: str, *, is_whole: bool = True) -> None:
        if os.environ.get("TXN_PICTURES") == "1":
            PICTURES.mkdir(parents=True, exist_ok=True)
            page.locator(".store span").evaluate(f"each => each.textContent = '{SHOWN_STORE}'")
            page.locator("body, svg text").evaluate_all(
                "all => all.forEach(each => each.style.fontFamily = 'sans-serif')"
            )
            page.screenshot(
                path=PICTURES / f"{name}.png", full_page=is_whole, animations="disabled"
            )

    return take
