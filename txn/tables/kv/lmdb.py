"""The ordered key-value store on LMDB: durable, for many threads and processes at once.

Each commit flushes its data before the page that makes it visible. So a power failure can only undo
whole last commits, and never damages the file. `durable=True` also flushes that page before the
call returns. With `sync=False` nothing is flushed: a store survives kills, but no power failure.

After a failed flush the kernel may take pages for written that never reach the disk, and later
flushes succeed without them. So the next writer, of any process, first commits and flushes anew:
that writes the other meta page, and all pages that it needs were flushed before.

A local transaction starts again, after a repair, if the map is too small, another process has
resized it, or dead readers hold all slots. Writers and openers exclude each other through
`txn.tables.kv.exclusion`, within a bounded time.

LMDB requires one environment per process and file, and a forked child must not touch it. The
registry below, the only state of this module, ensures both. Before a fork it closes every idle
environment, which reopens at its next use. One that stays busy cannot be used in the child.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

import lmdb

from txn import errors
from txn.clock import MOMENT_MS, poll
from txn.errors import InvalidRequestError, MaybeApplied, NotApplied, StoreClosedError
from txn.host.forks import FORKING, Forked
from txn.host.holds import Holds, refuse_own_thread
from txn.tables.kv.files import is_writable, prepare_directory
from txn.tables.kv.group_commit import CommitQueue
from txn.tables.kv.lmdb_files import LastUse, LmdbFiles, Opening, refuse_reader
from txn.tables.kv.lmdb_transactions import GatheringWriter, LmdbReader, LmdbWriter, rewrite_number
from txn.tables.kv.ordered import Reader, Writer

FIRST_MAP_SIZE = 16 * 1024 * 1024
MAX_READERS = 1024
FORK_PATIENCE_S = 10.0

FULL_BYTES = 1 << 20
_TRIES = 64
_MISTAKES = (lmdb.BadDbiError, lmdb.BadTxnError, lmdb.BadValsizeError, lmdb.ReadonlyError)  # ours

_DAMAGES = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)
_UNDECODABLE = (ValueError, LookupError, OverflowError, RuntimeError, StopIteration, struct.error)
"""What the functions of local transactions raise at bytes that they have never written."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Joined(threading.local):
    """The transaction that this thread's calls are part of, while `hold` is held. obstacle: the
    first driver error in one of them, even a caught one: nothing can be committed after it."""

    hold = threading.Lock()  # never held; replaced by that of a call to `atomically`
    writer: Any = None
    durable = False
    obstacle: lmdb.Error | None = None

    def run(self, body: Callable[[Writer], R], writer: Writer) -> R:
        try:
            return body(writer)
        except lmdb.Error as error:
            self.obstacle = self.obstacle or error
            raise


class LmdbStore:
    """A user's handle on a directory's store; the handles of a process share its files."""

    __slots__ = ("__weakref__", "_joined", "_shared", "is_closed")

    def __init__(
        self,
        path: str,
        *,
        create: bool = True,
        read_only: bool = False,
        sync: bool = True,
        max_readers: int = MAX_READERS,
    ) -> None:
        """create: make a store that does not exist; otherwise that is an InvalidRequestError.
        read_only: write nothing; also implied if this process may not write to the files.
        max_readers: concurrent reader threads of all processes; the first opening decides."""
        self.is_closed = False
        self._joined = _Joined()
        path = prepare_directory(path, create and not read_only)
        read_only = read_only or not is_writable(path)
        self._shared = _REGISTRY.acquire(self, Opening(path, sync, max_readers, read_only))

    def read(self, body: Callable[[Reader], R]) -> R:
        decode, joined = partial(self._decode, body), self._joined
        if joined.writer is not None and joined.hold.locked():
            return joined.run(decode, joined.writer)
        return self._run(self._shared.read, decode)

    def write(
        self, body: Callable[[Writer], R], *, durable: bool = True, shared: bool = False
    ) -> R:
        joined = self._joined
        decode = partial(self._decode, body)
        if joined.writer is not None and joined.hold.locked():
            joined.durable = joined.durable or durable
            return joined.run(decode, joined.writer)
        if shared:
            return self._run_writing(self._shared.queue.write, decode, durable)
        return self._run_writing(self._shared.write, decode, lambda: durable)

    def atomically(self, work: Callable[[], None]) -> None:
        joined, before = self._joined, self._joined.writer
        if joined.writer is not None and joined.hold.locked():
            work()
            return

        def body(writer: LmdbWriter) -> None:
            gathering = GatheringWriter(writer)
            joined.durable, joined.obstacle = False, None
            with (hold := threading.Lock()):
                joined.hold, joined.writer = hold, gathering  # a handler refused before clears it
                work()
            if joined.obstacle is not None:
                raise joined.obstacle
            gathering.flush()

        try:
            self._run_writing(self._shared.write, body, lambda: joined.durable)
        finally:
            joined.writer = before  # of the thread's own call, if a signal handler is refused here

    @property
    def path(self) -> str:
        return self._shared.path

    def use_environment(self, body: Callable[[Any], R]) -> R:
        """Run the function on LMDB's environment, within a local transaction that reads."""
        return self._run(self._shared.read, partial(self._decode, self._shared.lend(body)))

    def is_inside(self) -> bool:
        return self._joined.writer is not None and self._joined.hold.locked()

    def unmap(self) -> None:
        """Close the files until their next use, unless a thread is using them. Until then each page
        that was ever read counts as memory of this process."""
        self._shared.unmap()

    def close(self) -> None:
        self.is_closed = True
        _REGISTRY.release(self._shared)

    def _run_writing(self, attempt: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        if self._shared.opening.read_only:
            message = "the store can only be read here: nothing was written"
            raise errors.ReadOnlyError(message, path=self._shared.path)
        return self._run(attempt, *args, **options)

    def _run(self, attempt: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        if self.is_closed:
            raise StoreClosedError("the store is closed", path=self._shared.path)
        shared = self._shared
        obstacle: lmdb.Error | None = None
        for _ in range(_TRIES):
            size = shared.map_size
            try:
                return attempt(*args, **options)
            except _MISTAKES:
                raise
            except lmdb.Error as error:
                obstacle = error
                if not shared.mend(error, size):
                    break
        if isinstance(obstacle, lmdb.ReadersFullError):
            raise refuse_reader(shared.path, shared.max_readers) from obstacle
        if isinstance(obstacle, _DAMAGES):
            raise self._explain_damage(obstacle) from obstacle
        reason = find_reason(shared.path, obstacle)
        raise NotApplied("the store refused", path=shared.path, reason=reason) from obstacle

    def _decode(self, body: Callable[[T], R], at: T) -> R:
        try:
            return body(at)
        except errors.TxnError:
            raise
        except _UNDECODABLE as error:
            raise self._explain_damage(error) from error

    def _explain_damage(self, error: Exception) -> errors.CorruptRowError:
        """Return the error of a call that has met bytes that it never writes, and did nothing."""
        message = "the store's data file is damaged, the call had no effect: restore a backup"
        cause = f"{type(error).__name__}: {error}"
        return errors.CorruptRowError(message, path=self._shared.path, cause=cause)


def find_reason(path: str, error: Exception | None) -> str:
    """Return why LMDB failed. If the disk is full, LMDB only knows that a write was short."""
    with suppress(OSError):
        disk = os.statvfs(path)
        free = disk.f_bavail * disk.f_frsize
        if free < FULL_BYTES:
            return f"the disk is full, {free:,} bytes are free: {error}"
    return str(error)


class _Shared:
    """The environment of one directory in this process, and its users.

    Local transactions enter and leave. An exclusive step (to resize the map, or to close) waits
    until the last has left, and keeps others out meanwhile. Both are holds, against interrupts.
    """

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.path = opening.path
        self.map_size = FIRST_MAP_SIZE
        self.max_readers = opening.max_readers  # until the open files give the real number
        self.users: WeakSet[LmdbStore] = WeakSet()
        self._start()
        self._closed = False
        self._lost: str | None = None  # why the files are unusable
        self._last: LastUse | None = None
        self._inherited: LmdbFiles | None = None
        self._files: LmdbFiles | None = None

    def _start(self) -> None:
        # A fork's child has none of its parent's threads.
        self.lock = threading.RLock()
        self.queue = CommitQueue(self.write, lmdb.MapFullError)
        self._inside: Holds[int] = Holds()  # the threads of transactions
        self._alone: Holds[int] = Holds()  # those that keep new transactions out

    def open(self) -> None:
        with (hold := threading.Lock()):
            self._enter(hold)

    def read(self, body: Callable[[Reader], R]) -> R:
        with (hold := threading.Lock()):
            files = self._enter(hold)
            if files.reading is None:
                return self._read_files(files, body)
            with files.reading.open(hold) as file:
                files.reading.acquire(file)
                return self._read_files(files, body)

    def lend(self, body: Callable[[Any], R]) -> Callable[[Reader], R]:
        return lambda _: body(self._files and self._files.environment)

    def _read_files(self, files: LmdbFiles, body: Callable[[Reader], R]) -> R:
        files.check()
        files.check_locks()
        transaction = files.environment.begin(buffers=False)
        try:
            files.check_transaction(transaction, writes=False)
            return body(LmdbReader(transaction))
        finally:
            if self._inherited is None:  # in a child the transaction is the parent's
                transaction.abort()

    def write(self, body: Callable[[LmdbWriter], R], is_durable: Callable[[], bool]) -> R:
        """is_durable: called after the function has run."""
        with (hold := threading.Lock()):
            files = self._enter(hold)
            with (turn := threading.Lock()), files.writing.open(turn) as file:
                files.writing.acquire(file)
                files.check()
                if files.check_locks() and self.opening.sync:
                    self._flush_anew(files, hold)
                result = self._change(files, body, hold)
            if self.opening.sync and is_durable():
                self._apply(lambda: files.environment.sync(True))
            try:
                files.check()
            except StoreClosedError as error:  # it went to a file that is no longer the store's
                message = "the commit may be lost"
                raise MaybeApplied(message, path=self.path, reason=str(error)) from error
            return result

    def _flush_anew(self, files: LmdbFiles, hold: threading.Lock) -> None:
        try:
            self._change(files, rewrite_number, hold)
            self._apply(lambda: files.environment.sync(True))
        except MaybeApplied as error:
            message = "the disk did not take earlier commits, nor now: nothing was written"
            raise NotApplied(message, path=self.path, reason=str(error)) from error
        files.note_flush(failed=False)

    def _change(self, files: LmdbFiles, body: Callable[[LmdbWriter], R], hold: threading.Lock) -> R:
        transaction = files.environment.begin(write=True, buffers=False)
        try:
            files.check_transaction(transaction, writes=True)
            result = body(LmdbWriter(transaction))
            if self._inherited is not None:
                self._usable()
            self._apply(transaction.commit)
        except BaseException:
            try:
                # The driver delays an abort while others are inside: keep new ones out until then.
                self._alone.add(hold, threading.get_ident())
            finally:
                if self._inherited is None:  # in a child the transaction is the parent's
                    transaction.abort()
            raise
        files.note_commit()
        return result

    def mend(self, obstacle: lmdb.Error, seen: int) -> bool:
        """Remove the obstacle of a transaction, if possible; `seen` is the map's size before it."""
        match obstacle:
            case lmdb.MapFullError() | lmdb.MapResizedError():
                self._run_alone(lambda: self._grow(obstacle, seen))
            case lmdb.ReadersFullError():
                self._run_alone(self._clear_readers)
            case lmdb.PanicError():
                self._run_alone(self._shut)
            case _:
                return False
        return True

    def _clear_readers(self) -> None:
        self._usable().environment.reader_check()

    def _grow(self, obstacle: lmdb.Error, seen: int) -> None:
        environment = self._usable().environment
        if self.map_size != seen:
            return  # another thread was faster
        # Clearing dead readers frees the pages that they held: that may be room enough.
        if isinstance(obstacle, lmdb.MapFullError) and environment.reader_check():
            return
        try:
            environment.set_mapsize(seen * 2)
        except (lmdb.Error, MemoryError) as error:
            self._shut()  # a failed resize leaves no map at all
            message = "the store cannot grow in this process's address space"
            facts = {"path": self.path, "bytes": seen * 2, "reason": str(error)}
            raise NotApplied(message, **facts) from error
        # The driver maps at least what another process has filled.
        self.map_size = environment.info()["map_size"]

    def close(self) -> None:
        """Close for good after the last transaction; in a child leave a busy one alone."""

        def step() -> None:
            self._shut()
            self._closed = True

        with self.lock:
            if self._inherited is not None:
                return
        self._run_alone(step)

    def unmap(self) -> None:
        with self.lock:
            if self._inherited is None and not self._is_busy() and not self._alone.list_held():
                self._shut()

    def close_lost(self) -> None:
        """Close files that are unusable, unless a thread uses them."""
        with self.lock:
            if self._files is not None and self._files.lost and not self._is_busy():
                self._shut()

    def is_lost(self) -> bool:
        """Return True if the files are unusable because others have replaced them."""
        with self.lock:
            if self._inherited is not None:
                return False
            try:
                self._usable().check()
            except StoreClosedError:
                if not self._is_busy():
                    self._shut()
                return True
            return False

    def before_fork(self) -> None:
        """Keep new transactions out until after the fork; close if the others end in time."""
        with self.lock:
            self._alone.add(FORKING, threading.get_ident())
        poll(self._may_fork, int(FORK_PATIENCE_S * 1000))
        with self.lock:
            if not self._is_busy():
                self._shut()

    def _may_fork(self) -> bool:
        """Return True if no transaction runs, or only this thread's own."""
        inside = self._inside.list_held()
        is_free = self._alone.is_first(FORKING) and not inside
        return self._inherited is not None or threading.get_ident() in inside or is_free

    def after_fork(self, in_child: bool) -> None:
        """Let threads in again; in a child only if the environment was closed."""
        if in_child:
            if self._files is not None:
                self._inherited, self._files = self._files, None
            self._start()
        self._alone.remove(FORKING)

    def _is_busy(self) -> bool:
        return bool(self._inside.list_held())

    def _enter(self, hold: threading.Lock) -> LmdbFiles:
        """Begin a transaction, which ends with the hold."""
        own = threading.get_ident()
        while True:
            with self.lock:
                if not self._alone.entries or not (others := self._alone.list_held()):
                    if self._files is not None and self._files.lost:
                        self.close_lost()
                    self._inside.add(hold, own)
                    return self._usable()
            if own in others:
                raise refuse_own_thread(self.path)
            poll(lambda: not self._alone.list_held(), MOMENT_MS)

    def _run_alone(self, step: Callable[[], object]) -> None:
        own = threading.get_ident()
        with (hold := threading.Lock()):
            with self.lock:
                self._alone.add(hold, own)
            if own in self._inside.list_held() or self._alone.list_held().count(own) > 1:
                raise refuse_own_thread(self.path)
            while not poll(lambda: self._alone.is_first(hold) and not self._is_busy(), MOMENT_MS):
                pass
            with self.lock:
                step()

    def _usable(self) -> LmdbFiles:
        """Return the files, opened if need be; the lock is held."""
        if self._inherited is not None:
            message = "the store was busy when this process was forked: fork before using it"
            raise StoreClosedError(message, path=self.path, pid=os.getpid())
        if self._closed:
            raise StoreClosedError("the store is closed", path=self.path)
        if self._lost is not None:
            raise StoreClosedError(self._lost, path=self.path)
        if self._files is not None and not self._files.is_open:
            if self._files.opened_by.locked():
                raise refuse_own_thread(self.path)
            self._shut()  # an interrupt has ended its opening, or its end
        files = self._files or self._open()
        if files.lost:
            raise StoreClosedError(files.lost, path=self.path)
        return files

    def _open(self) -> LmdbFiles:
        files = LmdbFiles(self.opening)
        try:
            with files.opened_by:
                self._files = files
                files.open(self.map_size, self._last)
        except Exception as error:
            self._shut()
            if isinstance(error, lmdb.Error | OSError | MemoryError):
                message = "cannot open the store"
                raise NotApplied(message, path=self.path, reason=str(error)) from error
            raise
        self.map_size = files.environment.info()["map_size"]
        self.max_readers = files.max_readers
        return files

    def _shut(self) -> None:
        if self._files is not None:
            self._lost = self._lost or self._files.lost
            self._last = self._files.close() or self._last
            self._files = None

    def _apply(self, step: Callable[[], None]) -> None:
        try:
            step()
        except lmdb.MapFullError:
            raise  # raised before anything is written
        except lmdb.Error as error:
            if self._files is not None:
                self._files.note_flush(failed=True)
            reason = find_reason(self.path, error)
            raise MaybeApplied("the commit failed", path=self.path, reason=reason) from error


class _Registry(Forked):
    """The environments that this process has open, one for each directory."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._environments: dict[str, _Shared] = {}
        self.expect_forks()

    def acquire(self, user: LmdbStore, opening: Opening) -> _Shared:
        path = opening.path
        with self._lock:
            for each in list(self._environments.values()):
                each.close_lost()
            shared = self._environments.get(path)
            if shared is not None:
                self._close_unused(shared)  # an interrupt has left it
            shared = self._environments.get(path)
            if shared is None or shared.is_lost():
                shared = self._environments[path] = _Shared(opening)
                try:
                    shared.open()
                except Exception:
                    del self._environments[path]
                    raise
            elif shared.opening.sync != opening.sync:
                message = "the store is open here with another sync"
                raise InvalidRequestError(message, path=path, sync=shared.opening.sync)
            elif shared.opening.read_only != opening.read_only:
                message = "the store is open here in another mode"
                mode = "ro" if shared.opening.read_only else "rw"
                raise InvalidRequestError(message, path=path, mode=mode)
            shared.users.add(user)
            return shared

    def release(self, shared: _Shared) -> None:
        with self._lock:
            self._close_unused(shared)

    def _close_unused(self, shared: _Shared) -> None:
        if all(user.is_closed for user in shared.users):
            shared.close()
            if self._environments.get(shared.path) is shared:
                del self._environments[shared.path]

    def before_fork(self) -> None:
        for shared in list(self._environments.values()):
            shared.before_fork()

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            self._lock = threading.RLock()
        for shared in list(self._environments.values()):
            shared.after_fork(in_child)


_REGISTRY = _Registry()
