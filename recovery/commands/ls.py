"""`txn ls`: every transaction with its status and its age, on searchable lines.

A terminal gets short ids, and as much of labels and reason as fits; a pipe gets all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice

import typer
from typer import Option

from recovery.commands import common
from recovery.commands.common import Duration, time_option
from recovery.opening import open_store_of
from recovery.scan import OnRow, find_transaction, leave_out, list_heads, list_statuses
from recovery.search import Query, row_document
from recovery.text import count_text, duration_text, error_text, labels_text, short_id
from txn.model import Key
from txn.protocol.context import Context
from txn.protocol.listing import scan_transactions
from txn.protocol.ranges import stored_rows
from txn.protocol.row import TransactionRow, is_own, is_row_key
from txn.protocol.statuses import Status
from txn.spans import Span
from txn.text import escape, show_text

HEADINGS = ("transaction", "status", "age", "keys", "labels", "reason; owner")
NO_STATUS = "none"
NAME_OF: dict[Status | None, str] = {status: str(status) for status in Status} | {None: NO_STATUS}
NAMES = tuple(NAME_OF.values())


def _status(text: str) -> str:
    for name in NAMES:
        if text.upper() in (word.upper() for word in (name, *name.split("-"))):
            return name
    raise typer.BadParameter(f"'{text}' is not one of {', '.join(NAMES)}")


def ls(
    *,
    store: common.StoreOption,
    status: list[str] | None = Option(
        None, parser=_status, help="Only this status: a digit, a name, or none.", metavar="STATUS"
    ),
    older_than: Duration | None = time_option(
        "--older-than", "Only transactions whose status is as old as this.", None
    ),
    key: str | None = Option(
        None, metavar="KEY", help="Only transactions that name this key: table/row/family:column."
    ),
    label: str | None = Option(
        None, metavar="NAME=VALUE", help="Only those with this label, or with this text in one."
    ),
    limit: int = Option(100, min=0, metavar="N", help="List only the newest N; 0 lists all."),
    parts: bool = Option(False, "--parts", help="List the parts of transactions, too."),
    long: bool = Option(
        False, "--long", help="Print whole row keys and whole lines, as a pipe gets them."
    ),
    count: bool = Option(False, "--count", help="Print only how many have each status."),
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """List the newest transactions, the oldest of them first.

    Example: txn ls --status asserted --older-than 10m
    """
    with_parts = parts or str(Status.PART) in (status or ())
    known = {str(each): each for each in Status if with_parts or each is not Status.PART}
    statuses = {known.get(name) for name in status or NAMES if name in (*known, NO_STATUS)}
    query = Query(
        key=None if key is None else Key.parse(key),
        statuses=frozenset(statuses),
        label=label,
        older_than_ms=older_than,
        with_parts=with_parts,
    )
    foreign, listed = Foreign(), 0
    with open_store_of(store, transactions) as context, ExitStack() as progress:
        # Lines that are printed at once show the progress themselves.
        is_hidden = as_json or not (limit or count)
        bar = progress.enter_context(common.row_bar(common.console(), "ls", hidden=is_hidden))
        found: Iterable[TransactionRow]
        found = _find_rows(context, query, foreign, bar, limit=limit, count=count)
        if count:
            named = _list_names(context, query, foreign, bar)
            aged = (NAME_OF[row.status] for row in found)
            counts = Counter(aged if query.older_than_ms or query.needs_request else named)
            progress.close()
            totals = {name: counts[name] for name in NAMES if counts[name]}
            if as_json:
                common.print_json({"statuses": totals, "total": counts.total()})
            else:
                for name, number in (totals | {"total": counts.total()}).items():
                    common.print_line(f"{name:11}{number:>12,}")
        else:
            if limit:
                newest = list(islice(found, limit))
                progress.close()
                listed, found = len(newest), reversed(newest)
            _print_rows(context, found, Layout(long, with_parts), as_json)
    first, alien = escape(foreign.first), count_text(foreign.count, "foreign row")
    if foreign.count and as_json:
        document = {"transaction": None, "state": "foreign", "rows": foreign.count, "row": first}
        common.print_json(document)
    elif foreign.count:
        common.print_line(f"{alien}, see txn fsck; the first is {first}")
    if limit and listed == limit:
        newest_of = count_text(limit, "transaction")
        common.print_note(f"only the newest {newest_of}: --limit 0 shows all")


def _find_rows(
    context: Context, query: Query, foreign: Foreign, on_row: OnRow, *, limit: int, count: bool
) -> Iterator[TransactionRow]:
    """Yield the transactions of a query: of the newest, at most as many rows as are taken and one
    per salt bucket are read; to count them, no requests are read."""
    statuses = query.statuses or ()
    others = leave_out(set(Status).difference(statuses))
    is_newest = limit > 0 and not count
    if is_newest:
        few = others if len(others.values) > 1 else None  # parts are passed over by their keys
        rows = scan_transactions(context, exclude=few, with_parts=query.with_parts)
    elif count and not query.needs_request:
        rows = list_heads(context, statuses, with_ages=context.rules.locks_rows)
    else:
        rows = stored_rows(context, Span(context.table), others)
    for row in rows:
        if not is_newest:
            foreign.note(row.row)
        on_row(context.table)
        if (found := query.match(row, context.clock.wall_ms())) is not None:
            yield found


def _list_names(context: Context, query: Query, foreign: Foreign, on_row: OnRow) -> Iterator[str]:
    """Yield the names of the statuses of the rows that a query without an age matches."""
    for row_key, status in list_statuses(context, query.statuses or ()):
        on_row(context.table)
        foreign.note(row_key)
        if is_row_key(row_key) and query.matches_key(row_key):
            yield NAME_OF[status]


@dataclass(slots=True)
class Foreign:
    """The number of foreign rows in the transaction table, and the first of them."""

    count: int = 0
    first: bytes = b""

    def note(self, row: bytes) -> None:
        if not is_own(row):
            self.first = min(self.first, row) if self.count else row
            self.count += 1


class Layout:
    """The widths of the columns; on a terminal they fit together."""

    def __init__(self, long: bool, with_parts: bool) -> None:
        self._width = None if long else common.find_width()
        self.is_long = self._width is None
        self._name = (63 if self.is_long else 8) + 17 * with_parts

    def line(self, *fields: str) -> str:
        """Return a line of fields in the order of HEADINGS. Labels are cut before a reason."""
        name, status, age, keys, labels, reason = fields
        begin = f"{name:{self._name}} {status:10} {age:>9} {keys:>5}  "
        room = max(10, (self._width - len(begin)) // 2) if self._width else 24
        if reason and self._width:
            labels = common.fit_text(labels, room)
        line = show_text(f"{begin}{labels:{room}} {reason}".rstrip())
        return common.fit_text(line, self._width) if self._width else line


def _print_rows(
    context: Context, rows: Iterable[TransactionRow], layout: Layout, as_json: bool
) -> None:
    if not as_json:
        typer.echo(layout.line(*HEADINGS if layout.is_long else ("id", *HEADINGS[1:])))
    for row in rows:
        now_ms = context.clock.wall_ms()
        if as_json:
            # A part that lags behind has the state of its transaction.
            now = find_transaction(context, row.row_key) if row.follows else None
            common.print_json(row_document(row, now_ms) | {"state": (now or row).state.value})
            continue
        request = row.buffer.request if row.buffer else None
        labels = labels_text(request.labels) if request else ""
        parts = ""
        if row.parts is not None:
            parts = count_text(sum(row.parts), "part") if row.parts else "in parts"
        line = layout.line(
            escape(row.row_key) if layout.is_long else short_id(row.row_key),
            NAME_OF[row.status],
            duration_text(max(0, now_ms - (row.since or row.newest))),
            str(len(request.keys)) if request else "?",
            "; ".join(filter(None, [labels, parts])),
            "; ".join(filter(None, [row.reason, error_text(row.cause or ""), row.owner])),
        )
        typer.echo(line)
