"""One look at cells and at the rows of their holders, and what two looks prove together.

If a second look finds the same cells, and no holder crossed its decision meanwhile, then all of it
was so at one instant in between. A key whose holder is at 2-ASSERTED has its new value already, in
the holder's buffer; in every other case the cell speaks for itself.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from txn.model import LOCK_SUFFIX, Cell, Delete, Key
from txn.protocol.attempt import Rules
from txn.protocol.lock_cells import holder_of
from txn.protocol.phases import Status
from txn.protocol.ranges import keys_of_cells
from txn.protocol.resolve import make_corrupt_error
from txn.protocol.row import RowState, TransactionRow

Cells = Mapping[Key, Cell | None]


class Look(NamedTuple):
    """cells: values, locks and tags. rows: those of the holders, looked at after the cells.
    rest: a digest of cells that were looked at and not kept."""

    rules: Rules
    cells: Cells
    rows: Mapping[bytes, TransactionRow]
    rest: bytes = b""


def find_holders(cells: Cells) -> set[bytes]:
    """Return the transactions that these lock cells name."""
    locks = ((key, cell) for key, cell in cells.items() if key.column.endswith(LOCK_SUFFIX))
    return {holder for key, cell in locks if (holder := holder_of(key, cell))}


def were_at_once(before: Look, after: Look) -> bool:
    """Whether all that the first look found was so at one instant between the two."""
    if before.cells != after.cells or before.rest != after.rest:
        return False
    if any(has_crossed(row, after.rows[holder]) for holder, row in before.rows.items()):
        return False
    return not any(hides_values(before.rules, row, before.cells) for row in after.rows.values())


def has_crossed(before: TransactionRow, after: TransactionRow) -> bool:
    """Whether the holder decided, or may have, between the two looks."""
    if before.status is None or after.status is None:
        return before.status is not after.status
    return before.status.is_decided != after.status.is_decided


def hides_values(rules: Rules, holder: TransactionRow, cells: Container[Key]) -> bool:
    """Whether the old values of these cells must not be read beside this undecided holder.

    In the order of transactions it comes where it looked at the ranges that it had scanned, which
    may be before now; what came into them since comes after it, and may have been read already.
    """
    if holder.status is not Status.LOCKED or not holder.has_ranges:
        return False
    if holder.buffer is None:  # it does not decode, so nobody knows what it changes
        return True
    return any(rules.lock_of(m.key) in cells for m in holder.buffer.request.mutations)


def value_of(key: Key, look: Look) -> Cell | None:
    """Return what the key is worth, of its own cells and the row of its holder."""
    lock = look.rules.lock_of(key)
    cell, holder = look.cells.get(key), look.rows.get(holder_of(lock, look.cells.get(lock)))
    if holder is None or holder.is_over or holder.status not in (Status.ASSERTED, None):
        return cell
    if holder.state is RowState.UNREADABLE or holder.buffer is None or holder.plan is None:
        raise make_corrupt_error(holder)
    for mutation in holder.buffer.request.mutations:
        if mutation.key == key:
            if isinstance(mutation, Delete):
                return None
            return Cell(mutation.value, holder.plan.timestamp)
    return cell


def list_values(look: Look) -> dict[Key, Cell]:
    """Return the cells of the keys that have a value, in order. One that a holder has decided need
    not be there yet: the lock of its row and family is."""
    for row in look.rows.values():  # one that nobody can read may hide a key
        if row.state is RowState.UNREADABLE and row.status in (Status.ASSERTED, None):
            raise make_corrupt_error(row)
    buffers = (row.buffer for row in look.rows.values() if row.status is Status.ASSERTED)
    coming = {m.key for buffer in buffers if buffer for m in buffer.request.mutations}
    known = (key for key in coming if look.rules.lock_of(key) in look.cells)
    found = {key: value_of(key, look) for key in sorted({*keys_of_cells(look.cells), *known})}
    return {key: cell for key, cell in found.items() if cell is not None}
