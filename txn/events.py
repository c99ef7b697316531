"""Named events of the protocol, for metrics, progress and tests. The default listener is silent.

A listener is called on the commit path: it must be quick and must not raise. It may commit other
keys; committing keys of the current batch, or calling `flush`, would deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from logging import getLogger
from typing import Literal

from txn.clock import stamp_ns
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    DeadlineError,
    InvalidRequestError,
    TxnError,
)
from txn.model import Key
from txn.request import Committed

LOG = getLogger("txn")

PhaseName = Literal[
    "read",
    "lock",
    "assert",
    "validate",
    "decide",
    "put",
    "clean",
    "unlock",
    "roll forward",
    "roll back",
]
"""The steps of docs/protocol.md. The last two are the end of a whole transaction, and are reported
only when they fail. A row's status says which steps are done."""

PhaseOutcome = Literal["started", "done", "failed"]
Action = Literal["rolled forward", "rolled back", "freed"]

WorkName = Literal["send heartbeat", "extend lease", "check locks", "watch queue"]
"""Repeated work of background threads: see txn/repeating.py."""

CallName = Literal[
    "read",
    "read_versions",
    "write",
    "check_and_put",
    "put_if_all",
    "check_and_read",
    "scan",
    "atomically",
    "describe",
    "ensure_table",
    "find_splits",
    "list_tables",
    "compact",
]
"""A method of a store: see txn/stores/base.py."""

CallOutcome = Literal["done", "not applied", "maybe applied", "refused"]
"""How a call ended. "not applied": it certainly had no effect. "maybe applied": it may have had
one, or still have. "refused": the call was not accepted, or the work inside `atomically` gave up;
nothing was done."""

QueueName = Literal["line", "decided", "released"]
""""line": requests that wait for a batch. "decided": transactions acknowledged at their decision,
to be rolled forward. "released": transactions without locks whose rows lack the final status."""

CommitOutcome = Literal[
    "committed",
    "repeated",
    "conflict",
    "assertion",
    "deadline",
    "aborted",
    "invalid",
    "cancelled",
    "failed",
    "unknown",
]
"""How a request ended. "committed"; "repeated": an earlier commit with its token. "unknown": it may
have been committed. In all other cases nothing was or will be written; "cancelled": its future was
cancelled; "failed": the store failed."""


ENDS: Sequence[tuple[type[BaseException], CommitOutcome]] = (
    (ConflictError, "conflict"),
    (AssertionFailedError, "assertion"),
    (DeadlineError, "deadline"),
    (AbortedError, "aborted"),
    (InvalidRequestError, "invalid"),
    (CancelledError, "cancelled"),
    (CommitOutcomeUnknown, "unknown"),
    (TxnError, "failed"),
)
"""The outcome that each error means; the first class that fits counts."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A batch of transactions enters or leaves a phase.

    failed: the number of transactions that failed in it.
    elapsed_ms: set at the end of the phase.
    at_ns: the time since the epoch; events of a local transaction are reported at its end.
    """

    name: PhaseName
    outcome: PhaseOutcome
    transactions: int
    failed: int = 0
    elapsed_ms: float | None = None
    at_ns: int = field(default_factory=stamp_ns, compare=False)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another transaction holds a wanted lock."""

    transaction: bytes
    key: Key
    holder: bytes
    at_ns: int = field(default_factory=stamp_ns, compare=False)


@dataclass(frozen=True, slots=True)
class Helped:
    """Another client's transaction was finished, or its leftover locks were released.

    owner: that client's program, process and host, such as `etl.py[4711]@web-3`; empty: not known.
    """

    holder: bytes
    action: Action
    owner: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A call of the store is over.

    items: the number of keys, edits or checks; for a scan, of rows found.
    """

    call: CallName
    outcome: CallOutcome
    items: int
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class Retried:
    """A call of the store has failed and is repeated."""

    call: CallName
    at_ns: int = field(default_factory=stamp_ns, compare=False)


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """The work of a background thread failed, and will be repeated."""

    work: WorkName


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """A batch starts, with requests of several callers."""

    transactions: int


@dataclass(frozen=True, slots=True)
class Queued:
    """So many entered a queue or, if negative, left it. Events of two threads may be reported in
    either order; their sum is the length of the queue."""

    queue: QueueName
    change: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A request has its result.

    tries: how often its transaction was begun; 0: its deadline passed before anything was sent.
    """

    outcome: CommitOutcome
    tries: int
    elapsed_ms: float


Event = Phase | Conflict | Helped | StoreCall | Retried | WorkFailed | BatchStarted | Queued | Ended
Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """Ignore the event; the default listener."""


def wants_calls(on_event: Listener) -> bool:
    """Whether to measure calls of the store for this listener. A listener that does not need them
    has a false attribute of this name, and saves the time."""
    return on_event is not silent and bool(getattr(on_event, "wants_calls", True))


def result_of(future: Future[Committed]) -> Committed | BaseException:
    """Return the result or exception of a future that is done."""
    if future.cancelled():
        return CancelledError()
    return future.exception() or future.result()


def name_outcome(result: Committed | BaseException) -> CommitOutcome:
    """Return how a request ended. A foreign exception interrupted it at an unknown point."""
    if isinstance(result, Committed):
        return "repeated" if result.repeated else "committed"
    return next((name for kind, name in ENDS if isinstance(result, kind)), "unknown")


def guard(on_event: Listener) -> Listener:
    """Return a listener whose errors are only logged, and never affect a transaction."""

    def report(event: Event) -> None:
        try:
            on_event(event)
        except Exception:
            LOG.exception("a listener failed at an event: %s", type(event).__name__)

    return on_event if on_event is silent else report
