"""Atomic reads: each transaction is seen wholly or not at all, and no writer is waited for.

The cells are read, then the rows of the transactions that hold them, then both again. If the cells
are the same both times, and no holder crossed its decision between the two looks at the rows, then
all of it was so at one instant, between the first looks and the second. A key whose holder is at
2-ASSERTED has its new value already, in the holder's buffer; in every other case the cell speaks
for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txn.codec import TransactionRow
from txn.errors import CorruptRowError, describe
from txn.model import Cell, Delete, Key
from txn.phases import Status
from txn.ranges import withholds
from txn.resolve import is_over, read_rows, row_cells, rows_of
from txn.steps import Context, retried

Snapshot = dict[Key, Cell | None]


def read_atomically(context: Context, keys: Sequence[Key]) -> Snapshot | None:
    """Return the cells of the keys as of one instant, or None if writers left no such instant
    within the policy's tries. A decided value that is not yet put has its commit timestamp."""
    attempt = _at_once if "instant_reads" in context.store.features else _try
    for tries in range(context.policy.read_tries):
        if tries:
            context.clock.sleep_ms(context.policy.pause_ms(tries, context.random))
        found = attempt(context, keys)
        if found is not None:
            return found
    return None


def _try(context: Context, keys: Sequence[Key]) -> Snapshot | None:
    locks = [key.lock for key in keys]
    wanted = [*keys, *locks, *(key.tag for key in keys)]
    first = retried(context, lambda: context.store.read(wanted))
    holders = {cell.value for lock in locks if (cell := first[lock]) and cell.value}
    if not holders and len({(key.table, key.row) for key in keys}) == 1:
        return {key: first[key] for key in keys}  # cells of one row come from one instant
    rows = read_rows(context, holders) if holders else {}
    # Both second looks at once: whatever held after the first ones held before either of these.
    cells = [*wanted, *row_cells(context, holders)]
    second = retried(context, lambda: context.store.read(cells))
    if any(second[cell] != first[cell] for cell in wanted):
        return None
    if not holders:
        return {key: first[key] for key in keys}
    again = rows_of(context, holders, second)
    if any(has_crossed(rows[holder], again[holder]) for holder in holders):
        return None
    if any(withholds(row, first) for row in again.values()):
        return None
    return {key: value_of(key, first, rows) for key in keys}


def _at_once(context: Context, keys: Sequence[Key]) -> Snapshot | None:
    """Try it where all cells of a read come from one instant: the holders' rows are read with what
    they hold, and nothing has to be looked at again."""
    locks = [key.lock for key in keys]
    wanted = [*keys, *locks]
    found = retried(context, lambda: context.store.read(wanted))
    holders = {cell.value for lock in locks if (cell := found[lock]) and cell.value}
    if not holders:
        return {key: found[key] for key in keys}
    wanted += row_cells(context, holders)
    found = retried(context, lambda: context.store.read(wanted))
    if any(cell.value not in holders for lock in locks if (cell := found[lock]) and cell.value):
        return None  # others hold them now, and their rows were not read
    rows = rows_of(context, holders, found)
    if any(withholds(row, found) for row in rows.values()):
        return None
    return {key: value_of(key, found, rows) for key in keys}


def has_crossed(before: TransactionRow, after: TransactionRow) -> bool:
    """Whether the holder decided, or may have, between the two looks."""
    if before.status is None or after.status is None:
        return before.status is not after.status
    return before.status.is_decided != after.status.is_decided


def value_of(
    key: Key, cells: Mapping[Key, Cell | None], rows: Mapping[bytes, TransactionRow]
) -> Cell | None:
    """Return what the key is worth, of its own cells and the row of its holder."""
    cell, lock = cells.get(key), cells.get(key.lock)
    holder = rows.get(lock.value) if lock else None
    if holder is None or is_over(holder) or holder.status not in (Status.ASSERTED, None):
        return cell
    if not holder.tells_its_decision:
        raise CorruptRowError(
            describe("transaction row does not decode", row=holder.row_key, cause=holder.corrupt)
        )
    assert holder.buffer is not None and holder.plan is not None
    for mutation in holder.buffer.request.mutations:
        if mutation.key == key:
            if isinstance(mutation, Delete):
                return None
            return Cell(mutation.value, holder.plan.timestamp)
    return cell
