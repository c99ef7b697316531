"""Who holds Hive's locks, and who waits for whom."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from recovery.console.claims import MOST_SHOWN
from recovery.console.rendering import render, respond
from txn.stores.options import hide_login


def show_locks_page(request: Request) -> Response:
    """The page."""
    manager = request.app.state.console.settings.locks
    name = None if manager is None else hide_login(manager.partition("?")[0])
    return respond("locks.html", request, {"part": render_locks(request), "manager": name})


def render_locks(request: Request) -> str:
    """The part of it that stays up to date."""
    tree = request.app.state.console.locks.see()
    return render("locks_part.html", request, {"tree": tree, "most": MOST_SHOWN})
