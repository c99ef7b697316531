"""When the transactions of a database were decided, from two cells of each row.

The time is that of the server which took the decision: `at.2-ASSERTED` is written in the
compare-and-set that decides, so once, and in both protocols at the server's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from txn.model import Check, Row
from txn.protocol.attempt import Context, call_store
from txn.protocol.phases import Status
from txn.protocol.ranges import stored_rows
from txn.protocol.row import FAMILY, is_row_key, whole_of
from txn.protocol.rules import protocol_key
from txn.spans import Span

STATUS = b"status"
DECIDED_AT = Status.ASSERTED.at
COLUMNS = frozenset({(FAMILY, STATUS), (FAMILY, DECIDED_AT)})
NEVER_DECIDED = (b"", Status.ABORTING.encoded, Status.ABORTED.encoded)
NO_NAME = b"the name of no protocol"


class Decided(NamedTuple):
    """A committed transaction, and when it was decided, by its server's time."""

    at_ms: int
    row_key: bytes


def wait_for_writer(context: Context) -> None:
    """Let a local transaction end that has begun: its times are from before it becomes visible.
    Whoever begins one afterwards reads the clock afterwards. It is a check that fails, so that it
    writes nothing. On HBase a row is there before it is decided: nothing has to be waited for."""
    features = context.store.features
    if "multi_cell_check" in features and "remote_calls" not in features:
        key = protocol_key(context.table)
        check = Check(key, NO_NAME, ((key, NO_NAME),))
        call_store(context, lambda: context.store.check_and_put([check], durable=False))


def list_decisions(context: Context, low_ms: int) -> Iterator[Row]:
    """Yield status and time of decision of each row from a time of creation on, in each bucket."""
    table, start = context.table, b"0"
    begin, end = b"transaction.%013d." % max(low_ms, 0), b"transaction/"
    while found := next(_scan(context, Span(table, start, b":", COLUMNS)), None):
        if is_row_key(found.row):
            bucket = found.row[:3]
            yield from _scan(context, Span(table, bucket + begin, bucket + end, COLUMNS))
            start = bucket[:2] + b"/"
        else:
            start = found.row + b"\0"
    yield from _scan(context, Span(table, begin, end, COLUMNS))


def find_decision(row: Row) -> int | None:
    """Return when the transaction was decided; 0 while it may still be, or nothing tells yet when;
    None if it never will be.

    A gateway that takes one cell a check writes no `at.2-ASSERTED`. Then it is the last status that
    tells, once it is there. A part is told of by the row of its transaction, which decides for it.
    """
    if whole_of(row.row) is not None:
        return None
    cells = {key.column: cell for key, cell in row.cells.items()}
    if (decided := cells.get(DECIDED_AT)) is not None:
        return decided.timestamp
    status = cells.get(STATUS)
    if status is None or status.value in NEVER_DECIDED:
        return None
    return status.timestamp if status.value == Status.COMPLETE.encoded else 0


def _scan(context: Context, wanted: Span) -> Iterator[Row]:
    return (row for row in stored_rows(context, wanted) if row.cells)
