"""`txn show` and `txn purge`: one transaction, explained to a person or removed by one."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from recovery.commands import common
from recovery.findings import LONGEST_REQUEST_MS, Repaired, Result, result_document
from recovery.inspect import Explanation, explain, read_holders
from recovery.opening import open_store_of
from recovery.purge import LOST, UNFINISHED, find_marker, purge_row, purge_token
from recovery.scan import find_transaction, whole_row
from recovery.text import count_text, duration_text, error_text, labels_text, quote_name, time_text
from txn.documents import Document
from txn.errors import CorruptRowError, InvalidRequestError
from txn.model import Key
from txn.protocol.codec import Marker, decode_marker
from txn.protocol.context import Context, describe_table
from txn.protocol.row import RowState, created_ms, decode_row
from txn.text import assertion_text, escape, holder_text, key_text, shorten, unescape

RECENT = "Be sure that its client has ended: it was changed in the last"


def show(
    transaction: str = Argument(
        metavar="ID|KEY",
        help="What `txn ls` prints: a row key, or the end of it, or its first random digits; "
        "or a key, table/row/family:column, for the transaction that has locked it.",
    ),
    *,
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """Explain one transaction: its statuses, keys and values, its locks, and what fsck would do.

    Example: txn show 7dd8fcaf
    """
    with open_store_of(store, transactions) as context:
        if "/" in transaction:  # no ID has one
            show_lock(context, Key.parse(transaction), as_json)
            return
        row_key = common.find_row_key(context, transaction)
        found = explain(context, row_key)
        if found is None:
            raise InvalidRequestError("the row has just gone", transaction=row_key)
        if as_json:
            common.print_json(explanation_document(found), pretty=True)
        else:
            print_explanation(common.console(), found)


def show_lock(context: Context, key: Key, as_json: bool) -> None:
    describe_table(context, key.table or b"")
    holder, row = read_holders(context, [key]).get(key, (None, None))
    found = explain(context, row.row_key) if row is not None else None
    if as_json:
        held = None if holder is None else holder_text(holder)
        shown = None if found is None else explanation_document(found)
        document = {"key": key_text(key), "locked_by": held, "transaction": shown}
        common.print_json(document, pretty=True)
        return
    lock = "free" if holder is None else f"held by {holder_text(holder)}"
    if holder is not None and found is None:
        table = quote_name(key.table or b"")
        lock += f": there is no such transaction, see txn fsck --scan {table}"
    common.print_line(f"{key_text(key)}  {lock}")
    if found is not None:
        print_explanation(common.console(), found)


def print_explanation(out: Console, found: Explanation) -> None:
    facts = Table.grid(padding=(0, 2))
    for name, text in _facts(found):
        facts.add_row(Text(name, "bold"), common.make_cell(text))
    out.print(facts)
    if found.statuses:
        statuses = Table("status", "since", "after", title="statuses", title_justify="left")
        for each in found.statuses:
            after = "" if each.after_ms is None else duration_text(each.after_ms)
            statuses.add_row(str(each.status), time_text(each.since), after)
        out.print(statuses)
    if found.changes:
        changes = Table("key", "old", "new", "lock", title="mutations", title_justify="left")
        undecided = found.row.state is RowState.UNDECIDED
        for change in found.changes:
            old = "none" if change.replaced == 0 or undecided else ""
            if change.old is not None:
                old = shorten(change.old.value)
            elif change.unseen is not None:
                version = f"version {change.replaced}, " if change.replaced else ""
                old = version + change.unseen.value
            new = "deleted" if change.new is None else shorten(change.new)
            row = (key_text(change.key), old, new, "held" if change.held else "")
            changes.add_row(*map(common.make_cell, row))
        out.print(changes)


def _facts(found: Explanation) -> list[tuple[str, str]]:
    row, request, whole = found.row, found.request, found.whole
    committed = row.plan.timestamp if row.plan else None
    status = str(row.status) if row.status else "none"
    once = escape(request.once or b"")
    if found.marker is not None:
        once += f", {_marker_text(found.marker)}"
    parts = ""
    if row.parts is not None:
        parts = "not counted before the decision"
        if row.parts:
            parts = f"{sum(row.parts):,} of {count_text(len(row.parts), 'task')}"
        parts += f", {count_text(found.part_rows or 0, 'row')}"
        if found.first_part:
            parts += f": txn show {quote_name(found.first_part)} shows the first"
    mutated = {change.key for change in found.changes}
    others = (key_text(key) for key in found.held if key not in mutated)  # which it only asserts
    locks = f"{len(found.held)} of {found.locked}"
    if found.keys_read < len(request.keys):
        locks += f", of the first {found.keys_read:,} that were looked at"
    asserted = zip(request.assertions, found.verdicts, strict=True)
    facts = [
        ("transaction", escape(row.row_key)),
        ("status", f"{status}, as its transaction has it" if row.follows else status),
        ("part of", "" if whole is None else escape(whole)),
        ("parts", parts),
        ("created", f"{time_text(created_ms(row.row_key))} by its owner's clock"),
        ("owner", row.owner),
        ("labels", labels_text(request.labels)),
        ("once", once),
        ("lock TTL", duration_text(row.buffer.lock_ttl_ms) if row.buffer else ""),
        ("last heartbeat", time_text(row.heartbeat) if row.heartbeat else ""),
        ("committed at", f"{committed} ({time_text(committed)})" if committed else ""),
        ("aborted because", row.reason or ""),
        ("does not decode", error_text(row.cause or "")),
        *(("asserts", f"{assertion_text(each)}  [{verdict.value}]") for each, verdict in asserted),
        ("validates", "what it read, before it is decided" if row.validates else ""),
        ("locks held now", ", ".join([locks, *others])),
        ("fsck", found.advice),
    ]
    return [(name, text) for name, text in facts if text]


def _marker_text(marker: Marker) -> str:
    ms, digest = marker.retention_ms, escape(marker.digest or b"")
    kept = f"kept for {'ever' if ms is None else duration_text(ms)}"
    return kept + f", digest {digest}" * bool(digest) + ", with an answer" * bool(marker.answer)


def explanation_document(found: Explanation) -> Document:
    row, request, whole = found.row, found.request, found.whole
    marker = found.marker or Marker(b"")
    return {
        "transaction": escape(row.row_key),
        "state": row.state.value,
        "status": str(row.status) if row.status else None,
        "created": created_ms(row.row_key),
        "statuses": [
            {"status": str(each.status), "since": each.since, "after_ms": each.after_ms}
            for each in found.statuses
        ],
        "owner": row.owner or None,
        "labels": dict(request.labels),
        "once": None if request.once is None else escape(request.once),
        "once_retention_ms": marker.retention_ms,
        "once_digest": marker.digest and escape(marker.digest),
        "has_answer": marker.answer is not None,
        "lock_ttl_ms": row.buffer.lock_ttl_ms if row.buffer else None,
        "heartbeat": row.heartbeat or None,
        "timestamp": row.plan.timestamp if row.plan else None,
        "mutations": [
            {
                "key": key_text(change.key),
                "new": None if change.new is None else escape(change.new),
                "delete": change.new is None,
                "old": escape(change.old.value) if change.old else None,
                "old_timestamp": change.old.timestamp if change.old else None,
                "old_unseen": change.unseen.value if change.unseen else None,
                "replaced": change.replaced,
                "held": change.held,
            }
            for change in found.changes
        ],
        "assertions": [assertion_text(assertion) for assertion in request.assertions],
        "verdicts": [verdict.value for verdict in found.verdicts],
        "keys": len(request.keys),
        "keys_read": found.keys_read,
        "locks_held": [key_text(key) for key in found.held],
        "validates": row.validates,
        "reason": row.reason,
        "corrupt": row.cause,
        "part_of": None if whole is None else escape(whole),
        "parts": None if row.parts is None else list(row.parts),
        "part_rows": found.part_rows,
        "first_part": None if found.first_part is None else escape(found.first_part),
        "fsck": found.advice,
    }


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
            document, result = _purge_token(context, unescape(once), yes)
        else:
            document, result = _purge_row(context, str(transaction), unfinished, yes)
    if as_json:
        common.print_json(document | result_document(result))
    elif isinstance(result, Repaired):
        typer.echo(f"deleted  {document.get('once') or document['transaction']}")
    else:
        common.complain(result.why)
    if not isinstance(result, Repaired):
        raise typer.Exit(common.FOUND)


def _purge_row(context: Context, part: str, unfinished: bool, yes: bool) -> tuple[Document, Result]:
    row_key = common.find_row_key(context, part)
    seen = whole_row(context, row_key)
    if seen is None:
        raise InvalidRequestError("the row has just gone", transaction=row_key)
    row = find_transaction(context, row_key) or decode_row(seen)
    state, status = row.state, str(row.status) if row.status else "no status"
    if unfinished or state not in UNFINISHED:
        is_recent = context.clock.wall_ms() - row.newest < LONGEST_REQUEST_MS
        stopped = f"{RECENT} {duration_text(LONGEST_REQUEST_MS)}. " if is_recent else ""
        statement = f"{escape(row_key)} is at {status}. {stopped}Lost with it: {LOST[state]}"
        common.confirm(statement, "Delete it?", yes)
    document = {"transaction": escape(row_key), "state": state.value, "lost": LOST[state]}
    return document, purge_row(context, seen, unfinished=unfinished)


def _purge_token(context: Context, token: bytes, yes: bool) -> tuple[Document, Result]:
    cell = find_marker(context, token).value
    assert cell is not None
    try:
        marker = decode_marker(cell.value)
    except CorruptRowError:  # a person may delete it all the same
        marker = Marker(cell.value)
    document = {
        "once": escape(token),
        "transaction": escape(marker.transaction),
        "timestamp": cell.timestamp,
        "retention_ms": marker.retention_ms,
        "digest": marker.digest and escape(marker.digest),
        "has_answer": marker.answer is not None,
        "lost": "that it was committed: a request with this token commits again",
    }
    when = f"was committed at {time_text(cell.timestamp)} by {document['transaction']}"
    when += f", {_marker_text(marker)}"
    statement = f"{document['once']} {when}. Lost with it: {document['lost']}"
    common.confirm(statement, "Delete it?", yes)
    return document, purge_token(context, token)
