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
from typing import Any, NamedTuple, TypeAlias

from txn.errors import CorruptRowError, InvalidRequestError, NotApplied, TxnError
from txn.host.folders import flush, make_folder
from txn.stores import open_ordered
from txn.stores.options import hide_login, split_uri
from txn.tables.kv.files import DATA_FILE, complete_directory
from txn.tables.kv.lmdb import LmdbStore

CHUNK, REPORTED = 1 << 20, 10_000
NONE_MADE = "no backup was made"
ON_HBASE = "take HBase's snapshots of all tables of the database: see docs/howto/hbase-cluster.md"
ELSEWHERE = {
    "": "write the store as embedded:///path",
    "memory": "a store in memory has no files: keep what must last in an embedded store",
    "txn": "run it where the server keeps its embedded store",
    **dict.fromkeys(("hbase", "hbase+thrift1", "hbase+thrift2"), ON_HBASE),
}

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
    """Copy the embedded store with this URI to a folder that is absent or empty, beside its users,
    and check the copy. It has all commits up to one instant and is on disk; `connect` opens it.

    After any exception, also of `on_step`, there is no backup: InvalidRequestError names what to
    change, NotApplied the reason, such as a full disk; CorruptRowError: the store is damaged.
    """
    remedy = ELSEWHERE.get(split_uri(store).scheme)
    if remedy is not None:
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
                    entries = copied.use_environment(partial(count_entries, on_step=on_step))
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
    total, free, done = opened.use_environment(measure_data), shutil.disk_usage(part).free, 0
    if free < total:
        raise NotApplied("the disk is too small", needs_bytes=total, free_bytes=free)
    heard, said = os.pipe()

    def send() -> None:
        with open(said, "wb"):  # whose end the reader waits for
            opened.use_environment(lambda environment: environment.copyfd(said, compact=True))

    with (
        ThreadPoolExecutor(1) as pool,
        open(heard, "rb", buffering=0) as pipe,  # closed first, which ends the thread
        open(os.path.join(part, DATA_FILE), "xb") as file,
    ):
        sending = pool.submit(send)
        while chunk := pipe.read(CHUNK):
            done += file.write(chunk)
            on_step("copying bytes", done, max(done, total))
        sending.result()
        file.flush()
        os.fsync(file.fileno())
    return done


def measure_data(environment: Any) -> int:
    """Return the size of the data without free pages."""
    stat = environment.stat()
    pages: int = 2 + stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return pages * int(stat["psize"])


def count_entries(environment: Any, on_step: OnStep) -> int:
    """Read all entries: ValueError unless they are in order and as many as the file says."""
    number, last, total = 0, b"", environment.stat()["entries"]
    with environment.begin() as transaction:
        for number, (key, _) in enumerate(transaction.cursor(), 1):
            if key <= last:
                raise ValueError("keys are not in order")
            last = key
            if number % REPORTED == 1:
                on_step("checking entries", number, total)
    if number != total:
        raise ValueError(f"it has {number} entries of {total}")
    return number
