"""What the commands share: their options, opening a store, and printing.

A command that only looks never makes a store or a table: a mistyped path is an error.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any

import typer
from rich import markup
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from recovery.findings import Kind
from recovery.scan import find, whole_row
from recovery.text import cut, error_text, parse_duration
from txn.client.connect import connect
from txn.client.engine import Engine
from txn.errors import InvalidRequestError, annotate
from txn.protocol.attempt import Context
from txn.protocol.row import is_own
from txn.request import TRANSACTIONS
from txn.text import escape, unescape

CLEAN, FOUND, COULD_NOT_RUN = 0, 1, 2
WIDE = 240
CANDIDATES = 5
SHOWN_EVERY = 100  # rows: to show each would take longer than to look at it

StoreOption = Annotated[
    str,
    typer.Option("--store", envvar="TXN_STORE", help="The store, such as embedded:///var/lib/app."),
]
TransactionsOption = Annotated[
    str, typer.Option("--transactions", help="The transaction table.", metavar="TABLE")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DEFAULT_TRANSACTIONS = TRANSACTIONS


class Duration(int):
    """Milliseconds, given as `90s`, `10m` or `24h`."""


def parse_age(text: str, option: str | None = None) -> Duration:
    """Return what an option's text means, or tell typer what is wrong with it. option: its name,
    where typer does not know which one is being parsed."""
    try:
        return Duration(parse_duration(text))
    except InvalidRequestError as error:
        hint = option and f"'{option}'"
        raise typer.BadParameter(error_text(error), param_hint=hint) from error


@contextmanager
def open_engine(uri: str, transactions: str) -> Iterator[Engine]:
    """Open an engine on a store that exists; a server's does the work itself."""
    with connect(uri, transactions=transactions, create=False) as engine:
        yield engine


def ask_person(question: str, refusal: str) -> None:
    """Go on only where a person says yes; InvalidRequestError where there is nobody to ask."""
    if not sys.stdin.isatty():
        raise InvalidRequestError(refusal)
    typer.confirm(question, abort=True, err=True)


def confirm_stopped(change: str, yes: bool) -> None:
    """Go on with a change only where a person, or `--yes`, says that no client is connected."""
    if not yes:
        text = f"{change}: no client may be connected meanwhile"
        ask_person(f"{text}. Is that so?", f"{text}. Say --yes if that is so")


def find_row_key(context: Context, part: str) -> bytes:
    """Return the row key of the transaction that a person means, by all of it or a part."""
    with row_bar(console(), "looking", hidden=False) as looked:
        candidates = list(islice(find(context, unescape(part), looked), CANDIDATES + 1))
    if not candidates:
        raise _explain_absence(context, part)
    if len(candidates) > 1:
        several = [escape(row_key) for row_key in candidates[:CANDIDATES]]
        more = ["and more"] if len(candidates) > CANDIDATES else []
        message = annotate("several transactions match", id=part)
        raise InvalidRequestError("\n  ".join([message, *several, *more]))
    return candidates[0]


def _explain_absence(context: Context, part: str) -> InvalidRequestError:
    """Return the error that no transaction is meant; there may be a row that is none."""
    row = unescape(part)
    if not row or whole_row(context, row) is None:
        return InvalidRequestError("no such transaction", id=part)
    if is_own(row):
        return InvalidRequestError("the row is no transaction: the database keeps it", row=row)
    meaning = Kind.FOREIGN_ROW.meaning
    return InvalidRequestError(f"the row is foreign, {meaning}: see `txn fsck`", row=row)


def console() -> Console:
    """Return where text for people goes; a pipe gets long lines rather than cut ones."""
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


class RowBar:
    """Counts rows that are looked at, each told by its table, and shows on a terminal how many."""

    def __init__(self, out: Console, about: str, *, unit: str = "rows", hidden: bool) -> None:
        self.rows = 0
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(f"{{task.completed:,}} {unit}"),
            TimeElapsedColumn(),
            console=out,
            transient=True,
            disable=hidden or not out.is_terminal,
        )
        self._task = self.progress.add_task(about, total=None)
        self._table: bytes | None = None

    def __call__(self, table: bytes) -> None:
        self.rows += 1
        if table != self._table or self.rows % SHOWN_EVERY == 0:
            self._table = table
            self.progress.update(
                self._task, completed=self.rows, description=markup.escape(escape(table))
            )

    def expect(self, total: int) -> None:
        """Say how many there will be."""
        self.progress.update(self._task, total=total)

    def reach(self, done: int) -> None:
        """Say how many there have been."""
        self.progress.update(self._task, completed=done)


@contextmanager
def row_bar(out: Console, about: str, *, unit: str = "rows", hidden: bool) -> Iterator[RowBar]:
    """Count the rows of a long look, or what else it goes by; hidden: show nothing of it."""
    bar = RowBar(out, about, unit=unit, hidden=hidden)
    with bar.progress:
        yield bar


def print_json(document: Any, *, pretty: bool = False) -> None:
    """Print a document on a line of its own, or for a single one on several."""
    typer.echo(json.dumps(document, ensure_ascii=False, indent=2 if pretty else None))


def print_line(line: str) -> None:
    """Print a line of text as it is; a terminal gets no more of it than fits."""
    line, width = line.rstrip(), find_width()
    typer.echo(cut(line, width) if width else line)


def find_width() -> int | None:
    """Return how wide the terminal is; None for a pipe, which gets whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def complain(error: BaseException | str) -> None:
    """Print an error, without the trace of how it came about."""
    typer.echo(f"error: {error_text(error)}", err=True)
