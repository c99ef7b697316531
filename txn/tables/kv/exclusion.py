"""Mutual exclusion of the writers and openers of a store: one thread of one process at a time.

LMDB's own mutex makes a writer wait for as long as the owner is stopped; a waiter was even seen
asleep in it after the owner's death. So each writer first takes a lock that the kernel frees at its
owner's death, and waits for it until a deadline. Then no process ever sleeps in LMDB's mutex. The
kernel marks a dead thread's mutex before it frees the files of its process, so the next owner of
this lock finds the mutex marked, and LMDB repairs it.

It is a POSIX lock. A forked child does not inherit it, while a `flock` or a lock of an open file
description would outlive its owner in a child. It also reports its owner's process. It belongs to a
process, so threads first take turns. It ends when the process closes any descriptor of the file. So
each owner opens the file for itself and needs only close it. A copy of the directory ends it early;
LMDB's mutex still keeps writers apart then.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from collections.abc import Callable
from io import FileIO
from threading import Lock, get_ident

from txn.clock import SystemClock, limit_due, poll
from txn.errors import NotApplied
from txn.host.holds import Holds, refuse_own_thread

WRITER_FILE = "writer.lock"
WRITING = 0  # each takes two bytes: the lock, and first place in its queue
OPENING = 2
LINE_MS = 20
PATIENCE_MS = 10_000

_CLOCK = SystemClock()
_HELD = (BlockingIOError, PermissionError)  # POSIX allows either
_QUESTION = "hhqqi"  # Linux: kind of lock, whence, start, length, owner's process


def open_file(folder: str, *, may_write: bool) -> FileIO | None:
    """Return the file whose bytes are the locks, to watch it. Without the right to write, the lock
    can only be shared; the result is None if no process ever wrote there."""
    path = os.path.join(folder, WRITER_FILE)
    if may_write:
        return FileIO(path, "r+", opener=create_public)
    try:
        return FileIO(path)
    except FileNotFoundError:
        return None


def create_public(path: str, flags: int) -> int:
    """Open a file, which is made readable for all if it is absent."""
    return os.open(path, flags | os.O_CREAT, 0o644)


def find_patience(began_ms: int) -> int:
    """Return how long a writer that began to wait at `began_ms` may wait."""
    return limit_due(began_ms, began_ms + PATIENCE_MS) - began_ms


class FileLock:
    """A lock on bytes of the file, which threads and processes wait for until a deadline.

        with (hold := Lock()), lock.open(hold) as file:
            lock.acquire(file)

    `open` waits for the other threads of this process. Closing the file frees the lock, and no line
    of Python runs for it: see `txn.host.holds`.

    A process that finds it free takes it, so quick writers do not lose time waking each other. One
    that has waited for `LINE_MS` takes the first place in the queue, and no other can pass it.
    Otherwise a process that writes without a pause would keep all others out.
    """

    __slots__ = ("_began_ms", "_check", "_file", "_kind", "_lock", "_path", "_place", "_threads")

    def __init__(
        self, path: str, byte: int, check: Callable[[], None], *, is_shared: bool = False
    ) -> None:
        """path: of the store. check: raises an error if the store is no longer there. is_shared:
        with other processes that share it."""
        self._check = check
        self._file = os.path.join(path, WRITER_FILE)
        self._kind = (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        self._lock = byte
        self._place = byte + 1
        self._path = path
        self._threads: Holds[int] = Holds()  # the first one has the lock
        self._began_ms: int | None = None  # when this one began to wait, if it did

    def open(self, hold: Lock) -> FileIO:
        """Wait for the other threads; NotApplied after `PATIENCE_MS`, or soon after a deadline, or
        InvalidRequestError if this thread has the lock itself."""
        threads, own = self._threads, get_ident()
        threads.add(hold, own)
        began_ms = None
        if len(threads.entries) > 1 and not threads.is_first(hold):
            if threads.list_held().count(own) > 1:
                raise refuse_own_thread(self._path)
            began_ms = _CLOCK.monotonic_ms()
            if not poll(lambda: threads.is_first(hold), find_patience(began_ms)):
                raise self._make_refusal(os.getpid(), fcntl.F_WRLCK, began_ms)
        self._began_ms = began_ms
        try:
            return FileIO(self._file, "r" if self._kind & fcntl.LOCK_SH else "r+")
        except OSError as error:
            self._check()
            message = "cannot open the store's lock file"
            raise NotApplied(message, file=self._file, reason=error.strerror) from error

    def acquire(self, file: FileIO) -> None:
        """Wait for the other processes, as `open` does for threads."""
        if not self._take(file):
            began_ms = self._began_ms
            self._wait(file, _CLOCK.monotonic_ms() if began_ms is None else began_ms)

    def _wait(self, file: FileIO, began_ms: int) -> None:
        if poll(lambda: self._take(file), LINE_MS):
            return
        due_ms = began_ms + find_patience(began_ms)
        in_line = (self._place, 1), (self._lock, 1)
        if not poll(lambda: self._take(file, *in_line), due_ms - _CLOCK.monotonic_ms()):
            process, kind = self._find_owner(file, self._lock)
            if process is None:
                process, kind = self._find_owner(file, self._place)
            raise self._make_refusal(process, kind, began_ms)

    def _take(self, file: FileIO, *steps: tuple[int, int]) -> bool:
        """Lock the bytes of each step, even if held already; by default both bytes at once."""
        try:
            for byte, count in steps or ((self._lock, 2),):
                fcntl.lockf(file, self._kind, count, byte)
        except _HELD:
            return False
        fcntl.lockf(file, fcntl.LOCK_UN, 1, self._place)
        return True

    def _find_owner(self, file: FileIO, byte: int) -> tuple[int | None, int]:
        """Return the process that holds the byte, if known, and the kind of its lock."""
        if sys.platform != "linux":
            return None, fcntl.F_WRLCK
        question = struct.pack(_QUESTION, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        answer = fcntl.fcntl(file, fcntl.F_GETLK, question)
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
