"""LMDB's files of a store in this process: created, checked, watched and closed.

LMDB trusts its files, so they are checked before it opens them. At each transaction they must still
be the files at their path, with all their pages, changed only by LMDB. Otherwise this process would
lose its writes and read old data, so it closes the store.

A read-only store is read without LMDB's locks, because readers write to their file. Instead each
read transaction keeps writers out.
"""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from io import FileIO
from threading import Lock
from typing import NamedTuple

import lmdb

from txn.errors import NotApplied, StoreClosedError
from txn.tables.kv import exclusion, files
from txn.tables.kv.exclusion import FileLock

_TRIES = 64


class Opening(NamedTuple):
    path: str
    sync: bool
    max_readers: int
    read_only: bool


class LastUse(NamedTuple):
    """The data file that this process had open before, and its newest commit then."""

    inode: tuple[int, int]
    number: int


class LmdbFiles:
    """The open environment of a store, and the file whose bytes are locks. reading, writing: the
    locks that transactions need. lost: why the store is unusable, if it is. is_open: `open` has
    ended, and `close` has not begun."""

    environment: lmdb.Environment

    def __init__(self, opening: Opening) -> None:
        path = opening.path
        self.opening = opening
        self.is_open = False
        self.opened_by = Lock()  # held by the caller of `open`
        self.lost: str | None = None
        self.reading: FileLock | None = None
        self.writing = FileLock(path, exclusion.WRITING, self.check_files)
        self._data = os.path.join(path, files.DATA_FILE)
        self._lock = None if opening.read_only else os.path.join(path, files.LOCK_FILE)
        self._newest = 0  # newest commit that this process knows
        self._checked = 0, 0  # the commit and size of a file that lacks only free pages
        self._opened: FileIO | None = None
        self._file: int | None = None  # the descriptor of that
        self._last: LastUse | None = None

    def open(self, map_size: int, last: LastUse | None) -> None:
        """Open the files. map_size: a minimum. last: None at the first opening.

        The process that opens them first recreates LMDB's lock file. If it were killed halfway, a
        process that waits for it in LMDB would continue with the incomplete file and overwrite
        commits. So processes open them in turn. `close` closes what an interrupt leaves.
        """
        opening = self.opening
        self._opened = exclusion.open_file(opening.path, may_write=not opening.read_only)
        if self._opened is not None:
            self._file = self._opened.fileno()
        if self._opened is None or opening.read_only:
            if self._opened is not None:
                writing, check = exclusion.WRITING, self.check_files
                self.reading = FileLock(opening.path, writing, check, is_shared=True)
            self._open(opening, map_size, last)
        else:
            lock = FileLock(opening.path, exclusion.OPENING, lambda: None)
            with (hold := Lock()), lock.open(hold) as file:
                lock.acquire(file)
                self._open(opening, map_size, last)
        self.is_open = True

    def _open(self, opening: Opening, map_size: int, last: LastUse | None) -> None:
        number = self._prepare(opening, is_new=last is None)
        self._inode, self._size = self._identify(self._data)
        if last is not None and (last.inode != self._inode or last.number > number):
            raise self._lose("the store was replaced")
        self._open_environment(opening, map_size)
        self.max_readers: int = self.environment.info()["max_readers"]
        self._page_bytes: int = self.environment.stat()["psize"]
        if self._lock is not None:
            self._lock_inode, self._lock_size = self._identify(self._lock)
            files.complete_directory(opening.path)

    def _open_environment(self, opening: Opening, map_size: int) -> None:
        """Open LMDB's files, with a larger map if another process outgrows it meanwhile, and after
        freeing the slots of dead readers if there are no others."""
        slots: int | None = None
        for _ in range(_TRIES):
            try:
                self.environment = lmdb.Environment(
                    opening.path,
                    map_size=map_size,
                    metasync=False,
                    sync=opening.sync,
                    max_readers=opening.max_readers,
                    max_spare_txns=1,
                    readonly=opening.read_only,
                    lock=not opening.read_only,
                    create=False,
                    lib_version=0,
                )
                self.environment.reader_check()
            except lmdb.MapResizedError:
                map_size *= 2
            except lmdb.ReadersFullError:
                if slots is not None:
                    break
                with tempfile.TemporaryDirectory() as model:
                    lmdb.Environment(model, max_readers=1, lib_version=0).close()
                    slots = files.free_dead_slots(opening.path, model)
            except lmdb.Error as error:
                if os.strerror(errno.EAGAIN) not in str(error):
                    raise
                raise NotApplied(
                    "another process of the same number uses the store: let containers that share "
                    "a store share their process numbers, too",
                    path=opening.path,
                    process=os.getpid(),
                ) from error
            else:
                return
        raise refuse_reader(opening.path, slots)

    def _prepare(self, opening: Opening, *, is_new: bool) -> int:
        """Create what a new store lacks; return the number of the newest commit."""
        number = 0
        if is_new and not files.is_complete(opening.path):
            files.make_data_file(self._data)
        else:
            number = files.check_data_file(self._data, may_write=not opening.read_only)
        if not opening.read_only:
            files.make_lock_file(opening.path, opening.max_readers)
        return number

    def check_files(self) -> None:
        self.check()
        self.check_locks()

    def check(self) -> None:
        """Raise StoreClosedError unless the data file is the opened one and has not shrunk."""
        known = self._size  # read first: a later check by another thread may finish sooner
        inode, size = self._identify(self._data)
        if inode != self._inode:
            raise self._lose("the store was replaced")
        if size < known:
            raise self._lose("the store's data file was cut short")
        self._size = size

    def check_locks(self) -> bool:
        """Raise StoreClosedError if a lock file was replaced or LMDB's has shrunk. Return True if
        a flush of any process failed, and none has mended that."""
        file = None if self._file is None else os.fstat(self._file)
        if file is not None and not file.st_nlink:
            raise self._lose("the store's lock file was replaced")
        if self._lock is None or file is None:
            return False
        inode, size = self._identify(self._lock)
        if inode != self._lock_inode:
            raise self._lose("the store's lock file was replaced")
        if size < self._lock_size:
            os.truncate(self._lock, self._lock_size)  # otherwise LMDB could not even be closed
            raise self._lose("the store's lock file was cut short")
        return file.st_size > 0

    def note_flush(self, *, failed: bool) -> None:
        """Note for the writers of all processes whether a flush failed: the file of locks has a
        byte then. It takes no room on a full disk; where not even that works, no commit does."""
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file, failed)

    def check_transaction(self, transaction: lmdb.Transaction[bytes], *, writes: bool) -> None:
        """Raise StoreClosedError unless LMDB's newest commit fits a transaction that has just
        begun, after `check`, and all its pages are in the file."""
        known = self._newest  # read first, as in `check`
        info = self.environment.info()
        newest, before = info["last_txnid"], transaction.id() - writes
        self._newest = newest
        is_behind = newest < max(before, known)
        if is_behind or (newest > before and (writes or self._is_stuck(before, newest))):
            raise self._lose("something else has changed the store's data file")
        whole = (info["last_pgno"] + 1) * self._page_bytes
        if whole > self._size:
            self._check_short(newest, whole, writes)

    def note_commit(self) -> None:
        """Record the commit just made; no earlier one may become the newest again."""
        self._newest = self.environment.info()["last_txnid"]

    def _is_stuck(self, before: int, newest: int) -> bool:
        """Return True if LMDB's lock file keeps reporting a commit that is not one of the last two.
        It may lack the last one, if a writer was killed before it updated the file."""
        if newest == before + 1:
            return False
        with self.environment.begin() as later:
            return later.id() == before

    def _check_short(self, newest: int, whole: int, writes: bool) -> None:
        if (newest, self._size) != self._checked:
            try:
                files.check_data_file(self._data, may_write=False)
            except NotApplied as error:
                raise self._lose("the store's data file was cut short") from error
            self._checked = newest, self._size
        if writes:
            with suppress(OSError):  # only spares later ones this check
                files.extend_data_file(self._data, whole)

    def close(self) -> LastUse | None:
        """Close the files; return what a later opening must find, unless they were never open. An
        interrupted call is repeated."""
        if self.is_open:
            number = 0
            with suppress(StoreClosedError, lmdb.Error):  # if damaged, accept any later one
                self.check_locks()
                self.check()
                number = self.environment.info()["last_txnid"]
            self._last = LastUse(self._inode, number)
            self.is_open = False
        if hasattr(self, "environment"):
            self.environment.close()
        if self._opened is not None:
            self._opened.close()
        return self._last

    def _identify(self, path: str) -> tuple[tuple[int, int], int]:
        try:
            found = os.stat(path)
        except FileNotFoundError as error:
            raise self._lose("the store was moved or deleted", path) from error
        return (found.st_dev, found.st_ino), found.st_size

    def _lose(self, reason: str, path: str | None = None) -> StoreClosedError:
        self.lost = f"{reason} while this process used it: close it in every process, and open it"
        return StoreClosedError(self.lost, file=path or self._data)


def refuse_reader(path: str, slots: int | None) -> NotApplied:
    """Return the error for a store whose reader slots are all taken by living processes."""
    return NotApplied(
        "all reader slots of the store are taken: end some processes that use it, or end all and "
        "open it with ?max_readers=",
        path=path,
        max_readers=slots,
    )
