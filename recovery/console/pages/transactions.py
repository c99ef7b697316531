"""Transactions: the search, page by page from the newest; and one of them, explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from recovery.console.browsing import WantedTransactions, browse
from recovery.console.drawing import draw_timeline
from recovery.console.rendering import link_to, respond
from recovery.inspect import explain
from recovery.text import parse_duration
from txn.errors import InvalidRequestError
from txn.protocol.phases import Status
from txn.protocol.row import is_row_key
from txn.text import parse_key, unescape

FIELDS = ("id", "key", "table", "status", "label", "older", "newer", "parts")
MOST_KEYS = 200
UNFINISHED, NO_STATUS = "unfinished", "none"


def show_transactions(request: Request) -> Response:
    """The search; with nothing asked for, the newest."""
    given = {name: request.query_params.get(name, "").strip() for name in FIELDS}
    console = request.app.state.console
    page, wrong = None, None
    try:
        before = request.query_params.get("before")
        page = browse(
            console.context,
            read_wishes(given),
            None if before is None else unescape(before),
            console.limits,
        )
    except InvalidRequestError as error:
        wrong = str(error)
    asked = {name: value for name, value in given.items() if value}
    facts = {
        "given": given,
        "asked": asked,
        "statuses": [UNFINISHED, *map(str, Status), NO_STATUS],
        "page": page,
        "wrong": wrong,
        "further": None if page is None else _link_further(asked, page.next),
    }
    return respond("transactions.html", request, facts, 400 if wrong else 200)


def show_transaction(request: Request) -> Response:
    """One transaction: its phases, keys, locks and assertions, and what fsck would do."""
    row_key = unescape(request.query_params.get("id", ""))
    if not is_row_key(row_key):
        raise InvalidRequestError("not a transaction's row key", given=row_key)
    console = request.app.state.console
    limits = replace(console.limits, rows=MOST_KEYS)
    found = explain(console.context, row_key, limits=limits, most_parts=MOST_KEYS)
    if found is None:
        raise HTTPException(404, "there is no such transaction, or not any more")
    facts = {
        "found": found,
        "timeline": draw_timeline(found, console.context.clock.wall_ms()),
        "changes": found.changes[:MOST_KEYS],
        "assertions": list(zip(found.request.assertions, found.verdicts, strict=True))[:MOST_KEYS],
        "most": MOST_KEYS,
    }
    return respond("transaction.html", request, facts)


def read_wishes(given: Mapping[str, str]) -> WantedTransactions:
    """Return what the fields of the search mean; InvalidRequestError for what is none."""
    return WantedTransactions(
        id_=unescape(given["id"]),
        key=parse_key(given["key"]) if given["key"] else None,
        table=unescape(given["table"]) or None,
        statuses=_read_statuses(given["status"]),
        label=given["label"] or None,
        older_than_ms=parse_duration(given["older"]) if given["older"] else None,
        newer_than_ms=parse_duration(given["newer"]) if given["newer"] else None,
        with_parts=bool(given["parts"]),
    )


def _read_statuses(name: str) -> frozenset[Status | None] | None:
    if not name:
        return None
    if name == NO_STATUS:
        return frozenset({None})
    if name == UNFINISHED:
        return frozenset(each for each in Status if not each.is_finished)
    for status in Status:
        if str(status) == name:
            return frozenset({status})
    raise InvalidRequestError("no such status", given=name)


def _link_further(asked: Mapping[str, str], before: bytes | None) -> str | None:
    return None if before is None else link_to("/transactions", **asked, before=before)
