"""A consistent copy of an embedded store, while it is in use.

LMDB sends the data of one instant, without free pages, through a pipe; this module puts it on disk.
So a full disk or an interrupt ends the copy at once. It is made in a folder of another name, which
is renamed once it is checked and on disk. A killed backup leaves that folder, and the next one to
the same place removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple, TypeAlias

from txn.errors import CorruptRowError, InvalidRequestError, NotApplied, TxnError
from txn.host.folders import flush, make_folder
from txn.stores import open_ordered
from txn.stores.options import hide_login, split_uri
from txn.tables.kv.files import DATA_FILE, complete_directory
from txn.tables.kv.lmdb import LmdbStore

CHUNK = 1 << 20
NONE_MADE = "no backup was made"
ELSEWHERE = {
    "": "write the store as embedded:///path",
    "memory": "a store in memory has no files: keep what must last in an embedded store",
    "txn": "run it where the server keeps its embedded store",
}
ON_HBASE = "take HBase's snapshots of all tables of the database: see docs/howto/hbase-cluster.md"

OnStep: TypeAlias = Callable[[str, int, int], object]
"""Receives the step, how much of it is done, and of how much."""


class Backup(NamedTuple):
    """A complete copy: its folder, its size, and the number of its entries."""

    path: str
    bytes_: int
    entries: int


def backup(
    store: str, dest: str | os.PathLike[str], *, on_step: OnStep = lambda step, done, total: None
) -> Backup:
    """Copy an embedded store to a folder that is absent or empty, and check the copy.

    store: its URI; its clients may go on. The copy has all commits up to one instant, also of other
    processes, and is on disk when this returns. `connect` opens it. on_step: its exception ends the
    backup.

    After any exception there is no backup: InvalidRequestError names what to change, NotApplied has
    the reason, such as a full disk, and CorruptRowError means that the store is damaged.
    """
    scheme = split_uri(store).scheme
    if "hbase" in scheme or scheme in ELSEWHERE:
        remedy = ELSEWHERE.get(scheme, ON_HBASE)
        raise InvalidRequestError(f"{NONE_MADE}: {remedy}", store=hide_login(store))
    path = os.path.realpath(dest)
    try:
        with closing(open_ordered(store, create=False)) as opened:
            assert isinstance(opened, LmdbStore)
            _check_place(path, opened.path)
            with _make_part(path) as part:
                size = _copy(opened, part, on_step)
                complete_directory(part)
                with closing(LmdbStore(part, create=False, read_only=True)) as copied:
                    entries = copied.check_entries(partial(on_step, "checking entries"))
                flush(part)
                os.rename(part, path)
                flush(os.path.dirname(path))
    except (InvalidRequestError, CorruptRowError):
        raise
    except (OSError, TxnError) as error:
        raise NotApplied(NONE_MADE, path=path, reason=str(error)) from error
    return Backup(path, size, entries)


def _check_place(path: str, source: str) -> None:
    wrong = None
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        wrong = "the destination must be absent or an empty folder"
    elif os.path.ismount(path):
        wrong = "the destination is a mount point: name a folder in it"
    elif os.path.commonpath([path, source]) == source:
        wrong = "the destination is in the store's own folder"
    if wrong:
        raise InvalidRequestError(f"{NONE_MADE}: {wrong}", path=path)


@contextmanager
def _make_part(path: str) -> Iterator[str]:
    """Make an empty folder beside the destination, and remove it if the block raises."""
    above, name = os.path.split(path)
    make_folder(above)
    part = os.path.join(above, f".{name}.part")
    os.makedirs(part, exist_ok=True)
    hold = os.open(part, os.O_RDONLY)
    try:
        fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in os.listdir(part):
            os.unlink(os.path.join(part, left))
        yield part
    except BlockingIOError as error:
        words = f"{NONE_MADE}: another is being made there"
        raise InvalidRequestError(words, path=path) from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        os.close(hold)


def _copy(opened: LmdbStore, part: str, on_step: OnStep) -> int:
    """Write the data file, and return its size."""
    total, free, done = opened.measure_data(), shutil.disk_usage(part).free, 0
    if free < total:
        raise NotApplied("the disk is too small", needs_bytes=total, free_bytes=free)
    heard, said = os.pipe()

    def send() -> None:
        try:
            opened.copy(said)
        finally:
            os.close(said)

    with (
        ThreadPoolExecutor(1) as pool,
        open(heard, "rb", buffering=0) as pipe,  # closed first, which ends the thread
        open(os.path.join(part, DATA_FILE), "xb") as file,
    ):
        sending = pool.submit(send)
        while chunk := pipe.read(CHUNK):
            file.write(chunk)
            done += len(chunk)
            on_step("copying bytes", done, max(done, total))
        sending.result()
        file.flush()
        os.fsync(file.fileno())
    return done
