"""Whatever is stored is shown literally and on one line, wherever it is printed.

Letters that a terminal obeys or hides could fake what an operator sees, and more: a title, a line
of the command's own, a path that reads backwards.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import create_engine, text

from recovery.commands import main
from recovery.commands.common import LineFormatter
from recovery.opening import open_store_of
from recovery.text import error_text
from tests.console.served import TOKEN, serve_here
from tests.console.visits import ask
from tests.unit.worlds import TABLE, World, stopped_at
from txn.clock import SystemClock
from txn.errors import InvalidRequestError
from txn.leases import exclusive, open_leases
from txn.locks.model import Mode
from txn.locks.opening import open_stored
from txn.locks.stored import COLUMN, OBJECTS, Queue, QueuedRequest
from txn.model import Edit, Key, Mutation
from txn.protocol.row import column
from txn.protocol.statuses import Status
from txn.stores import open_store
from txn.text import key_text, show_text

EVIL = (
    "\x1b]0;title\x07\x9b8m\u202egpj\u2066\u200b\r\nerror: faked\x85\u2028 [bold]b[/bold] :smile:"
)
RAW = EVIL.encode()
KEY = Key(b"row" + RAW, b"d", RAW, TABLE)
ROOM = 10_000
"""Columns: nothing is wrapped within a word that is looked for."""

Run = Callable[..., tuple[str, str]]


@pytest.fixture
def uri() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def leases(tmp_path: Path) -> str:
    """A lease whose user's name was changed past the library."""
    url = f"sqlite:///{tmp_path}/leases.sqlite"
    with open_leases(url) as service:
        service.grab_lease([exclusive("d/t")], 3600)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE txn_leases SET user_name = :evil"), {"evil": EVIL})
    engine.dispose()
    return url


@pytest.fixture
def row_key(uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store in which everything that is text, or may be, is hostile; an undecided transaction."""
    monkeypatch.setattr(World, "opened", lambda: (open_store(uri), SystemClock()))
    world = World()
    world.engine.commit([Mutation(KEY, RAW)], once=RAW, labels={EVIL: EVIL})
    row = stopped_at(world, Status.LOCKED)
    wall_ms = world.engine.context.clock.wall_ms()
    queued = QueuedRequest("t", Mode.EXCLUSIVE, None, EVIL, EVIL, EVIL, wall_ms, True, 1)
    open_stored(world.engine).close()
    edits = [
        Edit(column(b"txn", row, b"reason"), RAW, None),
        Edit(Key(RAW, "t", "x", "txn"), RAW, None),
        Edit(KEY._replace(row=b"foreign").lock, RAW, None),
        Edit(Key("d/t", OBJECTS, COLUMN, "locks"), Queue(1, (queued,)).encode(), None),
    ]
    for edit in edits:
        world.store.write([edit])
    return row.decode()


@pytest.fixture
def run(
    uri: str, leases: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run a command; return its output and its errors."""
    monkeypatch.setattr("recovery.commands.common.WIDE", ROOM)
    for name, value in (("STORE", uri), ("LOCKS", uri), ("LEASES", leases)):
        monkeypatch.setenv(f"TXN_{name}", value)

    def call(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["txn", *arguments])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr()

    return call


def require_literal(shown: str, about: str) -> None:
    odd = {letter for letter in shown if not letter.isprintable()} - {"\n"}
    assert not odd, about
    assert not [line for line in shown.splitlines() if line.startswith("error: faked")], about


def test_commands_show_stored_text_literally(run: Run, row_key: str, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    document = {"mutations": [{"delete": key_text(KEY)}]}
    failing = document | {"assertions": [{"exact": key_text(KEY), "value": EVIL + "!"}]}
    request.write_text(json.dumps(failing))
    for words in (
        ["ls"],
        ["ls", "--parts", "--long"],
        ["show", row_key],
        ["get", key_text(KEY)],
        ["commit", str(request)],
        ["fsck", "--grace", "0s", "--scan", TABLE.decode()],
        ["table", "ls"],
        ["doctor", TABLE.decode(), EVIL],
        ["convert", "fenced", "--scan", TABLE.decode()],
        ["table", "take-over", TABLE.decode()],
        ["table", "endpoint", TABLE.decode()],
        ["purge", "--once", show_text(EVIL.replace("\\", r"\\"))],
        ["purge", row_key, "--unfinished"],
        ["purge", EVIL],
        ["locks", "ls", "--extended"],
        ["locks", "acquire", "d/t", "--exclusive"],
        ["leases", "ls"],
        ["leases", "grab", "d/t", "--exclusive", "--for", "1h"],
        ["sql", "SHOW LOCKS d.t EXTENDED; SHOW LEASE d.t"],
        ["ping", "--transactions", EVIL],
    ):
        shown = "".join(run(*words))
        require_literal(shown, str(words))
        if words[0] not in ("table", "convert", "ping", "purge"):
            assert "[bold]b[/bold] :smile:" in shown, (words, shown)
        out, error = run(*words, "--json")
        require_literal(out + error, str(words))
        assert out.isascii(), words
        rest = out
        while rest:
            rest = rest[json.JSONDecoder().raw_decode(rest)[1] :].lstrip()


@pytest.mark.usefixtures("run")
def test_a_command_ends_quietly_if_nobody_reads_it(
    row_key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`txn ls | head -1` had exit code 1, which means findings. This one is that of `cat`."""
    for words in (["ls", "--json"], ["show", row_key], ["fsck"], ["--help"]):
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "w") as out:
            monkeypatch.setattr(sys, "stdout", out)
            monkeypatch.setattr(sys, "argv", ["txn", *words])
            with pytest.raises(SystemExit) as ended:
                main()
        assert (ended.value.code, capsys.readouterr().err) == (141, "")


def test_the_console_shows_stored_text_literally(row_key: str, uri: str, leases: str) -> None:
    with open_store_of(uri, "txn") as context, serve_here(context, leases) as url:
        for page in (
            *("/", "/transactions", "/transactions.csv", "/transactions.json"),
            *(f"/transaction?id={row_key}", f"/key?key={quote(key_text(KEY))}"),
            *(f"/key?table={TABLE.decode()}", f"/key?key={quote(EVIL)}"),
            *("/locks", "/leases", "/doctor"),
        ):
            body = ask(url + page, headers={"Authorization": f"Bearer {TOKEN}"}).body
            require_literal(body.replace("\r\n", "\n"), page)
            if page not in ("/", "/doctor"):
                assert "[bold]" in body, page


def test_the_log_has_each_message_on_one_line() -> None:
    record = logging.LogRecord("txn", logging.WARNING, "", 0, "closed %s", (EVIL,), None)
    require_literal(LineFormatter("%(levelname)s %(message)s").format(record), "log")
    require_literal(error_text(InvalidRequestError(EVIL, given=EVIL)), "error")
