"""How anybody ends what was begun: what was decided is rolled forward, the rest back.

The owner itself, the next client that meets its locks, a thread behind it and fsck all run this
code, any number of times. The argument for each rule is in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from logging import ERROR, WARNING, getLogger

from txn.errors import AbortedError, CorruptRowError, TableUnavailable, TxnError
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
    load_transaction,
    put_statuses,
)
from txn.protocol.lock_cells import FREE
from txn.protocol.phases import Status
from txn.protocol.ranges import stored_rows
from txn.protocol.row import (
    Buffer,
    RowState,
    TransactionRow,
    column,
    decode_row,
    encode_plan,
    follow,
    rows_of_parts,
    whole_of,
)
from txn.protocol.row_cells import read_rows
from txn.spans import Span
from txn.text import name_failure, reason_text
from txn.watch import Phase, PhaseName

Finish = Callable[[Context, Sequence[Transaction]], None]
Tell = Callable[[Context, Sequence[Transaction], Status], object]
LOG = getLogger("txn")
MOST_NAMED = 10
PARTS_AT_ONCE = 4
NOT_COUNTED = "it is not among the parts that were decided"


# ----------------------------------------------------------------------- after the decision


def roll_forward(
    context: Context, transactions: Sequence[Transaction], tell: Tell = advance
) -> None:
    """Finish decided transactions, each from the status that its row has reached. Anybody may, any
    number of times: every later writer of a cell has a greater commit timestamp. One whose status
    could not be seen meanwhile is left where that was, and `unread` says why. Parts come first: a
    transaction goes on from its decision when all of its own are complete.

    tell: steps rows to a status that is put, not compared, once all of its work is done.
    """
    finish_parts(context, transactions)
    begun = [(t, t.status) for t in transactions]

    def forward() -> None:
        for t, status in begun:
            t.status, t.unread = status, None
        follow_decision(context, [t for t in transactions if t.status is Status.PART])
        found = [(t, t.status) for t in transactions]
        due: list[Transaction] = []
        for status, work, reached in context.rules.forward:
            due += [t for t, at in found if at is status]
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


def follow_decision(context: Context, parts: Sequence[Transaction]) -> None:
    """Let parts of decided transactions say so themselves, with the plan that this gives them."""

    def plan(t: Transaction) -> list[tuple[Key, bytes]]:
        return [(column(context.table, t.row_key, b"plan"), encode_plan(t.decided))]

    if parts:
        advance(context, parts, Status.ASSERTED, plan)


def finish_parts(context: Context, transactions: Sequence[Transaction]) -> None:
    """Finish all parts of decided transactions, and release those that these do not count: when
    this returns none of the parts has anything left to do. Raises CorruptRowError for a part of
    which nobody knows what it would write, or whether it was decided."""
    for t in transactions:
        if t.status is Status.ASSERTED and t.parts is not None:
            _finish_parts_of(context, t)
        elif t.status is Status.ASSERTED and not isinstance(t, Attempt):
            require_no_parts(context, t.row_key, t.keys)


def require_no_parts(context: Context, row_key: bytes, keys: Iterable[Key]) -> None:
    """Raise CorruptRowError for a transaction that has parts, and has lost how many. Such a one has
    no key of its own but a marker's."""
    is_bare = all(key.table == context.table for key in keys)
    if is_bare and next(_list_parts(context, row_key), None):
        raise CorruptRowError("the counts of its parts are missing", row=row_key)


def _finish_parts_of(context: Context, t: Transaction) -> None:
    whole = TransactionRow(
        t.row_key, t.status, buffer=Buffer(t.request, 1), plan=t.plan, parts=t.parts
    )
    for some in _list_parts(context, t.row_key):
        rows = [follow(row, whole) for row in some]
        for row in rows:
            if row.state is RowState.UNREADABLE:
                raise CorruptRowError("part does not decode", row=row.row_key, cause=row.cause)
        lost = [row for row in rows if row.state is RowState.ABORTING]
        roll_back(context, [load_transaction(context, row) for row in lost], lambda _: NOT_COUNTED)
        found = [load_transaction(context, row) for row in rows if row.state is RowState.DECIDED]
        roll_forward(context, found)
        for part in found:
            if part.unread is not None:
                raise part.unread


def _list_parts(context: Context, whole: bytes) -> Iterator[list[TransactionRow]]:
    """Yield the rows of a transaction's parts, some at a time, as they are stored."""
    rows = stored_rows(context, Span(context.table, *rows_of_parts(whole)))
    while some := [decode_row(row) for row in islice(rows, PARTS_AT_ONCE)]:
        yield some


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
    as it is, with its new status. With a part its transaction aborts, first, since only that one
    decides; with a transaction its parts do, afterwards."""

    def because(t: AnyTransaction) -> list[tuple[Key, bytes]]:
        return [(column(context.table, t.row_key, b"reason"), reason(t).encode())]

    parts = [t for t in transactions if t.status is Status.PART]
    if parts:
        lost = _abort_wholes(context, parts, reason(parts[0]))
        advance(context, [t for t in parts if t.row_key in lost], Status.ABORTING, because)
    for undecided in (Status.WRITTEN, Status.LOCKED):  # its owner may step between the two
        due = [t for t in transactions if t.status is undecided]
        if due:
            advance(context, due, Status.ABORTING, because)
    due = [t for t in transactions if t.status is Status.ABORTING]
    if due:
        context.rules.free_own(context, due)
        advance(context, due, Status.ABORTED)
    for t in due:
        if t.parts is not None and t.status is Status.ABORTED:
            release_parts(context, t.row_key, reason(t))


def _abort_wholes(context: Context, parts: Sequence[Transaction], reason: str) -> Collection[bytes]:
    """Abort the transactions of parts, where they are undecided; return those of the parts that
    will never be committed."""
    wholes = read_rows(context, {whole_of(t.row_key) or t.row_key for t in parts}).values()
    undecided = [load_transaction(context, row) for row in wholes if not row.is_over]
    for whole in undecided:
        whole.parts = None  # the other parts are left to whoever comes to them
    roll_back(context, undecided, lambda _: reason)
    rows = read_rows(context, [t.row_key for t in parts])
    return {row.row_key for row in rows.values() if row.state is RowState.ABORTING}


def release_parts(context: Context, whole: bytes, reason: str) -> None:
    """Release all parts of a transaction that was aborted, by whomever."""
    for some in _list_parts(context, whole):
        parts = [load_transaction(context, row) for row in some if not row.is_over]
        roll_back(context, parts, lambda _: reason)


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
        level,
        "%s of %d left to others: %s cause=%s",
        *(name, len(left), named, name_failure(cause)),
        exc_info=trace,
    )
