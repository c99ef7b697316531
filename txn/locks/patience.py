"""How long a denied request goes on trying: retries, jittered pauses and a deadline."""

from __future__ import annotations

from random import Random

from txn.clock import Clock
from txn.locks.manager import Waiting


class Patience:
    """Counts the retries of one request."""

    def __init__(self, waiting: Waiting, clock: Clock, chance: Random) -> None:
        self._waiting = waiting
        self._clock = clock
        self._chance = chance
        self._left = waiting.retries
        self._woken_until_ms = clock.monotonic_ms() + waiting.retries * waiting.pause_ms
        self._due_ms = (
            None if waiting.deadline_ms is None else clock.monotonic_ms() + waiting.deadline_ms
        )

    def next_pause_ms(self) -> int | None:
        """Return how long to wait before the next try, or None where there is none."""
        if self._left == 0:
            return None
        self._left -= 1
        most_ms = self._waiting.pause_ms
        pause_ms = self._chance.randint((most_ms + 1) // 2, most_ms)
        if self._due_ms is None:
            return pause_ms
        left_ms = self._due_ms - self._clock.monotonic_ms()
        return min(pause_ms, left_ms) if left_ms > 0 else None

    def woken(self) -> None:
        """Count the last retry as none, since its pause was cut short: whoever is told of each step
        forward in a line has no less time than who sleeps through them."""
        if self._clock.monotonic_ms() < self._woken_until_ms:
            self._left += 1
