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
    """The write of a thread, which waits for `wake`, and then leads unless it has a group.
    is_leader: of its group, if any."""

    __slots__ = ("body", "durable", "group", "is_leader", "result", "wake")

    def __init__(self, body: Body, durable: bool) -> None:
        self.body = body
        self.durable = durable
        self.result: Any = None
        self.group: _Group | None = None
        self.is_leader = False
        self.wake = Lock()
        self.wake.acquire()

    def call(self) -> None:
        """Wake its thread; nobody else does so meanwhile."""
        if self.wake.locked():
            self.wake.release()


class _Group:
    """The outcome of writes that share a commit. is_done: it was made; is_undone: it certainly was
    not. failure: what its error said; the error itself would be part of a cycle, and keep open a
    transaction that an interrupt left in its traceback."""

    __slots__ = ("failure", "is_done", "is_undone")

    def __init__(self) -> None:
        self.failure = ""
        self.is_done = self.is_undone = False


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
                mine.is_leader = True
                group = mine.group = _Group()
                self._lead(mine, group)
        except BaseException:  # an interrupt comes anywhere: nobody would lead the others
            self._leave(mine)
            raise
        if group.is_undone:
            mine.result = self._commit(body, lambda: durable)
        elif not group.is_done:
            raise MaybeApplied(group.failure or "the commit was interrupted")
        result: R = mine.result
        return result

    def _lead(self, mine: _Write, group: _Group) -> None:
        writes: list[_Write] = []
        has_run = False

        def body(writer: Writer) -> None:
            nonlocal has_run
            with self._lock:
                for each in self._queue:
                    each.group = each.group or group
                writes.extend(each for each in self._queue if each.group is group)
            for each in writes:
                each.result = each.body(writer)
            has_run = True

        try:
            self._commit(body, lambda: any(each.durable for each in writes))
            group.is_done = True
        except BaseException as error:
            group.failure = str(error)
            group.is_undone = not has_run or isinstance(error, self._harmless)
            if len(writes) < 2 or not group.is_undone or not isinstance(error, Exception):
                raise
        finally:
            self._leave(mine)

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
            mine.is_leader = mine.is_leader or mine.group is None
            group = mine.group = mine.group or _Group()
            if not mine.is_leader:
                return False
            led = [each for each in self._queue if each.group is group]
            rest = [each for each in self._queue if each.group is not group]
            for each in rest[:1] + led:
                each.call()
            self._queue[:] = rest
            return True
