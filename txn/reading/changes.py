"""What committed transactions have changed, read from their rows: the buffer has the mutations, the
plan the commit timestamp and the versions that were replaced. So it can be told of a transaction
that is decided, whether or not its values are put already. One in parts has rows for these as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import NamedTuple

from txn.errors import CorruptRowError, TxnError
from txn.model import Cell, Key, Mutation, Row
from txn.protocol.attempt import Context, call_store
from txn.protocol.recover import require_no_parts
from txn.protocol.row import Buffer, Plan, column, decode_row, part_key, status_key
from txn.reading.decisions import STATUS, Decided

ROWS_AT_ONCE = 100
PARTS_AT_ONCE = 4
WHOLE = (STATUS, b"buffer", b"plan", b"parts")


class ChangesLostError(TxnError):
    """Transactions may have been deleted before they were told: begin anew with what is there, or
    go on without them. Keep rows for longer than readers stop."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """What a transaction did to one key. replaced: the version that it replaced; 0: none. value:
    None: a delete. timestamp: of the commit. decided_ms: when it was decided, by the server."""

    key: Key
    replaced: int
    value: bytes | None
    timestamp: int
    decided_ms: int
    transaction: bytes
    labels: Mapping[str, str]


class WrittenRow(NamedTuple):
    """The row of a committed transaction, or of a part of one. parts: how many each task wrote;
    None: it is in no parts."""

    row_key: bytes
    buffer: Buffer
    plan: Plan
    parts: tuple[int, ...] | None


def read_changes(
    context: Context,
    part: Sequence[Decided],
    *,
    tables: Collection[bytes] | None = None,
    is_strict: bool = True,
) -> Iterator[KeyChange]:
    """Yield what transactions changed, in the order in which they are given, but those of one
    millisecond in the order of their commit timestamps.

    tables: only changes of these. Raises CorruptRowError for a row that does not decode, and, if
    is_strict, ChangesLostError for one that is gone.
    """
    for some in split_part(part, ROWS_AT_ONCE):
        rows = _read_rows(context, [each.row_key for each in some], is_strict)
        whole = [(each.at_ms, rows[each.row_key]) for each in some if each.row_key in rows]
        for at_ms, row in sorted(whole, key=lambda item: (item[0], item[1].plan.timestamp)):
            for written in (row, *_read_parts(context, row, is_strict)):
                for change in _list_changes(row, written, at_ms):
                    is_marker = change.key.table == context.table  # nobody's data
                    if not is_marker and (tables is None or change.key.table in tables):
                        yield change


def split_part(part: Sequence[Decided], size: int) -> Iterator[list[Decided]]:
    """Yield at least so many at a time; those of one millisecond are together."""
    some: list[Decided] = []
    for _, alike in groupby(part, lambda decided: decided.at_ms):
        some += alike
        if len(some) >= size:
            yield some
            some = []
    if some:
        yield some


def _read_parts(context: Context, row: WrittenRow, is_strict: bool) -> Iterator[WrittenRow]:
    """Yield the rows of a transaction's parts, in the order of the tasks that have written them."""
    if row.parts is None:
        require_no_parts(context, row.row_key, row.buffer.request.keys)
    parts = (
        part_key(row.row_key, task, number)
        for task, count in enumerate(row.parts or ())
        for number in range(count)
    )
    while some := list(islice(parts, PARTS_AT_ONCE)):
        rows = _read_rows(context, some, is_strict)
        yield from (rows[part] for part in some if part in rows)


def _read_rows(
    context: Context, row_keys: Sequence[bytes], is_strict: bool
) -> dict[bytes, WrittenRow]:
    """Return the rows that are there."""
    keys = {each: [column(context.table, each, name) for name in WHOLE] for each in row_keys}
    wanted = [key for group in keys.values() for key in group]
    cells = call_store(context, lambda: context.store.read(wanted))
    rows: dict[bytes, WrittenRow] = {}
    for row_key, names in keys.items():
        found: dict[Key, Cell] = {key: cell for key in names if (cell := cells[key]) is not None}
        row = decode_row(Row(row_key, found))
        if row.buffer is not None and row.plan is not None and not row.corrupt:
            rows[row_key] = WrittenRow(row_key, row.buffer, row.plan, row.parts)
        elif row.corrupt or status_key(context.table, row_key) in found:
            cause = row.corrupt or "buffer or plan is missing"
            raise CorruptRowError(cause, transaction=row_key)
        elif is_strict:
            raise ChangesLostError("a row is gone", transaction=row_key)
    return rows


def _list_changes(whole: WrittenRow, row: WrittenRow, at_ms: int) -> Iterator[KeyChange]:
    """Yield what one row of a transaction tells; `whole` has its timestamp and its labels."""
    mutations, replaced = row.buffer.request.mutations, row.plan.replaced
    if len(mutations) != len(replaced):
        raise CorruptRowError("the plan does not fit the buffer", transaction=row.row_key)
    for mutation, old in zip(mutations, replaced, strict=True):
        yield KeyChange(
            mutation.key,
            old,
            mutation.value if isinstance(mutation, Mutation) else None,
            whole.plan.timestamp,
            at_ms,
            whole.row_key,
            whole.buffer.request.labels,
        )
