"""The statuses of a transaction row and the steps between them, as one table for each protocol.

A transaction goes 0, 1, 2, 3, 4, 5, or it leaves that line before 2 and goes 6, 7. The step from
1 to 2 is the decision: only the owner takes it, and once it is taken nothing can take it back. The
steps from 0 and 1 to 6 are the opposite decision, and any client may take them. Both are
compare-and-set on the one status cell, so exactly one of them happens. Every other step only
records what has already been done to the data, and any client may take it, any number of times:

    0-WRITTEN ──> 1-LOCKED ══> 2-ASSERTED ──> 3-PUT ──> 4-CLEANING ──> 5-COMPLETE
        │             │
        └──────┬──────┘            ══ the decision
               v
          6-ABORTING ──> 7-ABORTED

A status says what was finished, so recovery repeats the work that follows it. The names begin with
their digit so that a person who scans the table sees them in order.

The row of a child begins with 0-PART, and stays there while its parent, which has a row of its own,
can go either way. It follows the parent to 2-ASSERTED or to 6-ABORTING, and goes on alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from txn.model import Key
from txn.stores.base import Feature


class Status(Enum):
    """The phase that a transaction row has reached; the value is what is stored."""

    WRITTEN = b"0-WRITTEN"
    LOCKED = b"1-LOCKED"
    ASSERTED = b"2-ASSERTED"
    PUT = b"3-PUT"
    CLEANING = b"4-CLEANING"
    COMPLETE = b"5-COMPLETE"
    ABORTING = b"6-ABORTING"
    ABORTED = b"7-ABORTED"
    PART = b"0-PART"

    __hash__ = object.__hash__  # each is one object; that of `Enum` takes four times as long

    def __init__(self, encoded: bytes) -> None:
        """encoded: the value, which of an `Enum` takes ten times as long. at: the column that tells
        when a row came to the status."""
        self.encoded = encoded
        self.at = b"at." + encoded

    @property
    def is_undecided(self) -> bool:
        """Whether the transaction may still go either way."""
        return self in UNDECIDED

    @property
    def is_decided(self) -> bool:
        """Whether the transaction is committed, finished or not."""
        return self in COMMITTED

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do: no lock of the transaction is needed any more."""
        return self in FINISHED

    def __str__(self) -> str:
        return self.value.decode()


STEPS: dict[Status, frozenset[Status]] = {
    Status.PART: frozenset({Status.PART, Status.ASSERTED, Status.ABORTING}),
    Status.WRITTEN: frozenset({Status.LOCKED, Status.ABORTING}),
    Status.LOCKED: frozenset({Status.ASSERTED, Status.ABORTING}),
    Status.ASSERTED: frozenset({Status.PUT}),
    Status.PUT: frozenset({Status.CLEANING}),
    Status.CLEANING: frozenset({Status.COMPLETE}),
    Status.COMPLETE: frozenset(),
    Status.ABORTING: frozenset({Status.ABORTED}),
    Status.ABORTED: frozenset(),
}

FENCED_STEPS: dict[Status, frozenset[Status]] = {
    Status.PART: frozenset({Status.PART, Status.ASSERTED, Status.ABORTING}),
    Status.WRITTEN: frozenset({Status.LOCKED, Status.ASSERTED, Status.ABORTING}),
    Status.LOCKED: frozenset({Status.ASSERTED, Status.ABORTING}),
    Status.ASSERTED: frozenset({Status.COMPLETE}),
    Status.COMPLETE: frozenset(),
    Status.ABORTING: frozenset({Status.ABORTED}),
    Status.ABORTED: frozenset(),
}
"""The steps of the fenced protocol, which goes 0, 2, 5; over 1 where ranges are looked at."""

DONE = frozenset({Status.PUT, Status.CLEANING, Status.COMPLETE})
"""Which say of work that it was done: no value is put any more, or no lock held."""

FIRST = frozenset({Status.WRITTEN, Status.PART})
"""With which a row begins."""


class IllegalStepError(RuntimeError):
    """The code has asked for a step that the table does not have: nothing was sent."""


Steps = Mapping[Status, frozenset[Status]]


def check_step(steps: Steps, old: Status | None, new: Status) -> None:
    """Raise IllegalStepError unless a row goes from the one status to the other; None: no row."""
    is_legal = new in FIRST if old is None else new in steps[old]
    if not is_legal:
        raise IllegalStepError(f"no step leads from {old} to {new}")


UNDECIDED = frozenset({Status.PART, Status.WRITTEN, Status.LOCKED})
COMMITTED = frozenset({Status.ASSERTED, Status.PUT, Status.CLEANING, Status.COMPLETE})
FINISHED = frozenset({Status.COMPLETE, Status.ABORTED})


ProtocolName = Literal["six-phase", "fenced"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a protocol does in its own way, as data.

    needs: what its store must be able to do. steps: which step leads to which. unconditional: the
    statuses that are put, not compared. locks_rows: whether a lock is of a row and family, and not
    of a key. offsets_ms: how long after the time in its row key each status lies, where clients
    choose the timestamps of their rows; empty where servers do.
    """

    name: ProtocolName
    needs: frozenset[Feature]
    steps: Steps
    unconditional: frozenset[Status] = frozenset()
    locks_rows: bool = False
    offsets_ms: Mapping[Status, int] = field(default_factory=dict, compare=False)

    def lock_of(self, key: Key) -> Key:
        """Return the lock cell of a key."""
        return key.row_lock if self.locks_rows else key.lock

    def guards_of(self, key: Key) -> tuple[Key, ...]:
        """Return the cells that tell whether a key has changed: its lock, and its tag if any."""
        return (key.row_lock,) if self.locks_rows else (key.lock, key.tag)


SIX_PHASE = Rules("six-phase", frozenset(), STEPS)
FENCED = Rules(
    "fenced",
    frozenset({"multi_cell_check", "row_mutations"}),
    FENCED_STEPS,
    frozenset({Status.WRITTEN, Status.COMPLETE, Status.ABORTED}),
    locks_rows=True,
    offsets_ms={
        Status.PART: 0,
        Status.WRITTEN: 0,
        Status.LOCKED: 1,
        Status.ASSERTED: 2,
        Status.COMPLETE: 5,
        Status.ABORTING: 6,
        Status.ABORTED: 7,
    },
)
PROTOCOLS: dict[str, Rules] = {rules.name: rules for rules in (SIX_PHASE, FENCED)}
