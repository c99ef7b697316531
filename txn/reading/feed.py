"""A feed of committed transactions, in parts that skip none and are the same when read again.

Whether a transaction has been told is a matter of two things: when it was decided, by the clock of
the server that took the decision, and whether its row was seen undecided when the offset was made.
So what was undecided is told in a later part. The argument, and what it rests on, is in
docs/spark.md, under "Streams". Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txn.errors import InvalidRequestError
from txn.protocol.attempt import Context
from txn.protocol.row import created_ms
from txn.reading.changes import ChangesLostError
from txn.reading.decisions import Decided, find_decision, list_decisions, wait_for_writer

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
        return cls(1_000 if "atomic_together" in context.store.features else 60_000)

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
