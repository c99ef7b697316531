"""Who has leased what, and for how long yet."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from recovery.console.claims import MOST_SHOWN
from recovery.console.rendering import render, respond


def show_leases_page(request: Request) -> Response:
    """The page."""
    return respond("leases.html", request, {"part": render_leases(request)})


def render_leases(request: Request) -> str:
    """The part of it that stays up to date."""
    seen = request.app.state.console.leases.see()
    return render("leases_part.html", request, {"seen": seen, "most": MOST_SHOWN})
