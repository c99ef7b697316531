"""State that each process makes for itself, and objects that a fork has to wait for.

Locks, threads and connections do not go through a fork: a thread that the child does not have may
hold the lock, and two processes on one connection mix their replies. An object keeps them apart in
one method that makes them, and has it called again in each child by `start_in_each_process`. A
`Forked` is for the few that a fork has to wait for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock
from types import MethodType
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet


def start_in_each_process(start: Callable[[], None]) -> None:
    """Call a method of an object now, and again in each child of a fork, in the thread that forks,
    for as long as the object lives. An object has one such method."""
    start()
    method = cast(MethodType, start)
    with _LOCK:
        _STARTS[method.__self__] = method.__func__


class Forked:
    """Something that is told of each fork, from `expect_forks` on, in the thread that forks."""

    def expect_forks(self) -> None:
        """Be told of forks for as long as this exists."""
        with _LOCK:
            _KNOWN.add(self)

    def before_fork(self) -> None:
        """Be ready to be copied, and change no more."""

    def after_fork(self, in_child: bool) -> None:
        """Go on, in the parent or in its child."""


_LOCK = RLock()
_STARTS: WeakKeyDictionary[object, Callable[[Any], None]] = WeakKeyDictionary()
_KNOWN: WeakSet[Forked] = WeakSet()
_TOLD: list[Forked] = []
"""Those that are being forked: all of them, until it is over, whatever becomes of them."""


def _before() -> None:
    _LOCK.acquire()
    _TOLD[:] = _KNOWN
    for each in _TOLD:
        each.before_fork()


def _after(in_child: bool) -> None:
    for owner, start in list(_STARTS.items()) if in_child else ():
        start(owner)
    for each in reversed(_TOLD):
        each.after_fork(in_child)
    _TOLD.clear()
    _LOCK.release()


os.register_at_fork(
    before=_before, after_in_parent=lambda: _after(False), after_in_child=lambda: _after(True)
)
