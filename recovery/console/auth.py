"""Who may look and who may write, asked before any page is.

Looking needs nothing where the console listens on the loopback and was asked for there, by a name
of the loopback and through no proxy: a page elsewhere that points its name at this machine fails
the second. All else needs the token: shown once in a form, and remembered by a cookie that other
sites cannot send, or with each request as `Authorization: Bearer`. Nothing is written by a GET, and
a POST that a browser sends must come from a page of ours.

What is asked for is `scope["path"]`, by which it is routed. `request.url` is no place to look for
it: that has the header `Host` in it, and so whatever a visitor likes.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recovery.console.settings import ConsoleSettings, is_loopback

LOGIN = "/login"
STATIC = "/static/"
LOOKS_BY_POST = frozenset({"/fsck", "/fsck/cancel", "/logout"})
"""What is asked for by POST since it takes work, and yet writes nothing."""

SESSION_S = 12 * 3600
MOST_SESSIONS = 1_000
PAUSE_S = 0.5
FOREIGN = "nothing was done: no page of this console sent it, and it does not show the token\n"
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with "no-referrer" a form of ours is not told from others
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Logins:
    """Who has shown the token. They are kept in memory: a restart ends them."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._token = settings.token
        self._ends: dict[str, float] = {}
        self._guess = asyncio.Lock()
        self.cookie = f"txn-console-{settings.port}"  # cookies do not tell ports apart

    def knows(self, request: Request) -> bool:
        """Whether a request shows the token, or the cookie of somebody who did."""
        session = request.cookies.get(self.cookie, "")
        return self.is_shown(request) or self._ends.get(session, 0) > time.monotonic()

    def is_shown(self, request: Request) -> bool:
        """Whether a request shows the token itself, as no browser does by itself."""
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._matches(shown.strip())

    async def begin(self, shown: str) -> str | None:
        """Return a new session for who shows the token. Guesses are taken one by one, with a pause
        after each that is wrong."""
        async with self._guess:
            if not self._matches(shown.strip()):
                await asyncio.sleep(PAUSE_S)
                return None
        now = time.monotonic()
        self._ends = {name: end for name, end in self._ends.items() if end > now}
        while len(self._ends) >= MOST_SESSIONS:
            del self._ends[next(iter(self._ends))]
        session = secrets.token_urlsafe(32)
        self._ends[session] = now + SESSION_S
        return session

    def end(self, request: Request) -> None:
        """Forget the session of a request."""
        self._ends.pop(request.cookies.get(self.cookie, ""), None)

    def _matches(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token.encode())


class AccessGate:
    """Lets a request through to the pages, or says what is missing; adds the headers of all. It
    stands before the whole application, so that answers about its faults have them, too."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings, sessions: Logins) -> None:
        self._app = app
        self._settings = settings
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        request = Request(scope)
        request.state.is_known = self._sessions.knows(request)
        answer = self._refuse(request)
        await (answer or self._app)(scope, receive, send_guarded)

    def _refuse(self, request: Request) -> Response | None:
        """Return what is answered instead of the page; None: the page may be had."""
        path, is_look = request.scope["path"], request.method in ("GET", "HEAD")
        if not is_look and not self._comes_from_here(request):
            return PlainTextResponse(FOREIGN, 403)
        if path == LOGIN or path.startswith(STATIC) or request.state.is_known:
            return None
        if (is_look or path in LOOKS_BY_POST) and self._is_here(request):
            return None
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(f"{LOGIN}?next={quote(name_way_back(request), safe='')}", 303)
        refusal = "nothing was done: show the token as Authorization: Bearer\n"
        return PlainTextResponse(refusal, 401, {"WWW-Authenticate": "Bearer"})

    def _is_here(self, request: Request) -> bool:
        try:
            name = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        except ValueError:  # as for `[`
            return False
        is_direct = not any(name in request.headers for name in FORWARDED)
        return self._settings.is_local and is_direct and is_loopback(name)

    def _comes_from_here(self, request: Request) -> bool:
        """Browsers tell where a form was. What is no browser shows the token itself."""
        if self._sessions.is_shown(request):
            return True
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site == "same-origin"
        _, _, host = _origin(request).partition("://")
        return host != "" and host == request.headers.get("host")


def name_way_back(request: Request) -> str:
    """Return where a visitor comes back to after the login: the same look, or the first page."""
    if request.method not in ("GET", "HEAD"):
        return "/"
    asked = request.scope["query_string"].decode("latin-1")
    return quote(request.scope["path"]) + (f"?{asked}" if asked else "")


def is_encrypted(request: Request) -> bool:
    """Return whether the browser of a form speaks TLS, with us or with a proxy before us."""
    return request.scope["scheme"] == "https" or _origin(request).startswith("https://")


def find_way_back(given: str) -> str:
    """Return where a visitor goes after the login: a page of ours, whatever is given."""
    try:
        parts = urlsplit(given)
    except ValueError:  # as for `//[`
        return "/"
    is_ours = given.startswith("/") and not given.startswith(("//", "/\\"))
    return given if is_ours and not (parts.scheme or parts.netloc) else "/"


def _origin(request: Request) -> str:
    """Return the site that a form was on, as its browser says; nothing where it says none."""
    return request.headers.get("origin", "")
