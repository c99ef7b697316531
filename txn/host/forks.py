"""Fork safety: per-process state, and objects that prepare for a fork.

Locks, threads and connections do not survive a fork. A thread that is missing in the child may hold
a lock, and two processes on one connection mix their replies. An object creates such state in one
method, which `start_in_each_process` calls again in each child. `Forked` objects delay the fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from threading import Lock, RLock
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
    """An object whose methods are called around each fork, in the forking thread. Meanwhile that
    thread holds FORKING. An interrupted method is called again."""

    def expect_forks(self) -> None:
        """Register this object until it is garbage collected."""
        with _LOCK:
            _KNOWN.add(self)

    def before_fork(self) -> None:
        """Prepare to be copied; no state may change until `after_fork`."""

    def after_fork(self, in_child: bool) -> None:
        """Resume, in the parent or in the child."""


FORKING = Lock()
_LOCK = RLock()
_STARTS: WeakKeyDictionary[object, Callable[[Any], None]] = WeakKeyDictionary()
_KNOWN: WeakSet[Forked] = WeakSet()
_STARTING: list[tuple[object, Callable[[Any], None]]] = []
_LEFT: list[Forked] = []
_PREPARED: list[Forked] = []
"""Strong references during a fork, so that every `before_fork` is followed by an `after_fork`."""


def _before() -> None:
    if not _PREPARED:
        _STARTING[:] = _STARTS.items()
        known = list(_KNOWN)
        _LEFT[:] = reversed(known)
        _PREPARED[:] = known
    while _LEFT:
        _LEFT[-1].before_fork()
        _LEFT.pop()


def _after(in_child: bool) -> None:
    while _STARTING:
        owner, start = _STARTING[0]
        if in_child:
            start(owner)
        del _STARTING[0]
    while _PREPARED:
        _PREPARED[-1].after_fork(in_child)
        _PREPARED.pop()


# The interpreter calls each of these hooks, even if an interrupt ends another. So one that is there
# three times goes on where it was interrupted, and those of the locks, which are of C, always work.
# It calls the hooks before a fork from the last to the first.
for _ in range(3):
    os.register_at_fork(
        before=_before, after_in_parent=partial(_after, False), after_in_child=partial(_after, True)
    )
for acquire, release in (
    (partial(FORKING.acquire, False), FORKING.release),
    (_LOCK.acquire, _LOCK.release),
):
    os.register_at_fork(before=acquire, after_in_parent=release, after_in_child=release)
