"""Atomic reads: each transaction is seen completely or not at all.

A read takes the values, then their locks and tags, then the rows of the lock holders. A tag has the
time of the last change of its key, so it proves that a value was still current when the locks were
read. A holder that is undecided in the third read was undecided in the second. If that is
inconclusive, cells and rows are read again. If the cells are unchanged, and no holder decided
meanwhile, all of them held at one instant in between. A key whose holder is at 2-ASSERTED has its
new value in the holder's buffer; in every other case its cell is current.

Reads do not wait for writers, with one exception: a transaction that validates ranges or keys and
is deciding.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import NamedTuple

from txn.model import LOCK_SUFFIX, Cell, Key
from txn.protocol.context import Context, are_apart, call_store
from txn.protocol.locks import holder_of, require_lock
from txn.protocol.ranges import keys_of_cells
from txn.protocol.recovery import make_corrupt_error
from txn.protocol.row import (
    RowState,
    TransactionRow,
    column,
    decode_rows,
    is_row_key,
    is_withheld,
    list_row_cells,
    parent_of,
    read_row_cells,
)
from txn.protocol.statuses import Rules, Status

Snapshot = dict[Key, Cell | None]
SIGNS = (b"status", b"ranges", Status.ASSERTED.at)
UNDECIDED = frozenset(s.value for s in Status if not s.is_decided and not s.is_finished)
"""The statuses of a transaction that has not decided so far. 7-ABORTED may be poison, which says
nothing about a transaction whose row was deleted before."""
Cells = Mapping[Key, Cell | None]


class Observation(NamedTuple):
    """The result of one read.

    cells: values, locks and tags. rows: those of the holders, read after the cells. rest: a digest
    of cells that were read and not kept.
    """

    rules: Rules
    cells: Cells
    rows: Mapping[bytes, TransactionRow]
    rest: bytes = b""


def find_holders(cells: Cells) -> set[bytes]:
    locks = ((key, cell) for key, cell in cells.items() if key.column.endswith(LOCK_SUFFIX))
    return {holder for key, cell in locks if (holder := holder_of(key, cell))}


def were_at_once(before: Observation, after: Observation) -> bool:
    """Whether everything in the first read held at one instant between the two reads."""
    if before.cells != after.cells or before.rest != after.rest:
        return False
    if any(has_crossed(row, after.rows[holder]) for holder, row in before.rows.items()):
        return False
    return not any(hides_values(before.rules, row, before.cells) for row in after.rows.values())


def has_crossed(before: TransactionRow, after: TransactionRow) -> bool:
    """Whether the holder decided, or may have, between the two reads."""
    if before.status is None or after.status is None:
        return before.status is not after.status
    return before.status.is_decided != after.status.is_decided


def hides_values(rules: Rules, holder: TransactionRow, cells: Container[Key]) -> bool:
    """Whether the old values of these cells must not be read beside this undecided holder. The
    holder's place in the order of transactions is its validation of what it read, which may have
    been earlier. What has changed since comes after it, and may have been read already."""
    if not holder.is_withheld:
        return False
    if holder.buffer is None:  # it does not decode, so its changes are unknown
        return True
    return any(rules.lock_of(m.key) in cells for m in holder.buffer.request.mutations)


def value_of(key: Key, observation: Observation) -> Cell | None:
    """Return the key's current value, from its own cell and the row of its holder."""
    lock = observation.rules.lock_of(key)
    require_lock(lock, observation.cells.get(lock))
    cell = observation.cells.get(key)
    holder = observation.rows.get(holder_of(lock, observation.cells.get(lock)))
    if holder is None or holder.is_over or holder.status not in (Status.ASSERTED, None):
        return cell
    if holder.state is RowState.UNREADABLE or holder.buffer is None or holder.plan is None:
        raise make_corrupt_error(holder)
    for mutation in holder.buffer.request.mutations:
        if mutation.key == key:
            value = mutation.value
            return None if value is None else Cell(value, holder.plan.timestamp)
    return cell


def list_values(observation: Observation) -> dict[Key, Cell]:
    """Return the cells of the keys that have a value, in order. A decided value may not be put yet,
    but the lock of its row and family is there. A cell that looks like a lock without a value may
    be a foreign column, and is skipped."""
    for row in observation.rows.values():  # an unreadable row may hide a key
        if row.state is RowState.UNREADABLE:
            raise make_corrupt_error(row)
    buffers = (row.buffer for row in observation.rows.values() if row.status is Status.ASSERTED)
    decided_keys = {m.key for buffer in buffers if buffer for m in buffer.request.mutations}
    cells, lock_of = observation.cells, observation.rules.lock_of
    known = (key for key in decided_keys if lock_of(key) in cells)
    keys = {
        key
        for key in keys_of_cells(cells)
        if key in cells or is_row_key(holder_of(lock_of(key), cells.get(lock_of(key))))
    }
    found = {key: value_of(key, observation) for key in sorted({*keys, *known})}
    return {key: cell for key, cell in found.items() if cell is not None}


def read_by_tags(context: Context, keys: Sequence[Key]) -> tuple[Snapshot, bool]:
    """Read keys of the six-phase protocol; return the cells, and whether no second read is needed.
    A tag has the time of its key's last change. For free keys of one row, tags are not read."""
    locks, tags = [key.lock for key in keys], [key.tag for key in keys]
    beside = [*locks, *tags]
    if len({(key.table, key.row) for key in keys}) == 1:
        found = _read(context, [*keys, *locks])
        if any(holder_of(lock, found[lock]) for lock in locks):
            return _read(context, [*keys, *beside]), True
        return found, True
    first = call_store(context, lambda: context.store.read(keys, beside))
    if all(_is_last(first[key], first[tag]) for key, tag in zip(keys, tags, strict=True)):
        return first, True
    # Some keys were deleted or have just changed; their locks and tags show if they changed since.
    again = _read(context, [*keys, *beside])
    return again, all(again[mark] == first[mark] for mark in beside)


def read_by_counts(context: Context, keys: Sequence[Key]) -> tuple[Snapshot, bool]:
    """Read keys of the fenced protocol; return the cells, and whether no second read is needed. A
    lock that is free twice with the same count was not taken in between. One row needs one read."""
    locks = list(dict.fromkeys(key.row_lock for key in keys))
    first = _read(context, [*keys, *locks])
    if len({(lock.table, lock.row) for lock in locks}) == 1:
        return first, True
    if any(holder_of(lock, first[lock]) for lock in locks):
        return first, False
    again = _read(context, locks)
    return first, all(again[lock] == first[lock] for lock in locks)


def _read(context: Context, cells: Sequence[Key]) -> Snapshot:
    return call_store(context, lambda: context.store.read(cells))


def _is_last(value: Cell | None, tag: Cell | None) -> bool:
    """Whether the key was unchanged from the read of it to the later read of its tag."""
    return tag is None or (value is not None and value.timestamp >= tag.timestamp)


def read_atomically(context: Context, keys: Sequence[Key]) -> Snapshot | None:
    """Return the cells of the keys as of one instant; None if writers left no such instant within
    the policy's tries. A decided value that is not yet put has its commit timestamp."""
    attempt = _try_at_once if "instant_reads" in context.store.features else _try
    for _ in context.tries(most=context.policy.read_tries):
        began_ms = context.clock.monotonic_ms()
        found = attempt(context, keys)
        if found is not None and not are_apart(context, began_ms):
            return found
    return None


def find_undecided(context: Context, holders: Collection[bytes]) -> set[bytes]:
    """Return the holders that are still undecided and have validated nothing. The cells of keys
    that they held before now were current."""
    signs = _read(context, _signs(context, holders)) if holders else {}
    return {holder for holder in holders if _was_undecided(context, holder, signs)}


def _try(context: Context, keys: Sequence[Key]) -> Snapshot | None:
    rules = context.rules
    observation = read_by_counts if rules.locks_rows else read_by_tags
    first, is_conclusive = observation(context, keys)
    holders = find_holders(first)
    rows = read_row_cells(context, holders) if holders else {}
    if is_conclusive and all(_was_undecided(context, holder, rows) for holder in holders):
        return {key: first[key] for key in keys}
    # One call for both: all that held after the first reads held before either second read.
    second = read_row_cells(context, holders, list(first))
    before = Observation(rules, first, decode_rows(context, holders, rows))
    again = {cell: second[cell] for cell in first}
    after = Observation(rules, again, decode_rows(context, holders, second))
    if not were_at_once(before, after):
        return None
    return {key: value_of(key, before) for key in keys}


def _try_at_once(context: Context, keys: Sequence[Key]) -> Snapshot | None:
    """Read from a store whose reads are of one instant. The holders' rows are read together with
    the cells, so no second read is needed."""
    locks = [context.rules.lock_of(key) for key in keys]
    first = _read(context, [*keys, *locks])
    holders = find_holders(first)
    if find_undecided(context, holders) == holders:
        return {key: first[key] for key in keys}
    found = _read(context, [*keys, *locks, *list_row_cells(context, holders)])
    if find_holders(found) - holders:
        return None  # other holders have come, whose rows were not read
    observation = Observation(context.rules, found, decode_rows(context, holders, found))
    if any(hides_values(context.rules, row, found) for row in observation.rows.values()):
        return None
    return {key: value_of(key, observation) for key in keys}


def _was_undecided(context: Context, holder: bytes, cells: Snapshot) -> bool:
    """Whether the holder was undecided, and had validated nothing, at this read of its row. A
    part decides with its parent until it follows."""
    status, mark, decided = (cells[sign] for sign in _signs(context, [holder])[: len(SIGNS)])
    if status is None or status.value not in UNDECIDED or decided is not None:
        return False
    if parent := parent_of(holder):
        return status.value == Status.PART.value and _was_undecided(context, parent, cells)
    return mark is None or not is_withheld(Status(status.value), mark)


def _signs(context: Context, holders: Collection[bytes]) -> list[Key]:
    parents = (parent for holder in holders if (parent := parent_of(holder)))
    rows = dict.fromkeys((*holders, *parents))
    return [column(context.table, row, name) for row in rows for name in SIGNS]
