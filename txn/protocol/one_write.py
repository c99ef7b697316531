"""Commit a batch within one local transaction of the store: one read, one write.

Nobody sees the steps of such a commit, only what they leave. So this reads every cell that the
steps would read, judges as they do, and writes what they would have left. It is for the usual case:
no lock is held, every assertion holds, and nothing was scanned or is in parts. Otherwise nothing is
written, and the phases follow. `tests/unit/test_one_write.py` compares both ways, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence

from txn.clock import measure_s, stamp_ns
from txn.errors import TableUnavailable
from txn.events import Phase, silent
from txn.model import Cell, Edit, Key, new_tuple
from txn.protocol import fenced, six_phase
from txn.protocol.codec import encode_plan
from txn.protocol.context import Context
from txn.protocol.locks import find_failed, holder_of, read_lock
from txn.protocol.row import EARLY, FAMILY, FREE, created_ms, status_key
from txn.protocol.statuses import Status
from txn.protocol.transaction import PendingCommit, fail_overdue

SIX_PHASE_TIMES = (
    *(Status.WRITTEN.at, Status.LOCKED.at, Status.ASSERTED.at),
    *(Status.PUT.at, Status.CLEANING.at, Status.COMPLETE.at),
)
FENCED_TIMES = (Status.WRITTEN.at, Status.ASSERTED.at, Status.COMPLETE.at)


class MustWait(Exception):
    """The local transaction would have to wait, so it is undone."""


def commit_in_one_write(context: Context, transactions: Sequence[PendingCommit]) -> bool:
    """Commit a batch that has no lock cell in common. Return False if the phases must do it;
    nothing was written then. Raises MustWait if a lock is hidden by a delete marker above it."""
    features = context.store.features  # a store of single cells would write cell by cell
    if "row_mutations" not in features or any(
        [t.spans or t.parts is not None for t in transactions]
    ):
        return False
    list_edits = _list_fenced if context.rules.locks_rows else _list_six_phase
    began_ms = context.clock.monotonic_ms()
    is_silent = context.on_event is silent
    since_s, since_ns = (0.0, 0) if is_silent else (measure_s(), stamp_ns())
    new_locks: list[Key] = []
    try:
        edits = list_edits(context, transactions, new_locks)
    except TableUnavailable:  # the phases fail only the transactions that need the table
        edits = None
    if edits is None:
        for t in transactions:
            t.reset()
        return False
    context.store.write(edits)
    if new_locks and None in context.store.read(new_locks).values():
        raise MustWait
    for t in transactions:
        t.status = Status.COMPLETE
        t.written_ms = t.decided_ms = began_ms
    if not is_silent:
        count, elapsed_ms = len(transactions), (measure_s() - since_s) * 1000
        context.on_event(Phase("decide", "started", count, at_ns=since_ns))
        context.on_event(Phase("decide", "done", count, 0, elapsed_ms))
    return True


def _list_six_phase(
    context: Context, transactions: Sequence[PendingCommit], new_locks: list[Key]
) -> list[Edit] | None:
    """Return what the phases would leave, or None if they must run. new_locks: gets the locks that
    no transaction has had so far."""
    statuses = [status_key(context.table, t.row_key) for t in transactions]
    cells = context.store.read([*statuses, *six_phase.list_cells(transactions)])
    if any([cells[status] for status in statuses]):
        return None
    now_ms = context.clock.wall_ms()
    edits: list[Edit] = []
    for t in transactions:
        new_locks += [lock for lock in t.taken_cells if cells[lock] is None]
        taken_ms = _take_locks(t, cells, now_ms)
        if taken_ms is None or six_phase.judge_cells(context, t, cells, {}) is not None:
            return None
        timestamp, tags = t.decided.timestamp, t.tags
        written = {mutation.key: mutation.value for mutation in t.request.mutations}
        for key in t.taken_keys:
            lock = t.locks[key]
            # The timestamp that was judged: a marker that hides it would hide the value as well.
            edits.append(new_tuple(Edit, (lock, FREE, taken_ms[lock])))
            if key in written:
                edits.append(new_tuple(Edit, (key, written[key], timestamp)))
                edits.append(new_tuple(Edit, (tags[key], FREE, timestamp)))
        edits += _list_row(context, t)
    fail_overdue(transactions, context.clock.monotonic_ms())
    return None if any([t.failure for t in transactions]) else edits


def _take_locks(
    t: PendingCommit, cells: dict[Key, Cell | None], now_ms: int
) -> dict[Key, int] | None:
    """Put the locks into the cells as if they were taken now; return when each was, or None if one
    is held."""
    taken_ms: dict[Key, int] = {}
    for lock in t.lock_cells:
        cell = cells[lock]
        if cell is not None and cell.value:
            return None
        if lock in t.validated:
            continue
        taken_ms[lock] = now_ms if cell is None else max(now_ms, cell.timestamp)
        cells[lock] = new_tuple(Cell, (t.row_key, taken_ms[lock]))
    return taken_ms


def _list_fenced(
    context: Context, transactions: Sequence[PendingCommit], new_locks: list[Key]
) -> list[Edit] | None:
    """Return what the phases would leave, or None if they must run."""
    statuses = [status_key(context.table, t.row_key) for t in transactions]
    lock_cells = [(t, lock) for t in transactions for lock in t.lock_cells]
    cells = fenced.read_lock_cells(context, lock_cells, statuses)
    if any([cells[status] for status in statuses]):
        return None
    for t in transactions:
        if any(map(holder_of, t.found, t.found.values())) or find_failed(t) is not None:
            return None
    fenced.raise_timestamps(context, transactions)
    if len(fenced.plan_commits(context, transactions)) < len(transactions):
        return None
    edits: list[Edit] = []
    for t in transactions:
        timestamp, taken_locks = t.timestamp, t.decided.locks
        for (lock, own), taken in zip(fenced.list_edits(t, timestamp), taken_locks, strict=True):
            freed = read_lock(lock, new_tuple(Cell, (taken, timestamp))).give_back()
            last = new_tuple(Edit, (lock, freed, timestamp + 1))
            edits += (new_tuple(Edit, (lock, taken, timestamp)), *own, last)
        edits += _list_row(context, t)
    return edits


def _list_row(context: Context, t: PendingCommit) -> list[Edit]:
    """Return the cells of the transaction's row. Fenced clients choose the timestamps of three."""
    buffer_ms = plan_ms = status_ms = None
    times = FENCED_TIMES if context.rules.locks_rows else SIX_PHASE_TIMES
    if context.rules.locks_rows:
        buffer_ms, offsets = created_ms(t.row_key), context.rules.offsets_ms
        plan_ms = buffer_ms + offsets[Status.ASSERTED]
        status_ms = buffer_ms + offsets[Status.COMPLETE]
    cells = [
        (b"buffer", t.buffer, buffer_ms),
        (b"plan", encode_plan(t.decided), plan_ms),
        *[(at, FREE, None) for at in times],
        (b"status", Status.COMPLETE.encoded, status_ms),
    ]
    if t.validates:
        cells.append((b"ranges", EARLY, buffer_ms))
    row_key, table = t.row_key, context.table
    return [
        new_tuple(Edit, (new_tuple(Key, (row_key, FAMILY, name, table)), value, at_ms))
        for name, value, at_ms in cells
    ]
