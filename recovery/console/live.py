"""Parts of pages that stay up to date: the same HTML as in the page, sent again when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from txn.errors import TxnError

Part = Callable[[Request], str]
EVERY_S = 2.0
MOST_STREAMS = 32


class Streams:
    """Sends parts to those who watch them. Each is one connection; there is a limit to them."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts
        self._open = 0

    async def send(self, request: Request) -> Response:
        """Answer with a stream of one part."""
        part = self._parts.get(request.path_params["part"])
        if part is None:
            return PlainTextResponse("there is no such part\n", 404)
        if self._open >= MOST_STREAMS:
            return PlainTextResponse(f"more than {MOST_STREAMS} watch already\n", 503)
        return EventSourceResponse(self._watch(part, request))

    async def _watch(self, part: Part, request: Request) -> AsyncIterator[ServerSentEvent]:
        self._open += 1
        last = ""
        try:
            while True:
                try:
                    now = await run_in_threadpool(part, request)
                except TxnError as error:
                    yield ServerSentEvent(str(error), event="trouble")
                else:
                    if now != last:
                        yield ServerSentEvent(now, event="part")
                    last = now
                await asyncio.sleep(EVERY_S)
        finally:
            self._open -= 1
