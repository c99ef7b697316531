"""Commit as phases over a batch, until the decision; `recover` does what follows.

Each phase takes the transactions that are still on the path and returns those that stay on it. A
definite abort ends one transaction and leaves the others alone. Any other failure leaves the rows
as a crash would, for `roll_forward` and `roll_back`, which the client itself runs; or undoes all of
it, where the phases are run `together`. The argument for each rule is in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from txn.assertions import holds
from txn.errors import (
    AbortedError,
    CommitOutcomeUnknown,
    ConflictError,
    DeadlineError,
    NotApplied,
    TableUnavailable,
)
from txn.model import Cell, Key
from txn.protocol.announce import announce
from txn.protocol.attempt import (
    WRITTEN_WITHIN_MS,
    Attempt,
    Context,
    Met,
    advance,
    call_store,
    fail_aborted,
    group_by_holder,
    is_late,
    limit_patience,
    take_locks,
)
from txn.protocol.beats import PORTION, TOO_LATE, beat, beat_between, show_life, split_portions
from txn.protocol.clocks import check_commit_clock, judge_ahead, uncover_locks
from txn.protocol.lock_cells import FREE, make_foreign_error
from txn.protocol.phases import Status
from txn.protocol.ranges import find_phantom
from txn.protocol.recover import Finish, finish_or_leave, release_aborted, roll_forward
from txn.protocol.row import OPEN, Plan, column, encode_parts, encode_plan
from txn.protocol.together import can_commit_together, commit_together
from txn.protocol.waiting import Contention, fail_overtaken, make_assertion_error
from txn.watch import Conflict

CELLS_AT_ONCE = 3 * PORTION
SETTLED_AT_ONCE = PORTION // 10


def commit(
    context: Context,
    transactions: Sequence[Attempt],
    contention: Contention,
    patient: bool,
    finish: Finish,
) -> None:
    """Run a batch of transactions that have no lock cell in common.

    Afterwards each has a failure or is committed. Raises StoreError where the store did not answer
    before the decision, and AbortedError where this client's clock is wrong: those without a
    failure are then not committed, and never will be.
    """

    def all_phases(hurried: Context, nobody: Contention) -> None:
        live = hurried.rules.prepare(hurried, transactions, nobody, False)
        roll_forward(hurried, decide_together(hurried, live))
        release_aborted(hurried, _list_aborted(transactions))

    limited = limit_patience(context, transactions)
    if transactions:
        check_commit_clock(limited)
    is_possible = bool(transactions) and can_commit_together(context)
    if is_possible and commit_together(context, limited, transactions, all_phases):
        return
    live = context.rules.prepare(limited, transactions, contention, patient)
    live = decide(context, live, limited)
    context.rules.pass_by(context, transactions, contention, patient)
    # From here all is decided: what a failing store leaves undone, anybody can finish.
    finish_or_leave(context, "roll forward", finish, live)
    finish_or_leave(context, "roll back", release_aborted, _list_aborted(transactions))


def _list_aborted(transactions: Sequence[Attempt]) -> list[Attempt]:
    return [t for t in transactions if isinstance(t.failure, AbortedError)]


def prepare(
    context: Context, transactions: Sequence[Attempt], contention: Contention, patient: bool
) -> list[Attempt]:
    """Take a batch through the phases of the six-phase protocol, until it can be decided."""
    lock = lock_in_order if patient else lock_at_once
    live = write_rows(context, transactions)
    live = run_for_available(lambda some: lock(context, some, contention), live)
    live = run_for_available(lambda some: assert_under_locks(context, some), live)
    if any(t.spans for t in live):
        live = run_for_available(lambda some: look_at_ranges(context, some, contention), live)
    return live


def run_for_available(
    work: Callable[[Sequence[Attempt]], object], transactions: Sequence[Attempt]
) -> list[Attempt]:
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


# --------------------------------------------------------------------- until the decision


@announce("write")
def write_rows(context: Context, transactions: Sequence[Attempt]) -> list[Attempt]:
    """Make each buffer durable. Nothing is locked before this is acknowledged, since a lock whose
    row is absent may be freed by any client that meets it.

    The write may be sent again. If that took so long that others may have aborted the row, and fsck
    deleted it, in between, then somebody may still be about to release what it locks: the row key
    is given up.
    """

    def buffer(t: Attempt) -> list[tuple[Key, bytes]]:
        cells = [(column(context.table, t.row_key, b"buffer"), t.buffer)]
        if t.parts is not None:
            cells.append((column(context.table, t.row_key, b"parts"), OPEN))
        if t.spans:
            cells.append((column(context.table, t.row_key, b"ranges"), b"%d" % len(t.spans)))
        return cells

    sent_ms = context.clock.monotonic_ms()
    new = [t for t in transactions if t.status is None]  # what is in parts has written its rows
    advance(context, new, Status.WRITTEN, buffer)
    show_life(new, sent_ms)
    for t in transactions:
        t.written_ms = sent_ms
    live = fail_aborted(transactions, Status.WRITTEN)
    if context.clock.monotonic_ms() - sent_ms > WRITTEN_WITHIN_MS:
        for t in live:
            t.failure = ConflictError("writing its row took too long", transaction=t.row_key)
    return [t for t in live if t.failure is None]


@announce("lock")
def lock_at_once(
    context: Context, transactions: Sequence[Attempt], contention: Contention
) -> list[Attempt]:
    """Ask for every lock in one batch and never wait: a conflict that settling the holder does not
    end makes the transaction leave. Keys in demand are asked for first, one by one, so that one
    that leaves has kept nobody from the others."""
    hot = {t: contention.list_hot_keys(t.keys) for t in transactions}
    for due in beat_between(context, transactions, split_rounds(hot)):
        wanted = [(t, key) for t, key in due if t.failure is None]
        missing = take_locks(context, wanted)
        if missing:
            tell_conflicts(context, missing)
            missing = fail_overtaken(missing)
            unknown = group_by_holder(item for item in missing if item.key not in hot[item.t])
            gone = {FREE, *settle_all(context, transactions, contention, unknown)}
            kept = [item for item in missing if item.holder not in gone]
            kept += take_locks(context, [item[:2] for item in missing if item.holder in gone])
            for item in kept:
                item.t.failure = make_conflict(item.t, item.key, item.holder)
    return [t for t in transactions if t.failure is None]


def split_rounds(hot: Mapping[Attempt, Sequence[Key]]) -> Iterator[Sequence[tuple[Attempt, Key]]]:
    """Yield all keys of some transactions: those in demand one by one, then the others."""
    for place in range(max(map(len, hot.values()), default=0)):
        yield [(t, keys[place]) for t, keys in hot.items() if place < len(keys)]
    yield from split_portions([(t, key) for t in hot for key in t.keys if key not in hot[t]])


def settle_all(
    context: Context,
    transactions: Sequence[Attempt],
    contention: Contention,
    holders: Mapping[bytes, Mapping[Key, Cell]],
) -> set[bytes]:
    """Settle holders, each of which may take a commit's time; return those that let go."""
    gone: set[bytes] = set()
    for some in beat_between(
        context, transactions, split_portions(list(holders.items()), SETTLED_AT_ONCE)
    ):
        gone.update(contention.settle(dict(some)))
    return gone


@announce("lock")
def lock_in_order(
    context: Context, transactions: Sequence[Attempt], contention: Contention
) -> list[Attempt]:
    """Take the locks of the whole batch one by one in key order, waiting for each holder. All
    wait in this order, so nobody waits in a circle."""
    wanted = {key: t for t in transactions for key in t.keys}
    for key in beat_between(context, transactions, sorted(wanted)):
        t, tries = wanted[key], 0
        while t.failure is None and (missing := take_locks(context, [(t, key)])):
            tell_conflicts(context, missing)
            missing = fail_overtaken(missing)
            while missing and t.failure is None:
                missing = contention.wait_for_holders(missing, tries)
                beat(context, transactions)
                tries += 1
    return [t for t in transactions if t.failure is None]


@announce("assert")
def assert_under_locks(context: Context, transactions: Sequence[Attempt]) -> list[Attempt]:
    """Read every cell under the locks, evaluate the assertions, and plan what replaces what. The
    read may overlap the step to 1-LOCKED: an abort before that step makes the step fail."""
    owners = [(t, key) for t in transactions for key in t.keys]
    tags = {key: key.tag for _, key in owners}
    wanted = [cell for t, key in owners for cell in (key, t.locks[key], tags[key])]
    first, *others = list(split_portions(wanted, CELLS_AT_ONCE)) or [wanted]

    def step() -> None:
        due = [t for t in transactions if t.status is Status.WRITTEN]
        sent_ms = context.clock.monotonic_ms()
        advance(context, due, Status.LOCKED)
        show_life(due, sent_ms)

    cells = call_store(context, lambda: context.store.read(first, beside=step))
    live = fail_aborted(transactions, Status.LOCKED)
    beat(context, live)
    for some in beat_between(context, live, others if live else ()):
        cells.update(call_store(context, partial(context.store.read, some)))
    live = fail_aborted(live, Status.LOCKED)
    for t in live:
        t.seen = {key: cells[key] for key in t.keys}
        t.plan, t.failure = _judge(context, t, cells, tags)
        t.failure = t.failure or _refuse_foreign_tags(t, cells, tags)
    return [t for t in live if t.failure is None]


@announce("look")
def look_at_ranges(
    context: Context, transactions: Sequence[Attempt], contention: Contention
) -> list[Attempt]:
    """Let a transaction go on only if the ranges that it has scanned have no keys but its own. In
    the order of transactions it comes at this look; so from 1-LOCKED on readers wait for it."""
    for t in transactions:
        failure = find_phantom(context, t, transactions, contention.settle)
        t.failure = t.failure or failure  # a beat may have failed it meanwhile
    return [t for t in transactions if t.failure is None]


@announce("decide")
def decide(
    context: Context, transactions: Sequence[Attempt], unsent: Context | None = None
) -> list[Attempt]:
    """Take the decision, durably, with the plan. It is asked for once here, and only by the owner;
    where the answer cannot be had, the outcome is unknown and nothing is undone. Where the store
    has certainly done nothing it is not asked for any more: raises NotApplied. unsent: see
    `advance`."""
    lost: Exception | None = None
    try:
        _ask_for_decision(context, transactions, unsent)
    except NotApplied:
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, the decision was sent)
        lost = error
    for t in transactions:
        if t.status is None or t.status.is_undecided:
            t.failure = CommitOutcomeUnknown(t.row_key, t.unread or lost)
    return fail_aborted(transactions, Status.ASSERTED)


@announce("decide")
def decide_together(context: Context, transactions: Sequence[Attempt]) -> list[Attempt]:
    """Take the decision within a local transaction: what fails there was not sent, and is raised,
    so that everything is undone."""
    _ask_for_decision(context, transactions)
    return fail_aborted(transactions, Status.ASSERTED)


# ------------------------------------------------------------------------------- the details


def _ask_for_decision(
    context: Context, transactions: Sequence[Attempt], unsent: Context | None = None
) -> None:
    def plan(t: Attempt) -> list[tuple[Key, bytes]]:
        cells = [(column(context.table, t.row_key, b"plan"), encode_plan(t.decided))]
        if t.parts is not None:
            cells.append((column(context.table, t.row_key, b"parts"), encode_parts(t.parts)))
        return cells

    sent_ms = context.clock.monotonic_ms()
    decided = advance(context, transactions, Status.ASSERTED, plan, durable=True, unsent=unsent)
    for t in decided:
        t.decided_ms = sent_ms


def _judge(
    context: Context, t: Attempt, cells: Mapping[Key, Cell | None], tags: Mapping[Key, Key]
) -> tuple[Plan | None, AbortedError | None]:
    newest = newest_lock = 0
    for key in t.keys:
        value, lock, tag = cells[key], cells[t.locks[key]], cells[tags[key]]
        if lock is None:
            hidden = [key for key in t.keys if cells[t.locks[key]] is None]
            return None, uncover_locks(context, t, hidden)
        if lock.value != t.row_key:
            return None, make_conflict(t, key, lock.value)
        newest_lock = max(newest_lock, lock.timestamp)
        newest = max(
            newest, lock.timestamp, value.timestamp if value else 0, tag.timestamp if tag else 0
        )
    if is_late(context, t):
        return None, DeadlineError(TOO_LATE, transaction=t.row_key)
    for assertion in t.request.assertions:
        if not holds(assertion, t.seen):
            return None, make_assertion_error(t, assertion)
    values = ((key, cells[key]) for each in t.keys for key in (each, tags[each]))
    if far := judge_ahead(context, t, newest, newest_lock, values):
        return None, far
    replaced = (t.seen[mutation.key] for mutation in t.request.mutations)
    return Plan(newest + 1, tuple(cell.timestamp if cell else 0 for cell in replaced)), None


def _refuse_foreign_tags(
    t: Attempt, cells: Mapping[Key, Cell | None], tags: Mapping[Key, Key]
) -> AbortedError | None:
    """Return the error of an attempt that would replace what is no tag, and may be somebody's."""
    for mutation in t.request.mutations:
        tag = tags[mutation.key]
        cell = cells[tag]
        if cell is not None and cell.value and not cell.value.isdigit():
            error = make_foreign_error("the cell of the tag holds what is no tag", tag, cell)
            refused = AbortedError(str(error), transaction=t.row_key)
            refused.__cause__ = error
            return refused
    return None


def make_conflict(t: Attempt, key: Key, holder: bytes) -> ConflictError:
    """Return the error that names who holds the key; FREE: who had it has let go."""
    words = "key is locked" if holder else "key is locked by others, again and again"
    return ConflictError(words, key=key, holder=holder or None, transaction=t.row_key)


def tell_conflicts(context: Context, missing: Iterable[Met]) -> None:
    """Tell the watch who was in the way."""
    for item in missing:
        context.watch(Conflict(item.t.row_key, item.key, item.holder))
