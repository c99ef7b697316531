"""What fsck finds in data tables: orphan locks, stale tags, and versions past the protocol.

Suspect items are read in the scan, then their holder's row, then their cells again. Only unchanged
items are judged, so the holder's row applies to them, and changes by live clients are never
findings. Rows without a lock, a tag or a strange version cost only the scan.

In a six-phase database each key has a lock and a tag. A fenced database has row-family locks; every
change through the protocol leaves the lock at a greater timestamp than the values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from recovery.findings import CheckOptions, Finding, Kind, judge, list_owner
from recovery.scan import BATCH, newest_old_ms, transactions
from txn.errors import CorruptRowError
from txn.model import LOCK_SUFFIX, RESERVED, TAG_SUFFIX, Cell, Delete, Key, Row
from txn.protocol.context import Context, call_store
from txn.protocol.locks import ROW_LOCK, holder_of, read_lock
from txn.protocol.retire import Guarded
from txn.protocol.row import RowState, TransactionRow, is_row_key, read_rows
from txn.protocol.statuses import FINISHED, Status
from txn.protocol.transaction import load_transaction

Dated = tuple[int, Finding]
"""A finding, and since when it is one (ms); 0 if that does not matter."""


class FamilyLock(NamedTuple):
    """A row-family lock, with the values there that are not older."""

    lock: Key
    cell: Cell
    newer: Mapping[Key, Cell]

    @property
    def holder(self) -> bytes:
        """Return the row key of the holder, or other content; empty if the lock is free."""
        return holder_of(self.lock, self.cell)


Item = Guarded | FamilyLock


def check_rows(context: Context, rows: Iterable[Row], options: CheckOptions) -> Iterator[Finding]:
    """Yield the findings of rows, which may be outdated. Items in grace are only counted."""
    vacant_ms = newest_old_ms(context.clock.wall_ms(), options.ages.retention_ms)
    list_items = list_family_locks if context.rules.locks_rows else list_guarded
    items: Iterator[Item] = (item for row in rows for item in list_items(row))
    suspects = (item for item in items if _is_suspect(item, vacant_ms))
    while batch := list(islice(suspects, BATCH)):
        holders = {item.holder for item in batch if is_row_key(item.holder)}
        found = read_rows(context, holders) if holders else {}
        seen = [(item, _list_cells(item)) for item in batch]
        asked = [key for _, cells in seen for key in cells]
        now = call_store(context, partial(context.store.read, asked))
        unchanged = [item for item, cells in seen if all(now[key] == cells[key] for key in cells)]
        now_ms = context.clock.wall_ms()
        old_ms = newest_old_ms(now_ms, options.ages.grace_ms)
        for item in unchanged:
            holder = found.get(item.holder)
            is_doomed = False
            if holder is not None and holder.buffer is None:
                # Repair aborts a holder whose keys are unknown, which leaves its locks.
                doom = judge(holder, now_ms, options.ages.grace_ms)
                is_doomed = doom is not None and doom.kind in (Kind.UNDECIDED, Kind.ABORTING)
            for since, finding in _judge_item(item, holder, is_doomed, vacant_ms):
                if since <= old_ms:
                    yield finding
                else:
                    options.young.add(finding.kind, now_ms - since)


def list_guarded(row: Row) -> Iterator[Guarded]:
    suffixes = (LOCK_SUFFIX, TAG_SUFFIX)
    keys = {
        key._replace(column=key.column.removesuffix(suffix))
        for key in row.cells
        for suffix in suffixes
        if key.column.endswith(suffix) and key.column != suffix
    }
    for key in sorted(keys):
        lock = key.lock
        yield Guarded(key, lock, row.cells.get(key), row.cells.get(lock), row.cells.get(key.tag))


def list_family_locks(row: Row) -> Iterator[FamilyLock]:
    for lock, cell in row.cells.items():
        if lock.column == ROW_LOCK:
            newer = {
                key: value
                for key, value in row.cells.items()
                if key.family == lock.family
                and value.timestamp >= cell.timestamp
                and not key.column.endswith(RESERVED)
            }
            yield FamilyLock(lock, cell, newer)


def _is_suspect(item: Item, vacant_ms: int) -> bool:
    """Return True if an item differs from what finished transactions leave, or may be retired. Free
    row-family locks stay forever because they count acquisitions."""
    if isinstance(item, FamilyLock):
        return bool(item.holder or item.newer)
    return not item.is_free or is_foreign(item, None) or is_vacant(item, vacant_ms)


def _list_cells(item: Item) -> Mapping[Key, Cell | None]:
    if isinstance(item, FamilyLock):
        return {item.lock: item.cell, **item.newer}
    return {item.key: item.value, item.key.lock: item.lock, item.key.tag: item.tag}


def is_vacant(item: Guarded, old_ms: int) -> bool:
    """Return True if the key has no value, and nothing of it is newer than this."""
    return item.is_free and item.value is None and item.newest <= old_ms


def is_stale(item: Guarded, holder: TransactionRow | None) -> bool:
    """Return True if no live transaction owns the tag: its key is free, or its holder has written
    nothing yet or has another commit timestamp."""
    if holder is None:
        return True
    state = holder.state
    if state is RowState.DECIDED and holder.plan and item.tag:
        return holder.plan.timestamp != item.tag.timestamp
    return state is not RowState.UNREADABLE


def is_foreign(item: Guarded, holder: TransactionRow | None) -> bool:
    """Return True if no transaction left the newest version. The tag's timestamp is that of the
    last commit on the key; a delete leaves it without a version."""
    if holder is not None and holder.state is RowState.UNREADABLE:
        return False
    version = item.value.timestamp if item.value else 0
    planned = _plan_writes(item.key, holder)
    if planned is not None:
        return version not in planned
    return item.tag is not None and version not in (0, item.tag.timestamp)


def _plan_writes(key: Key, holder: TransactionRow | None) -> tuple[int, int] | None:
    """Return the two versions that a key may have while a decided transaction writes it; 0: none.
    Return None once all is put: others may have written keys that it has released."""
    if holder is None or holder.state is not RowState.DECIDED:
        return None
    if holder.status is not Status.ASSERTED:
        return None
    assert holder.buffer is not None and holder.plan is not None
    for mutation, old in zip(holder.buffer.request.mutations, holder.plan.replaced, strict=True):
        if mutation.key == key:
            return old, 0 if isinstance(mutation, Delete) else holder.plan.timestamp
    return None


def _judge_item(
    item: Item, holder: TransactionRow | None, is_doomed: bool, vacant_ms: int
) -> Iterator[Dated]:
    """Yield the findings of an item. holder: None if its lock names no transaction."""
    if isinstance(item, FamilyLock):
        if item.holder:
            key = item.lock._replace(column=b"")
            yield from _judge_lock(key, item.cell, item.lock, holder, is_doomed)
        for key, value in item.newer.items():
            facts = {"version": value.timestamp, "below": item.cell.timestamp}
            yield 0, Finding(Kind.FOREIGN_VERSION, None, key, facts)
        return
    key, tag = item.key, item.tag
    if item.lock and item.holder:
        yield from _judge_lock(key, item.lock, key.lock, holder, is_doomed)
    if tag and tag.value:
        if not tag.value.isdigit():
            yield 0, Finding(Kind.FOREIGN_CELL, None, key.tag, make_facts(tag))
        elif is_stale(item, holder):
            yield tag.timestamp, Finding(Kind.STALE_TAG, None, key, make_facts(tag))
    if is_foreign(item, holder):
        planned = _plan_writes(key, holder)
        expected = max(planned) if planned else tag.timestamp if tag else 0
        facts = {"version": item.value.timestamp if item.value else 0, "expected": expected}
        yield 0, Finding(Kind.FOREIGN_VERSION, None, key, facts)
    if is_vacant(item, vacant_ms):
        yield 0, Finding(Kind.VACANT_KEY, None, key, {"newest": item.newest})


def _judge_lock(
    key: Key, cell: Cell, lock: Key, holder: TransactionRow | None, is_doomed: bool
) -> Iterator[Dated]:
    since = cell.timestamp
    if holder is None:
        yield 0, Finding(Kind.FOREIGN_CELL, None, lock, make_facts(cell))
    elif holder.elsewhere:
        yield 0, Finding(Kind.FOREIGN_LOCK, holder.row_key, key, {"since": since})
    elif holder.is_over or is_doomed:
        facts = {"since": since, "status": str(holder.status) if holder.status else "no row"}
        facts |= list_owner(holder)
        yield since, Finding(Kind.ORPHAN_LOCK, holder.row_key, key, facts)
    elif holder.state is RowState.UNREADABLE and holder.stored_status in FINISHED:
        # The check of rows skips young ones with a finished status.
        yield since, Finding(Kind.UNREADABLE, holder.row_key, key, {"cause": holder.cause})


def make_facts(cell: Cell) -> dict[str, object]:
    return {"value": cell.value, "timestamp": cell.timestamp}


def check_counts(context: Context, tables: Collection[bytes]) -> Iterator[Finding]:
    """Yield the locks with a lower count than a transaction row recorded. Counts only grow: a lock
    whose count fell could be granted to a transaction that read the row before."""
    counts: dict[Key, int] = {}
    for row in transactions(context):
        if row.plan is None or row.buffer is None:
            continue
        taken = load_transaction(context, row).taken_cells
        for lock, held in zip(taken, row.plan.locks, strict=False):
            if lock.table in tables:
                with suppress(CorruptRowError):
                    count = read_lock(lock, Cell(held, 0)).taken
                    counts[lock] = max(count, counts.get(lock, 0))
        if len(counts) >= BATCH:
            yield from _find_lower(context, counts)
            counts.clear()
    yield from _find_lower(context, counts)


def _find_lower(context: Context, counts: Mapping[Key, int]) -> Iterator[Finding]:
    found = call_store(context, lambda: context.store.read(list(counts))) if counts else {}
    for lock, cell in found.items():
        with suppress(CorruptRowError):  # the scan reports it
            if read_lock(lock, cell).taken < counts[lock]:
                facts = make_facts(cell or Cell(b"", 0)) | {"taken": counts[lock]}
                yield Finding(Kind.FOREIGN_CELL, None, lock, facts)
