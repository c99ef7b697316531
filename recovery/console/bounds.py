"""How much one look at a store may take: rows, bytes and time, whatever the size of the table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from txn.clock import Clock
from txn.model import Row, cell_bytes


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
class LookLimits:
    """What a look may take: rows looked at, bytes of their cells, and time."""

    rows: int = 2_000
    bytes_: int = 16_000_000
    ms: int = 2_000


class Budget:
    """What a look has taken of its limits. A limit is passed by what one call of the store returns,
    and no more: whoever spends asks after each row."""

    def __init__(self, clock: Clock, limits: LookLimits) -> None:
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

    @property
    def over(self) -> Stop | None:
        """Which limit is reached, if one is."""
        if self.rows >= self.limits.rows:
            return Stop.ROWS
        if self.bytes_ >= self.limits.bytes_:
            return Stop.BYTES
        return Stop.TIME if self._clock.monotonic_ms() >= self._due_ms else None
