"""Fenced transactions of one row and family, which need no transaction row.

One step writes the values, and the lock with its next count, if the lock still has the value that
was read. So such a transaction never holds the lock. The lock names the transaction, which resolves
a lost answer, or a refusal of a repeated request.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from txn.model import Cell, Check, Edit
from txn.protocol.codec import Plan
from txn.protocol.context import Context, call_store, limit_patience
from txn.protocol.fenced import MAX_REQUESTS, list_edits, read_and_evaluate, read_lock_cells
from txn.protocol.locks import Contention, read_lock
from txn.protocol.prepare import run_for_available
from txn.protocol.row import FREE
from txn.protocol.statuses import Status
from txn.protocol.transaction import TOO_LATE, PendingCommit, is_late, report_phase


@report_phase("decide")
def commit_single_rows(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention, patient: bool
) -> list[PendingCommit]:
    """Commit transactions whose keys were read and evaluated. Raises nothing: each is committed,
    has failed, or its outcome is unknown."""
    due = list(transactions)
    for _ in range(MAX_REQUESTS):
        due = _request_commits(context, due)
        if not due:
            break
        try:
            due = run_for_available(
                lambda some: read_and_evaluate(
                    limit_patience(context, some), some, contention, patient
                ),
                due,
            )
        except TxnError as error:  # refused requests had no effect
            for t in due:
                t.failure = t.failure or deny(error)
            due = []
    for t in due:
        t.failure = ConflictError("others are always faster", key=next(iter(t.keys)))
    return [t for t in transactions if t.failure is None]


def _request_commits(
    context: Context, transactions: Sequence[PendingCommit]
) -> list[PendingCommit]:
    """Request each commit once; return the refused ones, with their locks and keys read again."""
    pending: dict[PendingCommit, Check] = {}
    for t in transactions:
        if is_late(context, t):
            t.failure = DeadlineError(TOO_LATE)
        elif t.request.mutations:
            ((lock, edits),) = list_edits(t, t.timestamp)
            cell = t.found[lock]
            passed = Edit(lock, read_lock(lock, cell).commit_single(t.row_key), t.timestamp + 1)
            pending[t] = Check(lock, cell.value if cell else FREE, edits=(*edits, passed))
        else:  # all assertions held at one instant
            _set_committed(t)
    errors: list[StoreError] = []
    refused: list[PendingCommit] = []

    def attempt() -> None:
        _send(context, pending, errors)
        refused.extend(_find_outcomes(context, pending))
        if pending:
            raise StoreError("lock does not change", key=next(iter(pending.values())).key)

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


def _send(context: Context, pending: dict[PendingCommit, Check], errors: list[StoreError]) -> None:
    try:
        answers = context.store.check_and_put(list(pending.values()))
    except StoreError as error:
        errors.append(error)
        raise
    for t, moved in list(zip(pending, answers, strict=True)):
        if moved:
            _set_committed(t)
            del pending[t]
    if pending:  # a repeated request may have taken effect and then been refused
        errors.append(MaybeApplied("refused, and not looked at yet"))


def _find_outcomes(context: Context, pending: dict[PendingCommit, Check]) -> list[PendingCommit]:
    """Read the locks of refused requests, and remove every request whose outcome they show; another
    may still be in flight. Return those that were refused."""
    read_lock_cells(context, [(t, check.key) for t, check in pending.items()])
    refused = []
    for t, check in list(pending.items()):
        before = read_lock(check.key, Cell(check.expected or FREE, 0)).taken
        now = read_lock(check.key, t.found[check.key])
        was_taken = now.was_taken_by(t.row_key, before + 1)
        if was_taken:
            _set_committed(t)
        elif was_taken is None:
            t.failure = CommitOutcomeUnknown(t.row_key)
        elif now.taken > before:
            refused.append(t)
        else:
            continue
        del pending[t]
    return refused


def _fail_pending(
    pending: dict[PendingCommit, Check], error: Exception, errors: Sequence[StoreError]
) -> None:
    """Fail the pending requests: as not applied if the store says so of each try, else unknown."""
    known = error if isinstance(error, NotApplied) and _is_clear(errors) else None
    for t in pending:
        t.failure = known or CommitOutcomeUnknown(t.row_key, error)


def _is_clear(errors: Sequence[StoreError]) -> bool:
    return all(isinstance(each, NotApplied) for each in errors)


def _fail_refused(
    context: Context,
    pending: dict[PendingCommit, Check],
    error: TableUnavailable,
    errors: Sequence[StoreError],
) -> None:
    """End the requests that need a table which refuses them, or all. An answered request is no
    longer in flight, so the locks show whether it took effect, unless an earlier one was lost."""
    lost = {t: check for t, check in pending.items() if t.needs(error.table)} or dict(pending)
    for t in lost:
        del pending[t]
    try:
        read_lock_cells(context, [(t, check.key) for t, check in lost.items()])
    except StoreError:
        _fail_pending(lost, error, errors)
        return
    is_clear = all(isinstance(each, NotApplied | TableUnavailable) for each in errors)
    for t, check in lost.items():
        before = read_lock(check.key, Cell(check.expected or FREE, 0)).taken
        was_taken = read_lock(check.key, t.found[check.key]).was_taken_by(t.row_key, before + 1)
        if was_taken:
            _set_committed(t)
        elif is_clear and was_taken is False:
            t.failure = AbortedError(str(error), transaction=t.row_key)
            t.failure.__cause__ = error
        else:
            t.failure = CommitOutcomeUnknown(t.row_key, error)


def _set_committed(t: PendingCommit) -> None:
    t.plan, t.status = Plan(t.timestamp, ()), Status.COMPLETE
