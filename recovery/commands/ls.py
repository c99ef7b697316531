"""`txn ls`: every transaction with its status and its age, on searchable lines.

A terminal gets short ids, and as much of labels and reason as fits; a pipe gets all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
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
    find_width,
    print_json,
    print_line,
    row_bar,
    time_option,
)
from recovery.documents import row_document
from recovery.opening import open_store_of
from recovery.search import Query
from recovery.text import count_text, duration_text, error_text, fit_text, labels_text, short_id
from txn.model import Row
from txn.protocol.context import Context
from txn.protocol.listing import scan_transactions
from txn.protocol.ranges import stored_rows
from txn.protocol.row import TransactionRow
from txn.protocol.statuses import Status
from txn.spans import Span
from txn.text import escape

HEADINGS = ("transaction", "status", "age", "keys", "labels", "reason")
NO_STATUS = "none"
NAMES = (*map(str, Status), NO_STATUS)


def _status(text: str) -> str:
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
            parser=_status, help="Only this status: a digit, a name, or none.", metavar="STATUS"
        ),
    ] = None,
    older_than: Annotated[
        Duration | None,
        time_option("--older-than", "Only transactions whose status is as old as this."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="List only the newest N; 0 lists all.")
    ] = 100,
    parts: Annotated[
        bool, typer.Option("--parts", help="List the parts of transactions, too.")
    ] = False,
    long: Annotated[
        bool,
        typer.Option("--long", help="Print whole row keys and whole lines, as a pipe gets them."),
    ] = False,
    count: Annotated[
        bool, typer.Option("--count", help="Print only how many have each status.")
    ] = False,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """List the newest transactions, the oldest of them first.

    Example: txn ls --status asserted --older-than 10m
    """
    with open_store_of(store, transactions) as context, ExitStack() as looking:
        # Lines that are printed at once show the progress themselves.
        is_hidden = as_json or not (limit or count)
        bar = looking.enter_context(row_bar(console(), "ls", hidden=is_hidden))
        query = _make_query(status, older_than, parts)
        foreign = scan.Foreign()
        listed = 0
        if count:
            counts = Counter(_list_names(context, query, bar, foreign))
            looking.close()
            _print_counts(counts, as_json)
        elif limit:
            rows = _list_newest(context, query, limit, bar)
            looking.close()
            _print_rows(context, reversed(rows), Layout(long, query.with_parts), as_json)
            listed = len(rows)
        else:
            shown = _list_all(context, query, bar, foreign)
            _print_rows(context, shown, Layout(long, query.with_parts), as_json)
    _print_foreign(foreign, as_json)
    if limit and listed == limit:
        newest = count_text(limit, "transaction")
        typer.echo(f"only the newest {newest}: --limit 0 shows all", err=as_json)


def _print_counts(counts: Counter[str], as_json: bool) -> None:
    statuses = {name: counts[name] for name in NAMES if counts[name]}
    if as_json:
        print_json({"statuses": statuses, "total": counts.total()})
        return
    for name, number in (statuses | {"total": counts.total()}).items():
        print_line(f"{name:11}{number:>12,}")


class Layout:
    """The widths of the columns; on a terminal they fit together."""

    def __init__(self, long: bool, with_parts: bool) -> None:
        self._width = None if long else find_width()
        self.is_long = self._width is None
        self._name = (63 if self.is_long else 8) + 17 * with_parts

    def line(self, *fields: str) -> str:
        """Return a line of fields in the order of HEADINGS. Labels are cut before a reason."""
        name, status, age, keys, labels, reason = fields
        begin = f"{name:{self._name}} {status:10} {age:>9} {keys:>5}  "
        room = max(10, (self._width - len(begin)) // 2) if self._width else 24
        if reason and self._width:
            labels = fit_text(labels, room)
        line = f"{begin}{labels:{room}} {reason}".rstrip()
        return fit_text(line, self._width) if self._width else line


def _print_rows(
    context: Context, rows: Iterable[TransactionRow], layout: Layout, as_json: bool
) -> None:
    if not as_json:
        typer.echo(layout.line(*HEADINGS if layout.is_long else ("id", *HEADINGS[1:])))
    for row in rows:
        now_ms = context.clock.wall_ms()
        if as_json:
            print_json(row_document(row, now_ms) | {"state": _find_state(context, row)})
        else:
            typer.echo(_line(layout, row, now_ms))


def _print_foreign(foreign: scan.Foreign, as_json: bool) -> None:
    if foreign.count and as_json:
        first = escape(foreign.first)
        print_json({"transaction": None, "state": "foreign", "rows": foreign.count, "row": first})
    elif foreign.count:
        rows = count_text(foreign.count, "foreign row")
        print_line(f"{rows}, see txn fsck; the first is {escape(foreign.first)}")


def _make_query(status: Collection[str] | None, older_than: int | None, parts: bool) -> Query:
    with_parts = parts or str(Status.PART) in (status or ())
    known = {str(each): each for each in Status if with_parts or each is not Status.PART}
    statuses = {known.get(name) for name in status or NAMES if name in (*known, NO_STATUS)}
    return Query(statuses=frozenset(statuses), older_than_ms=older_than, with_parts=with_parts)


def _list_statuses(query: Query) -> list[Status]:
    return [status for status in Status if status in (query.statuses or ())]


def _list_newest(
    context: Context, query: Query, limit: int, on_row: scan.OnRow
) -> list[TransactionRow]:
    """Return the newest rows. At most these, and one row per salt bucket, are read."""
    others = scan.leave_out(set(Status) - set(_list_statuses(query)))
    rows = scan_transactions(context, exclude=others, with_parts=query.with_parts)
    return list(islice(_select(context, query, rows, on_row), limit))


def _list_all(
    context: Context, query: Query, on_row: scan.OnRow, foreign: scan.Foreign
) -> Iterator[TransactionRow]:
    others = scan.leave_out(set(Status) - set(_list_statuses(query)))

    def list_rows() -> Iterator[Row]:
        for row in stored_rows(context, Span(context.table), others):
            foreign.note(row.row)
            yield row

    return _select(context, query, list_rows(), on_row)


def _select(
    context: Context, query: Query, rows: Iterable[Row], on_row: scan.OnRow
) -> Iterator[TransactionRow]:
    for row in rows:
        on_row(context.table)
        if (found := query.match(row, context.clock.wall_ms())) is not None:
            yield found


def _list_names(
    context: Context, query: Query, on_row: scan.OnRow, foreign: scan.Foreign
) -> Iterator[str]:
    """Yield the status names of rows, without reading their requests."""
    now_ms, least_ms = context.clock.wall_ms(), query.older_than_ms or 0
    # The status of a fenced row is dated by its owner.
    with_ages = least_ms > 0 and context.rules.locks_rows
    if statuses := _list_statuses(query):
        for head in scan.list_heads(context, statuses, on_row, foreign, with_ages=with_ages):
            if _find_age(head.since, now_ms) >= least_ms and query.matches_key(head.row_key):
                yield str(head.status)
    if None in (query.statuses or ()):
        for row in scan.list_without_status(context, on_row, foreign):
            since = row.since or row.newest
            if _find_age(since, now_ms) >= least_ms and query.matches_key(row.row_key):
                yield NO_STATUS


def _find_age(since_ms: int, now_ms: int) -> int:
    """Return the age (ms) of a status; 0 if a clock ahead of ours dated it."""
    return max(0, now_ms - since_ms)


def _find_state(context: Context, row: TransactionRow) -> str:
    """Return what a row calls for; a part that lags behind has the state of its transaction."""
    now = scan.find_transaction(context, row.row_key) if row.follows else None
    return (now or row).state.value


def name_status(row: TransactionRow) -> str:
    """Return the name of a row's status, as `--status` takes it."""
    return str(row.status) if row.status else NO_STATUS


def _parts(row: TransactionRow) -> str:
    if row.parts is None:
        return ""
    return count_text(sum(row.parts), "part") if row.parts else "in parts"


def _line(layout: Layout, row: TransactionRow, now_ms: int) -> str:
    request = row.buffer.request if row.buffer else None
    labels = labels_text(request.labels) if request else ""
    return layout.line(
        escape(row.row_key) if layout.is_long else short_id(row.row_key),
        name_status(row),
        duration_text(_find_age(row.since or row.newest, now_ms)),
        str(len(request.keys)) if request else "?",
        "; ".join(filter(None, [labels, _parts(row)])),
        "; ".join(filter(None, [row.reason, error_text(row.cause or "")])),
    )
