"""What fsck finds in data tables: orphan locks, stale tags, and versions past the protocol.

A key is looked at three times: in the scan, then its holder's row, then the key again. Only what is
the same both times is judged, so the holder that was read speaks for it, and what live clients
change meanwhile is never a finding. Rows without a lock, a tag or a strange version cost the scan
and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from recovery.findings import Finding, Kind, Young
from recovery.scan import newest_old_ms
from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Cell, Delete, Key, Row
from txn.protocol.context import Context
from txn.protocol.retire import Guarded, read_guarded
from txn.protocol.row import RowState, TransactionRow, is_row_key, read_rows
from txn.protocol.statuses import FINISHED, Status

BATCH = 200

Doomed = Callable[[TransactionRow], bool]
"""Whether repair will abort a holder without knowing its keys, which leaves its locks."""


def check_rows(
    context: Context,
    rows: Iterable[Row],
    *,
    grace_ms: int,
    retention_ms: int,
    doomed: Doomed,
    young: Young,
) -> Iterator[Finding]:
    """Yield the findings of rows of data tables, which may be stale by now. A lock or tag that is
    younger than the grace is not one, and is counted."""
    vacant_ms = newest_old_ms(context.clock.wall_ms(), retention_ms)
    items = (item for row in rows for item in list_guarded(row))
    suspects = (item for item in items if is_suspect(item) or is_vacant(item, vacant_ms))
    while batch := list(islice(suspects, BATCH)):
        holders = {item.holder for item in batch if is_row_key(item.holder)}
        found = read_rows(context, holders) if holders else {}
        now = read_guarded(context, [item.key for item in batch])
        now_ms = context.clock.wall_ms()
        for item in batch:
            if now[item.key] != item:
                continue
            judged = _judge_row(item, found.get(item.holder), doomed)
            yield from take_old(judged, now_ms, grace_ms, young)
            if is_vacant(item, vacant_ms):
                yield Finding(Kind.VACANT_KEY, None, item.key, {"newest": item.newest})


def take_old(
    judged: Iterable[tuple[int, Finding]], now_ms: int, grace_ms: int, young: Young
) -> Iterator[Finding]:
    """Yield what has been wrong since before the grace, and count the rest."""
    old_ms = newest_old_ms(now_ms, grace_ms)
    for since, finding in judged:
        if since <= old_ms:
            yield finding
        else:
            young.add(finding.kind, now_ms - since)


def list_guarded(row: Row) -> Iterator[Guarded]:
    """Yield the keys of a row that have a lock or a tag cell."""
    suffixes = (LOCK_SUFFIX, TAG_SUFFIX)
    keys = {
        key._replace(column=key.column.removesuffix(suffix))
        for key in row.cells
        for suffix in suffixes
        if key.column.endswith(suffix) and key.column != suffix
    }
    for key in sorted(keys):
        yield Guarded(key, row.cells.get(key), row.cells.get(key.lock), row.cells.get(key.tag))


def is_suspect(item: Guarded) -> bool:
    """Whether the key is other than a finished transaction leaves it."""
    return bool(item.holder or item.tagged) or is_foreign(item, None)


def is_vacant(item: Guarded, old_ms: int) -> bool:
    """Whether the key has no value, and nothing of it is newer than this."""
    is_free = not item.holder and not item.tagged
    return is_free and item.value is None and item.newest <= old_ms


def is_stale(item: Guarded, holder: TransactionRow | None) -> bool:
    """Whether the tag is nobody's any more: its key is free, or held by a transaction that has put
    nothing yet, or has another commit timestamp."""
    if holder is None:
        return True
    state = holder.state
    if state is RowState.DECIDED and holder.plan and item.tag:
        return holder.plan.timestamp != item.tag.timestamp
    return state is not RowState.UNREADABLE


def is_foreign(item: Guarded, holder: TransactionRow | None) -> bool:
    """Whether the newest version is none that a transaction has left. The tag's timestamp is that
    of the last commit on the key, which a delete leaves without a version."""
    state = None if holder is None else holder.state
    if state is RowState.UNREADABLE:
        return False
    version = item.value.timestamp if item.value else 0
    planned = _plan_writes(item.key, holder) if holder and state is RowState.DECIDED else None
    if planned is not None:
        return version not in planned
    return item.tag is not None and version not in (0, item.tag.timestamp)


def _plan_writes(key: Key, holder: TransactionRow) -> tuple[int, int] | None:
    """The versions that a key may have while a decided transaction is writing it; 0: none. Once
    all is put and clean its keys may be free, and others may have written them."""
    if holder.status is Status.CLEANING:
        return None
    assert holder.buffer is not None and holder.plan is not None
    for mutation, old in zip(holder.buffer.request.mutations, holder.plan.replaced, strict=True):
        if mutation.key == key:
            return old, 0 if isinstance(mutation, Delete) else holder.plan.timestamp
    return None


def _judge_row(
    item: Guarded, holder: TransactionRow | None, doomed: Doomed
) -> Iterator[tuple[int, Finding]]:
    """Yield what is wrong with a key, with the time since when; 0 where that does not matter."""
    key, tag = item.key, item.tag
    if item.lock and item.holder:
        yield from judge_lock(key, item.lock, key.lock, holder, doomed)
    if tag and tag.value:
        if not tag.value.isdigit():
            yield 0, Finding(Kind.FOREIGN_CELL, None, key.tag, make_facts(tag))
        elif is_stale(item, holder):
            yield tag.timestamp, Finding(Kind.STALE_TAG, None, key, make_facts(tag))
    if is_foreign(item, holder):
        yield 0, Finding(Kind.FOREIGN_VERSION, None, key, _versions(item, holder))


def judge_lock(
    key: Key, cell: Cell, lock: Key, holder: TransactionRow | None, doomed: Doomed
) -> Iterator[tuple[int, Finding]]:
    """Yield what is wrong with a lock of a key that is not free, with the time since when; 0 where
    that does not matter. holder: None where the cell names no transaction."""
    since = cell.timestamp
    if holder is None:
        yield 0, Finding(Kind.FOREIGN_CELL, None, lock, make_facts(cell))
    elif holder.elsewhere:
        yield 0, Finding(Kind.FOREIGN_LOCK, holder.row_key, key, {"since": since})
    elif holder.is_over or doomed(holder):
        facts = {"since": since, "status": str(holder.status) if holder.status else "no row"}
        yield since, Finding(Kind.ORPHAN_LOCK, holder.row_key, key, facts)
    elif holder.state is RowState.UNREADABLE and holder.said in FINISHED:
        # The rows of those that say that they are finished are not looked at while they are young.
        yield since, Finding(Kind.UNREADABLE, holder.row_key, key, {"cause": holder.cause})


def make_facts(cell: Cell) -> dict[str, object]:
    """Return what is told of a cell that the protocol never writes."""
    return {"value": cell.value, "timestamp": cell.timestamp}


def _versions(item: Guarded, holder: TransactionRow | None) -> dict[str, object]:
    decided = holder is not None and holder.state is RowState.DECIDED
    planned = _plan_writes(item.key, holder) if holder and decided else None
    last = item.tag.timestamp if item.tag else 0
    version = item.value.timestamp if item.value else 0
    return {"version": version, "expected": max(planned) if planned else last}
