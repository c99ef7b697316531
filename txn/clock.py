"""The only module that reads time or sleeps.

Wall-clock time orders nothing in the protocol; it names transaction rows and ages them. Durations
(leases, deadlines, backoff) are measured on the monotonic clock alone. How long a caller
gives a transaction or a request for locks is called `deadline_ms` everywhere, how long one call may
take `within_ms`, and the instant of that clock at which either is over `due_ms`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Protocol, TypeVar

# Where there is one that goes on while the machine is suspended: an owner that sleeps through a
# lease has lost it, and has to find that out on waking.
_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

EAGER_TRIES = 20
SHORTEST_PAUSE_S = 0.000_05
LONGEST_PAUSE_S = 0.002
MOMENT_MS = 1_000

T = TypeVar("T")


class Clock(Protocol):
    """Time as an argument. All units are milliseconds."""

    def wall_ms(self) -> int:
        """Return the time of day since the Unix epoch; it may jump, also backwards."""
        ...

    def monotonic_ms(self) -> int:
        """Return a time that never goes back; only differences mean anything."""
        ...

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait for at least the duration."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_MONOTONIC) // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)


class ManualClock:
    """A clock that moves only when told to, or by the sleeps that are asked of it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = now_ms
        self._monotonic_ms = 0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self.advance(duration_ms)

    def advance(self, duration_ms: int) -> None:
        """Let both clocks go forward by the duration."""
        self._wall_ms += duration_ms
        self._monotonic_ms += duration_ms

    def set_wall_ms(self, now_ms: int) -> None:
        """Set the time of day, as an operator or NTP would; the monotonic clock stays."""
        self._wall_ms = now_ms


class _Limit(threading.local):
    until_ms: int | None = None


_LIMIT = _Limit()


def call_until(until_ms: int | None, call: Callable[[], T]) -> T:
    """Return what a call returns, in which this thread waits for no server much longer than until
    then, by the monotonic clock: see `limit_due`. None: as long as the server's own time."""
    before, _LIMIT.until_ms = _LIMIT.until_ms, until_ms
    try:
        return call()
    finally:
        _LIMIT.until_ms = before


def limit_due(now_ms: int, due_ms: int) -> int:
    """Return until when to wait for a server: until a moment after what `call_until` was told, if
    that is earlier. A server that is only slow answers in that moment, and what was begun there can
    be ended."""
    until_ms = _LIMIT.until_ms
    return due_ms if until_ms is None else min(due_ms, max(now_ms, until_ms) + MOMENT_MS)


def find_origin(clock: Clock) -> bytes:
    """Return what names the zero of its monotonic time, which all processes of a machine share
    until it boots anew; b"" where nobody else's can be compared with it. Of a clock that waits in
    another way than its `inner` one that is the same."""
    clock = getattr(clock, "inner", clock)
    return _find_boot() if isinstance(clock, SystemClock) else b""


@cache
def _find_boot() -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()
    except FileNotFoundError:  # no Linux
        return b""


def measure_ms() -> float:
    """Return a time of which only differences mean anything, finer than a Clock's: for what is told
    to who watches, and decides nothing."""
    return time.perf_counter() * 1000


def stamp_ns() -> int:
    """Return the time of day, by which who watches puts things in order; it decides nothing."""
    return time.time_ns()


def poll(look: Callable[[], bool], within_ms: int) -> bool:
    """Call the function until it says yes; False: it did not within that time. At first others
    are just let run in between, for what takes microseconds; then there are pauses, short ones
    beside the time waited so far."""
    for _ in range(EAGER_TRIES):
        if look():
            return True
        os.sched_yield()
    since = time.monotonic()
    waited = 0.0
    while waited < within_ms / 1000:
        time.sleep(min(max(waited / 8, SHORTEST_PAUSE_S), LONGEST_PAUSE_S))
        if look():
            return True
        waited = time.monotonic() - since
    return False
