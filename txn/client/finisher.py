"""Finishes transactions that were acknowledged at their decision, behind the client's back.

One thread takes whatever has gathered as one batch. If the process dies, these transactions are
decided rows like any other, which the next client or fsck rolls forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock, Thread

from txn.host.forks import Forked
from txn.protocol.attempt import Context, Transaction
from txn.protocol.recover import finish_or_leave, roll_forward

MAX_WAITING = 1000


class Finisher(Forked):
    """A queue of decided transactions and a thread, while there are any, that finishes them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = Lock()
        self._waiting: list[Transaction] = []
        self._thread: Thread | None = None
        self.expect_forks()

    def after_fork(self, in_child: bool) -> None:
        """Take a new lock in a child: a thread that it does not have may hold the old one."""
        if in_child:
            self._lock = Lock()

    def submit(self, context: Context, transactions: Sequence[Transaction]) -> None:
        """Roll the transactions forward soon; where too many wait, wait for these first."""
        with self._lock:
            self._waiting.extend(transactions)
            crowded = len(self._waiting) > MAX_WAITING
            # The thread of a process that was forked is not alive in its child.
            is_running = self._thread is not None and self._thread.is_alive()
            started = is_running or self._start()
        if not started:
            self._drain()
        elif crowded:
            self.flush()

    def flush(self) -> None:
        """Wait until nothing waits."""
        while (thread := self._thread) is not None and thread.is_alive():
            thread.join()

    def _start(self) -> bool:
        thread = Thread(target=self._drain, name="txn-finisher")
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, or has no thread to give
            return False
        self._thread = thread
        return True

    def _drain(self) -> None:
        while True:
            with self._lock:
                due, self._waiting = self._waiting, []
                if not due:
                    self._thread = None
                    return
            finish_or_leave(self._context, "roll forward", roll_forward, due)
