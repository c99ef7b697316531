"""Writers of the embedded store beside one that dies, is stopped, is forked or does not end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.integration.children import Child, Tell, start, wait_for_ever
from tests.integration.writer_kills import kill_pairs
from txn import Engine, Key, Mutation, connect
from txn.errors import NotApplied
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.ordered import Writer

KEY = Key("r", "d", "x")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def store(path: str) -> Iterator[LmdbStore]:
    store = LmdbStore(path, sync=False)
    yield store
    store.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would wait in vain gives up soon."""
    monkeypatch.setattr("txn.tables.kv.exclusion.PATIENCE_MS", 200)


def put(store: LmdbStore, value: bytes) -> None:
    store.write(lambda writer: writer.put(b"k", value))


def get(store: LmdbStore) -> bytes | None:
    return store.read(lambda reader: reader.get(b"k"))


def writing(path: str, then: Callable[[Tell], None]) -> Child:
    """Return a process that is inside a transaction, where it does something."""

    def write(tell: Tell) -> None:
        def body(writer: Writer) -> None:
            writer.put(b"k", b"theirs")
            tell(b".")
            then(tell)

        LmdbStore(path, sync=False).write(body)

    return start(write)


def stop_oneself(_: Tell) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stopped_writer(path: str) -> Child:
    stopped = writing(path, stop_oneself)
    stopped.wait_until_stopped()
    return stopped


def go_on(stopped: Child) -> None:
    os.kill(stopped.pid, signal.SIGCONT)
    stopped.join()


@contextmanager
def engine_with_a_row(path: str) -> Iterator[Engine]:
    with connect(f"embedded://{path}?sync=off", table="t") as engine:
        engine.ensure_table("t", ["d"])
        engine.commit([Mutation(KEY, "1")])
        yield engine


@pytest.mark.parametrize("pairs", [20, pytest.param(200, marks=pytest.mark.long)])
def test_owners_and_waiters_killed_together_keep_nobody_waiting(path: str, pairs: int) -> None:
    """A waiter was seen asleep for ever in LMDB's own mutex, whose owner was dead."""
    killed = kill_pairs(path, pairs, Random(3))
    assert killed.owners > (60 if pairs == 200 else 0)


@pytest.mark.usefixtures("hasty")
def test_a_stopped_writer_is_a_clear_error_to_others_and_keeps_no_reader_out(path: str) -> None:
    stopped = stopped_writer(path)
    with closing(LmdbStore(path, sync=False)) as store:
        with pytest.raises(NotApplied, match=f"writing to the store .* process={stopped.pid}$"):
            put(store, b"ours")
        assert get(store) is None
        go_on(stopped)
        assert get(store) == b"theirs"
        put(store, b"ours")
        assert get(store) == b"ours"


def test_beside_a_stopped_writer_an_engine_opens_and_reads_and_its_commit_ends_soon(
    path: str,
) -> None:
    """It took ten seconds, whatever `deadline_ms`."""
    with engine_with_a_row(path):
        pass
    stopped = stopped_writer(path)
    with connect(f"embedded://{path}?sync=off", table="t") as engine:
        engine.ensure_table("t", ["d"])
        found = engine.read([KEY])[KEY]
        assert found is not None and found.value == b"1"
        began = time.monotonic()
        with pytest.raises(NotApplied, match=f"process={stopped.pid}$"):
            engine.commit([Mutation(KEY, "2")], deadline_ms=10)
        assert time.monotonic() - began < 5
    stopped.kill()


@pytest.mark.usefixtures("hasty")
def test_a_commit_outlasts_a_writer_that_is_stopped_for_a_while(path: str) -> None:
    with engine_with_a_row(path) as engine:
        stopped = stopped_writer(path)
        later = threading.Timer(0.7, go_on, (stopped,))
        later.start()
        assert engine.commit([Mutation(KEY, "1")]).complete
        later.join()


@pytest.mark.usefixtures("hasty")
def test_a_reader_without_the_right_to_write_and_a_writer_keep_each_other_out(path: str) -> None:
    """It has no slot by which LMDB would spare its pages."""
    stopped = stopped_writer(path)
    with closing(LmdbStore(path, sync=False, read_only=True)) as store:
        with pytest.raises(NotApplied, match=f"writing to the store .* process={stopped.pid}$"):
            get(store)
        go_on(stopped)
        assert get(store) == b"theirs"

    def read(tell: Tell) -> None:
        def stay(_: object) -> None:
            tell(b".")
            wait_for_ever()

        LmdbStore(path, sync=False, read_only=True).read(stay)

    reader = start(read)
    with closing(LmdbStore(path, sync=False)) as store:
        with pytest.raises(NotApplied, match=f"reading the store .* process={reader.pid}$"):
            put(store, b"ours")
        reader.kill()
        put(store, b"ours")


def test_a_child_does_not_keep_the_lock_of_its_dead_parent(path: str) -> None:
    """It has what its parent had open: an open file's lock would live for as long as it does."""

    def leave_a_child(tell: Tell) -> None:
        pid = os.fork()
        if pid:
            tell(b"%10d" % pid)
        wait_for_ever()

    parent = writing(path, leave_a_child)
    child = int(parent.hear(10))
    try:
        os.kill(parent.pid, signal.SIGKILL)
        os.waitpid(parent.pid, 0)
        with closing(LmdbStore(path, sync=False)) as store:
            put(store, b"ours")
            assert get(store) == b"ours"
    finally:
        os.kill(child, signal.SIGKILL)
