"""Searches that continue in the background. A page that finds too little within its limits is shown
at once, and updated until it is full or the table has been read.

Known unfinished transactions supplement what a search has not read yet. A search pauses when no
visitor has asked for it for a while, and resumes on the next visit.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from recovery.bounds import Budget, ReadLimits, Stop
from recovery.console.unfinished import Unfinished
from recovery.scan import whole_row
from recovery.search import COUNT, Query, SearchPage, find_page, read_cursor
from txn.errors import TxnError
from txn.model import Row
from txn.protocol.context import Context
from txn.protocol.listing import STATUS_CELLS, scan_transactions
from txn.protocol.row import TransactionRow, created_ms, is_row_key

LOG = logging.getLogger("txn.console")
THREADS = 4
MAX_KEPT = 8
UNWATCHED_MS = 15_000


@dataclass(slots=True)
class Search:
    """A search and what it has found.

    page: its results so far. known: unfinished transactions in the range that it has not read yet.
    as_of: the time of the scan that supplied results it did not read itself; None: it has read
    everything itself. began_ms: when the last row read before the background started began;
    oldest_ms: when the table's oldest row began. error: why it ended early.
    """

    query: Query
    page: SearchPage
    visited_ms: int
    known: list[TransactionRow] = field(default_factory=list)
    as_of: int | None = None
    is_running: bool = False
    began_ms: int | None = None
    oldest_ms: int | None = None
    error: str | None = None

    @property
    def rows(self) -> list[TransactionRow]:
        found = {row.row_key for row in self.page.rows}
        return [*self.page.rows, *(row for row in self.known if row.row_key not in found)][:COUNT]

    @property
    def done(self) -> float | None:
        """Return the share of the table's time that it has read, from 0 to 1; None: not known."""
        if self.began_ms is None or self.oldest_ms is None or self.page.back_to is None:
            return None
        time_ms = max(1, self.began_ms - self.oldest_ms)
        return min(1.0, max(0.0, (self.began_ms - self.page.back_to) / time_ms))


class Searches:
    """The running searches and the recent ones."""

    def __init__(
        self, context: Context, limits: ReadLimits, unfinished: Callable[[], Unfinished | None]
    ) -> None:
        self._context = context
        self._limits = limits
        self._unfinished = unfinished
        self._kept: OrderedDict[tuple[Query, bytes | None], Search] = OrderedDict()
        self._guard = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="txn-console-search")
        self._is_closed = False

    def find(self, query: Query, before: bytes | None, *, again: bool) -> Search:
        """Return the results of a search so far. A new search reads within the limits, then
        continues in the background if necessary. again: start anew unless it is running."""
        now_ms = self._context.clock.monotonic_ms()
        with self._guard:
            kept = self._kept.get((query, before))
            if kept is not None and (kept.is_running or not again):
                kept.visited_ms = now_ms
                self._start(kept)
                return kept
        search = Search(query, find_page(self._context, query, before, self._limits), now_ms)
        search.began_ms = search.page.back_to
        self._use_known(search)
        with self._guard:
            if self._start(search):
                self._kept[query, before] = search
                if len(self._kept) > MAX_KEPT:
                    _, oldest = self._kept.popitem(last=False)
                    oldest.visited_ms -= UNWATCHED_MS
        return search

    def close(self) -> None:
        self._is_closed = True
        self._pool.shutdown(cancel_futures=True)

    def _start(self, search: Search) -> bool:
        if search.is_running or search.error or not self._is_unfinished(search):
            return False
        search.is_running = True
        self._pool.submit(self._run, search)
        return True

    def _run(self, search: Search) -> None:
        try:
            rows = scan_transactions(self._context, cells=STATUS_CELLS, reverse=False)
            oldest = next((row.row for row in rows if is_row_key(row.row)), None)
            search.oldest_ms = None if oldest is None else created_ms(oldest)
            while self._is_unfinished(search) and self._is_watched(search):
                self._take_step(search)
        except TxnError as error:
            search.error = str(error)
        except Exception:
            LOG.exception("a search failed")
            search.error = "the search failed; the log of the console says why"
        finally:
            search.is_running = False

    def _take_step(self, search: Search) -> None:
        page = search.page
        left = COUNT - len(page.rows)
        more = find_page(self._context, search.query, page.next, self._limits, left)
        search.page = replace(more, rows=page.rows + more.rows, read=page.read + more.read)
        self._use_known(search)

    def _is_watched(self, search: Search) -> bool:
        unwatched_ms = self._context.clock.monotonic_ms() - search.visited_ms
        return unwatched_ms < UNWATCHED_MS and not self._is_closed

    def _is_unfinished(self, search: Search) -> bool:
        page = search.page
        if page.next is None or page.stopped in (Stop.FOUND, Stop.AGE):
            return False
        return not page.rows or page.stopped is not Stop.BYTES

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
