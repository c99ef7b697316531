"""Group commit: what threads write while another commit is under way becomes one commit after it.

The first write in the queue leads, without a timer: once it is the only writer of all processes, it
takes all that have come by then. A write returns when the commit that it is part of is done. Where
one of several raises, all are undone, and each is run again alone, in its own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

from txn.clock import SystemClock
from txn.errors import MaybeApplied, NotApplied
from txn.tables.kv.exclusion import find_patience
from txn.tables.kv.ordered import Writer

R = TypeVar("R")
Body = Callable[[Writer], Any]
_CLOCK = SystemClock()


class _Write:
    """What a thread writes; it waits for `wake`, and then leads unless the write is over."""

    __slots__ = ("body", "durable", "error", "is_over", "is_undone", "result", "wake")

    def __init__(self, body: Body, durable: bool) -> None:
        self.body = body
        self.durable = durable
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = self.is_undone = False
        self.wake = Lock()
        self.wake.acquire()


class CommitQueue:
    """The writes of one process that may share a commit. commit: runs a function in a transaction
    of its own, and asks the second one afterwards whether its commit must be durable. harmless: the
    error that comes before anything is written, of the commit too."""

    __slots__ = ("_commit", "_harmless", "_lock", "_queue", "_taken")

    def __init__(
        self, commit: Callable[[Body, Callable[[], bool]], Any], harmless: type[Exception]
    ) -> None:
        self._commit = commit
        self._harmless = harmless
        self._lock = Lock()
        self._queue: list[_Write] = []  # the first of which leads
        self._taken = 0  # so many of them are being committed

    def write(self, body: Callable[[Writer], R], durable: bool) -> R:
        """Run the function in a commit, with others or alone; return its result."""
        mine = _Write(body, durable)
        try:
            with self._lock:
                self._queue.append(mine)
                leads = self._queue[0] is mine
            if not leads:
                self._wait(mine)
            if not mine.is_over:
                self._lead()
        except BaseException:  # an interrupt comes anywhere: nobody would lead the others
            self._leave(mine)
            raise
        if mine.is_undone:
            mine.result = self._commit(body, lambda: durable)
        elif mine.error is not None:
            raise MaybeApplied("the commit failed", reason=str(mine.error)) from mine.error
        result: R = mine.result
        return result

    def _lead(self) -> None:
        group: list[_Write] = []
        has_run = False

        def body(writer: Writer) -> None:
            nonlocal has_run
            with self._lock:
                group.extend(self._queue)
                self._taken = len(group)
            for each in group:
                each.result = each.body(writer)
            has_run = True

        try:
            self._commit(body, lambda: any(each.durable for each in group))
        except BaseException as error:
            is_undone = not has_run or isinstance(error, self._harmless)
            for each in group:
                each.error, each.is_undone = error, is_undone
            if len(group) < 2 or not is_undone or not isinstance(error, Exception):
                raise
        finally:
            with self._lock:
                del self._queue[: self._taken or 1]
                self._taken = 0
                self._call_leader()
            for each in group[1:]:
                each.is_over = True
                each.wake.release()

    def _wait(self, mine: _Write) -> None:
        """Wait until it is over, or has to lead; NotApplied where that takes too long."""
        began_ms = _CLOCK.monotonic_ms()
        came = left = False
        try:
            came = mine.wake.acquire(timeout=find_patience(began_ms) / 1000)
        finally:  # after an interrupt, too
            if not came:
                left = self._leave(mine)
        if left:
            message = "another thread is writing to the store and does not end"
            raise NotApplied(message, waited_ms=_CLOCK.monotonic_ms() - began_ms)
        if not came:
            mine.wake.acquire()  # its commit is under way

    def _leave(self, mine: _Write) -> bool:
        """Take back a write; False: it is being committed, or over."""
        with self._lock:
            if mine not in self._queue[self._taken :]:
                return False
            was_first = self._queue[0] is mine
            self._queue.remove(mine)
            if was_first:
                self._call_leader()
            return True

    def _call_leader(self) -> None:
        if self._queue:
            self._queue[0].wake.release()
