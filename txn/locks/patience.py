"""How long a denied request goes on trying: retries, jittered pauses and a deadline.

A request that is not told when a lock is given back looks for it: soon, then less and less often.
These looks divide the pause before the first retry, and again that after each change in the line.
"""

from __future__ import annotations

from random import Random

from txn.clock import Clock
from txn.locks.manager import Waiting


class Patience:
    """Counts the retries of one request. first_look_ms: None where somebody tells of changes."""

    def __init__(
        self, waiting: Waiting, clock: Clock, rng: Random, first_look_ms: int | None = None
    ) -> None:
        self._waiting = waiting
        self._clock = clock
        self._rng = rng
        self._left = waiting.retries
        self._first_look_ms = first_look_ms or waiting.pause_ms
        self._look_ms = self._first_look_ms
        self._looked_ms = 0
        self._woken_until_ms = clock.monotonic_ms() + waiting.retries * waiting.pause_ms
        self._due_ms = (
            None if waiting.deadline_ms is None else clock.monotonic_ms() + waiting.deadline_ms
        )

    @property
    def left_ms(self) -> int | None:
        """How long it is until the deadline; None if there is none."""
        return None if self._due_ms is None else self._due_ms - self._clock.monotonic_ms()

    @property
    def is_over(self) -> bool:
        """Whether the deadline has come."""
        return self.left_ms is not None and self.left_ms <= 0

    def next_pause_ms(self) -> int | None:
        """Return how long to wait before the next try, or None where there is none."""
        if self._left == 0 or self.is_over:
            return None
        pause_ms = self._next_look_ms() or self._next_retry_ms()
        left_ms = self.left_ms
        return pause_ms if left_ms is None else min(pause_ms, max(1, left_ms))

    def note_wake(self) -> None:
        """Count the last retry as none, since its pause was cut short: one that is told of each
        step forward in a line has no less time than one that sleeps through them."""
        if self._clock.monotonic_ms() < self._woken_until_ms:
            self._left += 1

    def note_move(self) -> None:
        """Look soon again: the line has changed, and may go on changing."""
        self._look_ms = self._first_look_ms

    def _next_look_ms(self) -> int:
        """Return the pause before a look that is no retry, or 0."""
        look_ms = self._add_jitter(self._look_ms)
        if self._looked_ms + self._look_ms >= self._waiting.pause_ms:
            return 0
        self._look_ms *= 2
        self._looked_ms += look_ms
        return look_ms

    def _next_retry_ms(self) -> int:
        """Return the rest of the pause before a retry."""
        self._left -= 1
        looked_ms, self._looked_ms = self._looked_ms, 0
        self._look_ms = self._waiting.pause_ms
        return max(1, self._add_jitter(self._waiting.pause_ms) - looked_ms)

    def _add_jitter(self, most_ms: int) -> int:
        return self._rng.randint((most_ms + 1) // 2, most_ms)
