"""Queues at hot keys, among the threads of one engine, so that they wait instead of conflicting.

Queues are an optimization only: correctness never depends on them. A block proceeds without its
place after a long wait, and never waits for its own thread or in a cycle. A block that stays first
for too long loses its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import get_ident

from txn.host.forks import start_in_each_process
from txn.host.holds import OwnLock, SafeEvent
from txn.model import Key

LONGEST_S = 2.0
"""The longest wait in a queue. Only real threads wait, so this is real time."""


class HotKeyTicket:
    """A block's places in the queues of hot keys. waits: whether its thread may wait."""

    __slots__ = ("locks", "queues", "waits")

    def __init__(self, waits: bool = True) -> None:
        self.waits = waits
        self.queues: HotKeyQueues | None = None
        self.locks: set[Key] = set()

    def end(self) -> None:
        """Let the next blocks in the queues proceed."""
        if self.queues is not None:
            self.queues.leave(self)


class _Waiter:
    """A block's place in a queue; the first block may proceed."""

    __slots__ = ("is_first", "thread", "ticket")

    def __init__(self, ticket: HotKeyTicket) -> None:
        self.ticket = ticket
        self.thread = get_ident()
        self.is_first = SafeEvent()


class HotKeyQueues:
    """The blocks at each hot lock, in order of arrival: the first may proceed."""

    def __init__(self) -> None:
        start_in_each_process(self._start)

    def _start(self) -> None:
        # The queued threads do not exist in a fork's child.
        self._lock = OwnLock()
        self._queues: dict[Key, deque[_Waiter]] = {}

    def wait(self, ticket: HotKeyTicket, locks: Iterable[Key]) -> list[Key]:
        """Queue at each lock, in order; return the locks that the block waited for and got."""
        if not ticket.waits or self._lock.locked():  # a signal handler never waits for its thread
            return []
        ticket.queues = self
        return [lock for lock in sorted(set(locks) - ticket.locks) if self._wait_at(ticket, lock)]

    def leave(self, ticket: HotKeyTicket) -> None:
        with self._lock:
            for lock in ticket.locks:
                self._remove(lock, ticket)
        ticket.locks.clear()

    def _wait_at(self, ticket: HotKeyTicket, lock: Key) -> bool:
        waiter = _Waiter(ticket)
        with self._lock:
            queue = self._queues.setdefault(lock, deque())
            first = queue[0] if queue else None
            if first is not None and (
                first.thread == waiter.thread or lock < max(ticket.locks, default=lock)
            ):
                return False
            ticket.locks.add(lock)
            queue.append(waiter)
        if first is None or waiter.is_first.wait(LONGEST_S):
            return first is not None
        with self._lock:
            if queue[0] is first:
                self._remove(lock, first.ticket)
            if queue[0] is not waiter:
                self._remove(lock, ticket)
                ticket.locks.discard(lock)
        return lock in ticket.locks

    def _remove(self, lock: Key, ticket: HotKeyTicket) -> None:
        queue = self._queues.get(lock, deque())
        for waiter in [waiter for waiter in queue if waiter.ticket is ticket]:
            queue.remove(waiter)
        if queue:
            queue[0].is_first.set()
        else:
            self._queues.pop(lock, None)
