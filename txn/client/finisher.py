"""Finishes transactions behind the client's back: those that were acknowledged at their decision,
and the rows of those that hold nothing any more.

One thread takes whatever has gathered as one batch. If the process dies, these transactions are
decided rows like any other, which the next client or fsck rolls forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event, Lock, Thread

from txn.host.forks import Forked
from txn.protocol.attempt import Context, Transaction, advance
from txn.protocol.phases import Status
from txn.protocol.recover import finish_or_leave, roll_forward, tell_complete

MAX_WAITING = 1000
TELL_WITHIN_S = 0.05  # by no clock that is handed in: nothing depends on when it happens


class Finisher(Forked):
    """Queues of transactions and a thread, while there are any, that finishes them.

    Of those that were decided, at once. Those that only their rows do not know to be complete wait
    for others, whose rows go into the same request.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = Lock()
        self._hurry = Event()
        self._decided: list[Transaction] = []
        self._released: list[Transaction] = []
        self._thread: Thread | None = None
        self.expect_forks()

    def after_fork(self, in_child: bool) -> None:
        """Take a new lock in a child: a thread that it does not have may hold the old one. What was
        released there its parent tells."""
        if in_child:
            self._lock, self._hurry, self._released = Lock(), Event(), []

    def submit(self, context: Context, transactions: Sequence[Transaction]) -> None:
        """Roll the transactions forward soon; where too many wait, wait for these first."""
        self._hand_over(self._decided, transactions, is_urgent=True)

    def release(self, context: Context, transactions: Sequence[Transaction]) -> None:
        """Roll the transactions forward; but where each call is a request, and their rows have only
        to be told that they are complete, do that soon, with others. Nobody waits for it."""
        is_remote = "remote_calls" in context.store.features
        roll_forward(context, transactions, self._tell_soon if is_remote else advance)

    def flush(self) -> None:
        """Wait until nothing waits."""
        while (thread := self._thread) is not None and thread.is_alive():
            self._hurry.set()
            thread.join()

    def _tell_soon(
        self, context: Context, transactions: Sequence[Transaction], reached: Status
    ) -> None:
        for t in transactions:
            t.status = reached
        self._hand_over(self._released, transactions, is_urgent=False)

    def _hand_over(
        self, queue: list[Transaction], transactions: Sequence[Transaction], *, is_urgent: bool
    ) -> None:
        with self._lock:
            queue.extend(transactions)
            crowded = len(queue) > MAX_WAITING
            # The thread of a process that was forked is not alive in its child.
            is_running = self._thread is not None and self._thread.is_alive()
            started = is_running or self._start()
            if is_urgent or not started:
                self._hurry.set()
        if not started:
            self._drain()
        elif crowded:
            self.flush()

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
            self._hurry.wait(TELL_WITHIN_S)
            with self._lock:
                decided, released = self._decided[:], self._released[:]
                self._decided.clear()
                self._released.clear()
                if not decided and not released:
                    self._thread = None
                    self._hurry.clear()
                    return
            finish_or_leave(self._context, "roll forward", roll_forward, decided)
            finish_or_leave(self._context, "roll forward", tell_complete, released)
