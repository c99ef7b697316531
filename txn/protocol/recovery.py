"""Recovery by any client: decided transactions are rolled forward, all others back.

The owner, its finisher thread, the next client that meets its locks, and fsck all run this code,
any number of times. docs/protocol.md gives the argument for each rule.

A client that meets a lock asks `Resolver` about the holder. A holder that is finished can never
decide again: its lock comes from a late request and is released. A decided holder is rolled
forward; an aborting one is rolled back. An undecided holder is left alone until its row was seen
unchanged for its whole lock TTL, by this client's own monotonic clock. The same holds for a holder
without a row, since its row may be on its way: it is poisoned before its lock is released. Aborting
a living transaction costs it only a retry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
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
    LOST,
    RowState,
    TransactionRow,
    child_key,
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
)
from txn.request import Request
from txn.spans import Span
from txn.text import holder_text, name_failure, reason_text, show_text

Finish = Callable[[Context, Sequence[Transaction]], None]
PutStatus = Callable[[Context, Sequence[Transaction], Status], object]
MOST_NAMED = 10
CHILDREN_AT_ONCE = 4
NOT_COUNTED = "it is not among the parts that were decided"
POISONED = "its lock was met, and it had no row: its outcome is unknown"
NOTHING = Request(())


def roll_forward(
    context: Context, transactions: Sequence[Transaction], put_status: PutStatus = advance
) -> None:
    """Finish decided transactions, each from the status of its row. Any client may do so, any
    number of times: every later writer of a cell has a greater commit timestamp. A transaction
    whose status could not be read stays where it was, with the reason in `unread`. Parts come
    first: a parent continues from its decision when all its parts are complete.

    put_status: the function that puts the final status once all work is done.
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
        for status, work in protocol.FORWARD:
            due += [t for t, at in found if at is status]
            if due:
                # An overtaken transaction still does its later steps: it cleans up what it put.
                work(context, due)
                due = [t for t in due if t.unread is None]
        if behind := [t for t in due if t.status is context.rules.released]:
            put_status(context, behind, Status.COMPLETE)

    try:
        context.store.atomically(forward)
    except Exception:
        for t, status in begun:  # an atomic call may have undone all of it
            t.status = status
        raise


def follow_decision(context: Context, parts: Sequence[Transaction]) -> None:
    """Record the decision in the rows of its parts, each with the plan that results."""

    def plan(t: Transaction) -> list[tuple[Key, bytes]]:
        return [(column(context.table, t.row_key, b"plan"), encode_plan(t.decided))]

    if parts:
        advance(context, parts, Status.ASSERTED, plan)


def finish_children(context: Context, transactions: Sequence[Transaction]) -> None:
    """Finish all parts of decided transactions, and roll back parts that the decision does not
    count. Each counted part is complete afterwards, and no part has work left. Raises
    CorruptRowError for a part that is lost, or whose content or decision cannot be known."""
    for t in transactions:
        if t.status is Status.ASSERTED and t.parts is not None:
            _finish_children_of(context, t)
        elif t.status is Status.ASSERTED and not isinstance(t, PendingCommit):
            require_no_children(context, t.row_key, t.keys)


def require_no_children(context: Context, row_key: bytes, keys: Iterable[Key]) -> None:
    """Raise CorruptRowError if a transaction without counts has parts. Only a transaction without
    keys, except a marker's, can have parts."""
    is_bare = all(key.table == context.table for key in keys)
    if is_bare and next(_list_children(context, row_key), None):
        raise CorruptRowError("the counts of its parts are missing", row=row_key)


def _finish_children_of(context: Context, t: Transaction) -> None:
    parent = TransactionRow(
        t.row_key, t.status, buffer=Buffer(t.request, 1), plan=t.plan, parts=t.parts
    )
    bad: list[CorruptRowError] = []  # the other parts are finished all the same
    children = list_decided_children(context, parent)
    while rows := list(islice(children, CHILDREN_AT_ONCE)):
        bad += [
            CorruptRowError("part cannot be finished", row=row.row_key, cause=row.cause)
            for row in rows
            if row.state is RowState.UNREADABLE
        ]
        lost = [row for row in rows if row.state is RowState.ABORTING]
        roll_back(context, [load_transaction(context, row) for row in lost], lambda _: NOT_COUNTED)
        found = [load_transaction(context, row) for row in rows if row.state is RowState.DECIDED]
        roll_forward(context, found)
        unfinished = [part for part in found if part.status is not Status.COMPLETE]
        bad += [part.unread or CorruptRowError(LOST, row=part.row_key) for part in unfinished]
    if bad:
        raise bad[0]


def list_decided_children(context: Context, parent: TransactionRow) -> Iterator[TransactionRow]:
    """Yield the parts of a decided transaction as it has decided. A scan may miss some: the counted
    ones that it skips are looked up by their keys, up to the first that is absent."""
    counted = (
        child_key(parent.row_key, task, number)
        for task, count in enumerate(parent.parts or ())
        for number in range(count)
    )
    due = next(counted, None)
    for row in chain(_list_children(context, parent.row_key), [None]):
        while due is not None and (row is None or due < row.row_key):
            missed = follow(read_rows(context, [due])[due], parent)
            due = None if missed.state is RowState.UNREADABLE else next(counted, None)
            yield missed
        if row is not None:
            due = next(counted, None) if due == row.row_key else due
            yield follow(row, parent)


def _list_children(context: Context, parent: bytes) -> Iterator[TransactionRow]:
    return map(decode_row, stored_rows(context, Span(context.table, *child_range(parent))))


def mark_complete(context: Context, transactions: Sequence[Transaction]) -> None:
    """Put the final status into the rows of transactions that have no work left. The transactions
    themselves, which other threads use, have it already."""
    released = context.rules.released
    rows = [Transaction(t.row_key, NOTHING, released, is_dated=t.is_dated) for t in transactions]
    advance(context, rows, Status.COMPLETE)


def roll_back(
    context: Context,
    transactions: Sequence[AnyTransaction],
    reason: Callable[[AnyTransaction], str],
) -> None:
    """Abort undecided transactions and release the locks of aborting ones. A transaction that its
    owner decided meanwhile keeps its new status. The parent of a part aborts before the part,
    because only the parent decides; the parts of a parent abort after it."""

    def because(t: AnyTransaction) -> list[tuple[Key, bytes]]:
        return [(column(context.table, t.row_key, b"reason"), reason(t).encode())]

    parts = [t for t in transactions if t.status is Status.PART]
    if parts:
        lost = _abort_parents(context, parts, reason(parts[0]))
        advance(context, [t for t in parts if t.row_key in lost], Status.ABORTING, because)
    # Its owner may step from one to the other, and a crash of a server may undo that.
    for undecided in (Status.WRITTEN, Status.LOCKED, Status.WRITTEN):
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


def poison(context: Context, t: Transaction) -> bool:
    """Ensure that a transaction without a row never commits, by the status 7-ABORTED in its row.
    Return False if its row exists by now."""
    reason = column(context.table, t.row_key, b"reason"), POISONED.encode()
    advance(context, [t], Status.ABORTED, lambda _: [reason])
    return t.status is Status.ABORTED


def release_own_locks(context: Context, transactions: Sequence[Transaction]) -> None:
    release = fenced.release_row_locks if context.rules.locks_rows else six_phase.release_key_locks
    release(context, transactions)


def _abort_parents(
    context: Context, parts: Sequence[Transaction], reason: str
) -> Collection[bytes]:
    """Abort the undecided parents of parts; return the parts that can never be committed."""
    parents = read_rows(context, {parent_of(t.row_key) or t.row_key for t in parts}).values()
    undecided = [load_transaction(context, row) for row in parents if not row.is_over]
    for parent in undecided:
        parent.parts = None  # leaves the other parts to the clients that meet them
    roll_back(context, undecided, lambda _: reason)
    absent = [load_transaction(context, row) for row in parents if row.state is RowState.DEBRIS]
    # Not read again: a delete marker may hide the poison, as it hides a late first write.
    never = {parent.row_key for parent in absent if poison(context, parent)}
    rows = read_rows(context, [t.row_key for t in parts]).values()
    return {
        *(row.row_key for row in rows if row.state is RowState.ABORTING),
        *(row.row_key for row in rows if row.follows and parent_of(row.row_key) in never),
    }


def release_children(context: Context, parent: bytes, reason: str) -> None:
    """Roll back all parts of an aborted transaction."""
    children = _list_children(context, parent)
    while some := list(islice(children, CHILDREN_AT_ONCE)):
        parts = [load_transaction(context, row) for row in some if not row.is_over]
        roll_back(context, parts, lambda _: reason)


def release_aborted(context: Context, attempts: Sequence[PendingCommit]) -> None:
    """Undo definite aborts. If another client aborted a transaction, this client may have taken
    locks afterwards; these are released too."""
    reasons = {t: reason_text(t.failure) for t in attempts if isinstance(t.failure, AbortedError)}
    late = [t for t in reasons if t.status is None or t.status is Status.ABORTED]
    if late:
        release_own_locks(context, late)
    roll_back(context, list(reasons), lambda t: reasons[t])
    # A crash of a server may have undone the row. Its owner, which is here, never decides.
    if undone := [t for t in reasons if t.status is None and t not in late]:
        release_own_locks(context, undone)


def finish_or_leave(
    context: Context,
    name: PhaseName,
    work: Callable[[Context, Sequence[AnyTransaction]], None],
    transactions: Sequence[AnyTransaction],
) -> None:
    """Do work after the outcome is decided, without raising. A failure leaves the work to the next
    client, as if this client had died; the listener and the log get a report. A missing table
    affects only the transactions that need it."""
    due = list(transactions)
    while due:
        try:
            work(context, due)
            return
        except Exception as error:  # noqa: BLE001  (the outcome is already decided)
            missing = error.table if isinstance(error, TableUnavailable) else None
            left = {t for t in due if missing and t.needs(missing)} or set(due)
            context.on_event(Phase(name, "failed", len(left), len(left)))
            # Those that are finished lack the final status only.
            keys = [t.row_key.decode() for t in [t for t in left if not t.is_finished] or left]
            named = ", ".join(keys[:MOST_NAMED]) + (", ..." if len(keys) > MOST_NAMED else "")
            level, trace = (WARNING, None) if isinstance(error, TxnError) else (ERROR, error)
            LOG.log(
                level,
                "%s of %d left to others: %s cause=%s",
                *(name, len(keys), named, name_failure(error)),
                exc_info=trace,
            )
            due = [t for t in due if t not in left]


REMEMBERED = 10_000
STUCK_MS = 1_000  # between two tries at a holder that cannot be resolved


@dataclass(slots=True)
class _Sighting:
    """A row that was found unchanged since `since_ms`, and was last read at `looked_ms`."""

    found: tuple[Status | None, int, int]
    since_ms: int
    read_ms: int


class Resolver:
    """Resolves holders, and remembers how long each has been unchanged. Threads share it, so an
    entry may be dropped between any two reads of it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sightings: dict[bytes, _Sighting] = {}
        self._stuck: dict[bytes, TxnError] = {}

    def resolve(self, holders: Mapping[bytes, Mapping[Key, Cell]]) -> set[bytes]:
        """Resolve holders, each with the lock cells it was found in; return those whose locks are
        released. A holder that cannot be resolved blocks like a living one: see `add_cause`."""
        now_ms = self._context.clock.monotonic_ms()
        # Waiters see the lock of a holder go, so its row is read again rarely.
        old_ms = now_ms - self._context.policy.courtesy_ms
        seen = ((holder, self._sightings.get(holder)) for holder in holders)
        due = [holder for holder, last in seen if last is None or last.read_ms <= old_ms]
        rows = read_rows(self._context, due) if due else {}
        return {
            holder for holder, row in rows.items() if self._resolve_holder(row, holders[holder])
        }

    def add_cause(self, failure: TxnError) -> TxnError:
        """Return the error with the reason why its holder could not be resolved, if there is one. A
        lock of another database, or a cell that holds no lock, becomes an AbortedError that is no
        conflict, since waiting for it is useless."""
        holder = failure.facts.get("holder") if isinstance(failure, AbortedError) else None
        cause = self._stuck.get(holder) if isinstance(holder, bytes) else None
        if isinstance(failure, AbortedError) and isinstance(holder, bytes) and cause is not None:
            if isinstance(cause, InvalidRequestError) or not is_row_key(holder):
                failure = AbortedError(str(cause), transaction=failure.transaction)
                failure.__cause__ = cause
            else:
                failure.add_cause(cause)
        return failure

    def _resolve_holder(self, row: TransactionRow, locks: Mapping[Key, Cell]) -> bool:
        context = self._context
        self._stuck.pop(row.row_key, None)
        try:
            if not is_row_key(row.row_key):
                raise make_foreign_error(NO_LOCK, *next(iter(locks.items())))
            if row.state is RowState.UNREADABLE:
                raise make_corrupt_error(row)
            if row.state is not RowState.FINISHED:
                if not self._is_abandoned(row) or not _end_holder(context, row):
                    return False
                self._sightings.pop(row.row_key, None)
            # also after rolling back: a late lock request may have arrived meanwhile
            free_for_holder(context, row.row_key, locks, row.owner)
            return True
        except StoreClosedError:
            raise
        except (StoreError, CorruptRowError, InvalidRequestError) as error:
            if len(self._stuck) >= REMEMBERED:
                self._stuck = {}
            self._stuck[row.row_key] = error
            if (seen := self._sightings.get(row.row_key)) is not None:
                seen.read_ms += STUCK_MS
            return False

    def _is_abandoned(self, row: TransactionRow) -> bool:
        """Whether the row was unchanged, or absent, for as long as a living owner is granted."""
        policy, now_ms = self._context.policy, self._context.clock.monotonic_ms()
        found = (row.status, row.status_at, row.heartbeat)
        seen = self._sightings.get(row.row_key)
        if seen is None or seen.found != found:
            if len(self._sightings) >= REMEMBERED:
                self._sightings = {}  # costs at most another lock TTL of waiting
            seen = self._sightings[row.row_key] = _Sighting(found, now_ms, now_ms)
        seen.read_ms = now_ms
        if row.status is not None and not row.status.is_undecided:
            patience_ms = policy.courtesy_ms
        else:
            patience_ms = row.lock_ttl_ms or policy.lock_ttl_ms
        return now_ms - seen.since_ms >= patience_ms


def _end_holder(context: Context, row: TransactionRow) -> bool:
    """Finish, undo or poison an abandoned holder; return False if its owner has moved on."""
    t = load_transaction(context, row)
    if row.state is RowState.DEBRIS:
        return poison(context, t)
    if row.state is RowState.DECIDED:
        roll_forward(context, [t])
    else:
        roll_back(context, [t], lambda _: "its owner was silent for its whole lock TTL")
    if t.unread is not None:
        raise t.unread
    if t.status is None:
        # A crash of a server may have undone its first write, which its owner may send again.
        return poison(context, t)
    if not t.status.is_finished:
        return False
    done: Action = "rolled forward" if t.status is Status.COMPLETE else "rolled back"
    report_help(context, row.row_key, done, row.owner)
    return True


def make_corrupt_error(row: TransactionRow) -> TxnError:
    """Return the error for a row whose decision cannot be known; fsck reports such rows."""
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


def free_for_holder(
    context: Context, holder: bytes, locks: Mapping[Key, Cell], owner: str = ""
) -> None:
    """Release lock cells of a finished or poisoned transaction."""
    if release_locks(context, locks):
        report_help(context, holder, "freed", owner)


def report_help(context: Context, holder: bytes, done: Action, owner: str) -> None:
    facts = (done, holder_text(holder), show_text(owner) or "unknown")
    LOG.info("helped another client: %s transaction=%s owner=%s", *facts)
    context.on_event(Helped(holder, done, owner))
