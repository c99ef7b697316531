"""Finishes transactions in the background: those acknowledged at their decision, and the rows of
those whose locks are released.

One thread takes all that has gathered as one batch. If the process dies, these transactions are
ordinary decided rows, which the next client or fsck rolls forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread, current_thread

from txn.events import Queued, QueueName, silent
from txn.host.forks import start_in_each_process
from txn.host.holds import OwnLock, SafeEvent
from txn.protocol.context import Context
from txn.protocol.recovery import PutStatus, finish_or_leave, mark_complete, roll_forward
from txn.protocol.statuses import Status
from txn.protocol.transaction import Transaction, advance

COMPLETE_WITHIN_S = 0.05  # real time, not the given clock: nothing depends on it
COMPLETED_AT_ONCE = 100
JOIN_S = 0.005


class Finisher:
    """Queues of transactions, and a thread that finishes them while there are any. Decided ones are
    finished at once. Those that only lack the final status wait, to share one request."""

    def __init__(self, context: Context) -> None:
        self._context = context
        start_in_each_process(self._start)

    def _start(self) -> None:
        # A fork's child does not finish transactions that waited in its parent.
        self._lock = OwnLock()
        self._hurry = SafeEvent()
        self._decided: list[Transaction] = []
        self._released: list[Transaction] = []
        self._thread: Thread | None = None
        self._rounds = self._complete_until = 0

    def submit(self, context: Context, transactions: Sequence[Transaction]) -> None:
        """Roll the transactions forward soon; if too many wait, wait for these first."""
        self._enqueue("decided", transactions)

    def release(self, context: Context, transactions: Sequence[Transaction]) -> None:
        """Roll the transactions forward now; on a remote store, put their final status later."""
        roll_forward(context, transactions, self._choose_put_status(self._complete_later))

    def flush(self) -> None:
        """Wait until everything submitted so far is finished, or left to other clients."""
        # Three rounds: the current one, one for the waiting transactions, one for their final
        # statuses. New transactions do not extend the wait.
        with self._lock:
            self._complete_until = last = self._rounds + 3
            is_left = bool(self._decided or self._released) and not self._start_thread()
        if is_left:
            self._drain(may_wait=False)
        while (thread := self._thread) is not None and thread.is_alive() and self._rounds < last:
            self._hurry.set()  # repeated, because the thread may just have begun to wait
            thread.join(JOIN_S)

    def _choose_put_status(self, later: PutStatus) -> PutStatus:
        return later if "remote_calls" in self._context.store.features else advance

    def _complete_later(
        self, context: Context, transactions: Sequence[Transaction], reached: Status
    ) -> None:
        for t in transactions:
            t.status = reached
        self._enqueue("released", transactions)

    def _complete_next(
        self, context: Context, transactions: Sequence[Transaction], reached: Status
    ) -> None:
        for t in transactions:
            t.status = reached
        with self._lock:
            self._released.extend(transactions)
        self._report_queue("released", len(transactions))

    def _enqueue(self, name: QueueName, transactions: Sequence[Transaction]) -> None:
        is_urgent = name == "decided"
        with self._lock:
            queue = self._decided if is_urgent else self._released
            queue.extend(transactions)
            crowded = len(queue) > self._context.policy.background_commits
            started = self._start_thread()
            if is_urgent or not started:
                self._hurry.set()
        self._report_queue(name, len(transactions))
        if not started:
            self._drain(may_wait=False)
        elif crowded:
            self.flush()

    def _start_thread(self) -> bool:
        """Start the thread unless it is running; return False if that cannot be done."""
        # In a fork's child the parent's thread is not alive.
        if self._thread is not None and self._thread.is_alive():
            return True
        self._thread = thread = Thread(target=self._drain, name="txn-finisher")
        thread._started = SafeEvent()  # type: ignore[attr-defined]
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, or cannot start threads
            return False
        return True

    def _drain(self, *, may_wait: bool = True) -> None:
        while True:
            self._hurry.wait(COMPLETE_WITHIN_S if may_wait else 0)
            with self._lock:
                self._rounds += 1
                self._hurry.clear()
                decided, self._decided[:] = self._decided[:], []
                released: list[Transaction] = []
                is_asked = self._rounds <= self._complete_until
                if not decided or is_asked or len(self._released) >= COMPLETED_AT_ONCE:
                    released, self._released[:] = self._released[:], []
                if not decided and not released:
                    if self._thread is current_thread():
                        self._thread = None
                    return
            self._report_queue("decided", -len(decided))
            self._report_queue("released", -len(released))
            finish_or_leave(self._context, "roll forward", self._roll_forward, decided)
            finish_or_leave(self._context, "roll forward", mark_complete, released)

    def _report_queue(self, queue: QueueName, change: int) -> None:
        if change and self._context.on_event is not silent:
            self._context.on_event(Queued(queue, change))

    def _roll_forward(self, context: Context, transactions: Sequence[Transaction]) -> None:
        roll_forward(context, transactions, self._choose_put_status(self._complete_next))
