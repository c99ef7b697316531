"""Fenced transactions whose locks lie in one region, which need no transaction row.

One request changes the values, and each lock of a changed unit to its next count, if all locks
still have the values that were read. So such a transaction never holds a lock. The changed locks
name the transaction, which resolves a lost answer, or a refusal of a repeated request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from txn.errors import (
    AbortedError,
    CommitOutcomeUnknown,
    ConflictError,
    DeadlineError,
    MaybeApplied,
    NotApplied,
    StoreError,
    TableUnavailable,
    TxnError,
    deny,
)
from txn.model import Cell, Check, Edit, Key
from txn.protocol.codec import Plan
from txn.protocol.context import Context, call_store, limit_patience
from txn.protocol.fenced import MAX_REQUESTS, list_edits, read_and_evaluate, read_lock_cells
from txn.protocol.locks import Contention, read_lock
from txn.protocol.prepare import run_for_available
from txn.protocol.row import FREE
from txn.protocol.statuses import Status
from txn.protocol.transaction import TOO_LATE, PendingCommit, is_late, report_phase

Checks = Mapping[Key, Check]
"""The request of a transaction: the check of each lock."""

Shown = Literal["ours", "others", "unknown", "passed"]
"""What locks show of a request: its own acquisition of a lock that it was to change, another's
instead, or too many since; or that a lock which it was only to compare has changed."""


def commit_without_rows(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention, patient: bool
) -> list[PendingCommit]:
    """Read and evaluate transactions that may need no row, and commit those whose locks the store
    can change together. Return the others, of which nothing was written."""
    apart: list[PendingCommit] = []
    live = _read(context, transactions, contention, patient)
    if live:
        _commit(context, live, contention, patient, apart)
    return apart


def _read(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention, patient: bool
) -> list[PendingCommit]:
    def work(some: Sequence[PendingCommit]) -> list[PendingCommit]:
        return read_and_evaluate(limit_patience(context, some), some, contention, patient)

    return run_for_available(work, transactions)


@report_phase("decide")
def _commit(
    context: Context,
    transactions: Sequence[PendingCommit],
    contention: Contention,
    patient: bool,
    apart: list[PendingCommit],
) -> list[PendingCommit]:
    """Commit transactions whose keys were read and evaluated. Raises nothing: each is committed,
    has failed, has an unknown outcome, or is added to `apart`."""
    due = list(transactions)
    for _ in range(MAX_REQUESTS):
        due = _request_commits(context, due, apart)
        if not due:
            break
        try:
            due = _read(context, due, contention, patient)
        except TxnError as error:  # refused requests had no effect
            for t in due:
                t.failure = t.failure or deny(error)
            due = []
    for t in due:
        t.failure = ConflictError("others are always faster", key=next(iter(t.keys)))
    return [t for t in transactions if t.failure is None]


def _request_commits(
    context: Context, transactions: Sequence[PendingCommit], apart: list[PendingCommit]
) -> list[PendingCommit]:
    """Request each commit once; return the refused ones, with their locks and keys read again."""
    pending: dict[PendingCommit, Checks] = {}
    for t in transactions:
        if is_late(context, t):
            t.failure = DeadlineError(TOO_LATE)
        elif t.request.mutations or len(t.lock_cells) > 1:
            pending[t] = _make_checks(t)
        else:  # all assertions held at one instant
            _set_committed(t)
    errors: list[StoreError] = []
    refused: list[PendingCommit] = []

    def attempt() -> None:
        _send(context, pending, errors, apart)
        refused.extend(_find_outcomes(context, pending))
        if pending:
            first, *_ = pending
            raise StoreError("locks do not change", key=next(iter(first.lock_cells)))

    try:
        patience = limit_patience(context, pending)
        while pending:
            try:
                call_store(patience, attempt)
            except TableUnavailable as error:
                # Requests to other tables may have taken effect; the next attempt finds out.
                _fail_refused(context, pending, error, errors)
            except StoreError:
                # A request that may have been sent is resolved even after its deadline, because
                # its outcome is worth more time.
                if patience is context or _is_clear(errors):
                    raise
                patience = context
    except Exception as error:  # noqa: BLE001  (whatever it is, the requests were sent)
        _fail_pending(pending, error, errors)
    return refused


def _make_checks(t: PendingCommit) -> Checks:
    """Return the condition for each lock, that it is as it was read. What it changes gets its
    values, and its lock the next count and the name of the transaction."""
    edits_of = dict(list_edits(t, t.timestamp))
    checks = {}
    for lock in t.lock_cells:
        cell, edits = t.found[lock], edits_of.get(lock)
        if edits:
            passed = read_lock(lock, cell).commit_single(t.row_key)
            edits = [*edits, Edit(lock, passed, t.timestamp + 1)]
        checks[lock] = Check(lock, cell.value if cell else FREE, edits=tuple(edits or ()))
    return checks


def _make_fence(t: PendingCommit, checks: Checks) -> Checks:
    """Return a request that only counts one of the locks, so that an earlier one fails from then
    on, should it still be under way."""
    lock = next(lock for lock, check in checks.items() if check.edits)
    counted = read_lock(lock, Cell(read_lock(lock, t.found[lock]).take(t.row_key), 0)).give_back()
    edits = (Edit(lock, counted, t.timestamp + 1),)
    return {lock: Check(lock, checks[lock].expected, edits=edits)}


def _send(
    context: Context,
    pending: dict[PendingCommit, Checks],
    errors: list[StoreError],
    apart: list[PendingCommit],
) -> None:
    """Send the pending requests, and remove those that took effect, or that the store cannot do
    together."""
    try:
        answers = context.store.put_if_all([[*checks.values()] for checks in pending.values()])
    except StoreError as error:
        errors.append(error)
        raise
    is_clear, is_refused = _is_clear(errors), False
    for (t, checks), answer in list(zip(pending.items(), answers, strict=True)):
        is_whole = len(checks) == len(t.lock_cells)
        if answer and is_whole:
            _set_committed(t)
            del pending[t]
        elif answer is None and (is_clear or not t.request.mutations):
            apart.append(t)
            del pending[t]
        elif answer is None:
            pending[t] = _make_fence(t, checks)
        else:
            is_refused = True
    if is_refused:  # a repeated request may have taken effect and then been refused
        errors.append(MaybeApplied("refused, and not looked at yet"))


def _find_outcomes(context: Context, pending: dict[PendingCommit, Checks]) -> list[PendingCommit]:
    """Read the locks of the pending requests, and remove every request whose outcome they show;
    another may still be in flight. Return those that were refused."""
    read_lock_cells(context, [(t, lock) for t in pending for lock in t.lock_cells])
    refused = []
    for t, checks in list(pending.items()):
        shown = _compare(t, checks)
        # A lock that it does not change proves something only since the last request was refused:
        # else the request might take effect between two looks, and the lock be taken then.
        if not shown:
            continue
        if shown & {"ours", "unknown"}:
            _set_outcome(t, shown, None)
        else:
            refused.append(t)
        del pending[t]
    return refused


def _compare(t: PendingCommit, checks: Checks) -> set[Shown]:
    """Return what the locks show of a request; see `Shown`."""
    shown: set[Shown] = set()
    for lock, check in checks.items():
        before = read_lock(lock, Cell(check.expected or FREE, 0)).taken
        now = read_lock(lock, t.found[lock])
        if now.taken <= before:
            continue
        was_ours = now.was_taken_by(t.row_key, before + 1)
        taken: Shown = "unknown" if was_ours is None else "ours" if was_ours else "others"
        shown.add(taken if check.edits else "passed")
    return shown


def _set_outcome(t: PendingCommit, shown: Collection[Shown], cause: Exception | None) -> None:
    """Set the outcome of a request that may have taken effect. All its locks change at once, so two
    that disagree were changed outside the protocol."""
    if "ours" in shown and "others" not in shown:
        _set_committed(t)
    else:
        t.failure = CommitOutcomeUnknown(t.row_key, cause)


def _fail_pending(
    pending: dict[PendingCommit, Checks], error: Exception, errors: Sequence[StoreError]
) -> None:
    """Fail the pending requests: as not applied if the store says so of each try, else unknown."""
    known = error if isinstance(error, NotApplied) and _is_clear(errors) else None
    for t in pending:
        t.failure = known or CommitOutcomeUnknown(t.row_key, error)


def _is_clear(errors: Sequence[StoreError]) -> bool:
    return all(isinstance(each, NotApplied) for each in errors)


def _fail_refused(
    context: Context,
    pending: dict[PendingCommit, Checks],
    error: TableUnavailable,
    errors: Sequence[StoreError],
) -> None:
    """End the requests that need a table which refuses them, or all. An answered request is no
    longer in flight, so the locks show whether it took effect, unless an earlier one was lost."""
    lost = {t: checks for t, checks in pending.items() if t.needs(error.table)} or dict(pending)
    for t in lost:
        del pending[t]
    try:
        read_lock_cells(context, [(t, lock) for t in lost for lock in t.lock_cells])
    except StoreError:
        _fail_pending(lost, error, errors)
        return
    for t, checks in lost.items():
        shown = _compare(t, checks)
        is_clear = _is_clear(
            [e for e in errors if not (isinstance(e, TableUnavailable) and t.needs(e.table))]
        )
        if is_clear and not shown & {"ours", "unknown"}:
            t.failure = AbortedError(str(error), transaction=t.row_key)
            t.failure.__cause__ = error
        else:
            _set_outcome(t, shown, error)


def _set_committed(t: PendingCommit) -> None:
    t.plan, t.status = Plan(t.timestamp, ()), Status.COMPLETE
