"""Explain one transaction to a person: its request, its progress, and what fsck does about it.

The row is read before the data cells, which may be newer if it is running. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice, pairwise
from typing import TypeVar, assert_never

from recovery.bounds import Budget, ReadLimits
from recovery.findings import GRACE_MS, RETENTION_MS, Finding, Kind, judge
from recovery.scan import STATUS, find_transaction
from txn.arguments import check_calls
from txn.assertions import Assertion, holds, list_keys
from txn.errors import CorruptRowError, TableUnavailable
from txn.model import Cell, Key, Mutation, Row
from txn.protocol.codec import Marker, decode_marker
from txn.protocol.context import Context, call_store
from txn.protocol.locks import holder_of
from txn.protocol.ranges import stored_rows
from txn.protocol.retire import read_guarded
from txn.protocol.row import (
    FAMILY,
    RowState,
    TransactionRow,
    child_range,
    is_row_key,
    marker_key,
    parent_of,
    read_rows,
)
from txn.protocol.statuses import Status
from txn.protocol.transaction import load_transaction
from txn.request import Request
from txn.spans import Span
from txn.text import LONGEST_REASON, assertion_text

T = TypeVar("T")
Cells = Mapping[Key, Cell | None]

VERSIONS = 10  # of a key, among which to find the replaced one
COUNTS = (2, 4, VERSIONS)  # versions read in each attempt to find an old one; each may be large
LIMITS = ReadLimits(rows=1_000, bytes_=64_000_000, ms=30_000)
"""The limits of reading a transaction's keys: there may be 100,000, with values of any size."""


@dataclass(frozen=True, slots=True)
class StatusTime:
    """A status of a row: when it began, by the server's time, and how long (ms) after the last."""

    status: Status
    since: int
    after_ms: int | None


class Unseen(Enum):
    """Why an old version is not known. NOT_READ: a limit was reached, or its table does not answer.
    NOT_KEPT: the store has dropped it, or a deletion hides it."""

    NOT_READ = "not read"
    NOT_KEPT = "not kept"
    NOT_AMONG = f"not among the newest {VERSIONS}"


@dataclass(frozen=True, slots=True)
class ValueChange:
    """What a mutation does to its key.

    new: the value; None for a delete. replaced: the timestamp of the replaced version, 0 if there
    was none; None before the decision. old: that version; before the decision the newest one.
    unseen: why `old` is not known although there may be one. held: whether its lock is held now.
    """

    key: Key
    new: bytes | None
    replaced: int | None
    old: Cell | None
    unseen: Unseen | None
    held: bool


class AssertionVerdict(Enum):
    """What is known of an assertion. HELD: the transaction is committed. FAILED: it was aborted for
    this. HOLDS, FAILS: it is undecided; this is the result on the present cells, which may change.
    UNKNOWN: it was aborted for another reason, or its cells were not read."""

    HELD = "held"
    FAILED = "failed"
    HOLDS = "holds now"
    FAILS = "fails now"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A transaction row and what the data cells show of it. Times are in ms since the epoch.

    request: empty if the row has none. marker: the record of its token. verdicts: one for each
    assertion. keys_read: the number of keys, from the first, whose cells were read (or asked for,
    if a table is gone). held: which of these it has locked now. locked: how many it locks in all;
    it may validate others. part_rows: the number of rows of parts, or of those counted; None: it
    has no parts. first_part: one of them. finding: what fsck finds; None: nothing to repair yet.
    """

    row: TransactionRow
    request: Request
    statuses: tuple[StatusTime, ...]
    marker: Marker | None
    changes: tuple[ValueChange, ...]
    verdicts: tuple[AssertionVerdict, ...]
    keys_read: int
    held: tuple[Key, ...]
    locked: int
    part_rows: int | None
    first_part: bytes | None
    finding: Finding | None

    @property
    def whole(self) -> bytes | None:
        return parent_of(self.row.row_key)

    @property
    def advice(self) -> str:
        if self.finding is not None:
            return f"{self.finding.kind.meaning}: {self.finding.kind.remedy}"
        match self.row.state:
            case RowState.FINISHED | RowState.DEBRIS:
                return "nothing until the retention has passed; then it deletes the row"
            case RowState.UNREADABLE:
                return "nothing: it reports the row once the grace has passed"
            case RowState.UNDECIDED | RowState.DECIDED | RowState.ABORTING:
                more = " and its lock TTL" if self.row.state is RowState.UNDECIDED else ""
                remedy = Kind[self.row.state.name].remedy
                return f"nothing within the grace{more}; after it: {remedy}"
            case _:
                assert_never(self.row.state)


@check_calls
def explain(
    context: Context,
    row_key: bytes,
    *,
    grace_ms: int = GRACE_MS,
    retention_ms: int = RETENTION_MS,
    limits: ReadLimits = LIMITS,
    most_parts: int | None = None,
) -> Explanation | None:
    """Return the explanation of a transaction, or None if it has no row. limits: of reading its
    keys; most_parts: the most rows of parts to count, of up to 100,000."""
    row = find_transaction(context, row_key)
    if row is None:
        return None
    request = row.buffer.request if row.buffer else Request(())
    keys = request.keys
    budget = Budget(context.clock, limits)
    keys_read, data = _read_keys(context, keys[: limits.rows], budget)
    locks = {key: context.rules.lock_of(key) for key in keys[:keys_read]}
    held = tuple(key for key, lock in locks.items() if holder_of(lock, data.get(lock)) == row_key)
    parts: list[bytes] = []
    if row.parts is not None:  # the rest of their rows is not read
        span = Span(context.table, *child_range(row_key))
        rows = stored_rows(context, span, cells=[(FAMILY, STATUS)])
        parts = [part.row for part in islice(rows, most_parts)]
    marker = None  # which the request writes for its token
    written = {m.key: m.value for m in request.mutations if isinstance(m, Mutation)}
    if (value := written.get(marker_key(context.table, request.once or b""))) is not None:
        with suppress(CorruptRowError):
            marker = decode_marker(value)
    old = _find_old(context, row, request, data, budget)
    replaced = _list_replaced(row, request)
    changes = []
    for each in request.mutations:
        cell = old.get(each.key)
        seen, unseen = (None, cell) if isinstance(cell, Unseen) else (cell, None)
        at, is_held = replaced.get(each.key), each.key in held
        changes.append(ValueChange(each.key, each.value, at, seen, unseen, is_held))
    return Explanation(
        row,
        request,
        statuses=list_status_times(row),
        marker=marker,
        changes=tuple(changes),
        verdicts=_judge_assertions(row, request.assertions, data),
        keys_read=keys_read,
        held=held,
        locked=len(load_transaction(context, row).taken_keys),
        part_rows=None if row.parts is None else len(parts),
        first_part=parts[0] if parts else None,
        finding=judge(row, context.clock.wall_ms(), grace_ms, retention_ms),
    )


def _read_keys(context: Context, keys: Sequence[Key], budget: Budget) -> tuple[int, Cells]:
    """Return the number of keys read, and their cells with those of their locks."""
    lock_of = context.rules.lock_of
    found: dict[Key, Cell | None] = {}
    number = 0
    for some in budget.divide(keys):
        if budget.over:
            break
        cells = dict.fromkeys(cell for key in some for cell in (key, lock_of(key)))
        read = read_available(context, cells, context.store.read)
        for key, cell in read.items():
            _spend(budget, key, [cell] if cell else ())
        found |= read
        number += len(some)
    return number, found


def _spend(budget: Budget, key: Key, cells: Sequence[Cell]) -> None:
    for cell in cells:
        budget.spend(Row(key.row, {key: cell}), again=True)  # the caller counts keys


def read_available(
    context: Context, keys: Collection[Key], read: Callable[[Collection[Key]], Mapping[Key, T]]
) -> dict[Key, T]:
    """Return what `read` returns, table by table, without unavailable tables."""
    found: dict[Key, T] = {}
    for table in dict.fromkeys(key.table for key in keys):
        wanted = [key for key in keys if key.table == table]
        with suppress(TableUnavailable):
            found |= call_store(context, partial(read, wanted))
    return found


def _judge_assertions(
    row: TransactionRow, assertions: Sequence[Assertion], data: Cells
) -> tuple[AssertionVerdict, ...]:
    if row.status is None:
        return (AssertionVerdict.UNKNOWN,) * len(assertions)
    if row.status.is_decided:
        return (AssertionVerdict.HELD,) * len(assertions)
    if row.status.is_undecided:
        return tuple(_judge_now(assertion, data) for assertion in assertions)
    blamed = next((a for a in assertions if _is_blamed(a, row.reason or "")), None)
    verdicts = {True: AssertionVerdict.FAILED, False: AssertionVerdict.UNKNOWN}
    return tuple(verdicts[each is blamed] for each in assertions)


def _judge_now(assertion: Assertion, data: Cells) -> AssertionVerdict:
    if not all(key in data for key in list_keys(assertion)):
        return AssertionVerdict.UNKNOWN
    return AssertionVerdict.HOLDS if holds(assertion, data) else AssertionVerdict.FAILS


def _is_blamed(assertion: Assertion, reason: str) -> bool:
    """Return True if this assertion caused the abort: see `reason_text`, which cuts it."""
    said = f"assertion failed: assertion {assertion_text(assertion)}, seen "
    return reason.startswith(said) or f"{said[:LONGEST_REASON]}…" == reason


def read_holders(
    context: Context, keys: Collection[Key]
) -> dict[Key, tuple[bytes, TransactionRow | None]]:
    """Return the holder of each key that is locked, and its row. None: it is no transaction."""
    found = read_guarded(context, keys).items()
    holders = {key: guarded.holder for key, guarded in found if guarded.holder}
    rows = read_rows(context, {each for each in holders.values() if is_row_key(each)})
    return {key: (holder, rows.get(holder)) for key, holder in holders.items()}


def list_status_times(row: TransactionRow) -> tuple[StatusTime, ...]:
    """Return the times of the statuses; only the present one if the transport kept no others."""
    began = dict(row.began)
    if row.status is not None:
        began.setdefault(row.status, row.status_at)
    order = sorted(began, key=lambda status: status.value)
    times = [began[status] for status in order]
    gaps = [None, *(later - earlier for earlier, later in pairwise(times))]
    return tuple(map(StatusTime, order, times, gaps))


def _list_replaced(row: TransactionRow, request: Request) -> Mapping[Key, int]:
    if row.plan is None or len(row.plan.replaced) != len(request.mutations):
        return {}
    keys = (mutation.key for mutation in request.mutations)
    return dict(zip(keys, row.plan.replaced, strict=True))


def _find_old(
    context: Context, row: TransactionRow, request: Request, data: Cells, budget: Budget
) -> Mapping[Key, Cell | Unseen | None]:
    """Return the previous cells of keys, or why they are not known. data: the present cells."""
    if row.status is not None and row.status.is_undecided:
        return {m.key: data.get(m.key, Unseen.NOT_READ) for m in request.mutations}
    wanted = {key: at for key, at in _list_replaced(row, request).items() if at}
    found: dict[Key, Cell | Unseen | None] = dict.fromkeys(wanted, Unseen.NOT_READ)
    newest = {key: data[key] for key in wanted if key in data}
    for key, cell in newest.items():
        found[key] = _pick_version([cell] if cell else [], 1, wanted[key])
    for count in COUNTS:
        read = partial(context.store.read_versions, count=count)
        due = [key for key in newest if found[key] is Unseen.NOT_READ]
        for some in budget.divide(due, count):
            if budget.over:
                return found
            for key, cells in read_available(context, some, read).items():
                _spend(budget, key, cells)
                found[key] = _pick_version(cells, count, wanted[key])
    return found


def _pick_version(cells: Sequence[Cell], count: int, timestamp: int) -> Cell | Unseen:
    """Return the version of this timestamp among the newest `count`; NOT_READ: it may be older."""
    for cell in cells:
        if cell.timestamp <= timestamp:
            return cell if cell.timestamp == timestamp else Unseen.NOT_KEPT
    if len(cells) < count:
        return Unseen.NOT_KEPT
    return Unseen.NOT_AMONG if count == VERSIONS else Unseen.NOT_READ
