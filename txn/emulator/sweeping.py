"""Compacting what is served, a little at a time, by a process that has nothing else to do.

HBase compacts by itself; here the supervisor does, between two signals: it drops what has expired
and delete markers that nothing needs any more. A step is a page of a table, and writers wait only
for pages on which there is something to drop. Several sweepers of a store do no harm.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Collection, Iterator

from txn.clock import Clock
from txn.errors import TxnError, annotate
from txn.tables.admin import Admin
from txn.tables.kv.ordered import OrderedStore
from txn.tables.tables import TableStore

PAGE_REST_MS = 100
ROUND_REST_MS = 600_000
LOOK_AGAIN_MS = 1_000  # a signal that another thread took just before does not wake this one

Chore = Callable[[], int]
"""Does a little work; returns for how many milliseconds there is none."""


def wait(awaited: Collection[int], chore: Chore) -> int:
    """Return the first of these blocked signals that comes; until then, see to the chore."""
    rest_ms = 0
    while True:
        if rest_ms <= 0:
            rest_ms = chore()
        came = signal.sigtimedwait(awaited, min(rest_ms, LOOK_AGAIN_MS) / 1000)
        # Of a process that was stopped until its time was over, Python returns what is no signal.
        if came is not None and came.si_signo in awaited:
            return came.si_signo
        rest_ms -= LOOK_AGAIN_MS


class Sweeper:
    """Goes over all tables again and again. keep_deletes_ms: how long delete markers stay; longer
    than rows of transactions do."""

    def __init__(
        self, keys: OrderedStore, clock: Clock, keep_deletes_ms: int, log: logging.Logger
    ) -> None:
        self._admin = Admin(keys, clock)
        self._tables = TableStore(keys, clock)
        self._clock = clock
        self._keep_deletes_ms = keep_deletes_ms
        self._ahead_ms = clock.wall_ms() - clock.monotonic_ms()
        self._log = log
        self._rests = self._round()

    def step(self) -> int:
        """Compact a page; return how long to rest. A failure ends the round and is logged: the
        caller has workers to see to."""
        try:
            for rest_ms in self._rests:
                return rest_ms
        except Exception:  # noqa: BLE001  (the workers have to be seen to)
            self._log.exception("a round of compactions failed")
        self._rests = self._round()
        return ROUND_REST_MS

    def _round(self) -> Iterator[int]:
        for table in self._admin.tables():
            try:
                yield from self._pages(table)
            except TxnError as error:  # it was dropped or disabled, or the disk is full
                self._log.info(annotate("gave up a compaction", cause=str(error)))

    def _pages(self, table: bytes) -> Iterator[int]:
        resume: bytes | None = b""
        while resume is not None:
            purge_before_ms = self._find_time() - self._keep_deletes_ms
            resume = self._tables.compact_page(table, resume, purge_before_ms)
            yield PAGE_REST_MS

    def _find_time(self) -> int:
        """Return the time of day; where it was set forward since the sweeper began, as it would
        have been without that: nothing grows old by setting a clock."""
        return min(self._clock.wall_ms(), self._clock.monotonic_ms() + self._ahead_ms)
