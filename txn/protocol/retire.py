"""Retires keys without a value: deletes their lock, tag and delete markers, which otherwise stay.

The key's lock is taken in the name of a transaction without a row. A client that meets the lock of
a retirer that died waits its lock TTL, poisons that row, and releases the lock. One step deletes
everything, on the condition that the lock is still held. The marker that hides the lock is at or
above every deleted timestamp. The argument is in docs/protocol.md, under "Retiring a key".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from txn.model import Cell, Check, Edit, Key
from txn.protocol.clocks import check_clock
from txn.protocol.context import Context, call_store
from txn.protocol.locks import holder_of
from txn.protocol.row import FREE, new_row_key


class Guarded(NamedTuple):
    """A key with the two cells that guard it, as of one instant. lock_key: the key of the lock."""

    key: Key
    lock_key: Key
    value: Cell | None
    lock: Cell | None
    tag: Cell | None

    @property
    def holder(self) -> bytes:
        """The holder of the key's lock, or other content of its cell; empty if the key is free."""
        return holder_of(self.lock_key, self.lock)

    @property
    def tagged(self) -> bytes:
        """The content of the tag; empty if no transaction is writing the key."""
        return self.tag.value if self.tag else b""

    @property
    def is_free(self) -> bool:
        """Whether no transaction holds the lock or is writing the key."""
        return not self.holder and not self.tagged

    @property
    def newest(self) -> int:
        """The newest timestamp of the three cells; 0 if there are none."""
        return max((cell.timestamp for cell in self[2:] if cell), default=0)


def can_retire(context: Context) -> bool:
    """Whether the store can delete on a condition and the protocol allows it to delete locks."""
    return "row_mutations" in context.store.features and context.rules.name == "six-phase"


def retire(context: Context, wanted: Mapping[Key, Cell | None], old_ms: int) -> set[Key]:
    """Retire keys that have no cell newer than `old_ms`; return the keys that have no cells left.

    wanted: the expected value of each key: None, it has none; a cell, it is deleted too. A key that
    is locked, being written, or changed, before or meanwhile, stays as it is. Raises StoreError if
    the store does not answer: locks may stay then, which any client releases. Raises
    InvalidRequestError if the store cannot retire keys, and AbortedError if this machine's clock is
    wrong, because it might give the markers their timestamps.
    """
    found = read_guarded(context, wanted)
    due = [
        item
        for key, item in found.items()
        if item.is_free and item.value == wanted[key] and 0 < item.newest <= old_ms
    ]
    if due:
        check_clock(context)
        uid = context.rng.getrandbits(128)
        ours = new_row_key(context.clock.wall_ms(), uid, database=context.table)
        _exchange(context, due, FREE, ours)
        held = [item for item in read_guarded(context, wanted).values() if item.holder == ours]
        same = [item for item in held if item[2::2] == found[item.key][2::2]]  # value and tag
        _delete(context, same, ours)
        _exchange(context, [item for item in held if item not in same], ours, FREE)
        found = read_guarded(context, wanted)
    return {item.key for item in found.values() if item[2:] == (None, None, None)}


def read_guarded(context: Context, keys: Iterable[Key]) -> dict[Key, Guarded]:
    """Return keys with their guards; in the fenced protocol that is the lock of row and family."""
    wanted = list(keys)
    asked = [cell for key in wanted for cell in (key, *context.rules.guards_of(key))]
    found = call_store(context, lambda: context.store.read(asked)) if asked else {}
    return {key: make_guarded(context, key, found) for key in wanted}


def make_guarded(context: Context, key: Key, cells: Mapping[Key, Cell | None]) -> Guarded:
    lock = context.rules.lock_of(key)
    return Guarded(key, lock, cells.get(key), cells.get(lock), cells.get(key.tag))


def _exchange(context: Context, items: Collection[Guarded], old: bytes, new: bytes) -> None:
    """Take or release the locks of keys by compare-and-set; the next read shows the result."""
    checks = [Check(item.key.lock, old, ((item.key.lock, new),)) for item in items]
    if checks:
        call_store(context, lambda: context.store.check_and_put(checks, durable=False))


def _delete(context: Context, held: Collection[Guarded], ours: bytes) -> None:
    """Delete the cells of keys whose locks are held. A refusal means that another client released
    the lock, or that the request was repeated."""
    checks = []
    for item in held:
        cells, lock = {item.key: item.value, item.key.tag: item.tag}, item.key.lock
        deletes = [Edit(key, None, cell.timestamp) for key, cell in cells.items() if cell]
        checks.append(Check(lock, ours, edits=(*deletes, Edit(lock, None, item.newest))))
    if checks:
        call_store(context, lambda: context.store.check_and_put(checks, durable=False))
