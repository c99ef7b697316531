"""The gate before the whole application, by requests that no server stands before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from starlette.requests import Request
from starlette.types import Message, Scope

from recovery.console import server
from recovery.console.auth import HEADERS, AccessGate
from recovery.console.server import make_app
from recovery.console.settings import ConsoleSettings
from recovery.console.state import Console
from txn.clock import SystemClock
from txn.events import silent
from txn.policy import Policy
from txn.protocol.context import Context
from txn.protocol.statuses import SIX_PHASE
from txn.stores import open_store


@pytest.fixture
def console() -> Iterator[Console]:
    store, clock = open_store("memory://"), SystemClock()
    context = Context(store, b"txn", clock, random.Random(1), Policy(), silent, SIX_PHASE)
    console = Console(ConsoleSettings("memory://", "token"), context)
    yield console
    console.close()


def knock(gate: AccessGate, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Send a GET through a gate; return the status and the headers of its answer. What the
    application raises besides is for the server's log."""
    given = {"host": "127.0.0.1"} | headers
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "server": ("127.0.0.1", 8611),
        "client": ("127.0.0.1", 1),
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    async def ask() -> None:
        await gate(scope, receive, send)

    with suppress(BrokenPageError):
        asyncio.run(ask())
    begun = sent[0]
    found = {name.decode(): value.decode() for name, value in begun["headers"]}
    return begun["status"], found


class BrokenPageError(Exception):
    """A mistake of ours."""


def break_page(request: Request) -> dict[str, object]:
    raise BrokenPageError(request.scope["path"])


@pytest.mark.parametrize("path", ["/transactions", "/static/../transactions", "/log\tin"])
def test_a_host_is_no_part_of_what_is_asked_for(path: str, console: Console) -> None:
    for host in ("x/static/?", "x/login?", "x/login#"):
        status, _ = knock(make_app(console), path, host=host)
        assert status == (404 if path.startswith("/static/") else 401)


def test_an_answer_about_a_fault_has_the_headers(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PAGES", {"/doctor": ("doctor.html", break_page)})
    status, headers = knock(make_app(console), "/doctor")
    assert status == 500
    assert {name.lower(): value for name, value in HEADERS.items()}.items() <= headers.items()
