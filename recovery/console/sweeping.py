"""The unfinished transactions of a whole table, looked for in short steps, round after round.

The store leaves out by itself what is finished, so that little is sent. It does not say how much it
passed over on the way: so each step goes over a stretch of time that is as long as the last ones
allow, and leaps over what holds no rows. Nothing here writes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from recovery.console.positions import AGE_CELLS, BEHIND, END_MS, NAME, STATUS_CELLS, find_firsts
from recovery.scan import BY_VALUE, NOTHING, STATUS, Head, Reach, leave_out
from txn.model import Row
from txn.protocol.context import Context
from txn.protocol.ranges import stored_rows
from txn.protocol.row import is_row_key
from txn.protocol.statuses import FINISHED
from txn.spans import Span

UNKNOWN = "unknown status"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What is not finished in a table, as far as a round has come.

    as_of: when the round began, and looked_ms: when it came so far. statuses: how many rows have
    each; oldest: those that have had theirs for longest. is_complete: whether the round has come to
    the end of the table.
    """

    as_of: int
    looked_ms: int
    statuses: Mapping[str, int]
    oldest: tuple[Head, ...]
    is_complete: bool

    @property
    def rows(self) -> int:
        """How many rows are unfinished."""
        return sum(self.statuses.values())


@dataclass(slots=True)
class _Round:
    """A round under way. places: where each bucket goes on, and ends; the last one first."""

    as_of: int
    places: list[tuple[bytes, bytes]]
    statuses: Counter[str] = field(default_factory=Counter)
    oldest: list[tuple[int, bytes, Head]] = field(default_factory=list)


class Sweep:
    """A look for the unfinished that goes on for as long as it is told to. `latest` is the last
    round that came to the end of the table; None before the first has."""

    def __init__(self, context: Context, keep: int = 50) -> None:
        self.latest: Unfinished | None = None
        self._context = context
        self._keep = keep
        self._round: _Round | None = None
        self._reach = Reach(first_ms=1_000, longest_ms=600_000)
        self._cells = AGE_CELLS if context.rules.locks_rows else STATUS_CELLS

    def advance(self, ms: int) -> Unfinished:
        """Go on from where it stopped, for about this time, or to the end of the table; the call
        after that begins the next round. A step that takes longer makes the next ones shorter. One
        that fails ends its round, of which it may have counted a part: the next call begins one."""
        clock = self._context.clock
        due_ms = clock.monotonic_ms() + ms
        now, self._round = self._round or self._begin(), None
        while now.places:
            began_ms = clock.monotonic_ms()
            try:
                self._pass_stretch(now)
            finally:  # what has failed may have been too long
                self._reach.adapt(clock.monotonic_ms() - began_ms, ms)
            if clock.monotonic_ms() >= due_ms:
                break
        found = self._tell(now)
        if found.is_complete:
            self.latest = found
        else:
            self._round = now
        return found

    def _begin(self) -> _Round:
        firsts = find_firsts(self._context)
        places = [(row, row[: row.index(NAME)] + BEHIND) for row in firsts.values()]
        return _Round(self._context.clock.wall_ms(), places[::-1])

    def _pass_stretch(self, now: _Round) -> None:
        start, behind = now.places.pop()
        prefix = start[: start.index(NAME)]
        stop_ms = int(start[len(prefix) + len(NAME) :][:13]) + self._reach.ms
        stop = behind if stop_ms >= END_MS else prefix + NAME + b"%013d" % stop_ms
        found = self._look_at(now, Span(self._context.table, start, stop))
        if stop < behind and not found:
            rows = stored_rows(
                self._context, Span(self._context.table, stop, behind), cells=STATUS_CELLS
            )
            stop = next((row.row for row in rows if is_row_key(row.row)), behind)
        if stop < behind:
            now.places.append((stop, behind))

    def _look_at(self, now: _Round, span: Span) -> int:
        found = 0
        for row in stored_rows(self._context, span, leave_out(FINISHED), self._cells):
            if is_row_key(row.row):
                found += 1
                self._count(now, row)
        return found

    def _count(self, now: _Round, row: Row) -> None:
        cells = {key.column: cell for key, cell in row.cells.items()}
        cell = cells.get(STATUS, NOTHING)
        status = BY_VALUE.get(cell.value)
        if status is None or status.is_finished:
            now.statuses[UNKNOWN] += status is None
            return
        now.statuses[str(status)] += 1
        head = Head(row.row, status, cells.get(status.at, cell).timestamp)
        item = (-head.since, row.row, head)
        if len(now.oldest) < self._keep:
            heapq.heappush(now.oldest, item)
        else:
            heapq.heappushpop(now.oldest, item)

    def _tell(self, now: _Round) -> Unfinished:
        oldest = sorted(
            (head for _, _, head in now.oldest), key=lambda head: (head.since, head.row_key)
        )
        return Unfinished(
            now.as_of,
            self._context.clock.wall_ms(),
            dict(now.statuses),
            tuple(oldest),
            not now.places,
        )
