"""Holds: what threads hold, in a form that no interrupt can leave behind.

Ctrl-C, a signal handler that raises, and an asynchronous exception come between any two steps, also
in a `finally` clause and before the first line of a Python `__exit__`. Only a `with` over an object
of C, such as a lock, a file or LMDB's transaction, always ends: the interpreter runs no Python for
it. So a thread holds a new lock of its own in a `with`, and what it registers counts only while
that lock is held:

    with (hold := Lock()):
        with self._lock:  # guards the decision
            self._holds.add(hold, get_ident())
        ...
        self._holds.remove(hold)

No other thread ever acquires that lock, so none is woken by its end: `poll` looks again.
"""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar
from weakref import ref

V = TypeVar("V")


class Holds(Generic[V]):
    """Values, each registered by a thread for as long as it holds a lock of its own.

    entries: by weak reference to the lock; they may include some that have ended.
    """

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[ref[Lock], V] = {}

    def add(self, hold: Lock, value: V) -> None:
        """Register a value; the caller has acquired the lock by a `with`."""
        self.entries[ref(hold)] = value

    def remove(self, hold: Lock) -> None:
        """Forget it early. An interrupted call does no harm."""
        self.entries.pop(ref(hold), None)

    def list_held(self) -> list[V]:
        """Return the values whose locks are held, the oldest first."""
        for each in list(self.entries):
            lock = each()
            if lock is None or not lock.locked():
                self.entries.pop(each, None)
        return list(self.entries.values())
