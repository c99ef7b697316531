"""Logging in as a person does it: by the form, from a page and back to it."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.console.browser import HERE, NAMED
from tests.console.conftest import Browse, Serve
from tests.console.crashing import crash_client
from tests.console.served import ServedConsole
from tests.console.visits import ask
from txn import connect
from txn.protocol.statuses import Status
from txn.stores import open_store
from txn.text import escape

UNTRUSTED = ("Cross-Origin-Opener-Policy",)
"""The browser says that it ignores this of a site that has no TLS and is not the loopback."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"embedded://{tmp_path_factory.mktemp('login')}/store"
    with connect(uri) as engine:
        engine.ensure_table("stock", ["d"])
    crash_client(uri, Status.LOCKED, [b"left"])
    return uri


@pytest.fixture(scope="module")
def console(serve: Serve, store: str) -> ServedConsole:
    return serve(store)


def find_row(uri: str) -> bytes:
    store = open_store(uri)
    try:
        (row,) = [each.row for each in store.scan(b"txn") if b"transaction." in each.row]
        return row
    finally:
        store.close()


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


def test_the_login_leads_back_to_the_very_page(
    console: ServedConsole, store: str, browse: Browse
) -> None:
    page = browse(f"{console.url}/transaction?id={quote(escape(find_row(store)))}")
    heading = page.get_by_role("heading", level=1).inner_text()
    page.get_by_role("link", name="Log in").click()
    page.get_by_role("link", name="Log in").click()
    page.get_by_label("Token").fill(console.token or "")
    page.get_by_role("main").get_by_role("button", name="Log in").click()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text(heading)


def test_what_was_sent_leads_back_to_the_first_page(console: ServedConsole) -> None:
    answer = ask(f"{console.url}/fsck?x=1", "POST", {"grace": "?"}, {"Origin": console.url})
    assert answer.status == 400
    assert 'href="/login?next=%2F"' in answer.body
