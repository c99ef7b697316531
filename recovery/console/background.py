"""The looks that go on in the background while somebody visits: the last hour, what is unfinished
in the whole table, what its owners hold, and what servers tell."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from recovery.console.gateways import Gateways
from recovery.console.sampling import Hour, Sampler
from recovery.console.sweeping import Sweep, Unfinished
from recovery.scan import find_transaction
from txn.errors import TxnError
from txn.protocol.context import Context
from txn.protocol.row import TransactionRow
from txn.text import name_failure

LOG = logging.getLogger("txn.console")
STEP_MS = 300
SHORTEST_REST_S = 1.0
REST = 4
"""How many times as long as it looked the background rests: it takes a fifth of a core."""

VISIT_MS = 60_000
STOP_S = 10
OLDEST = 10
"""How many of the longest unfinished are read wholly, each of which may have some megabytes."""


class Background:
    """What the background has found so far. trouble: why it could not look the last time."""

    def __init__(self, context: Context, gateways: Sequence[str]) -> None:
        self.gateways = Gateways(gateways, context.clock)
        self.unfinished: Unfinished | None = None
        self.oldest: Sequence[TransactionRow] = ()
        self.trouble: str | None = None
        self._context = context
        self._sampler = Sampler(context)
        self._sweep = Sweep(context)
        self._is_visited = threading.Event()
        self._visited_ms = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="txn-console", daemon=True)
        self._thread.start()

    @property
    def hour(self) -> Hour:
        """The last hour, as far as it was sampled."""
        return self._sampler.hour

    def visit(self) -> None:
        """Say that somebody looks, so that the background does too."""
        self._visited_ms = self._context.clock.monotonic_ms()
        self._is_visited.set()

    def close(self) -> None:
        """End the looks."""
        self._stopped.set()
        self._is_visited.set()
        self._thread.join(STOP_S)

    def _look(self) -> None:
        """Look until told to stop. An error of the store is shown and waited out."""
        while self._is_visited.wait() and not self._stopped.is_set():
            began_ms = self._context.clock.monotonic_ms()
            try:
                self._take_step()
                self.trouble = None
            except TxnError as error:
                LOG.warning("the store cannot be looked at: %s", name_failure(error))
                self.trouble = str(error)
            except Exception:  # what is shown would only grow old, and nobody would know
                LOG.exception("a look failed")
                self.trouble = "a look failed; the log of the console says why"
            now_ms = self._context.clock.monotonic_ms()
            if now_ms - self._visited_ms > VISIT_MS:
                self._is_visited.clear()
            self._stopped.wait(max(SHORTEST_REST_S, (now_ms - began_ms) * REST / 1000))

    def _take_step(self) -> None:
        self._sampler.refresh(STEP_MS)
        found = self._sweep.advance(STEP_MS)
        # The first round is shown on its way, later ones when they are whole.
        if found.is_complete or self._sweep.latest is None:
            rows = [find_transaction(self._context, head.row_key) for head in found.oldest[:OLDEST]]
            self.oldest = [row for row in rows if row is not None and not row.is_over]
            self.unfinished = found
        self.gateways.refresh()
