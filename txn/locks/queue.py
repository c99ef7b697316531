"""The queue of requests at an object, for any backend: which requests are denied, and by which.

Requests stand in order of arrival. A denied request keeps its place at the denied object and at the
objects before it in path order. So a request with a place never waits for one whose place is
earlier in path order. Hence places cannot deny each other in a cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from txn.clock import Clock
from txn.locks.model import Lock, LockRequest, Mode, Path, Waiting


class QueueMember(Protocol):
    """One request in an object's queue."""

    @property
    def ticket(self) -> str:
        """The name of the request."""

    @property
    def mode(self) -> Mode:
        """The mode that it asks for."""


class Denial(NamedTuple):
    """The first object denied to a request, and the requests that deny it."""

    wanted: LockRequest
    blockers: tuple[Any, ...]

    def keeps(self, at: Path) -> bool:
        """Return True if, in fair queues, the denied request keeps its place at an object."""
        return at <= self.wanted.path


def find_denial(
    queues: Mapping[Path, Iterable[QueueMember]], ticket: str, wanted: Sequence[LockRequest]
) -> Denial | None:
    """Return the first object that other requests deny to a ticket: those before it in the queue,
    or all if it is not in the queue."""
    for request in wanted:
        blockers = []
        for each in queues[request.path]:
            if each.ticket == ticket:
                break
            if not request.mode.allows(each.mode):
                blockers.append(each)
        if blockers:
            return Denial(request, tuple(blockers))
    return None


def list_blockers(queue: Sequence[Lock], index: int) -> list[Lock]:
    """Return the locks that keep this one waiting: incompatible holders, and incompatible requests
    before it. A held lock has none."""
    waiting = queue[index]
    return [
        each
        for at, each in enumerate(queue)
        if not waiting.granted
        and (each.granted or at < index)
        and not waiting.request.mode.allows(each.request.mode)
    ]


class RetrySchedule:
    """The retries of one denied request: their number, jittered pauses, and the deadline.

    first_poll_ms: for a backend that does not report changes. The request then polls, soon and then
    less often. Polls divide the pause before the first retry, and after each change in the queue.
    """

    def __init__(
        self, waiting: Waiting, clock: Clock, rng: Random, first_poll_ms: int | None = None
    ) -> None:
        self.waiting = waiting
        self._clock = clock
        self._rng = rng
        self._left = waiting.retries
        self._first_poll_ms = first_poll_ms or waiting.pause_ms
        self._poll_ms = self._first_poll_ms
        self._polled_ms = 0
        self._woken_until_ms = clock.monotonic_ms() + waiting.retries * waiting.pause_ms
        self._due_ms = (
            None if waiting.deadline_ms is None else clock.monotonic_ms() + waiting.deadline_ms
        )

    @property
    def left_ms(self) -> int | None:
        return None if self._due_ms is None else self._due_ms - self._clock.monotonic_ms()

    @property
    def is_over(self) -> bool:
        return self.left_ms is not None and self.left_ms <= 0

    def next_pause_ms(self) -> int | None:
        """Return how long to wait before the next try, or None to give up."""
        if self._left == 0 or self.is_over:
            return None
        pause_ms = self._add_jitter(self._poll_ms)
        if self._polled_ms + self._poll_ms < self.waiting.pause_ms:
            self._poll_ms *= 2
            self._polled_ms += pause_ms
        else:
            pause_ms = max(1, self._add_jitter(self.waiting.pause_ms) - self._polled_ms)
            self._left -= 1
            self._poll_ms, self._polled_ms = self.waiting.pause_ms, 0
        left_ms = self.left_ms
        return pause_ms if left_ms is None else min(pause_ms, max(1, left_ms))

    def note_wake(self) -> None:
        """Do not count the last retry, since its pause was cut short. Otherwise a request that is
        woken at each step in the queue would have less time than one that sleeps through them."""
        if self._clock.monotonic_ms() < self._woken_until_ms:
            self._left += 1

    def note_move(self) -> None:
        """Poll soon again: the queue has changed and may change again."""
        self._poll_ms = self._first_poll_ms

    def _add_jitter(self, most_ms: int) -> int:
        return self._rng.randint((most_ms + 1) // 2, most_ms)
