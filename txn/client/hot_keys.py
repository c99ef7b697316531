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
"""How long a block may stay first. Only real threads and tasks wait, so this is real time."""

ROUNDS = 5
"""How often a block waits for so long: a queue may be long and move on."""


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
    """A block's place in the queue of a lock. rounds: how often it still waits for LONGEST_S.
    first: who was first when it began to wait. is_first: done if the block may proceed."""

    ticket: HotKeyTicket
    lock: Key
    rounds: int
    first: HotKeyTicket | None = None
    is_first: SafeFuture[None] = field(default_factory=SafeFuture)


@dataclass(eq=False)
class MustQueue(Exception):
    """A task must wait at its place, while `must_wait`, and read again."""

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

    def wait(self, ticket: HotKeyTicket, locks: Iterable[Key], rounds: int = ROUNDS) -> list[Key]:
        """Queue at each lock, in order; return the locks that the block waited for and got. Raise
        MustQueue where a task has to wait."""
        if self._lock.locked():  # a signal handler never waits for its thread
            return []
        ticket.queues = self
        for lock in sorted(set(locks) - ticket.locks):
            place = Place(ticket, lock, rounds)
            if self._is_behind(place) and ticket.task is not None:
                raise MustQueue(self, place)
            while self.must_wait(place):
                with suppress(TimeoutError):
                    place.is_first.result(LONGEST_S)
        got, ticket.got = ticket.got, []
        return got

    def must_wait(self, place: Place) -> bool:
        """Return whether a block has to wait, for LONGEST_S at most, before it asks again. The one
        that was first for all of this time loses its place."""
        ticket, lock = place.ticket, place.lock
        with self._lock:
            queue = self._queues.get(lock)
            if not queue or ticket.is_over or lock not in ticket.locks:
                return False
            if queue[0].ticket is place.first and not place.is_first.done():
                self._remove(lock, place.first)
            if queue[0] is place or place.is_first.done():
                ticket.got += [lock] if place.first else []
                return False
            place.first, place.rounds = queue[0].ticket, place.rounds - 1
            if place.rounds < 0:
                self._remove(lock, ticket)
            return place.rounds >= 0

    def leave(self, ticket: HotKeyTicket) -> None:
        with self._lock:
            for lock in ticket.locks:
                self._remove(lock, ticket)
        ticket.locks.clear()

    def _is_behind(self, place: Place) -> bool:
        """Take a place, unless its block would wait for itself or in a cycle. Return whether others
        are before it."""
        ticket, lock = place.ticket, place.lock
        if ticket.thread is None:
            ticket.thread = get_ident()
        with self._lock:
            queue = self._queues.get(lock, deque())
            first = queue[0].ticket if queue else None
            if first is not None:
                is_own = first.thread == get_ident() or first.task is ticket.task is not None
                if is_own or lock < max(ticket.locks, default=lock):
                    return False
            if ticket.is_over:
                return False
            ticket.locks.add(lock)
            queue.append(place)
            self._queues[lock] = queue
        return first is not None

    def _remove(self, lock: Key, ticket: HotKeyTicket) -> None:
        queue = self._queues.get(lock, deque())
        for place in [place for place in queue if place.ticket is ticket]:
            queue.remove(place)
        if not queue:
            self._queues.pop(lock, None)
        elif not queue[0].is_first.done():
            queue[0].is_first.set_result(None)
