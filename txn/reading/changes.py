"""What committed transactions have changed, read from their rows: the buffer has the mutations, the
plan the commit timestamp and the versions that were replaced. So it can be told of a transaction
that is decided, whether or not its values are put already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from txn.errors import CorruptRowError, TxnError
from txn.model import Cell, Key, Mutation, Row
from txn.protocol.attempt import Context, call_store
from txn.protocol.row import Buffer, Plan, column, decode_row, status_key
from txn.reading.decisions import DECIDED_AT, STATUS, Decided

ROWS_AT_ONCE = 100
WHOLE = (STATUS, DECIDED_AT, b"buffer", b"plan")


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
        found = _read_rows(context, some, is_strict)
        found.sort(key=lambda item: (item[0].at_ms, item[2].timestamp))
        for decided, buffer, plan in found:
            yield from _list_changes(context, decided, buffer, plan, tables)


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


def _read_rows(
    context: Context, some: Sequence[Decided], is_strict: bool
) -> list[tuple[Decided, Buffer, Plan]]:
    keys = {each: [column(context.table, each.row_key, name) for name in WHOLE] for each in some}
    wanted = [key for group in keys.values() for key in group]
    cells = call_store(context, lambda: context.store.read(wanted))
    whole = []
    for decided, names in keys.items():
        found: dict[Key, Cell] = {key: cell for key in names if (cell := cells[key]) is not None}
        row = decode_row(Row(decided.row_key, found))
        if row.buffer is not None and row.plan is not None:
            whole.append((decided, row.buffer, row.plan))
        elif status_key(context.table, decided.row_key) in found:
            cause = row.corrupt or "buffer or plan is missing"
            raise CorruptRowError(cause, transaction=decided.row_key)
        elif is_strict:
            raise ChangesLostError("a row is gone", transaction=decided.row_key)
    return whole


def _list_changes(
    context: Context,
    decided: Decided,
    buffer: Buffer,
    plan: Plan,
    tables: Collection[bytes] | None,
) -> Iterator[KeyChange]:
    mutations = buffer.request.mutations
    if len(mutations) != len(plan.replaced):
        raise CorruptRowError("the plan does not fit the buffer", transaction=decided.row_key)
    for mutation, replaced in zip(mutations, plan.replaced, strict=True):
        key = mutation.key
        if key.table == context.table or (tables is not None and key.table not in tables):
            continue  # the marker of a token is no change of anybody's data
        value = mutation.value if isinstance(mutation, Mutation) else None
        labels = buffer.request.labels
        yield KeyChange(key, replaced, value, plan.timestamp, *decided, labels)
