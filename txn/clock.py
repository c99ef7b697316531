"""The only module that reads time or sleeps.

The protocol never orders anything by wall-clock time, which only names transaction rows and ages
them. Durations (lock TTLs, deadlines, backoff) use the monotonic clock alone. Names: `deadline_ms`
is a caller's limit for a transaction or a lock request, `within_ms` the limit for one call, and
`due_ms` the instant of the monotonic clock at which either ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import Protocol, TypeVar

from txn.errors import NotApplied

# Prefer a clock that runs during suspension: an owner that sleeps past its lock TTL must notice it.
_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

MOMENT_MS = 1_000
_BOOT = "/proc/sys/kernel/random/boot_id"

measure_s = time.perf_counter
"""Returns a time finer than a Clock's, for reports only; only differences are meaningful."""

stamp_ns = time.time_ns
"""Returns the time of day, for the order of reported events only."""

T = TypeVar("T")


class Clock(Protocol):
    """A source of time, passed as an argument. All units are milliseconds."""

    def wall_ms(self) -> int:
        """Return the time of day since the Unix epoch; it may jump, even backwards."""

    def monotonic_ms(self) -> int:
        """Return a time that never goes back; only differences are meaningful."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Sleep for at least the duration."""


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_MONOTONIC) // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)


class ManualClock:
    """A clock that moves only by `advance` and by its own sleeps."""

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
        """Advance both clocks by the duration."""
        self._wall_ms += duration_ms
        self._monotonic_ms += duration_ms

    def set_wall_ms(self, now_ms: int) -> None:
        """Set the time of day as an operator or NTP would; the monotonic clock is unchanged."""
        self._wall_ms = now_ms


# Of a context, not of a thread: greenlets of one thread take turns within their calls.
_UNTIL_MS: ContextVar[int | None] = ContextVar("until_ms", default=None)


def call_until(until_ms: int | None, call: Callable[[], T]) -> T:
    """Return the result of `call`. Meanwhile its caller waits for a server hardly longer than
    `until_ms` (monotonic): see `limit_due`. None: the server's own limit."""
    token = _UNTIL_MS.set(until_ms)
    try:
        return call()
    finally:
        _UNTIL_MS.reset(token)


def limit_due(now_ms: int, due_ms: int) -> int:
    """Return how long to wait for a server: until `due_ms`, or shortly after the limit of
    `call_until` if that is earlier. In that short time a slow server can answer and work in
    progress can end."""
    until_ms = _UNTIL_MS.get()
    return due_ms if until_ms is None else min(due_ms, max(now_ms, until_ms) + MOMENT_MS)


def find_origin(clock: Clock) -> bytes:
    """Return an identifier for the zero of a monotonic clock, which all processes of a machine
    share until it reboots; b"" if no other process can compare its clock. For a wrapper, the origin
    of its `inner` clock."""
    clock = getattr(clock, "inner", clock)
    return _find_boot() if isinstance(clock, SystemClock) else b""


@cache
def _find_boot() -> bytes:
    try:
        with open(_BOOT, "rb") as file:
            return file.read().strip()
    except FileNotFoundError:  # not Linux
        return b""
    except OSError as error:
        message = "nothing was written: cannot read when this machine was booted"
        raise NotApplied(message, file=_BOOT, reason=error.strerror) from error


def poll(is_done: Callable[[], bool], within_ms: int) -> bool:
    """Call the function until it returns true; return False after `within_ms`. The first calls only
    yield to other threads; later pauses are short relative to the time waited."""
    for _ in range(20):
        if is_done():
            return True
        os.sched_yield()
    since = time.monotonic()
    waited = 0.0
    while waited < within_ms / 1000:
        time.sleep(min(max(waited / 8, 0.000_05), 0.002))
        if is_done():
            return True
        waited = time.monotonic() - since
    return False
