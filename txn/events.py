"""Named events of the protocol, for metrics, progress and tests. The default is silence.

A watch is called on the commit path: it must be quick and must not raise. It may commit other keys;
for those of the batch that it is called in, and for `flush`, it would wait in vain.
"""

from __future__ import annotations

from collections.abc import Callable
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
    "write",
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
"""What is done, in the words of docs/protocol.md; what has been done is told by a row's status. The
last two are the ends of a transaction as a whole, told of where they fail."""

PhaseOutcome = Literal["started", "done", "failed"]
Action = Literal["rolled forward", "rolled back", "freed"]

WorkName = Literal["send heartbeat", "extend lease", "check locks", "watch queue"]
"""What threads do again and again behind the client's back: see txn/repeating.py."""

CallName = Literal[
    "read",
    "read_versions",
    "write",
    "check_and_put",
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
"""Of a call that failed: it has certainly had no effect, or it may have had, or still have.
Refused: the call could not be taken, or the work that was to be done `together` gave up; nothing
was done."""

QueueName = Literal["line", "decided", "released"]
"""Requests that wait for a batch; transactions acknowledged at their decision, to be rolled
forward; transactions that hold nothing any more, whose rows have to be told so."""

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
"""How a request ended: a commit, its own or an earlier one with its token; why nothing was and will
be written, `cancelled`: its future was, `failed`: the store did; or that it may have been
committed."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A batch of transactions enters or leaves a phase; `failed` counts those that left the path.
    `elapsed_ms` is set when the phase is over. at_ns: when that was, since the epoch: what is done
    in a local transaction of the store is told when it is over."""

    name: PhaseName
    outcome: PhaseOutcome
    transactions: int
    failed: int = 0
    elapsed_ms: float | None = None
    at_ns: int = field(default_factory=stamp_ns, compare=False)


@dataclass(frozen=True, slots=True)
class Conflict:
    """A lock that was wanted is held by another transaction."""

    transaction: bytes
    key: Key
    holder: bytes
    at_ns: int = field(default_factory=stamp_ns, compare=False)


@dataclass(frozen=True, slots=True)
class Helped:
    """Another client's transaction was finished, or its leftover locks were freed."""

    holder: bytes
    action: Action


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A call of the store is over. items: how many keys, edits or checks it was given; of a scan,
    how many rows it found."""

    call: CallName
    outcome: CallOutcome
    items: int
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class Retried:
    """A call of the store has failed, and is sent again."""

    call: CallName
    at_ns: int = field(default_factory=stamp_ns, compare=False)


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """The work of a thread behind the client's back failed, and will be done again."""

    work: WorkName


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """Requests of so many callers' transactions go together, as one batch."""

    transactions: int


@dataclass(frozen=True, slots=True)
class Queued:
    """So many have come into a queue, or, less than zero, have left it. The events of two threads
    may be told in either order; their sum is the queue's length."""

    queue: QueueName
    change: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A request has its result. tries: how often its transaction was begun; 0: it was too late
    before anything was sent."""

    outcome: CommitOutcome
    tries: int
    elapsed_ms: float


Event = Phase | Conflict | Helped | StoreCall | Retried | WorkFailed | BatchStarted | Queued | Ended
Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """Ignore the event."""


def wants_calls(on_event: Listener) -> bool:
    """Whether calls of the store are to be measured for it. Who does without saves the time, and
    has an attribute of this name that is false."""
    return on_event is not silent and bool(getattr(on_event, "wants_calls", True))


def result_of(future: Future[Committed]) -> Committed | BaseException:
    """Return what a future tells that is done, whatever it raises."""
    if future.cancelled():
        return CancelledError()
    return future.exception() or future.result()


def name_outcome(result: Committed | BaseException) -> CommitOutcome:
    """Return how a request has ended. What is no error of this library has broken it off, at a
    point that is not known."""
    match result:
        case Committed():
            return "repeated" if result.repeated else "committed"
        case AbortedError():
            return _name_abort(result)
        case InvalidRequestError():
            return "invalid"
        case CancelledError():
            return "cancelled"
        case CommitOutcomeUnknown():
            return "unknown"
        case TxnError():
            return "failed"
        case _:
            return "unknown"


def _name_abort(error: AbortedError) -> CommitOutcome:
    match error:
        case ConflictError():
            return "conflict"
        case AssertionFailedError():
            return "assertion"
        case DeadlineError():
            return "deadline"
        case _:
            return "aborted"


def guard(on_event: Listener) -> Listener:
    """Return the watch with its errors kept in the log: no transaction fails for want of a watcher,
    and none that is committed is reported as anything else."""

    def tell(event: Event) -> None:
        try:
            on_event(event)
        except Exception:
            LOG.exception("a listener failed at an event: %s", type(event).__name__)

    return on_event if on_event is silent else tell
