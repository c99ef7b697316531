"""The web application: routes and error pages."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from recovery.console import fsck, overview, views
from recovery.console.auth import (
    LOGIN,
    SESSION_S,
    AccessGate,
    LoginSessions,
    check_return_address,
    is_encrypted,
)
from recovery.console.jobs import JobUnderWayError
from recovery.console.rendering import respond
from recovery.console.state import Console
from txn.errors import InvalidRequestError, TxnError
from txn.metrics import render_metrics

LOG = logging.getLogger("txn.console")

Page = Callable[[Request], Response]
Action = Callable[[Request, Mapping[str, str]], Response]
Part = Callable[[Request], str]
Endpoint = Callable[[Request], Awaitable[Response]]

PAGES: Mapping[str, Page] = {
    "/": overview.show_overview,
    "/transactions": views.show_transactions,
    "/key": views.show_key,
    "/transaction": views.show_transaction,
    "/locks": views.show_locks,
    "/leases": views.show_leases,
    "/fsck": fsck.show_fsck,
    "/fsck/repair": fsck.show_confirmation,
    "/doctor": views.show_doctor,
}
ACTIONS: Mapping[str, Action] = {
    "/fsck": fsck.start_check,
    "/fsck/cancel": fsck.cancel_job,
    "/fsck/repair": fsck.start_repair,
    "/doctor": views.run_doctor,
}
PARTS: Mapping[str, Part] = {
    "overview": overview.render_overview,
    "transactions": views.render_transactions,
    "locks": views.render_locks,
    "leases": views.render_leases,
    "fsck": fsck.render_fsck,
}
"""Parts of pages that stay up to date: the page's own HTML, sent again when it changes."""

EVERY_MS = 2_000
LINE_BREAK = re.compile(r"\r\n|\r|\n")
LONGEST_FORM = 65_536
FORM_S = 10.0
"""The time (s) in which a form must arrive."""


def make_app(console: Console) -> AccessGate:
    sessions = LoginSessions(console.settings)

    async def show_login(request: Request) -> Response:
        back = check_return_address(request.query_params.get("next", "/"))
        if request.method != "POST":
            return respond("login.html", request, {"back": back, "is_wrong": False})
        form = await read_form(request)
        session = await sessions.begin(form.get("token", ""))
        back = check_return_address(form.get("next", "/"))
        if session is None:
            return respond("login.html", request, {"back": back, "is_wrong": True}, 403)
        answer = RedirectResponse(back, 303)
        answer.set_cookie(
            sessions.cookie,
            session,
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=is_encrypted(request),
        )
        return answer

    async def log_out(request: Request) -> Response:
        sessions.end(request)
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(sessions.cookie)
        return answer

    def show_metrics(request: Request) -> Response:
        console.background.visit()
        body, kind = render_metrics(console.registry)
        return Response(body, media_type=kind)

    app = Starlette(
        routes=[
            *(Route(path, _visit(page), methods=["GET"]) for path, page in PAGES.items()),
            *(Route(path, _act(action), methods=["POST"]) for path, action in ACTIONS.items()),
            Route("/metrics", show_metrics, methods=["GET"]),
            Route("/live/{part}", send_part, methods=["GET"]),
            Route(LOGIN, show_login, methods=["GET", "POST"]),
            Route("/logout", log_out, methods=["POST"]),
            Mount("/static", StaticFiles(directory=str(files("recovery.console") / "static"))),
        ],
        exception_handlers={
            InvalidRequestError: _show_error,
            TxnError: _show_error,
            HTTPException: _show_error,
            Exception: _show_fault,
        },
    )
    app.state.console = console
    return AccessGate(app, console.settings, sessions)


async def read_form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form, each once; InvalidRequestError if it is too long or late."""
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > LONGEST_FORM:
                    raise InvalidRequestError("the form is too long", limit=LONGEST_FORM)
    except TimeoutError:
        words = "nothing was done: the form did not come"
        raise InvalidRequestError(words, limit_s=FORM_S) from None
    fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}


async def send_part(request: Request) -> Response:
    """Return a part of a page, unless the browser has it already.

    The response is short: one server-sent event, with the delay after which the browser asks again.
    So open pages hold no connection (a browser has six), and each request is authorized anew.
    """
    part = PARTS.get(request.path_params["part"])
    if part is None:
        return PlainTextResponse("there is no such part\n", 404)
    event = await run_in_threadpool(_make_event, part, request)
    return Response(event, media_type="text/event-stream")


def _make_event(part: Part, request: Request) -> str:
    try:
        now = part(request)
    except TxnError as error:
        return _write_event("trouble", str(error))
    mark = blake2b(now.encode(), digest_size=16).hexdigest()
    if request.headers.get("last-event-id") == mark:
        return _write_event("same", "as it was")
    return _write_event("part", now, f"id: {mark}")


def _write_event(name: str, text: str, *more: str) -> str:
    """Return an event as in the HTML standard: a data line for each line, however broken."""
    data = (f"data: {line}" for line in LINE_BREAK.split(text))
    return "\n".join([f"event: {name}", f"retry: {EVERY_MS}", *more, *data, "", ""])


def _visit(page: Page) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        request.app.state.console.background.visit()
        return await run_in_threadpool(page, request)

    return endpoint


def _act(action: Action) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        form = await read_form(request)
        host = request.client.host if request.client else "nowhere"
        LOG.warning("%s is asked for from %s", request.scope["path"], host)
        return await run_in_threadpool(action, request, form)

    return endpoint


def _show_error(request: Request, error: Exception) -> Response:
    match error:
        case HTTPException():
            status, words = error.status_code, str(error.detail)
        case InvalidRequestError():
            status, words = 400, str(error)
        case JobUnderWayError():
            status, words = 409, str(error)
        case _:
            status, words = 503, str(error)
    title = HTTPStatus(status).phrase
    return respond("error.html", request, {"title": title, "words": words}, status)


def _show_fault(request: Request, error: Exception) -> Response:
    LOG.error("a page failed: %s", request.scope["path"], exc_info=error)
    words = "this page failed; the log of the console says why"
    return respond("error.html", request, {"title": "Internal Server Error", "words": words}, 500)
