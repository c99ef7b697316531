"""What cannot be carried into a forked process as it is, and is told of each fork."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from threading import RLock
from typing import Protocol


class Forked(Protocol):
    """Something that is made ready for a fork, in the thread that forks."""

    def before_fork(self) -> None:
        """Be ready to be copied, and change no more."""
        ...

    def after_fork(self, in_child: bool) -> None:
        """Go on, in the parent or in its child."""
        ...


def around_forks(lock: RLock, all_of_them: Callable[[], Collection[Forked]]) -> None:
    """From now on tell all of them of each fork, while the lock that guards them is held."""

    def before() -> None:
        lock.acquire()
        for each in all_of_them():
            each.before_fork()

    def after(in_child: bool) -> None:
        for each in all_of_them():
            each.after_fork(in_child)
        lock.release()

    os.register_at_fork(
        before=before,
        after_in_parent=lambda: after(False),
        after_in_child=lambda: after(True),
    )
