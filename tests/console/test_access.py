"""Who may look and who may write, by requests that no honest browser would send."""

import time
from collections.abc import Callable
from urllib.parse import quote

import pytest

from recovery.console import server
from recovery.console.auth import FOREIGN, HEADERS, PAUSE_S
from tests.console.conftest import Serve
from tests.console.crashing import crash_client, stock_up
from tests.console.served import ServedConsole
from tests.console.visits import Answer, ask, post
from txn.protocol.statuses import Status
from txn.stores import open_store

HTML = {"Accept": "text/html"}
ALWAYS = {name.lower(): value for name, value in HEADERS.items()}.items()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return stock_up(tmp_path_factory.mktemp("access"))


@pytest.fixture(scope="module")
def left(store: str) -> str:
    """The row of a client that died."""
    return crash_client(store, Status.LOCKED, (b"left",)).decode()


@pytest.fixture(scope="module")
def console(serve: Serve, store: str, left: str) -> ServedConsole:
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
def try_repair(console: ServedConsole) -> Callable[..., Answer]:
    """Ask for the repair of a check that is not known: who may repair is told so, with 400."""

    def attempt(headers: dict[str, str]) -> Answer:
        return ask(f"{console.url}/fsck/repair", "POST", {"check": "999"}, headers)

    return attempt


def show_token(console: ServedConsole) -> dict[str, str]:
    return {"Authorization": f"Bearer {console.token}"}


def log_in(console: ServedConsole, **form: str) -> Answer:
    return post(f"{console.url}/login", {"token": console.token or "", **form})


def list_cells(uri: str) -> list[object]:
    store = open_store(uri)
    try:
        return [*store.scan(b"txn"), *store.scan(b"stock")]
    finally:
        store.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.1:9", "[::1]:80"])
def test_on_the_loopback_looking_needs_nothing(host: str, console: ServedConsole) -> None:
    assert ask(f"{console.url}/fsck", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "header",
    [
        *("Host: rebound.example", "Host: 127.0.0.1.rebound.example", "Host: 10.0.0.7:8611"),
        *("Host: ", "Host: [", "X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1"),
        *("Forwarded: for=127.0.0.1", "Via: 1.1 proxy"),
    ],
)
def test_what_comes_by_another_way_needs_the_token(header: str, console: ServedConsole) -> None:
    """A page elsewhere can point its name at this machine, and a proxy brings anybody here."""
    url, headers = f"{console.url}/fsck?grace=1", dict([header.split(": ")])
    answer = ask(url, headers=headers)
    assert answer.status == 401
    assert "Bearer" in answer.headers["www-authenticate"]
    assert "fsck" not in answer.body
    sent = ask(url, headers=headers | HTML)
    assert (sent.status, sent.headers["location"]) == (303, "/login?next=%2Ffsck%3Fgrace%3D1")
    assert ask(url, headers=headers | show_token(console)).status == 200
    assert ask(f"{console.url}/healthz", headers=headers).body == "ok\n"


def test_from_elsewhere_looking_needs_the_token(strict: ServedConsole) -> None:
    paths = [*server.PAGES, *(f"/live/{part}" for part in server.PARTS), "/metrics", "/nothing"]
    paths += [f"/transactions.{kind}" for kind in server.DOWNLOADS]
    assert {path: ask(strict.url + path).status for path in paths} == dict.fromkeys(paths, 401)
    assert ask(f"{strict.url}/locks", headers=show_token(strict)).status == 200
    for headers in ({}, HTML):
        assert ask(f"{strict.url}/", headers=headers).headers.items() >= ALWAYS
    assert ask(f"{strict.url}/fsck", "POST", {}).headers.items() >= ALWAYS


@pytest.mark.parametrize("host", ["x/static/?", "x/static/#", "x/login?", "x\\static\\?"])
@pytest.mark.parametrize("path", ["/transactions", "/static/../transactions", "/log%09in"])
def test_no_host_and_no_spelling_makes_a_page_another_one(
    host: str, path: str, strict: ServedConsole
) -> None:
    """Starlette 1.0.0 takes the host unseen for a part of its URL."""
    opened = ask(f"{strict.url}{path}", headers={"Host": host})
    assert opened.status == (404 if path.startswith("/static/") else 401)
    written = post(f"{strict.url}/doctor", {}, {"Host": host, "Authorization": "x"})
    assert written.status == 401


def test_no_look_writes_anything(console: ServedConsole, store: str) -> None:
    before = list_cells(store)
    for path in server.PAGES:
        assert ask(f"{console.url}{path}").status in {200, 400, 404}, path
    post(f"{console.url}/fsck", {"grace": "0s", "tables": "stock"})
    while "<progress" in ask(f"{console.url}/fsck").body:
        pass
    assert post(f"{console.url}/doctor", {"tables": "stock"}).status == 401
    assert list_cells(store) == before


@pytest.mark.parametrize("path", sorted(set(server.ACTIONS) - set(server.PAGES)))
def test_an_action_is_not_had_by_get(path: str, console: ServedConsole) -> None:
    assert ask(f"{console.url}{path}").status == 405


@pytest.mark.parametrize(
    "headers",
    [
        {},
        *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "none")),
        *({"Origin": each} for each in ("null", "http://elsewhere.example", "http://[", "[", "//")),
        {"Sec-Fetch-Site": "cross-site", "Origin": "{origin}"},
    ],
)
def test_what_a_page_of_another_site_sends_is_refused(
    headers: dict[str, str], console: ServedConsole
) -> None:
    """Even to whoever is logged in: the browser adds the cookie, and tells where the form was."""
    sent = {name: value.format(origin=console.url) for name, value in headers.items()}
    sent |= {"Cookie": log_in(console).cookie}
    for path in ("/fsck", "/fsck/repair", "/doctor", "/logout", "/login"):
        answer = ask(f"{console.url}{path}", "POST", {"check": "1"}, sent)
        assert (answer.status, answer.body) == (403, FOREIGN), path


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
    """Not on the loopback either: other users of the machine are there, too."""
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
    assert try_repair(show_token(console)).status == 400
    assert "/fsck/repair requested from 127.0.0.1" in console.log.read_text()
    sent = {"Origin": console.url, "Cookie": log_in(console).cookie}
    assert try_repair(sent).status == 400
    assert post(f"{console.url}/logout", {}, sent).status == 303
    assert try_repair(sent).status == 401


@pytest.mark.parametrize("shown", ["Basic dXNlcjpzZWNyZXQ=", "Bearer wrong", "x"])
def test_a_header_that_is_not_the_token_lets_in_no_other_site(
    shown: str, console: ServedConsole, try_repair: Callable[..., Answer]
) -> None:
    """A browser sends the header by itself where a proxy has asked for a password."""
    cookie = {"Authorization": shown, "Cookie": log_in(console).cookie}
    for site in ({"Sec-Fetch-Site": "same-site"}, {}):
        answer = try_repair({"Origin": "http://127.0.0.1:9"} | cookie | site)
        assert (answer.status, answer.body) == (403, FOREIGN)
    assert try_repair(cookie | {"Origin": console.url}).status == 400


@pytest.mark.parametrize(
    ("origin", "is_tls"), [("https://127.0.0.1", True), ("http://127.0.0.1", False), ("", False)]
)
def test_the_cookie_is_for_this_site_and_no_script(
    origin: str, is_tls: bool, console: ServedConsole
) -> None:
    """A proxy before the console ends TLS: what the browser spoke is told by where its form was."""
    headers = {"Origin": origin} if origin else {}
    answer = post(f"{console.url}/login", {"token": console.token or ""}, headers)
    facts = {each.strip().lower() for each in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= facts
    assert ("secure" in facts) is is_tls


def test_a_wrong_token_is_slowed_and_logged_and_begins_no_session(console: ServedConsole) -> None:
    began = time.monotonic()
    ask(console.url, headers={"Authorization": "Bearer guess"})
    assert time.monotonic() - began >= PAUSE_S
    assert "a wrong token peer='127.0.0.1' count=" in console.log.read_text()
    answer = log_in(console, token="wrong")
    assert answer.status == 403
    assert "set-cookie" not in answer.headers
    assert "Wrong token." in answer.body


@pytest.mark.parametrize(
    "way",
    [
        *("//elsewhere.example/", "/\\elsewhere.example/", "http://elsewhere.example/"),
        *("https:elsewhere.example", "javascript:alert(1)", "/\t/elsewhere.example"),
        *("\\\\elsewhere.example", "//[", "//[]/", "", "fsck"),
    ],
)
def test_the_login_leads_to_no_other_site(way: str, console: ServedConsole) -> None:
    """A link to the login must not end at a page that looks like ours."""
    assert ask(f"{console.url}/login?next={quote(way)}").status == 200
    answer = log_in(console, next=way)
    assert (answer.status, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
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
    assert answer.headers.items() >= ALWAYS
    assert "server" not in answer.headers
