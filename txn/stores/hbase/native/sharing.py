"""Combine the reads of many threads: reads that arrive during a request form the next one.

A read costs mostly the request, not its rows. The first thread reads at once. One of the threads
that arrive meanwhile then reads for all of them, with one try. A thread without an answer reads for
itself, so no thread gets the error of another thread's table or waits for another thread's slow
server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from txn.clock import Clock
from txn.errors import TxnError
from txn.host.holds import Hold
from txn.stores.hbase.native.connection import RemoteError
from txn.stores.hbase.native.items import ReadRow

PATIENCE_MS = 100
"""How long a read waits in the queue, and for how long a reader holds up others."""
TOGETHER_MS = 1_000
"""The time limit of a combined read."""
MOST = 1_000
"""The most rows in a combined read."""

Read = Callable[[Sequence[ReadRow], int], list[Any]]
"""Takes the rows and the deadline on the monotonic clock."""


class SharedRead:
    """A read. hold: of its thread, until it ends. news: in the queue, held until the read is done
    or its thread must read for its party. answers: None if the thread must read for itself."""

    __slots__ = ("answers", "due_ms", "hold", "items", "news", "party")

    hold: Hold
    news: Lock

    def __init__(self, items: Sequence[ReadRow], due_ms: int) -> None:
        self.items = items
        self.due_ms = due_ms
        self.party: Sequence[SharedRead] = ()
        self.answers: list[Any] | None = None


class SharedReads:
    """A queue of reads; safe for threads.

    read: answers each item, or raises.
    try_once: answers items that succeed at the first try, and None for the others.
    """

    def __init__(self, read: Read, try_once: Read, clock: Clock) -> None:
        self._read = read
        self._try_once = try_once
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget all waiting reads: in a forked process they belong to the parent's threads."""
        self._lock = Lock()
        self._line: list[SharedRead] = []
        self._reader: SharedRead | None = None
        self._since_ms = 0

    def read(self, items: Sequence[ReadRow], due_ms: int) -> list[Any]:
        """Return the answer to each item, read after this call began."""
        mine = SharedRead(items, due_ms)
        with (hold := Hold()):
            mine.hold = hold
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
        """Return True if there is no reader, or a slow one; otherwise join the queue."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            reader = self._reader
            is_reading = reader is not None and reader.hold.locked()  # otherwise interrupted
            if not is_reading or now_ms - self._since_ms > PATIENCE_MS:
                self._reader, self._since_ms = mine, now_ms
                return True
            mine.news = Lock()
            mine.news.acquire()
            self._line.append(mine)
            return False

    def _wait(self, mine: SharedRead) -> None:
        if mine.news.acquire(timeout=PATIENCE_MS / 1000):
            return
        with self._lock:
            if mine in self._line:
                self._line.remove(mine)
                return
        mine.news.acquire(timeout=TOGETHER_MS / 1000)  # either it is being read, or it must read

    def _read_for_all(self, party: Sequence[SharedRead]) -> None:
        items = [item for each in party for item in each.items]
        due_ms = min(self._clock.monotonic_ms() + TOGETHER_MS, *(each.due_ms for each in party))
        try:
            found = iter(self._try_once(items, due_ms))
        except (TxnError, RemoteError):
            return  # each thread reads for itself and gets its own error
        for each in party:
            answers = [next(found) for _ in each.items]
            each.answers = None if None in answers else answers

    def _leave(self, mine: SharedRead) -> None:
        """Stop reading: notify the rest of the party and call the next ones in the queue."""
        with self._lock:
            for each in mine.party[1:]:
                each.news.release()
            mine.party = ()
            if self._reader is mine:
                self._reader = None
                if self._line:
                    self._call_next()
            elif mine in self._line:
                self._line.remove(mine)

    def _call_next(self) -> None:
        reader = self._line[0]
        party, rows = [reader], len(reader.items)
        for each in self._line[1:]:
            rows += len(each.items)
            if rows > MOST:
                break
            party.append(each)
        del self._line[: len(party)]
        self._reader, self._since_ms = reader, self._clock.monotonic_ms()
        reader.party = party
        reader.news.release()
