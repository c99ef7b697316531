"""Mutual exclusion of the writers and openers of a store: one thread of one process at a time.

LMDB's own mutex makes a writer wait for as long as the owner is stopped; a waiter was even seen
asleep in it after the owner's death. So each writer first takes a lock that the kernel frees at its
owner's death, and waits for it until a deadline. Then no process ever sleeps in LMDB's mutex. The
kernel marks a dead thread's mutex before it frees the files of its process, so the next owner of
this lock finds the mutex marked, and LMDB repairs it.

It is a POSIX lock. A forked child does not inherit it, while a `flock` or a lock of an open file
description would outlive its owner in a child. It also reports its owner's process. It belongs to a
process, so threads first take a lock of their own. It ends early if the process closes another
descriptor of the file, as a copy of the directory does; LMDB's mutex still keeps writers apart
then.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import threading
from types import TracebackType

from txn.clock import SystemClock, limit_due, poll
from txn.errors import NotApplied

WRITER_FILE = "writer.lock"
WRITING = 0  # each takes two bytes: the lock, and first place in its queue
OPENING = 2
LINE_MS = 20
PATIENCE_MS = 10_000

_CLOCK = SystemClock()
_HELD = (BlockingIOError, PermissionError)  # POSIX allows either
_QUESTION = "hhqqi"  # Linux: kind of lock, whence, start, length, owner's process


def open_file(folder: str, *, may_write: bool) -> int | None:
    """Return a descriptor of the file whose bytes are the locks. A process opens one for each store
    at a time, because closing any of them frees all locks. Without the right to write, the lock can
    only be shared; the result is None if no process ever wrote there."""
    path = os.path.join(folder, WRITER_FILE)
    if may_write:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None


def find_patience(began_ms: int) -> int:
    """Return how long a writer that began to wait at `began_ms` may wait."""
    return limit_due(began_ms, began_ms + PATIENCE_MS) - began_ms


class FileLock:
    """A lock on bytes of the file, and a context manager that holds it.

    A writer that finds it free takes it, so quick writers do not lose time waking each other. A
    writer that has waited for `LINE_MS` takes the first place in the queue, and no other writer can
    pass it. Otherwise a process that writes without a pause would keep all others out.
    """

    __slots__ = ("_file", "_kind", "_lock", "_path", "_place", "_thread")

    def __init__(self, file: int, byte: int, path: str, *, is_shared: bool = False) -> None:
        """path: of the store, for errors. is_shared: with other processes that share it."""
        self._file = file
        self._kind = (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        self._lock = byte
        self._place = byte + 1
        self._path = path
        self._thread = threading.Lock()

    def __enter__(self) -> None:
        """Wait for the lock; NotApplied after `PATIENCE_MS`, or soon after a deadline."""
        began_ms = None
        if not self._thread.acquire(blocking=False):
            began_ms = self._wait_for_thread()
        try:
            if not self._take():
                self._wait(_CLOCK.monotonic_ms() if began_ms is None else began_ms)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a child that was forked meanwhile this frees nothing: the lock is its parent's.
        try:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 2, self._lock)
        finally:
            self._thread.release()

    def _wait_for_thread(self) -> int:
        """Wait for the other threads of this process; return the time when the wait began."""
        began_ms = _CLOCK.monotonic_ms()
        if not self._thread.acquire(timeout=find_patience(began_ms) / 1000):
            raise self._make_refusal(os.getpid(), fcntl.F_WRLCK, began_ms)
        return began_ms

    def _wait(self, began_ms: int) -> None:
        if poll(self._take, LINE_MS):
            return
        due_ms = began_ms + find_patience(began_ms)
        if not poll(self._take_in_line, due_ms - _CLOCK.monotonic_ms()):
            process, kind = self._find_owner(self._lock)
            if process is None:
                process, kind = self._find_owner(self._place)
            raise self._make_refusal(process, kind, began_ms)

    def _take(self) -> bool:
        try:
            fcntl.lockf(self._file, self._kind, 2, self._lock)
        except _HELD:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._place)
        return True

    def _take_in_line(self) -> bool:
        try:
            fcntl.lockf(self._file, self._kind, 1, self._place)  # repeated if held already
            fcntl.lockf(self._file, self._kind, 1, self._lock)
        except _HELD:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._place)
        return True

    def _find_owner(self, byte: int) -> tuple[int | None, int]:
        """Return the process that holds the byte, if known, and the kind of its lock."""
        if sys.platform != "linux":
            return None, fcntl.F_WRLCK
        question = struct.pack(_QUESTION, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        answer = fcntl.fcntl(self._file, fcntl.F_GETLK, question)
        kind, _, _, _, process = struct.unpack_from(_QUESTION, answer)
        return (process if kind != fcntl.F_UNLCK and process > 0 else None), kind

    def _make_refusal(self, owner: int | None, kind: int, began_ms: int) -> NotApplied:
        doing = "reading" if kind == fcntl.F_RDLCK else "writing to"
        return NotApplied(
            "another process or thread is "
            f"{'opening' if self._lock == OPENING else doing} the store and does not end",
            path=self._path,
            waited_ms=_CLOCK.monotonic_ms() - began_ms,
            process=owner,
        )
