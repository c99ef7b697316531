"""fsck as the simulation calls it."""

from __future__ import annotations

from collections.abc import Iterator

from txn.codec import is_row_key
from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Edit, Key
from txn.protocol import roll_back, roll_forward
from txn.resolve import free, is_over, read_rows
from txn.steps import FREE, Context, from_row


def check(context: Context, tables: list[bytes]) -> Iterator[tuple[str, bytes, Key | None, int]]:
    rows = [row.row for row in context.store.scan(context.table) if is_row_key(row.row)]
    for row in read_rows(context, rows).values():
        if not is_over(row):
            yield ("unfinished", row.row_key, None, 0)
    for table in [context.table, *tables]:
        for found in context.store.scan(table):
            for key, cell in found.cells.items():
                if not cell.value:
                    continue
                if key.column.endswith(LOCK_SUFFIX):
                    if is_over(read_rows(context, [cell.value])[cell.value]):
                        yield ("lock", cell.value, key, 0)
                elif key.column.endswith(TAG_SUFFIX):
                    lock = key._replace(column=key.column[: -len(TAG_SUFFIX)] + LOCK_SUFFIX)
                    holder = found.cells.get(lock)
                    if holder is None or not holder.value:
                        yield ("tag", b"", key, cell.timestamp)


def repair(context: Context, finding: tuple[str, bytes, Key | None, int]) -> None:
    kind, row_key, key, timestamp = finding
    if kind == "unfinished":
        t = from_row(read_rows(context, [row_key])[row_key])
        if t.status is not None and t.status.is_decided:
            roll_forward(context, [t])
        else:
            roll_back(context, [t], lambda _: "fsck")
    elif kind == "lock" and key is not None:
        free(context, row_key, [key])
    elif key is not None:
        context.store.write([Edit(key, FREE, timestamp)])
