"""The questions at night: who died, what does it hold, and since when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from recovery.commands import app
from tests.integration.test_commands import X, Y, crashed
from txn import Key, Mutation, connect
from txn.host.owner import name_owner
from txn.model import Edit
from txn.protocol.statuses import ProtocolName, Status
from txn.text import key_text


class Shell:
    """A database in which one client died holding locks, another is finished; and its commands."""

    def __init__(self, path: Path, protocol: ProtocolName) -> None:
        self.uri = f"embedded://{path}/store"
        with connect(self.uri, protocol=protocol, table="data") as engine:
            engine.ensure_table("data", ["d"])
            labels = {"job": "load"}
            done = engine.commit([Mutation(Key("z", "d", "v"), "1")], labels=labels)
        self.done = done.transaction.decode()
        self.held = crashed(self.uri, Status.ASSERTED).decode()

    def run(self, *words: str) -> Any:
        return CliRunner().invoke(app, [*words, "--store", self.uri])

    def read(self, *words: str) -> list[dict[str, Any]]:
        text = self.run(*words, "--json").stdout
        lines = [text] if text.startswith("{\n") else text.splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture(params=get_args(ProtocolName))
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    return Shell(tmp_path, request.param)


def test_every_command_names_the_owner(shell: Shell) -> None:
    for words in (["ls"], ["show", shell.held[-8:]], ["fsck", "--grace", "0s"]):
        assert name_owner() in shell.run(*words).stdout
    assert [each["owner"] for each in shell.read("ls")] == [name_owner()] * 2
    assert shell.read("show", shell.held)[0]["owner"] == name_owner()
    (finding, _) = shell.read("fsck", "--grace", "0s")
    assert finding["facts"]["owner"] == name_owner()


def test_the_holder_of_a_key_is_shown(shell: Shell) -> None:
    for key in (X, Y):
        (shown,) = shell.read("show", key_text(key))
        assert (shown["locked_by"], shown["transaction"]["status"]) == (shell.held, "2-ASSERTED")
        text = shell.run("show", key_text(key)).stdout
        assert f"{key_text(key)}  held by {shell.held}\n" in text and name_owner() in text
        (got,) = shell.read("get", key_text(key))
        assert got["locked_by"] == shell.held
        told = shell.run("get", key_text(key)).stdout
        assert f"  locked by {shell.held} of {name_owner()}\n" in told


def test_a_lock_without_a_transaction_is_shown_as_it_is(shell: Shell) -> None:
    ghost = f"{shell.held[:-36]}{'0' * 32}@txn"
    with connect(shell.uri) as engine:
        context = engine.context
        lock = context.rules.lock_of(X)
        for holder, shown in {ghost: ghost, "nobody": "no row key, 6 bytes"}.items():
            value = f"9@{holder}" if context.rules.locks_rows else holder
            newest = context.store.read([lock])[lock]
            assert newest is not None
            context.store.write([Edit(lock, value.encode(), newest.timestamp + 1)])
            said = "there is no such transaction, see txn fsck --scan data"
            text = shell.run("show", key_text(X)).stdout
            assert text == f"{key_text(X)}  held by {shown}: {said}\n"


def test_ls_finds_transactions_by_key_and_label(shell: Shell) -> None:
    found = {
        ("--key", key_text(X)): [shell.held],
        ("--key", "data/z/d:v"): [shell.done],
        ("--label", "job=load"): [shell.done],
        ("--label", "job=lo"): [],
        ("--label", "stat"): [shell.held],
        ("--label", "job=load", "--key", key_text(X)): [],
    }
    for words, rows in found.items():
        for limit in ("0", "100"):
            listed = shell.read("ls", *words, "--limit", limit)
            assert [each["transaction"] for each in listed] == rows
        assert shell.read("ls", *words, "--count")[0]["total"] == len(rows)


@pytest.mark.parametrize(("grace", "found"), [("0s", 1), ("1h", 0)])
def test_the_summary_of_fsck_has_all_that_is_unfinished(
    shell: Shell, grace: str, found: int
) -> None:
    *findings, told = shell.read("fsck", "--grace", grace)
    assert (len(findings), told["unfinished"]) == (found, {"decided": 1})
    assert told["oldest_ms"] >= (findings[0]["facts"]["silent_ms"] if findings else 1)
    text = shell.run("fsck", "--grace", grace).stdout
    assert ("1 unfinished transaction left; the oldest has been silent for" in text) == bool(found)
    told = shell.read("fsck", "--grace", "0s", "--repair")[-1]
    assert (told["unfinished"], told["oldest_ms"]) == ({}, 0)
