"""Commit a batch within one local transaction of the store: one read, one write.

Nobody sees the steps of such a commit, only what they leave. So this reads every cell that the
steps would read, judges as they do, and writes what they would have left. It is for the usual case:
no lock is held, every assertion holds, and nothing was scanned or is in parts. Otherwise nothing is
written, and the phases follow. `tests/unit/test_one_write.py` compares both ways, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from txn.errors import TableUnavailable
from txn.model import Cell, Check, Edit, Key
from txn.protocol import fenced, six_phase
from txn.protocol.codec import encode_plan
from txn.protocol.context import Context
from txn.protocol.locks import holder_of, read_lock
from txn.protocol.row import FREE, column, created_ms, status_key
from txn.protocol.statuses import Status
from txn.protocol.transaction import PendingCommit

SIX_PHASE_TIMES = tuple(
    status.at
    for status in (
        *(Status.WRITTEN, Status.LOCKED, Status.ASSERTED),
        *(Status.PUT, Status.CLEANING, Status.COMPLETE),
    )
)
FENCED_TIMES = (Status.WRITTEN.at, Status.ASSERTED.at, Status.COMPLETE.at)

Writes = tuple[list[Check], list[Key]]
"""What to write, and the locks of it that no transaction has had so far."""


class MustWait(Exception):
    """The local transaction would have to wait, so it is undone."""


def commit_in_one_write(context: Context, transactions: Sequence[PendingCommit]) -> bool:
    """Commit a batch that has no lock cell in common. Return False if the phases must do it;
    nothing was written then. Raises MustWait if a lock is hidden by a delete marker above it."""
    features = context.store.features  # a store of single cells would write cell by cell
    if "row_mutations" not in features or any(t.spans or t.parts is not None for t in transactions):
        return False
    list_checks = _check_fenced if context.rules.locks_rows else _check_six_phase
    began_ms = context.clock.monotonic_ms()
    found = None
    with suppress(TableUnavailable):  # the phases fail only the transactions that need the table
        found = list_checks(context, transactions)
    if found is None:
        for t in transactions:
            t.reset()
        return False
    checks, new_locks = found
    answers = context.store.check_and_put(checks)
    if not all(answers) or (new_locks and None in context.store.read(new_locks).values()):
        raise MustWait
    for t in transactions:
        t.status = Status.COMPLETE
        t.written_ms = t.decided_ms = began_ms
    return True


def _check_six_phase(context: Context, transactions: Sequence[PendingCommit]) -> Writes | None:
    tags = {key: key.tag for t in transactions for key in t.keys}
    owners = [(t, key) for t in transactions for key in t.keys]
    wanted = [cell for t, key in owners for cell in (key, t.locks[key], tags[key])]
    cells = context.store.read(wanted)
    now_ms = context.clock.wall_ms()
    checks: list[Check] = []
    new: list[Key] = []
    for t in transactions:
        taken_ms: dict[Key, int] = {}
        for lock in t.lock_cells:
            cell = cells[lock]
            if cell is None:
                new.append(lock)
                taken_ms[lock] = now_ms
            elif cell.value:
                return None
            else:
                taken_ms[lock] = max(now_ms, cell.timestamp)
            cells[lock] = Cell(t.row_key, taken_ms[lock])
        t.seen = {key: cells[key] for key in t.keys}
        t.plan, failure = six_phase.judge_cells(context, t, cells, tags)
        if failure or t.plan is None or six_phase.refuse_foreign_tags(t, cells, tags):
            return None
        timestamp = t.plan.timestamp
        edits: dict[Key, tuple[Edit, ...]] = {}
        for mutation in t.request.mutations:
            key, value = mutation.key, mutation.value
            edits[key] = (Edit(key, value, timestamp), Edit(tags[key], FREE, timestamp))
        for key, lock in t.locks.items():
            # The timestamp that was judged: a marker that hides it would hide the value as well.
            free = Edit(lock, FREE, taken_ms[lock])
            checks.append(Check(lock, FREE, (), (free, *edits.get(key, ()))))
        table, row_key = context.table, t.row_key
        status = status_key(table, row_key)
        times = [(column(table, row_key, at), FREE) for at in SIX_PHASE_TIMES]
        cells_of_row = (
            (column(table, row_key, b"buffer"), t.buffer),
            (column(table, row_key, b"plan"), encode_plan(t.plan)),
            *times,
            (status, Status.COMPLETE.encoded),
        )
        checks.append(Check(status, FREE, cells_of_row))
    return checks, new


def _check_fenced(context: Context, transactions: Sequence[PendingCommit]) -> Writes | None:
    fenced.read_lock_cells(context, [(t, lock) for t in transactions for lock in t.lock_cells])
    checks: list[Check] = []
    for t in transactions:
        if any(map(holder_of, t.found, t.found.values())):
            return None
        fenced.raise_timestamp(context, t)
        if fenced.find_failed(t) is not None:
            return None
    planned = fenced.plan_commits(context, transactions)
    if len(planned) < len(transactions):
        return None
    for t in planned:
        plan, timestamp = t.decided, t.timestamp
        own = zip(fenced.list_edits(t, timestamp), plan.locks, strict=True)
        for (lock, edits), taken in own:
            found = t.found[lock]
            freed = read_lock(lock, Cell(taken, timestamp)).give_back().value
            take, free = Edit(lock, taken, timestamp), Edit(lock, freed, timestamp + 1)
            changes = (take, *edits, free)
            checks.append(Check(lock, found.value if found else FREE, (), changes))
        checks.append(_check_fenced_row(context, t))
    return checks, []


def _check_fenced_row(context: Context, t: PendingCommit) -> Check:
    table, row_key, offsets = context.table, t.row_key, context.rules.offsets_ms
    status, begun_ms = status_key(table, row_key), created_ms(t.row_key)
    edits = (
        Edit(column(table, row_key, b"buffer"), t.buffer, begun_ms),
        Edit(
            column(table, row_key, b"plan"),
            encode_plan(t.decided),
            begun_ms + offsets[Status.ASSERTED],
        ),
        Edit(status, Status.COMPLETE.encoded, begun_ms + offsets[Status.COMPLETE]),
    )
    times = [(column(table, row_key, at), FREE) for at in FENCED_TIMES]
    return Check(status, FREE, tuple(times), edits)
