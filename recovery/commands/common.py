"""What the commands share: their options, opening a store, and printing.

A command that only looks never makes a store or a table: a mistyped path is an error.
"""

from __future__ import annotations

import json
import shutil
import sys
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import markup
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from recovery.findings import Kind
from recovery.fsck import GRACE_MS, RETENTION_MS
from recovery.scan import find, whole_row
from recovery.text import error_text, fit_text, parse_duration
from txn.client.connect import connect
from txn.client.engine import Engine
from txn.errors import InvalidRequestError, annotate
from txn.protocol.context import Context
from txn.protocol.row import is_own
from txn.request import TRANSACTIONS
from txn.stores.base import Store
from txn.text import escape, unescape

CLEAN, FOUND, COULD_NOT_RUN = 0, 1, 2
WIDE = 240
CANDIDATES = 5
PARTS = 50  # of a table, whose ends are where progress shows
SHOWN_EVERY = 100  # rows: to show each would take longer than to look at it

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="TXN_STORE",
        metavar="URI",
        help="The store, such as embedded:///data.",
    ),
]
TransactionsOption = Annotated[
    str, typer.Option("--transactions", help="The transaction table.", metavar="TABLE")
]
LOCKS = typer.Option(
    "--locks",
    envvar="TXN_LOCKS",
    metavar="URI",
    help="The lock manager: zookeeper://host:port/base, or any store.",
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


GRACE, RETENTION = Duration(GRACE_MS), Duration(RETENTION_MS)


def parse_age(text: str | Duration) -> Duration:
    """Return the duration that an option's text means, or tell typer what is wrong with it."""
    try:
        return text if isinstance(text, Duration) else Duration(parse_duration(text))
    except InvalidRequestError as error:
        raise typer.BadParameter(error_text(error)) from error


def time_option(name: str, text: str) -> Any:
    """Return an option that takes a duration."""
    return typer.Option(name, parser=parse_age, metavar="TIME", help=text)


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
    """Counts rows that are looked at, each told by its table, and shows on a terminal how many, and
    in per cent how far the look has come, where that is known."""

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
        self._splits: dict[bytes, list[bytes]] = {}
        self._first: dict[bytes, int] = {}
        self._done = 0

    def __call__(self, table: bytes) -> None:
        self.rows += 1
        if table != self._table or self.rows % SHOWN_EVERY == 0:
            self._table = table
            self.progress.update(
                self._task,
                counted=f"{self.rows:,} {self._unit}",
                description=markup.escape(escape(table)),
            )

    def expect(self, total: int) -> None:
        """Say how many parts there will be."""
        self.progress.update(self._task, total=total)

    def reach(self, done: int) -> None:
        """Say how many parts there have been."""
        self.progress.update(self._task, completed=done, counted=f"{done:,} {self._unit}")

    def fetch(self, done: int, total: int) -> None:
        """Say how many there are of all parts."""
        self.expect(total)
        self.reach(done)

    def say(self, step: str) -> None:
        """Say what is being done now, of which nobody knows how long it takes."""
        self.progress.tasks[0].total = None  # which an update would take for no change
        self.progress.update(self._task, description=step, counted="")

    def expect_tables(self, store: Store, tables: Iterable[bytes]) -> None:
        """Say which tables will be read, in this order, by parts with about as many cells each."""
        if not self.progress.disable:
            self._splits = {table: store.find_splits(table, PARTS) for table in tables}
        if any(self._splits.values()):
            self.expect(sum(len(splits) + 1 for splits in self._splits.values()))

    def reach_row(self, table: bytes, row: bytes) -> None:
        """Say how far the reading has come, from the first row of a table or from its last."""
        done = 0
        for name, splits in self._splits.items():
            if name == table:
                part = bisect(splits, row)
                first = self._first.setdefault(table, part)
                self._done = max(self._done, done + abs(part - first))
                self.progress.update(self._task, completed=self._done)
                return
            done += len(splits) + 1


@contextmanager
def row_bar(out: Console, about: str, *, unit: str = "rows", hidden: bool) -> Iterator[RowBar]:
    """Count the rows of a long look, or what else it goes by; hidden: show nothing of it."""
    bar = RowBar(out, about, unit=unit, hidden=hidden)
    with bar.progress:
        yield bar


def print_json(document: Any, *, pretty: bool = False) -> None:
    """Print a document on a line of its own, or for a single one on several."""
    typer.echo(json.dumps(document, ensure_ascii=False, indent=2 if pretty else None))


def print_result(as_json: bool, document: Any, line: str) -> None:
    """Print what a command came to: as JSON, or as a line for people."""
    if as_json:
        print_json(document)
    else:
        typer.echo(line)


def make_table(headings: Sequence[str]) -> Table:
    """Return a table without lines, whose columns are folded where it would be too wide."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def parse_setting(text: str) -> tuple[str, str]:
    """Return the name and the value of `NAME=VALUE`, or tell typer that it is none."""
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise typer.BadParameter(f"write NAME=VALUE, not {text}", param_hint="'--set'")
    return name.strip(), value.strip()


def print_line(line: str) -> None:
    """Print a line of text as it is; a terminal gets no more of it than fits."""
    line, width = line.rstrip(), find_width()
    typer.echo(fit_text(line, width) if width else line)


def find_width() -> int | None:
    """Return how wide the terminal is; None for a pipe, which gets whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def complain(error: BaseException | str) -> None:
    """Print an error, without the trace of how it came about."""
    typer.echo(f"error: {error_text(error)}", err=True)
