"""The one way to wait between tries: pauses that double, with jitter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from txn.clock import Clock

MOST_DOUBLINGS = 20


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses of `first_ms`, doubled with every try up to `longest_ms`."""

    first_ms: int
    longest_ms: int

    def pause_ms(self, tries: int, random: Random) -> int:
        """Return the pause after so many tries: between half and all of the doubled pause."""
        pause_ms = min(self.first_ms << min(tries, MOST_DOUBLINGS), self.longest_ms)
        return random.randint((pause_ms + 1) // 2, pause_ms)

    def tries(
        self, clock: Clock, random: Random, *, most: int | None = None, due_ms: int | None = None
    ) -> Iterator[int]:
        """Yield 1, 2, ... with a pause before each but the first; the caller leaves the loop on
        success. Ends after `most` tries, or after the first try that ends at or after `due_ms`
        (monotonic); no pause extends beyond it. At least one of the two is required, and at least
        one try is made."""
        if most is None and due_ms is None:
            raise ValueError("tries without an end: give most or due_ms")
        number = 0
        while True:
            number += 1
            yield number
            left_ms = None if due_ms is None else due_ms - clock.monotonic_ms()
            if number == most or (left_ms is not None and left_ms <= 0):
                return
            pause_ms = self.pause_ms(number, random)
            clock.sleep_ms(pause_ms if left_ms is None else min(pause_ms, left_ms))
