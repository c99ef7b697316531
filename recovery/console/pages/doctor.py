"""What the doctor says: it writes to the store, so a visit is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from recovery.console.pages.fields import parse_tables
from recovery.console.rendering import respond


def show_doctor(request: Request) -> Response:
    """The page, with what was said last."""
    visit = request.app.state.console.examination
    return respond("doctor.html", request, {"diagnoses": visit.diagnoses, "at_ms": visit.at_ms})


def run_doctor(request: Request, form: Mapping[str, str]) -> Response:
    """Examine the store and some tables."""
    tables = parse_tables(form.get("tables", ""))
    request.app.state.console.examination.run(tables)
    return RedirectResponse("/doctor", 303)
