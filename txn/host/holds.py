"""Holds: what threads hold, in a form that no interrupt can leave behind.

Ctrl-C, a signal handler that raises, and an asynchronous exception come between any two steps, also
in a `finally` clause and before the first line of a Python `__exit__`. Only a `with` over an object
of C, such as a lock or a file, always ends: the interpreter runs no Python for it. So a thread
holds a new lock of its own in a `with`, and what it registers counts only while that lock is held:

    with (hold := Lock()):
        with self._lock:  # guards the decision
            self._holds.add(hold, get_ident())
        ...

No other thread ever acquires that lock, so none is woken by its end: `poll` looks again.
"""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar
from weakref import ref

V = TypeVar("V")


class Holds(Generic[V]):
    """Values, each registered by a thread for as long as it holds a lock of its own.

    entries: by weak reference to the lock, which removes them. They may include some that have
    ended: those of an interrupted thread whose error is kept.
    """

    __slots__ = ("_forget", "entries")

    def __init__(self) -> None:
        self.entries: dict[ref[Lock], V] = {}
        self._forget = self.entries.pop

    def add(self, hold: Lock, value: V) -> None:
        """Register a value; the caller has acquired the lock by a `with`."""
        self.entries[ref(hold, self._forget)] = value

    def remove(self, hold: Lock) -> None:
        """Remove a value early."""
        self.entries.pop(ref(hold), None)

    def is_first(self, hold: Lock) -> bool:
        """Return True if no older one is held."""
        for each in self.entries.copy():
            lock = each()
            if lock is hold:
                return True
            if lock is not None and lock.locked():
                return False
        return True

    def list_held(self) -> list[V]:
        """Return the values whose locks are held, the oldest first."""
        found = []
        for each, value in self.entries.copy().items():
            lock = each()
            if lock is not None and lock.locked():
                found.append(value)
        return found
