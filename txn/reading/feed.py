"""A feed of committed transactions, in parts that skip none and stay the same when read again.

A transaction's row holds its changes: the buffer has the mutations, the plan the commit timestamp
and the replaced versions. So a transaction is reported from its decision on, even before its values
are put. This module only reads. docs/spark.md, under "What it rests on", has its assumptions.

Nothing is skipped. d(T), the server's time of T's decision, is written by the compare-and-set that
decides, and never changes. An offset O covers T if d(T) <= O.until_ms and T is not in O.undecided.
The part from A to B is what B covers and A does not. So parts neither overlap nor leave gaps, if O
covers no transaction that the scan for O did not see decided. That scan begins after the reader's
clock showed c and a local transaction in progress ended; O.until_ms <= c - delay_ms, and
O.undecided has all rows that it saw undecided. Let T commit with d(T) <= O.until_ms.

- The scan saw T undecided: O does not cover T; a later part reports it. A delay would not do: a
  server dates a write before others see it, by minutes if its log is replayed.
- The scan saw no row: the row was acknowledged before the decision was sent, so T was decided after
  c, by a clock at most delay_ms behind. Then d(T) > O.until_ms, a contradiction. On a local store,
  row and decision may appear together, and the same clock is read later than c.

The scan need not be of one instant. If T replaced a value of T0 and O covers T, T0 had decided
before c, so the scan saw that. O leaves it out only if its server's clock is ahead.

low_ms is at most the creation time of each seen row that O does not cover, and c - lateness_ms. So
the next scan passes over rows only if they were seen and are covered or aborted, or came later than
allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, NamedTuple

from txn.errors import CorruptRowError, InvalidRequestError, TxnError
from txn.model import Cell, Check, Key, Row, RowExclusion
from txn.protocol.codec import Buffer, Plan
from txn.protocol.context import Context, call_store
from txn.protocol.protocols import protocol_key
from txn.protocol.ranges import stored_rows
from txn.protocol.recovery import require_no_children
from txn.protocol.row import (
    FAMILY,
    child_key,
    column,
    created_ms,
    decode_row,
    is_row_key,
    parent_of,
    status_key,
)
from txn.protocol.statuses import Status
from txn.spans import Span

STATUS = b"status"
DECIDED_AT = Status.ASSERTED.at
COLUMNS = frozenset({(FAMILY, STATUS), (FAMILY, DECIDED_AT)})
NEVER_DECIDED = (b"", Status.ABORTING.encoded, Status.ABORTED.encoded)
NO_NAME = b"the name of no protocol"


class Decided(NamedTuple):
    """A committed transaction with the time of its decision, by the server's clock."""

    at_ms: int
    row_key: bytes


def wait_for_writer(context: Context) -> None:
    """Wait for the end of a local transaction in progress, because its times precede its
    visibility. A later one also reads the clock later. The wait is a check that fails and so writes
    nothing. HBase needs no wait: there a row is visible before its decision."""
    features = context.store.features
    if "multi_cell_check" in features and "remote_calls" not in features:
        key = protocol_key(context.table)
        check = Check(key, NO_NAME, ((key, NO_NAME),))
        call_store(context, lambda: context.store.check_and_put([check], durable=False))


def list_decisions(
    context: Context,
    low_ms: int,
    columns: frozenset[tuple[bytes, bytes]] = COLUMNS,
    exclude: RowExclusion | None = None,
) -> Iterator[Row]:
    """Yield the status and decision time of each row created since `low_ms`, bucket by bucket."""
    table, start = context.table, b"0"
    begin, end = b"transaction.%013d." % max(low_ms, 0), b"transaction/"
    while found := next(_scan(context, Span(table, start, b":", columns)), None):
        if is_row_key(found.row):
            bucket = found.row[:3]
            yield from _scan(context, Span(table, bucket + begin, bucket + end, columns), exclude)
            start = bucket[:2] + b"/"
        else:
            start = found.row + b"\0"
    yield from _scan(context, Span(table, begin, end, columns), exclude)


def find_decision(row: Row) -> int | None:
    """Return when the transaction was decided; 0 if it may still decide or the time is not recorded
    yet; None if it never will. A gateway that takes one cell per check writes no `at.2-ASSERTED`.
    The time of the final status then counts, once it is there. A part is reported with its parent,
    which decides for it."""
    if parent_of(row.row) is not None:
        return None
    cells = {key.column: cell for key, cell in row.cells.items()}
    if (decided := cells.get(DECIDED_AT)) is not None:
        return decided.timestamp
    status = cells.get(STATUS)
    if status is None or status.value in NEVER_DECIDED:
        return None
    return status.timestamp if status.value == Status.COMPLETE.encoded else 0


def refuse_rowless(context: Context, is_known: bool) -> None:
    """Raise InvalidRequestError if the database commits transactions that leave no row, unless the
    caller accepts that."""
    if not (context.rules.keeps_rows or context.is_local or is_known):
        raise InvalidRequestError(
            "fenced transactions within one region leave no transaction row, unless they have "
            "a token or a label, and are missed here: say rowless=skip to do without them, or let "
            "the database keep all rows: `txn convert fenced --rows always`",
            option="rowless",
            protocol=context.rules.name,
        )


def _scan(context: Context, wanted: Span, exclude: RowExclusion | None = None) -> Iterator[Row]:
    return (row for row in stored_rows(context, wanted, exclude) if row.cells)


ROWS_AT_ONCE = 100
CHILDREN_AT_ONCE = 4
WHOLE = (STATUS, b"buffer", b"plan", b"parts")


class ChangesLostError(TxnError):
    """Transactions may have been deleted before they were reported. Start again from the present
    data, or continue without them. Keep rows for longer than readers pause."""


class KeyChange(NamedTuple):
    """A transaction's change of one key.

    replaced: the version that it replaced; 0: none.
    value: None: a delete.
    timestamp: of the commit.
    decided_ms: when it was decided, by the server's clock.
    """

    key: Key
    replaced: int
    value: bytes | None
    timestamp: int
    decided_ms: int
    transaction: bytes
    labels: Mapping[str, str]


class WrittenRow(NamedTuple):
    """The row of a committed transaction, or of a part.

    parts: how many each task wrote; None: the transaction is not in parts.
    """

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
    """Yield the changes of transactions in the given order, in one millisecond by commit timestamp.

    tables: yield only changes of these. Raises CorruptRowError for a row that does not decode and,
    if is_strict, ChangesLostError for a missing row.
    """
    for some in split_part(part, ROWS_AT_ONCE):
        rows = _read_rows(context, [each.row_key for each in some], is_strict)
        whole = [(each.at_ms, rows[each.row_key]) for each in some if each.row_key in rows]
        for at_ms, row in sorted(whole, key=lambda item: (item[0], item[1].plan.timestamp)):
            for written in (row, *_read_children(context, row, is_strict)):
                for change in _list_changes(row, written, at_ms):
                    is_marker = change.key.table == context.table  # not user data
                    if not is_marker and (tables is None or change.key.table in tables):
                        yield change


def split_part(part: Sequence[Decided], size: int) -> Iterator[list[Decided]]:
    """Yield at least `size` at a time; transactions of one millisecond stay together."""
    some: list[Decided] = []
    for _, alike in groupby(part, lambda decided: decided.at_ms):
        some += alike
        if len(some) >= size:
            yield some
            some = []
    if some:
        yield some


def _read_children(context: Context, row: WrittenRow, is_strict: bool) -> Iterator[WrittenRow]:
    if row.parts is None:
        require_no_children(context, row.row_key, row.buffer.request.keys)
    parts = (
        child_key(row.row_key, task, number)
        for task, count in enumerate(row.parts or ())
        for number in range(count)
    )
    while some := list(islice(parts, CHILDREN_AT_ONCE)):
        rows = _read_rows(context, some, is_strict)
        yield from (rows[part] for part in some if part in rows)


def _read_rows(
    context: Context, row_keys: Sequence[bytes], is_strict: bool
) -> dict[bytes, WrittenRow]:
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
            raise CorruptRowError(row.corrupt or "buffer or plan is missing", transaction=row_key)
        elif is_strict:
            raise ChangesLostError("a row is gone", transaction=row_key)
    return rows


def _list_changes(whole: WrittenRow, row: WrittenRow, at_ms: int) -> Iterator[KeyChange]:
    mutations, replaced = row.buffer.request.mutations, row.plan.replaced
    if len(mutations) != len(replaced):
        raise CorruptRowError("the plan does not fit the buffer", transaction=row.row_key)
    for mutation, old in zip(mutations, replaced, strict=True):
        key, value, labels = mutation.key, mutation.value, whole.buffer.request.labels
        yield KeyChange(key, old, value, whole.plan.timestamp, at_ms, whole.row_key, labels)


FORMAT = 1

SURVEYED = 10
"""The length of a survey in parts of the greatest size: a long backlog is scanned rarely."""

LATENESS_MS = 3_600_000

RETENTION_MS = 24 * 3_600_000
"""How long fsck keeps rows of finished transactions by default."""


class Bounds(NamedTuple):
    """The assumptions of a feed, in ms.

    delay_ms: the most by which a server's clock is behind the reader's.
    lateness_ms: the most time from the client's time in a row key until the row is visible.
    retention_ms: how long rows are kept after their transactions end.
    """

    delay_ms: int
    lateness_ms: int = LATENESS_MS
    retention_ms: int = RETENTION_MS

    @classmethod
    def of_store(cls, context: Context) -> Bounds:
        """Return the defaults. A store on this machine has one clock, which may be set back a
        little. HBase servers start with clocks within 30 s of the master's."""
        return cls(1_000 if context.is_local else 60_000)

    @property
    def margin_ms(self) -> int:
        """The least time for which rows of the first part are still kept."""
        return max(self.retention_ms // 24, 2 * self.delay_ms)

    @property
    def idle_ms(self) -> int:
        """The greatest age of an offset without new transactions."""
        return self.retention_ms // 100


class Offset(NamedTuple):
    """A position in the feed: the transactions decided by `until_ms` were reported, except those
    whose rows were undecided when the offset was made.

    low_ms: no row with an earlier creation time in its key is still to be reported.
    """

    until_ms: int
    low_ms: int = 0
    undecided: frozenset[bytes] = frozenset()

    def covers(self, decided: Decided) -> bool:
        return decided.at_ms <= self.until_ms and decided.row_key not in self.undecided

    def encode(self) -> dict[str, Any]:
        rows = "\n".join(sorted(row_key.decode() for row_key in self.undecided))
        return {"format": FORMAT, "until": self.until_ms, "low": self.low_ms, "undecided": rows}


@dataclass(slots=True)
class Survey:
    """The transaction rows as seen by one scan, which began at `began_ms`.

    horizon_ms: decisions taken after the scan are later than this.
    decided: the decisions up to the horizon, in order.
    undecided: rows that cannot be reported yet.
    beyond_ms: the oldest creation time of all rows to be reported after the horizon.
    """

    began_ms: int
    horizon_ms: int
    decided: list[Decided] = field(default_factory=list)
    undecided: frozenset[bytes] = frozenset()
    beyond_ms: int = 0

    def make_offset(self, until_ms: int, bounds: Bounds) -> Offset:
        """Return the offset at `until_ms`, which must not be after the horizon."""
        waiting = (created_ms(row_key) for at_ms, row_key in self.decided if at_ms > until_ms)
        low_ms = min(self.beyond_ms, min(waiting, default=self.beyond_ms))
        return Offset(until_ms, min(low_ms, self.began_ms - bounds.lateness_ms), self.undecided)


def decode_offset(encoded: Mapping[str, Any]) -> Offset:
    """Return the decoded offset; raise InvalidRequestError if it is none."""
    try:
        if encoded["format"] != FORMAT:
            message = "an offset of another format"
            raise InvalidRequestError(message, known=FORMAT, offset=dict(encoded))
        rows = str(encoded["undecided"]).encode().split()
        return Offset(int(encoded["until"]), int(encoded["low"]), frozenset(rows))
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise InvalidRequestError("not an offset of a feed", offset=encoded) from error


class ChangeFeed:
    """Plans the parts of a feed: where the next one ends, and which transactions are in it."""

    def __init__(self, context: Context, bounds: Bounds, *, is_strict: bool = True) -> None:
        """is_strict: raise ChangesLostError if changes may have been deleted unreported."""
        self.context = context
        self.bounds = bounds
        self._is_strict = is_strict
        self._survey: Survey | None = None
        self._known: set[Offset] = set()

    def now_ms(self) -> int:
        """Return the latest end of a part that is made now."""
        return self.context.clock.wall_ms() - self.bounds.delay_ms

    def find_earliest(self) -> Offset:
        """Return the earliest offset whose later rows are certainly kept for long enough."""
        now_ms, bounds = self.context.clock.wall_ms(), self.bounds
        return Offset(max(now_ms - bounds.retention_ms + bounds.margin_ms, 0))

    def find_end(
        self, start: Offset, *, most: int | None = None, by_ms: int | None = None
    ) -> Offset:
        """Return the end of the part that begins at `start`; `start` itself if there is no news.

        most: the most transactions of a part, unless more were decided in one millisecond.
        by_ms: leave later decisions to later parts. Raises ChangesLostError: see `check_age`.
        """
        survey = self._survey
        if survey is None or start not in self._known or not _select(survey, start):
            survey = survey_rows(self.context, self.bounds, start, most and SURVEYED * most)
            self._survey, self._known = survey, {start}
        self.check_age(start)
        until_ms = survey.horizon_ms if by_ms is None else min(survey.horizon_ms, by_ms)
        if until_ms < start.until_ms:  # a clock was set back
            return start
        part = [decided for decided in _select(survey, start) if decided.at_ms <= until_ms]
        if not part and until_ms - start.until_ms < self.bounds.idle_ms:
            return start
        if most is not None and len(part) > most:
            until_ms = max(_cut(part, most), start.until_ms)
        end = survey.make_offset(until_ms, self.bounds)
        self._known.add(end)
        return end

    def list_part(self, start: Offset, end: Offset) -> list[Decided]:
        """Return the transactions reported by `end` but not by `start`, in the order of their
        decisions. The list is the same each time while the rows are kept."""
        found: Iterable[Decided]
        if self._survey is not None and {start, end} <= self._known:
            found = self._survey.decided
        else:
            rows = list_decisions(self.context, start.low_ms)
            found = (Decided(at_ms, row.row) for row in rows if (at_ms := find_decision(row)))
        part = sorted(each for each in found if end.covers(each) and not start.covers(each))
        self.check_age(start)
        return part

    def check_age(self, start: Offset) -> None:
        """Raise ChangesLostError if rows to be reported after `start` may have been deleted."""
        kept_until_ms = start.until_ms + self.bounds.retention_ms - self.bounds.delay_ms
        if self._is_strict and self.context.clock.wall_ms() > kept_until_ms:
            message = "the offset is older than transaction rows are kept for"
            raise ChangesLostError(
                message, until=start.until_ms, retention_ms=self.bounds.retention_ms
            )


def survey_rows(context: Context, bounds: Bounds, since: Offset, most: int | None = None) -> Survey:
    """Scan the statuses and decision times of rows that may have to be reported after an offset.
    With `most`, keep about that many of the earliest, with the horizon below the rest."""
    began_ms = context.clock.wall_ms()
    wait_for_writer(context)
    survey = Survey(began_ms, began_ms - bounds.delay_ms, beyond_ms=began_ms)
    undecided: list[bytes] = []
    for row in list_decisions(context, since.low_ms):
        at_ms = find_decision(row)
        if at_ms is None:
            continue
        decided = Decided(at_ms, row.row)
        if not at_ms:
            undecided.append(row.row)
        elif since.covers(decided):
            continue
        elif at_ms <= survey.horizon_ms:
            survey.decided.append(decided)
            if most is not None and len(survey.decided) > 2 * most:
                _shorten(survey, most)
            continue
        survey.beyond_ms = min(survey.beyond_ms, created_ms(row.row))
    survey.decided.sort()
    survey.undecided = frozenset(undecided)
    return survey


def _select(survey: Survey, start: Offset) -> list[Decided]:
    return [decided for decided in survey.decided if not start.covers(decided)]


def _shorten(survey: Survey, most: int) -> None:
    survey.decided.sort()
    horizon_ms = _cut(survey.decided, most)
    left = [decided for decided in survey.decided if decided.at_ms > horizon_ms]
    if left:
        del survey.decided[-len(left) :]
        survey.horizon_ms = horizon_ms
        survey.beyond_ms = min(survey.beyond_ms, *(created_ms(each.row_key) for each in left))


def _cut(part: Sequence[Decided], most: int) -> int:
    behind_ms = part[most].at_ms
    return behind_ms - 1 if part[0].at_ms < behind_ms else behind_ms
