"""The six-phase protocol: a lock and a tag beside each key, and every status recorded.

Each step takes the transactions that can still commit and returns those that still can after it.
docs/protocol.md gives the argument for each rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from txn.errors import AbortedError
from txn.model import Cell, Check, Edit, Key, Stamp, new_tuple
from txn.protocol.clocks import judge_ahead, uncover_locks
from txn.protocol.codec import Plan
from txn.protocol.context import Context, call_store
from txn.protocol.locks import (
    Blocker,
    Contention,
    fail_outdated,
    find_failed,
    group_by_holder,
    make_assertion_error,
    make_conflict,
    make_foreign_error,
    read_locks,
    send_releases,
)
from txn.protocol.prepare import (
    fail_conflicts,
    find_locked,
    report_conflicts,
    resolve_all,
    resolve_found,
    run_for_available,
    validate,
    write_rows,
)
from txn.protocol.row import FREE
from txn.protocol.statuses import Status
from txn.protocol.transaction import (
    PORTION,
    PendingCommit,
    Transaction,
    advance,
    advance_with,
    fail_aborted,
    fail_overdue,
    find_stamped_keys,
    note_heartbeat,
    report_phase,
    send_heartbeats,
    send_heartbeats_between,
    split_portions,
)

CELLS_AT_ONCE = 3 * PORTION


def prepare_six_phase(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention, patient: bool
) -> list[PendingCommit]:
    lock = lock_in_order if patient else lock_at_once
    live = run_for_available(lambda some: lock(context, some, contention), transactions)
    live = run_for_available(lambda some: assert_under_locks(context, some), live)
    if any([t.spans or _must_look_again(t) for t in live]):
        live = run_for_available(
            lambda some: validate(
                context, some, contention, [t for t in some if _must_look_again(t)]
            ),
            live,
        )
    return resolve_found(context, transactions, live, contention)


@report_phase("lock")
def lock_at_once(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention
) -> list[PendingCommit]:
    """Write the rows, request every lock in one batch, and never wait. A transaction fails if
    resolving the holder does not release its lock. Hot keys are requested first, one by one, so
    that a failing transaction has blocked no other."""
    is_calm = contention.is_calm(context.clock.monotonic_ms())
    hot = {t: [] if is_calm else contention.list_hot_keys(t.taken_keys) for t in transactions}
    most = max(map(len, hot.values()), default=0)
    first = [[(t, keys[i]) for t, keys in hot.items() if i < len(keys)] for i in range(most)]
    rest = split_portions([(t, key) for t in hot for key in t.taken_keys if key not in hot[t]])
    for due in send_heartbeats_between(context, transactions, [*first, *rest]):
        wanted = [(t, key) for t, key in due if t.failure is None]
        missing = take_locks(context, wanted)
        if missing:
            report_conflicts(context, missing)
            missing = fail_outdated(missing)
            unknown = group_by_holder(item for item in missing if item.key not in hot[item.t])
            gone = {FREE, *resolve_all(context, transactions, contention, unknown)}
            kept = [item for item in missing if item.holder not in gone]
            kept += take_locks(context, [item[:2] for item in missing if item.holder in gone])
            fail_conflicts(kept)
    return [t for t in transactions if t.failure is None]


def take_locks(context: Context, wanted: Sequence[tuple[PendingCommit, Key]]) -> list[Blocker]:
    """Request locks, and write the rows of transactions without one. Return the refused requests,
    and store the cells under those in `seen`."""
    checks: list[Check] = []
    for t, key in wanted:
        lock = t.locks[key]
        t.held.add(lock)
        checks.append(new_tuple(Check, (lock, FREE, ((lock, t.row_key),), (), False)))
    answers = write_rows(context, [t for t, _ in wanted], checks)
    if all(answers):
        return []
    refused = [item for item, got in zip(wanted, answers, strict=True) if not got]
    found = call_store(context, lambda: read_locks(context, refused))
    # A repeated request is refused by the lock that the first one took.
    missing = [item for item in found if item.holder != item.t.row_key]
    for item in missing:
        item.t.held.discard(item.t.locks[item.key])
    return missing


@report_phase("lock")
def lock_in_order(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention
) -> list[PendingCommit]:
    """Take the locks of the whole batch one by one in key order, waiting for each holder, and write
    each row with its first lock. All clients use this order, so there is no deadlock."""
    wanted = {key: t for t in transactions for key in t.taken_keys}
    for key in send_heartbeats_between(context, transactions, sorted(wanted)):
        t, tries = wanted[key], 0
        while t.failure is None and (missing := take_locks(context, [(t, key)])):
            report_conflicts(context, missing)
            missing = fail_outdated(missing)
            while missing and t.failure is None:
                missing = contention.wait_for_holders(missing, tries)
                send_heartbeats(context, transactions, context.clock.monotonic_ms())
                tries += 1
    return [t for t in transactions if t.failure is None]


@report_phase("assert")
def assert_under_locks(
    context: Context, transactions: Sequence[PendingCommit]
) -> list[PendingCommit]:
    """Step to 1-LOCKED, read every cell under the locks, evaluate the assertions, and plan the
    replaced versions. An abort between the read and the step makes the step fail. The locks keep
    all cells as they are, so only the timestamp is read of a key that no assertion compares."""
    wanted, stamped = list_cells(transactions), find_stamped_keys(transactions)
    first, *others = [*split_portions(wanted, CELLS_AT_ONCE)] or [wanted]
    cells: dict[Key, Cell | None] = {}
    stamps: dict[Key, Stamp | None] = {}

    def read(some: Sequence[Key], steps: Sequence[Check] = ()) -> list[bool]:
        keys = [cell for cell in some if cell not in stamped]
        others = [cell for cell in some if cell in stamped]
        answers, found, times = context.store.check_and_read(steps, keys, others, durable=False)
        cells.update(found)
        stamps.update(times)
        return answers

    due = [t for t in transactions if t.status is Status.WRITTEN]
    sent_ms = context.clock.monotonic_ms()
    if due:
        advance(context, due, Status.LOCKED, send=partial(read, first), now_ms=sent_ms)
        note_heartbeat(due, sent_ms)
    else:  # parts
        call_store(context, partial(read, first))
    live = fail_aborted(transactions, Status.LOCKED)
    send_heartbeats(context, live, context.clock.monotonic_ms())
    if others and live:
        for some in send_heartbeats_between(context, live, others):
            call_store(context, partial(read, some))
    live = [t for t in live if t.failure is None]
    for t in live:
        t.failure = judge_cells(context, t, cells, stamps, is_final=not _must_look_again(t))
    fail_overdue(live, context.clock.monotonic_ms())
    return [t for t in live if t.failure is None]


def list_cells(transactions: Sequence[Transaction]) -> list[Key]:
    """Return each key with its lock and its tag."""
    with_tags = [(t.locks, t.tags) for t in transactions]
    return [
        cell for locks, tags in with_tags for key in locks for cell in (key, locks[key], tags[key])
    ]


def _must_look_again(t: PendingCommit) -> bool:
    """Whether one read does not validate its keys: they are in several rows, or are read in several
    calls; or readers passed its row until this step; or it validates ranges as well."""
    if not t.validated:
        return False
    if t.is_patient or t.spans or len(t.locks) > PORTION:
        return True
    return len({key[3:] + key[:1] for key in t.validated}) > 1


def judge_cells(
    context: Context,
    t: PendingCommit,
    cells: Mapping[Key, Cell | None],
    stamps: Mapping[Key, Stamp | None],
    *,
    is_final: bool = True,
) -> AbortedError | None:
    """Evaluate the assertions on cells that were read under the locks, and plan the commit; return
    why it must not happen, its deadline aside. is_final: whether the cells held at one instant;
    otherwise `validate` evaluates the assertions."""
    t.seen = {key: stamps[key] if key in stamps else cells[key] for key in t.locks}
    for key in t.taken_keys:
        held = cells[t.locks[key]]
        if held is None:
            hidden = [key for key in t.taken_keys if cells[t.locks[key]] is None]
            return uncover_locks(context, t, hidden)
        if held.value != t.row_key:
            return make_conflict(t, key, held.value)
    if t.validated:
        firsts = [keys[0] for keys in t.validated.values()]  # keys of a lock share its guards
        t.found = {cell: cells[cell] for key in firsts for cell in context.rules.guards_of(key)}
        if (blocked := find_locked(t, cells)) is not None:
            return blocked
    if is_final and (lost := find_failed(t)) is not None:
        return make_assertion_error(t, lost)
    return _plan(context, t, cells)


def _plan(
    context: Context, t: PendingCommit, cells: Mapping[Key, Cell | None]
) -> AbortedError | None:
    """Plan a commit above all its cells; return why it must not be above them, or write tags."""
    mutations, seen, tag_of = t.request.mutations, t.seen, t.tags
    tags = {tag: cells[tag] for tag in tag_of.values()}
    newest_lock = max([cell.timestamp for lock in t.lock_cells if (cell := cells[lock])], default=0)
    written = [*seen.values(), *tags.values()]
    newest = max([newest_lock, *[cell.timestamp for cell in written if cell]])
    if newest > newest_lock:
        far = judge_ahead(context, t, newest, newest_lock, {**seen, **tags})
        if far is not None:
            return far
    for mutation in mutations:
        tag = tag_of[mutation.key]
        cell = tags[tag]
        if cell is not None and cell.value and not cell.value.isdigit():
            error = make_foreign_error("the cell of the tag holds what is no tag", tag, cell)
            refused = AbortedError(str(error), transaction=t.row_key)
            refused.__cause__ = error
            return refused
    replaced = [found.timestamp if (found := seen[m.key]) else 0 for m in mutations]
    t.plan = Plan(newest + 1, tuple(replaced))
    return None


@report_phase("put")
def put_values(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Put each value or delete marker, with a tag that names the version it replaces."""
    edits: list[Edit] = []
    for t in transactions:
        plan, tags = t.decided, t.tags
        for mutation, version in zip(t.request.mutations, plan.replaced, strict=True):
            key = mutation.key
            edits += (
                new_tuple(Edit, (key, mutation.value, plan.timestamp)),
                new_tuple(Edit, (tags[key], b"%d" % version, plan.timestamp)),
            )
    call_store(context, partial(context.store.write, edits, durable=False))
    return list(transactions)


@report_phase("clean")
def clean_tags(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Step to 3-PUT, and empty each tag. The empty tag stays, as evidence of when its cell last
    changed."""
    rows: dict[tuple[bytes | None, bytes], list[Edit]] = defaultdict(list)
    for t in transactions:
        timestamp, tags = t.decided.timestamp, t.tags
        for mutation in t.request.mutations:
            tag = tags[mutation.key]
            rows[tag.table, tag.row] += [new_tuple(Edit, (tag, FREE, timestamp))]
    checks = [
        new_tuple(Check, (edits[0].key, None, (), tuple(edits), True)) for edits in rows.values()
    ]
    behind = [t for t in transactions if t.status is Status.ASSERTED]
    advance_with(context, behind, Status.PUT, checks)
    return list(transactions)


@report_phase("unlock")
def release_key_locks(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Release the locks; step transactions whose tags are clean to 4-CLEANING. 3-PUT must have been
    acknowledged, because a client that finds an earlier status puts the values again."""
    held = [(lock, t.row_key) for t in transactions for lock in t.lock_cells if lock in t.held]

    def send(checks: Sequence[Check]) -> None:
        behind = [t for t in transactions if t.status is Status.PUT]
        advance_with(context, behind, Status.CLEANING, checks)

    releases = [new_tuple(Check, (lock, own, ((lock, FREE),), (), True)) for lock, own in held]
    send_releases(releases, send)
    return list(transactions)


FORWARD = (
    (Status.ASSERTED, put_values),
    (Status.PUT, clean_tags),
    (Status.CLEANING, release_key_locks),
)
"""The work on decided transactions, by the status at which a client that finds them begins."""
