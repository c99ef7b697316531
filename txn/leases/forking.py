"""Forks: SQLite's connections must not be carried into another process.

A fork copies what SQLite knows of its files, but not its locks on them. A child that went on with
that would believe in locks which end with its parent, and write to files which others have deleted.
So before a fork connections are closed, to be opened again at their next use. Where a transaction
stays under way for too long they cannot be, and the child cannot use that database.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from txn.errors import StoreError
from txn.host.forks import Forked

FORK_PATIENCE_S = 10.0


class Gate(Forked):
    """Transactions on one database pass it; a fork waits until nobody is inside."""

    def __init__(self, name: str, close: Callable[[], None]) -> None:
        self._name = name
        self._close = close
        self._changed = threading.Condition(threading.RLock())
        self._inside: list[int] = []  # the thread of each
        self._forking = False
        self.expect_forks()

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Be inside; raises StoreError in a child that cannot use the database."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            if self._name in _CARRIED:
                message = "the leases were in use when this process was forked: fork before that"
                raise StoreError(message, url=self._name, pid=os.getpid())
            self._inside.append(threading.get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._inside.remove(threading.get_ident())
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Close, if transactions end in time, and let nobody in until after the fork."""
        self._changed.acquire()
        self._forking = True
        self._changed.wait_for(self._may_fork, FORK_PATIENCE_S)
        if not self._inside and self._name not in _CARRIED:
            self._close()

    def _may_fork(self) -> bool:
        """Whether there is nothing to wait for, or it is this thread's own and would never come."""
        return not self._inside or threading.get_ident() in self._inside

    def after_fork(self, in_child: bool) -> None:
        """Let everybody in again; a child only if nobody was inside."""
        if in_child and self._inside:
            _CARRIED.add(self._name)
        self._forking = False
        self._changed.notify_all()
        self._changed.release()


_CARRIED: set[str] = set()
"""Databases with a transaction of a parent's of this process."""
