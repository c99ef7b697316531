"""Access: decide which requests may read or write, before any page is made.

`/healthz` needs no token. Reading needs none if the console listens on the loopback, and the
request names a loopback host and came through no proxy. The host is checked because a foreign page
can point its own name at this machine. Everything else needs the token. A form asks for it once and
a cookie, which other sites cannot send, remembers it; or each request sends it as `Authorization:
Bearer`. A GET writes nothing, and a POST from a browser must come from a page of the console.

The path of a request is `scope["path"]`, which also routes it. `request.url` contains the header
`Host`, and so any text that a visitor chooses.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recovery.console.settings import ConsoleSettings, is_loopback
from txn.host.tokens import PAUSE_MS, WrongTokens

LOG = logging.getLogger("txn.console")
LOGIN, HEALTH = "/login", "/healthz"
STATIC = "/static/"
READS_BY_POST = frozenset({"/fsck", "/fsck/cancel", "/logout"})
"""These are POST because they start work, but they write nothing."""

SESSION_S = 12 * 3600
MOST_SESSIONS = 1_000
PAUSE_S = PAUSE_MS / 1000
FOREIGN = "nothing was done: the request has no token and comes from outside this console\n"
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # "no-referrer" would make its own forms look foreign
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LoginSessions:
    """The sessions of visitors who have shown the token. A restart ends them."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.wrong = WrongTokens(LOG.warning)
        self._token = settings.token
        self._ends: dict[str, float] = {}
        self._guess = asyncio.Lock()
        self.cookie = f"txn-console-{settings.port}"  # cookies ignore ports

    def is_logged_in(self, request: Request) -> bool:
        session = request.cookies.get(self.cookie, "")
        return self.has_token(request) or self._ends.get(session, 0) > time.monotonic()

    def has_token(self, request: Request) -> bool:
        """Return True if a request has the token itself, which no browser sends by default."""
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._matches(shown.strip())

    async def begin(self, shown: str, peer: str) -> str | None:
        """Return a new session if the token is right, else None. Attempts run one by one, with a
        pause after each wrong one."""
        async with self._guess:
            if not self._matches(shown.strip()):
                self.wrong.note(peer)
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
        self._ends.pop(request.cookies.get(self.cookie, ""), None)

    def _matches(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token.encode())


class AccessGate:
    """Middleware that passes a request to the pages or refuses it, and adds the headers of all
    responses. It wraps the whole application, so that error responses have them, too."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings, sessions: LoginSessions) -> None:
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
        request.state.is_known = self._sessions.is_logged_in(request)
        if "authorization" in request.headers and not request.state.is_known:
            self._sessions.wrong.note(find_client(request))
            await asyncio.sleep(PAUSE_S)
        answer = self._refuse(request)
        await (answer or self._app)(scope, receive, send_guarded)

    def _refuse(self, request: Request) -> Response | None:
        path, is_read = request.scope["path"], request.method in ("GET", "HEAD")
        if not is_read and not self._comes_from_here(request):
            return PlainTextResponse(FOREIGN, 403)
        if path in (LOGIN, HEALTH) or path.startswith(STATIC) or request.state.is_known:
            return None
        if (is_read or path in READS_BY_POST) and self._is_here(request):
            return None
        if "text/html" in request.headers.get("accept", ""):
            back = quote(get_return_address(request), safe="")
            return RedirectResponse(f"{LOGIN}?next={back}", 303)
        refusal = "nothing was done: send the token as Authorization: Bearer\n"
        return PlainTextResponse(refusal, 401, {"WWW-Authenticate": "Bearer"})

    def _is_here(self, request: Request) -> bool:
        try:
            name = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        except ValueError:  # as for `[`
            return False
        is_direct = not any(name in request.headers for name in FORWARDED)
        return self._settings.is_local and is_direct and is_loopback(name)

    def _comes_from_here(self, request: Request) -> bool:
        """Return True if a request comes from our own pages, or from a client with the token."""
        if self._sessions.has_token(request):
            return True
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site == "same-origin"
        _, _, host = request.headers.get("origin", "").partition("://")
        return host != "" and host == request.headers.get("host")


def find_client(request: Request) -> str:
    return request.client.host if request.client else "nowhere"


def get_return_address(request: Request) -> str:
    """Return the address after the login: the same page, or the first one."""
    if request.method not in ("GET", "HEAD"):
        return "/"
    asked = request.scope["query_string"].decode("latin-1")
    return quote(request.scope["path"]) + (f"?{asked}" if asked else "")


def is_encrypted(request: Request) -> bool:
    """Return True if the browser of a form uses TLS, to the console or to a proxy."""
    origin = request.headers.get("origin", "")
    return request.scope["scheme"] == "https" or origin.startswith("https://")


def check_return_address(given: str) -> str:
    """Return the address if it is a page of the console, else that of the first page."""
    try:
        parts = urlsplit(given)
    except ValueError:  # as for `//[`
        return "/"
    is_own = given.startswith("/") and not given.startswith(("//", "/\\"))
    return given if is_own and not (parts.scheme or parts.netloc) else "/"
