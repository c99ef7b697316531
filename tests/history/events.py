"""What a history is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

Value = Any  # hashable, and what JSON can carry where histories are kept in files


class Read(NamedTuple):
    """Lists: value is a tuple of elements. Registers: at is the version's timestamp, if known."""

    key: str
    value: Value
    at: int | None = None


class Write(NamedTuple):
    """Lists: value is the element that was appended. Registers: at is the commit timestamp."""

    key: str
    value: Value
    at: int | None = None


class Missing(Read):
    """A key that a scan could have found and did not: its value is None, or an empty list."""

    __slots__ = ()


class Deletion(Write):
    """A write to a register that leaves nothing: it is read as None. Its value is its name."""

    __slots__ = ()


class Ending(Enum):
    """What its client was told of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Transaction:
    """What one transaction did, in its order; began after `start`, was over before `end`."""

    name: str
    events: tuple[Read | Write, ...]
    start: int
    end: int | None = None
    ending: Ending = Ending.COMMITTED

    @property
    def known_end(self) -> int | None:
        return self.end if self.ending is Ending.COMMITTED else None

    def writes(self) -> list[Write]:
        return [event for event in self.events if isinstance(event, Write)]
