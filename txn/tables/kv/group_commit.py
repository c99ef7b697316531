"""Group commit: what threads write while another commit is under way becomes one commit after it.

The first write in the queue leads, without a timer: once it is the only writer of all processes, it
takes all that have come by then. A write returns when the commit that it is part of is done. Where
one of several raises, all are undone, and each is run again alone, in its own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, Literal, TypeVar

import lmdb

from txn.clock import SystemClock
from txn.errors import MaybeApplied, NotApplied
from txn.tables.kv.exclusion import find_patience
from txn.tables.kv.ordered import Writer

R = TypeVar("R")
Commit = Callable[[Callable[[Writer], Any], Callable[[], bool]], Any]
"""Runs a function in a transaction and commits it; asks afterwards whether that must be durable."""

_CLOCK = SystemClock()


class _Write:
    """A write of a thread, which waits for `wake`, to lead or to find a state."""

    __slots__ = ("body", "durable", "error", "result", "state", "wake")

    def __init__(self, body: Callable[[Writer], Any], durable: bool) -> None:
        self.body = body
        self.durable = durable
        self.result: Any = None
        self.error: BaseException | None = None
        self.state: Literal["waiting", "done", "undone", "unknown"] = "waiting"
        self.wake = Lock()
        self.wake.acquire()


class CommitQueue:
    """The writes of one process that may share a commit."""

    __slots__ = ("_commit", "_lock", "_queue", "_taken")

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._lock = Lock()
        self._queue: list[_Write] = []  # the first of which leads
        self._taken = 0  # so many of them are being committed

    def write(self, body: Callable[[Writer], R], durable: bool) -> R:
        """Run the function in a commit, with others or alone; return its result."""
        mine = _Write(body, durable)
        with self._lock:
            self._queue.append(mine)
            leads = self._queue[0] is mine
        if not leads:
            self._wait(mine)
        if mine.state == "waiting":
            self._lead(mine)
        if mine.state == "undone":
            return self._commit(body, lambda: durable)  # type: ignore[no-any-return]
        if mine.state == "unknown":
            raise MaybeApplied("the commit failed", reason=str(mine.error)) from mine.error
        return mine.result  # type: ignore[no-any-return]

    def _lead(self, mine: _Write) -> None:
        group: list[_Write] = []
        state: Literal["undone", "unknown", "done"] = "undone"

        def body(writer: Writer) -> None:
            nonlocal state
            with self._lock:
                group.extend(self._queue)
                self._taken = len(group)
            for each in group:
                each.result = each.body(writer)
            state = "unknown"

        try:
            self._commit(body, lambda: any(each.durable for each in group))
            state = "done"
        except BaseException as error:
            if isinstance(error, lmdb.MapFullError):
                state = "undone"  # it is found out before anything is written
            for each in group:
                each.error = error
            if len(group) < 2 or state == "unknown" or not isinstance(error, Exception):
                raise
        finally:
            self._finish(mine, group, state)

    def _finish(
        self, mine: _Write, group: list[_Write], state: Literal["undone", "unknown", "done"]
    ) -> None:
        """Let the next one lead, and the others of the group go on."""
        with self._lock:
            del self._queue[: self._taken or 1]
            self._taken = 0
            self._call_leader()
        for each in group:
            each.state = state
            if each is not mine:
                each.wake.release()

    def _wait(self, mine: _Write) -> None:
        """Wait until it is done, or has to lead; NotApplied where that takes too long."""
        began_ms = _CLOCK.monotonic_ms()
        try:
            if mine.wake.acquire(timeout=find_patience(began_ms) / 1000):
                return
            waited_ms = _CLOCK.monotonic_ms() - began_ms
            message = "another thread is writing to the store and does not end"
            if self._leave(mine):
                raise NotApplied(message, waited_ms=waited_ms)
            mine.wake.acquire()  # its commit is under way
        except BaseException:  # an interrupt, too
            self._leave(mine)
            raise

    def _leave(self, mine: _Write) -> bool:
        """Take back a write; False: it is too late, or was done before."""
        with self._lock, suppress(ValueError):
            at = self._queue.index(mine, self._taken)
            del self._queue[at]
            if not at:
                self._call_leader()
            return True
        return False

    def _call_leader(self) -> None:
        if self._queue:
            self._queue[0].wake.release()
