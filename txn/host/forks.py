"""Fork safety: per-process state, and objects that prepare for a fork.

Locks, threads and connections do not survive a fork. A thread that is missing in the child may hold
a lock, and two processes on one connection mix their replies. An object creates such state in one
method, which `start_in_each_process` calls again in each child. `Forked` objects delay the fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock
from types import MethodType
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet


def start_in_each_process(start: Callable[[], None]) -> None:
    """Call a bound method now, and in each forked child while its object lives, in the thread that
    forks. An object has at most one such method."""
    start()
    method = cast(MethodType, start)
    with _LOCK:
        _STARTS[method.__self__] = method.__func__


class Forked:
    """An object whose methods are called around each fork, in the forking thread."""

    def expect_forks(self) -> None:
        """Register this object until it is garbage collected."""
        with _LOCK:
            _KNOWN.add(self)

    def before_fork(self) -> None:
        """Prepare to be copied; no state may change until `after_fork`."""

    def after_fork(self, in_child: bool) -> None:
        """Resume, in the parent or in the child."""


_LOCK = RLock()
_STARTS: WeakKeyDictionary[object, Callable[[Any], None]] = WeakKeyDictionary()
_KNOWN: WeakSet[Forked] = WeakSet()
_PREPARED: list[Forked] = []
"""Strong references during a fork, so that every `before_fork` is followed by an `after_fork`."""


def _before() -> None:
    _LOCK.acquire()
    _PREPARED[:] = _KNOWN
    for each in _PREPARED:
        each.before_fork()


def _after(in_child: bool) -> None:
    for owner, start in list(_STARTS.items()) if in_child else ():
        start(owner)
    for each in reversed(_PREPARED):
        each.after_fork(in_child)
    _PREPARED.clear()
    _LOCK.release()


os.register_at_fork(
    before=_before, after_in_parent=lambda: _after(False), after_in_child=lambda: _after(True)
)
