"""Named events of the protocol, for metrics, progress and tests. The default is silence.

A watch is called on the commit path: it must be quick and must not raise. It may commit other keys;
for those of the batch that it is called in, and for `flush`, it would wait in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger
from typing import Literal

from txn.model import Key

LOG = getLogger("txn")

PhaseName = Literal[
    "read",
    "write",
    "lock",
    "assert",
    "look",
    "decide",
    "put",
    "clean",
    "unlock",
    "roll forward",
    "roll back",
]
"""What is done, in the words of docs/protocol.md; what has been done is told by a row's status. The
last two are the ends of a transaction as a whole, told of where they fail."""

PhaseOutcome = Literal["started", "done", "failed"]
Action = Literal["rolled forward", "rolled back", "freed"]


@dataclass(frozen=True, slots=True)
class Phase:
    """A batch of transactions enters or leaves a phase; `failed` counts those that left the path.
    `elapsed_ms` is set when the phase is over."""

    name: PhaseName
    outcome: PhaseOutcome
    transactions: int
    failed: int = 0
    elapsed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A lock that was wanted is held by another transaction."""

    transaction: bytes
    key: Key
    holder: bytes


@dataclass(frozen=True, slots=True)
class Helped:
    """Another client's transaction was finished, or its leftover locks were freed."""

    holder: bytes
    action: Action


Event = Phase | Conflict | Helped
Watch = Callable[[Event], None]


def silent(event: Event) -> None:
    """Ignore the event."""


def guard(watch: Watch) -> Watch:
    """Return the watch with its errors kept in the log: no transaction fails for want of a watcher,
    and none that is committed is reported as anything else."""

    def tell(event: Event) -> None:
        try:
            watch(event)
        except Exception:
            LOG.exception("the watch failed at %r", event)

    return watch if watch is silent else tell
