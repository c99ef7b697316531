"""Group commit: what threads write while another commit is under way becomes one commit after it.

The first write in the queue leads, without a timer: once it is the only writer of all processes, it
takes all that have come by then. A write returns when the commit that it is part of is done. Where
one of several raises, all are undone, and each is run again alone, in its own thread.

A thread may be interrupted between any two steps. So a leader that ends by an error takes its group
out of the queue once more, and no group counts as committed until its leader says so.
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
    """What a thread writes; it waits for `wake`, and then leads unless it has a group."""

    __slots__ = ("body", "durable", "group", "result", "wake")

    def __init__(self, body: Body, durable: bool) -> None:
        self.body = body
        self.durable = durable
        self.result: Any = None
        self.group: _Group | None = None
        self.wake = Lock()
        self.wake.acquire()

    def call(self) -> None:
        """Wake its thread; nobody else does so meanwhile."""
        if self.wake.locked():
            self.wake.release()


class _Group:
    """The writes of one commit. is_done: it has been made; is_undone: it certainly has not."""

    __slots__ = ("error", "has_run", "is_done", "is_undone", "leader", "writes")

    def __init__(self, leader: _Write) -> None:
        self.leader = leader
        self.writes: list[_Write] = []
        self.error: BaseException | None = None
        self.has_run = self.is_done = self.is_undone = False


class CommitQueue:
    """The writes of one process that may share a commit. commit: runs a function in a transaction
    of its own, and asks the second one afterwards whether its commit must be durable. harmless: the
    error that comes before anything is written, of the commit too."""

    __slots__ = ("_commit", "_harmless", "_lock", "_queue")

    def __init__(
        self, commit: Callable[[Body, Callable[[], bool]], Any], harmless: type[Exception]
    ) -> None:
        self._commit = commit
        self._harmless = harmless
        self._lock = Lock()
        self._queue: list[_Write] = []  # those that are being committed, then those that wait

    def write(self, body: Callable[[Writer], R], durable: bool) -> R:
        """Run the function in a commit, with others or alone; return its result."""
        mine = _Write(body, durable)
        try:
            with self._lock:
                self._queue.append(mine)
                leads = self._queue[0] is mine
            group = None if leads else self._wait(mine)
            if group is None:
                group = mine.group = _Group(mine)
                self._lead(group)
        except BaseException:  # an interrupt comes anywhere: nobody would lead the others
            self._leave(mine)
            raise
        if group.is_undone:
            mine.result = self._commit(body, lambda: durable)
        elif not group.is_done:
            message = str(group.error or "") or "the commit was interrupted"
            raise MaybeApplied(message) from group.error
        result: R = mine.result
        return result

    def _lead(self, group: _Group) -> None:
        def body(writer: Writer) -> None:
            with self._lock:
                for each in self._queue:
                    each.group = each.group or group
                group.writes = [each for each in self._queue if each.group is group]
            for each in group.writes:
                each.result = each.body(writer)
            group.has_run = True

        try:
            self._commit(body, lambda: any(each.durable for each in group.writes))
            group.is_done = True
        except BaseException as error:
            group.error = error
            group.is_undone = not group.has_run or isinstance(error, self._harmless)
            if len(group.writes) < 2 or not group.is_undone or not isinstance(error, Exception):
                raise
        finally:
            self._leave(group.leader)

    def _wait(self, mine: _Write) -> _Group | None:
        """Wait until its commit is over; None: it has to lead. NotApplied where that takes too
        long."""
        began_ms = _CLOCK.monotonic_ms()
        if not mine.wake.acquire(timeout=find_patience(began_ms) / 1000):
            if self._leave(mine):
                message = "another thread is writing to the store and does not end"
                raise NotApplied(message, waited_ms=_CLOCK.monotonic_ms() - began_ms)
            mine.wake.acquire()  # its commit is under way
        return mine.group

    def _leave(self, mine: _Write) -> bool:
        """Take a write out of the queue, with those that it leads, and call who leads next; False:
        another one leads it. Where this was interrupted, it may be done again."""
        with self._lock:
            group = mine.group = mine.group or _Group(mine)
            if group.leader is not mine:
                return False
            led = [each for each in self._queue if each.group is group]
            rest = [each for each in self._queue if each.group is not group]
            for each in rest[:1] + led:
                each.call()
            self._queue[:] = rest
            return True
