"""How anybody ends what was begun: what was decided is rolled forward, the rest back.

The owner itself, the next client that meets its locks, a thread behind it and fsck all run this
code, any number of times. The argument for each rule is in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from logging import ERROR, WARNING, getLogger

from txn.errors import AbortedError, TableUnavailable, TxnError
from txn.model import Cell, Delete, Edit, Key
from txn.protocol.announce import announce
from txn.protocol.attempt import (
    AnyTransaction,
    Attempt,
    Context,
    Transaction,
    advance,
    call_store,
    free_locks,
    put_statuses,
)
from txn.protocol.lock_cells import FREE
from txn.protocol.phases import Status
from txn.protocol.row import column
from txn.text import reason_text
from txn.watch import Phase, PhaseName

Finish = Callable[[Context, Sequence[Transaction]], None]
Tell = Callable[[Context, Sequence[Transaction], Status], object]
LOG = getLogger("txn")
MOST_NAMED = 10


# ----------------------------------------------------------------------- after the decision


def roll_forward(
    context: Context, transactions: Sequence[Transaction], tell: Tell = advance
) -> None:
    """Finish decided transactions, each from the status that its row has reached. Anybody may, any
    number of times: every later writer of a cell has a greater commit timestamp. One whose status
    could not be seen meanwhile is left where that was, and `unread` says why.

    tell: steps rows to a status that is put, not compared, once all of its work is done.
    """
    begun = [(t, t.status) for t in transactions]

    def forward() -> None:
        for t, status in begun:
            t.status, t.unread = status, None
        due: list[Transaction] = []
        for status, work, reached in context.rules.forward:
            due += [t for t, found in begun if found is status]
            if due:
                # One that is overtaken does its later steps all the same: what it put, it cleans.
                work(context, due)
            behind = [t for t in due if t.status and reached in context.rules.steps[t.status]]
            step = tell if reached in context.rules.plain else advance
            step(context, behind, reached)
            due = [t for t in due if t.unread is None]

    try:
        context.store.together(forward)
    except Exception:
        for t, status in begun:  # what was done together may have been undone together
            t.status = status
        raise


def tell_complete(context: Context, transactions: Sequence[Transaction]) -> None:
    """Put the last status into the rows of transactions of which nothing is left to do."""
    steps = [context.rules.make_step(context, t, Status.COMPLETE, []) for t in transactions]
    put_statuses(context, steps, durable=False)


@announce("put")
def put_values(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Put each value, or delete marker, with a tag that names the version it replaces."""
    edits: list[Edit] = []
    for t in transactions:
        timestamp, replaced = t.decided.timestamp, t.decided.replaced
        for mutation, version in zip(t.request.mutations, replaced, strict=True):
            value = None if isinstance(mutation, Delete) else mutation.value
            edits.append(Edit(mutation.key, value, timestamp))
            edits.append(Edit(mutation.key.tag, b"%d" % version, timestamp))
    call_store(context, lambda: context.store.write(edits, durable=False))
    return list(transactions)


@announce("clean")
def clean_tags(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Empty each tag. The empty tag stays, as the witness of when its cell last changed."""
    edits = [
        Edit(mutation.key.tag, FREE, t.decided.timestamp)
        for t in transactions
        for mutation in t.request.mutations
    ]
    call_store(context, lambda: context.store.write(edits, durable=False))
    return list(transactions)


@announce("unlock")
def free_own_locks(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Free each lock that is still the transaction's own."""
    held = ((t, lock) for t in transactions for lock in t.units if lock in t.held)
    free_locks(context, {lock: Cell(t.row_key, 0) for t, lock in held})
    return list(transactions)


FORWARD = (
    (Status.ASSERTED, put_values, Status.PUT),
    (Status.PUT, clean_tags, Status.CLEANING),
    (Status.CLEANING, free_own_locks, Status.COMPLETE),
)


# --------------------------------------------------------------------------------- aborting


def roll_back(
    context: Context,
    transactions: Sequence[AnyTransaction],
    reason: Callable[[AnyTransaction], str],
) -> None:
    """Abort what is undecided and release what is aborting. What its owner decided meanwhile stays
    as it is, with its new status."""

    def because(t: AnyTransaction) -> list[tuple[Key, bytes]]:
        return [(column(context.table, t.row_key, b"reason"), reason(t).encode())]

    for undecided in (Status.WRITTEN, Status.LOCKED):  # its owner may step between the two
        due = [t for t in transactions if t.status is undecided]
        if due:
            advance(context, due, Status.ABORTING, because)
    due = [t for t in transactions if t.status is Status.ABORTING]
    if due:
        context.rules.free_own(context, due)
        advance(context, due, Status.ABORTED)


def release_aborted(context: Context, attempts: Sequence[Attempt]) -> None:
    """Undo what certainly aborted. Where somebody else had aborted it, we may have taken locks
    afterwards: these are freed too."""
    reasons = {t: reason_text(t.failure) for t in attempts if isinstance(t.failure, AbortedError)}
    late = [t for t in reasons if t.status is None or t.status is Status.ABORTED]
    if late:
        context.rules.free_own(context, late)
    roll_back(context, list(reasons), lambda t: reasons[t])


def finish_or_leave(
    context: Context,
    name: PhaseName,
    work: Callable[[Context, Sequence[AnyTransaction]], None],
    transactions: Sequence[AnyTransaction],
) -> None:
    """Do work whose outcome is already decided, so that nothing may be raised any more. What fails
    leaves it to the next client, as if this client had died; the watch and the log are told.
    Where a table is gone, that is the work on the transactions that need it, and no others."""
    due = list(transactions)
    while due:
        try:
            work(context, due)
            return
        except Exception as error:  # noqa: BLE001  (the transactions are what they are)
            gone = error.table if isinstance(error, TableUnavailable) else None
            left = {t for t in due if gone and t.needs(gone)} or set(due)
            _leave(context, name, left, error)
            due = [t for t in due if t not in left]


def _leave(
    context: Context, name: PhaseName, transactions: Collection[Transaction], cause: Exception
) -> None:
    count = len(transactions)
    context.watch(Phase(name, "failed", count, count))
    left = [t.row_key.decode() for t in transactions if not t.is_finished]
    named = ", ".join(left[:MOST_NAMED]) + (", ..." if len(left) > MOST_NAMED else "")
    level, trace = (WARNING, None) if isinstance(cause, TxnError) else (ERROR, cause)
    LOG.log(
        level, "%s of %d left to others: %s cause=%r", name, len(left), named, cause, exc_info=trace
    )
