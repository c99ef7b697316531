"""The overview."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from recovery.console.rendering import render, respond


def show_overview(request: Request) -> Response:
    """The page."""
    return respond("overview.html", request, {"part": render_overview(request)})


def render_overview(request: Request) -> str:
    """The part of it that stays up to date."""
    return render("overview_part.html", request, {})
