"""Options, questions and printing that the commands share."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich import markup
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from recovery.findings import Kind
from recovery.scan import whole_row
from recovery.search import find
from recovery.text import error_text, parse_duration
from txn.errors import InvalidRequestError, TxnError, annotate
from txn.protocol.context import Context
from txn.protocol.row import is_own
from txn.request import TRANSACTIONS
from txn.text import escape, show_text, unescape

FOUND, COULD_NOT_RUN = 1, 2
WIDE = 240
CANDIDATES = 5
SHOWN_EVERY = 100  # rows: to show each would take longer than reading it

StoreOption = Annotated[
    str,
    typer.Option("--store", envvar="TXN_STORE", metavar="URI", help="Such as embedded:///data."),
]
TransactionsOption = Annotated[
    str, typer.Option("--transactions", help="The transaction table.", metavar="TABLE")
]
LOCKS = typer.Option(
    "--locks", envvar="TXN_LOCKS", metavar="URI", help="zookeeper://host:port/base, or any store."
)
LocksOption = Annotated[str, LOCKS]
MaybeLocksOption = Annotated[str | None, LOCKS]
CertificateOption = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="The server's certificate, as PEM."),
]
KeyOption = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="The key of the certificate, as PEM."),
]
BindOption = Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Confirm that no client is connected.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_TRANSACTIONS = TRANSACTIONS


class Duration(int):
    """Milliseconds, written as `90s`, `10m` or `24h`."""

    def __str__(self) -> str:
        units = (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
        unit, size = next(each for each in units if self % each[1] == 0)
        return f"{self // size}{unit}"


def parse_age(text: str | Duration) -> Duration:
    try:
        return text if isinstance(text, Duration) else Duration(parse_duration(text))
    except InvalidRequestError as error:
        raise typer.BadParameter(error_text(error)) from error


def time_option(name: str, text: str, default: Any = ...) -> Any:
    """Return an option that takes a duration. default: in ms, or as of `typer.Option`."""
    default = Duration(default) if isinstance(default, int) else default
    return typer.Option(default, name, parser=parse_age, metavar="TIME", help=text)


def confirm(statement: str, question: str, yes: bool) -> None:
    """Return if a person, or `--yes`, confirms. Raise InvalidRequestError without a terminal."""
    statement = show_text(statement)
    if not yes and not sys.stdin.isatty():
        raise InvalidRequestError(f"{statement}: say --yes if that is right")
    if not yes:
        typer.confirm(f"{statement}. {question}", abort=True, err=True)


def find_row_key(context: Context, part: str) -> bytes:
    """Return the row key of the transaction with this key or piece of a key."""
    with row_bar(console(), "looking", hidden=False) as on_row:
        candidates = list(islice(find(context, unescape(part), on_row), CANDIDATES + 1))
    if not candidates:
        row = unescape(part)
        if not row or whole_row(context, row) is None:
            raise InvalidRequestError("no such transaction", id=part)
        if is_own(row):
            raise InvalidRequestError("the row is no transaction: the database keeps it", row=row)
        foreign = f"the row is foreign, {Kind.FOREIGN_ROW.meaning}"
        raise InvalidRequestError(f"{foreign}: see `txn fsck`", row=row)
    if len(candidates) > 1:
        several = [escape(row_key) for row_key in candidates[:CANDIDATES]]
        more = ["and more"] if len(candidates) > CANDIDATES else []
        message = annotate("several transactions match", id=part)
        raise InvalidRequestError(f"{message}: {', '.join([*several, *more])}")
    return candidates[0]


def console() -> Console:
    """Return the console for text; a pipe gets long lines instead of cut ones."""
    width = None if sys.stdout.isatty() else WIDE
    return Console(width=width, highlight=False, markup=False, emoji=False)


class Output:
    """Text for a terminal or a pipe. What its encoding lacks is escaped, and the command ends as
    `cat` does if nobody reads any more."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115 -- None: it is closed
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # else typer would write bytes
            raise AttributeError(name)
        found = getattr(self._stream, name)
        return partial(self._call, found) if name in ("write", "flush") else found

    def _call(self, method: Callable[..., Any], *given: str) -> Any:
        try:
            return method(*given)
        except BrokenPipeError:  # 141 is what a shell makes of SIGPIPE
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            sys.exit(141)


class RowBar:
    """Count the rows read per table. A terminal shows the number, and the percentage if known."""

    def __init__(self, out: Console, about: str, *, unit: str = "rows", hidden: bool) -> None:
        self.rows = 0
        self._unit = unit
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[counted]}"),
            TimeElapsedColumn(),
            console=out,
            transient=True,
            disable=hidden or not out.is_terminal,
        )
        self._task = self.progress.add_task(about, total=None, counted="")
        self._table: bytes | None = None

    def __call__(self, table: bytes) -> None:
        self.rows += 1
        if table != self._table or self.rows % SHOWN_EVERY == 0:
            self._table = table
            counted, description = f"{self.rows:,} {self._unit}", markup.escape(escape(table))
            self.progress.update(self._task, counted=counted, description=description)

    def reach(self, done: int, total: int | None = None) -> None:
        """Show how many parts are done, and of how many if that is known."""
        counted = f"{done:,} {self._unit}"
        self.progress.update(self._task, completed=done, total=total, counted=counted)

    def say(self, step: str) -> None:
        """Show the present step, whose duration is unknown."""
        self.progress.tasks[0].total = None  # an update with None changes nothing
        self.progress.update(self._task, description=step, counted="")

    def show_step(self, step: str, done: int, total: int) -> None:
        self.progress.update(self._task, description=step, completed=done, total=total)


@contextmanager
def row_bar(out: Console, about: str, *, unit: str = "rows", hidden: bool) -> Iterator[RowBar]:
    """Count the rows, or other units, of long work; hidden: show nothing."""
    bar = RowBar(out, about, unit=unit, hidden=hidden)
    with bar.progress:
        yield bar


class LineFormatter(logging.Formatter):
    """Writes each message of a log on one line, whatever it quotes."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return show_text(super().formatMessage(record))


def write_log(form: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(handlers=[handler])


def print_json(document: Any, *, pretty: bool = False) -> None:
    typer.echo(json.dumps(document, indent=2 if pretty else None))


def print_result(as_json: bool, document: Any, line: str) -> None:
    if as_json:
        print_json(document)
    else:
        typer.echo(show_text(line))


def print_note(note: str) -> None:
    typer.echo(show_text(f"note: {note}"), err=True)


def make_cell(text: str) -> Text:
    """Return a cell of a table with this text, on as many lines as its column needs."""
    return Text(show_text(text), overflow="fold")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(make_cell, row))
    console().print(table)


def parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise typer.BadParameter(f"write NAME=VALUE, not {text}", param_hint="'--set'")
    return name.strip(), value.strip()


def print_line(line: str) -> None:
    line, width = show_text(line.rstrip()), find_width()
    typer.echo(fit_text(line, width) if width else line)


def fit_text(text: str, width: int) -> str:
    line = Text(text)
    line.truncate(width, overflow="ellipsis")
    return line.plain


def find_width() -> int | None:
    """Return the width of the terminal; None for a pipe, which gets whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def complain(error: BaseException | str) -> None:
    typer.echo(f"error: {error_text(error)}", err=True)


@contextmanager
def report_refusal(
    *errors: type[TxnError], text: Callable[[Any], str] = error_text
) -> Iterator[None]:
    """Print these errors as findings, not as failures: exit code 1."""
    try:
        yield
    except errors as error:
        complain(text(error))
        raise typer.Exit(FOUND) from error
