"""A few threads for what nobody waits for in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from txn.host.forks import Forked


class Crew(Forked):
    """At most so many threads, made as they are needed. A child of a fork has none of them, and
    makes its own; what its parent's were to do they do there."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self.expect_forks()

    def after_fork(self, in_child: bool) -> None:
        """Forget the parent's threads in a child."""
        if in_child:
            self._lock, self._pool = Lock(), None

    def hand_over(self, work: Callable[[], object]) -> bool:
        """Have the work done soon; False where there is no thread to be had, and it is the
        caller's. What the work raises is lost."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
            try:
                self._pool.submit(work)
            except RuntimeError:  # the interpreter is ending, or has no thread to give
                return False
            return True

    def close(self) -> None:
        """Wait until all that was handed over is done, and end the threads."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
