"""Limits of one read operation: rows, bytes and time, whatever the size of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from math import inf
from threading import Lock, Thread
from time import monotonic
from typing import Generic, TypeVar

from txn.clock import Clock
from txn.model import Row, cell_bytes

T = TypeVar("T")
FRESH_S = 1.0

MOST_AT_ONCE = 8  # the most rows or values in one call, since each may have ten megabytes


class Stop(Enum):
    """Why a read stopped. AGE: by its key, a row began before the wanted age; earlier rows could
    match only if they were finished late."""

    FOUND = "a full page"
    BEGINNING = "the beginning of the table"
    ROWS = "the row limit"
    BYTES = "the size limit"
    TIME = "the time limit"
    AGE = "the requested age"


@dataclass(frozen=True, slots=True)
class ReadLimits:
    rows: int = 2_000
    bytes_: int = 16_000_000
    ms: int = 2_000


class Budget:
    """What a read has spent of its limits. The caller checks `over` after each row, so a limit is
    exceeded by at most the result of one store call."""

    def __init__(self, clock: Clock, limits: ReadLimits) -> None:
        self.limits = limits
        self.rows = 0
        self.bytes_ = 0
        self._clock = clock
        self._due_ms = clock.monotonic_ms() + limits.ms

    def spend(self, row: Row, *, again: bool = False) -> int:
        """Count a row and return its bytes. again: the row itself was counted before."""
        size = sum(cell_bytes(key, cell.value) for key, cell in row.cells.items())
        self.rows += not again
        self.bytes_ += size
        return size

    def divide(self, items: Sequence[T], cost: int = 1) -> Iterator[Sequence[T]]:
        """Yield the items in groups: one at first, then as many as should fit into the limit,
        judging by the last ones. cost: values per item. The caller stops once `over` says so."""
        at, size, most = 0, 1, max(1, MOST_AT_ONCE // cost)
        while at < len(items):
            before = self.bytes_
            yield items[at : at + size]
            at += size
            each = max(1, (self.bytes_ - before) // size)
            room = max(0, self.limits.bytes_ - self.bytes_) // each
            size = max(1, min(2 * size, most, room))

    @property
    def over(self) -> Stop | None:
        if self.rows >= self.limits.rows:
            return Stop.ROWS
        if self.bytes_ >= self.limits.bytes_:
            return Stop.BYTES
        return Stop.TIME if self._clock.monotonic_ms() >= self._due_ms else None


class Cached(Generic[T]):
    """A read result that is at most FRESH_S old. A thread of its own reads it for all who wait, for
    up to `limit_s` each. Errors are kept as well, so that nobody repeats a failing read at once."""

    def __init__(self, read: Callable[[], T], limit_s: float | None = None) -> None:
        self._read = read
        self._limit_s = limit_s
        self._guard = Lock()
        self._until = 0.0
        self._last: Future[T] | None = None

    def read(self) -> T:
        """Return the result, or raise its error, or TimeoutError."""
        with self._guard:
            if self._last is None or monotonic() >= self._until:
                self._last, self._until = Future(), inf
                Thread(target=self._fill, args=(self._last,), daemon=True).start()
            last = self._last
        return last.result(self._limit_s)

    def _fill(self, last: Future[T]) -> None:
        try:
            last.set_result(self._read())
        except Exception as error:  # noqa: BLE001  (all who wait raise it)
            last.set_exception(error)
        self._until = monotonic() + FRESH_S
