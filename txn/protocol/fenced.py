"""The fenced protocol: one counting lock for each row and family, taken after reading.

A lock is taken by a compare-and-set from the exact value that was read, so holding it proves that
nothing in its row and family has changed since. Clients choose all timestamps except those meant
for people, so a late write lands below the writes that followed it. Only steps in which two clients
may race are compared. docs/protocol.md gives the argument for each rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from txn.assertions import list_keys
from txn.errors import AbortedError, CorruptRowError, DeadlineError, StoreError
from txn.model import Cell, Check, Edit, Key, Stamp, new_tuple
from txn.protocol.clocks import judge_ahead, was_set
from txn.protocol.codec import Plan
from txn.protocol.context import Context, call_store
from txn.protocol.locks import (
    NEVER_TAKEN,
    POLITE_TRIES,
    Blocker,
    Contention,
    decode_lock,
    fail_outdated,
    find_failed,
    group_by_holder,
    holder_of,
    make_assertion_error,
    make_conflict,
    make_foreign_error,
    read_lock,
    release_locks,
)
from txn.protocol.prepare import (
    fail_conflicts,
    report_conflicts,
    resolve_all,
    run_for_available,
    validate,
    write_rows,
)
from txn.protocol.row import FREE
from txn.protocol.statuses import Status
from txn.protocol.transaction import (
    TOO_LATE,
    WRITTEN_WITHIN_MS,
    PendingCommit,
    Transaction,
    advance,
    fail_aborted,
    fail_overdue,
    find_stamped_keys,
    is_late,
    note_heartbeat,
    report_phase,
    send_heartbeats,
    send_heartbeats_between,
    split_portions,
)

MAX_REQUESTS = 8
"""How often an attempt that does not wait requests a lock that others keep taking."""

SET_MEANWHILE = "this machine's clock was set meanwhile: nothing was committed"

LockOf = tuple[PendingCommit, Key]
"""An attempt and one of its lock cells."""


# ----------------------------------------------------------------------- until the decision


def prepare_fenced(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention, patient: bool
) -> list[PendingCommit]:
    """Read, write the rows, and lock what was read. A single-row commit has no status."""
    live = run_for_available(
        lambda some: read_and_evaluate(context, some, contention, patient), transactions
    )
    # A local transaction gains nothing by having no row.
    has_row = context.is_local or context.rules.keeps_rows
    live = [*live] if has_row else [t for t in live if not needs_no_row(t)]
    live = run_for_available(lambda some: take_row_locks(context, some, contention, patient), live)
    if any([t.validates for t in live]):
        live = run_for_available(lambda some: _validate(context, some, contention), live)
    return plan_commits(context, live)


@report_phase("read")
def read_and_evaluate(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention, patient: bool
) -> list[PendingCommit]:
    """Read the keys of each transaction with their locks, and evaluate the assertions. Wait for
    lock holders, before anything is written, unless that would delay others of the batch. A false
    assertion over several lock cells fails only after a second read finds them unchanged."""
    due = list(transactions)
    lock_cells = [(t, lock) for t in due for lock in t.lock_cells]
    unread = [
        (t, lock)
        for t, lock in lock_cells
        if lock not in t.found or not t.seen.keys() >= {*t.lock_cells[lock]}
    ]
    tries = 0
    while due:
        read_lock_cells(context, unread)
        blockers = find_blockers(lock_cells)
        held = {item.t for item in blockers}
        free = [t for t in due if t not in held and t.failure is None]
        raise_timestamps(context, free)
        unconfirmed = _fail_false(free)
        if not blockers and not unconfirmed:
            break
        _confirm(context, unconfirmed)
        if blockers:
            report_conflicts(context, blockers)
            is_polite = len(transactions) == 1 and context.policy.attempts > 1
            if patient or (is_polite and tries < POLITE_TRIES):
                contention.wait_for_holders(blockers, tries)
            else:
                fail_conflicts(blockers, contention.resolve(group_by_holder(blockers)))
            tries += 1
        due = [t for t in due if t.failure is None and (t in held or t in unconfirmed)]
        unread = lock_cells = [(t, lock) for t in due for lock in t.lock_cells]
    now_ms = context.clock.monotonic_ms()
    for t in transactions:
        if t.failure is None and now_ms >= t.due_ms:
            t.failure = DeadlineError(TOO_LATE)
    return [t for t in transactions if t.failure is None]


def read_lock_cells(
    context: Context, lock_cells: Collection[LockOf], others: Sequence[Key] = ()
) -> Mapping[Key, Cell | None]:
    """Read lock cells into `found` and their keys into `seen`; each row is of one instant. Return
    these cells, and others that are read as well. Only the timestamp is read of a key that no
    assertion compares. A transaction has its own locks already: those of a request that was
    repeated, or of an earlier writer of the same part."""
    wanted = [*others, *[cell for t, lock in lock_cells for cell in (lock, *t.lock_cells[lock])]]
    cells: Mapping[Key, Cell | None] = {}
    times: Mapping[Key, Stamp | None] = {}
    if context.is_local:
        cells = call_store(context, partial(context.store.read, wanted))
    elif wanted:
        stamped = find_stamped_keys({t for t, _ in lock_cells})
        keys = [cell for cell in wanted if cell not in stamped]
        stamps = [cell for cell in wanted if cell in stamped]
        read = partial(context.store.check_and_read, (), keys, stamps, durable=False)
        _, cells, times = call_store(context, read)
    for t, lock in lock_cells:
        cell = cells[lock]
        t.found[lock] = _undo_take(t, lock, cell)
        if cell is not None and t.found[lock] is not cell:
            t.held.add(lock)
            t.taken[lock] = cell.value
        for key in t.lock_cells[lock]:
            t.seen[key] = times[key] if key in times else cells[key]
    return cells


def _undo_take(t: PendingCommit, lock: Key, cell: Cell | None) -> Cell | None:
    """Return a lock cell that the transaction holds as it was before, timestamp aside."""
    if cell is None or holder_of(lock, cell) != t.row_key:
        return cell
    return Cell(read_lock(lock, cell).undo_take(), cell.timestamp)


def find_blockers(lock_cells: Iterable[LockOf]) -> list[Blocker]:
    """Return the locks that were found held, of transactions that may still commit."""
    held = []
    for t, lock in lock_cells:
        cell = t.found[lock]
        if cell and (holder := holder_of(lock, cell)) != FREE and t.failure is None:
            held.append(Blocker(t, t.lock_cells[lock][0], holder, cell))
    return fail_outdated(held) if held else held


def _fail_false(transactions: Iterable[PendingCommit]) -> list[PendingCommit]:
    """Fail the transactions with a false assertion. Return those that need a second read first,
    because the assertion's cells are of several instants."""
    unconfirmed = []
    for t in transactions:
        lost = find_failed(t)
        if lost is None or t.failure is not None:
            continue
        if t.request.once is None and len({t.locks[key] for key in list_keys(lost)}) == 1:
            t.failure = make_assertion_error(t, lost)
        else:
            unconfirmed.append(t)
    return unconfirmed


def _confirm(context: Context, unconfirmed: Sequence[PendingCommit]) -> None:
    """Fail the transactions whose lock cells have not changed since they were read."""
    wanted = list(dict.fromkeys(lock for t in unconfirmed for lock in t.lock_cells))
    cells = call_store(context, lambda: context.store.read(wanted)) if wanted else {}
    for t in unconfirmed:
        lost = find_failed(t)
        now = {lock: _undo_take(t, lock, cells[lock]) for lock in t.found}
        if lost is not None and now == t.found:
            t.failure = make_assertion_error(t, lost)
        elif is_late(context, t):
            t.failure = DeadlineError(TOO_LATE)


def raise_timestamps(context: Context, transactions: Iterable[PendingCommit]) -> None:
    """Choose commit timestamps above every cell that was read, and not below the clock. Fail those
    that must not go so high, and all if the clock was set."""
    now_ms = context.clock.wall_ms()
    is_set = was_set(context, now_ms)
    for t in transactions:
        if is_set:
            t.failure = AbortedError(SET_MEANWHILE, transaction=t.row_key)
        cells = {**t.found, **t.seen}
        newest = max([cell.timestamp for cell in cells.values() if cell], default=0)
        if newest > now_ms:
            t.failure = t.failure or judge_ahead(context, t, newest, now_ms, cells)
        t.timestamp = max(t.timestamp, now_ms, newest + 1)


def list_edits(t: Transaction, timestamp: int) -> Iterable[tuple[Key, list[Edit]]]:
    """Return each lock cell with the edits of its keys."""
    found: Mapping[Key, list[Edit]] = {lock: [] for lock in t.taken_cells}
    for mutation in t.request.mutations:
        edit = new_tuple(Edit, (mutation.key, mutation.value, timestamp))
        found[t.locks[mutation.key]] += [edit]
    return found.items()


def needs_no_row(t: PendingCommit) -> bool:
    """Whether it needs no row: one row and family, and no token, labels, ranges or parts."""
    request = t.request
    if request.once is not None or request.labels or t.spans:
        return False
    return len(t.lock_cells) == 1 and t.status is None and t.parts is None


@report_phase("lock")
def take_row_locks(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention, patient: bool
) -> list[PendingCommit]:
    """Take the locks, each from the value that was read. If a lock changed and is free, it and its
    keys are read again, and the transaction's assertions evaluated again."""
    if patient:
        owners = {lock: t for t in transactions for lock in t.taken_cells}
        for lock in send_heartbeats_between(context, transactions, sorted(owners)):
            _lock_patiently(context, transactions, (owners[lock], lock), contention)
    else:
        lock_cells = [(t, lock) for t in transactions for lock in t.taken_cells]
        for some in send_heartbeats_between(context, transactions, split_portions(lock_cells)):
            _lock_at_once(context, transactions, some, contention)
    for t in transactions:
        if t.is_stale and t.failure is None and not t.validated:
            _judge_locked(t)
    return [t for t in transactions if t.failure is None]


def _validate(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention
) -> list[PendingCommit]:
    """Validate ranges and keys. An attempt that waited for locks steps to 1-LOCKED first: readers
    did not wait for it so far."""
    due = [t for t in transactions if t.validates and t.is_patient and t.status is Status.WRITTEN]
    sent_ms = context.clock.monotonic_ms()
    advance(context, due, Status.LOCKED)
    note_heartbeat(due, sent_ms)
    live = fail_aborted(transactions, Status.LOCKED)
    return validate(context, live, contention, [t for t in live if t.validated])


def plan_commits(context: Context, transactions: Sequence[PendingCommit]) -> list[PendingCommit]:
    """Plan the replaced versions and the values of the locks, of transactions that are not late."""
    fail_overdue(transactions, context.clock.monotonic_ms())
    live = [t for t in transactions if t.failure is None]
    for t in live:
        seen = t.seen
        t.plan = Plan(
            t.timestamp,
            tuple([cell.timestamp if (cell := seen[m.key]) else 0 for m in t.request.mutations]),
            tuple([t.taken[lock] if lock in t.taken else _take(t, lock) for lock in t.taken_cells]),
        )
    return live


@report_phase("put")
def put_and_release(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Put the values of each row and family and release its lock, in one step. Only an owner whose
    decision was confirmed a short time ago writes without comparing. Any other client may come
    after later writers, or after delete markers have gone, so it compares the lock."""
    edits: list[Edit] = []
    checks: dict[Key, Check] = {}
    now_ms = context.clock.monotonic_ms()
    for t in transactions:
        is_sure, plan = _is_sure(t, now_ms), t.decided
        if len(plan.locks) != len(t.taken_cells):
            raise CorruptRowError("the plan is of another protocol", transaction=t.row_key)
        for (lock, own), held in zip(list_edits(t, plan.timestamp), plan.locks, strict=True):
            held_lock = decode_lock(held)
            if held_lock is None or held_lock.holder != t.row_key:
                raise CorruptRowError("the plan has another's lock", transaction=t.row_key)
            free = new_tuple(Edit, (lock, held_lock.give_back(), plan.timestamp + 1))
            if is_sure:
                edits += (*own, free)
            else:
                checks[lock] = Check(lock, held, edits=(*own, free))
    if edits:
        put = partial(context.store.write, edits, durable=False, by_row=True)
        call_store(context, put, now_ms)
    if checks:
        _finish_compared(context, checks)
    return list(transactions)


def _finish_compared(context: Context, checks: Mapping[Key, Check]) -> None:
    """Finish row families whose locks are still held. A refusal is fine if the lock shows that
    another client finished: its count grew, or it was released at or above this timestamp. An
    absent lock means that the table was made again. A lock that went back was changed outside the
    protocol, so it is unknown what was put: CorruptRowError."""
    found = _try_to_finish(context, checks)
    absent = [checks[lock]._replace(expected=FREE) for lock, cell in found.items() if cell is None]
    found |= _try_to_finish(context, {check.key: check for check in absent})
    for lock, cell in found.items():
        freed = checks[lock].edits[-1]
        now, last = read_lock(lock, cell), read_lock(lock, Cell(freed.value or FREE, 0))
        is_past = now.taken > last.taken or (now.taken == last.taken and now.holder == FREE)
        if cell is not None and not (is_past and cell.timestamp >= (freed.timestamp or 0)):
            raise make_foreign_error("the lock went back while it was held", lock, cell)


def _try_to_finish(context: Context, checks: Mapping[Key, Check]) -> dict[Key, Cell | None]:
    def attempt() -> dict[Key, Cell | None]:
        answers = context.store.check_and_put(list(checks.values()), durable=False)
        refused = [lock for lock, done in zip(checks, answers, strict=True) if not done]
        found = context.store.read(refused) if refused else {}
        for lock, cell in found.items():
            if (cell.value if cell else FREE) == checks[lock].expected:
                raise StoreError("lock does not change", key=lock)
        return found

    return call_store(context, attempt) if checks else {}


@report_phase("unlock")
def release_row_locks(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Release each lock that these transactions still hold; only an owner knows their values."""
    own: dict[Key, Cell] = {}
    unknown: dict[Key, bytes] = {}
    for t in transactions:
        for lock in (lock for lock in t.lock_cells if lock in t.held):
            if isinstance(t, PendingCommit):
                own[lock] = Cell(_take(t, lock), t.timestamp)
            else:
                unknown[lock] = t.row_key
    found = call_store(context, lambda: context.store.read(list(unknown))) if unknown else {}
    for lock, cell in found.items():
        if cell is not None and holder_of(lock, cell) == unknown[lock]:
            own[lock] = cell
    release_locks(context, own)
    return list(transactions)


def _judge_locked(t: PendingCommit) -> None:
    """Evaluate the assertions with all locks held; the result is final."""
    if (lost := find_failed(t)) is not None:
        t.failure = make_assertion_error(t, lost)


def _take(t: PendingCommit, lock: Key) -> bytes:
    return read_lock(lock, t.found[lock]).take(t.row_key)


def _request_locks(context: Context, lock_cells: Iterable[LockOf]) -> list[LockOf]:
    """Request locks that were found free, from the values that were found, and write the rows of
    their transactions with them. Return those that were found held, and those that were refused,
    read again."""
    due = [lock_cell for lock_cell in lock_cells if lock_cell[0].failure is None]
    requested: dict[LockOf, Check] = {}
    for t, lock in due:
        cell = t.found[lock]
        free = decode_lock(cell.value) if cell and cell.value else NEVER_TAKEN
        if free is not None and not free.holder:
            t.held.add(lock)
            t.taken[lock] = taken = free.take(t.row_key)
            expected = cell.value if cell else FREE
            edits = (new_tuple(Edit, (lock, taken, t.timestamp)),)
            requested[t, lock] = new_tuple(Check, (lock, expected, (), edits, False))

    answers = write_rows(context, [t for t, _ in requested], [*requested.values()])
    if len(requested) == len(due) and all(answers):
        return []
    refused = [lock_cell for lock_cell, got in zip(requested, answers, strict=True) if not got]
    cells = _read_again(context, refused)
    missing = []
    for t, lock in refused:
        found = cells[lock]
        if holder_of(lock, found) != t.row_key:
            missing.append((t, lock))
            if found is not None and found.value != requested[t, lock].expected:
                t.held.discard(lock)  # a request from the old value can never be granted now
    return missing + [lock_cell for lock_cell in due if lock_cell not in requested]


def _lock_at_once(
    context: Context,
    batch: Sequence[PendingCommit],
    lock_cells: Sequence[LockOf],
    contention: Contention,
) -> None:
    """Request locks and never wait. A hot key was taken just now, so its holder is not resolved."""
    refused = _request_locks(context, lock_cells)
    for _ in range(MAX_REQUESTS):
        if not refused:
            break
        blockers = find_blockers(refused)
        if blockers:
            report_conflicts(context, blockers)
            hot = {item.t: contention.list_hot_keys(item.t.keys) for item in blockers}
            unknown = group_by_holder(item for item in blockers if item.key not in hot[item.t])
            gone = resolve_all(context, batch, contention, unknown)
            fail_conflicts(blockers, gone)
            held = {(item.t, item.t.locks[item.key]) for item in blockers if item.holder in gone}
            _read_again(context, [lock_cell for lock_cell in refused if lock_cell in held])
        _fail_outdated_locks(refused)
        refused = _request_locks(context, refused)
    for t, lock in refused:
        holder = holder_of(lock, t.found[lock])
        t.failure = t.failure or make_conflict(t, t.lock_cells[lock][0], holder)


def _lock_patiently(
    context: Context, batch: Sequence[PendingCommit], lock_cell: LockOf, contention: Contention
) -> None:
    t, _ = lock_cell
    tries = 0
    while t.failure is None and _request_locks(context, [lock_cell]):
        while t.failure is None and (blockers := find_blockers([lock_cell])):
            report_conflicts(context, blockers)
            contention.wait_for_holders(blockers, tries)
            send_heartbeats(context, batch, context.clock.monotonic_ms())
            tries += 1
            if t.failure is None:
                _read_again(context, [lock_cell])
        if is_late(context, t):
            t.failure = t.failure or DeadlineError(TOO_LATE, transaction=t.row_key)
        _fail_outdated_locks([lock_cell])


def _read_again(context: Context, lock_cells: Collection[LockOf]) -> Mapping[Key, Cell | None]:
    """Read lock cells again; the commit timestamp will be above what is found."""
    for t, _ in lock_cells:
        t.is_stale = True
    cells = read_lock_cells(context, lock_cells)
    raise_timestamps(context, dict.fromkeys(t for t, _ in lock_cells))
    return cells


def _fail_outdated_locks(lock_cells: Iterable[LockOf]) -> None:
    fail_outdated(
        [Blocker(t, t.lock_cells[lock][0], FREE, None) for t, lock in lock_cells if not t.failure]
    )


def _is_sure(t: Transaction, now_ms: int) -> bool:
    """Whether other clients can only have finished this transaction, and not written after it."""
    return t.decided_ms is not None and now_ms - t.decided_ms <= WRITTEN_WITHIN_MS


FORWARD = ((Status.ASSERTED, put_and_release),)
"""One step puts the values of a row and family and releases its lock; the status follows."""
