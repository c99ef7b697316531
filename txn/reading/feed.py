"""A feed of committed transactions, in parts that skip none and are the same when read again.

Whether a transaction has been reported depends on two things: when it was decided, by the clock of
the server that took the decision, and whether its row was seen undecided when the offset was made.
What was undecided then is reported in a later part. The argument, and what it rests on, is in
docs/spark.md, under "Streams". Nothing here writes.

A transaction's row tells what it changed: the buffer has the mutations, the plan the commit
timestamp and the versions that were replaced. So it can be reported once it is decided, whether or
not its values are put already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, NamedTuple

from txn.errors import CorruptRowError, InvalidRequestError, TxnError
from txn.model import Cell, Check, Key, Mutation, Row
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
    if parent_of(row.row) is not None:
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


ROWS_AT_ONCE = 100
CHILDREN_AT_ONCE = 4
WHOLE = (STATUS, b"buffer", b"plan", b"parts")


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


class WrittenRow(NamedTuple):
    """The row of a committed transaction, or of a part of one. parts: how many each task wrote;
    None: it is in no parts."""

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
    """Yield what transactions changed, in the order in which they are given, but those of one
    millisecond in the order of their commit timestamps.

    tables: only changes of these. Raises CorruptRowError for a row that does not decode, and, if
    is_strict, ChangesLostError for one that is gone.
    """
    for some in split_part(part, ROWS_AT_ONCE):
        rows = _read_rows(context, [each.row_key for each in some], is_strict)
        whole = [(each.at_ms, rows[each.row_key]) for each in some if each.row_key in rows]
        for at_ms, row in sorted(whole, key=lambda item: (item[0], item[1].plan.timestamp)):
            for written in (row, *_read_children(context, row, is_strict)):
                for change in _list_changes(row, written, at_ms):
                    is_marker = change.key.table == context.table  # nobody's data
                    if not is_marker and (tables is None or change.key.table in tables):
                        yield change


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


def _read_children(context: Context, row: WrittenRow, is_strict: bool) -> Iterator[WrittenRow]:
    """Yield the rows of a transaction's parts, in the order of the tasks that have written them."""
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
    """Return the rows that are there."""
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
            cause = row.corrupt or "buffer or plan is missing"
            raise CorruptRowError(cause, transaction=row_key)
        elif is_strict:
            raise ChangesLostError("a row is gone", transaction=row_key)
    return rows


def _list_changes(whole: WrittenRow, row: WrittenRow, at_ms: int) -> Iterator[KeyChange]:
    """Yield what one row of a transaction tells; `whole` has its timestamp and its labels."""
    mutations, replaced = row.buffer.request.mutations, row.plan.replaced
    if len(mutations) != len(replaced):
        raise CorruptRowError("the plan does not fit the buffer", transaction=row.row_key)
    for mutation, old in zip(mutations, replaced, strict=True):
        yield KeyChange(
            mutation.key,
            old,
            mutation.value if isinstance(mutation, Mutation) else None,
            whole.plan.timestamp,
            at_ms,
            whole.row_key,
            whole.buffer.request.labels,
        )


FORMAT = 1

SURVEYED = 10
"""How many parts of the greatest size a survey keeps: a long backlog is scanned seldom."""

LATENESS_MS = 3_600_000

RETENTION_MS = 24 * 3_600_000
"""For how long fsck keeps rows of finished transactions, unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a feed takes for granted, in ms.

    delay_ms: no server's clock is further behind the reader's. lateness_ms: a row is there so soon
    after the time in its row key, which is the client's. retention_ms: rows are kept for so long
    after their transactions have ended.
    """

    delay_ms: int
    lateness_ms: int = LATENESS_MS
    retention_ms: int = RETENTION_MS

    @classmethod
    def of_store(cls, context: Context) -> Bounds:
        """Return the defaults: beside a store on this machine there is one clock, which may be set
        back a little; servers of HBase start with clocks that differ by 30 s from the master's."""
        return cls(1_000 if "atomic" in context.store.features else 60_000)

    @property
    def margin_ms(self) -> int:
        """For how long what is told first is kept at least."""
        return max(self.retention_ms // 24, 2 * self.delay_ms)

    @property
    def idle_ms(self) -> int:
        """How old an offset may become without news."""
        return self.retention_ms // 100


@dataclass(frozen=True, slots=True)
class Offset:
    """Which transactions have been told: those that were decided by `until_ms`, but for those whose
    rows were seen undecided when the offset was made.

    low_ms: no row that was created earlier, by its row key, is still to be told.
    """

    until_ms: int
    low_ms: int = 0
    undecided: frozenset[bytes] = frozenset()

    def covers(self, decided: Decided) -> bool:
        """Whether the transaction has been told."""
        return decided.at_ms <= self.until_ms and decided.row_key not in self.undecided

    def encode(self) -> dict[str, Any]:
        """Return the offset as JSON takes it."""
        rows = sorted(row_key.decode() for row_key in self.undecided)
        return {
            "format": FORMAT,
            "until": self.until_ms,
            "low": self.low_ms,
            "undecided": "\n".join(rows),
        }


@dataclass(slots=True)
class Survey:
    """The transaction rows as one scan saw them, which began when the clock was at `began_ms`.

    horizon_ms: all that is decided later than the scan is decided later than this. decided: those
    up to it, in their order. undecided: rows of which nothing can be told yet. beyond_ms: the
    oldest creation of all that are not to be told up to the horizon.
    """

    began_ms: int
    horizon_ms: int
    decided: list[Decided] = field(default_factory=list)
    undecided: frozenset[bytes] = frozenset()
    beyond_ms: int = 0

    def make_offset(self, until_ms: int, bounds: Bounds) -> Offset:
        """Return the offset up to a time that is not behind the horizon."""
        waiting = (created_ms(row_key) for at_ms, row_key in self.decided if at_ms > until_ms)
        low_ms = min(self.beyond_ms, min(waiting, default=self.beyond_ms))
        return Offset(until_ms, min(low_ms, self.began_ms - bounds.lateness_ms), self.undecided)


def decode_offset(encoded: Mapping[str, Any]) -> Offset:
    """Return what `Offset.encode` was asked of; InvalidRequestError where it is something else."""
    try:
        if encoded["format"] != FORMAT:
            raise InvalidRequestError(
                "an offset of another format", known=FORMAT, offset=dict(encoded)
            )
        rows = str(encoded["undecided"]).encode().split()
        return Offset(int(encoded["until"]), int(encoded["low"]), frozenset(rows))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequestError("not an offset of a feed", offset=dict(encoded)) from error


class ChangeFeed:
    """Plans the parts of a feed: where the next one ends, and which transactions are in it."""

    def __init__(self, context: Context, bounds: Bounds, *, is_strict: bool = True) -> None:
        """is_strict: whether it is an error that something may have been deleted untold."""
        self.context = context
        self.bounds = bounds
        self._is_strict = is_strict
        self._survey: Survey | None = None
        self._known: set[Offset] = set()

    def now_ms(self) -> int:
        """Return up to when a part that is made now can go."""
        return self.context.clock.wall_ms() - self.bounds.delay_ms

    def find_earliest(self) -> Offset:
        """Return from where on all rows are certainly kept, for long enough to tell them."""
        now_ms, bounds = self.context.clock.wall_ms(), self.bounds
        return Offset(max(now_ms - bounds.retention_ms + bounds.margin_ms, 0))

    def find_end(
        self, start: Offset, *, most: int | None = None, by_ms: int | None = None
    ) -> Offset:
        """Return where the part ends that begins there, and `start` itself while there is no news.

        most: how many transactions are told at once, unless more were decided in one millisecond.
        by_ms: later decisions are left to later parts. ChangesLostError: see `check_age`.
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
        """Return the transactions that are told by `end` and not by `start`, in the order of their
        decisions. It is the same list each time, while the rows are kept."""
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
        """Raise ChangesLostError if rows that are told after `start` may have been deleted."""
        kept_until_ms = start.until_ms + self.bounds.retention_ms - self.bounds.delay_ms
        if self._is_strict and self.context.clock.wall_ms() > kept_until_ms:
            raise ChangesLostError(
                "the offset is older than transaction rows are kept for",
                until=start.until_ms,
                retention_ms=self.bounds.retention_ms,
            )


def survey_rows(context: Context, bounds: Bounds, since: Offset, most: int | None = None) -> Survey:
    """Scan statuses and times of decision, of rows that may still have to be told after an offset.
    With `most` only about so many, the earliest ones, are kept, and the horizon is below the rest.
    """
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
    """Leave out the latest decisions, and go no further than before them."""
    survey.decided.sort()
    horizon_ms = _cut(survey.decided, most)
    left = [decided for decided in survey.decided if decided.at_ms > horizon_ms]
    if left:
        del survey.decided[-len(left) :]
        survey.horizon_ms = horizon_ms
        survey.beyond_ms = min(survey.beyond_ms, *(created_ms(each.row_key) for each in left))


def _cut(part: Sequence[Decided], most: int) -> int:
    """Return up to when to go so that there are not more, or only those of one millisecond."""
    behind_ms = part[most].at_ms
    return behind_ms - 1 if part[0].at_ms < behind_ms else behind_ms
