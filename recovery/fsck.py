"""Find what crashed clients left behind, and finish or undo it, with the protocol's own steps.

`check` never writes. `repair` acts on one finding and looks again first, so a finding may be old,
repairs may run twice at once, and clients may be at work: whatever has moved on is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby, islice
from typing import NamedTuple, assert_never

from recovery.findings import (
    Finding,
    Kind,
    LeftAlone,
    NothingToDo,
    Repaired,
    Result,
    Severity,
    Young,
)
from recovery.markers import find_expired_marker, retire_keys
from recovery.scan import (
    MARKERS,
    Between,
    Looked,
    find_transaction,
    list_rows,
    list_suspects,
    newest_old_ms,
)
from recovery.tables import BATCH, check_rows, is_stale
from recovery.units import check_counts, check_units
from txn.errors import AbortedError, CorruptRowError, TableUnavailable
from txn.model import Cell, Edit, Key, Row
from txn.protocol.clocks import check_clock
from txn.protocol.context import Context, call_store, describe_table
from txn.protocol.ranges import stored_rows
from txn.protocol.recovery import free_for_holder, roll_back, roll_forward
from txn.protocol.retire import read_guarded
from txn.protocol.row import (
    FREE,
    RowState,
    TransactionRow,
    created_ms,
    decode_row,
    is_own,
    is_row_key,
    last_timestamp,
    parent_of,
    read_rows,
)
from txn.protocol.statuses import Status
from txn.protocol.transaction import Transaction, load_transaction
from txn.spans import Span

GRACE_MS = 60_000
RETENTION_MS = 24 * 3_600_000
LONGEST_REQUEST_MS = 3_600_000
"""For how long a request may be under way: a gateway repeats one for 20 minutes, and its sender
may have been stopped. A shorter retention is right only where no client is at work."""
CROWDS = frozenset({Kind.EXPIRED, Kind.DEBRIS, Kind.EXPIRED_MARKER, Kind.VACANT_KEY})
ENDS = (b"status", Status.COMPLETE.at, Status.ABORTED.at)
"""The cells that tell that a transaction is over."""
UNCHANGED = "it does not change, since a cell of it has a timestamp that the protocol never writes"
BRING_BACK = (
    "it waits for its table: enable it, or make it again with its families, repair, and drop it "
    "again if it is not wanted"
)


class Ages(NamedTuple):
    """How long a transaction must have been silent, and for how long finished rows are kept."""

    grace_ms: int = GRACE_MS
    retention_ms: int = RETENTION_MS


def check(
    context: Context,
    *,
    grace_ms: int = GRACE_MS,
    retention_ms: int = RETENTION_MS,
    scan: Collection[bytes] = (),
    looked: Looked = lambda table: None,
    young: Young | None = None,
    between: Between = lambda table, row: None,
) -> Iterator[Finding]:
    """Yield what a crash left: first transaction rows, then keys of the tables to scan.

    grace_ms: how long a transaction must have been silent; 0 takes every unfinished one.
    retention_ms: how long finished rows are kept; below LONGEST_REQUEST_MS only where no client is
    at work.
    young: counts what is unfinished and no finding, since it is younger than the grace.
    between: is told now and then how far the check has come, also while no row is looked at; what
    it raises ends the check.
    Memory is bounded, and nothing is written. Raises StoreError, or InvalidRequestError for an
    absent table.
    """
    young = Young() if young is None else young
    require_tables(context, scan)
    ages = Ages(grace_ms, retention_ms)
    yield from check_transactions(
        context, Span(context.table), ages, looked, young, between=between
    )
    for span in list_data(context, scan):
        yield from check_data(context, span, ages, looked, young, between=between)
    if context.rules.locks_rows and scan:
        yield from check_counts(context, scan)


def require_tables(context: Context, scan: Collection[bytes]) -> None:
    """Raise InvalidRequestError for an absent table."""
    for table in scan:
        describe_table(context, table)


def list_data(context: Context, scan: Collection[bytes]) -> Iterator[Span]:
    """Yield what is data: the tables to scan, and with them the markers of `once`."""
    if scan and context.table not in scan:
        yield Span(context.table, *MARKERS)
    yield from map(Span, dict.fromkeys(scan))


def check_transactions(
    context: Context,
    span: Span,
    ages: Ages,
    looked: Looked,
    young: Young,
    *,
    between: Between = lambda table, row: None,
) -> Iterator[Finding]:
    """Yield what `check` finds in a part of the transaction table. Finished rows that are younger
    than the retention are not looked at: see `list_suspects`."""
    is_over = lru_cache(1)(partial(_is_over, context))  # parts stand behind each other
    for row in list_suspects(context, span, ages.retention_ms, looked, between):
        if is_row_key(row.row):
            yield from _check_row(context, row, ages, young, is_over)
            yield from find_future(context, row)
        elif not is_own(row.row):
            newest = max(cell.timestamp for cell in row.cells.values())
            facts = {"cells": len(row.cells), "newest": newest}
            yield Finding(Kind.FOREIGN_ROW, None, min(row.cells), facts)
        elif found := find_expired_marker(context, row, ages.retention_ms):
            yield found


def check_data(
    context: Context,
    span: Span,
    ages: Ages,
    looked: Looked,
    young: Young,
    *,
    between: Between = lambda table, row: None,
) -> Iterator[Finding]:
    """Yield what `check` finds in a part of a table of data."""
    look = check_units if context.rules.locks_rows else check_rows
    rows = (
        row
        for row in list_rows(context, span, looked)
        if span.table != context.table or not is_row_key(row.row)
    )
    while some := list(islice(rows, BATCH)):
        for row in some:
            yield from find_future(context, row)
        yield from look(
            context,
            some,
            grace_ms=ages.grace_ms,
            retention_ms=ages.retention_ms,
            doomed=lambda holder: _aborts_blindly(context, holder, ages.grace_ms),
            young=young,
        )
        between(span.table, some[-1].row)


def find_future(context: Context, row: Row) -> Iterator[Finding]:
    """Yield the finding of a row with cells from the future, by this machine's clock: the one that
    lies furthest ahead, and how many there are. Of a transaction the row key has a time as well."""
    now_ms = context.clock.wall_ms()
    times = {key: cell.timestamp for key, cell in row.cells.items() if cell.timestamp > now_ms}
    last = max(times, key=times.__getitem__, default=None)
    until_ms = times[last] if last else 0
    transaction = row.row if is_row_key(row.row) else None
    if transaction is not None:
        last, until_ms = None, max(until_ms, created_ms(transaction))
    if until_ms > now_ms + context.policy.skew_ms:
        facts = {"until": until_ms, "cells": len(times)}
        yield Finding(Kind.FUTURE_CELL, transaction, last, facts)


def compact(
    context: Context, *, retention_ms: int = RETENTION_MS, tables: Collection[bytes] = ()
) -> None:
    """Drop the delete markers that no request can need any more, in the transaction table and in
    these. A store that does so by itself is left to it. AbortedError: see `check_clock`."""
    check_clock(context)
    purge_before_ms = context.clock.wall_ms() - retention_ms
    for table in dict.fromkeys((context.table, *tables)):
        call_store(context, partial(context.store.compact, table, purge_before_ms))


def judge(
    row: TransactionRow, now_ms: int, grace_ms: int = GRACE_MS, retention_ms: int = RETENTION_MS
) -> Finding | None:
    """Return what is to be said of a transaction row at this time, or None if nothing is."""
    silent_ms, old_ms = newest_old_ms(now_ms, grace_ms), newest_old_ms(now_ms, retention_ms)
    alive_at = _alive_at(row, now_ms, grace_ms)
    match row.state:
        case RowState.FINISHED:
            return _since(Kind.EXPIRED, row, row.since <= old_ms, _list_facts(row))
        case RowState.DEBRIS:
            return _since(Kind.DEBRIS, row, row.newest <= old_ms, {"newest": row.newest})
        case RowState.UNREADABLE:
            facts = _list_facts(row) | {"status": str(row.said), "cause": row.cause}
            return _since(Kind.UNREADABLE, row, alive_at <= silent_ms, facts)
        case RowState.UNDECIDED | RowState.DECIDED | RowState.ABORTING as state:
            return _since(Kind(state.value), row, alive_at <= silent_ms, _list_facts(row))
        case never:
            assert_never(never)


def repair(context: Context, finding: Finding) -> Result:
    """Act on one finding, and look whether it is no more. It is LeftAlone where it stays, as is one
    whose table is gone or disabled, and all while this machine's clock is wrong.

    Raises StoreError where the store does not answer; then anybody can repair it again.
    """
    return _repair_available(context, finding.kind, [finding])[0]


def repair_all(context: Context, findings: Iterable[Finding]) -> Iterator[tuple[Finding, Result]]:
    """Act on findings as they come; yield each with its result. What comes in crowds, rows to
    delete and keys to retire, is done some hundreds at a time, which saves requests."""
    for kind, alike in groupby(findings, lambda finding: finding.kind):
        while part := list(islice(alike, BATCH if kind in CROWDS else 1)):
            yield from zip(part, _repair_available(context, kind, part), strict=True)


def _repair_available(context: Context, kind: Kind, findings: Sequence[Finding]) -> list[Result]:
    """Repair them; where a table is gone, leave alone those that need it, and no others."""
    try:
        if kind.severity is not Severity.REPORT_ONLY:
            check_clock(context)  # by which they were found to be old
        return _repair(context, kind, findings)
    except AbortedError as error:
        return [LeftAlone(str(error))] * len(findings)
    except TableUnavailable as error:
        if len(findings) == 1:
            return [LeftAlone(f"{error}: {BRING_BACK}")]
        return [repair(context, finding) for finding in findings]


def _repair(context: Context, kind: Kind, findings: Sequence[Finding]) -> list[Result]:
    match kind:
        case Kind.UNDECIDED | Kind.DECIDED | Kind.ABORTING:
            return [_end(context, finding) for finding in findings]
        case Kind.EXPIRED | Kind.DEBRIS:
            return _delete(context, findings)
        case Kind.ORPHAN_LOCK:
            return [_free(context, finding) for finding in findings]
        case Kind.STALE_TAG:
            return [_empty(context, finding) for finding in findings]
        case Kind.EXPIRED_MARKER | Kind.VACANT_KEY:
            return _retire(context, findings)
        case (
            Kind.UNREADABLE
            | Kind.FOREIGN_LOCK
            | Kind.FOREIGN_CELL
            | Kind.FOREIGN_VERSION
            | Kind.FOREIGN_ROW
            | Kind.FUTURE_CELL
        ):
            return [LeftAlone(kind.remedy)] * len(findings)
        case _:
            assert_never(kind)


def _aborts_blindly(context: Context, holder: TransactionRow, grace_ms: int) -> bool:
    """Whether repair aborts the holder without knowing which locks it has."""
    found = judge(holder, context.clock.wall_ms(), grace_ms)
    return (
        found is not None
        and found.kind in (Kind.UNDECIDED, Kind.ABORTING)
        and holder.buffer is None
    )


def _check_row(
    context: Context, row: Row, ages: Ages, young: Young, is_over: Callable[[bytes], bool]
) -> Iterator[Finding]:
    """Judge a row, and again as it is now: the scan may be behind what live clients do. That of a
    finished part stays while its transaction is under way: it alone tells that the part is over.

    is_over: whether a transaction is.
    """
    seen = decode_row(row)
    finding = judge(seen, context.clock.wall_ms(), *ages)
    if seen.state is RowState.FINISHED:  # which nothing can change
        whole = parent_of(row.row)
        yield from [finding] if finding and (whole is None or is_over(whole)) else []
    elif finding or seen.state is not RowState.DEBRIS:
        now, now_ms = find_transaction(context, row.row), context.clock.wall_ms()
        if now is None:
            return
        finding, state = judge(now, now_ms, *ages), now.state
        if finding:
            yield finding
        elif state not in (RowState.FINISHED, RowState.DEBRIS):
            young.add(Kind(state.value), now_ms - _alive_at(now, now_ms, ages.grace_ms))


def _is_over(context: Context, row_key: bytes) -> bool:
    return read_rows(context, [row_key])[row_key].is_over


def _alive_at(row: TransactionRow, now_ms: int, grace_ms: int) -> int:
    """Return when anything happened to an unfinished row that shows its owner to be alive."""
    heartbeat = (
        row.heartbeat if row.heartbeat <= now_ms + grace_ms else 0
    )  # a client's clock: it may be wrong
    newest = row.newest if row.state is RowState.UNREADABLE else 0
    return max(row.since, heartbeat, newest)


def _since(
    kind: Kind, row: TransactionRow, long_enough: bool, facts: dict[str, object]
) -> Finding | None:
    return Finding(kind, row.row_key, None, facts) if long_enough else None


def _end(context: Context, finding: Finding) -> Result:
    """Finish or undo a transaction. One that was undecided must be exactly as it was found: its
    owner may have come back to life."""
    assert finding.transaction is not None
    row = read_rows(context, [finding.transaction])[finding.transaction]
    state = row.state
    if row.is_over:
        return NothingToDo("it is finished")
    if state is RowState.UNREADABLE:
        return LeftAlone(str(row.cause))
    was_undecided = finding.kind is Kind.UNDECIDED
    if state is not RowState.ABORTING and was_undecided and not _is_as_found(row, finding):
        return NothingToDo("its owner has moved on")
    t = load_transaction(context, row)
    try:
        if state is RowState.DECIDED:
            roll_forward(context, [t])
        else:
            roll_back(context, [t], lambda _: "fsck: its owner had stopped")
    except CorruptRowError as error:  # a part of it does not decode
        return LeftAlone(str(error))
    return _look_at_end(context, row, t)


def _look_at_end(context: Context, row: TransactionRow, t: Transaction) -> Result:
    """Return whether a transaction that was found in a row, and was taken to its end, has ended."""
    if t.unread is not None:
        return LeftAlone(str(t.unread))
    if t.status is not None and not t.status.is_finished:
        return NothingToDo(f"its owner took it to {t.status} meanwhile")
    now = read_rows(context, [row.row_key])[row.row_key]
    if not now.is_over:
        return LeftAlone(f"{UNCHANGED}: it is at {now.status} since {now.status_at}")
    return Repaired("rolled forward" if row.state is RowState.DECIDED else "rolled back")


def _is_as_found(row: TransactionRow, finding: Finding) -> bool:
    return _list_facts(row).items() <= finding.facts.items()


def _list_facts(row: TransactionRow) -> dict[str, object]:
    return {"status": str(row.status), "since": row.status_at, "beat": row.heartbeat}


def _is_same(cell: Cell, finding: Finding) -> bool:
    facts = finding.facts
    return (cell.value, cell.timestamp) == (facts.get("value"), facts.get("timestamp"))


def _delete(context: Context, findings: Sequence[Finding]) -> list[Result]:
    names = sorted({finding.transaction or b"" for finding in findings})
    rows: dict[bytes, Row] = {}
    for _, alike in groupby(names, lambda name: name.partition(b"transaction.")[0]):
        some = list(alike)  # of one bucket: behind them are those that stay
        stored = stored_rows(context, Span(context.table, some[0], some[-1] + b"\0"))
        rows |= {row.row: row for row in stored}
    results: list[Result] = []
    same: list[Row] = []
    for finding in findings:
        cells = rows.get(finding.transaction or b"")
        if cells is None:
            results.append(NothingToDo("the row is gone"))
        elif not _is_still(decode_row(cells), finding):
            results.append(NothingToDo("the row has changed"))
        else:
            same.append(cells)
            results.append(Repaired("deleted"))
    delete_cells(context, same)
    return results


def _is_still(row: TransactionRow, finding: Finding) -> bool:
    if finding.kind is Kind.EXPIRED:
        return row.state is RowState.FINISHED and _is_as_found(row, finding)
    return row.state is RowState.DEBRIS and finding.facts.get("newest") == row.newest


def _retire(context: Context, findings: Sequence[Finding]) -> list[Result]:
    """Retire keys, those of expired markers with their values, under their locks."""
    wanted: dict[Key, Cell | None] = {}
    newest = 0
    for finding in findings:
        value, since, last = (finding.facts.get(name) for name in ("value", "since", "newest"))
        assert finding.key is not None and isinstance(last, int)
        cell = isinstance(value, bytes) and isinstance(since, int) and Cell(value, since)
        wanted[finding.key] = cell or None
        newest = max(newest, last)
    results = retire_keys(context, wanted, newest)
    return [results[finding.key] for finding in findings if finding.key is not None]


def delete_cells(context: Context, rows: Iterable[Row]) -> None:
    """Delete the cells of rows, so that what comes later stays, and what is late does not. A crash
    in between leaves no row that tells of a decision and not of its end: each goes at once, or what
    tells of its end goes last."""
    cells = [item for row in rows for item in row.cells.items()]
    edits = [Edit(key, None, last_timestamp(context.rules, key, cell)) for key, cell in cells]
    by_row = "row_mutations" in context.store.features
    ends = [edit for edit in edits if not by_row and edit.key.column in ENDS]
    others = [edit for edit in edits if by_row or edit.key.column not in ENDS]
    for some in filter(None, (others, ends)):
        call_store(context, partial(context.store.write, some, durable=False, by_row=by_row))


def _free(context: Context, finding: Finding) -> Result:
    assert finding.transaction is not None and finding.key is not None
    found = read_guarded(context, [finding.key])[finding.key]
    if found.lock is None or found.holder != finding.transaction:
        return NothingToDo("the lock is free, or another's")
    if not read_rows(context, [finding.transaction])[finding.transaction].is_over:
        return NothingToDo("its holder is not finished")
    free_for_holder(context, finding.transaction, {finding.key.lock: found.lock})
    now = read_guarded(context, [finding.key])[finding.key]
    return LeftAlone(UNCHANGED) if now.lock == found.lock else Repaired("freed")


def _empty(context: Context, finding: Finding) -> Result:
    assert finding.key is not None
    found = read_guarded(context, [finding.key])[finding.key]
    if found.tag is None or not _is_same(found.tag, finding):
        return NothingToDo("the tag has changed")
    holder = found.holder if is_row_key(found.holder) else None
    row = read_rows(context, [holder])[holder] if holder else None
    if not is_stale(found, row):
        return NothingToDo("the tag is its holder's")
    edit = Edit(finding.key.tag, FREE, found.tag.timestamp)
    call_store(context, lambda: context.store.write([edit], durable=False))
    now = read_guarded(context, [finding.key])[finding.key]
    return LeftAlone(UNCHANGED) if now.tag == found.tag else Repaired("emptied")
