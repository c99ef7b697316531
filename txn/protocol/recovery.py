"""How any client ends what was begun: what was decided is rolled forward, the rest back.

The owner itself, the next client that meets its locks, a thread behind it and fsck all run this
code, any number of times. The argument for each rule is in docs/protocol.md.

A client that meets a lock asks `Resolver` what its holder is. A holder that is finished, or whose
row is absent, can never decide again: its lock is a late request, and is released. One that was
decided is finished for it, one that is aborting is released. One that is undecided is left alone
until its row has been seen unchanged for its whole lock TTL, on this client's own monotonic clock.
Aborting a living transaction costs it a retry, nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from logging import ERROR, WARNING

from txn.errors import (
    AbortedError,
    CorruptRowError,
    InvalidRequestError,
    StoreClosedError,
    StoreError,
    TableUnavailable,
    TxnError,
)
from txn.events import LOG, Action, Helped, Phase, PhaseName
from txn.model import Cell, Key
from txn.protocol import fenced, six_phase
from txn.protocol.codec import Buffer, encode_plan
from txn.protocol.context import Context
from txn.protocol.locks import NO_LOCK, make_foreign_error, release_locks
from txn.protocol.ranges import stored_rows
from txn.protocol.row import (
    RowState,
    TransactionRow,
    child_range,
    column,
    decode_row,
    follow,
    is_row_key,
    parent_of,
    read_rows,
)
from txn.protocol.statuses import Status
from txn.protocol.transaction import (
    AnyTransaction,
    PendingCommit,
    Transaction,
    advance,
    load_transaction,
    make_step,
    put_statuses,
)
from txn.spans import Span
from txn.text import holder_text, name_failure, reason_text

Finish = Callable[[Context, Sequence[Transaction]], None]
Tell = Callable[[Context, Sequence[Transaction], Status], object]
MOST_NAMED = 10
CHILDREN_AT_ONCE = 4
NOT_COUNTED = "it is not among the parts that were decided"


def roll_forward(
    context: Context, transactions: Sequence[Transaction], tell: Tell = advance
) -> None:
    """Finish decided transactions, each from the status that its row has reached. Anybody may, any
    number of times: every later writer of a cell has a greater commit timestamp. One whose status
    could not be seen meanwhile is left where that was, and `unread` says why. Parts come first: a
    transaction goes on from its decision when all of its own are complete.

    tell: steps rows to a status that is put, not compared, once all of its work is done.
    """
    protocol = fenced if context.rules.locks_rows else six_phase
    finish_children(context, transactions)
    begun = [(t, t.status) for t in transactions]

    def forward() -> None:
        for t, status in begun:
            t.status, t.unread = status, None
        follow_decision(context, [t for t in transactions if t.status is Status.PART])
        found = [(t, t.status) for t in transactions]
        due: list[Transaction] = []
        for status, work, reached in protocol.FORWARD:
            due += [t for t, at in found if at is status]
            if due:
                # One that is overtaken does its later steps all the same: what it put, it cleans.
                work(context, due)
            behind = [t for t in due if t.status and reached in context.rules.steps[t.status]]
            step = tell if reached in context.rules.unconditional else advance
            step(context, behind, reached)
            due = [t for t in due if t.unread is None]

    try:
        context.store.atomically(forward)
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


def finish_children(context: Context, transactions: Sequence[Transaction]) -> None:
    """Finish all parts of decided transactions, and release those that these do not count: when
    this returns none of the parts has anything left to do. Raises CorruptRowError for a part of
    which nobody knows what it would write, or whether it was decided."""
    for t in transactions:
        if t.status is Status.ASSERTED and t.parts is not None:
            _finish_children_of(context, t)
        elif t.status is Status.ASSERTED and not isinstance(t, PendingCommit):
            require_no_children(context, t.row_key, t.keys)


def require_no_children(context: Context, row_key: bytes, keys: Iterable[Key]) -> None:
    """Raise CorruptRowError for a transaction that has parts, and has lost how many. Such a one has
    no key of its own but a marker's."""
    is_bare = all(key.table == context.table for key in keys)
    if is_bare and next(_list_children(context, row_key), None):
        raise CorruptRowError("the counts of its parts are missing", row=row_key)


def _finish_children_of(context: Context, t: Transaction) -> None:
    whole = TransactionRow(
        t.row_key, t.status, buffer=Buffer(t.request, 1), plan=t.plan, parts=t.parts
    )
    for some in _list_children(context, t.row_key):
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


def _list_children(context: Context, whole: bytes) -> Iterator[list[TransactionRow]]:
    """Yield the rows of a transaction's parts, some at a time, as they are stored."""
    rows = stored_rows(context, Span(context.table, *child_range(whole)))
    while some := [decode_row(row) for row in islice(rows, CHILDREN_AT_ONCE)]:
        yield some


def mark_complete(context: Context, transactions: Sequence[Transaction]) -> None:
    """Put the last status into the rows of transactions of which nothing is left to do."""
    steps = [make_step(context, t, Status.COMPLETE, []) for t in transactions]
    put_statuses(context, steps, durable=False)


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
        lost = _abort_parents(context, parts, reason(parts[0]))
        advance(context, [t for t in parts if t.row_key in lost], Status.ABORTING, because)
    for undecided in (Status.WRITTEN, Status.LOCKED):  # its owner may step between the two
        due = [t for t in transactions if t.status is undecided]
        if due:
            advance(context, due, Status.ABORTING, because)
    due = [t for t in transactions if t.status is Status.ABORTING]
    if due:
        release_own_locks(context, due)
        advance(context, due, Status.ABORTED)
    for t in due:
        if t.parts is not None and t.status is Status.ABORTED:
            release_children(context, t.row_key, reason(t))


def release_own_locks(context: Context, transactions: Sequence[Transaction]) -> None:
    """Release each lock that is still one of these transactions' own."""
    if context.rules.locks_rows:
        fenced.release_row_locks(context, transactions)
    else:
        six_phase.release_key_locks(context, transactions)


def _abort_parents(
    context: Context, parts: Sequence[Transaction], reason: str
) -> Collection[bytes]:
    """Abort the transactions of parts, where they are undecided; return those of the parts that
    will never be committed."""
    wholes = read_rows(context, {parent_of(t.row_key) or t.row_key for t in parts}).values()
    undecided = [load_transaction(context, row) for row in wholes if not row.is_over]
    for whole in undecided:
        whole.parts = None  # the other parts are left to whoever comes to them
    roll_back(context, undecided, lambda _: reason)
    rows = read_rows(context, [t.row_key for t in parts])
    return {row.row_key for row in rows.values() if row.state is RowState.ABORTING}


def release_children(context: Context, whole: bytes, reason: str) -> None:
    """Release all parts of a transaction that was aborted, by whomever."""
    for some in _list_children(context, whole):
        parts = [load_transaction(context, row) for row in some if not row.is_over]
        roll_back(context, parts, lambda _: reason)


def release_aborted(context: Context, attempts: Sequence[PendingCommit]) -> None:
    """Undo what certainly aborted. Where somebody else had aborted it, we may have taken locks
    afterwards: these are freed too."""
    reasons = {t: reason_text(t.failure) for t in attempts if isinstance(t.failure, AbortedError)}
    late = [t for t in reasons if t.status is None or t.status is Status.ABORTED]
    if late:
        release_own_locks(context, late)
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
    context.on_event(Phase(name, "failed", count, count))
    left = [t.row_key.decode() for t in transactions if not t.is_finished]
    named = ", ".join(left[:MOST_NAMED]) + (", ..." if len(left) > MOST_NAMED else "")
    level, trace = (WARNING, None) if isinstance(cause, TxnError) else (ERROR, cause)
    LOG.log(
        level,
        "%s of %d left to others: %s cause=%s",
        *(name, len(left), named, name_failure(cause)),
        exc_info=trace,
    )


REMEMBERED = 10_000
STUCK_MS = 1_000  # between two tries at a holder that cannot be ended


@dataclass(slots=True)
class _Sighting:
    """A row as it was found, unchanged since then, and when it was looked at last."""

    found: tuple[Status, int, int]
    since_ms: int
    looked_ms: int


class Resolver:
    """Settles holders, and remembers since when each has been seen as it is. Many threads share it:
    what is remembered may be forgotten between any two looks at it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sightings: dict[bytes, _Sighting] = {}
        self._stuck: dict[bytes, TxnError] = {}

    def resolve(self, holders: Mapping[bytes, Mapping[Key, Cell]]) -> set[bytes]:
        """Resolve holders, each with the lock cells it was met in; return those that let go. One
        that cannot be ended is in the way like one that lives: see `blame`."""
        now_ms = self._context.clock.monotonic_ms()
        due = [holder for holder in holders if self._is_due(holder, now_ms)]
        rows = read_rows(self._context, due) if due else {}
        return {holder for holder, row in rows.items() if self._end_holder(row, holders[holder])}

    def add_cause(self, failure: TxnError | None) -> TxnError | None:
        """Return an error that names a holder with why this one could not be ended, if so it was.
        A lock of another database, or what is no lock, is waited for in vain: that is no conflict.
        """
        holder = failure.facts.get("holder") if isinstance(failure, AbortedError) else None
        cause = self._stuck.get(holder) if isinstance(holder, bytes) else None
        if isinstance(failure, AbortedError) and isinstance(holder, bytes) and cause is not None:
            if isinstance(cause, InvalidRequestError) or not is_row_key(holder):
                failure = AbortedError(str(cause), transaction=failure.transaction)
                failure.__cause__ = cause
            else:
                failure.add_cause(cause)
        return failure

    def _is_due(self, holder: bytes, now_ms: int) -> bool:
        """Whether to look at the row again: one that lives needs no more than a look now and then,
        and those that wait for it see its lock go."""
        seen = self._sightings.get(holder)
        return seen is None or now_ms - seen.looked_ms >= self._context.policy.courtesy_ms

    def _end_holder(self, row: TransactionRow, locks: Mapping[Key, Cell]) -> bool:
        self._stuck.pop(row.row_key, None)
        try:
            return self._settle(row, locks)
        except StoreClosedError:
            raise
        except (StoreError, CorruptRowError, InvalidRequestError) as error:
            if len(self._stuck) >= REMEMBERED:
                self._stuck = {}
            self._stuck[row.row_key] = error
            if (seen := self._sightings.get(row.row_key)) is not None:
                seen.looked_ms += STUCK_MS
            return False

    def _settle(self, row: TransactionRow, locks: Mapping[Key, Cell]) -> bool:
        context = self._context
        if not is_row_key(row.row_key):
            raise make_foreign_error(NO_LOCK, *next(iter(locks.items())))
        if row.is_over:
            free_for_holder(context, row.row_key, locks)
            return True
        if row.status is None or row.state is RowState.UNREADABLE:
            raise make_corrupt_error(row)
        lock_ttl_ms = row.buffer.lock_ttl_ms if row.buffer else context.policy.lock_ttl_ms
        if not self._is_abandoned(row, row.status, lock_ttl_ms):
            return False
        t = load_transaction(context, row)
        if row.state is RowState.DECIDED:
            roll_forward(context, [t])
        else:
            roll_back(context, [t], lambda _: "its owner was silent for its whole lease")
        if t.unread is not None:
            raise t.unread
        if t.status is not None and not t.status.is_finished:
            return False  # its owner decided meanwhile
        done: Action = "rolled forward" if t.status is Status.COMPLETE else "rolled back"
        report_help(context, row.row_key, done)
        self._sightings.pop(row.row_key, None)
        free_for_holder(
            context, row.row_key, locks
        )  # a late lock request may have landed meanwhile
        return True

    def _is_abandoned(self, row: TransactionRow, status: Status, lock_ttl_ms: int) -> bool:
        now_ms = self._context.clock.monotonic_ms()
        found = (status, row.status_at, row.heartbeat)
        seen = self._sightings.get(row.row_key)
        if seen is None or seen.found != found:
            if len(self._sightings) >= REMEMBERED:
                self._sightings = {}  # costs a lease of waiting at worst
            seen = self._sightings[row.row_key] = _Sighting(found, now_ms, now_ms)
        seen.looked_ms = now_ms
        patience_ms = lock_ttl_ms if status.is_undecided else self._context.policy.courtesy_ms
        return now_ms - seen.since_ms >= patience_ms


def make_corrupt_error(row: TransactionRow) -> TxnError:
    """Return the error of a row of which nobody can know what it decided: fsck reports it."""
    if row.elsewhere is not None:
        theirs, ours = row.elsewhere
        return InvalidRequestError(
            "a transaction of another database has locked a key of the table: name its "
            "transaction table",
            belongs_to=theirs,
            transactions=ours,
            holder=row.row_key,
        )
    return CorruptRowError("transaction row does not decode", row=row.row_key, cause=row.cause)


def free_for_holder(context: Context, holder: bytes, locks: Mapping[Key, Cell]) -> None:
    """Free lock cells of a finished or absent transaction."""
    if release_locks(context, locks):
        report_help(context, holder, "freed")


def report_help(context: Context, holder: bytes, done: Action) -> None:
    """Tell the watch and the log what was done for somebody else."""
    LOG.info("helped another client: %s transaction=%s", done, holder_text(holder))
    context.on_event(Helped(holder, done))
