"""A small thread pool for background work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger
from threading import Lock
from typing import Any

from txn.host.forks import start_in_each_process
from txn.host.holds import OwnLock, SafeCondition

LOG = getLogger("txn")


def make_executor(most: int, name: str) -> ThreadPoolExecutor:
    """Return an executor that survives an interrupt of a thread that submits work."""
    pool: Any = ThreadPoolExecutor(most, thread_name_prefix=name)
    pool._idle_semaphore._cond = SafeCondition()
    executor: ThreadPoolExecutor = pool
    return executor


class WorkerPool:
    """A pool of at most `most` threads, started on demand. A forked child has a new pool; the
    parent does the work submitted before the fork."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        start_in_each_process(self._start)

    def _start(self) -> None:
        self._lock = OwnLock()
        self._pool: ThreadPoolExecutor | None = None

    def submit_work(self, work: Callable[..., object], *args: object) -> bool:
        """Submit work; its errors are logged. Return False if the caller must do it instead."""
        claim = Lock()

        def do() -> None:
            if claim.acquire(blocking=False):
                self.do(work, *args)

        with self._lock:
            if self._pool is None:
                self._pool = make_executor(self._most, self._name)
            try:
                self._pool.submit(do)
            except RuntimeError:  # the interpreter is exiting, or cannot start a thread
                # The work is in the pool's queue already, so a running thread may have claimed it.
                return not claim.acquire(blocking=False)
            return True

    def do(self, work: Callable[..., object], *args: object) -> None:
        """Do the work in the caller's thread and log its errors. Errors that end a thread, such as
        KeyboardInterrupt, are raised as well."""
        try:
            work(*args)
        except BaseException as error:
            LOG.exception("background work failed: work=%s pool=%s", work.__qualname__, self._name)
            if not isinstance(error, Exception):
                raise

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
