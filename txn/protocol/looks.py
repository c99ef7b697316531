"""The first look of an atomic read, in the way of each protocol."""

from __future__ import annotations

from collections.abc import Sequence

from txn.model import Cell, Key
from txn.protocol.attempt import Context, call_store
from txn.protocol.lock_cells import holder_of, unit_lock

Found = dict[Key, Cell | None]


def look_by_tags(context: Context, keys: Sequence[Key]) -> tuple[Found, bool]:
    """Look at keys of the six-phase protocol: see `Rules.look`. A tag tells when its key was
    changed last. Free keys of one row are returned alone."""
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
    # Some were deleted once, or have just changed. Their marks tell whether they changed since.
    again = _read(context, [*keys, *beside])
    return again, all(again[mark] == first[mark] for mark in beside)


def look_by_counts(context: Context, keys: Sequence[Key]) -> tuple[Found, bool]:
    """Look at keys of the fenced protocol: see `Rules.look`. A lock that is free twice with the
    same count was not taken in between. One row needs one look."""
    locks = list(dict.fromkeys(map(unit_lock, keys)))
    first = _read(context, [*keys, *locks])
    if len({(lock.table, lock.row) for lock in locks}) == 1:
        return first, True
    if any(holder_of(lock, first[lock]) for lock in locks):
        return first, False
    again = _read(context, locks)
    return first, all(again[lock] == first[lock] for lock in locks)


def _read(context: Context, cells: Sequence[Key]) -> Found:
    return call_store(context, lambda: context.store.read(cells))


def _is_last(value: Cell | None, tag: Cell | None) -> bool:
    """Whether no transaction changed the key between a look at it and a later one at its tag."""
    return tag is None or (value is not None and value.timestamp >= tag.timestamp)
