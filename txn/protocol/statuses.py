"""The statuses of a transaction row and the steps between them, as one table for each protocol.

A transaction goes through 0, 1, 2, 3, 4, 5, or it leaves that line before 2 and goes through 6, 7.
The step from 1 to 2 is the decision: only the owner takes it, and nothing can undo it. The steps
from 0 and 1 to 6 are the opposite decision, and any client may take them. Both are a
compare-and-set on the status cell, so exactly one of them succeeds. Every other step records work
that was done on the data; any client may take it, any number of times:

    0-WRITTEN ──> 1-LOCKED ══> 2-ASSERTED ──> 3-PUT ──> 4-CLEANING ──> 5-COMPLETE
        │             │
        └──────┬──────┘            ══ the decision
               v
          6-ABORTING ──> 7-ABORTED

A status names the work that is finished, so recovery repeats the work that follows it. Names begin
with a digit so that a scan of the table shows them in order.

A child row begins at 0-PART and stays there while its parent is undecided. It then follows the
parent to 2-ASSERTED or 6-ABORTING, and continues alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import attrgetter
from typing import Literal

from txn.model import Key
from txn.stores.base import Feature


class Status(Enum):
    """The phase that a transaction row has reached; the value is the stored form."""

    WRITTEN = b"0-WRITTEN"
    LOCKED = b"1-LOCKED"
    ASSERTED = b"2-ASSERTED"
    PUT = b"3-PUT"
    CLEANING = b"4-CLEANING"
    COMPLETE = b"5-COMPLETE"
    ABORTING = b"6-ABORTING"
    ABORTED = b"7-ABORTED"
    PART = b"0-PART"

    __hash__ = object.__hash__  # members are singletons; `Enum.__hash__` takes four times as long

    def __init__(self, encoded: bytes) -> None:
        """Keep the value as `encoded`, since `Enum.value` takes ten times as long, and as `at` the
        column that records when a row reached the status."""
        self.encoded = encoded
        self.at = b"at." + encoded

    @property
    def is_undecided(self) -> bool:
        return self in UNDECIDED

    @property
    def is_decided(self) -> bool:
        """Whether the transaction is committed; its work may be unfinished."""
        return self in COMMITTED

    @property
    def is_finished(self) -> bool:
        """Whether no work is left; the transaction needs its locks no longer."""
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
"""The steps of the fenced protocol: 0, 2, 5, or through 1 if an attempt that waits validates."""

DONE = frozenset({Status.PUT, Status.CLEANING, Status.COMPLETE})
"""The statuses after all values are put."""

FIRST = frozenset({Status.WRITTEN, Status.PART})
"""The statuses that an owner's row begins with."""

BEGINNINGS = FIRST | {Status.ABORTED}
"""The statuses that a row can begin with. A client that meets the lock of an absent row poisons the
row, so that its owner can never decide, and then releases the lock."""


class IllegalStepError(RuntimeError):
    """The code asked for a step that the table does not have; nothing was sent."""


Steps = Mapping[Status, frozenset[Status]]


def check_step(steps: Steps, old: Status | None, new: Status) -> None:
    """Raise IllegalStepError unless a row may step from `old` (None: no row) to `new`."""
    if new not in (BEGINNINGS if old is None else steps[old]):
        raise IllegalStepError(f"no step leads from {old} to {new}")


UNDECIDED = frozenset({Status.PART, Status.WRITTEN, Status.LOCKED})
COMMITTED = frozenset({Status.ASSERTED, Status.PUT, Status.CLEANING, Status.COMPLETE})
FINISHED = frozenset({Status.COMPLETE, Status.ABORTED})


ProtocolName = Literal["six-phase", "fenced"]
KeptRows = Literal["always", "needed"]
"""Which transactions of a database have a row: all, or those whose protocol needs it."""


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """The differences between the protocols, as data.

    needs: features that the store must have. steps: the successors of each status. released: the
    status at which all locks are released. deferred: statuses that a crash of their server may
    undo: see docs/protocol.md. unconditional: steps that are put without a comparison; poison, the
    step from no row to 7-ABORTED, always compares. locks_rows: whether a lock covers a row and
    family instead of a key. keeps_rows: whether every transaction has a row. lock_of: the lock cell
    of a key. offsets_ms: the timestamp of each status, relative to the time in the row key, if
    clients choose the timestamps of their rows; empty if servers choose them.
    """

    name: ProtocolName
    needs: frozenset[Feature]
    steps: Steps
    released: Status
    deferred: frozenset[Status]
    unconditional: frozenset[tuple[Status | None, Status]] = frozenset()
    locks_rows: bool = False
    keeps_rows: bool = True
    lock_of: Callable[[Key], Key] = attrgetter("lock")
    offsets_ms: Mapping[Status, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} (rows: {self.rows})" if self.locks_rows else self.name

    @property
    def stored_name(self) -> bytes:
        """The name in a database, which clients of earlier versions do not know."""
        return self.old_name + b"/2"

    @property
    def old_name(self) -> bytes:
        """The name in a database of an earlier version."""
        return self.name.encode()

    @property
    def rows(self) -> KeptRows:
        return "always" if self.keeps_rows else "needed"

    def choose_variant(self, *, keeps_rows: bool) -> Rules:
        """Return the variant that keeps all rows, or only those that the protocol needs."""
        is_same = not self.locks_rows or keeps_rows == self.keeps_rows
        return self if is_same else replace(self, keeps_rows=keeps_rows)

    def guards_of(self, key: Key) -> tuple[Key, ...]:
        """Return the cells that show whether a key has changed: its lock, and its tag if any."""
        return (key.row_lock,) if self.locks_rows else (key.lock, key.tag)


SIX_PHASE = Rules(
    "six-phase",
    frozenset(),
    STEPS,
    released=Status.CLEANING,
    deferred=frozenset({Status.WRITTEN, Status.LOCKED, Status.CLEANING, Status.COMPLETE}),
)
FENCED = Rules(
    "fenced",
    frozenset({"multi_cell_check", "row_mutations"}),
    FENCED_STEPS,
    released=Status.ASSERTED,
    deferred=frozenset({Status.WRITTEN, Status.COMPLETE}),
    unconditional=frozenset(
        {
            (None, Status.WRITTEN),
            (Status.ASSERTED, Status.COMPLETE),
            (Status.ABORTING, Status.ABORTED),
        }
    ),
    locks_rows=True,
    keeps_rows=False,
    lock_of=attrgetter("row_lock"),
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
