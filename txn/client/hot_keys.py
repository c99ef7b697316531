"""Queues at hot keys, among the threads of one engine, so that they wait and do not conflict.

A place in a queue is a courtesy: nothing depends on it. A block goes on without one rather than
wait for long, for its own thread, or in a circle. A block that keeps its turn for long loses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import Event, Lock, get_ident

from txn.host.forks import Forked
from txn.model import Key

LONGEST_S = 2.0
"""How long a turn is waited for. Only threads that really run wait for one, so it is real time."""


class HotKeyTicket:
    """What one block has of turns, until its end. waits: whether its thread may wait for one."""

    __slots__ = ("lines", "locks", "waits")

    def __init__(self, waits: bool = True) -> None:
        self.waits = waits
        self.lines: HotKeyQueues | None = None
        self.locks: set[Key] = set()

    def end(self) -> None:
        """Let those go on who come next."""
        if self.lines is not None:
            self.lines.leave(self)


class _Place:
    """A block's place in a line: once it is the first, the turn is its own."""

    __slots__ = ("is_first", "thread", "ticket")

    def __init__(self, ticket: HotKeyTicket) -> None:
        self.ticket = ticket
        self.thread = get_ident()
        self.is_first = Event()


class HotKeyQueues(Forked):
    """Who has the turn at each lock, and who comes next, in the order of coming."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lines: dict[Key, deque[_Place]] = {}
        self.expect_forks()

    def after_fork(self, in_child: bool) -> None:
        """Forget in a child who stood in line: it has none of their threads."""
        if in_child:
            self._lock = Lock()
            self._lines = {}

    def wait(self, ticket: HotKeyTicket, locks: Iterable[Key]) -> list[Key]:
        """Wait for a turn at each lock, in order; return those that were waited for and had."""
        if not ticket.waits:
            return []
        ticket.lines = self
        return [lock for lock in sorted(set(locks) - ticket.locks) if self._wait_at(ticket, lock)]

    def leave(self, ticket: HotKeyTicket) -> None:
        """Take the block out of its lines."""
        with self._lock:
            for lock in ticket.locks:
                self._remove(lock, ticket)
        ticket.locks.clear()

    def _wait_at(self, ticket: HotKeyTicket, lock: Key) -> bool:
        place = _Place(ticket)
        with self._lock:
            line = self._lines.setdefault(lock, deque())
            first = line[0] if line else None
            if first is not None and (
                first.thread == place.thread or lock < max(ticket.locks, default=lock)
            ):
                return False
            line.append(place)
            ticket.locks.add(lock)
        if first is None or place.is_first.wait(LONGEST_S):
            return first is not None
        with self._lock:
            if line[0] is first:
                self._remove(lock, first.ticket)
            if line[0] is not place:
                self._remove(lock, ticket)
                ticket.locks.discard(lock)
        return lock in ticket.locks

    def _remove(self, lock: Key, ticket: HotKeyTicket) -> None:
        line = self._lines.get(lock, deque())
        for place in [place for place in line if place.ticket is ticket]:
            line.remove(place)
        if line:
            line[0].is_first.set()
        else:
            self._lines.pop(lock, None)
