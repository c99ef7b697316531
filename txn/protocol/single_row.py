"""Fenced transactions of one row and family, which need no transaction row.

The values, and the lock with its next count, are written in one step on the condition that the lock
still says what was read. So no transaction ever holds it. The lock names the transaction, and by
that a lost answer, or a "no" to a request that was sent twice, is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from txn.protocol.fenced import ASKS, list_edits, read_and_evaluate, read_lock_cells
from txn.protocol.locks import Contention, read_lock
from txn.protocol.prepare import run_for_available
from txn.protocol.row import FREE
from txn.protocol.statuses import Status
from txn.protocol.transaction import TOO_LATE, PendingCommit, is_late, report_phase


@report_phase("decide")
def commit_single_rows(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention, patient: bool
) -> list[PendingCommit]:
    """Commit transactions that were read and judged. It raises nothing: each has committed, has
    failed, or its outcome is unknown."""
    due = list(transactions)
    for _ in range(ASKS):
        due = _ask(context, due)
        if not due:
            break
        try:
            due = run_for_available(
                lambda some: read_and_evaluate(
                    limit_patience(context, some), some, contention, patient
                ),
                due,
            )
        except TxnError as error:  # what was refused did not happen
            for t in due:
                t.failure = t.failure or deny(error)
            due = []
    for t in due:
        t.failure = ConflictError("others are always faster", key=next(iter(t.keys)))
    return [t for t in transactions if t.failure is None]


def _ask(context: Context, transactions: Sequence[PendingCommit]) -> list[PendingCommit]:
    """Ask once; return those that were refused, with what is there now."""
    pending: dict[PendingCommit, Check] = {}
    for t in transactions:
        if is_late(context, t):
            t.failure = DeadlineError(TOO_LATE)
        elif t.request.mutations:
            pending[t] = _make_step(t)
        else:  # all that it asserts was true at one instant
            _end(t)
    errors: list[StoreError] = []
    refused: list[PendingCommit] = []

    def attempt() -> None:
        _send(context, pending, errors)
        refused.extend(_settle(context, pending))
        if pending:
            raise StoreError("lock does not change", key=next(iter(pending.values())).key)

    try:
        _settle_all(context, attempt, pending, errors)
    except Exception as error:  # noqa: BLE001  (whatever it is, the requests were sent)
        _leave(pending, error, errors)
    return refused


def _settle_all(
    context: Context,
    attempt: Callable[[], None],
    pending: dict[PendingCommit, Check],
    errors: Sequence[StoreError],
) -> None:
    """PendingCommit it until nothing is pending. Where a table refuses its requests, those of other
    tables may have been done, or not: that is settled with the next attempt. What may have been
    sent is asked for after its deadline, too: what became of it is worth more time."""
    patience = limit_patience(context, pending)
    while pending:
        try:
            call_store(patience, attempt)
        except TableUnavailable as error:
            _end_refused(context, pending, error, errors)
        except StoreError:
            if patience is context or _is_clear(errors):
                raise
            patience = context


def _send(context: Context, pending: dict[PendingCommit, Check], errors: list[StoreError]) -> None:
    """Send what is pending, and take out what was done."""
    try:
        answers = context.store.check_and_put(list(pending.values()))
    except StoreError as error:
        errors.append(error)
        raise
    for t, moved in list(zip(pending, answers, strict=True)):
        if moved:
            _end(t)
            del pending[t]
    if pending:  # a request that was sent twice may be done, and the second answer be "no"
        errors.append(MaybeApplied("refused, and not looked at yet"))


def _settle(context: Context, pending: dict[PendingCommit, Check]) -> list[PendingCommit]:
    """Read what was answered with "no", and take out all but those of which nothing can be said
    yet: the first request may still be on its way. Return those that were refused."""
    read_lock_cells(context, [(t, check.key) for t, check in pending.items()])
    refused = []
    for t, check in list(pending.items()):
        before = read_lock(check.key, Cell(check.expected, 0)).taken
        now = read_lock(check.key, t.found[check.key])
        was_taken = now.was_taken_by(t.row_key, before + 1)
        if was_taken:
            _end(t)
        elif was_taken is None:
            t.failure = CommitOutcomeUnknown(t.row_key)
        elif now.taken > before:
            refused.append(t)
        else:
            continue
        del pending[t]
    return refused


def _leave(
    pending: dict[PendingCommit, Check], error: Exception, errors: Sequence[StoreError]
) -> None:
    """Fail what is pending: it did not happen if the store says so of each try."""
    is_clear = _is_clear(errors)
    for t in pending:
        if is_clear and isinstance(error, NotApplied):
            t.failure = error
        else:
            t.failure = CommitOutcomeUnknown(t.row_key, error)


def _is_clear(errors: Sequence[StoreError]) -> bool:
    """Whether the store says of each try that it did not happen."""
    return all(isinstance(each, NotApplied) for each in errors)


def _end_refused(
    context: Context,
    pending: dict[PendingCommit, Check],
    error: TableUnavailable,
    errors: Sequence[StoreError],
) -> None:
    """End those that need a table which refuses them, or all. A request that was answered is on its
    way no more, so their locks tell whether they happened, unless another one was lost before."""
    lost = {t: check for t, check in pending.items() if t.needs(error.table)} or dict(pending)
    for t in lost:
        del pending[t]
    try:
        read_lock_cells(context, [(t, check.key) for t, check in lost.items()])
    except StoreError:
        _leave(lost, error, errors)
        return
    is_clear = all(isinstance(each, NotApplied | TableUnavailable) for each in errors)
    for t, check in lost.items():
        before = read_lock(check.key, Cell(check.expected, 0)).taken
        was_taken = read_lock(check.key, t.found[check.key]).was_taken_by(t.row_key, before + 1)
        if was_taken:
            _end(t)
        elif is_clear and was_taken is False:
            t.failure = AbortedError(str(error), transaction=t.row_key)
            t.failure.__cause__ = error
        else:
            t.failure = CommitOutcomeUnknown(t.row_key, error)


def _make_step(t: PendingCommit) -> Check:
    ((lock, edits),) = list_edits(t, t.timestamp)
    cell = t.found[lock]
    passed = Edit(lock, read_lock(lock, cell).commit_single(t.row_key).value, t.timestamp + 1)
    return Check(lock, cell.value if cell else FREE, edits=(*edits, passed))


def _end(t: PendingCommit) -> None:
    t.plan, t.status = Plan(t.timestamp, ()), Status.COMPLETE
