"""`txn ls`: every transaction, with its status and its age, as lines that can be searched."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import typer

from recovery import scan
from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    Duration,
    JsonOption,
    StoreOption,
    TransactionsOption,
    console,
    parse_age,
    print_json,
    print_line,
    row_bar,
)
from recovery.documents import row_document
from recovery.opening import open_store_of
from recovery.text import count_text, duration_text, error_text, labels_text
from txn.protocol.attempt import Context
from txn.protocol.phases import Status
from txn.protocol.row import TransactionRow, created_ms, decode_row, is_row_key, whole_of
from txn.spans import Span
from txn.text import escape

LINE = "{:58} {:11} {:>9} {:>4} {}"
NO_STATUS = "none"
NAMES = (*map(str, Status), NO_STATUS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows: with one of these statuses, by name, and for how long at least; with those of
    parts, or without."""

    names: frozenset[str]
    older_than_ms: int
    with_parts: bool

    @property
    def statuses(self) -> list[Status]:
        """The statuses among the names; 0-PART is one of parts alone."""
        unwanted = None if self.with_parts else Status.PART
        return [each for each in Status if str(each) in self.names and each is not unwanted]

    def takes(self, row_key: bytes) -> bool:
        """Whether the row is wanted, as far as its key tells."""
        return self.with_parts or whole_of(row_key) is None


def _status(text: str) -> str:
    """Return the status that is meant by its name, its digit or both."""
    names = {str(status): (str(status), *str(status).split("-")) for status in Status}
    for name, words in (names | {NO_STATUS: (NO_STATUS,)}).items():
        if text.upper() in (word.upper() for word in words):
            return name
    raise typer.BadParameter(f"'{text}' is not one of {', '.join([*names, NO_STATUS])}")


def ls(
    *,
    store: StoreOption,
    status: Annotated[
        list[str] | None,
        typer.Option(
            parser=_status, help="Only these: a digit, a name, or none.", metavar="STATUS"
        ),
    ] = None,
    older_than: Annotated[
        Duration | None,
        typer.Option(parser=parse_age, help="Only with a status older than 10m, 24h..."),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="The newest so many rows; 0: all.")] = 100,
    parts: Annotated[
        bool, typer.Option("--parts", help="Also the parts of transactions in parts.")
    ] = False,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """List the newest transactions, the oldest of them first."""
    with open_store_of(store, transactions) as context, ExitStack() as looking:
        # Lines that come as they are found show by themselves how far it is.
        bar = looking.enter_context(row_bar(console(), "ls", hidden=as_json or not limit))
        names = frozenset(status or NAMES)
        wanted = Wanted(names, older_than or 0, parts or str(Status.PART) in (status or ()))
        rows, foreign = _list_newest if limit else _list_all, scan.Foreign()
        total, shown = rows(context, wanted, limit, bar, foreign)
        looking.close()
        if not as_json:
            print_line(LINE.format("transaction", "status", "age", "keys", "labels or reason"))
        for row in shown:
            now_ms = context.clock.wall_ms()
            if as_json:
                print_json(row_document(row, now_ms) | {"state": _find_state(context, row)})
            else:
                print_line(_line(row, now_ms))
    _print_foreign(foreign, as_json)
    if limit and total > limit:
        older = count_text(total - limit, "older one")
        typer.echo(f"the newest {limit:,} only, and not {older}: --limit 0 shows all", err=as_json)


def _print_foreign(foreign: scan.Foreign, as_json: bool) -> None:
    """Say how many rows of the table are not ours."""
    if foreign.count and as_json:
        first = escape(foreign.first)
        print_json({"transaction": None, "state": "foreign", "rows": foreign.count, "row": first})
    elif foreign.count:
        rows = count_text(foreign.count, "foreign row")
        print_line(f"{rows} in this table, the first is {escape(foreign.first)}: see txn fsck")


def _list_newest(
    context: Context, wanted: Wanted, limit: int, looked: scan.Looked, foreign: scan.Foreign
) -> tuple[int, Iterator[TransactionRow]]:
    """Return how many rows there are, and the newest of them in the order of their beginnings. Only
    these are read wholly; of the others it is the status."""
    total = 0

    def count_keys() -> Iterator[bytes]:
        nonlocal total
        for row_key in filter(wanted.takes, _list_keys(context, wanted, looked, foreign)):
            total += 1
            yield row_key

    newest = heapq.nlargest(limit, count_keys(), key=created_ms)
    newest.sort(key=lambda row_key: (created_ms(row_key), row_key))  # parts behind their own
    found = (scan.whole_row(context, row_key) for row_key in newest)
    rows = (decode_row(row) for row in found if row)
    return total, (row for row in rows if name_status(row) in wanted.names)


def _list_keys(
    context: Context, wanted: Wanted, looked: scan.Looked, foreign: scan.Foreign
) -> Iterator[bytes]:
    """Yield the row keys: of rows with a status, and of those without."""
    now_ms, least_ms = context.clock.wall_ms(), wanted.older_than_ms
    # The status of a fenced row has a timestamp of its owner's.
    with_ages = least_ms > 0 and context.rules.locks_rows
    if wanted.statuses:
        for head in scan.list_heads(context, wanted.statuses, looked, foreign, with_ages=with_ages):
            if _find_age(head.since, now_ms) >= least_ms:
                yield head.row_key
    if NO_STATUS in wanted.names:
        for row in scan.list_without_status(context, looked, foreign):
            if _find_age(row.since or row.newest, now_ms) >= least_ms:
                yield row.row_key


def _list_all(
    context: Context, wanted: Wanted, _limit: int, looked: scan.Looked, foreign: scan.Foreign
) -> tuple[int, Iterator[TransactionRow]]:
    """Return the rows as they come, in the order of their keys; they are not counted."""

    def find() -> Iterator[TransactionRow]:
        others = scan.leave_out(set(Status) - set(wanted.statuses))
        for cells in scan.list_rows(context, Span(context.table), looked, others):
            foreign.note(cells.row)
            if not (is_row_key(cells.row) and wanted.takes(cells.row)):
                continue
            row = decode_row(cells)
            age_ms = _find_age(row.since or row.newest, context.clock.wall_ms())
            if name_status(row) in wanted.names and age_ms >= wanted.older_than_ms:
                yield row

    return 0, find()


def _find_age(since_ms: int, now_ms: int) -> int:
    """Return how old (ms) a status is; 0 where a clock that is ahead of ours has dated it."""
    return max(0, now_ms - since_ms)


def _find_state(context: Context, row: TransactionRow) -> str:
    """Return what a row calls for; a part that has not followed its transaction is as that is."""
    now = scan.find_transaction(context, row.row_key) if row.follows else None
    return (now or row).state.value


def name_status(row: TransactionRow) -> str:
    """Return the name of a row's status, as `--status` takes it."""
    return str(row.status) if row.status else NO_STATUS


def _parts(row: TransactionRow) -> str:
    if row.parts is None:
        return ""
    return count_text(sum(row.parts), "part") if row.parts else "in parts"


def _line(row: TransactionRow, now_ms: int) -> str:
    request = row.buffer.request if row.buffer else None
    labels = labels_text(request.labels) if request else ""
    return LINE.format(
        escape(row.row_key),
        name_status(row),
        duration_text(_find_age(row.since or row.newest, now_ms)),
        len(request.keys) if request else "?",
        "; ".join(filter(None, [labels, _parts(row), row.reason, error_text(row.cause or "")])),
    )
