"""A consistent copy of an embedded store, while it is in use.

LMDB sends the data of one instant, without free pages, through a pipe; this module puts it on disk.
So a full disk or an interrupt ends the copy at once. It is made in `.DEST.*.part`, which a killed
backup leaves, and renamed once it is checked and on disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from txn.arguments import check_calls
from txn.errors import CorruptRowError, InvalidRequestError, NotApplied, TxnError
from txn.host.folders import flush, make_folder
from txn.stores import open_ordered
from txn.stores.options import hide_login, split_uri
from txn.tables.kv.files import DATA_FILE, complete_directory
from txn.tables.kv.lmdb import LmdbStore

CHUNK, REPORTED = 1 << 20, 10_000
NONE_MADE = "no backup was made"
ELSEWHERE = (
    "only an embedded store has files, embedded:///path on the machine that keeps it; on HBase "
    "take snapshots of all tables (docs/howto/hbase-cluster.md)"
)
OnStep: TypeAlias = Callable[[str, int, int], object]


@check_calls
def backup(
    store: str, dest: str | os.PathLike[str], *, on_step: OnStep = lambda step, done, total: None
) -> int:
    """Copy the embedded store with this URI to a folder that is absent or empty, beside its users,
    and check the copy; return its bytes. It has all commits up to one instant and is on disk.

    on_step: gets the step, how much of it is done, and of how much.

    After any exception, also of `on_step`, there is no backup: InvalidRequestError names what to
    change, NotApplied the reason, such as a full disk; CorruptRowError: the store is damaged.
    """
    if split_uri(store).scheme != "embedded":
        raise InvalidRequestError(f"{NONE_MADE}: {ELSEWHERE}", store=hide_login(store))
    if "\0" in os.fspath(dest):
        raise InvalidRequestError(f"{NONE_MADE}: a path has no zero byte", path=dest)
    path = os.path.realpath(dest)
    try:
        with closing(open_ordered(store, create=False)) as opened:
            assert isinstance(opened, LmdbStore)
            _check_place(path, opened.path)
            above, name = os.path.split(path)
            make_folder(above)
            with TemporaryDirectory(".part", f".{name}.", above) as folder:
                part = os.path.join(folder, name)
                os.mkdir(part)
                size = _copy(opened, part, on_step)
                complete_directory(part)
                with closing(LmdbStore(part, create=False, read_only=True)) as copied:
                    copied.use_environment(partial(check_entries, on_step=on_step))
                flush(part)
                os.rename(part, path)
                flush(above)
    except (InvalidRequestError, CorruptRowError):
        raise
    except (OSError, TxnError) as error:
        raise NotApplied(NONE_MADE, path=path, reason=str(error)) from error
    return size


def _check_place(path: str, source: str) -> None:
    is_free = not os.path.lexists(path) or (os.path.isdir(path) and not os.listdir(path))
    wrong = {
        "must be absent or an empty folder": not is_free,
        "is a mount point: name a folder in it": os.path.ismount(path),
        "is in the store's own folder": os.path.commonpath([path, source]) == source,
    }
    for words in filter(wrong.__getitem__, wrong):
        raise InvalidRequestError(f"{NONE_MADE}: the destination {words}", path=path)


def _copy(opened: LmdbStore, part: str, on_step: OnStep) -> int:
    """Write the data file, and return its size."""
    stat = opened.use_environment(lambda environment: environment.stat())
    pages = 2 + stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    total, free, done = pages * stat["psize"], shutil.disk_usage(part).free, 0
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


def check_entries(environment: Any, on_step: OnStep) -> None:
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
