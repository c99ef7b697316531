"""Transaction rows read cell by cell, those of parts together with what decides for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from txn.model import Cell, Key, Row
from txn.protocol.attempt import Context, call_store
from txn.protocol.row import TransactionRow, column, decode_row, follow, whole_of

COLUMNS = (b"status", b"buffer", b"plan", b"reason", b"beat", b"ranges", b"parts")


def read_rows(context: Context, row_keys: Collection[bytes]) -> dict[bytes, TransactionRow]:
    """Return the transaction rows, each from one instant; an absent one has no status. A part that
    has not followed its transaction is as that one has it: so it was at an instant, too, between
    the reading of the one row and of the other."""
    wanted = list_row_cells(context, row_keys)
    found = call_store(context, lambda: context.store.read(wanted))
    return decode_rows(context, row_keys, found)


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
    return decode_row(Row(row_key, {key: cell for key in own if (cell := found[key]) is not None}))
