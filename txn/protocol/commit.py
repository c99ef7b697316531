"""Commit a batch: prepare it, decide, and roll it forward or back.

A definite abort ends one transaction and leaves the others alone. Any other failure leaves the rows
as a crash would, for `roll_forward` and `roll_back`, which the client itself runs. docs/protocol.md
gives the argument for each rule.

A store that can run a commit as one local transaction applies all of it or nothing. Such a
transaction keeps all other writers out, so it must not wait. Where it would wait for a lock, a
clock or the store, it is undone, and the same steps run one by one. No listener runs inside it:
events are reported afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from txn.clock import Clock
from txn.errors import AbortedError, CommitOutcomeUnknown, ConflictError, NotApplied, StoreError
from txn.events import Event, silent
from txn.model import Cell, Key
from txn.protocol import fenced, six_phase
from txn.protocol.clocks import check_commit_clock
from txn.protocol.codec import encode_child_counts, encode_plan
from txn.protocol.context import Context, call_store, limit_patience
from txn.protocol.locks import Contention
from txn.protocol.one_write import MustWait, commit_in_one_write
from txn.protocol.recovery import Finish, finish_or_leave, poison, release_aborted, roll_forward
from txn.protocol.row import column, read_rows
from txn.protocol.rowless import commit_without_rows
from txn.protocol.statuses import Status
from txn.protocol.transaction import (
    WRITTEN_WITHIN_MS,
    PendingCommit,
    advance,
    fail_aborted,
    read_statuses,
    report_phase,
)

UNDONE = "a crash of a server has undone its first steps"


def commit(
    context: Context,
    transactions: Sequence[PendingCommit],
    contention: Contention,
    patient: bool,
    finish: Finish,
) -> None:
    """Commit a batch of transactions whose locks, except shared ones, nobody else in it needs.

    Afterwards each transaction has a failure or is committed. Raises StoreError if the store did
    not answer before the decision, and AbortedError if this client's clock is wrong. Transactions
    with neither a failure nor a decided status are then not committed, and never will be.
    """

    def all_phases(local: Context) -> None:
        if commit_in_one_write(local, transactions):
            return
        live = prepare(local, transactions, Contention(local, _refuse_to_wait), False)
        roll_forward(local, decide_atomically(local, live))
        release_aborted(local, [t for t in transactions if t.failure])

    limited = limit_patience(context, transactions)
    if transactions:
        check_commit_clock(limited)
        if context.is_local and commit_atomically(context, limited, transactions, all_phases):
            return
    batches: Iterable[Sequence[PendingCommit]] = [transactions]
    if rowless := [t for t in transactions if fenced.needs_no_row(t)]:
        done = {*rowless}.difference(commit_without_rows(context, rowless, contention, patient))
        batches = _divide([t for t in transactions if t not in done])
    for batch in batches:
        live = decide(context, prepare(limited, batch, contention, patient), limited)
        # These are decided; any client can finish the work that a failing store prevents.
        finish_or_leave(context, "roll forward", finish, live)
    aborted = [t for t in transactions if t.failure and isinstance(t.failure, AbortedError)]
    finish_or_leave(context, "roll back", release_aborted, aborted)


def _divide(due: Sequence[PendingCommit]) -> Iterator[list[PendingCommit]]:
    """Yield batches in which no transaction takes a lock that another needs. Those that validate
    come first, before others count the locks that were read."""
    while due:
        needed: set[Key] = set()
        batch: list[PendingCommit] = []
        rest: list[PendingCommit] = []
        for t in sorted(due, key=lambda t: not t.validated):
            is_apart = needed.isdisjoint(t.taken_cells)
            (batch if is_apart else rest).append(t)
            if is_apart:
                needed.update(t.lock_cells)
        yield batch
        due = rest


def prepare(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention, patient: bool
) -> list[PendingCommit]:
    """Prepare a batch that has no lock cell in common for its decision. patient: wait for lock
    holders, in an order that rules out deadlock."""
    for t in transactions:
        t.is_patient = patient
    run = fenced.prepare_fenced if context.rules.locks_rows else six_phase.prepare_six_phase
    return run(context, transactions, contention, patient)


@report_phase("decide")
def decide(
    context: Context, transactions: Sequence[PendingCommit], unsent: Context | None = None
) -> list[PendingCommit]:
    """Take the decision, durably, together with the plan. Only the owner calls this, once. If the
    answer is lost, the outcome is unknown and nothing is undone. Raises NotApplied if the store
    certainly did nothing. unsent: see `advance`."""
    lost: Exception | None = None
    try:
        _send_decision(context, transactions, unsent)
    except NotApplied:
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, the decision was sent)
        lost = error
    if others := [t for t in transactions if t.status is not Status.ASSERTED]:
        if lost is None:
            lost = _abort_undone(context, [t for t in others if not _is_settled(t)])
        for t in others:
            if t.failure is None and not _is_settled(t):
                t.failure = CommitOutcomeUnknown(t.row_key, t.unread or lost)
        _distrust_poison(context, [t for t in others if t.status is Status.ABORTED])
    return fail_aborted(transactions, Status.ASSERTED)


def _is_settled(t: PendingCommit) -> bool:
    return t.status is not None and not t.status.is_undecided


def _abort_undone(context: Context, undone: Sequence[PendingCommit]) -> Exception | None:
    """Abort transactions whose decision was refused because a crash of a server had undone an
    earlier step: the row is at 0-WRITTEN again, or absent. Return the error that left this open."""
    try:
        for t in undone:
            if t.status is Status.WRITTEN:
                advance(context, [t], Status.ABORTING)
            elif t.status is None and t.unread is None and _is_new(context, t):
                poison(context, t)  # a row so young was not deleted
            if t.status in (Status.ABORTING, Status.ABORTED):
                t.failure = ConflictError(UNDONE, transaction=t.row_key)
    except StoreError as error:
        return error
    return None


def _is_new(context: Context, t: PendingCommit) -> bool:
    """Whether this client wrote the row itself, not long ago."""
    now_ms = context.clock.monotonic_ms()
    return t.written_ms is not None and now_ms - t.written_ms <= WRITTEN_WITHIN_MS


def _distrust_poison(context: Context, aborted: Sequence[PendingCommit]) -> None:
    """Fail the aborted transactions that another client poisoned: it found no row, since a crash of
    a server had undone it. Or this process was stopped after it had sent the decision; then the
    transaction may be committed, and its row deleted since."""
    doubtful = [t for t in aborted if t.failure is None]
    try:
        rows = read_rows(context, [t.row_key for t in doubtful]) if doubtful else {}
    except StoreError as error:
        for t in doubtful:
            t.failure = CommitOutcomeUnknown(t.row_key, error)
        return
    for t in doubtful:
        if rows[t.row_key].buffer is None:
            undone = ConflictError(UNDONE, transaction=t.row_key)
            t.failure = undone if _is_new(context, t) else CommitOutcomeUnknown(t.row_key)


@report_phase("decide")
def decide_atomically(
    context: Context, transactions: Sequence[PendingCommit]
) -> list[PendingCommit]:
    """Decide within a local transaction. Errors are raised, to undo everything."""
    _send_decision(context, transactions)
    return fail_aborted(transactions, Status.ASSERTED)


def _send_decision(
    context: Context, transactions: Sequence[PendingCommit], unsent: Context | None = None
) -> None:
    def plan(t: PendingCommit) -> list[tuple[Key, bytes]]:
        cells = [(column(context.table, t.row_key, b"plan"), encode_plan(t.decided))]
        if t.parts is not None:
            cells.append((column(context.table, t.row_key, b"parts"), encode_child_counts(t.parts)))
        return cells

    sent_ms = context.clock.monotonic_ms()
    decided = advance(
        *(context, transactions, Status.ASSERTED, plan), durable=True, unsent=unsent, now_ms=sent_ms
    )
    for t in decided:
        t.decided_ms = sent_ms


def commit_atomically(
    context: Context,
    limited: Context,
    transactions: Sequence[PendingCommit],
    phases: Callable[[Context], None],
) -> bool:
    """Run all phases of a commit in one local transaction of the store. Return False if it would
    have to wait; nothing was done then.

    limited: a context whose patience with the store ends when the decision is due. Raises any error
    that prevented the commit; nothing was done then either. If the outcome cannot be found out,
    each transaction fails with CommitOutcomeUnknown.
    """
    events: list[Event] = []
    listener = silent if context.on_event is silent else events.append
    clock = _SleeplessClock(context.clock)
    local = Context(  # `replace` takes twenty times as many calls
        *(context.store, context.table, clock, context.rng, context.policy, listener),
        *(context.rules, context.salt_buckets, context.trust, context.until_ms, context.program),
    )

    def attempt() -> Exception | None:
        """Run the phases together; return an error that leaves open whether they took effect."""
        is_done = False

        def work() -> None:
            nonlocal is_done
            is_done = False
            for t in transactions:  # the store may run this again
                t.reset()
            events.clear()
            phases(local)
            is_done = True

        try:
            context.store.atomically(work)
        except Exception as error:
            if is_done and not isinstance(error, NotApplied):
                return error
            raise
        return None

    sent_ms = context.clock.monotonic_ms()
    try:
        lost = call_store(limited, attempt, sent_ms)
    except BaseException as error:
        for t in transactions:
            t.reset()
        if isinstance(error, MustWait):
            return False
        raise
    if lost is not None:
        _find_outcome(context, transactions, lost, sent_ms)
    for event in events:
        context.on_event(event)
    return True


def _find_outcome(
    context: Context, transactions: Sequence[PendingCommit], lost: Exception, sent_ms: int
) -> None:
    def read_outcome() -> None:
        context.store.write([], durable=True)  # what is read next is durable then
        read_statuses(context, transactions)

    try:
        call_store(context, read_outcome)
    except Exception:  # noqa: BLE001  (whatever it is, the decision was sent)
        for t in transactions:
            t.failure = t.failure or CommitOutcomeUnknown(t.row_key, lost)
        return
    # An absent row proves that nothing was applied only while fsck would have kept the row.
    is_old = context.clock.monotonic_ms() - sent_ms > WRITTEN_WITHIN_MS
    for t in transactions:
        if t.unread is not None or (t.status is None and is_old):
            t.failure = t.failure or CommitOutcomeUnknown(t.row_key, t.unread or lost)
        elif t.status is None or (t.status is Status.ABORTED and t.failure is None):
            t.reset()
            why = str(lost) or type(lost).__name__
            t.failure = NotApplied(f"the commit did not take effect: {why}", transaction=t.row_key)
            t.failure.__cause__ = lost


def _refuse_to_wait(holders: Mapping[bytes, Mapping[Key, Cell]]) -> Collection[bytes]:
    raise MustWait


class _SleeplessClock:
    def __init__(self, clock: Clock) -> None:
        self.wall_ms = clock.wall_ms
        self.monotonic_ms = clock.monotonic_ms

    def sleep_ms(self, duration_ms: int) -> None:
        raise MustWait
