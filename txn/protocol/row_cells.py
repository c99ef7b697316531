"""Transaction rows read cell by cell, those of parts together with what decides for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from txn.model import Cell, Key, Row, plain_table
from txn.protocol.attempt import Context, call_store
from txn.protocol.phases import Status
from txn.protocol.row import (
    TransactionRow,
    column,
    decode_row,
    follow,
    name_database,
    status_key,
    whole_of,
)

COLUMNS = (
    *(b"status", b"buffer", b"plan", b"reason", b"beat", b"ranges", b"parts"),
    *(status.at for status in Status),
)
OPEN_TO_BOTH = (Status.WRITTEN.encoded, Status.LOCKED.encoded)


def read_rows(context: Context, row_keys: Collection[bytes]) -> dict[bytes, TransactionRow]:
    """Return the transaction rows, each from one instant; an absent one has no status. A part that
    has not followed its transaction is as that one has it."""
    return decode_rows(context, row_keys, read_row_cells(context, row_keys))


def read_row_cells(
    context: Context, row_keys: Collection[bytes], others: Collection[Key] = ()
) -> dict[Key, Cell | None]:
    """Return the cells that make these transaction rows, and others.

    Each row is of an instant of its own. A part that was read while its transaction could go either
    way tells nothing together with that one read later: it may have been planned since, or be
    complete. So where the transaction has gone one way, its part is read once more.
    """
    wanted = [*others, *list_row_cells(context, row_keys)]
    found = call_store(context, lambda: context.store.read(wanted))
    early = [row for row in row_keys if _is_early(context, row, found)]
    if early and "instant_reads" not in context.store.features:
        again = [column(context.table, row, name) for row in early for name in COLUMNS]
        found = {**found, **call_store(context, lambda: context.store.read(again))}
    return found


def _is_early(context: Context, row_key: bytes, found: Mapping[Key, Cell | None]) -> bool:
    """Whether a row was read as that of a part that has not followed, beside that of a transaction
    that has gone one way."""
    whole = whole_of(row_key)
    if whole is None:
        return False
    own, decisive = (found[status_key(context.table, row)] for row in (row_key, whole))
    if own is None or own.value != Status.PART.encoded:
        return False
    return decisive is None or decisive.value not in OPEN_TO_BOTH


def list_row_cells(context: Context, row_keys: Collection[bytes]) -> list[Key]:
    """Return the cells that make these transaction rows."""
    rows = dict.fromkeys(row_keys)
    rows.update(dict.fromkeys(whole for row in row_keys if (whole := whole_of(row))))
    return [column(context.table, row, name) for row in rows for name in COLUMNS]


def decode_rows(
    context: Context, row_keys: Collection[bytes], found: Mapping[Key, Cell | None]
) -> dict[bytes, TransactionRow]:
    """Return the transaction rows that were read, perhaps with other cells."""
    wholes: dict[bytes, TransactionRow] = {}
    rows: dict[bytes, TransactionRow] = {}
    for row_key in row_keys:
        row = rows[row_key] = _decode(context, row_key, found)
        if row.follows and (whole := whole_of(row_key)):
            if whole not in wholes:
                wholes[whole] = _decode(context, whole, found)
            rows[row_key] = follow(row, wholes[whole])
    return rows


def _decode(context: Context, row_key: bytes, found: Mapping[Key, Cell | None]) -> TransactionRow:
    own = [column(context.table, row_key, name) for name in COLUMNS]
    cells = {key: cell for key in own if (cell := found[key]) is not None}
    if not cells and (theirs := name_database(row_key)) is not None:
        ours = plain_table(context.table)
        if theirs != ours:
            return TransactionRow(row_key, elsewhere=(theirs, ours))
    return decode_row(Row(row_key, cells))
