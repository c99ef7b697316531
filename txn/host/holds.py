"""Holds: what threads hold, in a form that no interrupt can leave behind.

Ctrl-C, a signal handler that raises, and an asynchronous exception come between any two steps, also
in a `finally` clause and before the first line of a Python `__exit__`. Only a `with` over an object
of C, such as a lock or a file, always ends: the interpreter runs no Python for it. So a thread
holds a new lock of its own in a `with`, and what it registers counts only while that lock is held:

    with (hold := Lock()):
        with self._lock:  # guards the decision
            self._holds.add(hold, get_ident())
        ...

Where each line may be interrupted, as in the tests, the block is one line: its end would be one
more. No other thread ever acquires that lock, so none is woken by its end: `poll` looks again.
"""

from __future__ import annotations

from concurrent.futures import Future
from threading import Condition, Event, Lock, RLock
from typing import Any, Generic, TypeVar
from weakref import ref

from txn.errors import InvalidRequestError

V = TypeVar("V")

_REMOVED: Any = object()

Hold = Lock  # a lock that only its owner acquires


def refuse_own_thread(path: str | None = None) -> InvalidRequestError:
    """Return the error for a thread that would wait for itself, which no repetition helps."""
    return InvalidRequestError(
        "this thread is writing to the store already: use it after that, and not in a signal "
        "handler, a finalizer or `atomically`; nothing was written",
        path=path,
    )


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
        self.entries.pop(ref(hold), None)

    def is_first(self, hold: Lock) -> bool:
        """Return True if no older one is held."""
        for each in list(self.entries):
            lock = each()
            if lock is hold:
                return True
            if lock is not None and lock.locked():
                return False
        return True

    def list_held(self) -> list[V]:
        """Return the values whose locks are held, the oldest first."""
        found = []
        for each in list(self.entries):  # of the keys alone: tuples would let the collector run
            lock = each()
            if lock is not None and lock.locked():
                value = self.entries.get(each, _REMOVED)
                if value is not _REMOVED:
                    found.append(value)
        return found


class OwnLock:
    """A lock that tells a thread whether it holds it; reentrant, but nobody is to rely on that.

    The interpreter finds the methods of a `with` in slots of the class: those of C.
    """

    __slots__ = ("__enter__", "__exit__", "locked")

    def __init__(self) -> None:
        lock: Any = RLock()
        self.__enter__ = lock.__enter__
        self.__exit__ = lock.__exit__
        self.locked = lock._is_owned  # by this thread; its condition variables use that, too


class SafeCondition(Condition):
    """A condition variable that a `with` takes and frees as it does its lock."""

    __slots__ = ("__enter__", "__exit__")

    def __init__(self) -> None:
        super().__init__(lock := RLock())
        self.__enter__ = lock.__enter__  # type: ignore[method-assign]
        self.__exit__ = lock.__exit__  # type: ignore[method-assign]


class SafeEvent(Event):
    """An event whose own lock is never left behind by an interrupted call, such as `wait`."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = SafeCondition()


class SafeFuture(Future[V]):
    """A future of which the same holds."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = SafeCondition()
