"""The steps before the decision that both protocols share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from txn.errors import AbortedError, ConflictError, StoreError, TableUnavailable
from txn.events import Conflict
from txn.model import Cell, Check, Key
from txn.protocol.codec import OPEN
from txn.protocol.context import Context, are_apart, call_store
from txn.protocol.locks import (
    Blocker,
    Contention,
    find_failed,
    holder_of,
    make_assertion_error,
    make_conflict,
)
from txn.protocol.ranges import find_phantom
from txn.protocol.row import EARLY, LATE, column
from txn.protocol.statuses import Status
from txn.protocol.transaction import (
    PORTION,
    WRITTEN_WITHIN_MS,
    PendingCommit,
    advance_with,
    fail_aborted,
    read_statuses,
    report_phase,
    send_heartbeats_between,
    split_portions,
)

RESOLVED_AT_ONCE = PORTION // 10


def run_for_available(
    work: Callable[[Sequence[PendingCommit]], list[PendingCommit]],
    transactions: Sequence[PendingCommit],
) -> list[PendingCommit]:
    """Run a step before the decision, which may run twice; return the transactions that can still
    commit, as it does. A missing table aborts only the transactions that need it."""
    live = list(transactions)
    while live:
        try:
            return work(live)
        except TableUnavailable as error:
            lost = [t for t in live if t.needs(error.table)]
            if not lost:
                raise
            for t in lost:
                t.failure = t.failure or AbortedError(str(error), transaction=t.row_key)
                t.failure.__cause__ = error
            live = [t for t in live if t.failure is None]
    return live


def write_rows(
    context: Context, transactions: Iterable[PendingCommit], checks: Sequence[Check] = ()
) -> list[bool]:
    """Write the rows of transactions that have none, with requests for their locks, in one call.
    Return the answers to the requests; those of transactions that fail meanwhile count as well.

    The write may be repeated. If that took too long, other clients may have aborted or poisoned the
    row, fsck may have deleted it, and a client may be about to release its locks. So the row key is
    given up.
    """

    def buffer(t: PendingCommit) -> list[tuple[Key, bytes]]:
        cells = [(column(context.table, t.row_key, b"buffer"), t.buffer)]
        if t.parts is not None:
            cells.append((column(context.table, t.row_key, b"parts"), OPEN))
        if t.validates:
            mark = LATE if t.is_patient else EARLY
            cells.append((column(context.table, t.row_key, b"ranges"), mark))
        return cells

    new = [*{t: None for t in transactions if t.status is None}]
    sent_ms = context.clock.monotonic_ms()
    for t in new:
        t.written_ms = sent_ms if t.written_ms is None else t.written_ms
        t.alive_ms = sent_ms
    try:
        answers = advance_with(context, new, Status.WRITTEN, checks, buffer, now_ms=sent_ms)
    except TableUnavailable:  # that of a lock; the rows may have been written
        with suppress(StoreError):
            read_statuses(context, [t for t in new if t.status is None])
        _fail_given_up(context, [t for t in new if t.status is not None])
        raise
    _fail_given_up(context, new)
    return answers


def _fail_given_up(context: Context, transactions: Sequence[PendingCommit]) -> None:
    """Fail the transactions that were aborted, or whose rows took too long to write."""
    now_ms = context.clock.monotonic_ms()
    for t in fail_aborted(transactions, Status.WRITTEN):
        if t.written_ms is not None and now_ms - t.written_ms > WRITTEN_WITHIN_MS:
            t.failure = ConflictError("writing its row took too long", transaction=t.row_key)


def resolve_all(
    context: Context,
    transactions: Sequence[PendingCommit],
    contention: Contention,
    holders: Mapping[bytes, Mapping[Key, Cell]],
) -> set[bytes]:
    """Resolve holders, each of which may take a commit's time; return those that released."""
    gone: set[bytes] = set()
    for some in send_heartbeats_between(
        context, transactions, split_portions(list(holders.items()), RESOLVED_AT_ONCE)
    ):
        gone.update(contention.resolve(dict(some)))
    return gone


@report_phase("validate")
def validate(
    context: Context,
    transactions: Sequence[PendingCommit],
    contention: Contention,
    again: Sequence[PendingCommit],
) -> list[PendingCommit]:
    """Fail the transactions whose scanned ranges have keys of others; then those of `again` whose
    validated keys are locked, or have changed since they were read. These reads fix the place of a
    transaction in their order, so readers wait for it."""
    for t in transactions:
        failure = find_phantom(context, t, transactions, contention.resolve) if t.spans else None
        t.failure = t.failure or failure  # a heartbeat may have failed it meanwhile
    due = [t for t in again if t.failure is None]
    keys = dict.fromkeys(key for t in due for (key, *_) in t.validated.values())
    found: dict[Key, Cell | None] = {}
    for some in send_heartbeats_between(context, transactions, split_portions(list(keys))):
        guards = [guard for key in some for guard in context.rules.guards_of(key)]
        found.update(call_store(context, partial(context.store.read, guards)))
    for t in due:
        if t.failure is None:
            t.failure = _judge_validated(context, t, found)
    return [t for t in transactions if t.failure is None]


def resolve_found(
    context: Context,
    transactions: Sequence[PendingCommit],
    live: list[PendingCommit],
    contention: Contention,
) -> list[PendingCommit]:
    """Resolve the holders of validated keys for which transactions failed, as those of other keys
    are: they may have died. A hot key was taken just now. Return those that still live."""
    met: dict[bytes, dict[Key, Cell]] = {}
    for t in transactions if any([t.validated for t in transactions]) else ():
        failure = t.failure
        if not isinstance(failure, ConflictError) or not failure.holder:
            continue
        for lock, (key, *_) in t.validated.items():
            cell = t.found.get(lock)
            if key == failure.key and cell and not contention.list_hot_keys([key]):
                met.setdefault(failure.holder, {})[lock] = cell
    if not met:
        return live
    resolve_all(context, transactions, contention, met)
    return [t for t in live if t.failure is None]


def find_locked(t: PendingCommit, cells: Mapping[Key, Cell | None]) -> ConflictError | None:
    """Return a conflict if one of the keys that it validates is locked: its cell may be old."""
    for lock, (key, *_) in t.validated.items():
        if holder := holder_of(lock, cells[lock]):
            return make_conflict(t, key, holder)
    return None


def _judge_validated(
    context: Context, t: PendingCommit, found: Mapping[Key, Cell | None]
) -> AbortedError | None:
    if (blocked := find_locked(t, found)) is not None:
        t.found.update((lock, found[lock]) for lock in t.validated)
        return blocked
    # As for reads: a six-phase key may have come, gone and been retired meanwhile.
    is_old = not context.rules.locks_rows and are_apart(context, t.begun_ms)
    for key, *_ in t.validated.values():
        guards = context.rules.guards_of(key)
        if is_old or any([found[guard] != t.found[guard] for guard in guards]):
            words = "an asserted key changed before the decision"
            return ConflictError(words, key=key, transaction=t.row_key)
    lost = find_failed(t)
    return None if lost is None else make_assertion_error(t, lost)


def fail_conflicts(blockers: Iterable[Blocker], released: Collection[bytes] = ()) -> None:
    """Fail the transactions that are blocked by other holders than these."""
    for t, key, holder, _ in blockers:
        if holder not in released:
            t.failure = t.failure or make_conflict(t, key, holder)


def report_conflicts(context: Context, missing: Iterable[Blocker]) -> None:
    for item in missing:
        context.on_event(Conflict(item.t.row_key, item.key, item.holder))
