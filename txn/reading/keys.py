"""Atomic reads: each transaction is seen wholly or not at all, and of all writers only one that has
scanned ranges, and may have looked at them again, is waited for.

The values are read, then their locks and tags, then the rows of the transactions that hold them. A
tag tells when its key was changed last, so it proves that a value was still its key's when the
locks were read; and a holder that has not decided by the third look had not by the second. Where
that does not settle it, cells and rows are looked at again: see `look`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from txn.model import Cell, Key
from txn.protocol.attempt import Context, are_apart, call_store
from txn.protocol.phases import Status
from txn.protocol.row import column, whole_of
from txn.protocol.row_cells import decode_rows, list_row_cells, read_row_cells
from txn.reading.look import Look, find_holders, hides_values, value_of, were_at_once

Snapshot = dict[Key, Cell | None]

SIGNS = (b"status", b"ranges", Status.ASSERTED.at)
UNDECIDED = frozenset(status.value for status in Status if not status.is_decided)


def read_atomically(context: Context, keys: Sequence[Key]) -> Snapshot | None:
    """Return the cells of the keys as of one instant, or None if writers left no such instant
    within the policy's tries. A decided value that is not yet put has its commit timestamp."""
    attempt = _try_at_once if "instant_reads" in context.store.features else _try
    for _ in context.tries(most=context.policy.read_tries):
        began_ms = context.clock.monotonic_ms()
        found = attempt(context, keys)
        if found is not None and not are_apart(context, began_ms):
            return found
    return None


def find_undecided(context: Context, holders: Collection[bytes]) -> set[bytes]:
    """Return those of the holders that have not decided by now, nor looked at ranges: what they
    held before now was worth what its cells said."""
    signs = _read(context, _signs(context, holders)) if holders else {}
    return {holder for holder in holders if _was_undecided(context, holder, signs)}


def _try(context: Context, keys: Sequence[Key]) -> Snapshot | None:
    rules = context.rules
    first, is_settled = rules.look(context, keys)
    holders = find_holders(first)
    rows = read_row_cells(context, holders) if holders else {}
    if is_settled and all(_was_undecided(context, holder, rows) for holder in holders):
        return {key: first[key] for key in keys}
    # Both second looks at once: whatever held after the first ones held before either of these.
    second = read_row_cells(context, holders, list(first))
    before = Look(rules, first, decode_rows(context, holders, rows))
    again = {cell: second[cell] for cell in first}
    after = Look(rules, again, decode_rows(context, holders, second))
    if not were_at_once(before, after):
        return None
    return {key: value_of(key, before) for key in keys}


def _try_at_once(context: Context, keys: Sequence[Key]) -> Snapshot | None:
    """Try it where all cells of a read come from one instant: the holders' rows are read with what
    they hold, and nothing has to be looked at again."""
    values, holders = _read_held(context, keys)
    if find_undecided(context, holders) == holders:
        return values
    locks = [context.rules.lock_of(key) for key in keys]
    found = _read(context, [*keys, *locks, *list_row_cells(context, holders)])
    if find_holders(found) - holders:
        return None  # others hold them now, and their rows were not read
    look = Look(context.rules, found, decode_rows(context, holders, found))
    if any(hides_values(context.rules, row, found) for row in look.rows.values()):
        return None
    return {key: value_of(key, look) for key in keys}


def _read_held(context: Context, keys: Sequence[Key]) -> tuple[Snapshot, set[bytes]]:
    """Return the cells of the keys, and who holds any of them."""
    found = _read(context, [*keys, *map(context.rules.lock_of, keys)])
    return {key: found[key] for key in keys}, find_holders(found)


def _read(context: Context, cells: Sequence[Key]) -> Snapshot:
    return call_store(context, lambda: context.store.read(cells))


def _was_undecided(context: Context, holder: bytes, cells: Snapshot) -> bool:
    """Whether the holder had not decided by this look at its row, nor looked at ranges. One that
    aborted never did; one that is a part decides with its transaction, until it follows."""
    status, ranges, decided = (cells[sign] for sign in _signs(context, [holder])[: len(SIGNS)])
    if status is None or status.value not in UNDECIDED or decided is not None:
        return False
    if whole := whole_of(holder):
        return status.value == Status.PART.value and _was_undecided(context, whole, cells)
    return ranges is None or status.value != Status.LOCKED.value


def _signs(context: Context, holders: Collection[bytes]) -> list[Key]:
    """Return the cells that tell whether these holders are undecided."""
    wholes = (whole for holder in holders if (whole := whole_of(holder)))
    rows = dict.fromkeys((*holders, *wholes))
    return [column(context.table, row, name) for row in rows for name in SIGNS]
