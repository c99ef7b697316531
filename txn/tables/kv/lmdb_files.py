"""LMDB's files of a store, open in this process: made, checked, watched and closed.

LMDB trusts its files. So they are checked before it opens them, and at each transaction they must
still be the ones at their path, with all their pages, changed by nothing but LMDB. Otherwise what
this process writes would be lost, and what it reads is old: the store is closed to it.

A store that may not be written is read without LMDB's locks, which are in a file that readers write
to. Instead each of its read transactions keeps the writers out.
"""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple

import lmdb

from txn.errors import NotApplied, StoreClosedError
from txn.tables.kv import exclusion, files
from txn.tables.kv.exclusion import FileLock

_TRIES = 64


class Opening(NamedTuple):
    """How a store is opened. path: its directory."""

    path: str
    sync: bool
    max_readers: int
    read_only: bool


class LastUse(NamedTuple):
    """The data file that this process had open before, and its newest commit then."""

    inode: tuple[int, int]
    number: int


class LmdbFiles:
    """The open environment of a store, and the file whose bytes are locks.

    reading, writing: held during a transaction. lost: why the store can be used no more, if so.
    """

    def __init__(self, opening: Opening, map_size: int, last: LastUse | None) -> None:
        """map_size: at least. last: None at the first time."""
        path = opening.path
        self.lost: str | None = None
        self.reading: AbstractContextManager[None] = nullcontext()
        self.writing: AbstractContextManager[None] = nullcontext()
        self._data = os.path.join(path, files.DATA_FILE)
        self._lock = None if opening.read_only else os.path.join(path, files.LOCK_FILE)
        self._newest = 0  # commit that this process knows of
        self._checked = 0, 0  # the commit, and the size of a file that lacks free pages only
        self._file = exclusion.open_file(path, may_write=not opening.read_only)
        try:
            with self._lock_opening(opening):
                self._open(opening, map_size, last)
        except BaseException:
            self._close_file()
            raise

    def _lock_opening(self, opening: Opening) -> AbstractContextManager[None]:
        """Make the locks of transactions; return that of opening the files.

        The process that opens them first makes LMDB's lock file anew. Were it killed amid that, one
        that waits for it in LMDB would go on with the half, and write over commits.
        """
        file, path = self._file, opening.path
        if file is None:
            return nullcontext()
        if opening.read_only:
            self.reading = FileLock(file, exclusion.WRITING, path, is_shared=True)
            return nullcontext()
        self.writing = FileLock(file, exclusion.WRITING, path)
        return FileLock(file, exclusion.OPENING, path)

    def _open(self, opening: Opening, map_size: int, last: LastUse | None) -> None:
        number = self._prepare(opening, is_new=last is None)
        self._inode, self._size = self._identify(self._data)
        if last is not None and (last.inode != self._inode or last.number > number):
            raise self._lose("the store was replaced")
        self.environment = _open_environment(opening, map_size)
        self.max_readers: int = self.environment.info()["max_readers"]
        self._page_bytes: int = self.environment.stat()["psize"]
        if self._lock is None:
            return
        try:
            self._lock_inode, self._lock_size = self._identify(self._lock)
            files.complete_directory(opening.path)
        except BaseException:
            self.environment.close()
            raise

    def _prepare(self, opening: Opening, *, is_new: bool) -> int:
        """Return the number of the newest commit, after making what a new store lacks."""
        number = 0
        if is_new and not files.is_complete(opening.path):
            files.make_data_file(self._data)
        else:
            number = files.check_data_file(self._data, may_write=not opening.read_only)
        if not opening.read_only:
            files.make_lock_file(opening.path, opening.max_readers)
        return number

    def check(self) -> None:
        """Raise StoreClosedError unless the data file is the one that was opened, and as long."""
        known = self._size  # before the look: another thread may look later, and come first
        inode, size = self._identify(self._data)
        if inode != self._inode:
            raise self._lose("the store was replaced")
        if size < known:
            raise self._lose("the store's data file was cut short")
        self._size = size

    def check_locks(self) -> None:
        """Raise StoreClosedError unless the files of locks are those that were opened, and LMDB's
        is as long."""
        if self._file is not None and not os.fstat(self._file).st_nlink:
            raise self._lose("the store's lock file was replaced")
        if self._lock is None:
            return
        inode, size = self._identify(self._lock)
        if inode != self._lock_inode:
            raise self._lose("the store's lock file was replaced")
        if size < self._lock_size:
            os.truncate(self._lock, self._lock_size)  # else LMDB could not even be closed
            raise self._lose("the store's lock file was cut short")

    def check_transaction(self, transaction: lmdb.Transaction[bytes], *, writes: bool) -> None:
        """Raise StoreClosedError unless LMDB's newest commit fits a transaction that has just
        begun, after `check`, and all pages of it are in the file."""
        known = self._newest  # before the look, as in `check`
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
        """Take down the commit that was just made: none before it may come back."""
        self._newest = self.environment.info()["last_txnid"]

    def _is_stuck(self, before: int, newest: int) -> bool:
        """Return whether LMDB's lock file tells of a commit that is not one of the last two, and
        goes on to. The last one it may not know: a writer is killed before it tells."""
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
            with suppress(OSError):  # it only spares the next ones this check
                files.extend_data_file(self._data, whole)

    def close(self) -> LastUse:
        """Close the files; return what a later opening has to find."""
        number = 0
        with suppress(StoreClosedError, lmdb.Error):  # where it is spoilt, any file will do
            self.check_locks()
            self.check()
            number = self.environment.info()["last_txnid"]
        self.environment.close()
        self._close_file()
        return LastUse(self._inode, number)

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def _identify(self, path: str) -> tuple[tuple[int, int], int]:
        """Return the file's device and inode, and its size."""
        try:
            found = os.stat(path)
        except FileNotFoundError as error:
            raise self._lose("the store was moved or deleted", path) from error
        return (found.st_dev, found.st_ino), found.st_size

    def _lose(self, reason: str, path: str | None = None) -> StoreClosedError:
        self.lost = f"{reason} while this process used it: close it in every process, and open it"
        return StoreClosedError(self.lost, file=path or self._data)


def _open_environment(opening: Opening, map_size: int) -> lmdb.Environment:
    """Open LMDB's files, with a larger map if another process lets them outgrow it meanwhile, and
    after freeing the slots of dead readers if these are all."""
    slots: int | None = None
    for _ in range(_TRIES):
        try:
            environment = lmdb.Environment(
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
            environment.reader_check()
        except lmdb.MapResizedError:
            map_size *= 2
        except lmdb.ReadersFullError:
            if slots is not None:
                break
            slots = _free_dead_slots(opening.path)
        except lmdb.Error as error:
            if os.strerror(errno.EAGAIN) not in str(error):
                raise
            raise NotApplied(
                "another process of the same number uses the store: let containers that share a "
                "store share their process numbers, too",
                path=opening.path,
                process=os.getpid(),
            ) from error
        else:
            return environment
    raise refuse_reader(opening.path, slots)


def refuse_reader(path: str, slots: int | None) -> NotApplied:
    """Return the error for a store whose reader slots living processes have all taken."""
    return NotApplied(
        "all reader slots of the store are taken: end some processes that use it, or end all and "
        "open it with ?max_readers=",
        path=path,
        max_readers=slots,
    )


def _free_dead_slots(path: str) -> int:
    with tempfile.TemporaryDirectory() as model:
        lmdb.Environment(model, max_readers=1, lib_version=0).close()
        return files.free_dead_slots(path, model)
