"""Checks of an embedded store's files before LMDB opens them.

The file `format` marks the directory as a store. It is written last, after LMDB's files, so a
directory that has it but not them has lost them. Before that, the file `.format-begun`, which is
written first, marks a store whose creation is not complete. Other directories are not ours.

LMDB maps its data file. A mapped page that is missing from the file kills the process without a
message. So the file's size is compared with its meta pages before LMDB reads it.

LMDB frees the reader slots of dead processes only through an open environment, and opening one
takes a slot. So if all slots are taken, this module frees the dead ones. A living process with
slots holds a lock on the lock file's byte of its process number. If we get that lock, the process
is dead. While we hold it, no other process frees these slots, and no new process with that number
takes one. No function on the lock file may run while this process has the file open elsewhere,
because closing a descriptor of it would end LMDB's locks.
"""

from __future__ import annotations

import os
import re
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf
from typing import NamedTuple

from txn.errors import InvalidRequestError, NotApplied
from txn.host.folders import flush, make_folder
from txn.tables.kv.exclusion import WRITER_FILE, create_public

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
FORMAT = 1
_SHOWN = 5  # file names in an error
_FORMAT_FILE = "format"
_FORMATLESS = (
    "the directory is not a store of ours: a copy by LMDB's own tools lacks the file `format`; add "
    "that of its store, or copy the store with `txn backup`"
)
_ASIDE = ".format-"
_BEGUN = ".format-begun"
_STORE_FILES = (DATA_FILE, LOCK_FILE, WRITER_FILE)
_FORMAT_TEXT = "hbase-txn embedded store, format {}\n"
_FORMAT_PATTERN = re.compile(re.escape(_FORMAT_TEXT).replace(r"\{\}", r"(\d{1,9})"))
_HEADER = struct.Struct("@NHHHH")  # of a page: number, padding, flags, end of offsets, ...
_META = struct.Struct("@IIPNIHHNNNNNIHHNNNNNNN")  # ..., two trees, last page, transaction
_NODE = struct.Struct("@HHHH")
_NUMBER = struct.Struct("@N")
_IS_BRANCH, _IS_META, _IS_LARGE = 1, 8, 1
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_PAGE_SIZES = frozenset(1 << bits for bits in range(8, 17))
_TRIES = 8
_SLOT_BYTES = 64
_LOCK_HEADER_BYTES = 2 * _SLOT_BYTES  # at least: LMDB adds the rest
_STAMP_BYTES = 8  # LMDB's magic and the layout of the file
_PROCESS = struct.Struct("@i")
_PROCESS_AT = struct.calcsize("@N")  # in a slot, after the number of a commit


# ------------------------------------------------------------------------- the directory


def prepare_directory(path: str, create: bool) -> str:
    """Return the real path of a store's directory; begin an absent or empty one. Without create,
    such a directory is an InvalidRequestError and nothing is written."""
    path = os.path.realpath(path)
    try:
        text = _read_format(path)
        if text is None:
            if not create:
                names = os.listdir(path) if os.path.exists(path) else []
                absent = "no such store: make it with `txn init`"
                message = _FORMATLESS if DATA_FILE in names else absent
                found = sorted(names)[:_SHOWN] or None
                raise InvalidRequestError(message, path=path, contains=found)
            _begin(path)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotApplied("the store's path is not a directory", path=path) from error
    except OSError as error:
        message = "cannot use the store's directory"
        raise NotApplied(message, path=path, reason=error.strerror) from error
    if text is not None:
        _check_format(path, text)
    return path


def is_complete(path: str) -> bool:
    return os.path.exists(os.path.join(path, _FORMAT_FILE))


def is_writable(path: str) -> bool:
    files = [os.path.join(path, name) for name in _STORE_FILES]
    return os.access(path, os.R_OK | os.W_OK | os.X_OK) and all(
        # In this order: another thread or process may be making the file.
        not os.path.exists(file) or os.access(file, os.R_OK | os.W_OK)
        for file in files
    )


def complete_directory(path: str) -> None:
    """Mark the store as complete, once its data file exists, unless it is marked."""
    if not is_complete(path):
        _write_format(path)
    begun = os.path.join(path, _BEGUN)
    if os.path.exists(begun):
        flush(path)  # even if another process wrote the mark: it may have been killed before this
        with suppress(FileNotFoundError):
            os.unlink(begun)


def _write_format(path: str) -> None:
    with open(os.path.join(path, DATA_FILE), "r+b", buffering=0) as data:
        # again, since the flush of an earlier attempt may have failed: see `txn.tables.kv.lmdb`
        os.pwrite(data.fileno(), os.pread(data.fileno(), 2 * max(_PAGE_SIZES), 0), 0)
        os.fsync(data.fileno())
    handle, aside = tempfile.mkstemp(prefix=_ASIDE, dir=path)
    with open(handle, "w", encoding="ascii") as file:
        file.write(_FORMAT_TEXT.format(FORMAT))
        os.fchmod(file.fileno(), 0o644)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, os.path.join(path, _FORMAT_FILE))


def _read_format(path: str) -> str | None:
    try:
        with open(os.path.join(path, _FORMAT_FILE), "rb") as file:
            return file.read(200).decode("ascii", "replace")
    except FileNotFoundError:
        return None


def _check_format(path: str, text: str) -> None:
    found = _FORMAT_PATTERN.fullmatch(text)
    if found is None:
        raise NotApplied("the directory is not a store of ours", path=path, format=text)
    if int(found[1]) > FORMAT:
        message = "the store is of a newer format: use a newer hbase-txn"
        raise NotApplied(message, path=path, format=int(found[1]), known=FORMAT)


def _begin(path: str) -> None:
    make_folder(path)
    names = os.listdir(path)
    asides = [name for name in names if name.startswith(_ASIDE)]
    others = set(names).difference(asides, _STORE_FILES if asides else ())
    if others and not is_complete(path):  # another process may have completed it just now
        message = _FORMATLESS if DATA_FILE in others else "the directory is not a store of ours"
        raise NotApplied(message, path=path, contains=sorted(others)[:_SHOWN])
    os.close(os.open(os.path.join(path, _BEGUN), os.O_WRONLY | os.O_CREAT, 0o644))


# ------------------------------------------------------------------------- the data file


class _Meta(NamedTuple):
    """A commit in its meta page: the root of the free list, the last page, its number."""

    page_bytes: int
    free_root: int
    last_page: int
    number: int


def check_data_file(path: str, *, may_write: bool) -> int:
    """Return the number of the newest commit; NotApplied unless all its pages are in the file.

    may_write: open the file for writing, of which some file systems make another file.
    """
    try:
        with open(path, "r+b" if may_write else "rb", buffering=0) as file:
            return _check_pages(file.fileno(), path)
    except FileNotFoundError as error:
        message = "the store's data file is missing: restore it, or delete the store's directory"
        raise NotApplied(message, file=path) from error


def make_data_file(path: str) -> None:
    """Create an empty data file for a new store. A file left by a process that was killed, or met a
    full disk, before its first pages were complete is not yet a store."""
    with open(path, "r+b", buffering=0, opener=create_public) as file:
        try:
            _check_pages(file.fileno(), path)
        except NotApplied:
            file.truncate(0)


def extend_data_file(path: str, size: int) -> None:
    """Extend a shorter file to this size. No process may be writing to it."""
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"\0", size - 1)


def _check_pages(file: int, path: str) -> int:
    before = None
    for _ in range(_TRIES):  # another process may commit meanwhile
        first = _read_meta(file, 0, path)
        newest = max(first, _read_meta(file, first.page_bytes, path), key=lambda meta: meta.number)
        size = os.fstat(file).st_size
        if _is_whole(file, newest, size):
            return newest.number
        if newest == before:
            break
        before = newest
    raise NotApplied(
        "the store's data file is cut short: restore it from a backup",
        file=path,
        bytes=size,
        expected=(newest.last_page + 1) * newest.page_bytes,
    )


def _read_meta(file: int, offset: int, path: str) -> _Meta:
    page = os.pread(file, _HEADER.size + _META.size, offset)
    size = os.fstat(file).st_size
    if len(page) < _HEADER.size + _META.size:
        state = "cut short" if size else "empty"
        message = f"the store's data file is {state}: restore it from a backup"
        raise NotApplied(message, file=path, bytes=size)
    _, _, flags, _, _ = _HEADER.unpack_from(page)
    magic, version, *fields = _META.unpack_from(page, _HEADER.size)
    meta = _Meta(fields[2], fields[9], fields[-2], fields[-1])
    if magic == _MAGIC and version != _VERSION:
        message = "the store's data file is of another version of LMDB"
        raise NotApplied(message, file=path, version=version, known=_VERSION)
    if magic != _MAGIC or not flags & _IS_META or meta.page_bytes not in _PAGE_SIZES:
        message = "the store's data file is damaged: restore it from a backup"
        raise NotApplied(message, file=path, page_at=offset)
    return meta


def _is_whole(file: int, meta: _Meta, size: int) -> bool:
    """Return True if only free pages at the end are missing: LMDB never writes a page that one
    transaction took and gave back."""
    end, missing = size // meta.page_bytes, range(size // meta.page_bytes, meta.last_page + 1)
    if not missing:
        return True
    try:
        free = {page for page in _list_free_pages(file, meta, end) if page in missing}
    except (struct.error, ArithmeticError, MemoryError, OSError):
        return False  # a page of the list itself is missing, or damaged
    return len(free) > meta.last_page - end


def _list_free_pages(file: int, meta: _Meta, end: int) -> Iterator[int]:
    """Yield the pages of LMDB's free list; raise struct.error or another if it is unreadable."""
    pages = [meta.free_root] if meta.free_root <= meta.last_page else []
    for _ in range(end):
        if not pages:
            return
        page = os.pread(file, meta.page_bytes, pages.pop() * meta.page_bytes)
        _, _, flags, end, _ = _HEADER.unpack_from(page)
        for offset in struct.unpack_from(f"@{(end - _HEADER.size) // 2}H", page, _HEADER.size):
            low, high, rest, key_bytes = _NODE.unpack_from(page, offset)
            if flags & _IS_BRANCH:
                pages.append(low | high << 16 | rest << 32)
                continue
            numbers, start = page, offset + _NODE.size + key_bytes
            if rest & _IS_LARGE:
                (large,) = _NUMBER.unpack_from(page, start)
                numbers = os.pread(file, low | high << 16, large * meta.page_bytes + _HEADER.size)
                start = 0
            (count,) = _NUMBER.unpack_from(numbers, start)
            yield from struct.unpack_from(f"@{count}N", numbers, start + _NUMBER.size)


# ------------------------------------------------------------------------- the lock file


def make_lock_file(folder: str, max_readers: int) -> None:
    """Allocate an absent or empty lock file: on a full disk, a write to a mapped page kills."""
    path = os.path.join(folder, LOCK_FILE)
    if os.path.exists(path) and os.path.getsize(path):
        return
    try:
        with open(path, "r+b", opener=create_public) as file:
            file.write(bytes(_LOCK_HEADER_BYTES + max_readers * _SLOT_BYTES))
    except OSError:
        os.truncate(path, 0)
        raise


def free_dead_slots(folder: str, model: str) -> int:
    """Free the slots of dead processes; return the number of slots. No thread may have the file
    open. model: a folder with a lock file of one slot, which shows the layout."""
    with open(os.path.join(model, LOCK_FILE), "rb") as one:
        pattern = one.read()
    with open(os.path.join(folder, LOCK_FILE), "r+b", buffering=0) as lock:
        file, content = lock.fileno(), lock.read()
        slots = range(len(pattern) - _SLOT_BYTES, len(content) - _SLOT_BYTES + 1, _SLOT_BYTES)
        if content[:_STAMP_BYTES] == pattern[:_STAMP_BYTES]:
            for process in {_read_process(file, slot) for slot in slots}:
                if process > 0:
                    _free_slots_of(process, file, slots)
        return len(slots)


def _free_slots_of(process: int, file: int, slots: range) -> None:
    try:
        lockf(file, LOCK_EX | LOCK_NB, 1, process)
    except (BlockingIOError, PermissionError):
        return
    for slot in slots:
        if _read_process(file, slot) == process:
            os.pwrite(file, _PROCESS.pack(0), slot + _PROCESS_AT)
    lockf(file, LOCK_UN, 1, process)


def _read_process(file: int, slot: int) -> int:
    process: int = _PROCESS.unpack(os.pread(file, _PROCESS.size, slot + _PROCESS_AT))[0]
    return process
