"""What fsck finds in data tables of a fenced database: orphan locks, versions past the protocol.

There a lock is of a row and family, and every change through the protocol leaves it at a greater
timestamp than its values. What is suspect is looked at three times: in the scan, then its holder's
row, then its cells again. Only what is the same both times is judged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from recovery.findings import Finding, Kind, Young
from recovery.scan import transactions
from recovery.tables import BATCH, Doomed, judge_lock, make_facts, take_old
from txn.errors import CorruptRowError
from txn.model import RESERVED, Cell, Key, Row
from txn.protocol.context import Context, call_store
from txn.protocol.locks import ROW_LOCK, holder_of, read_lock
from txn.protocol.row import TransactionRow, is_row_key, read_rows


class Unit(NamedTuple):
    """A lock of a row and family, with the values there that are not older than it is."""

    lock: Key
    cell: Cell
    newer: Mapping[Key, Cell]

    @property
    def holder(self) -> bytes:
        """Who has the lock, or what else its cell says; empty where it is free."""
        return holder_of(self.lock, self.cell)


def check_units(
    context: Context,
    rows: Iterable[Row],
    *,
    grace_ms: int,
    retention_ms: int,
    doomed: Doomed,
    young: Young,
) -> Iterator[Finding]:
    """Yield the findings of rows of data tables, which may be stale by now. A lock that is younger
    than the grace is not one, and is counted. Free locks stay for ever: they count."""
    units = (unit for row in rows for unit in list_units(row))
    suspects = (unit for unit in units if unit.holder or unit.newer)
    while batch := list(islice(suspects, BATCH)):
        holders = {unit.holder for unit in batch if is_row_key(unit.holder)}
        found = read_rows(context, holders) if holders else {}
        same = _find_unchanged(context, batch)
        now_ms = context.clock.wall_ms()
        for unit in same:
            judged = _judge_unit(unit, found.get(unit.holder), doomed)
            yield from take_old(judged, now_ms, grace_ms, young)


def list_units(row: Row) -> Iterator[Unit]:
    """Yield the locks of a row, one a family."""
    for lock, cell in row.cells.items():
        if lock.column == ROW_LOCK:
            newer = {
                key: value
                for key, value in row.cells.items()
                if key.family == lock.family
                and value.timestamp >= cell.timestamp
                and not key.column.endswith(RESERVED)
            }
            yield Unit(lock, cell, newer)


def _find_unchanged(context: Context, units: Iterable[Unit]) -> list[Unit]:
    wanted = list(units)
    asked = [key for unit in wanted for key in (unit.lock, *unit.newer)]
    now = call_store(context, lambda: context.store.read(asked))
    return [
        unit
        for unit in wanted
        if now[unit.lock] == unit.cell
        and all(now[key] == value for key, value in unit.newer.items())
    ]


def _judge_unit(
    unit: Unit, holder: TransactionRow | None, doomed: Doomed
) -> Iterator[tuple[int, Finding]]:
    """Yield what is wrong with a lock, with the time since when; 0 where that does not matter."""
    lock, cell = unit.lock, unit.cell
    if unit.holder:
        yield from judge_lock(lock._replace(column=b""), cell, lock, holder, doomed)
    for key, value in unit.newer.items():
        facts = {"version": value.timestamp, "below": cell.timestamp}
        yield 0, Finding(Kind.FOREIGN_VERSION, None, key, facts)


def check_counts(context: Context, tables: Collection[bytes]) -> Iterator[Finding]:
    """Yield the locks of these tables that say less than they said when a transaction had them,
    which its row tells for as long as it is kept. A count only grows: a lock that went back, or is
    gone, may be granted to somebody who has read the unit before."""
    counts: dict[Key, int] = {}
    for row in transactions(context):
        for lock, count in _list_counts(context, row):
            if lock.table in tables:
                counts[lock] = max(count, counts.get(lock, 0))
        if len(counts) >= BATCH:
            yield from _find_lower(context, counts)
            counts.clear()
    yield from _find_lower(context, counts)


def _list_counts(context: Context, row: TransactionRow) -> Iterator[tuple[Key, int]]:
    if row.plan is None or row.buffer is None:
        return
    locks = dict.fromkeys(map(context.rules.lock_of, row.buffer.request.keys))
    for lock, held in zip(locks, row.plan.locks, strict=False):
        with suppress(CorruptRowError):
            yield lock, read_lock(lock, Cell(held, 0)).taken


def _find_lower(context: Context, counts: Mapping[Key, int]) -> Iterator[Finding]:
    found = call_store(context, lambda: context.store.read(list(counts))) if counts else {}
    for lock, cell in found.items():
        with suppress(CorruptRowError):  # which is a finding of the scan
            if read_lock(lock, cell).taken < counts[lock]:
                facts = make_facts(cell or Cell(b"", 0)) | {"taken": counts[lock]}
                yield Finding(Kind.FOREIGN_CELL, None, lock, facts)
