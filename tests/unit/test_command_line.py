"""Commands as a person types them: help, completion, mistakes, and what `ls` reads."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import txn
from recovery.commands import app, main
from recovery.commands.requests import parse_request
from recovery.text import COMMANDS as TRANSLATED
from recovery.text import error_text
from tests.integration.commands import run_here
from tests.unit.test_search import NOW_MS, Fetching, Rows
from txn import Mutation, connect
from txn.errors import ConflictError, InvalidRequestError, StoreError, TableUnavailable, deny
from txn.locks import exclusive
from txn.locks.opening import open_manager
from txn.model import Cell, Key
from txn.protocol.context import Context
from txn.protocol.row import new_row_key
from txn.protocol.statuses import Status

KEY = Key("r\n", "d", "x'y", "t")
ROOT = typer.main.get_command(app)
Complete = Callable[[str], list[str]]


def list_commands(group: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, (*names, name))
        else:
            yield " ".join((*names, name)), command


COMMANDS = dict(list_commands(ROOT))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_explains_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With typer 0.27 an option was `--PORT`, as is its metavar."""
    command = COMMANDS[name]
    monkeypatch.setenv("TXN_STORE", "embedded:///nowhere")
    monkeypatch.setenv("TXN_LOCKS", "embedded:///nowhere")
    label, _, example = command.epilog.partition(" ")
    assert (label, example.startswith(f"txn {name}")) == ("Example:", True)
    command.make_context(name, shlex.split(example.removeprefix(f"txn {name}")))
    paragraphs = command.help.split("\n\n")
    assert all(paragraph and "\n" not in paragraph for paragraph in paragraphs)
    assert [each.name for each in command.params if not each.help] == []
    assert [opt for each in command.params for opt in each.opts if not opt.islower()] == []


def test_an_option_has_one_variable_and_a_variable_one_option() -> None:
    options = [option for command in COMMANDS.values() for option in command.params]
    assert {(each.envvar, *each.opts) for each in options if getattr(each, "envvar", None)} == {
        ("TXN_STORE", "--store"),
        ("TXN_LOCKS", "--locks"),
        ("TXN_LEASES", "--leases"),
        ("TXN_HBASE_DATA", "--data"),
    }


@pytest.fixture
def complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Complete]:
    """Return what zsh gets for the beginning of a command; nothing may reach the error output."""

    def call(line: str) -> list[str]:
        monkeypatch.setenv("_TXN_COMPLETE", "complete_zsh")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setattr(sys, "argv", ["txn"])
        with pytest.raises(SystemExit):
            main()
        out, error = capsys.readouterr()
        assert error == ""
        return [each.replace("\\\\", "") for each in re.findall(r'"(.*)"', out)]

    yield call
    logging.disable(logging.NOTSET)


def test_values_of_the_store_are_completed(
    complete: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setenv("TXN_STORE", uri)
    monkeypatch.setenv("TXN_LOCKS", uri)
    with connect(uri) as engine:
        engine.ensure_table("orders", ["d"])
        ids = [
            engine.commit([Mutation(Key("r", "d", "c", "orders"), "1")]).transaction[-12:-4]
            for _ in range(3)
        ]
    assert sorted(complete("txn show ")) == sorted(each.decode() for each in ids)
    assert complete(f"txn purge {ids[0].decode()[:5]}") == [ids[0].decode()]
    assert complete("txn doctor o") == complete("txn fsck --scan o") == ["orders"]
    assert complete("txn ls --status 1") == ["1-LOCKED"]
    assert "embedded:///" in complete("txn ls --store ")
    with open_manager(uri) as manager:
        manager.hold([exclusive("d/t")], query="", explicit=True)
        assert complete("txn locks ls d/") == complete("txn locks release d/") == ["d/t"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ConflictError("key is locked", key=KEY, holder=b"h"),
            r"key is locked key=t/r\x0a/d:x'y holder=h",
        ),
        (
            InvalidRequestError("use the shell", table=b"t", command="create 't', {X => 'y'}"),
            "use the shell table=t command=\"create 't', {X => 'y'}\"",
        ),
        (StoreError("odd", cell=Cell(b"7", 3), holder=b""), "odd cell=7 at 3 holder=(empty)"),
        (
            deny(TableUnavailable("the table refuses it table=b't' cause='no'", b"t")),
            "nothing was committed: the table refuses it table=t cause=no",
        ),
        (FileNotFoundError(2, "No such file or directory", "x"), "No such file or directory: x"),
        (StoreError("odd", cause=str(TimeoutError("[Errno 111] no"))), "odd cause='no'"),
        (StoreError("outer", cause="b'a' in \"b\""), "outer cause='a in \"b\"'"),
    ],
    ids=str,
)
def test_errors_are_told_without_the_marks_of_python(error: Exception, expected: str) -> None:
    assert error_text(error) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "an object is needed"),
        ('{"mutations": [{"put": null}]}', r"""a mutation is.*given='{"put": null}'$"""),
        ("null", "an object is needed.*given='null'$"),
        ('{"mutations": [{"put": "t/r", "value": "1"}]}', "a key is table/row/family:column"),
    ],
)
def test_a_document_of_the_wrong_shape_is_a_document(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{reason}"):
        parse_request(text)


@pytest.fixture
def store(tmp_path: Path) -> str:
    uri = f"embedded://{tmp_path}/bank"
    assert run_here("table", "create", "t", "d", "--store", uri).returncode == 0
    return uri


def refuse(*arguments: str, given: str = "") -> str:
    """Run a command that is a mistake; return what it says of it."""
    done = run_here(*arguments, given=given, COLUMNS="200")
    assert done.returncode == 2
    return done.stderr


def test_a_mistake_is_told_with_what_mends_it(store: str) -> None:
    """`ensure_table` is for programs; and a server has a transaction table of its own."""
    expected = "error: no such table: create it with `txn table create` table=u key=u/r/d:x\n"
    assert refuse("get", "u/r/d:x", "--store", store) == expected
    document = '{"mutations": [{"put": "u/r/d:x", "value": "1"}]}'
    assert refuse("commit", "-", "--store", store, given=document) == expected
    path = store.removeprefix("embedded://")
    for other in (path, f"embedded:/{path}"):
        assert f"did you mean {store} " in refuse("ls", "--store", other)
    server = ("--store", "txn://127.0.0.1:1", "--transactions", "x")
    assert "own --transactions" in refuse("get", "t/r/d:x", *server)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("fsck", "--grace"),
        ("fsck --repair", "--retention"),
        ("ls", "--older-than"),
        ("serve --thrift2 0", "--idle"),
    ],
)
def test_a_bad_duration_names_its_option(store: str, command: str, option: str) -> None:
    said = refuse(*command.split(), "--store", store, option, "soon")
    assert f"Invalid value for '{option}': a duration is a number and" in said


def test_the_library_says_what_commands_translate() -> None:
    """Where its words change, a shell would be told of functions again."""
    paths = Path(txn.__file__).parent.rglob("*.py")
    sources = "\n".join(re.sub(r'"\s*\n\s*"', "", path.read_text()) for path in paths)
    assert [said for said in TRANSLATED if said not in sources] == []


class Opened:
    """A table of many transactions, opened by `ls` in this process: it reads what it lists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, salt_buckets: int) -> None:
        rows = Rows()
        self.keys = [new_row_key(NOW_MS - at, at, salt_buckets=salt_buckets) for at in range(5_000)]
        self.locked = self.keys[500::1_000]
        rows.put([key for key in self.keys if key not in self.locked])
        rows.put(self.locked, Status.LOCKED)
        self.store = Fetching(rows.store)
        context = replace(rows.context, store=self.store)

        @contextmanager
        def open_store_of(*_: Any) -> Iterator[Context]:
            yield context

        monkeypatch.setattr(sys.modules["recovery.commands.ls"], "open_store_of", open_store_of)

    def run(self, *options: str) -> list[str]:
        self.store.reset()
        self.store.rows = 0
        done = CliRunner().invoke(app, ["ls", "--store", "memory://", "--json", *options])
        assert done.exit_code == 0, done.output
        return [
            json.loads(line)["transaction"]
            for line in done.stdout.splitlines()
            if line.startswith("{")
        ]


def test_the_newest_transactions_are_as_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, 1)
    assert opened.run("--limit", "1") == [opened.keys[0].decode()]
    assert opened.store.rows == 1
    assert opened.store.calls == {"scan": 2}  # the other one asks for salt buckets
    found = opened.run("--limit", "3", "--status", "1")
    assert found == [key.decode() for key in opened.locked[2::-1]]
    assert opened.store.rows < 30
    done = CliRunner().invoke(app, ["ls", "--store", "memory://", "--limit", "2"])
    assert len(done.stdout.splitlines()) == 1 + 2  # a pipe gets lines of transactions alone
    assert done.stderr == "note: only the newest 2 transactions: --limit 0 shows all\n"
