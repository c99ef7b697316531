"""The `txn` console script, one command per file.

Each command parses, opens, loops over what the library yields, prints, and returns an exit code:
0 clean, 1 something was found or refused, 2 it could not run.
"""

from __future__ import annotations

import inspect
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from recovery.commands.common import COULD_NOT_RUN, complain
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
app.add_typer(table_app, name="table")
app.add_typer(demo_app, name="demo")
app.add_typer(hbase_app, name="hbase")
app.add_typer(locks_app, name="locks")
app.add_typer(leases_app, name="leases")


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
        typer.echo(f"hbase-txn {version('hbase-txn')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that come before the command."""


def main() -> None:
    try:
        app()
    except CommitOutcomeUnknown as error:
        complain(f"{error}: see `txn show`, it may be committed or not")
        sys.exit(COULD_NOT_RUN)
    except (TxnError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader of the pipe has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            complain(error)
        sys.exit(COULD_NOT_RUN)
