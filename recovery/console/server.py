"""The HTTP server of the console: its pages, their errors, and the limits of its connections."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from http import HTTPStatus
from importlib.resources import files
from mimetypes import guess_type
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from recovery.console import auth, pages
from recovery.console.downloads import Write, stream_csv, stream_json
from recovery.console.jobs import JobUnderWayError
from recovery.console.pages import Facts, Form
from recovery.console.rendering import render, respond
from recovery.console.settings import ConsoleSettings
from recovery.console.state import Console, open_console
from txn.errors import InvalidRequestError, TxnError
from txn.metrics import render_metrics
from txn.server.options import listen

LOG = logging.getLogger("txn.console")

Show = Callable[[Request], Facts]
Act = Callable[[Request, Form], str | None]

PAGES: Mapping[str, tuple[str, Show]] = {
    "/": ("overview.html", pages.show_overview),
    "/transactions": ("transactions.html", pages.show_search),
    "/key": ("key.html", pages.show_key),
    "/transaction": ("transaction.html", pages.show_transaction),
    "/locks": ("locks.html", pages.show_locks),
    "/leases": ("leases.html", pages.show_leases),
    "/fsck": ("fsck.html", pages.show_fsck),
    "/fsck/repair": ("fsck_repair.html", pages.show_repair),
    "/doctor": ("doctor.html", pages.show_doctor),
}
"""The template of each page, and the function that finds its facts."""

ACTIONS: Mapping[str, tuple[Act, str]] = {
    "/fsck": (pages.start_check, "/fsck"),
    "/fsck/cancel": (pages.cancel_job, "/fsck"),
    "/fsck/repair": (pages.start_repair, "/fsck"),
    "/doctor": (pages.run_doctor, "/doctor"),
}
"""The work of each form, and the page that follows unless the work returns another."""

DOWNLOADS: Mapping[str, tuple[Write, str]] = {
    "csv": (stream_csv, "text/csv"),
    "json": (stream_json, "application/json"),
}

PARTS: Mapping[str, Show] = {
    "left": lambda request: {},  # it is a fact of every page
    "overview": pages.show_overview,
    "transactions": pages.continue_search,
    "locks": pages.show_locks,
    "leases": pages.show_leases,
    "fsck": pages.show_fsck,
}
"""Parts of pages that stay up to date: the page's own HTML, sent again when it changes."""

EVERY_MS = 2_000  # from an update of a part to the next, unless the fact `again_ms` says otherwise
FILES = {each.name: each.read_bytes() for each in (files("recovery.console") / "static").iterdir()}

LINE_BREAK = re.compile(r"\r\n|\r|\n")
LONGEST_FORM = 65_536
FORM_S = 10.0  # the time (s) in which a form must arrive
ENDS_FOR = (signal.SIGINT, signal.SIGTERM)
GRACE_S = 5
MOST_AT_ONCE = 100
REQUEST_S = 10.0  # how long (s) a connection may take for the whole head of its next request


def make_app(console: Console) -> auth.AccessGate:
    sessions = auth.LoginSessions(console.settings)

    async def show_login(request: Request) -> Response:
        back = auth.check_return_address(request.query_params.get("next", "/"))
        if request.method != "POST":
            return respond("login.html", request, {"back": back, "is_wrong": False})
        form = await read_form(request)
        session = await sessions.begin(form.get("token", ""), auth.find_client(request))
        back = auth.check_return_address(form.get("next", "/"))
        if session is None:
            return respond("login.html", request, {"back": back, "is_wrong": True}, 403)
        answer = RedirectResponse(back, 303)
        answer.set_cookie(
            sessions.cookie,
            session,
            max_age=auth.SESSION_S,
            httponly=True,
            samesite="strict",
            secure=auth.is_encrypted(request),
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

    def show_health(request: Request) -> Response:
        reason = console.find_trouble()
        return PlainTextResponse(f"{reason or 'ok'}\n", 503 if reason else 200)

    app = Starlette(
        routes=[
            *(Route(at, partial(_show, *page), methods=["GET"]) for at, page in PAGES.items()),
            *(Route(at, partial(_act, *each), methods=["POST"]) for at, each in ACTIONS.items()),
            *(Route(f"/transactions.{kind}", partial(_download, kind)) for kind in DOWNLOADS),
            Route("/metrics", show_metrics, methods=["GET"]),
            Route(auth.HEALTH, show_health, methods=["GET"]),
            Route("/live/{part}", send_part, methods=["GET"]),
            Route(auth.LOGIN, show_login, methods=["GET", "POST"]),
            Route("/logout", log_out, methods=["POST"]),
            Route("/static/{name}", send_file, methods=["GET"]),
        ],
        exception_handlers=dict.fromkeys((TxnError, HTTPException, Exception), _show_error),
    )
    app.state.console = console
    return auth.AccessGate(app, console.settings, sessions)


async def read_form(request: Request) -> Form:
    """Return the fields of a form; InvalidRequestError if it is too long or late."""
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > LONGEST_FORM:
                    raise InvalidRequestError("the form is too long", limit=LONGEST_FORM)
    except TimeoutError:
        words = "nothing was done: the form did not arrive in time"
        raise InvalidRequestError(words, limit_s=FORM_S) from None
    return QueryParams(body.decode(errors="replace"))


def send_file(request: Request) -> Response:
    if (name := request.path_params["name"]) not in FILES:
        raise HTTPException(404)
    return Response(FILES[name], media_type=guess_type(name)[0])


def send_part(request: Request) -> Response:
    """Return a part of a page, unless the browser has it already.

    The response is short: one server-sent event, with the delay after which the browser asks again.
    So open pages hold no connection (a browser has six), and each request is authorized anew.
    """
    name = request.path_params["part"]
    if name not in PARTS:
        return PlainTextResponse("no such part\n", 404)
    request.app.state.console.background.visit()
    try:
        facts = PARTS[name](request)
    except TxnError as error:
        return _make_event("trouble", str(error), EVERY_MS)
    now = render(f"{name}_part.html", request, facts)
    again_ms = facts.get("again_ms") or EVERY_MS
    mark = blake2b(now.encode(), digest_size=16).hexdigest()
    if request.headers.get("last-event-id") == mark:
        return _make_event("same", "as it was", again_ms)
    return _make_event("part", now, again_ms, f"id: {mark}")


def _make_event(name: str, text: str, again_ms: int, *more: str) -> Response:
    """Return an event as in the HTML standard: a data line for each line, however broken."""
    data = (f"data: {line}" for line in LINE_BREAK.split(text))
    lines = [f"event: {name}", f"retry: {again_ms}", *more, *data, "", ""]
    return Response("\n".join(lines), media_type="text/event-stream")


def _show(template: str, show: Show, request: Request) -> Response:
    request.app.state.console.background.visit()
    facts = show(request)
    return respond(template, request, facts, 400 if facts.get("wrong") else 200)


def _download(kind: str, request: Request) -> Response:
    write, media_type = DOWNLOADS[kind]
    headers = {"Content-Disposition": f'attachment; filename="transactions.{kind}"'}
    text = pages.download_search(request, write)
    return StreamingResponse(text, headers=headers, media_type=media_type)


async def _act(act: Act, following: str, request: Request) -> Response:
    form = await read_form(request)
    LOG.warning("%s requested from %s", request.scope["path"], auth.find_client(request))
    address = await run_in_threadpool(act, request, form)
    return RedirectResponse(address or following, 303)


def _show_error(request: Request, error: Exception) -> Response:
    status, words = 503, str(error)
    if isinstance(error, HTTPException):
        status, words = error.status_code, str(error.detail)
    elif isinstance(error, InvalidRequestError | JobUnderWayError):
        status = 400 if isinstance(error, InvalidRequestError) else 409
    elif not isinstance(error, TxnError):
        LOG.error("a page failed: %s", request.scope["path"], exc_info=error)
        status, words = 500, "this page failed: see the log of the console"
    title = HTTPStatus(status).phrase
    return respond("error.html", request, {"title": title, "words": words}, status)


class PromptProtocol(H11Protocol):
    """HTTP/1.1 that closes connections without a request. Otherwise uvicorn waits forever for the
    first request, and counts waiting connections towards `MOST_AT_ONCE`."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(REQUEST_S, self._close_if_idle)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class PromptServer(uvicorn.Server):
    """A server whose connections also have a limited time for the handshake of TLS, during which
    their protocol does not know them."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None:
            loop: Any = asyncio.get_running_loop()
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=REQUEST_S)
        await super().startup(sockets)


def serve_console(settings: ConsoleSettings, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `ready` gets the address once the console can answer."""
    on_signals(lambda: sys.exit(0))
    with listen(settings.bind, settings.port) as listening:
        settings = replace(settings, port=listening.getsockname()[1])
        with open_console(settings) as console:
            server = make_server(console)

            def end() -> None:
                server.should_exit = True

            # An exception is lost where Python ignores it, as in `__del__`. And uvicorn raises its
            # signals again at its end, when the store still has to be closed.
            on_signals(end)
            ready(settings.address)
            server.run(sockets=[listening])


def on_signals(end: Callable[[], None]) -> None:
    for each in ENDS_FOR:
        signal.signal(each, lambda *_: end())


def make_server(console: Console) -> uvicorn.Server:
    """Return the server of a console; InvalidRequestError if it cannot use its certificate."""
    settings = console.settings
    config = uvicorn.Config(
        make_app(console),
        http=PromptProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_AT_ONCE,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except OSError as error:  # no file name; SSL errors are OSErrors
        facts = {"cert": str(settings.tls_cert), "key": str(settings.tls_key), "cause": str(error)}
        raise InvalidRequestError("cannot use the certificate or its key", **facts) from error
    return PromptServer(config)
