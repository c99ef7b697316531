"""Queues at hot keys, among the blocks of one engine, so that they wait instead of conflicting.

Queues are an optimization only: correctness never depends on them. A block proceeds without its
place after a long wait, and never waits for its own thread or task, or in a cycle. A block that
stays first for too long loses its place. A task does not wait in a thread of the few that tasks
share: the task that is first needs one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import get_ident

from txn.host.forks import start_in_each_process
from txn.host.holds import OwnLock, SafeFuture
from txn.model import Key

LONGEST_S = 2.0
"""The longest wait in a queue. Only real threads and tasks wait, so this is real time."""


@dataclass(eq=False, slots=True)
class HotKeyTicket:
    """A block's places in the queues of hot keys.

    task, thread: the asyncio task that runs the block, and the thread of its event loop; None: the
    thread that waits runs the block. got: the locks that it waited for and got.
    """

    queues: HotKeyQueues | None = None
    locks: set[Key] = field(default_factory=set)
    got: list[Key] = field(default_factory=list)
    task: object = None
    thread: int | None = None
    is_over: bool = False

    def end(self) -> None:
        """Let the next blocks in the queues proceed. A read still in progress takes no place."""
        self.is_over = True
        if self.queues is not None:
            self.queues.leave(self)


@dataclass(eq=False, slots=True)
class Place:
    """A block's place in the queue of a lock, behind `first`. is_first: done if it may proceed."""

    ticket: HotKeyTicket
    lock: Key
    first: HotKeyTicket | None
    is_first: SafeFuture[None] = field(default_factory=SafeFuture)


@dataclass(eq=False)
class MustQueue(Exception):
    """A task must wait until its place is first, call `end_wait`, and read again."""

    queues: HotKeyQueues
    place: Place


class HotKeyQueues:
    """The blocks at each hot lock, in order of arrival: the first may proceed."""

    def __init__(self) -> None:
        start_in_each_process(self._start)

    def _start(self) -> None:
        # The queued threads do not exist in a fork's child.
        self._lock = OwnLock()
        self._queues: dict[Key, deque[Place]] = {}

    def wait(self, ticket: HotKeyTicket, locks: Iterable[Key]) -> list[Key]:
        """Queue at each lock, in order; return the locks that the block waited for and got. Raise
        MustQueue where a task has to wait."""
        if self._lock.locked():  # a signal handler never waits for its thread
            return []
        ticket.queues = self
        for lock in sorted(set(locks) - ticket.locks):
            place = self._take_place(ticket, lock)
            if place is None or place.first is None:
                continue
            if ticket.task is not None:
                raise MustQueue(self, place)
            with suppress(TimeoutError):
                place.is_first.result(LONGEST_S)
            self.end_wait(place)
        got, ticket.got = ticket.got, []
        return got

    def leave(self, ticket: HotKeyTicket) -> None:
        with self._lock:
            for lock in ticket.locks:
                self._remove(lock, ticket)
        ticket.locks.clear()

    def _take_place(self, ticket: HotKeyTicket, lock: Key) -> Place | None:
        """Return a place, or None for a block that would wait for itself or in a cycle."""
        if ticket.thread is None:
            ticket.thread = get_ident()
        with self._lock:
            queue = self._queues.get(lock, deque())
            first = queue[0].ticket if queue else None
            is_own = first is not None and _is_own(ticket, first)
            is_cyclic = first is not None and lock < max(ticket.locks, default=lock)
            if is_own or is_cyclic or ticket.is_over:
                return None
            ticket.locks.add(lock)
            queue.append(place := Place(ticket, lock, first))
            self._queues[lock] = queue
        return place

    def end_wait(self, place: Place) -> None:
        """End a wait. A block that is not first replaces the one it waited for, or goes on without
        a place."""
        ticket, lock = place.ticket, place.lock
        if not place.is_first.done():
            with self._lock:
                queue = self._queues[lock]
                if queue[0].ticket is place.first:
                    self._remove(lock, place.first)
                if queue[0] is not place:
                    self._remove(lock, ticket)
                    return
        ticket.got.append(lock)

    def _remove(self, lock: Key, ticket: HotKeyTicket) -> None:
        queue = self._queues.get(lock, deque())
        for place in [place for place in queue if place.ticket is ticket]:
            queue.remove(place)
        if not queue:
            self._queues.pop(lock, None)
        elif not queue[0].is_first.done():
            queue[0].is_first.set_result(None)


def _is_own(ticket: HotKeyTicket, first: HotKeyTicket) -> bool:
    """Whether the first block needs the thread, or the task, that would wait for it."""
    return first.thread == get_ident() or (ticket.task is not None and first.task is ticket.task)
