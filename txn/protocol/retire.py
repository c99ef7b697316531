"""Keys without a value, retired: their lock, tag and delete markers go, which else stay for ever.

It is done under the key's lock, taken in the name of a transaction that has no row, so that nobody
ever waits for a retirer: any client that meets its lock frees it. What is deleted is deleted in one
step, on the condition that the lock is still ours, and the marker that hides the lock lies at or
above every timestamp that goes. The argument is in docs/protocol.md, under "Retiring a key".
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
    """A key with the two cells that guard it, as of one instant."""

    key: Key
    value: Cell | None
    lock: Cell | None
    tag: Cell | None

    @property
    def holder(self) -> bytes:
        """Who has the key's lock, or what else its cell says; empty where the key is free."""
        return holder_of(self.key.lock, self.lock)

    @property
    def tagged(self) -> bytes:
        """What the tag cell says; empty where no transaction is writing the key."""
        return self.tag.value if self.tag else b""

    @property
    def newest(self) -> int:
        """The newest timestamp of the three cells; 0: there is none of them."""
        return max((cell.timestamp for cell in self[1:] if cell), default=0)


def can_retire(context: Context) -> bool:
    """Whether it can be done: the store takes a delete on a condition, and its locks may go."""
    return "row_mutations" in context.store.features and context.rules.name == "six-phase"


def retire(context: Context, wanted: Mapping[Key, Cell | None], old_ms: int) -> set[Key]:
    """Retire keys of which nothing is newer than `old_ms`; return those of which nothing is left.

    wanted: what each key's value must be: None, it has none; a cell, it is deleted too. A key that
    is locked, or is being written, or has changed since, stays as it is, and so does one that
    somebody else locks meanwhile. Raises StoreError where the store does not answer: then locks of
    ours may stay, which anybody frees. InvalidRequestError where the store cannot; AbortedError
    where this machine's clock is wrong, which might stamp the markers.
    """
    found = read_guarded(context, wanted)
    due = [item for item in found.values() if _is_due(item, wanted[item.key], old_ms)]
    if due:
        check_clock(context)
        uid = context.rng.getrandbits(128)
        ours = new_row_key(context.clock.wall_ms(), uid, database=context.table)
        _exchange(context, due, FREE, ours)
        held = [item for item in read_guarded(context, wanted).values() if item.holder == ours]
        same = [item for item in held if _is_same(item, found[item.key])]
        _delete(context, same, ours)
        _exchange(context, [item for item in held if item not in same], ours, FREE)
        found = read_guarded(context, wanted)
    return {item.key for item in found.values() if item[1:] == (None, None, None)}


def read_guarded(context: Context, keys: Iterable[Key]) -> dict[Key, Guarded]:
    """Return the keys as they are now."""
    wanted = list(keys)
    cells_of = {key: (key, key.lock, key.tag) for key in wanted}
    asked = [cell for cells in cells_of.values() for cell in cells]
    found = call_store(context, lambda: context.store.read(asked)) if asked else {}
    return {key: Guarded(key, *(found[cell] for cell in cells_of[key])) for key in wanted}


def _is_due(item: Guarded, value: Cell | None, old_ms: int) -> bool:
    is_free = not item.holder and not item.tagged
    return is_free and item.value == value and 0 < item.newest <= old_ms


def _is_same(now: Guarded, before: Guarded) -> bool:
    """Whether nothing but the lock has changed."""
    return (now.value, now.tag) == (before.value, before.tag)


def _exchange(context: Context, items: Collection[Guarded], old: bytes, new: bytes) -> None:
    """Take, or give back, the locks of keys, each by compare-and-set; whether it was done shows in
    the next look."""
    locks = [item.key.lock for item in items]
    checks = [Check(lock, old, ((lock, new),)) for lock in locks]
    if checks:
        call_store(context, lambda: context.store.check_and_put(checks, durable=False))


def _delete(context: Context, held: Collection[Guarded], ours: bytes) -> None:
    """Delete what there is of keys whose locks are ours. A "no" is somebody who has freed the
    lock, or the answer to a request that was sent twice."""
    checks = []
    for item in held:
        cells, lock = {item.key: item.value, item.key.tag: item.tag}, item.key.lock
        deletes = [Edit(key, None, cell.timestamp) for key, cell in cells.items() if cell]
        checks.append(Check(lock, ours, edits=(*deletes, Edit(lock, None, item.newest))))
    if checks:
        call_store(context, lambda: context.store.check_and_put(checks, durable=False))
