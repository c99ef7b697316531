"""What cannot be carried into a forked process as it is, and is told of each fork."""

from __future__ import annotations

import os
from threading import RLock
from weakref import WeakSet


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
_KNOWN: WeakSet[Forked] = WeakSet()
_TOLD: list[Forked] = []
"""Those that are being forked: all of them, until it is over, whatever becomes of them."""


def _before() -> None:
    _LOCK.acquire()
    _TOLD[:] = _KNOWN
    for each in _TOLD:
        each.before_fork()


def _after(in_child: bool) -> None:
    for each in reversed(_TOLD):
        each.after_fork(in_child)
    _TOLD.clear()
    _LOCK.release()


os.register_at_fork(
    before=_before, after_in_parent=lambda: _after(False), after_in_child=lambda: _after(True)
)
