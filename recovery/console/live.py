"""Parts of pages that stay up to date: the same HTML as in the page, sent again when it changes.

They are server-sent events of short answers: one event, how long to wait, and the end, after which
the browser asks again by itself. So a page that is left open holds no connection, of which a
browser has six for all its tabs, and each event is asked for by somebody who may look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b

from sse_starlette import ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from txn.errors import TxnError

Part = Callable[[Request], str]
EVERY_MS = 2_000


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
        return Response(event.encode(), media_type="text/event-stream")


def _look(part: Part, request: Request) -> ServerSentEvent:
    try:
        now = part(request)
    except TxnError as error:
        return ServerSentEvent(str(error), event="trouble", retry=EVERY_MS)
    mark = blake2b(now.encode(), digest_size=16).hexdigest()
    if request.headers.get("last-event-id") == mark:
        return ServerSentEvent("as it was", event="same", retry=EVERY_MS)
    return ServerSentEvent(now, event="part", id=mark, retry=EVERY_MS)
