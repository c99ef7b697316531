"""Finishes transactions that were acknowledged at their decision, behind the client's back.

One thread takes whatever has gathered as one batch. If the process dies, these transactions are
decided rows like any other, which the next client or fsck rolls forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from txn.protocol import as_a_crash_would, roll_forward
from txn.steps import Context, Transaction

MAX_WAITING = 1000


class Finisher:
    """A queue of decided transactions and the one thread that rolls them forward."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = Lock()
        self._waiting: list[Transaction] = []
        self._running: Future[None] | None = None
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, context: Context, transactions: Sequence[Transaction]) -> None:
        """Roll the transactions forward soon; where too many wait, wait for these first."""
        with self._lock:
            self._waiting.extend(transactions)
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, "txn-finisher")
            if self._running is None:
                self._running = self._executor.submit(self._drain)
            crowded = len(self._waiting) > MAX_WAITING
        if crowded:
            self.flush()

    def flush(self) -> None:
        """Wait until nothing waits."""
        while (running := self._running) is not None:
            running.result()

    def close(self) -> None:
        """Flush, and end the thread."""
        self.flush()
        if self._executor is not None:
            self._executor.shutdown()

    def _drain(self) -> None:
        while True:
            with self._lock:
                due, self._waiting = self._waiting, []
                if not due:
                    self._running = None
                    return
            as_a_crash_would(self._context, roll_forward, due)
