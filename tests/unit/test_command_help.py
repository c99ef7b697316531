"""The help of every command: it flows at any width, explains each option, and has an example."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from recovery.commands import app

ROOT = typer.main.get_command(app)


def list_commands(group: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, (*names, name))
        else:
            yield " ".join((*names, name)), command


COMMANDS = dict(list_commands(ROOT))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_parses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXN_STORE", "embedded:///nowhere")
    monkeypatch.setenv("TXN_LOCKS", "embedded:///nowhere")
    label, _, example = COMMANDS[name].epilog.partition(" ")
    words = shlex.split(example.removeprefix(f"txn {name}"))
    assert (label, example.startswith(f"txn {name}")) == ("Example:", True)
    COMMANDS[name].make_context(name, words)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_no_line_breaks_of_the_source(name: str) -> None:
    paragraphs = COMMANDS[name].help.split("\n\n")
    assert all(paragraph and "\n" not in paragraph for paragraph in paragraphs)


@pytest.mark.parametrize("name", ["", *COMMANDS])
@pytest.mark.parametrize("columns", [60, 80])
def test_help_cuts_nothing_in_a_narrow_terminal(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    words = [*name.split(), "--help"]
    text = CliRunner().invoke(app, words, terminal_width=columns).output
    options = [each for param in getattr(COMMANDS.get(name), "params", ()) for each in param.opts]
    assert [each for each in options if each.startswith("-") and each not in text] == []
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_and_argument_is_explained(name: str) -> None:
    assert [each.name for each in COMMANDS[name].params if not each.help] == []
    assert [opt for each in COMMANDS[name].params for opt in each.opts if not opt.islower()] == []


def test_an_option_has_one_variable_and_a_variable_one_option() -> None:
    pairs = {
        (option.envvar, *option.opts)
        for command in COMMANDS.values()
        for option in command.params
        if getattr(option, "envvar", None)
    }
    assert pairs == {
        ("TXN_STORE", "--store"),
        ("TXN_LOCKS", "--locks"),
        ("TXN_LEASES", "--leases"),
        ("TXN_HBASE_DATA", "--data"),
    }
