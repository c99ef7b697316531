"""LMDB's data file: whole and of the version that we know, or refused.

LMDB maps the file. A page that is mapped but not in the file kills the process without a word, so
the file's size is compared with what its meta pages say before LMDB reads it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from txn.errors import NotApplied

NAME = "data.mdb"

_HEADER = struct.Struct("@NHHHH")  # of a page: number, padding, flags, end of its offsets, ...
_META = struct.Struct("@IIPNIHHNNNNNIHHNNNNNNN")  # ..., two trees, last page, transaction
_NODE = struct.Struct("@HHHH")
_NUMBER = struct.Struct("@N")
_IS_BRANCH, _IS_META, _IS_LARGE = 1, 8, 1
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_PAGE_SIZES = frozenset(1 << bits for bits in range(8, 17))
_TRIES = 8


class _Meta(NamedTuple):
    """A commit, as its meta page has it: the free list's root, the last page, its number."""

    page_bytes: int
    free_root: int
    last_page: int
    number: int


def check_data_file(path: str, *, may_write: bool) -> int:
    """Return the number of the newest commit; NotApplied unless all pages it uses are there.

    may_write: open it so. Where a file system copies a file at that, it is another one afterwards.
    """
    try:
        with open(path, "r+b" if may_write else "rb", buffering=0) as file:
            return _check(file.fileno(), path)
    except FileNotFoundError as error:
        message = "the store's data file is missing: restore it, or delete the store's directory"
        raise NotApplied(message, file=path) from error


def make_data_file(path: str) -> None:
    """Make the file of a new store, empty. What a process left that was killed, or met a full disk,
    while it made the first pages is no store yet."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _check(file, path)
    except NotApplied:
        os.ftruncate(file, 0)
    finally:
        os.close(file)


def extend_data_file(path: str, size: int) -> None:
    """Make a file that is shorter so long. No process writes to it meanwhile."""
    file = os.open(path, os.O_RDWR)
    try:
        os.pwrite(file, b"\0", size - 1)
    finally:
        os.close(file)


def _check(file: int, path: str) -> int:
    before = None
    for _ in range(_TRIES):  # another process may commit meanwhile
        newest = _read_newest(file, path)
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


def _read_newest(file: int, path: str) -> _Meta:
    first = _read_meta(file, 0, path)
    second = _read_meta(file, first.page_bytes, path)
    return max(first, second, key=lambda meta: meta.number)


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
    """Return whether the file has all pages but free ones at its end: LMDB does not write a page
    that one transaction took and gave back."""
    missing = set(range(size // meta.page_bytes, meta.last_page + 1))
    if not missing:
        return True
    try:
        return missing.issubset(_list_free_pages(file, meta))
    except struct.error:
        return False  # a page of the list itself is missing


def _list_free_pages(file: int, meta: _Meta) -> Iterator[int]:
    """Yield the pages of LMDB's free list; struct.error where it cannot be read."""
    pages = [meta.free_root] if meta.free_root <= meta.last_page else []
    for _ in range(meta.last_page):
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
