"""The page of the doctor, who writes to the store: only for those who show the token."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Browse, Serve
from tests.console.served import ServedConsole
from tests.console.visits import ask, post
from txn import connect
from txn.stores import open_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"embedded://{tmp_path_factory.mktemp('doctor')}/store"
    with connect(uri) as engine:
        engine.ensure_table("stock", ["d"])
    return uri


@pytest.fixture(scope="module")
def console(serve: Serve, store: str) -> ServedConsole:
    return serve(store)


def find_traces(uri: str) -> list[bytes]:
    """Return the rows that the doctor has written."""
    store = open_store(uri)
    try:
        return [row.row for row in store.scan(b"txn") if row.row == b"doctor"]
    finally:
        store.close()


def test_without_the_token_the_doctor_is_not_asked(console: ServedConsole, store: str) -> None:
    page = ask(f"{console.url}/doctor")
    assert "log in to run it" in page.body
    assert post(f"{console.url}/doctor", {"tables": "stock"}).status == 401
    assert find_traces(store) == []


def test_what_the_doctor_says_is_shown_and_kept(console: ServedConsole, browse: Browse) -> None:
    page = browse(f"{console.url}/doctor")
    page.get_by_role("link", name="log in to run it").click()
    page.get_by_label("Token").fill(console.token or "")
    page.get_by_role("main").get_by_role("button", name="Log in").click()
    page.get_by_label("Data tables to check").fill("stock, absent")
    page.get_by_role("button", name="Run").click()
    said = page.get_by_role("region", name="Results")
    expect(said.get_by_role("row", name="table absent")).to_contain_text("txn table create")
    expect(said.get_by_role("row", name="table stock")).to_contain_text("fine")
    page.get_by_label("Data tables to check").fill("stock,<b>absent</b>")
    page.get_by_role("button", name="Run").click()
    expect(said.get_by_role("row", name="table <b>absent</b>")).to_be_visible()
    page.reload()
    expect(said.get_by_role("row", name="table stock")).to_be_visible()


def test_too_many_tables_are_refused(console: ServedConsole) -> None:
    bearer = {"Authorization": f"Bearer {console.token}"}
    form = {"tables": " ".join(f"t{number}" for number in range(101))}
    answer = post(f"{console.url}/doctor", form, bearer)
    assert answer.status == 400
    assert "too many tables given=101 limit=100" in answer.body
