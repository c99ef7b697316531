"""Pages from templates, and the fields of forms. Everything is escaped twice: bytes as text that a
person can type, and all text as HTML."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from markupsafe import escape as escape_html
from starlette.requests import Request
from starlette.responses import HTMLResponse

import txn
from recovery.console.auth import get_return_address
from recovery.findings import Finding, Severity, judge
from recovery.text import count_text, duration_text, labels_text, time_text
from txn.errors import InvalidRequestError
from txn.metrics import SECONDS
from txn.protocol.row import RowState, TransactionRow, created_ms
from txn.text import assertion_text, escape, key_text, shorten, show_text, unescape

Facts = dict[str, Any]
PAGES = (
    ("/", "Overview"),
    ("/transactions", "Transactions"),
    ("/key", "Keys"),
    ("/locks", "Locks"),
    ("/leases", "Leases"),
    ("/fsck", "fsck"),
    ("/doctor", "Doctor"),
)
"""The pages in the navigation."""

ID_LETTERS = 12
MOST_TABLES = 100
MOST_LETTERS = 32  # a longer key is shown with an ellipsis
TIMES = ("since", "heartbeat", "newest", "timestamp", "version", "below", "until")

_TAG = re.compile(r"<(tr|td|th)\b")  # text is escaped, so it has no tags

ENVIRONMENT = Environment(
    loader=PackageLoader("recovery.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda found: show_text(found) if type(found) is str else found,
)


def link_to(path: str, **given: str | bytes | None) -> str:
    """Return the address of a page; bytes are as a person may type them, None is left out."""
    texts = {
        name: escape(each) if isinstance(each, bytes) else each
        for name, each in given.items()
        if each is not None
    }
    return f"{path}?{urlencode(texts)}" if texts else path


def name_transaction(row_key: bytes) -> str:
    """Return a short name that still finds the transaction: the start of the random digits in its
    row key, and the suffix of a part."""
    uid, _, part = escape(row_key).rpartition("transaction.")[2].partition(".")[2].partition(".")
    return uid[:ID_LETTERS] + (f"….{part}" if part else "")


def name_number(number: float, *, is_least: bool = False) -> str:
    """Return a number; a lower bound is marked as such."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"
    return f"at least {text}" if is_least else text


def facts_text(finding: Finding) -> Markup:
    holder = {"holder": finding.transaction} if finding.key and finding.transaction else {}
    facts = {**holder, **finding.facts}
    return Markup(", ").join(
        Markup("{} {}").format(name.removesuffix("_ms"), _fact_text(name, fact))
        for name, fact in facts.items()
        if fact or name not in TIMES
    )


def _fact_text(name: str, fact: object) -> str:
    match fact:
        case bytes():
            return shorten(fact)
        case int() if name in TIMES:
            return time_tag(fact, precise=True)
        case int() if name.endswith("_ms"):
            return duration_text(fact)
        case _:
            return escape(str(fact).encode(errors="replace"))


def time_tag(timestamp_ms: int, *, precise: bool = False) -> str:
    """Return a time element in UTC, which the page's script shows as the visitor wants it."""
    text = time_text(timestamp_ms)
    if not text.endswith("Z"):
        return text
    shown = text if precise else text[:19]
    exact = Markup(" data-precise") if precise else ""
    tag = Markup('<time datetime="{}" title="{}"{}>{}</time>')
    return tag.format(text.replace(" ", "T"), text, exact, shown)


def label_cells(rows: str, headings: Sequence[str]) -> Markup:
    """Give each cell the heading of its column, which a narrow screen shows beside it, and the
    roles of a table, which are lost where its layout is another."""
    names = [escape_html(each.removeprefix("#")) for each in headings]
    columns = iter(names)

    def label(tag: re.Match[str]) -> str:
        nonlocal columns
        if tag[1] == "tr":
            columns = iter(names)
            return '<tr role="row"'
        role = "cell" if tag[1] == "td" else "rowheader"
        return f'<{tag[1]} role="{role}" data-label="{next(columns)}"'

    return Markup(_TAG.sub(label, rows) if names else rows)


def latency_text(duration_ms: float) -> str:
    """Return a duration, of which stored times have whole milliseconds, and histograms a part of
    one and no more than their last bound."""
    if math.isinf(duration_ms):
        return f"over {duration_text(round(1000 * SECONDS[-1]))}"
    if duration_ms < 10:
        return f"{duration_ms:.1f} ms" if duration_ms else "under 1 ms"
    return duration_text(round(duration_ms))


def list_remarks(row: TransactionRow) -> list[str]:
    """Return the labels of a transaction, and why it was aborted or cannot be read."""
    labels = labels_text(row.buffer.request.labels) if row.buffer else ""
    return [*filter(None, [labels, row.reason, row.cause])]


def find_attention(row: TransactionRow, now_ms: int) -> str:
    """Return why an operator should look at a transaction, "" if nothing is wrong: it was "left" by
    a dead client, or is "unreadable". A part is what its transaction is."""
    finding = None if row.follows else judge(row, now_ms)
    if finding is not None and finding.kind.severity is Severity.REPAIRABLE:
        return "left"
    return "unreadable" if row.state is RowState.UNREADABLE else ""


ENVIRONMENT.filters |= {
    "latency": latency_text,
    "facts": facts_text,
    "begun": created_ms,
    "bytes": escape,
    "short": shorten,
    "id": name_transaction,
    "key": key_text,
    "assertion": assertion_text,
    "labels": labels_text,
    "time": time_tag,
    "label_cells": label_cells,
    "attention": find_attention,
    "remarks": list_remarks,
    "iso": lambda timestamp_ms: time_text(timestamp_ms).replace(" ", "T"),
    "clock": lambda timestamp_ms: time_text(timestamp_ms)[11:16],
    "duration": duration_text,
}
ENVIRONMENT.globals |= {
    "pages": PAGES,
    "version": txn.__version__,
    "count": count_text,
    "number": name_number,
    "most_letters": MOST_LETTERS,
    "link_to": link_to,
    "link_to_key": lambda key: link_to("/key", key=key_text(key)),
}


def render(template: str, request: Request, facts: Facts) -> str:
    console = request.app.state.console
    common = {
        "path": request.scope["path"],
        "back": get_return_address(request),
        "store": console.settings.store_name,
        "is_known": request.state.is_known,
        "now": console.context.clock.wall_ms(),
        "left": console.background.owners.left,
    }
    return ENVIRONMENT.get_template(template).render({**common, **facts})


def respond(template: str, request: Request, facts: Facts, status: int = 200) -> HTMLResponse:
    return HTMLResponse(render(template, request, facts), status)


def parse_tables(text: str) -> tuple[bytes, ...]:
    tables = tuple(dict.fromkeys(map(unescape, text.replace(",", " ").split())))
    if len(tables) > MOST_TABLES:
        raise InvalidRequestError("too many tables", given=len(tables), limit=MOST_TABLES)
    return tables


def parse_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequestError("not a number", given=text[:40])
    return int(text)
