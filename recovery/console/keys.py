"""One key as it is stored, with its guards and transactions; and the rows of a data table.

The cells of a key come from one instant; other rows are read later. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from recovery.bounds import Budget, ReadLimits, Stop
from recovery.inspect import COUNTS
from recovery.scan import find_transaction
from recovery.search import DEFAULT, Query, SearchPage, find_page
from recovery.tables import is_foreign
from txn.errors import CorruptRowError, StoreError, TableUnavailable
from txn.model import RESERVED, Cell, Key
from txn.protocol.context import Context, call_store
from txn.protocol.locks import holder_of, read_lock
from txn.protocol.ranges import stored_rows
from txn.protocol.retire import Guarded, make_guarded, read_guarded
from txn.protocol.row import TransactionRow, is_row_key
from txn.spans import Span
from txn.stores.base import TableSize, measure_tables

ROWS = 50
MOST_TABLES = 100
MOST_VALUES = 1_000  # the most values on a page; one row may have 100,000


@dataclass(frozen=True, slots=True)
class KeyDetails:
    """A key and what guards it.

    is_there: whether its table and family exist; if not, nothing else is known.
    cells: its newest version; its lock or, if fenced, the row-family lock; the six-phase tag.
    earlier: older versions that were read, newest first; are_all: whether there are no others.
    count: the acquisitions of a fenced lock. holder_row: the row of the lock's holder.
    is_ours: whether the last transaction on the key wrote the value, judging by its tag or lock;
    None: no transaction has left a mark.
    transactions: the last ones that name the key, as far as was read.
    """

    is_there: bool
    cells: Guarded
    earlier: list[Cell]
    are_all: bool
    count: int | None
    holder_row: TransactionRow | None
    is_ours: bool | None
    transactions: SearchPage


class ListedKey(NamedTuple):
    """A value of a data table, and the holder of its key's lock; empty if the lock is free."""

    key: Key
    cell: Cell
    holder: bytes


class ListedTable(NamedTuple):
    name: bytes
    size: TableSize


class KeyPage(NamedTuple):
    """Values of a data table, in row order. next: the first row of the next page; None: there is
    none. rows: the rows read, also those without values. cut: further values of the last row."""

    keys: list[ListedKey]
    next: bytes | None
    rows: int
    stopped: Stop | None
    cut: int = 0


def read_key_details(
    context: Context, key: Key, limits: ReadLimits = DEFAULT, count: int = 10
) -> KeyDetails:
    """Return a key, which names its table, and the last `count` transactions that named it."""
    is_there = True
    try:
        found = read_guarded(context, [key])[key]
    except TableUnavailable:
        is_there, found = False, make_guarded(context, key, {})
    row = find_transaction(context, found.holder) if is_row_key(found.holder) else None
    earlier, are_all = _read_before(context, key, found.value, limits)
    taken = is_ours = None
    if context.rules.locks_rows:
        with suppress(CorruptRowError):
            taken = read_lock(found.lock_key, found.lock).taken
        if found.lock is not None:  # above the values of its last commit; a tag is at their time
            is_ours = found.value is None or found.value.timestamp < found.lock.timestamp
    elif found.tag is not None or row is not None:
        is_ours = not is_foreign(found, row)
    page = find_page(context, Query(key=key), None, limits, count)
    return KeyDetails(is_there, found, earlier, are_all, taken, row, is_ours, page)


def list_sizes(context: Context) -> tuple[list[ListedTable], int]:
    """Return the first tables with their sizes, if known, and how many tables there are."""
    store = context.store
    names = call_store(context, store.list_tables)
    sizes: Mapping[bytes, TableSize] = {}
    with suppress(StoreError):
        sizes = measure_tables(store, names[:MOST_TABLES])
    listed = [ListedTable(name, sizes.get(name, TableSize())) for name in names[:MOST_TABLES]]
    return listed, len(names)


def list_table_keys(
    context: Context,
    table: bytes,
    start: bytes = b"",
    limits: ReadLimits = DEFAULT,
    *,
    count: int = ROWS,
) -> KeyPage:
    """Return the stored values of `count` rows from `start` on, not of one instant. Locks and tags
    are not values. A page has at most MOST_VALUES: a row that does not fit moves to the next page,
    and a row that fits no page is cut."""
    budget = Budget(context.clock, limits)
    keys: list[ListedKey] = []
    for row in stored_rows(context, Span(table, start)):
        stop = Stop.FOUND if budget.rows >= count else budget.over
        if budget.rows and stop is not None:
            return KeyPage(keys, row.row, budget.rows, stop)
        values = sorted(key for key in row.cells if not key.column.endswith(RESERVED))
        if keys and len(keys) + len(values) > MOST_VALUES:
            return KeyPage(keys, row.row, budget.rows, Stop.FOUND)
        budget.spend(row)
        for key in values[:MOST_VALUES]:
            lock = context.rules.lock_of(key)
            keys.append(ListedKey(key, row.cells[key], holder_of(lock, row.cells.get(lock))))
        if cut := len(values[MOST_VALUES:]):
            return KeyPage(keys, row.row + b"\0", budget.rows, Stop.FOUND, cut)
    return KeyPage(keys, None, budget.rows, None)


def _read_before(
    context: Context, key: Key, value: Cell | None, limits: ReadLimits
) -> tuple[list[Cell], bool]:
    """Return the versions before this one, and whether they are all. The first read gets one
    version; later reads get as many as should fit the limit, since each may have ten megabytes."""
    if value is None:
        return [], True
    versions: list[Cell] = []
    are_all = False
    for count in COUNTS:
        size = sum(len(cell.value) for cell in versions)
        if size * count > limits.bytes_ * max(1, len(versions)):
            break
        versions = call_store(context, partial(context.store.read_versions, [key], count))[key]
        are_all = len(versions) < count
        if are_all:
            break
    return [cell for cell in versions if cell.timestamp < value.timestamp], are_all
