"""How much one look at a store may take: rows, bytes and time, whatever the size of the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from txn.clock import Clock
from txn.model import Row, cell_bytes

T = TypeVar("T")

MOST_AT_ONCE = 8
"""So many rows or values are read in one call at most: any of them may have ten megabytes, and how
many it has nobody knows before."""


class Stop(Enum):
    """Why a look went no further. AGE: what was begun before is older than was asked for, by its
    key; only what was finished late can still be among it."""

    FOUND = "as many as were asked for"
    BEGINNING = "the beginning of the table"
    ROWS = "the limit of rows"
    BYTES = "the limit of bytes"
    TIME = "the limit of time"
    AGE = "the age that was asked for"


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What a look may take: rows looked at, bytes of their cells, and time."""

    rows: int = 2_000
    bytes_: int = 16_000_000
    ms: int = 2_000


class Budget:
    """What a look has taken of its limits. A limit is passed by what one call of the store returns,
    and no more: whoever spends asks after each row."""

    def __init__(self, clock: Clock, limits: ReadLimits) -> None:
        self.limits = limits
        self.rows = 0
        self.bytes_ = 0
        self._clock = clock
        self._due_ms = clock.monotonic_ms() + limits.ms

    def spend(self, row: Row, *, again: bool = False) -> int:
        """Take a row into account; return its bytes. again: it was counted as a row before."""
        size = sum(cell_bytes(key, cell.value) for key, cell in row.cells.items())
        self.rows += not again
        self.bytes_ += size
        return size

    def divide(self, items: Sequence[T], cost: int = 1) -> Iterator[Sequence[T]]:
        """Yield the items, few at a time: at first one, then as many as promise, by the bytes that
        were spent on the last ones, no more than is left of the limit. cost: how many values are
        read of each. Whoever takes them ends where the budget is over."""
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
        """Which limit is reached, if one is."""
        if self.rows >= self.limits.rows:
            return Stop.ROWS
        if self.bytes_ >= self.limits.bytes_:
            return Stop.BYTES
        return Stop.TIME if self._clock.monotonic_ms() >= self._due_ms else None
