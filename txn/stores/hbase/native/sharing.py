"""Reads of many threads in one request: what they want while one is under way goes as the next.

Most of what a read costs is the request, not its rows. The thread that comes first reads; of those
that come meanwhile one reads for all, afterwards, with one try. Who gets no answer in it reads for
itself: nobody is told of another one's missing table, or waits for another one's slow server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from txn.clock import Clock
from txn.errors import TxnError
from txn.stores.hbase.native.connection import RemoteError
from txn.stores.hbase.native.items import ReadRow

PATIENCE_MS = 100
"""How long a read waits in line before it goes by itself, and for how long others wait for one."""
TOGETHER_MS = 1_000
"""How long a read for many may take."""
MOST = 1_000
"""Rows that are read together."""

Read = Callable[[Sequence[ReadRow], int], list[Any]]
"""Told what to read, and when it is to end by the monotonic clock."""


class SharedRead:
    """A read in line. news: held until somebody has read it, or it is to read for its party.
    answers: None where it is to read for itself."""

    __slots__ = ("answers", "due_ms", "items", "news", "party")

    def __init__(self, items: Sequence[ReadRow], due_ms: int) -> None:
        self.items = items
        self.due_ms = due_ms
        self.party: Sequence[SharedRead] = ()
        self.answers: list[Any] | None = None
        self.news = Lock()
        self.news.acquire()


class SharedReads:
    """A line of reads. Safe for many threads.

    read: answers each item, or raises. try_once: answers those that it can without asking again,
    with None for the others.
    """

    def __init__(self, read: Read, try_once: Read, clock: Clock) -> None:
        self._read = read
        self._try_once = try_once
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget all that wait, as in a forked process: those are its parent's threads."""
        self._lock = Lock()
        self._line: list[SharedRead] = []
        self._reader: SharedRead | None = None
        self._since_ms = 0

    def read(self, items: Sequence[ReadRow], due_ms: int) -> list[Any]:
        """Return the answer to each item, each read after this was called."""
        mine = SharedRead(items, due_ms)
        try:
            if not self._may_read(mine):
                self._wait(mine)
            if self._reader is mine:
                if len(mine.party) > 1:
                    self._read_for_all(mine.party)
                else:
                    mine.answers = self._read(items, due_ms)
        finally:
            self._leave(mine)
        return self._read(items, due_ms) if mine.answers is None else mine.answers

    def _may_read(self, mine: SharedRead) -> bool:
        """Whether nobody reads, or somebody has for long; else it stands in line."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if self._reader is None or now_ms - self._since_ms > PATIENCE_MS:
                self._reader, self._since_ms = mine, now_ms
                return True
            self._line.append(mine)
            return False

    def _wait(self, mine: SharedRead) -> None:
        if mine.news.acquire(timeout=PATIENCE_MS / 1000):
            return
        with self._lock:
            if mine in self._line:
                self._line.remove(mine)
                return
        mine.news.acquire(timeout=TOGETHER_MS / 1000)  # it is just being read, or is to read

    def _read_for_all(self, party: Sequence[SharedRead]) -> None:
        items = [item for each in party for item in each.items]
        due_ms = min(self._clock.monotonic_ms() + TOGETHER_MS, *(each.due_ms for each in party))
        try:
            found = iter(self._try_once(items, due_ms))
        except (TxnError, RemoteError):
            return  # each reads for itself, and is told what is wrong with its own
        for each in party:
            answers = [next(found) for _ in each.items]
            each.answers = None if None in answers else answers

    def _leave(self, mine: SharedRead) -> None:
        """Wait no more: those of its party have news, and the next ones in line are called."""
        with self._lock:
            for each in mine.party[1:]:
                each.news.release()
            mine.party = ()
            if self._reader is mine:
                self._call_next()
            elif mine in self._line:
                self._line.remove(mine)

    def _call_next(self) -> None:
        party, rows = self._line[:1], sum(len(each.items) for each in self._line[:1])
        for each in self._line[1:]:
            rows += len(each.items)
            if rows > MOST:
                break
            party.append(each)
        del self._line[: len(party)]
        self._reader, self._since_ms = None, self._clock.monotonic_ms()
        if party:
            self._reader = party[0]
            party[0].party = party
            party[0].news.release()
