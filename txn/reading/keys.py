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
from txn.protocol.resolve import decode_rows, list_row_cells
from txn.protocol.row import column
from txn.reading.look import Look, find_holders, hides_values, value_of, were_at_once

Snapshot = dict[Key, Cell | None]

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


def _try(context: Context, keys: Sequence[Key]) -> Snapshot | None:
    locks, tags = [key.lock for key in keys], [key.tag for key in keys]
    wanted = [*keys, *locks, *tags]
    first, is_settled = _look(context, keys, locks, tags)
    holders = find_holders(first)
    rows = _read(context, list_row_cells(context, holders)) if holders else {}
    if is_settled and all(_was_undecided(context, holder, rows) for holder in holders):
        return {key: first[key] for key in keys}
    # Both second looks at once: whatever held after the first ones held before either of these.
    second = _read(context, [*wanted, *list_row_cells(context, holders)])
    before = Look(first, decode_rows(context, holders, rows))
    after = Look({cell: second[cell] for cell in wanted}, decode_rows(context, holders, second))
    if not were_at_once(before, after):
        return None
    return {key: value_of(key, before) for key in keys}


def _look(
    context: Context, keys: Sequence[Key], locks: Sequence[Key], tags: Sequence[Key]
) -> tuple[Snapshot, bool]:
    """Return the cells of the keys and of their locks and tags, and whether all of this was so at
    one instant, but for what a holder had decided and not yet put. Free keys of one row are
    returned alone."""
    beside = [*locks, *tags]
    if len({(key.table, key.row) for key in keys}) == 1:
        values, held = _read_held(context, keys)
        return (_read(context, [*keys, *beside]) if held else values), True
    first = call_store(context, lambda: context.store.read(keys, beside))
    if all(_is_last(first[key], first[tag]) for key, tag in zip(keys, tags, strict=True)):
        return first, True
    # Some were deleted once, or have just changed. Their marks tell whether they changed since.
    again = _read(context, [*keys, *beside])
    return again, all(again[mark] == first[mark] for mark in beside)


def _is_last(value: Cell | None, tag: Cell | None) -> bool:
    """Whether no transaction changed the key between a look at it and a later one at its tag."""
    return tag is None or (value is not None and value.timestamp >= tag.timestamp)


def _try_at_once(context: Context, keys: Sequence[Key]) -> Snapshot | None:
    """Try it where all cells of a read come from one instant: the holders' rows are read with what
    they hold, and nothing has to be looked at again."""
    values, held = _read_held(context, keys)
    holders = set(held.values())
    signs = _read(context, _signs(context, holders)) if holders else {}
    if all(_was_undecided(context, holder, signs) for holder in holders):
        return values
    locks = [key.lock for key in keys]
    found = _read(context, [*keys, *locks, *list_row_cells(context, holders)])
    if find_holders(found) - holders:
        return None  # others hold them now, and their rows were not read
    look = Look(found, decode_rows(context, holders, found))
    if any(hides_values(row, found) for row in look.rows.values()):
        return None
    return {key: value_of(key, look) for key in keys}


def _read_held(context: Context, keys: Sequence[Key]) -> tuple[Snapshot, dict[Key, bytes]]:
    """Return the cells, and who holds those that are held."""
    locks = [key.lock for key in keys]
    found = _read(context, [*keys, *locks])
    held = {}
    for key, lock in zip(keys, locks, strict=True):
        if (cell := found.pop(lock)) is not None and cell.value:
            held[key] = cell.value
    return found, held


def _read(context: Context, cells: Sequence[Key]) -> Snapshot:
    return call_store(context, lambda: context.store.read(cells))


def _was_undecided(context: Context, holder: bytes, cells: Snapshot) -> bool:
    """Whether the holder had not decided by this look at its row, nor looked at ranges. One that
    aborted never did."""
    status, ranges = (cells[sign] for sign in _signs(context, [holder]))
    if status is None or status.value not in UNDECIDED:
        return False
    return ranges is None or status.value != Status.LOCKED.value


def _signs(context: Context, holders: Collection[bytes]) -> list[Key]:
    """Return the cells that tell whether these holders are undecided."""
    return [
        column(context.table, holder, name) for holder in holders for name in (b"status", b"ranges")
    ]
