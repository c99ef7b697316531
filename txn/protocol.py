"""Commit as six phases over a batch, and the two ways in which anybody may end what was begun.

Each phase takes the transactions that are still on the path and returns those that stay on it. A
definite abort ends one transaction and leaves the others alone. Any other failure leaves the rows
as a crash would, for `roll_forward` and `roll_back`, which is what the client itself runs. The
argument for each rule is in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from logging import ERROR, WARNING, getLogger
from typing import Concatenate, ParamSpec, cast

from txn.assertions import holds
from txn.beats import PORTION, TOO_LATE, alive, beat, portions
from txn.codec import Plan, column, encode_plan
from txn.errors import (
    AbortedError,
    CommitOutcomeUnknown,
    ConflictError,
    DeadlineError,
    TableUnavailable,
    TxnError,
    describe,
)
from txn.model import Cell, Delete, Edit, Key
from txn.phases import STEPS, Status
from txn.ranges import phantom
from txn.steps import (
    FREE,
    Context,
    Transaction,
    advance,
    by_holder,
    free_locks,
    is_late,
    not_aborted,
    retried,
    take,
)
from txn.text import reason_text
from txn.waiting import Settle, failed, hopeful, outwait
from txn.watch import Conflict, Phase, PhaseName, PhaseOutcome

Lock = Callable[[Context, Sequence[Transaction], Settle], list[Transaction]]
Finish = Callable[[Context, Sequence[Transaction]], None]

P = ParamSpec("P")
Work = Callable[Concatenate[Context, Sequence[Transaction], P], list[Transaction]]
LOG = getLogger("txn")
MOST_NAMED = 10
CELLS_AT_ONCE = 3 * PORTION
SETTLED_AT_ONCE = PORTION // 10

WRITTEN_WITHIN_MS = 300_000
"""How long writing a row may take. Far less than the time that fsck keeps finished rows for."""


def commit(
    context: Context,
    transactions: Sequence[Transaction],
    lock: Lock,
    settle: Settle,
    finish: Finish,
) -> None:
    """Run a batch of transactions that have no key in common.

    Afterwards each has a failure or is committed. Raises StoreError where the store did not answer
    before the decision: those without a failure are then not committed, and never will be.
    """
    live = write(context, transactions)
    live = spare_others(lambda some: lock(context, some, settle), live)
    live = spare_others(lambda some: assert_under_locks(context, some), live)
    if any(t.spans for t in live):
        live = spare_others(lambda some: look_at_ranges(context, some, settle), live)
    live = decide(context, live)
    # From here all is decided: what a failing store leaves undone, anybody can finish.
    as_a_crash_would(context, "roll forward", finish, live)
    aborted = [t for t in transactions if isinstance(t.failure, AbortedError)]
    as_a_crash_would(context, "roll back", release, aborted)


def spare_others(
    work: Callable[[Sequence[Transaction]], object], transactions: Sequence[Transaction]
) -> list[Transaction]:
    """Do a part of the work before the decision, which may be done twice, and return those that
    stay on the path. Where a table is gone, the transactions that need it abort, and no others."""
    live = list(transactions)
    while live:
        try:
            work(live)
            break
        except TableUnavailable as error:
            lost = [t for t in live if t.needs(error.table)]
            if not lost:
                raise
            for t in lost:
                t.failure = t.failure or AbortedError(str(error), transaction=t.row_key)
                t.failure.__cause__ = error
            live = [t for t in live if t.failure is None]
    return [t for t in live if t.failure is None]


def announced(name: PhaseName) -> Callable[[Work[P]], Work[P]]:
    """Tell the watch when a phase starts and how it ends."""

    def announce(work: Work[P]) -> Work[P]:
        @wraps(work)
        def phase(
            context: Context, transactions: Sequence[Transaction], *args: P.args, **kwargs: P.kwargs
        ) -> list[Transaction]:
            count = len(transactions)
            context.watch(Phase(name, "started", count))
            started_ms = context.clock.monotonic_ms()
            live: list[Transaction] = []
            try:
                live = work(context, transactions, *args, **kwargs)
            finally:
                elapsed_ms = context.clock.monotonic_ms() - started_ms
                outcome: PhaseOutcome = "done" if live or not count else "failed"
                context.watch(Phase(name, outcome, count, count - len(live), elapsed_ms))
            return live

        return cast(Work[P], phase)

    return announce


# --------------------------------------------------------------------- until the decision


@announced("write")
def write(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Make each buffer durable. Nothing is locked before this is acknowledged, since a lock whose
    row is absent may be freed by whoever meets it.

    The write may be sent again. If that took so long that others may have aborted the row, and fsck
    deleted it, in between, then somebody may still be about to release what it locks: the row key
    is given up.
    """

    def buffer(t: Transaction) -> list[tuple[Key, bytes]]:
        cells = [(column(context.table, t.row_key, b"buffer"), t.buffer)]
        if t.spans:
            cells.append((column(context.table, t.row_key, b"ranges"), b"%d" % len(t.spans)))
        return cells

    sent_ms = context.clock.monotonic_ms()
    advance(context, transactions, Status.WRITTEN, buffer)
    live = not_aborted(transactions, Status.WRITTEN)
    if context.clock.monotonic_ms() - sent_ms > WRITTEN_WITHIN_MS:
        for t in live:
            t.failure = ConflictError("writing its row took too long", transaction=t.row_key)
    return [t for t in live if t.failure is None]


@announced("lock")
def lock_at_once(
    context: Context, transactions: Sequence[Transaction], settle: Settle
) -> list[Transaction]:
    """Ask for every lock in one batch and never wait: a conflict that settling the holder does not
    end makes the transaction leave. Keys in demand are asked for first, one by one, so that whoever
    leaves has kept nobody from the others."""
    for due in alive(context, transactions, _rounds(transactions)):
        wanted = [(t, key) for t, key in due if t.failure is None]
        missing = take(context, wanted)
        if missing:
            _tell_conflicts(context, missing)
            missing = hopeful(missing)
            unknown = by_holder([item for item in missing if item[1] not in item[0].hot])
            gone = {FREE, *_settle_all(context, transactions, settle, unknown)}
            kept = [item for item in missing if item[2] not in gone]
            kept += take(context, [(t, key) for t, key, holder in missing if holder in gone])
            for t, key, holder in kept:
                t.failure = _in_the_way(t, key, holder)
    return [t for t in transactions if t.failure is None]


def _rounds(transactions: Sequence[Transaction]) -> Iterator[Sequence[tuple[Transaction, Key]]]:
    for place in range(max((len(t.hot) for t in transactions), default=0)):
        yield [(t, t.hot[place]) for t in transactions if place < len(t.hot)]
    yield from portions([(t, key) for t in transactions for key in t.keys if key not in t.hot])


def _settle_all(
    context: Context,
    transactions: Sequence[Transaction],
    settle: Settle,
    holders: Mapping[bytes, Sequence[Key]],
) -> set[bytes]:
    """Settle holders, each of which may take a commit's time; return those that let go."""
    gone: set[bytes] = set()
    for some in alive(context, transactions, portions(list(holders.items()), SETTLED_AT_ONCE)):
        gone.update(settle(dict(some)))
    return gone


@announced("lock")
def lock_in_order(
    context: Context, transactions: Sequence[Transaction], settle: Settle
) -> list[Transaction]:
    """Take the locks of the whole batch one by one in key order, waiting for each holder. Whoever
    waits waits in this order, so nobody waits in a circle."""
    wanted = {key: t for t in transactions for key in t.keys}
    for key in alive(context, transactions, sorted(wanted)):
        t, tries = wanted[key], 0
        while t.failure is None and (missing := take(context, [(t, key)])):
            _tell_conflicts(context, missing)
            missing = hopeful(missing)
            while missing and t.failure is None:
                missing = outwait(context, missing, settle, tries)
                beat(context, transactions)
                tries += 1
    return [t for t in transactions if t.failure is None]


@announced("assert")
def assert_under_locks(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Read every cell under the locks, evaluate the assertions, and plan what replaces what. The
    read may overlap the step to 1-LOCKED: whoever aborts before that step makes the step fail."""
    owners = [(t, key) for t in transactions for key in t.keys]
    tags = {key: key.tag for _, key in owners}
    wanted = [cell for t, key in owners for cell in (key, t.locks[key], tags[key])]
    first, *others = list(portions(wanted, CELLS_AT_ONCE)) or [wanted]
    due = [t for t in transactions if t.status is Status.WRITTEN]
    cells = context.store.read_beside(first, lambda: advance(context, due, Status.LOCKED))
    live = not_aborted(transactions, Status.LOCKED)
    if cells is None:
        cells, others = {}, [first, *others]
    for some in alive(context, live, others if live else ()):
        cells.update(retried(context, partial(context.store.read, some)))
    live = not_aborted(live, Status.LOCKED)
    for t in live:
        t.seen = {key: cells[key] for key in t.keys}
        t.plan, t.failure = _verdict(context, t, cells, tags)
    return [t for t in live if t.failure is None]


@announced("look")
def look_at_ranges(
    context: Context, transactions: Sequence[Transaction], settle: Settle
) -> list[Transaction]:
    """Let a transaction go on only if the ranges that it has scanned have no keys but its own. In
    the order of transactions it comes at this look; so from 1-LOCKED on readers wait for it."""
    for t in transactions:
        failure = phantom(context, t, transactions, settle)
        t.failure = t.failure or failure  # a beat may have failed it meanwhile
    return [t for t in transactions if t.failure is None]


@announced("decide")
def decide(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Take the decision, durably, with the plan. It is asked for once here, and only by the owner;
    where the answer cannot be had, the outcome is unknown and nothing is undone."""

    def plan(t: Transaction) -> list[tuple[Key, bytes]]:
        return [(column(context.table, t.row_key, b"plan"), encode_plan(t.decided))]

    lost: Exception | None = None
    try:
        advance(context, transactions, Status.ASSERTED, plan, durable=True)
    except Exception as error:  # noqa: BLE001  (whatever it is, the decision was sent)
        lost = error
    for t in transactions:
        if t.status is Status.LOCKED or t.status is None:
            t.failure = CommitOutcomeUnknown(t.row_key)
            t.failure.__cause__ = t.unread or lost
    return not_aborted(transactions, Status.ASSERTED)


# ----------------------------------------------------------------------- after the decision


def roll_forward(context: Context, transactions: Sequence[Transaction]) -> None:
    """Finish decided transactions, each from the status that its row has reached. Anybody may, any
    number of times: every later writer of a cell has a greater commit timestamp. One whose status
    could not be seen meanwhile is left where that was, and `unread` says why."""
    begun = [(t, t.status) for t in transactions]

    def forward() -> None:
        for t, status in begun:
            t.status, t.unread = status, None
        due: list[Transaction] = []
        for status, work, reached in FORWARD:
            due += [t for t, found in begun if found is status]
            if due:
                # Whoever is overtaken does its later steps all the same: what it put, it cleans.
                work(context, due)
            while behind := [t for t in due if t.status and reached in STEPS[t.status]]:
                # Twice where a client of an older version has stepped to 3-PUT meanwhile.
                advance(context, behind, reached)
                due = [t for t in due if t.unread is None]

    try:
        context.store.together(forward)
    except Exception:
        for t, status in begun:  # what was done together may have been undone together
            t.status = status
        raise


@announced("put")
def put(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Put each value, or delete marker, with a tag that names the version it replaces."""
    edits: list[Edit] = []
    for t in transactions:
        timestamp, replaced = t.decided.timestamp, t.decided.replaced
        for mutation, version in zip(t.request.mutations, replaced, strict=True):
            value = None if isinstance(mutation, Delete) else mutation.value
            edits.append(Edit(mutation.key, value, timestamp))
            edits.append(Edit(mutation.key.tag, b"%d" % version, timestamp))
    retried(context, lambda: context.store.write(edits, durable=False))
    return list(transactions)


@announced("clean")
def clean(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Empty each tag. The empty tag stays, as the witness of when its cell last changed."""
    edits = [
        Edit(mutation.key.tag, FREE, t.decided.timestamp)
        for t in transactions
        for mutation in t.request.mutations
    ]
    retried(context, lambda: context.store.write(edits, durable=False))
    return list(transactions)


@announced("unlock")
def unlock(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Free each lock that is still the transaction's own."""
    held = ((t, key) for t in transactions for key in t.keys if key in t.held)
    free_locks(context, [(t.locks[key], t.row_key) for t, key in held])
    return list(transactions)


FORWARD = (
    (Status.ASSERTED, put, Status.PUT),  # a step that is left out: who puts again does no harm
    (Status.PUT, clean, Status.CLEANING),
    (Status.CLEANING, unlock, Status.COMPLETE),
)


# --------------------------------------------------------------------------------- aborting


def roll_back(
    context: Context, transactions: Sequence[Transaction], reason: Callable[[Transaction], str]
) -> None:
    """Abort what is undecided and release what is aborting. What its owner decided meanwhile stays
    as it is, with its new status."""

    def because(t: Transaction) -> list[tuple[Key, bytes]]:
        return [(column(context.table, t.row_key, b"reason"), reason(t).encode())]

    for undecided in (Status.WRITTEN, Status.LOCKED):  # its owner may step between the two
        due = [t for t in transactions if t.status is undecided]
        if due:
            advance(context, due, Status.ABORTING, because)
    due = [t for t in transactions if t.status is Status.ABORTING]
    if due:
        unlock(context, due)
        advance(context, due, Status.ABORTED)


def release(context: Context, transactions: Sequence[Transaction]) -> None:
    """Undo what certainly aborted. Where somebody else had aborted it, we may have taken locks
    afterwards: these are freed too."""
    reasons = {
        t: reason_text(t.failure) for t in transactions if isinstance(t.failure, AbortedError)
    }
    late = [t for t in reasons if t.status is None or t.status is Status.ABORTED]
    if late:
        unlock(context, late)
    roll_back(context, list(reasons), lambda t: reasons[t])


def as_a_crash_would(
    context: Context, name: PhaseName, work: Finish, transactions: Sequence[Transaction]
) -> None:
    """Do work whose outcome is already decided, so that nothing may be raised any more. What fails
    leaves it to whoever comes next, as if this client had died; the watch and the log are told.
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


# ------------------------------------------------------------------------------- the details


def _verdict(
    context: Context, t: Transaction, cells: Mapping[Key, Cell | None], tags: Mapping[Key, Key]
) -> tuple[Plan | None, AbortedError | None]:
    newest = newest_lock = 0
    for key in t.keys:
        value, lock, tag = cells[key], cells[t.locks[key]], cells[tags[key]]
        if lock is None or lock.value != t.row_key:
            return None, _in_the_way(t, key, lock.value if lock else FREE)
        newest_lock = max(newest_lock, lock.timestamp)
        newest = max(newest, lock.timestamp, *(c.timestamp for c in (value, tag) if c))
    if is_late(context, t):
        return None, DeadlineError(TOO_LATE, transaction=t.row_key)
    for assertion in t.request.assertions:
        if not holds(assertion, t.seen):
            return None, failed(t, assertion)
    ahead_ms, limit_ms = newest - newest_lock, context.policy.skew_ms
    if ahead_ms > limit_ms:
        future = describe("a cell lies in the future", ahead_ms=ahead_ms, limit_ms=limit_ms)
        return None, AbortedError(future, transaction=t.row_key)
    if ahead_ms > limit_ms // 2:
        context.clock.sleep_ms(2)  # a cell that changes every ms outruns the clock: let it catch up
    replaced = (t.seen[mutation.key] for mutation in t.request.mutations)
    return Plan(newest + 1, tuple(cell.timestamp if cell else 0 for cell in replaced)), None


def _in_the_way(t: Transaction, key: Key, holder: bytes) -> ConflictError:
    return ConflictError("key is locked", key=key, holder=holder, transaction=t.row_key)


def _tell_conflicts(context: Context, missing: Iterable[tuple[Transaction, Key, bytes]]) -> None:
    for t, key, holder in missing:
        context.watch(Conflict(t.row_key, key, holder))
