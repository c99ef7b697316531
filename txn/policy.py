"""How long and how often: every bound of the library's loops, in one value.

Nothing here is needed for correctness. A lease that is too short costs needless aborts, one that is
too long makes others wait for the dead; neither can lose or invent a commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

from txn.backoff import Backoff
from txn.clock import Clock
from txn.model import check_whole

STORE_PAUSE_MS = 1_000
_make_backoff = cache(Backoff)  # every read asks for one


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of a client. Durations are in milliseconds.

    attempts: transactions that a commit may start before a conflict is reported.
    deadline_ms: from the call until the decision; past it the attempt aborts.
    lease_ms: how long an undecided row must be seen unchanged before others may abort it.
    courtesy_ms: how long a decided row must be seen unchanged before others finish it.
    skew_ms: how far this machine's clock may be from the store's time before the client refuses to
        choose timestamps, or to delete what is old, by it. If that is more than 30 days, commits
        follow cells that lie as far ahead.
    first_pause_ms, longest_pause_ms: backoff between tries; it doubles, with jitter.
    store_patience_ms: how long a failing call of the store is sent again before its error is
        reported, but never longer than deadline_ms. A gateway restarts in about 10 s.
    lanes: batches that an engine commits at a time, on a store whose calls are requests: what is
        asked for while so many are under way gathers, and goes as the next one. More of them are
        smaller, and cost client and servers more.
    linger_ms: how long, at most, a request that could go waits for others to go with; 0: not at
        all.
    read_tries: optimistic tries of an atomic read before it takes the locks.
    snapshot_rows: rows of a snapshot, or of a block's scan: each is held in memory, and of a block
        asserted and locked.
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
    linger_ms: int = 0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_whole(name, getattr(self, name), 0 if name == "linger_ms" else 1)

    @property
    def backoff(self) -> Backoff:
        """The pauses between tries at what other clients are in the way of."""
        return _make_backoff(self.first_pause_ms, self.longest_pause_ms)

    @property
    def store_backoff(self) -> Backoff:
        """The pauses between tries at a store that fails."""
        return _make_backoff(self.first_pause_ms, max(self.longest_pause_ms, STORE_PAUSE_MS))


@dataclass(frozen=True, slots=True)
class Pace:
    """How a client waits between its tries: by which clock, rng and policy."""

    clock: Clock
    rng: Random
    policy: Policy
