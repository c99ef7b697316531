"""Searches that continue while a page is open, and the unfinished transactions of the whole table.

A page that finds too little within its limits is shown at once. Each of its updates continues the
search, until the page is full or the table has been read. The unfinished transactions are found in
short steps, round after round: the store itself leaves out finished rows, so that it sends little.
They supplement what a search has not read yet. Nothing here writes.
"""

from __future__ import annotations

import bisect
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from recovery.bounds import Budget, ReadLimits, Stop
from recovery.scan import BY_VALUE, NOTHING, STATUS, Head, scan_in_steps, whole_row
from recovery.search import COUNT, Query, SearchPage, find_page, read_cursor
from txn.model import Row
from txn.protocol.context import Context
from txn.protocol.listing import NAME, NAME_END, find_buckets, scan_transactions, strip_bucket
from txn.protocol.row import FAMILY, TransactionRow, created_ms, is_row_key
from txn.protocol.statuses import Status
from txn.spans import Span

MOST_AT_ONCE = 4
MAX_KEPT = 8
MOST_DOWNLOADED = 10_000
DOWNLOAD_MS = 60_000  # the limits of a download: transactions, and time
UNKNOWN = "unknown status"
HEARTBEAT = b"beat"
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
        """Return the heads with these statuses before a cursor, the newest first."""
        found = (head for head in self.heads if head.status in statuses)
        order = {strip_bucket(head.row_key): head for head in found}
        return [order[at] for at in sorted(order, reverse=True) if at < before]


class UnfinishedScan:
    """A continuous scan for unfinished transactions. `latest`: the last complete round."""

    def __init__(self, context: Context) -> None:
        self.latest: Unfinished | None = None
        self._context = context
        self._found = Unfinished(0, 0)
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
        found = replace(
            self._found,
            read_ms=clock.wall_ms(),
            statuses=self._found.statuses.copy(),
            heads=[*self._found.heads],
            oldest=[*self._found.oldest],
        )
        if found.is_complete:
            self.latest = found
        return found

    def _scan(self, ms: int) -> Iterator[None]:
        context, now_ms = self._context, self._context.clock.wall_ms()
        self._found = Unfinished(now_ms, now_ms)
        times = [(FAMILY, status.at) for status in Status] if context.rules.locks_rows else []
        for bucket in find_buckets(context):
            span = Span(context.table, bucket + NAME, bucket + NAME_END)
            cells = [(FAMILY, STATUS), (FAMILY, HEARTBEAT), *times]
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
        if status is None and cell.value:  # none: a late heartbeat of a row that was deleted
            found.statuses[UNKNOWN] += 1
        if status is None or status.is_finished:
            return
        found.statuses[str(status)] += 1
        since, heartbeat = cells.get(status.at, cell), cells.get(HEARTBEAT, NOTHING)
        head = Head(row.row, status, since.timestamp, heartbeat.timestamp)
        if len(found.heads) < MAX_HEADS:
            found.heads.append(head)
        bisect.insort(found.oldest, head, key=lambda each: (each.since, each.row_key))
        del found.oldest[OLDEST:]


@dataclass(slots=True)
class Search:
    """A search and what it has found.

    page: its results so far. known: unfinished transactions in the range that it has not read yet.
    as_of: the time of the scan that supplied results it did not read itself; None: it has read
    everything itself. began_ms: when the last row of its first page began; oldest_ms: when the
    table's oldest row began. guard: held by the request that continues it.
    """

    query: Query
    page: SearchPage
    known: list[TransactionRow] = field(default_factory=list)
    as_of: int | None = None
    began_ms: int | None = None
    oldest_ms: int | None = None
    guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def rows(self) -> list[TransactionRow]:
        found = {row.row_key for row in self.page.rows}
        return [*self.page.rows, *(row for row in self.known if row.row_key not in found)][:COUNT]

    @property
    def is_running(self) -> bool:
        page = self.page
        if page.next is None or page.stopped in (Stop.FOUND, Stop.AGE):
            return False
        return not page.rows or page.stopped is not Stop.BYTES

    @property
    def done(self) -> float | None:
        """Return the share of the table's time that it has read, from 0 to 1; None: not known."""
        if self.began_ms is None or self.oldest_ms is None or self.page.back_to is None:
            return None
        time_ms = max(1, self.began_ms - self.oldest_ms)
        return min(1.0, max(0.0, (self.began_ms - self.page.back_to) / time_ms))


class Searches:
    """The recent searches that one page of reading did not complete."""

    def __init__(
        self, context: Context, limits: ReadLimits, unfinished: Callable[[], Unfinished | None]
    ) -> None:
        self._context = context
        self._limits = limits
        self._unfinished = unfinished
        self._kept: OrderedDict[tuple[Query, bytes | None], Search] = OrderedDict()
        self._guard = threading.Lock()
        self._slots = threading.BoundedSemaphore(MOST_AT_ONCE)

    def find(self, query: Query, before: bytes | None, *, again: bool) -> Search:
        """Return the results of a search so far, after reading once within the limits if it is
        running. again: start anew unless it is running."""
        with self._guard:
            kept = self._kept.get((query, before))
        if kept is not None and (kept.is_running or not again):
            if kept.guard.acquire(blocking=False):  # otherwise another request continues it
                try:
                    with self._slots:
                        if kept.is_running:
                            self._continue(kept)
                finally:
                    kept.guard.release()
            return replace(kept)  # which no other request changes
        search = self._begin(query, before)
        if search.is_running:
            with self._guard:
                self._kept[query, before] = search
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
        return replace(search)

    def read_pages(self, query: Query, before: bytes | None) -> Iterator[SearchPage]:
        """Yield full pages until the beginning of the table or the limits of a download."""
        clock, found = self._context.clock, 0
        due_ms = clock.monotonic_ms() + DOWNLOAD_MS
        stop = None
        while stop is None:
            with self._slots:
                search = self._begin(query, before)
            while search.is_running and clock.monotonic_ms() < due_ms:
                with self._slots:
                    self._continue(search)
            page = search.page
            found += len(page.rows)
            if page.next is None or page.stopped is Stop.AGE:
                stop = page.stopped
            elif found >= MOST_DOWNLOADED:
                stop = Stop.ROWS
            elif clock.monotonic_ms() >= due_ms:
                stop = Stop.TIME
            yield replace(page, stopped=stop or page.stopped)
            before = page.next

    def _begin(self, query: Query, before: bytes | None) -> Search:
        page = find_page(self._context, query, before, self._limits)
        search = Search(query, page, began_ms=page.back_to)
        self._use_known(search)
        return search

    def _continue(self, search: Search) -> None:
        if search.oldest_ms is None:
            rows = scan_transactions(self._context, cells=[(FAMILY, STATUS)], reverse=False)
            oldest = next((row.row for row in rows if is_row_key(row.row)), None)
            search.oldest_ms = None if oldest is None else created_ms(oldest)
        page, left = search.page, COUNT - len(search.page.rows)
        more = find_page(self._context, search.query, page.next, self._limits, left)
        search.page = replace(more, rows=page.rows + more.rows, read=page.read + more.read)
        self._use_known(search)

    def _use_known(self, search: Search) -> None:
        """Add known older transactions; if these are all, the search ends."""
        page, unfinished = search.page, self._unfinished()
        left = COUNT - len(page.rows)
        if unfinished is None or not (search.query.is_for_unfinished and page.next and left):
            return
        heads = unfinished.select(search.query.statuses or (), read_cursor(page.next))
        budget, now_ms = Budget(self._context.clock, self._limits), self._context.clock.wall_ms()
        rows: list[TransactionRow] = []
        last = None
        for head in heads:
            row = whole_row(self._context, head.row_key) or Row(head.row_key, {})
            budget.spend(row)
            found = search.query.match(row, now_ms)
            rows += [] if found is None else [found]
            last = row.row
            if len(rows) == left or budget.over:
                break
        if not unfinished.has_all:
            search.known = rows
            return
        is_over = last is None or last == heads[-1].row_key
        search.as_of, search.known = unfinished.as_of, []
        stop = Stop.BEGINNING if is_over else Stop.FOUND if len(rows) == left else page.stopped
        following = None if is_over else last
        search.page = replace(page, rows=page.rows + rows, next=following, stopped=stop)
