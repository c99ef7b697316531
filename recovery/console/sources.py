"""What the pages are made of: the store that is looked at, and what is kept of earlier looks.

One of these is shared by all requests. The background looks go on only while somebody visits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from recovery.console.bounds import LookLimits
from recovery.console.gateways import Gateways
from recovery.console.sampling import Sampler
from recovery.console.settings import Settings
from recovery.console.sweeping import Sweep, Unfinished
from recovery.opening import open_store_of
from txn.errors import TxnError
from txn.protocol.attempt import Context

LOG = logging.getLogger("txn.console")
STEP_MS = 300
SHORTEST_REST_S = 1.0
REST = 4
"""How many times as long as it looked the background rests: it takes a fifth of a core."""

VISIT_MS = 60_000
STOP_S = 10


class Console:
    """The store of a console, and what has been found out about it."""

    def __init__(self, settings: Settings, context: Context) -> None:
        self.settings = settings
        self.context = context
        self.limits = LookLimits()
        self.sampler = Sampler(context)
        self.gateways = Gateways(settings.gateways, context.clock)
        self.unfinished: Unfinished | None = None
        self.trouble: str | None = None
        self._sweep = Sweep(context)
        self._is_visited = threading.Event()
        self._visited_ms = 0
        self._stopped = threading.Event()

    def visit(self) -> None:
        """Say that somebody looks, so that the background does too."""
        self._visited_ms = self.context.clock.monotonic_ms()
        self._is_visited.set()

    def look(self) -> None:
        """Look in the background until told to stop. An error of the store is shown and waited
        out."""
        while self._is_visited.wait() and not self._stopped.is_set():
            began_ms = self.context.clock.monotonic_ms()
            try:
                self._take_step()
                self.trouble = None
            except TxnError as error:
                LOG.warning("the store cannot be looked at: %s", error)
                self.trouble = str(error)
            now_ms = self.context.clock.monotonic_ms()
            if now_ms - self._visited_ms > VISIT_MS:
                self._is_visited.clear()
            self._stopped.wait(max(SHORTEST_REST_S, (now_ms - began_ms) * REST / 1000))

    def _take_step(self) -> None:
        self.sampler.refresh(STEP_MS)
        found = self._sweep.advance(STEP_MS)
        # The first round is shown on its way, later ones when they are whole.
        if found.is_complete or self._sweep.latest is None:
            self.unfinished = found
        self.gateways.refresh()

    def stop(self) -> None:
        """End the look in the background."""
        self._stopped.set()
        self._is_visited.set()


@contextmanager
def open_console(settings: Settings) -> Iterator[Console]:
    """Open the store and look in the background until the block is left."""
    with ExitStack() as ends:
        context = ends.enter_context(open_store_of(settings.store, settings.transactions))
        console = Console(settings, context)
        background = threading.Thread(target=console.look, name="txn-console", daemon=True)
        background.start()
        ends.callback(background.join, STOP_S)
        ends.callback(console.stop)
        yield console
