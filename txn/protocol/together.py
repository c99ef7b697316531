"""A commit in one local transaction of the store, where the store can do that.

The phases are those of any other commit, between other brackets: what they do takes effect at once,
or not at all. While they run all other writers are kept out, so nobody waits in there: where they
would have to, for a lock, for a clock or for the store, everything is undone, and the same phases
follow one by one. Nothing foreign runs in there either: the watch is told afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from txn.clock import Clock
from txn.errors import CommitOutcomeUnknown, NotApplied
from txn.model import Cell, Key
from txn.protocol.attempt import (
    WRITTEN_WITHIN_MS,
    Attempt,
    Context,
    call_store,
    read_statuses,
)
from txn.protocol.waiting import Contention
from txn.watch import Event, silent

Phases = Callable[[Context, Contention], None]


class MustWait(Exception):
    """Something would have to be waited for."""


def can_commit_together(context: Context) -> bool:
    """Whether the store makes one transaction of what is done together."""
    return "atomic_together" in context.store.features


def commit_together(
    context: Context, limited: Context, transactions: Sequence[Attempt], phases: Phases
) -> bool:
    """Run all the phases of a commit in one local transaction of the store, and return True; or
    False where something would have to be waited for, and then nothing was done.

    limited: is patient with the store until the decision is due.
    Raises whatever keeps them from taking effect: nothing was done then either. Where that cannot
    be found out each transaction fails with CommitOutcomeUnknown.
    """
    told: list[Event] = []
    hurried = replace(
        context,
        clock=_Unwaiting(context.clock),
        watch=silent if context.watch is silent else told.append,
    )
    run = partial(phases, hurried, Contention(hurried, _refuse_to_settle))
    sent_ms = context.clock.monotonic_ms()
    try:
        lost = call_store(limited, lambda: _attempt(context, transactions, run, told))
    except BaseException as error:
        _reset(transactions)
        if isinstance(error, MustWait):
            return False
        raise
    if lost is not None:
        _find_outcome(context, transactions, lost, sent_ms)
    for event in told:
        context.watch(event)
    return True


def _attempt(
    context: Context, transactions: Sequence[Attempt], run: Callable[[], None], told: list[Event]
) -> Exception | None:
    """Run the phases together; return the error that leaves open whether they took effect."""
    is_done = False

    def work() -> None:
        nonlocal is_done
        is_done = False
        _reset(transactions)  # it may be run again
        told.clear()
        run()
        is_done = True

    try:
        context.store.together(work)
    except Exception as error:
        if is_done and not isinstance(error, NotApplied):
            return error
        raise
    return None


def _find_outcome(
    context: Context, transactions: Sequence[Attempt], lost: Exception, sent_ms: int
) -> None:
    """Settle what became of a local transaction whose end failed: as its rows say."""

    def look() -> None:
        context.store.write([], durable=True)  # what is found there lasts
        read_statuses(context, transactions)

    try:
        call_store(context, look)
    except Exception:  # noqa: BLE001  (whatever it is, the decision was sent)
        _fail(transactions, lost)
        return
    # Absent means not applied only while fsck has certainly kept the row.
    is_old = context.clock.monotonic_ms() - sent_ms > WRITTEN_WITHIN_MS
    for t in transactions:
        if t.unread is not None or (t.status is None and is_old):
            _fail([t], t.unread or lost)
        elif t.status is None:
            _reset([t])
            why = str(lost) or type(lost).__name__
            t.failure = NotApplied(f"the commit did not take effect: {why}", transaction=t.row_key)
            t.failure.__cause__ = lost


def _fail(transactions: Sequence[Attempt], cause: Exception) -> None:
    for t in transactions:
        if t.failure is None:
            t.failure = CommitOutcomeUnknown(t.row_key, cause)


def _reset(transactions: Sequence[Attempt]) -> None:
    for t in transactions:
        t.reset()


def _refuse_to_settle(holders: Mapping[bytes, Mapping[Key, Cell]]) -> Collection[bytes]:
    raise MustWait


class _Unwaiting:
    """A clock on which nobody can wait."""

    def __init__(self, clock: Clock) -> None:
        self.wall_ms = clock.wall_ms
        self.monotonic_ms = clock.monotonic_ms

    def sleep_ms(self, duration_ms: int) -> None:
        raise MustWait
