"""The pages by their addresses: what is looked at by GET, done by POST, and kept up to date."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from recovery.console.live import Part
from recovery.console.pages import keys, overview, transactions

Look = Callable[[Request], Response]
Action = Callable[[Request, Mapping[str, str]], Response]
Endpoint = Callable[[Request], Awaitable[Response]]

LOOKS: Mapping[str, Look] = {
    "/": overview.show_overview,
    "/transactions": transactions.list_transactions,
    "/key": keys.show_key,
    "/transaction": transactions.show_transaction,
}
ACTIONS: Mapping[str, Action] = {}
PARTS: Mapping[str, Part] = {
    "overview": overview.render_overview,
}
