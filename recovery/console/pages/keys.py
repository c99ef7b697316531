"""A key: its value, what guards it, and the last transactions that named it; and a table's keys."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from recovery.console.keys import list_table_keys, look_at_key
from recovery.console.rendering import link_to, respond
from txn.errors import InvalidRequestError, TableUnavailable
from txn.text import parse_key, unescape


def show_key(request: Request) -> Response:
    """One key, or the keys of a table from a row on; else the form that asks for either."""
    console = request.app.state.console
    text = request.query_params.get("key", "").strip()
    table = request.query_params.get("table", "").strip()
    start = request.query_params.get("start", "").strip()
    facts: dict[str, Any] = {
        "given": text,
        "table": table,
        "start": start,
        "look": None,
        "page": None,
    }
    facts |= {"wrong": None, "further": None}
    try:
        if text:
            look = look_at_key(console.context, parse_key(text), console.limits)
            rows = look.transactions.rows
            writers = {row.plan.timestamp: row.row_key for row in rows if row.plan}
            facts |= {"look": look, "writers": writers}
        elif table:
            name = unescape(table)
            page = list_table_keys(console.context, name, unescape(start), console.limits)
            further = link_to("/key", table=name, start=page.next) if page.next else None
            facts |= {"page": page, "further": further}
    except (InvalidRequestError, TableUnavailable) as error:
        facts["wrong"] = str(error)
    return respond("key.html", request, facts, 400 if facts["wrong"] else 200)
