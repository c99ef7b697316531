"""Group commit: writes that arrive during a commit share the next one.

The first write in the queue leads; there is no timer. Once it is the only writer of all processes,
it takes all writes that have arrived. A write returns when its commit is done. If one of several
raises, all are undone, and each runs again alone in its own thread.

A thread may be interrupted between any two steps. So a leader that fails removes its group from the
queue again, and a group counts as committed only when its leader says so. If even that was
interrupted, a thread that waits does it: see `txn.host.holds`.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any, TypeVar

from txn.clock import SystemClock
from txn.errors import MaybeApplied, NotApplied
from txn.host.holds import Holds, refuse_own_thread
from txn.tables.kv.exclusion import find_patience
from txn.tables.kv.ordered import Writer

R = TypeVar("R")
Body = Callable[[Writer], Any]
LOOK_S = 0.05  # how often a waiting thread looks whether the others live
_CLOCK = SystemClock()


class _Write:
    """A thread's write. It waits for `wake`, and then leads unless it has a group. is_leader: it
    leads its group, if it has one. hold: held by its thread until it leaves."""

    __slots__ = ("body", "durable", "group", "hold", "is_leader", "result", "wake")

    def __init__(self, body: Body, durable: bool) -> None:
        self.body = body
        self.durable = durable
        self.result: Any = None
        self.group: _Group | None = None
        self.is_leader = False
        self.hold = Lock()
        self.wake = Lock()
        self.wake.acquire()


class _Group:
    """The outcome of writes that share a commit. is_undone: it certainly was not made. failure: the
    error's message; the error itself would form a cycle, and keep a transaction open that an
    interrupt left in its traceback."""

    __slots__ = ("failure", "is_done", "is_undone")

    def __init__(self) -> None:
        self.failure = ""
        self.is_done = self.is_undone = False


class CommitQueue:
    """The writes of one process that may share a commit. commit: runs a function in a new
    transaction, then asks the second if it must be durable. harmless: if nothing was written."""

    __slots__ = ("_commit", "_harmless", "_lock", "_queue", "_threads")

    def __init__(
        self, commit: Callable[[Body, Callable[[], bool]], Any], harmless: type[Exception]
    ) -> None:
        self._commit = commit
        self._harmless = harmless
        self._lock = Lock()
        self._threads: Holds[int] = Holds()
        self._queue: list[_Write] = []  # writes in the current commit, then waiting ones

    def write(self, body: Callable[[Writer], R], durable: bool) -> R:
        """Run the function in a commit, shared or alone; return its result."""
        mine = _Write(body, durable)
        with mine.hold: group = self._write_in_group(mine)  # fmt: skip  # noqa: E701
        if group.is_undone:
            mine.result = self._commit(body, lambda: durable)
        elif not group.is_done:
            raise MaybeApplied(group.failure or "the commit was interrupted")
        result: R = mine.result
        return result

    def _write_in_group(self, mine: _Write) -> _Group:
        threads, own = self._threads, get_ident()
        threads.add(mine.hold, own)
        if len(threads.entries) > 1 and threads.list_held().count(own) > 1:
            raise refuse_own_thread()
        try:
            with self._lock:
                self._queue.append(mine)
                leads = self._queue[0] is mine
            group = None if leads else self._wait(mine)
            if group is None:
                mine.is_leader = True
                group = mine.group = _Group()
                self._lead(mine, group)
        except BaseException:  # an interrupt: the other writes would have no leader
            self._leave(mine)
            raise
        return group

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
        """Wait for the commit; None: this thread must lead. Raise NotApplied after too long."""
        began_ms = _CLOCK.monotonic_ms()
        patience_ms = find_patience(began_ms)
        while not mine.wake.acquire(timeout=min(LOOK_S, patience_ms / 1000)):
            for each in self._queue.copy():
                if not each.hold.locked():  # its thread was interrupted as it left
                    self._leave(each)
            waited_ms = _CLOCK.monotonic_ms() - began_ms
            if waited_ms >= patience_ms and self._leave(mine):  # otherwise its commit is running
                message = "another thread is writing to the store and does not end"
                raise NotApplied(message, waited_ms=waited_ms)
        return mine.group

    def _leave(self, mine: _Write) -> bool:
        """Remove a write from the queue with the writes that it leads, and wake the next leader.
        Return False if another thread leads it. After an interrupt it may be called again."""
        with self._lock:
            mine.is_leader = mine.is_leader or mine.group is None
            group = mine.group = mine.group or _Group()
            if not mine.is_leader:
                return False
            led = [each for each in self._queue if each.group is group]
            rest = [each for each in self._queue if each.group is not group]
            for each in rest[:1] + led:
                if each.wake.locked():
                    each.wake.release()
            self._queue[:] = rest
            return True
