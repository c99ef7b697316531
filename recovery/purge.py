"""What a person has decided to remove: one transaction row, or one `once` token.

fsck removes only what nobody can miss. Here somebody says so, of one thing at a time.
"""

from __future__ import annotations

from recovery.findings import LeftAlone, NothingToDo, Repaired, Result
from recovery.fsck import delete_cells
from recovery.markers import find_marker, forget
from recovery.scan import find_transaction, whole_row
from txn.model import Row
from txn.protocol.context import Context
from txn.protocol.row import RowState, decode_row, parent_of
from txn.text import escape

LOST = {
    RowState.FINISHED: "its outcome becomes unknown",
    RowState.DEBRIS: "nothing: they are cells of a row that was deleted before",
    RowState.UNREADABLE: "it may be committed: what it was to write, and is not yet in place",
    RowState.UNDECIDED: "its owner, if it lives, fails; nothing of it was written",
    RowState.ABORTING: "its outcome becomes unknown; nothing of it was written",
    RowState.DECIDED: "it is committed: what it was to write, and is not yet in place",
}
"""What is lost with the row of a transaction in each state."""

UNFINISHED = frozenset({RowState.UNDECIDED, RowState.ABORTING, RowState.DECIDED})
"""The states from which fsck takes a transaction to its end, without loss."""

BOUND = frozenset({RowState.UNDECIDED, RowState.DECIDED})
PART = "without it that one would be committed by halves; fsck --repair ends both"


def purge_row(context: Context, seen: Row, *, unfinished: bool = False) -> Result:
    """Delete a transaction row that is as it was seen. Its locks, if it has any, are then orphans,
    which any client that meets them frees, and fsck where it scans their tables.

    unfinished: also one that fsck could still finish or undo. Raises StoreError.
    """
    row = find_transaction(context, seen.row)
    state = row.state if row is not None else decode_row(seen).state
    if state in UNFINISHED and not unfinished:
        return LeftAlone("it is not finished, and fsck --repair can still finish or undo it")
    if state in BOUND and row is not None and row.follows:
        return LeftAlone(f"it is a part of {escape(parent_of(seen.row) or b'')}: {PART}")
    if whole_row(context, seen.row) != seen:
        return NothingToDo("the row has changed")
    delete_cells(context, [seen])
    return Repaired("deleted")


def purge_token(context: Context, token: bytes) -> Result:
    """Delete the marker of a `once` token, under its lock. A request with it commits again.

    Raises InvalidRequestError if no request with it has committed, and StoreError.
    """
    found = find_marker(context, token)
    assert found.value is not None
    return forget(context, found.key, found.value, found.newest)
