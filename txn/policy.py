"""All bounds of a client, in time, tries and size, as one value.

None of them affects correctness. A short lock TTL causes needless aborts, a long one makes others
wait for dead owners; neither can lose or invent a commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Literal, get_args

from txn.clock import Clock
from txn.model import check_choice, check_whole

Checking = Literal["locked", "validated"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses of `first_ms`, doubled with every try up to `longest_ms`."""

    first_ms: int
    longest_ms: int

    def pause_ms(self, tries: int, random: Random) -> int:
        """Return the pause after so many tries: between half and all of the doubled pause."""
        pause_ms = min(self.first_ms << min(tries, 20), self.longest_ms)
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


_make_backoff = cache(Backoff)  # every read needs one


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of a client. Durations are in milliseconds.

    attempts: transactions that a commit may start before a conflict is reported.
    deadline_ms: from the call until the decision; after it the attempt aborts.
    lock_ttl_ms: how long an undecided row must be seen unchanged before others may abort it.
    courtesy_ms: how long a decided row must be seen unchanged before others finish it.
    skew_ms: the largest difference between this machine's clock and the store's time at which the
        client still chooses timestamps, or deletes by age. Above 30 days, commits also follow cells
        that are as far ahead.
    first_pause_ms, longest_pause_ms: backoff between tries; it doubles, with jitter.
    store_patience_ms: how long a failing call of the store is repeated before its error is
        reported, but never longer than deadline_ms. A gateway restarts in about 10 s.
    concurrent_batches: batches that an engine commits at a time, on a store whose calls are
        requests. Further requests form the next batch. More batches are smaller, and cost client
        and servers more.
    batch_requests, batch_bytes: the most requests of a batch, and the most bytes of several; a
        server refuses larger calls.
    linger_ms: how long, at most, a request that could start waits for others; 0: not at all.
    assertions: what happens to a key that a transaction asserts and does not write. "locked": it is
        locked until the decision. "validated": it is not; its cell is read again before the
        decision. Transactions that assert the same key then do not wait for each other, but one
        that meets a writer of it has a conflict.
    background_commits: transactions whose last steps may wait for the background thread; a commit
        beyond that waits until these are done.
    read_tries: optimistic tries of an atomic read before it takes the locks.
    snapshot_rows: rows of a snapshot, or of a block's scan: each is held in memory, and a block
        asserts each, and locks it unless it validates.
    """

    attempts: int = 10
    deadline_ms: int = 30_000
    lock_ttl_ms: int = 10_000
    courtesy_ms: int = 20
    skew_ms: int = 60_000
    first_pause_ms: int = 1
    longest_pause_ms: int = 50
    store_patience_ms: int = 15_000
    read_tries: int = 10
    snapshot_rows: int = 10_000
    concurrent_batches: int = 1
    batch_requests: int = 256
    batch_bytes: int = 8_000_000
    linger_ms: int = 0
    background_commits: int = 1_000
    assertions: Checking = "locked"

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name != "assertions":
                check_whole(name, getattr(self, name), 0 if name == "linger_ms" else 1)
        check_choice("assertions", self.assertions, get_args(Checking))

    @property
    def backoff(self) -> Backoff:
        """The pauses between tries when other clients are in the way."""
        return _make_backoff(self.first_pause_ms, self.longest_pause_ms)

    @property
    def store_backoff(self) -> Backoff:
        """The pauses between tries when the store fails."""
        return _make_backoff(self.first_pause_ms, max(self.longest_pause_ms, 1_000))


@dataclass(frozen=True, slots=True)
class Pace:
    """The clock, random generator and policy for waiting between tries."""

    clock: Clock
    rng: Random
    policy: Policy
