"""Turns at keys in demand, among the threads of one engine, so that they wait and do not conflict.

A turn is a courtesy: nothing depends on having it. Who has waited for long goes on without; and no
circle of waiters can form, since a turn is waited for only behind lesser ones. A thread never waits
for itself, nor a child for the threads of its parent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import Event, Lock, get_ident

from txn.host.forks import Forked
from txn.model import Key

LONGEST_S = 2.0
"""How long a turn is waited for, by threads that really run: it is no time of the policy's."""


class Turn:
    """What one block has of lines, until its end."""

    __slots__ = ("_lines", "locks")

    def __init__(self) -> None:
        self.locks: set[Key] = set()
        self._lines: Lines | None = None

    def join(self, lines: Lines) -> None:
        """Have places in these lines."""
        self._lines = lines

    def end(self) -> None:
        """Let those go on who stand behind."""
        if self._lines is not None:
            self._lines.leave(self)


class _Place:
    __slots__ = ("came", "thread", "turn")

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.thread = get_ident()
        self.came = Event()


class Lines(Forked):
    """A line for each lock that somebody has a turn at; who is first has it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lines: dict[Key, deque[_Place]] = {}
        self.expect_forks()

    def after_fork(self, in_child: bool) -> None:
        """Forget in a child those who stand there: it has none of their threads."""
        if in_child:
            self._lock = Lock()
            self._lines = {}

    def wait(self, turn: Turn, locks: Iterable[Key]) -> list[Key]:
        """Give the block a turn at each lock, in order and in the order of coming, or none where
        that would take too long; return those that it had to wait for, and got."""
        turn.join(self)
        return [lock for lock in sorted(set(locks)) if self._wait_for_one(turn, lock)]

    def leave(self, turn: Turn) -> None:
        """Take the block out of its lines."""
        with self._lock:
            for lock in turn.locks:
                self._remove(turn, lock)
        turn.locks.clear()

    def _wait_for_one(self, turn: Turn, lock: Key) -> bool:
        if lock in turn.locks:
            return False
        place = _Place(turn)
        with self._lock:
            line = self._lines.setdefault(lock, deque())
            is_first = not line
            if not is_first and (
                line[0].thread == place.thread or max(turn.locks, default=lock) > lock
            ):
                return False
            line.append(place)
            turn.locks.add(lock)
        if is_first:
            return False
        place.came.wait(LONGEST_S)
        with self._lock:
            if line[0] is place:
                return True
            self._remove(turn, lock)
        turn.locks.discard(lock)
        return False

    def _remove(self, turn: Turn, lock: Key) -> None:
        line = self._lines.get(lock, deque())
        for place in [place for place in line if place.turn is turn]:
            line.remove(place)
        if line:
            line[0].came.set()
        else:
            self._lines.pop(lock, None)
