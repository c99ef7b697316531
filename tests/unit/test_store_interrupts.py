"""A thread that is interrupted anywhere in a local store, and again while the first interrupt is
cleaned up after, leaves it usable: for this process, for others, and for its end."""

from __future__ import annotations

import dis
import os
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sortedcontainers import sorteddict, sortedlist

from tests.unit.interrupting import Interruption
from txn import clock
from txn.clock import SystemClock
from txn.host import forks, holds
from txn.model import Check, Family, Key
from txn.stores.local import LocalStore
from txn.tables.kv import exclusion, files, group_commit, lmdb, lmdb_files, memory
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.memory import MemoryStore

pytestmark = pytest.mark.slow
SAMPLE = 9
"""One place of so many is tried, a different one for each call; the long test tries all."""

FILES = {
    str(module.__file__)
    for module in (clock, forks, holds, exclusion, files, group_commit, lmdb, lmdb_files)
}
MEMORY_FILES = {str(each.__file__) for each in (memory, sorteddict, sortedlist)}
PEER = """
import sys
from txn.tables.kv.lmdb import LmdbStore
for path in sys.stdin:
    store = LmdbStore(path.strip(), sync=False)
    store.write(lambda writer: writer.put(b"peer", b"1"))
    store.close()
    print("done", flush=True)
"""


class Interrupts(Interruption):
    """Leaves out the end of a `with` after an error, which takes no interrupt either."""

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        code, following = frame.f_code.co_code, frame.f_lasti + 2
        if event == "line" and code[following] == dis.opmap["WITH_EXCEPT_START"]:
            return self._step
        return super()._step(frame, event, argument)


class Occupied:
    """A store whose writers' turn another thread has, until soon after the interrupt."""

    def __init__(self, store: LmdbStore) -> None:
        self._has_come, self._may_go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=store.write, args=(self._stay,))

    def _stay(self, _: object) -> None:
        self._has_come.set()
        self._may_go.wait(0.01)

    def __enter__(self) -> None:
        self._thread.start()
        self._has_come.wait()

    def __exit__(self, *_: object) -> None:
        self._may_go.set()
        self._thread.join()


def write_later(store: LmdbStore, *, shared: bool) -> None:
    with Occupied(store):
        store.write(put, shared=shared)


class Peer:
    """Another process that opens stores, writes and closes them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def write(self, path: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(path, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n"

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.end()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores grow soon, and a wait in vain ends before the test's."""
    monkeypatch.setattr(lmdb, "FIRST_MAP_SIZE", GROWTH // 2)
    monkeypatch.setattr(exclusion, "PATIENCE_MS", 2_000)
    # An interrupt in a hook of a fork goes there, and the end of a file that nobody closed.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


GROWTH = 1 << 18
OTHER = "-other"
KEY = Key(b"r", b"d", b"q", b"t")


def put(writer: Any) -> None:
    writer.put(b"k", b"v")


def call_fork(_: LmdbStore) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def tables(store: LmdbStore) -> LocalStore:
    return LocalStore(store, SystemClock())


CALLS: dict[str, Callable[[LmdbStore], object]] = {
    "read": lambda store: store.read(lambda reader: reader.get(b"k")),
    "scan": lambda store: [*tables(store).scan(b"t")],
    "write": lambda store: store.write(put),
    "shared write": lambda store: store.write(put, shared=True),
    "check_and_put": lambda store: tables(store).check_and_put([Check(KEY, b"", ((KEY, b"1"),))]),
    "atomically": lambda store: store.atomically(lambda: (store.write(put), store.read(len_of))[0]),
    "write later": lambda store: write_later(store, shared=False),
    "shared write later": lambda store: write_later(store, shared=True),
    "undone": lambda store: store.write(fail),
    "grow": lambda store: store.write(lambda writer: writer.put(b"g", bytes(GROWTH))),
    "open": lambda store: LmdbStore(store._shared.path + OTHER, sync=False).close(),
    "close": LmdbStore.close,
    "unmap": LmdbStore.unmap,
    "fork": call_fork,
}


def len_of(reader: Any) -> int:
    return len(reader.get(b"k") or b"")


def fail(_: Any) -> None:
    raise ZeroDivisionError


def run_apart(*steps: Callable[[], Any]) -> Any:
    """Run the steps in another thread, see that they end, and return what the last one did."""
    ended = Future[Any]()

    def run() -> None:
        try:
            ended.set_result([step() for step in steps][-1])
        except BaseException as error:  # noqa: BLE001
            ended.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return ended.result(60)


class Trial:
    """A store that is used, interrupted, and then checked."""

    def __init__(self, folder: Path, peer: Peer) -> None:
        self._folder = folder
        self._peer = peer
        self._count = 0
        store = LmdbStore(str(folder / "new"), sync=False)
        store.write(put)
        tables(store).ensure_table(b"t", {b"d": Family()})
        store.close()

    def interrupt(self, call: Callable[[LmdbStore], object], at: int, then: int | None) -> bool:
        """Interrupt a call; return False if it came to its end."""
        self._count += 1
        path = str(self._folder / str(self._count))
        shutil.copytree(self._folder / "new", path)  # flushes nothing
        store = LmdbStore(path, sync=False)
        interrupts = Interrupts(FILES, at, then)
        with suppress(ZeroDivisionError), interrupts:
            call(store)
        try:
            self._check(store, path)
        except BaseException as error:
            raise AssertionError(f"after {interrupts.place} and {then}") from error
        return interrupts.place is not None

    def _check(self, store: LmdbStore, path: str) -> None:
        if store.is_closed:
            run_apart(store.close, lambda: self._peer.write(path))
        else:
            written = bytes(GROWTH + self._count)
            store.write(put, shared=True)  # by this thread
            store.read(len_of)
            self._peer.write(path)
            run_apart(
                lambda: store.write(lambda writer: writer.put(b"g", written)),
                lambda: store.write(put, shared=True),
                lambda: store.read(len_of),
            )
            assert store.read(lambda reader: reader.get(b"g")) == written
            call_fork(store)
            run_apart(store.close)
        for each in (path, path + OTHER) if os.path.exists(path + OTHER) else (path,):
            run_apart(LmdbStore(each, sync=False).close)
        assert path not in lmdb._REGISTRY._environments


def try_all(trial: Trial, name: str, step: int, then: Callable[[int], int | None]) -> None:
    at = zlib.crc32(name.encode()) % step
    while trial.interrupt(CALLS[name], at, then(at)):
        at += step
    assert at > step


@pytest.mark.parametrize("is_twice", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_is_survived(name: str, is_twice: bool, tmp_path: Path, peer: Peer) -> None:
    """A process could never write, close or grow its store again, nor could others write to it."""
    trial = Trial(tmp_path, peer)
    try_all(trial, name, SAMPLE, lambda at: at // SAMPLE % 5 if is_twice else None)


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("then", [None, 0, 1, 2, 3, 5])
def test_a_store_stays_usable_anywhere(
    name: str, then: int | None, tmp_path: Path, peer: Peer
) -> None:
    try_all(Trial(tmp_path, peer), name, 1, lambda at: then)


def change(writer: Any) -> None:
    for name in (b"a", b"c", b"e"):
        writer.put(name, b"new")
    writer.delete(b"b")
    writer.delete(b"d")


def refuse(writer: Any) -> None:
    change(writer)
    raise ZeroDivisionError


def undo(store: MemoryStore) -> None:
    with suppress(ZeroDivisionError):
        store.write(refuse)
    store.read(len_of)


MEMORY_CALLS: dict[str, Callable[[MemoryStore], object]] = {
    "write": lambda store: store.write(change),
    "atomically": lambda store: store.atomically(lambda: store.write(change)),
    "undone": undo,
    "read": lambda store: store.read(lambda reader: [*reader.keys(b"", b"z")]),
}
OLD = {b"b": b"old", b"c": b"old", b"d": b"old"}
NEW = {b"a": b"new", b"c": b"new", b"e": b"new"}


@pytest.mark.parametrize("name", MEMORY_CALLS)
@pytest.mark.parametrize("then", [None, 0, 1, 2, 4, 8])
def test_the_memory_store_is_whole_wherever_it_is_interrupted(name: str, then: int | None) -> None:
    """A write was half undone, and an index of the keys stayed incomplete."""
    at = 0
    while interrupt_memory(MEMORY_CALLS[name], Interrupts(FILES | MEMORY_FILES, at, then)):
        at += 1
    assert at > 5


def interrupt_memory(call: Callable[[MemoryStore], object], interrupts: Interruption) -> bool:
    """Interrupt a call; return False if it came to its end."""
    store = MemoryStore()
    store.write(lambda writer: writer.put_all(OLD))
    with interrupts:
        call(store)
    found = run_apart(lambda: store.read(lambda reader: dict(reader.items(b"", b"z"))))
    assert found in (OLD, NEW), interrupts.place
    assert [*found] == sorted(found), interrupts.place
    run_apart(lambda: store.write(lambda writer: writer.put(b"cc", b"1")))
    assert store.read(lambda reader: reader.before(b"d")) == b"cc", interrupts.place
    return interrupts.place is not None
