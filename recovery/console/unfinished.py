"""The unfinished transactions of a whole table, found in short steps, round after round.

The store itself leaves out finished rows, so that it sends little. Nothing here writes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from recovery.scan import BY_VALUE, NOTHING, STATUS, Head, scan_in_steps
from txn.model import Row
from txn.protocol.context import Context
from txn.protocol.listing import NAME, NAME_END, STATUS_CELLS, find_buckets, strip_bucket
from txn.protocol.row import FAMILY, is_row_key
from txn.protocol.statuses import Status
from txn.spans import Span

UNKNOWN = "unknown status"
MAX_HEADS = 20_000
OLDEST = 50


@dataclass(slots=True)
class Unfinished:
    """The unfinished transactions of a table, as far as a round has come.

    as_of: when the round began; read_ms: when it came this far. statuses: rows per status. heads:
    the first MAX_HEADS rows. oldest: those whose status is oldest. is_complete: whether the round
    has reached the end of the table.
    """

    as_of: int
    read_ms: int
    statuses: Counter[str] = field(default_factory=Counter)
    heads: list[Head] = field(default_factory=list)
    oldest: list[Head] = field(default_factory=list)
    is_complete: bool = False

    @property
    def rows(self) -> int:
        return sum(self.statuses.values())

    @property
    def has_all(self) -> bool:
        """Return True if the heads are all that the table had when the round began."""
        return self.is_complete and self.rows - self.statuses.get(UNKNOWN, 0) == len(self.heads)

    def select(self, statuses: Collection[Status | None], before: bytes) -> list[Head]:
        found = (head for head in self.heads if head.status in statuses)
        order = {strip_bucket(head.row_key): head for head in found}
        return [order[at] for at in sorted(order, reverse=True) if at < before]


class UnfinishedScan:
    """A continuous scan for unfinished transactions. `latest`: the last complete round."""

    def __init__(self, context: Context) -> None:
        self.latest: Unfinished | None = None
        self._context = context
        self._found = Unfinished(0, 0)
        self._oldest: list[tuple[int, bytes, Head]] = []
        self._steps: Iterator[None] | None = None

    def advance(self, ms: int) -> Unfinished:
        """Continue for about this time (ms). After the end, or an error, a new round begins."""
        clock = self._context.clock
        due_ms = clock.monotonic_ms() + ms
        steps, self._steps = self._steps or self._scan(ms), None
        for _ in steps:
            if clock.monotonic_ms() >= due_ms:
                self._steps = steps
                break
        else:
            self._found.is_complete = True
        oldest = [head for *_, head in sorted(self._oldest, key=lambda item: (-item[0], item[1]))]
        found = replace(
            self._found,
            read_ms=clock.wall_ms(),
            statuses=self._found.statuses.copy(),
            heads=[*self._found.heads],
            oldest=oldest,
        )
        if found.is_complete:
            self.latest = found
        return found

    def _scan(self, ms: int) -> Iterator[None]:
        context, now_ms = self._context, self._context.clock.wall_ms()
        self._found, self._oldest = Unfinished(now_ms, now_ms), []
        times = [(FAMILY, status.at) for status in Status] if context.rules.locks_rows else []
        for bucket in find_buckets(context):
            span = Span(context.table, bucket + NAME, bucket + NAME_END)
            cells = [*STATUS_CELLS, *times]
            for row in scan_in_steps(context, span, cells, step_ms=ms, first_ms=1_000):
                if not row.cells:
                    yield
                elif is_row_key(row.row):
                    self._add(row)

    def _add(self, row: Row) -> None:
        found = self._found
        cells = {key.column: cell for key, cell in row.cells.items()}
        cell = cells.get(STATUS, NOTHING)
        status = BY_VALUE.get(cell.value)
        if status is None:
            found.statuses[UNKNOWN] += 1
        if status is None or status.is_finished:
            return
        found.statuses[str(status)] += 1
        head = Head(row.row, status, cells.get(status.at, cell).timestamp)
        if len(found.heads) < MAX_HEADS:
            found.heads.append(head)
        item = (-head.since, row.row, head)
        if len(self._oldest) < OLDEST:
            heapq.heappush(self._oldest, item)
        else:
            heapq.heappushpop(self._oldest, item)
