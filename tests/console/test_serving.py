"""The port of a console: connections that say nothing, certificates, its metrics and its end."""

import random
import re
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from recovery.console import server
from recovery.console.auth import HEADERS
from tests.console.conftest import Serve
from tests.console.crashing import crash_client
from tests.console.served import serve_here
from tests.console.visits import ask, wait_for
from tests.integration.commands import run_here
from txn import connect
from txn.clock import SystemClock
from txn.events import silent
from txn.policy import Policy
from txn.protocol.context import Context
from txn.protocol.statuses import SIX_PHASE, Status
from txn.stores import open_store

PATIENCE_S = 60
ROOT = Path(__file__).parents[2]
TLS = ROOT / "tests" / "integration" / "tls"
SHORT_S = 0.5
HEAD = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Site: same-origin\r\n"


@pytest.fixture
def context() -> Context:
    store, clock = open_store("memory://"), SystemClock()
    return Context(store, b"txn", clock, random.Random(1), Policy(), silent, SIX_PHASE)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store in which there is nothing yet."""
    connect(uri := f"embedded://{tmp_path}/store").close()
    return uri


def reach(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), PATIENCE_S)


@pytest.mark.parametrize("begun", [b"", b"GET / HT", HEAD, b"GET / HTTP/1.1\r\nHost: x\r\n\r\nG"])
def test_connections_that_ask_nothing_keep_nobody_out(
    begun: bytes, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", SHORT_S)
    with serve_here(context) as url, ExitStack() as ends:
        silent = [ends.enter_context(reach(url)) for _ in range(server.MOST_AT_ONCE)]
        for each in silent:
            each.sendall(begun)
        deadline = time.monotonic() + PATIENCE_S
        while ask(url + "/fsck").status == 503:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for each in silent:
            while each.recv(65_536):  # until it is closed
                pass
    files: dict[str, Any] = {"tls_cert": TLS / "certificate.pem", "tls_key": TLS / "key.pem"}
    with serve_here(context, **files) as url, reach(url) as connection:
        assert connection.recv(1) == b""  # before it speaks TLS as well


def test_a_form_that_does_not_come_is_not_waited_for(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FORM_S", SHORT_S)
    with serve_here(context) as url, reach(url) as connection:
        connection.sendall(HEAD + b"Content-Length: 9\r\n\r\ntoken")
        answer = b""
        while b"</html>" not in answer and (more := connection.recv(65_536)):
            answer += more
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"nothing was done: the form did not arrive in time limit_s=0.5" in answer


def test_an_answer_about_a_fault_has_the_headers(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: Request) -> dict[str, str]:
        raise ZeroDivisionError

    monkeypatch.setattr(server, "PAGES", {"/doctor": ("doctor.html", fail)})
    with serve_here(context) as url:
        answer = ask(f"{url}/doctor")
    assert answer.status == 500
    assert {name.lower(): text for name, text in HEADERS.items()}.items() <= answer.headers.items()


def test_a_console_with_a_certificate_speaks_tls(serve: Serve, store: str) -> None:
    shown = ("--tls-cert", str(TLS / "certificate.pem"), "--tls-key", str(TLS / "key.pem"))
    url = serve(store, *shown).url.replace("127.0.0.1", "localhost")
    assert url.startswith("https://")
    trust = ssl.create_default_context(cafile=TLS / "certificate.pem")
    with urllib.request.urlopen(f"{url}/fsck", context=trust, timeout=PATIENCE_S) as answer:
        assert answer.status == 200


def test_to_be_seen_from_elsewhere_a_console_needs_a_token_of_its_own(store: str) -> None:
    """A token that is made anew and printed would be in a log, and be another after a restart."""
    done = run_here("console", "--store", store, "--bind", "0.0.0.0", "--port", "0")
    assert (done.returncode, "than the loopback, give --token-file" in done.stderr) == (2, True)


def test_prometheus_is_told_what_is_unfinished(serve: Serve, store: str) -> None:
    crash_client(store, Status.ASSERTED, [b"pears"])
    url = f"{serve(store).url}/metrics"
    wait_for(url, "oldest_unfinished")  # it begins to look with the first visit
    text = ask(url).body  # with the calls of the first answer
    assert 'hbase_txn_unfinished_transactions{status="2-ASSERTED"} 1.0' in text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (oldest,) = families["hbase_txn_oldest_unfinished_seconds"].samples
    assert oldest.value > 0
    assert any(sample.value for sample in families["hbase_txn_store_seconds"].samples)
    names = re.findall(r"^# TYPE (hbase_txn\w+) ", text, re.MULTILINE)
    told = (ROOT / "docs" / "observing.md").read_text()
    assert [
        name for name in names if not name.endswith("_created") and f"`{name}`" not in told
    ] == []


SIGNALLED = """
import signal, sys
from recovery.console.server import serve_console
from recovery.console.settings import ConsoleSettings

class Dying:
    def __del__(self):  # Python ignores what is raised here
        signal.raise_signal(signal.SIGTERM)

serve_console(ConsoleSettings(sys.argv[1], "token", port=0), lambda address: Dying().__sizeof__())
"""


def test_a_console_ends_by_a_signal_that_comes_where_python_ignores_exits(store: str) -> None:
    """The handler raised its exit there, and the console served for ever."""
    ended = subprocess.run([sys.executable, "-c", SIGNALLED, store], timeout=PATIENCE_S, check=True)
    assert ended.returncode == 0
