"""Delete transaction rows, and the markers of `once` tokens.

fsck deletes what has expired. With `txn purge` a person decides about one row or token at a time.

A marker is deleted in one atomic step of its row, if it has not changed. So a request with its
token comes either before or after the deletion. In the six-phase protocol it is deleted under its
key's lock, with its lock and tag. In the fenced protocol the lock stays, and its count increases.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from recovery.findings import Finding, Kind, LeftAlone, NothingToDo, Repaired, Result
from recovery.inspect import Cells
from recovery.scan import MARKERS, find_transaction, newest_old_ms, whole_row
from recovery.tables import make_facts
from txn.arguments import check_calls
from txn.errors import CorruptRowError, InvalidRequestError
from txn.model import Check, Edit, Key, Row
from txn.protocol.codec import decode_marker
from txn.protocol.context import Context, call_store
from txn.protocol.locks import read_lock
from txn.protocol.retire import Guarded, can_retire, make_guarded, read_guarded, retire
from txn.protocol.row import FREE, RowState, last_timestamp, marker_key, parent_of, status_key
from txn.protocol.statuses import Status
from txn.text import escape

ENDS = (b"status", Status.COMPLETE.at, Status.ABORTED.at)  # show that it is over
LOST = {
    RowState.FINISHED: "its outcome becomes unknown",
    RowState.DEBRIS: "nothing: they are cells of a row that was deleted before",
    RowState.UNREADABLE: "it may be committed: what it was to write, and is not yet in place",
    RowState.UNDECIDED: "its owner, if it lives, fails; nothing of it was written",
    RowState.ABORTING: "its outcome becomes unknown; nothing of it was written",
    RowState.DECIDED: "it is committed: what it was to write, and is not yet in place",
}
"""What is lost with the row of a transaction, by its state."""

UNFINISHED = frozenset({RowState.UNDECIDED, RowState.ABORTING, RowState.DECIDED})
"""The states from which fsck finishes or undoes a transaction without loss."""

PART = "without it that one would be committed by halves; fsck --repair ends both"


@check_calls
def purge_row(context: Context, seen: Row, *, unfinished: bool = False) -> Result:
    """Delete a transaction row if it has not changed since it was read. Its locks become orphans,
    which clients release on contact and fsck when it scans the table.

    unfinished: also delete a row that fsck could finish or undo. Raises StoreError.
    """
    row = find_transaction(context, seen.row)
    if row is None:
        return NothingToDo("the row is gone")
    if row.state in UNFINISHED and not unfinished:
        return LeftAlone("it is not finished, and fsck --repair can still finish or undo it")
    if row.follows and row.state in (RowState.UNDECIDED, RowState.DECIDED):
        return LeftAlone(f"it is a part of {escape(parent_of(seen.row) or b'')}: {PART}")
    if whole_row(context, seen.row) != seen:
        return NothingToDo("the row has changed")
    key = status_key(context.table, seen.row)
    status = seen.cells.get(key)
    if status is None or "row_mutations" not in context.store.features:
        if status is not None and row.state is RowState.UNDECIDED:
            # Such a store deletes cell by cell: the owner, if it lives, must not decide meanwhile.
            abort = Check(key, status.value, ((key, Status.ABORTED.encoded),))
            if not all(call_store(context, lambda: context.store.check_and_put([abort]))):
                return NothingToDo("the row has changed")
            aborted = whole_row(context, seen.row)
            seen = seen if aborted is None else aborted
        delete_cells(context, [seen])
        return Repaired("deleted")
    # Its owner may live, and decide meanwhile.
    check = Check(key, status.value, edits=tuple(_list_deletes(context, [seen])))
    call_store(context, lambda: context.store.check_and_put([check]))
    now = whole_row(context, seen.row)  # "no" may answer a request that was repeated
    is_gone = now is None or key not in now.cells
    return Repaired("deleted") if is_gone else NothingToDo("the row has changed")


def delete_cells(context: Context, rows: Iterable[Row]) -> None:
    """Delete the cells of rows. Later writes stay; late requests of these transactions are void.

    A crash never leaves a decision without its end: each row is deleted atomically, or the cells
    that show its end are deleted last.
    """
    edits = _list_deletes(context, rows)
    by_row = "row_mutations" in context.store.features
    ends = [edit for edit in edits if not by_row and edit.key.column in ENDS]
    others = [edit for edit in edits if by_row or edit.key.column not in ENDS]
    for some in filter(None, (others, ends)):
        call_store(context, partial(context.store.write, some, durable=False, by_row=by_row))


def _list_deletes(context: Context, rows: Iterable[Row]) -> list[Edit]:
    cells = [item for row in rows for item in row.cells.items()]
    return [Edit(key, None, last_timestamp(context.rules, key, cell)) for key, cell in cells]


@check_calls
def purge_token(context: Context, token: bytes) -> Result:
    """Delete the marker of a `once` token, under its lock. A request with it commits again.

    Raises InvalidRequestError if no request with it has committed, and StoreError.
    """
    found = find_marker(context, token)
    assert found.value is not None
    return retire_keys(context, {found.key: found.value}, found.newest)[found.key]


def find_expired_marker(context: Context, row: Row, retention_ms: int) -> Finding | None:
    """Return the finding for a marker's row in the transaction table: its cell is not a marker, or
    its promise has expired and nothing changed for the retention. Otherwise return None."""
    key = marker_key(context.table, row.row.removeprefix(MARKERS[0]))
    if not row.row.startswith(MARKERS[0]) or (value := row.cells.get(key)) is None:
        return None
    item = make_guarded(context, key, row.cells)
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


def find_marker(context: Context, token: bytes) -> Guarded:
    key = marker_key(context.table, token)
    found = read_guarded(context, [key])[key]
    if found.value is None:
        raise InvalidRequestError("no request with this token has committed", once=token)
    return found


def retire_keys(context: Context, wanted: Cells, newest: int) -> dict[Key, Result]:
    """Retire keys that have the wanted value (None: no value) and nothing newer than `newest`."""
    if context.rules.locks_rows:
        gone = _delete_fenced(context, wanted, newest)
    elif can_retire(context):
        gone = retire(context, wanted, newest)
    else:
        why = "the store takes no delete on a condition: open it as hbase://, or through Thrift 2"
        return dict.fromkeys(wanted, LeftAlone(why))
    used = NothingToDo("somebody has locked it, or it has changed")
    return {key: Repaired("deleted") if key in gone else used for key in wanted}


def _delete_fenced(context: Context, wanted: Cells, newest: int) -> set[Key]:
    """Delete markers of the fenced protocol; return those that are gone. The lock must be as it was
    read, and its count increases, which refuses a transaction that has read the marker and not
    locked it. A count never restarts: a late request could match it."""
    checks: dict[Key, Check] = {}
    for key, item in read_guarded(context, wanted).items():
        is_due = item.is_free and item.newest <= newest
        if item.value is not None and item.value == wanted[key] and is_due:
            found = read_lock(item.lock_key, item.lock)
            passed = found._replace(taken=found.taken + 1).give_back()
            free = Edit(item.lock_key, passed, item.newest + 1)
            delete = Edit(key, None, item.value.timestamp)
            held = item.lock.value if item.lock else FREE
            checks[key] = Check(item.lock_key, held, edits=(delete, free))
    if not checks:
        return set()
    call_store(context, lambda: context.store.check_and_put([*checks.values()], durable=False))
    # "No" may be the answer to a request that was sent twice.
    return {key for key, item in read_guarded(context, checks).items() if item.value is None}
