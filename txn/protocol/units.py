"""Units of the fenced protocol, a row and family that a transaction names: read with their locks,
and judged, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from txn.assertions import Assertion, holds, list_keys
from txn.errors import AbortedError, DeadlineError
from txn.model import Cell, Delete, Edit, Key
from txn.protocol.announce import announce
from txn.protocol.attempt import (
    Attempt,
    Context,
    Met,
    Transaction,
    call_store,
    group_by_holder,
    is_late,
)
from txn.protocol.beats import TOO_LATE
from txn.protocol.clocks import judge_ahead, was_set
from txn.protocol.commit import make_conflict, tell_conflicts
from txn.protocol.lock_cells import FREE, holder_of, read_lock
from txn.protocol.phases import Status
from txn.protocol.waiting import POLITE_TRIES, Contention, fail_overtaken, make_assertion_error

ASKS = 8
"""How often an attempt that does not wait asks for a lock that others take and give back."""

SET_MEANWHILE = "this machine's clock was set meanwhile: nothing was committed"

Unit = tuple[Attempt, Key]
"""An attempt and one of its lock cells."""


@announce("read")
def read_units(
    context: Context, transactions: Sequence[Attempt], contention: Contention, patient: bool
) -> list[Attempt]:
    """Read what each transaction names, with its locks, and evaluate its assertions; wait for who
    holds a lock, while nothing is written yet, where nobody else of a batch would wait too. What is
    false fails at once: one of several units after a second look that finds them unchanged."""
    due = list(transactions)
    unread = [(t, lock) for t in due for lock in t.units if not _is_known(t, lock)]
    tries = 0
    while due:
        look_at_units(context, unread)
        _take_over(unread)
        met = fail_overtaken(list_held((t, lock) for t in due for lock in t.units))
        held = {item.t for item in met}
        doubtful = [t for t in due if t not in held and t.failure is None and _judge(context, t)]
        _confirm(context, doubtful)
        if met:
            tell_conflicts(context, met)
            is_polite = len(transactions) == 1 and context.policy.attempts > 1
            if patient or (is_polite and tries < POLITE_TRIES):
                contention.wait_for_holders(met, tries)
            else:
                _fail_held(met, contention)
            tries += 1
        due = [t for t in due if t.failure is None and (t in held or t in doubtful)]
        unread = [(t, lock) for t in due for lock in t.units]
    for t in transactions:
        if t.failure is None and is_late(context, t):
            t.failure = DeadlineError(TOO_LATE)
    return [t for t in transactions if t.failure is None]


def look_at_units(context: Context, units: Iterable[Unit]) -> None:
    """Set what was found of units and seen of their keys; those of one row at one instant."""
    wanted = [(t, lock, t.units[lock]) for t, lock in units]
    asked = [cell for _, lock, keys in wanted for cell in (lock, *keys)]
    cells = call_store(context, lambda: context.store.read(asked)) if asked else {}
    for t, lock, keys in wanted:
        t.found[lock] = cells[lock]
        t.seen.update((key, cells[key]) for key in keys)


def _take_over(units: Iterable[Unit]) -> None:
    """Take those locks of parts that they hold already, as who wrote the same part before had them:
    as they were before that, but for the time."""
    for t, lock in units:
        cell = t.found[lock]
        if t.status is Status.PART and cell is not None and holder_of(lock, cell) == t.row_key:
            t.held.add(lock)
            t.found[lock] = Cell(read_lock(lock, cell).undo_take().value, cell.timestamp)


def _is_known(t: Attempt, lock: Key) -> bool:
    """Whether a block has brought what it had read of a unit."""
    return lock in t.found and all(key in t.seen for key in t.units[lock])


def list_held(units: Iterable[Unit]) -> list[Met]:
    """Return those units, as they were found, that somebody holds."""
    held = []
    for t, lock in units:
        cell = t.found[lock]
        if (holder := holder_of(lock, cell)) != FREE and t.failure is None:
            held.append(Met(t, t.units[lock][0], holder, cell))
    return held


def _fail_held(met: list[Met], contention: Contention) -> None:
    """Settle holders at once, with nothing written, and fail those whose holders live."""
    gone = contention.settle(group_by_holder(met))
    for item in met:
        if item.holder not in gone:
            item.t.failure = make_conflict(item.t, item.key, item.holder)


def _judge(context: Context, t: Attempt) -> bool:
    """Choose the timestamp, and fail what cannot be committed; return whether an assertion is
    false that only a second look can tell: its cells are of several instants."""
    raise_timestamp(context, t)
    lost = find_false(t)
    if lost is None or t.failure is not None:
        return False
    if t.request.once is None and len({t.locks[key] for key in list_keys(lost)}) == 1:
        t.failure = make_assertion_error(t, lost)
        return False
    return True


def _confirm(context: Context, doubtful: Sequence[Attempt]) -> None:
    """Fail those of which nothing has changed since they were looked at."""
    wanted = list(dict.fromkeys(lock for t in doubtful for lock in t.units))
    cells = call_store(context, lambda: context.store.read(wanted)) if wanted else {}
    for t in doubtful:
        lost = find_false(t)
        if lost is not None and all(cells[lock] == cell for lock, cell in t.found.items()):
            t.failure = make_assertion_error(t, lost)
        elif is_late(context, t):
            t.failure = DeadlineError(TOO_LATE)


def find_false(t: Attempt) -> Assertion | None:
    """Return the first assertion that does not hold of what was seen."""
    return next((each for each in t.request.assertions if not holds(each, t.seen)), None)


def raise_timestamp(context: Context, t: Attempt) -> None:
    """Choose a commit timestamp above all that was read, and not below the clock's."""
    cells = (*t.found.values(), *t.seen.values())
    newest = max((cell.timestamp for cell in cells if cell), default=0)
    now_ms = context.clock.wall_ms()
    if was_set(context):
        t.failure = AbortedError(SET_MEANWHILE, transaction=t.row_key)
    far = judge_ahead(context, t, newest, now_ms, chain(t.found.items(), t.seen.items()))
    t.failure = t.failure or far
    t.timestamp = max(t.timestamp, now_ms, newest + 1)


def list_edits(t: Transaction, timestamp: int) -> Iterable[tuple[Key, list[Edit]]]:
    """Return the lock cells of a transaction, each with what is put under it."""
    found: Mapping[Key, list[Edit]] = {lock: [] for lock in t.units}
    for mutation in t.request.mutations:
        value = None if isinstance(mutation, Delete) else mutation.value
        found[t.locks[mutation.key]].append(Edit(mutation.key, value, timestamp))
    return found.items()
