"""`txn purge`: remove a transaction row or a `once` token, by a person's decision."""

from __future__ import annotations

import typer
from typer import Argument, Option

from recovery.commands import common
from recovery.findings import LONGEST_REQUEST_MS, Repaired, Result, result_document
from recovery.opening import open_store_of
from recovery.purge import LOST, UNFINISHED, find_marker, purge_row, purge_token
from recovery.scan import find_transaction, whole_row
from recovery.text import duration_text, time_text
from txn.documents import Document
from txn.errors import CorruptRowError, InvalidRequestError
from txn.protocol.codec import Marker, decode_marker
from txn.protocol.context import Context
from txn.protocol.row import decode_row
from txn.text import escape, unescape

RECENT = "Be sure that its client has ended: it was changed in the last"


def purge(
    *,
    transaction: str | None = Argument(
        None, metavar="ID", help="A transaction, as `txn show` takes it."
    ),
    once: str | None = Option(None, metavar="TOKEN", help="Forget this token, and delete no row."),
    unfinished: bool = Option(
        False, "--unfinished", help="Delete even a row that fsck could finish or undo."
    ),
    yes: bool = Option(False, "--yes", help="Do not ask."),
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """Delete the row of a transaction, or the marker of a `once` token, and say what is lost.

    Exit code 0: deleted. 1: refused, or something has changed meanwhile; nothing was deleted.

    Example: txn purge 7dd8fcaf
    """
    if (transaction is None) is (once is None):
        message = "give the ID of a transaction, or --once TOKEN"
        raise typer.BadParameter(message, param_hint="'ID', '--once'")
    with open_store_of(store, transactions, mends=True) as context:
        if once is not None:
            told, result = _token(context, unescape(once), yes)
        else:
            told, result = _row(context, str(transaction), unfinished, yes)
    if as_json:
        common.print_json(told | result_document(result))
    elif isinstance(result, Repaired):
        typer.echo(f"deleted  {told.get('once') or told['transaction']}")
    else:
        common.complain(result.why)
    if not isinstance(result, Repaired):
        raise typer.Exit(common.FOUND)


def _row(context: Context, part: str, unfinished: bool, yes: bool) -> tuple[Document, Result]:
    row_key = common.find_row_key(context, part)
    seen = whole_row(context, row_key)
    if seen is None:
        raise InvalidRequestError("the row has just gone", transaction=row_key)
    row = find_transaction(context, row_key) or decode_row(seen)
    state, status = row.state, str(row.status) if row.status else "no status"
    if unfinished or state not in UNFINISHED:
        is_recent = context.clock.wall_ms() - row.newest < LONGEST_REQUEST_MS
        stopped = f"{RECENT} {duration_text(LONGEST_REQUEST_MS)}. " if is_recent else ""
        common.confirm(
            f"{escape(row_key)} is at {status}. {stopped}Lost with it: {LOST[state]}",
            "Delete it?",
            yes,
        )
    told = {"transaction": escape(row_key), "state": state.value, "lost": LOST[state]}
    return told, purge_row(context, seen, unfinished=unfinished)


def _token(context: Context, token: bytes, yes: bool) -> tuple[Document, Result]:
    cell = find_marker(context, token).value
    assert cell is not None
    try:
        marker = decode_marker(cell.value)
    except CorruptRowError:  # a person may delete it all the same
        marker = Marker(cell.value)
    told = {
        "once": escape(token),
        "transaction": escape(marker.transaction),
        "timestamp": cell.timestamp,
        "retention_ms": marker.retention_ms,
        "lost": "that it was committed: a request with this token commits again",
    }
    kept = "for ever" if marker.retention_ms is None else duration_text(marker.retention_ms)
    when = f"was committed at {time_text(cell.timestamp)} by {told['transaction']}, kept {kept}"
    common.confirm(f"{told['once']} {when}. Lost with it: {told['lost']}", "Delete it?", yes)
    return told, purge_token(context, token)
