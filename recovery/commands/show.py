"""`txn show`: one transaction, explained to a person."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    JsonOption,
    StoreOption,
    TransactionsOption,
    console,
    find_row_key,
    print_json,
)
from recovery.documents import explanation_document
from recovery.inspect import Explanation, ValueChange, explain
from recovery.opening import open_store_of
from recovery.text import count_text, duration_text, error_text, labels_text, time_text
from txn.errors import InvalidRequestError
from txn.protocol.row import RowState
from txn.text import assertion_text, escape, key_text, shorten


def show(
    transaction: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="What `txn ls` prints: a row key, or the end of it, or its first random digits.",
        ),
    ],
    store: StoreOption,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """Explain one transaction: its statuses, keys and values, its locks, and what fsck would do.

    Example: txn show 7dd8fcaf
    """
    with open_store_of(store, transactions) as context:
        row_key = find_row_key(context, transaction)
        found = explain(context, row_key)
        if found is None:
            raise InvalidRequestError("the row has just gone", transaction=row_key)
        if as_json:
            print_json(explanation_document(found), pretty=True)
        else:
            print_explanation(console(), found)


def print_explanation(out: Console, found: Explanation) -> None:
    """Print what `explain` found out about a transaction, as `txn show` does."""
    facts = Table.grid(padding=(0, 2))
    for name, text in _facts(found):
        facts.add_row(Text(name, "bold"), Text(text, overflow="fold"))
    out.print(facts)
    if found.statuses:
        statuses = Table("status", "since", "after", title="statuses", title_justify="left")
        for each in found.statuses:
            after = "" if each.after_ms is None else duration_text(each.after_ms)
            statuses.add_row(str(each.status), time_text(each.since), after)
        out.print(statuses)
    if found.changes:
        changes = Table("key", "old", "new", "lock", title="mutations", title_justify="left")
        undecided = found.state is RowState.UNDECIDED
        for change in found.changes:
            held = "held" if change.held else ""
            row = (key_text(change.key), _old(change, undecided), _new(change), held)
            changes.add_row(*(Text(cell, overflow="fold") for cell in row))
        out.print(changes)


def _facts(found: Explanation) -> list[tuple[str, str]]:
    facts = [
        ("transaction", escape(found.row_key)),
        ("status", _status(found)),
        ("part of", "" if found.whole is None else escape(found.whole)),
        ("parts", _parts(found)),
        ("created", f"{time_text(found.created)} by its owner's clock"),
        ("labels", labels_text(found.labels)),
        ("once", "" if found.once is None else _once(found.once, found.once_retention_ms)),
        ("lease", "" if found.lock_ttl_ms is None else duration_text(found.lock_ttl_ms)),
        ("last beat", "" if found.heartbeat is None else time_text(found.heartbeat)),
        ("committed at", "" if found.timestamp is None else _timestamp(found.timestamp)),
        ("aborted because", found.reason or ""),
        ("does not decode", error_text(found.corrupt or "")),
        *(
            ("asserts", f"{assertion_text(assertion)}  [{verdict.value}]")
            for assertion, verdict in zip(found.assertions, found.verdicts, strict=True)
        ),
        ("ranges", "looked at again before it is decided" if found.has_ranges else ""),
        ("locks held now", _locks(found)),
        ("fsck", found.advice),
    ]
    return [(name, text) for name, text in facts if text]


def _status(found: Explanation) -> str:
    status = str(found.status) if found.status else "none"
    return f"{status}, as its transaction has it" if found.follows else status


def _parts(found: Explanation) -> str:
    if found.parts is None:
        return ""
    total, tasks = sum(found.parts), count_text(len(found.parts), "task")
    counted = f"{total:,} of {tasks}" if found.parts else "not counted before the decision"
    one = f": txn show {escape(found.first_part)} shows the first" if found.first_part else ""
    return f"{counted}, {count_text(found.part_rows or 0, 'row')}{one}"


def _once(token: bytes, retention_ms: int | None) -> str:
    promised = "" if retention_ms is None else f", kept for {duration_text(retention_ms)}"
    return escape(token) + promised


def _locks(found: Explanation) -> str:
    """How many keys it has locked; those that it only asserts by name, the others stand below."""
    mutated = {change.key for change in found.changes}
    others = [key_text(key) for key in found.held if key not in mutated]
    of = f"{len(found.held)} of {len(found.keys)}"
    if found.keys_read < len(found.keys):
        of += f", of the first {found.keys_read:,} that were looked at"
    return ", ".join([of, *others])


def _timestamp(timestamp: int) -> str:
    return f"{timestamp} ({time_text(timestamp)})"


def _old(change: ValueChange, undecided: bool) -> str:
    if change.old is not None:
        return shorten(change.old.value)
    if change.unseen is not None:
        version = f"version {change.replaced}, " if change.replaced else ""
        return version + change.unseen.value
    return "none" if change.replaced == 0 or undecided else ""


def _new(change: ValueChange) -> str:
    return "deleted" if change.new is None else shorten(change.new)
