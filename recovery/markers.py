"""The markers of `once`: whether one is needed any more, and how it goes.

A marker goes in one step of its row, if nothing of it has changed; so that a request with its token
either finds it or comes after it. In the six-phase protocol it goes under its key's lock, with its
lock and tag. In the fenced protocol the lock stays, and counts that something has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from recovery.findings import Finding, Kind, LeftAlone, NothingToDo, Repaired, Result
from recovery.scan import MARKERS, newest_old_ms
from recovery.tables import make_facts
from txn.errors import CorruptRowError, InvalidRequestError
from txn.model import Cell, Check, Edit, Key, Row
from txn.protocol.codec import decode_marker
from txn.protocol.context import Context, call_store
from txn.protocol.locks import holder_of, read_lock
from txn.protocol.retire import can_retire, retire
from txn.protocol.row import FREE, marker_key


class Marked(NamedTuple):
    """A token's marker and the cells that guard it, as of one instant."""

    key: Key
    value: Cell | None
    guards: Mapping[Key, Cell | None]

    @property
    def is_free(self) -> bool:
        """Whether no transaction has it locked, or is writing it."""
        return not any(holder_of(key, cell) for key, cell in self.guards.items())

    @property
    def newest(self) -> int:
        """The newest timestamp of these cells; 0: there is none."""
        return max(
            (cell.timestamp for cell in (self.value, *self.guards.values()) if cell), default=0
        )


def find_expired_marker(context: Context, row: Row, retention_ms: int) -> Finding | None:
    """Return the finding of a marker's row in the transaction table, if it is no marker, or its
    promise has run out and nothing has touched it for the retention."""
    key = marker_key(context.table, row.row.removeprefix(MARKERS[0]))
    if not row.row.startswith(MARKERS[0]) or (value := row.cells.get(key)) is None:
        return None
    guards = context.rules.guards_of(key)
    item = Marked(key, value, {guard: row.cells.get(guard) for guard in guards})
    now_ms = context.clock.wall_ms()
    try:
        promised_ms = decode_marker(value.value).retention_ms
    except CorruptRowError:
        return Finding(Kind.FOREIGN_CELL, None, key, make_facts(value))
    if promised_ms is None or value.timestamp + promised_ms > now_ms:
        return None
    if not item.is_free or item.newest > newest_old_ms(now_ms, retention_ms):
        return None
    facts = {"value": value.value, "since": value.timestamp, "newest": item.newest}
    return Finding(Kind.EXPIRED_MARKER, None, key, facts)


def find_marker(context: Context, token: bytes) -> Marked:
    """Return a token's marker as it is now, or raise InvalidRequestError if there is none."""
    (found,) = _look(context, [marker_key(context.table, token)])
    if found.value is None:
        raise InvalidRequestError("no request with this token has committed", once=token)
    return found


def forget(context: Context, key: Key, value: Cell, newest: int) -> Result:
    """Delete a marker if it has this value and nothing newer than this timestamp. From then on a
    request with its token commits again."""
    return retire_keys(context, {key: value}, newest)[key]


def retire_keys(
    context: Context, wanted: Mapping[Key, Cell | None], newest: int
) -> dict[Key, Result]:
    """Retire keys, each with the value that it must have, or None for none, if nothing of them is
    newer than this timestamp."""
    if context.rules.locks_rows:
        gone = _drop(context, wanted, newest)
    elif can_retire(context):
        gone = retire(context, wanted, newest)
    else:
        why = "the store takes no delete on a condition: open it as hbase://, or through Thrift 2"
        return dict.fromkeys(wanted, LeftAlone(why))
    used = NothingToDo("somebody has locked it, or it has changed")
    return {key: Repaired("deleted") if key in gone else used for key in wanted}


def _drop(context: Context, wanted: Mapping[Key, Cell | None], newest: int) -> set[Key]:
    """Delete markers of the fenced protocol; return those that are gone. The lock is compared with
    the value that was read, and counts one more: so whoever has read the marker and has no lock of
    it yet is refused. It never starts anew, since what is late would find it as it was."""
    due = [
        item
        for item in _look(context, wanted)
        if item.value is not None and item.value == wanted[item.key]
        if item.is_free and item.newest <= newest
    ]
    checks = [_make_drop(context, item) for item in due]
    if not checks:
        return set()
    call_store(context, lambda: context.store.check_and_put(checks, durable=False))
    # A "no" may be the answer to a request that was sent twice.
    return {item.key for item in _look(context, [item.key for item in due]) if item.value is None}


def _make_drop(context: Context, item: Marked) -> Check:
    assert item.value is not None
    lock = context.rules.lock_of(item.key)
    cell = item.guards[lock]
    passed = read_lock(lock, cell).take(item.key.row).give_back()
    free = Edit(lock, passed.value, item.newest + 1)
    delete = Edit(item.key, None, item.value.timestamp)
    return Check(lock, cell.value if cell else FREE, edits=(delete, free))


def _look(context: Context, keys: Iterable[Key]) -> list[Marked]:
    """Return markers as they are now."""
    guards = {key: context.rules.guards_of(key) for key in keys}
    asked = [cell for key, some in guards.items() for cell in (key, *some)]
    found = call_store(context, lambda: context.store.read(asked)) if asked else {}
    return [
        Marked(key, found[key], {guard: found[guard] for guard in some})
        for key, some in guards.items()
    ]
