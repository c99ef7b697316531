"""The markers of `once`: whether one is needed any more, and how it goes.

A marker goes under its key's lock, in one step with its lock and its tag, if nothing of it has
changed; so that a request with its token either finds it or comes after it.
"""

from __future__ import annotations

from collections.abc import Mapping

from recovery.findings import Finding, Kind, LeftAlone, NothingToDo, Repaired, Result
from recovery.scan import MARKERS, newest_old_ms
from txn.errors import InvalidRequestError
from txn.model import Cell, Key, Row
from txn.protocol.attempt import Context
from txn.protocol.retire import Guarded, can_retire, look_at_keys, retire
from txn.protocol.row import decode_marker, marker_key


def find_expired_marker(table: bytes, row: Row, now_ms: int, retention_ms: int) -> Finding | None:
    """Return the finding of a marker's row in the transaction table, if its promise has run out
    and nothing has touched it for the retention."""
    key = marker_key(table, row.row.removeprefix(MARKERS[0]))
    if not row.row.startswith(MARKERS[0]) or (value := row.cells.get(key)) is None:
        return None
    item = Guarded(key, value, row.cells.get(key.lock), row.cells.get(key.tag))
    promised_ms = decode_marker(value.value).retention_ms
    if promised_ms is None or value.timestamp + promised_ms > now_ms:
        return None
    if item.holder or item.tagged or item.newest > newest_old_ms(now_ms, retention_ms):
        return None
    facts = {"value": value.value, "since": value.timestamp, "newest": item.newest}
    return Finding(Kind.EXPIRED_MARKER, None, key, facts)


def find_marker(context: Context, token: bytes) -> Guarded:
    """Return a token's marker as it is now, or raise InvalidRequestError if there is none."""
    key = marker_key(context.table, token)
    found = look_at_keys(context, [key])[key]
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
    if not can_retire(context):
        why = "the store takes no delete on a condition: use HBase's Thrift 2 gateway"
        return dict.fromkeys(wanted, LeftAlone(why))
    gone = retire(context, wanted, newest)
    used = NothingToDo("somebody has locked it, or it has changed")
    return {key: Repaired("deleted") if key in gone else used for key in wanted}
