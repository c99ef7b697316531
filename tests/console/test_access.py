"""Who may look and who may write, by requests that no honest browser would send."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from recovery.console import server
from recovery.console.auth import FOREIGN, HEADERS, PAUSE_S
from tests.console.conftest import Serve
from tests.console.crashing import crash_client
from tests.console.served import ServedConsole
from tests.console.visits import Answer, ask, post
from txn import Key, Mutation, connect
from txn.protocol.statuses import Status
from txn.stores import open_store

HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"embedded://{tmp_path_factory.mktemp('access')}/store"
    with connect(uri, table="stock") as engine:
        engine.ensure_table("stock", ["d"])
        engine.commit([Mutation(Key("apple", "d", "count"), "7")])
    crash_client(uri, Status.LOCKED, (b"left",))
    return uri


@pytest.fixture(scope="module")
def console(serve: Serve, store: str) -> ServedConsole:
    return serve(store)


@pytest.fixture(scope="module")
def strict(serve: Serve, store: str, tmp_path_factory: pytest.TempPathFactory) -> ServedConsole:
    """One that listens on all addresses, and so shows nothing without its token."""
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text("a-secret-of-the-tests\n")
    file.chmod(0o600)
    served = serve(store, "--bind", "0.0.0.0", "--token-file", str(file))
    url = served.url.replace("0.0.0.0", "127.0.0.1")
    return ServedConsole(served.process, url, "a-secret-of-the-tests", served.log)


@pytest.fixture
def try_repair(console: ServedConsole, store: str) -> Callable[..., Answer]:
    """Ask for a repair; what it came to is told by the answer, and by the store."""

    def attempt(headers: dict[str, str]) -> Answer:
        return ask(f"{console.url}/fsck/repair", "POST", {"check": "999"}, headers)

    return attempt


def get_as(url: str, **headers: str) -> Answer:
    return ask(url, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.1:9", "[::1]:80"])
def test_on_the_loopback_looking_needs_nothing(host: str, console: ServedConsole) -> None:
    assert get_as(f"{console.url}/fsck", Host=host).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"Host": "127.0.0.1.rebound.example"},
        {"Host": "10.0.0.7:8611"},
        {"Host": ""},
        {"Host": "["},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Real-IP": "127.0.0.1"},
        {"Forwarded": "for=127.0.0.1"},
        {"Via": "1.1 proxy"},
    ],
)
def test_what_comes_by_another_way_needs_the_token(
    headers: dict[str, str], console: ServedConsole
) -> None:
    url = f"{console.url}/fsck?grace=1"
    answer = ask(url, headers=headers)
    assert answer.status == 401
    assert "Bearer" in answer.headers["www-authenticate"]
    assert "fsck" not in answer.body
    sent = ask(url, headers=headers | HTML)
    assert (sent.status, sent.headers["location"]) == (303, "/login?next=%2Ffsck%3Fgrace%3D1")
    bearer = {"Authorization": f"Bearer {console.token}"}
    assert ask(url, headers=headers | bearer).status == 200


def test_the_log_has_what_was_asked_for_and_from_where(console: ServedConsole) -> None:
    bearer = {"Authorization": f"Bearer {console.token}"}
    assert ask(f"{console.url}/fsck/repair", "POST", {"check": "998"}, bearer).status != 401
    assert "/fsck/repair requested from 127.0.0.1" in console.log.read_text()


def test_from_elsewhere_looking_needs_the_token(strict: ServedConsole) -> None:
    paths = [*server.PAGES, *(f"/live/{part}" for part in server.PARTS), "/metrics", "/nothing"]
    paths += [f"/transactions.{kind}" for kind in server.DOWNLOADS]
    assert {path: ask(strict.url + path).status for path in paths} == dict.fromkeys(paths, 401)
    bearer = {"Authorization": f"Bearer {strict.token}"}
    assert ask(f"{strict.url}/locks", headers=bearer).status == 200


@pytest.mark.parametrize("host", ["x/static/?", "x/static/#", "x/login?", "x\\static\\?"])
@pytest.mark.parametrize("path", ["/transactions", "/static/../transactions", "/log%09in"])
def test_no_host_and_no_spelling_makes_a_page_another_one(
    host: str, path: str, strict: ServedConsole
) -> None:
    """What is let in without a token is told by the path that is routed, and by nothing that a
    visitor can write beside it: Starlette 1.0.0 takes the host unseen for a part of its URL, and
    URLs are read without the tabs in them."""
    opened = ask(f"{strict.url}{path}", headers={"Host": host})
    assert opened.status == (404 if path.startswith("/static/") else 401)
    written = post(f"{strict.url}/doctor", {}, {"Host": host, "Authorization": "x"})
    assert written.status == 401


def test_to_be_seen_from_elsewhere_a_console_needs_a_token_of_its_own(store: str) -> None:
    command = [sys.executable, "-c", "from recovery.commands import main; main()", "console"]
    command += ["--store", store, "--bind", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "than the loopback, give --token-file" in done.stderr


def test_no_look_writes_anything(console: ServedConsole, store: str) -> None:
    before = list_cells(store)
    for path in server.PAGES:
        assert ask(f"{console.url}{path}").status in {200, 400, 404}, path
    post(f"{console.url}/fsck", {"grace": "0s", "tables": "stock"})
    while "<progress" in ask(f"{console.url}/fsck").body:
        pass
    assert list_cells(store) == before


def list_cells(uri: str) -> list[object]:
    store = open_store(uri)
    try:
        return [*store.scan(b"txn"), *store.scan(b"stock")]
    finally:
        store.close()


@pytest.mark.parametrize("path", sorted(set(server.ACTIONS) - set(server.PAGES)))
def test_an_action_is_not_had_by_get(path: str, console: ServedConsole) -> None:
    assert ask(f"{console.url}{path}").status == 405


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "null"},
        {"Origin": "http://elsewhere.example"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "{origin}"},
    ],
)
@pytest.mark.parametrize("path", ["/fsck", "/fsck/repair", "/doctor", "/logout", "/login"])
def test_what_a_page_of_another_site_sends_is_refused(
    path: str, headers: dict[str, str], console: ServedConsole
) -> None:
    sent = {name: value.format(origin=console.url) for name, value in headers.items()}
    cookie = {"Cookie": log_in(console).cookie}
    answer = ask(f"{console.url}{path}", "POST", {"check": "1"}, sent | cookie)
    assert (answer.status, answer.body) == (403, FOREIGN)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic {token}"},
        {"Cookie": "txn-console-{port}={token}"},
        {"Cookie": 'txn-console-{port}="\\'},
        {"Cookie": "txn-console-1={session}"},
    ],
)
def test_without_the_token_nothing_is_repaired(
    headers: dict[str, str], console: ServedConsole, try_repair: Callable[..., Answer]
) -> None:
    given = {
        "token": console.token,
        "port": console.url.rpartition(":")[2],
        "session": log_in(console).cookie.partition("=")[2],
    }
    sent = {name: value.format(**given) for name, value in headers.items()}
    answer = try_repair({"Sec-Fetch-Site": "same-origin"} | sent)
    assert answer.status == 401
    assert answer.body.startswith("nothing was done")


def test_the_token_lets_in_by_itself_or_by_a_cookie(
    console: ServedConsole, try_repair: Callable[..., Answer]
) -> None:
    assert try_repair({"Authorization": f"Bearer {console.token}"}).status == 400
    cookie = log_in(console).cookie
    same = {"Origin": console.url}
    assert try_repair({"Cookie": cookie} | same).status == 400
    assert post(f"{console.url}/logout", {}, {"Cookie": cookie}).status == 303
    assert try_repair({"Cookie": cookie} | same).status == 401


@pytest.mark.parametrize("shown", ["Basic dXNlcjpzZWNyZXQ=", "Bearer wrong", "x"])
def test_a_header_that_is_not_the_token_lets_in_no_other_site(
    shown: str, console: ServedConsole
) -> None:
    """A browser sends the header by itself where a proxy has asked for a password, and another
    port of this machine is the same site, to which it sends the cookie as well."""
    foreign = {"Origin": "http://127.0.0.1:9", "Cookie": log_in(console).cookie}
    for site in ({"Sec-Fetch-Site": "same-site"}, {}):
        sent = {"Authorization": shown} | foreign | site
        answer = ask(f"{console.url}/doctor", "POST", {}, sent)
        assert (answer.status, answer.body) == (403, FOREIGN)
    from_here = {"Authorization": shown, "Cookie": foreign["Cookie"], "Origin": console.url}
    assert ask(f"{console.url}/fsck/repair", "POST", {"check": "999"}, from_here).status == 400


@pytest.mark.parametrize("other", ['prefs={"theme":"dark"}', "a[b]=1", "no-name", 'a="b; c="d'])
def test_a_strange_cookie_beside_it_ends_no_session(other: str, console: ServedConsole) -> None:
    session = log_in(console).cookie
    for cookie in (f"{other}; {session}", f"{session}; {other}"):
        assert "Log out" in ask(f"{console.url}/fsck", headers={"Cookie": cookie}).body


def log_in(console: ServedConsole) -> Answer:
    return post(f"{console.url}/login", {"token": console.token or "", "next": "/fsck"})


def test_the_cookie_is_for_this_site_and_no_script(console: ServedConsole) -> None:
    answer = log_in(console)
    facts = {each.strip().lower() for each in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= facts
    assert answer.headers["location"] == "/fsck"


@pytest.mark.parametrize(
    ("origin", "is_kept"), [("https://127.0.0.1", True), ("http://127.0.0.1", False), ("", False)]
)
def test_the_cookie_is_for_tls_alone_where_the_browser_speaks_it(
    origin: str, is_kept: bool, console: ServedConsole
) -> None:
    sent = {"token": console.token or ""}
    answer = post(f"{console.url}/login", sent, {"Origin": origin} if origin else {})
    assert ("secure" in answer.headers["set-cookie"].lower().split("; ")) is is_kept


def test_a_wrong_token_in_a_header_is_slowed_and_logged(console: ServedConsole) -> None:
    began = time.monotonic()
    get_as(console.url, Authorization="Bearer guess")
    assert time.monotonic() - began >= PAUSE_S
    assert "a wrong token peer='127.0.0.1' count=" in console.log.read_text()


def test_a_wrong_token_begins_no_session(console: ServedConsole) -> None:
    answer = post(f"{console.url}/login", {"token": "wrong"})
    assert answer.status == 403
    assert "set-cookie" not in answer.headers
    assert "Wrong token." in answer.body


@pytest.mark.parametrize(
    "way",
    [
        "//elsewhere.example/",
        "/\\elsewhere.example/",
        "http://elsewhere.example/",
        "https:elsewhere.example",
        "javascript:alert(1)",
        "/\t/elsewhere.example",
        "\\\\elsewhere.example",
        "//[",
        "//[]/",
        "",
        "fsck",
    ],
)
def test_the_login_leads_to_no_other_site(way: str, console: ServedConsole) -> None:
    answer = post(f"{console.url}/login", {"token": console.token or "", "next": way})
    assert (answer.status, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/fsck", 200),
        ("/static/console.css", 200),
        ("/static/absent", 404),
        ("/static/../console.py", 404),
        ("/absent", 404),
        ("/live/absent", 404),
        ("/fsck/repair?check=x", 400),
        ("/login", 200),
    ],
)
def test_every_answer_has_the_headers(path: str, status: int, console: ServedConsole) -> None:
    answer = ask(f"{console.url}{path}")
    assert answer.status == ask(f"{console.url}{path}", "HEAD").status == status
    assert {
        name.lower(): value for name, value in HEADERS.items()
    }.items() <= answer.headers.items()
    assert "server" not in answer.headers


def test_refusals_have_the_headers(strict: ServedConsole) -> None:
    wanted = {name.lower(): value for name, value in HEADERS.items()}.items()
    for answer in (
        ask(f"{strict.url}/"),
        ask(f"{strict.url}/", headers=HTML),
        ask(f"{strict.url}/fsck", "POST", {}),
    ):
        assert answer.status in {303, 401, 403}
        assert wanted <= answer.headers.items()


def test_a_host_an_origin_and_a_way_back_may_be_anything(console: ServedConsole) -> None:
    assert ask(f"{console.url}/login?next=//%5B").status == 200
    for origin in ("http://[", "[", "http://", "//", ""):
        sent = {"Origin": origin, "Cookie": log_in(console).cookie}
        assert ask(f"{console.url}/doctor", "POST", {}, sent).status == 403
    assert "Traceback" not in console.log.read_text()


def test_a_form_that_is_too_long_is_refused(console: ServedConsole) -> None:
    answer = post(f"{console.url}/fsck", {"tables": "x" * 70_000})
    assert (answer.status, "limit=65536" in answer.body) == (400, True)
