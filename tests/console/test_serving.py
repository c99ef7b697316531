"""The port of a console: connections that say nothing, and a certificate that cannot be used."""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request

from recovery.console import server
from tests.console.conftest import Serve
from tests.console.served import serve_here
from tests.console.visits import ask
from txn import connect
from txn.clock import SystemClock
from txn.events import silent
from txn.policy import Policy
from txn.protocol.context import Context
from txn.protocol.statuses import SIX_PHASE
from txn.stores import open_store

PATIENCE_S = 60
TLS = Path(__file__).parents[1] / "integration" / "tls"
SHORT_S = 0.5
HEAD = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Site: same-origin\r\n"


@pytest.fixture
def context() -> Context:
    store, clock = open_store("memory://"), SystemClock()
    return Context(store, b"txn", clock, random.Random(1), Policy(), silent, SIX_PHASE)


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


def test_a_page_that_takes_its_time_is_waited_for(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", SHORT_S)

    def answer_slowly(request: Request) -> dict[str, str]:
        time.sleep(3 * SHORT_S)
        return {"title": "slow", "words": "at last"}

    monkeypatch.setattr(server, "PAGES", {"/slow": ("error.html", answer_slowly)})
    with serve_here(context) as url:
        assert "at last" in ask(f"{url}/slow").body


def test_a_console_with_a_certificate_speaks_tls(serve: Serve, tmp_path: Path) -> None:
    store = f"embedded://{tmp_path}/store"
    with connect(store):
        pass
    shown = ("--tls-cert", str(TLS / "certificate.pem"), "--tls-key", str(TLS / "key.pem"))
    url = serve(store, *shown).url.replace("127.0.0.1", "localhost")
    assert url.startswith("https://")
    trust = ssl.create_default_context(cafile=TLS / "certificate.pem")
    with urllib.request.urlopen(f"{url}/fsck", context=trust, timeout=PATIENCE_S) as answer:
        assert answer.status == 200


def test_a_silent_connection_is_closed_before_it_speaks_tls_as_well(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", SHORT_S)
    files = {"tls_cert": TLS / "certificate.pem", "tls_key": TLS / "key.pem"}
    with serve_here(context, **files) as url, reach(url) as silent:
        silent.settimeout(20)
        assert silent.recv(1) == b""


@pytest.mark.parametrize("is_there", [True, False])
def test_a_certificate_that_cannot_be_used_is_named_before_the_address_is(
    is_there: bool, tmp_path: Path
) -> None:
    store = f"embedded://{tmp_path}/store"
    with connect(store):
        pass
    certificate = tmp_path / "certificate.pem"
    if is_there:
        certificate.write_text("none\n")
    command = [sys.executable, "-c", "from recovery.commands import main; main()", "console"]
    command += ["--store", store, "--port", "0"]
    command += ["--tls-cert", str(certificate), "--tls-key", str(certificate)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot use the certificate or its key cert={certificate}" in done.stderr


SIGNALLED = """
import signal, sys
from recovery.console.server import serve_console
from recovery.console.settings import ConsoleSettings

class Dying:
    def __del__(self):  # Python ignores what is raised here
        signal.raise_signal(signal.SIGTERM)

serve_console(ConsoleSettings(sys.argv[1], "token", port=0), lambda address: Dying().__sizeof__())
"""


def test_a_console_ends_by_a_signal_that_comes_where_python_ignores_exits(tmp_path: Path) -> None:
    """The handler raised its exit there, and the console served for ever."""
    store = f"embedded://{tmp_path}/store"
    connect(store).close()
    ended = subprocess.run([sys.executable, "-c", SIGNALLED, store], timeout=PATIENCE_S, check=True)
    assert ended.returncode == 0
