"""Commits of many clients together: what arrives while a batch is being committed is the next one.

Nobody waits for company: a commit that finds no batch under way is one at once. The thread of one
client commits the batch for all of it, and one that meets a conflict tries again in its own thread,
so that nobody waits for the locks that another one needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from txn.client.engine import Engine
from txn.errors import ConflictError, InvalidRequestError, TxnError
from txn.request import Ack, Committed, Request

MOST = 256  # requests of a batch


class _Waiting:
    """A request in line, with the end of its time by the monotonic clock, if it has one of its own;
    `result` once it is known, None where it must be tried alone."""

    __slots__ = ("due_ms", "event", "failure", "leads", "request", "result")

    def __init__(self, request: Request, due_ms: int | None) -> None:
        self.request = request
        self.due_ms = due_ms
        self.result: Committed | TxnError | None = None
        self.failure: BaseException | None = None
        self.leads = False
        self.event = threading.Event()


Together = Callable[[Sequence[_Waiting]], list[Committed | TxnError | None]]


class Gatherer:
    """Commits through two engines on one store: one that tries once, and one that is patient."""

    def __init__(self, once: Engine, patient: Engine) -> None:
        self._once = once
        self._patient = patient
        self._clock = once.context.clock
        self._lines = {ack: _Line(self._together(ack)) for ack in ("complete", "decided")}

    def commit(self, request: Request, ack: Ack, deadline_ms: int | None = None) -> Committed:
        """Commit it, with what others ask for meanwhile. Raises what Engine.commit does."""
        due_ms = None if deadline_ms is None else self._clock.monotonic_ms() + deadline_ms
        result = self._lines[ack].result(_Waiting(request, due_ms))
        if isinstance(result, Committed):
            return result
        if result is not None and not isinstance(result, ConflictError):
            raise result
        return self._patient.commit(
            request.mutations,
            request.assertions,
            once=request.once,
            once_retention_ms=request.once_retention_ms,
            labels=request.labels,
            ack=ack,
            deadline_ms=self._left_ms(due_ms),
        )

    def _together(self, ack: Ack) -> Together:
        def commit(batch: Sequence[_Waiting]) -> list[Committed | TxnError | None]:
            requests = [each.request for each in batch]
            times = [self._left_ms(each.due_ms) for each in batch]
            try:
                return [*self._once.commit_many(requests, ack=ack, deadline_ms=times)]
            except InvalidRequestError:  # one of them; nothing was written: each is told its own
                return [None] * len(requests)

        return commit

    def _left_ms(self, due_ms: int | None) -> int | None:
        return None if due_ms is None else due_ms - self._clock.monotonic_ms()


class _Line:
    """Requests in the order of their arrival. One of their threads leads: it commits for all."""

    def __init__(self, together: Together) -> None:
        self._together = together
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._led = False

    def result(self, mine: _Waiting) -> Committed | TxnError | None:
        """Return the result of the request's first try; None: it has not been tried."""
        with self._lock:
            self._waiting.append(mine)
            mine.leads, self._led = not self._led, True
        if not mine.leads:
            mine.event.wait()
        if mine.leads:
            self._lead()
        if mine.failure is not None:
            raise mine.failure
        return mine.result

    def _lead(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        try:
            for each, result in zip(batch, self._together(batch), strict=True):
                each.result = result
        except BaseException as error:
            for each in batch:
                each.failure = error
            raise
        finally:
            self._hand_over()
            for each in batch:
                each.event.set()

    def _hand_over(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting[0].leads = True
                self._waiting[0].event.set()
            else:
                self._led = False
