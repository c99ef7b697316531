"""Parts of pages that stay up to date: the same HTML as in the page, sent again when it changes.

They are server-sent events of short answers: one event, how long to wait, and the end, after which
the browser asks again by itself. So a page that is left open holds no connection, of which a
browser has six for all its tabs, and each event is asked for by somebody who may look.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from txn.errors import TxnError

Part = Callable[[Request], str]
EVERY_MS = 2_000
LINE_BREAK = re.compile(r"\r\n|\r|\n")


class LiveParts:
    """Sends parts to those who watch them."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts

    async def send(self, request: Request) -> Response:
        """Answer with a part, unless it is as the browser has it."""
        part = self._parts.get(request.path_params["part"])
        if part is None:
            return PlainTextResponse("there is no such part\n", 404)
        event = await run_in_threadpool(_look, part, request)
        return Response(event, media_type="text/event-stream")


def _look(part: Part, request: Request) -> str:
    try:
        now = part(request)
    except TxnError as error:
        return _write_event("trouble", str(error))
    mark = blake2b(now.encode(), digest_size=16).hexdigest()
    if request.headers.get("last-event-id") == mark:
        return _write_event("same", "as it was")
    return _write_event("part", now, f"id: {mark}")


def _write_event(name: str, text: str, *more: str) -> str:
    """Return an event as HTML's standard has it: a line of data for each line, however broken."""
    data = (f"data: {line}" for line in LINE_BREAK.split(text))
    return "\n".join([f"event: {name}", f"retry: {EVERY_MS}", *more, *data, "", ""])
