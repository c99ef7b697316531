"""Find what crashed clients left behind, and finish or undo it with the protocol's own steps.

`check` never writes. `repair` reads again before it acts, and leaves alone what has changed. So a
finding may be old, several repairs may run at once, and clients may be at work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby, islice

from recovery.findings import (
    GRACE_MS,
    RETENTION_MS,
    Ages,
    CheckOptions,
    Finding,
    FindingResult,
    InGrace,
    Kind,
    LeftAlone,
    NothingToDo,
    Repaired,
    Result,
    Severity,
    find_alive_ms,
    judge,
    list_facts,
)
from recovery.purge import delete_cells, find_expired_marker, retire_keys
from recovery.scan import (
    BATCH,
    MARKERS,
    OnProgress,
    OnRow,
    find_transaction,
    list_rows,
    list_suspects,
)
from recovery.tables import check_counts, check_rows, is_stale
from txn.arguments import check_calls, check_fields
from txn.errors import AbortedError, CorruptRowError, InvalidRequestError, TableUnavailable
from txn.model import Cell, Edit, Key, Row
from txn.protocol.clocks import check_clock
from txn.protocol.context import Context, call_store, describe_table
from txn.protocol.protocols import protocol_key
from txn.protocol.ranges import stored_rows
from txn.protocol.recovery import (
    free_for_holder,
    list_decided_children,
    poison,
    roll_back,
    roll_forward,
)
from txn.protocol.retire import read_guarded
from txn.protocol.row import (
    FREE,
    LOST,
    RowState,
    TransactionRow,
    created_ms,
    decode_row,
    is_own,
    is_row_key,
    parent_of,
    read_rows,
)
from txn.protocol.statuses import Status
from txn.protocol.transaction import load_transaction
from txn.spans import Span

BATCHED = frozenset({Kind.EXPIRED, Kind.DEBRIS, Kind.EXPIRED_MARKER, Kind.VACANT_KEY})
OF_KEYS = {Kind.ORPHAN_LOCK, Kind.STALE_TAG, Kind.EXPIRED_MARKER, Kind.VACANT_KEY}
OF_ROWS = {Kind.UNDECIDED, Kind.DECIDED, Kind.ABORTING, Kind.ORPHAN_LOCK}
UNCHANGED = "it does not change, since a cell of it has a timestamp that the protocol never writes"
BRING_BACK = (
    "it waits for its table: enable it, or make it again with its families, repair, and drop it "
    "again if it is not wanted"
)


@check_calls
def check(
    context: Context,
    *,
    grace_ms: int = GRACE_MS,
    retention_ms: int = RETENTION_MS,
    scan: Collection[bytes] = (),
    on_row: OnRow = lambda table: None,
    young: InGrace | None = None,
    on_progress: OnProgress = lambda table, row: None,
) -> Iterator[Finding]:
    """Yield what crashed clients left: first in transaction rows, then in keys of scanned tables.

    grace_ms: how long a transaction must have been silent, an undecided one at least for its lock
    TTL; 0 takes every unfinished one.
    retention_ms: how long finished rows are kept; below LONGEST_REQUEST_MS only while no client is
    at work. scan: the data tables to read. young: counts unfinished items within the grace period.
    on_progress: gets the position now and then, even without rows; its exception ends the check.

    Memory is bounded, and nothing is written. Raises StoreError; InvalidRequestError: no table.
    """
    require_tables(context, scan)
    ages = Ages(grace_ms, retention_ms)
    options = CheckOptions(ages, on_row, InGrace() if young is None else young, on_progress)
    yield from check_transactions(context, Span(context.table), options)
    for span in list_data(context, scan):
        yield from check_data(context, span, options)
    if context.rules.locks_rows and scan:
        yield from check_counts(context, scan)


def require_tables(context: Context, scan: Collection[bytes]) -> None:
    for table in scan:
        describe_table(context, table)


def list_data(context: Context, scan: Collection[bytes]) -> Iterator[Span]:
    """Yield the spans of data: the tables to scan, and the markers of `once`."""
    if scan and context.table not in scan:
        yield Span(context.table, *MARKERS)
    yield from map(Span, dict.fromkeys(scan))


def check_transactions(context: Context, span: Span, options: CheckOptions) -> Iterator[Finding]:
    """Yield the findings in a part of the transaction table. Finished rows within the retention are
    skipped: see `list_suspects`."""

    @lru_cache(1)  # the parts of a transaction are adjacent
    def is_over(row_key: bytes) -> bool:
        return read_rows(context, [row_key])[row_key].is_over

    retention_ms = options.ages.retention_ms
    for row in list_suspects(context, span, retention_ms):
        options.on_progress(span.table, row.row)
        if not row.cells:
            continue
        options.on_row(span.table)
        if is_row_key(row.row):
            yield from _check_transaction(context, row, options, is_over)
            yield from find_future(context, row)
        elif not is_own(row.row):
            newest = max(cell.timestamp for cell in row.cells.values())
            facts = {"cells": len(row.cells), "newest": newest}
            yield Finding(Kind.FOREIGN_ROW, None, min(row.cells), facts)
        elif found := find_expired_marker(context, row, retention_ms):
            yield found


def check_data(context: Context, span: Span, options: CheckOptions) -> Iterator[Finding]:
    rows = (
        row
        for row in list_rows(context, span, options.on_row)
        if span.table != context.table or not is_row_key(row.row)
    )
    while some := list(islice(rows, BATCH)):
        for row in some:
            yield from find_future(context, row)
        yield from check_rows(context, some, options)
        options.on_progress(span.table, some[-1].row)


def find_future(context: Context, row: Row) -> Iterator[Finding]:
    """Yield the finding for a row with cells from the future, by this machine's clock. It names the
    cell furthest ahead, and their number. A transaction's row key counts as well: it has a time."""
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


@check_calls
def compact(
    context: Context, *, retention_ms: int = RETENTION_MS, tables: Collection[bytes] = ()
) -> None:
    """Drop the delete markers that no request can need any more, in the transaction table and these
    tables, unless the store does so by itself. Raises AbortedError: see `check_clock`."""
    check_clock(context)
    purge_before_ms = context.clock.wall_ms() - retention_ms
    for table in dict.fromkeys((context.table, *tables)):
        call_store(context, partial(context.store.compact, table, purge_before_ms))


def note_repair(context: Context) -> None:
    """Note that a repair of the whole database has come to its end, at the server's time."""
    edit = Edit(protocol_key(context.table, b"repair"), b"1", None)
    call_store(context, partial(context.store.write, [edit]))


def find_last_repair_ms(context: Context) -> int:
    """Return the time of the last such note; 0: there is none."""
    key = protocol_key(context.table, b"repair")
    cell = call_store(context, partial(context.store.read, [key]))[key]
    return cell.timestamp if cell else 0


@check_calls
def repair(context: Context, finding: Finding) -> Result:
    """Repair one finding, and check that it is gone. The result is LeftAlone if it is still there,
    if its table is gone or disabled, or if this machine's clock is wrong.

    Raises StoreError if the store does not answer; then the repair can be run again.
    """
    return _repair_batch(context, finding.kind, [finding])[0]


def handle_findings(
    context: Context, findings: Iterable[Finding], *, do_repair: bool
) -> Iterator[FindingResult]:
    """Yield findings as they come, with the results of their repair if it is wanted."""
    return repair_all(context, findings) if do_repair else ((each, None) for each in findings)


@check_calls
def repair_all(context: Context, findings: Iterable[Finding]) -> Iterator[tuple[Finding, Result]]:
    """Repair findings as they come, and yield each with its result. Deletes are batched."""
    for kind, alike in groupby(findings, lambda finding: finding.kind):
        while part := list(islice(alike, BATCH if kind in BATCHED else 1)):
            yield from zip(part, _repair_batch(context, kind, part), strict=True)


def _repair_batch(context: Context, kind: Kind, findings: Sequence[Finding]) -> list[Result]:
    """Repair findings of one kind. If a table is gone, leave alone only those that need it."""
    for each in findings:
        check_fields(each)
        has_row = is_row_key(each.transaction or b"") or kind not in OF_ROWS
        if not has_row or (each.key is None and kind in OF_KEYS):
            raise InvalidRequestError("not a finding of `check`", finding=each)
    try:
        if kind.severity is not Severity.REPORT_ONLY:
            check_clock(context)  # the findings were dated by it
        match kind:
            case Kind.EXPIRED | Kind.DEBRIS:
                return _delete_rows(context, findings)
            case Kind.EXPIRED_MARKER | Kind.VACANT_KEY:
                return _retire_keys(context, findings)
            case Kind.UNDECIDED | Kind.DECIDED | Kind.ABORTING:
                return [_end_transaction(context, finding) for finding in findings]
            case Kind.ORPHAN_LOCK:
                return [_free_lock(context, finding) for finding in findings]
            case Kind.STALE_TAG:
                return [_empty_tag(context, finding) for finding in findings]
            case _:
                assert kind.severity is Severity.REPORT_ONLY
                return [LeftAlone(kind.remedy)] * len(findings)
    except AbortedError as error:
        return [LeftAlone(str(error))] * len(findings)
    except TableUnavailable as error:
        if len(findings) == 1:
            return [LeftAlone(f"{error}: {BRING_BACK}")]
        return [repair(context, finding) for finding in findings]


def _check_transaction(
    context: Context, row: Row, options: CheckOptions, is_over: Callable[[bytes], bool]
) -> Iterator[Finding]:
    """Judge a row, and again after a fresh read, since live clients may be ahead of the scan. While
    a transaction is open, the rows of its finished parts stay: they alone show that those are over.

    is_over: returns whether a transaction is over.
    """
    seen = decode_row(row)
    finding = judge(seen, context.clock.wall_ms(), *options.ages)
    if seen.state is RowState.FINISHED:  # nothing can change it
        whole = parent_of(row.row)
        yield from [finding] if finding and (whole is None or is_over(whole)) else []
    elif finding or seen.state is not RowState.DEBRIS:
        now, now_ms = find_transaction(context, row.row), context.clock.wall_ms()
        if now is None:
            return
        finding, state = judge(now, now_ms, *options.ages), now.state
        if finding:
            yield _find_lost_part(context, now, finding) or finding
        elif state not in (RowState.FINISHED, RowState.DEBRIS):
            alive_ms = find_alive_ms(now, now_ms, options.ages.grace_ms)
            options.young.add(Kind[state.name], now_ms - alive_ms)


def _find_lost_part(context: Context, row: TransactionRow, found: Finding) -> Finding | None:
    """Return the finding for a decided transaction that counts a part which is lost."""
    is_open = row.state is RowState.DECIDED and row.status is Status.ASSERTED
    parts = list_decided_children(context, row) if is_open and row.parts else ()
    for lost in (part for part in parts if part.cause == LOST):
        facts = {**found.facts, "part": lost.row_key, "cause": f"part: {LOST}"}
        return Finding(Kind.UNREADABLE, row.row_key, None, facts)
    return None


def _end_transaction(context: Context, finding: Finding) -> Result:
    """Finish or undo a transaction. An undecided one must be as found: its owner may be back."""
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
    except CorruptRowError as error:  # one of its parts
        return LeftAlone(str(error))
    if t.unread is not None:
        return LeftAlone(str(t.unread))
    if t.status is None:
        return NothingToDo("its row is gone")
    if not t.status.is_finished:
        return NothingToDo(f"its owner took it to {t.status} meanwhile")
    now = read_rows(context, [row.row_key])[row.row_key]
    if not now.is_over:
        return LeftAlone(f"{UNCHANGED}: it is at {now.status} since {now.status_at}")
    return Repaired("rolled forward" if state is RowState.DECIDED else "rolled back")


def _is_as_found(row: TransactionRow, finding: Finding) -> bool:
    return list_facts(row).items() <= finding.facts.items()


def _delete_rows(context: Context, findings: Sequence[Finding]) -> list[Result]:
    names = sorted({finding.transaction or b"" for finding in findings})
    rows: dict[bytes, Row] = {}
    for _, alike in groupby(names, lambda name: name.partition(b"transaction.")[0]):
        some = list(alike)  # of one bucket: behind it are rows to keep
        stored = stored_rows(context, Span(context.table, some[0], some[-1] + b"\0"))
        rows |= {row.row: row for row in stored}
    results: list[Result] = []
    same: list[Row] = []
    for finding in findings:
        cells = rows.get(finding.transaction or b"")
        if cells is None:
            results.append(NothingToDo("the row is gone"))
            continue
        row = decode_row(cells)
        is_still = row.state is RowState.DEBRIS and finding.facts.get("newest") == row.newest
        if finding.kind is Kind.EXPIRED:
            is_still = row.state is RowState.FINISHED and _is_as_found(row, finding)
        same += [cells] if is_still else []
        results.append(Repaired("deleted") if is_still else NothingToDo("the row has changed"))
    delete_cells(context, same)
    return results


def _retire_keys(context: Context, findings: Sequence[Finding]) -> list[Result]:
    """Retire keys under their locks; those of expired markers with their values."""
    wanted: dict[Key, Cell | None] = {}
    newest = 0
    for finding in findings:
        value, since, last = (finding.facts.get(name) for name in ("value", "since", "newest"))
        assert finding.key is not None
        cell = isinstance(value, bytes) and isinstance(since, int) and Cell(value, since)
        wanted[finding.key] = cell or None
        newest = max(newest, last if isinstance(last, int) else 0)
    results = retire_keys(context, wanted, newest)
    return [results[finding.key] for finding in findings if finding.key is not None]


def _free_lock(context: Context, finding: Finding) -> Result:
    assert finding.transaction is not None and finding.key is not None
    found = read_guarded(context, [finding.key])[finding.key]
    if found.lock is None or found.holder != finding.transaction:
        return NothingToDo("the lock is free, or another's")
    row = read_rows(context, [finding.transaction])[finding.transaction]
    if not row.is_over:
        return NothingToDo("its holder is not finished")
    if row.state is RowState.DEBRIS and not poison(context, load_transaction(context, row)):
        return NothingToDo("its holder's row has arrived")
    free_for_holder(context, finding.transaction, {finding.key.lock: found.lock}, row.owner)
    now = read_guarded(context, [finding.key])[finding.key]
    return LeftAlone(UNCHANGED) if now.lock == found.lock else Repaired("freed")


def _empty_tag(context: Context, finding: Finding) -> Result:
    assert finding.key is not None
    found = read_guarded(context, [finding.key])[finding.key]
    seen = (finding.facts.get("value"), finding.facts.get("timestamp"))
    if found.tag is None or found.tag != seen:
        return NothingToDo("the tag has changed")
    holder = found.holder if is_row_key(found.holder) else None
    row = read_rows(context, [holder])[holder] if holder else None
    if not is_stale(found, row):
        return NothingToDo("the tag is its holder's")
    edit = Edit(finding.key.tag, FREE, found.tag.timestamp)
    call_store(context, lambda: context.store.write([edit], durable=False))
    now = read_guarded(context, [finding.key])[finding.key]
    return LeftAlone(UNCHANGED) if now.tag == found.tag else Repaired("emptied")
