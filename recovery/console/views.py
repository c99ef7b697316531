"""The pages of transactions, keys, locks, leases and the doctor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from recovery.console.charts import draw_timeline
from recovery.console.keys import list_table_keys, read_key_details
from recovery.console.locks import MOST_SHOWN
from recovery.console.rendering import link_to, parse_tables, render, respond
from recovery.console.search import Search
from recovery.console.state import Console
from recovery.inspect import explain
from recovery.search import Query
from recovery.text import parse_duration
from txn.errors import InvalidRequestError, TableUnavailable
from txn.protocol.row import is_row_key
from txn.protocol.statuses import Status
from txn.stores.options import hide_login
from txn.text import parse_key, unescape

FIELDS = ("id", "key", "table", "status", "label", "older", "newer", "parts")
MOST_KEYS = 200
UNFINISHED, NO_STATUS = "unfinished", "none"
STATUSES = {
    UNFINISHED: frozenset(each for each in Status if not each.is_finished),
    **{str(each): frozenset({each}) for each in Status},
    NO_STATUS: frozenset({None}),
}


def show_transactions(request: Request) -> Response:
    """Show a search; without criteria, the newest transactions."""
    given = _read_fields(request)
    facts = {"given": given, "asked": _list_asked(given), "statuses": STATUSES}
    facts |= {"part": "", "live": None, "wrong": None}
    try:
        search = _find(request, again=True)
    except InvalidRequestError as error:
        return respond("transactions.html", request, facts | {"wrong": str(error)}, 400)
    if search.is_running:
        asked = _list_asked(given) | {"before": request.query_params.get("before")}
        facts["live"] = link_to("/live/transactions", **asked)
    facts["part"] = _render_search(request, search)
    return respond("transactions.html", request, facts)


def render_transactions(request: Request) -> str:
    return _render_search(request, _find(request, again=False))


def show_transaction(request: Request) -> Response:
    row_key = unescape(request.query_params.get("id", ""))
    if not is_row_key(row_key):
        raise InvalidRequestError("not a transaction's row key", given=row_key)
    console: Console = request.app.state.console
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


def show_key(request: Request) -> Response:
    """Show one key, or the keys of a table from a row on; else the form for either."""
    console: Console = request.app.state.console
    given = {name: request.query_params.get(name, "").strip() for name in ("key", "table", "start")}
    facts: dict[str, Any] = {
        "given": given["key"],
        "table": given["table"],
        "start": given["start"],
        **dict.fromkeys(("details", "page", "wrong", "further")),
    }
    try:
        if given["key"]:
            details = read_key_details(console.context, parse_key(given["key"]), console.limits)
            rows = details.transactions.rows
            writers = {row.plan.timestamp: row.row_key for row in rows if row.plan}
            facts |= {"details": details, "writers": writers}
        elif given["table"]:
            name, start = unescape(given["table"]), unescape(given["start"])
            page = list_table_keys(console.context, name, start, console.limits)
            further = link_to("/key", table=name, start=page.next) if page.next else None
            facts |= {"page": page, "further": further}
    except (InvalidRequestError, TableUnavailable) as error:
        facts["wrong"] = str(error)
    return respond("key.html", request, facts, 400 if facts["wrong"] else 200)


def show_locks(request: Request) -> Response:
    manager = request.app.state.console.settings.locks
    name = None if manager is None else hide_login(manager.partition("?")[0])
    return respond("locks.html", request, {"part": render_locks(request), "manager": name})


def render_locks(request: Request) -> str:
    tree = request.app.state.console.locks.read()
    return render("locks_part.html", request, {"tree": tree, "most": MOST_SHOWN})


def show_leases(request: Request) -> Response:
    return respond("leases.html", request, {"part": render_leases(request)})


def render_leases(request: Request) -> str:
    seen = request.app.state.console.leases.read()
    return render("leases_part.html", request, {"seen": seen, "most": MOST_SHOWN})


def show_doctor(request: Request) -> Response:
    """Show the last results of the doctor. It writes to the store, so a run must be asked for."""
    doctor = request.app.state.console.doctor
    return respond("doctor.html", request, {"diagnoses": doctor.diagnoses, "at_ms": doctor.at_ms})


def run_doctor(request: Request, form: Mapping[str, str]) -> Response:
    request.app.state.console.doctor.run(parse_tables(form.get("tables", "")))
    return RedirectResponse("/doctor", 303)


def _read_fields(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in FIELDS}


def _list_asked(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if value}


def _find(request: Request, *, again: bool) -> Search:
    given, before = _read_fields(request), request.query_params.get("before")
    if given["status"] and given["status"] not in STATUSES:
        raise InvalidRequestError("no such status", given=given["status"])
    query = Query(
        id_=unescape(given["id"]),
        key=parse_key(given["key"]) if given["key"] else None,
        table=unescape(given["table"]) or None,
        statuses=STATUSES.get(given["status"]),
        label=given["label"] or None,
        older_than_ms=parse_duration(given["older"]) if given["older"] else None,
        newer_than_ms=parse_duration(given["newer"]) if given["newer"] else None,
        with_parts=bool(given["parts"]),
    )
    console: Console = request.app.state.console
    return console.searches.find(query, None if before is None else unescape(before), again=again)


def _render_search(request: Request, search: Search) -> str:
    further = None
    if search.page.next is not None and not search.is_running:
        asked = _list_asked(_read_fields(request))
        further = link_to("/transactions", **asked, before=search.page.next)
    facts = {"search": search, "page": search.page, "further": further}
    return render("transactions_part.html", request, facts)
