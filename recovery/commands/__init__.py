"""The `txn` console script, one command per file.

Each command parses, opens, loops over what the library yields, prints, and returns an exit code:
0 clean, 1 something was found or refused, 2 it could not run, 141 nobody reads what it prints.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Annotated

import typer

import txn
from recovery.commands.common import COULD_NOT_RUN, Output, complain
from recovery.commands.console import console
from recovery.commands.database import backup, convert, doctor, init, ping, table_app
from recovery.commands.demo import app as demo_app
from recovery.commands.fsck import MasterCommand, fsck
from recovery.commands.hbase import app as hbase_app
from recovery.commands.leases import app as leases_app
from recovery.commands.locks import app as locks_app
from recovery.commands.ls import ls
from recovery.commands.requests import commit, get
from recovery.commands.serve import serve
from recovery.commands.show import purge, show
from recovery.commands.sql import sql
from txn.errors import CommitOutcomeUnknown, TxnError

app = typer.Typer(
    help="Look at transactions, mend what crashed clients left, read and write atomically.",
    epilog="Example: txn ls --store embedded:///data",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (init, ping, ls, show, fsck, purge, convert, doctor, backup, get, commit, serve, sql)
for command in (*COMMANDS, console):
    app.command(cls=MasterCommand if command is fsck else None)(command)
GROUPS = {"table": table_app, "demo": demo_app, "hbase": hbase_app, "locks": locks_app}
for name, group in (GROUPS | {"leases": leases_app}).items():
    app.add_typer(group, name=name)


def _set_help(group: typer.Typer) -> None:
    """Take the help of commands from their docstrings. Each paragraph is joined into one line,
    which the terminal wraps, and the last one, an example, becomes the epilog. The layout is
    click's, since Rich's tables cut what is wider than a column."""
    group.rich_markup_mode = None
    for info in group.registered_commands:
        paragraphs = inspect.cleandoc(info.callback.__doc__ or "").split("\n\n")
        *text, info.epilog = [" ".join(paragraph.split()) for paragraph in paragraphs]
        info.help, info.short_help = "\n\n".join(text), text[0]
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _set_help(inner.typer_instance)


_set_help(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hbase-txn {txn.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that come before the command."""


def main() -> None:
    if "_TXN_COMPLETE" in os.environ:
        from recovery.commands.completion import add_completions  # noqa: PLC0415

        add_completions(app)
    with redirect_stdout(Output(sys.stdout)), redirect_stderr(Output(sys.stderr)):
        try:
            app(prog_name="txn")  # its name in the shell, also as `python -m recovery`
        except (TxnError, OSError) as error:
            unknown = isinstance(error, CommitOutcomeUnknown)
            complain(f"{error}: see `txn show`, it may be committed or not" if unknown else error)
            sys.exit(COULD_NOT_RUN)
