"""A few threads for work that runs in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger
from threading import Lock

from txn.host.forks import start_in_each_process

LOG = getLogger("txn")


class Crew:
    """At most so many threads, made as they are needed. A child of a fork makes its own; the work
    that was handed over before the fork is done by its parent."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        start_in_each_process(self._start)

    def _start(self) -> None:
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None

    def hand_over(self, work: Callable[..., object], *args: object) -> bool:
        """Have the work done soon. Return False where there is no thread for it: then the caller
        has to do it. Errors of the work go to the log."""
        claim = Lock()

        def do() -> None:
            if claim.acquire(blocking=False):
                self.do(work, *args)

        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
            try:
                self._pool.submit(do)
            except RuntimeError:  # the interpreter is ending, or has no thread to give
                # Those that there are may find it in the pool's queue all the same.
                return not claim.acquire(blocking=False)
            return True

    def do(self, work: Callable[..., object], *args: object) -> None:
        """Do the work in the caller's thread. Its errors go to the log; one that ends a thread, as
        KeyboardInterrupt does, is raised as well."""
        try:
            work(*args)
        except BaseException as error:
            LOG.exception(
                "failed where nobody waits: work=%s crew=%s", work.__qualname__, self._name
            )
            if not isinstance(error, Exception):
                raise

    def close(self) -> None:
        """Wait until all that was handed over is done, and end the threads."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
