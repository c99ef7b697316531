"""`txn ls`: every transaction row, with its status and its age, as lines that can be searched."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import ExitStack
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
    open_store_of,
    parse_age,
    print_json,
    print_line,
    row_bar,
)
from recovery.documents import row_document
from recovery.text import count_text, duration_text, labels_text
from txn.protocol.attempt import Context
from txn.protocol.phases import Status
from txn.protocol.row import TransactionRow, created_ms
from txn.text import escape

LINE = "{:58} {:11} {:>9} {:>4} {}"
NO_STATUS = "none"


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
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """List the newest transactions, the oldest of them first."""
    with open_store_of(store, transactions) as context, ExitStack() as looking:
        # Lines that come as they are found show by themselves how far it is.
        bar = looking.enter_context(row_bar(console(), "ls", hidden=as_json or not limit))
        rows = _select_rows(context, set(status or ()), older_than or 0, bar)
        total, shown = _newest(rows, limit) if limit else (0, rows)
        looking.close()
        if not as_json:
            print_line(LINE.format("transaction", "status", "age", "keys", "labels or reason"))
        for row in shown:
            now_ms = context.clock.wall_ms()
            if as_json:
                print_json(row_document(row, now_ms))
            else:
                print_line(_line(row, now_ms))
    if limit and total > limit:
        older = count_text(total - limit, "older one")
        typer.echo(f"the newest {limit:,} only, and not {older}: --limit 0 shows all", err=as_json)


def _newest(rows: Iterator[TransactionRow], limit: int) -> tuple[int, Iterator[TransactionRow]]:
    """Return how many rows there are, and the newest of them in the order of their beginnings."""
    total = 0

    def counted() -> Iterator[TransactionRow]:
        nonlocal total
        for row in rows:
            total += 1
            yield row

    found = heapq.nlargest(limit, counted(), key=lambda row: created_ms(row.row_key))
    return total, reversed(found)


def _select_rows(
    context: Context, statuses: set[str], older_than_ms: int, looked: scan.Looked
) -> Iterator[TransactionRow]:
    for row in scan.transactions(context, looked=looked):
        name = str(row.status) if row.status else NO_STATUS
        age_ms = context.clock.wall_ms() - (row.since or row.newest)
        if (not statuses or name in statuses) and age_ms >= older_than_ms:
            yield row


def _line(row: TransactionRow, now_ms: int) -> str:
    request = row.buffer.request if row.buffer else None
    labels = labels_text(request.labels) if request else ""
    return LINE.format(
        escape(row.row_key),
        str(row.status) if row.status else NO_STATUS,
        duration_text(max(0, now_ms - (row.since or row.newest))),
        len(request.keys) if request else "?",
        "; ".join(filter(None, [labels, row.reason, row.corrupt])),
    )
