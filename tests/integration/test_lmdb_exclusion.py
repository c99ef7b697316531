"""Writers of the embedded store beside one that dies, is stopped, is forked or does not end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import lmdb
import pytest

from tests.integration.test_lmdb_processes import Child, wait_for_ever
from tests.integration.writer_kills import kill_pairs
from txn import Key, Mutation, connect
from txn.errors import NotApplied
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.ordered import Writer

Tell = Callable[[bytes], None]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


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

    child = Child(write)
    assert child.hear(1) == b"."
    return child


def stop_oneself(_: Tell) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_until_stopped(child: Child) -> None:
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)


def test_owners_and_waiters_that_are_killed_together_keep_nobody_waiting(path: str) -> None:
    """A waiter was seen asleep for ever in LMDB's own mutex, whose owner was dead."""
    killed = kill_pairs(path, 200, Random(3))
    assert killed.owners > 60


@pytest.mark.usefixtures("hasty")
def test_a_stopped_writer_is_a_clear_error_to_others_and_keeps_no_reader_out(path: str) -> None:
    """Else one suspended program would stop all that use the store, without a word."""
    stopped = writing(path, stop_oneself)
    wait_until_stopped(stopped)
    store = LmdbStore(path, sync=False)
    with pytest.raises(NotApplied, match=f"writing to the store .* process={stopped.pid}$"):
        put(store, b"ours")
    assert get(store) is None
    os.kill(stopped.pid, signal.SIGCONT)
    stopped.join()
    assert get(store) == b"theirs"
    put(store, b"ours")
    assert get(store) == b"ours"
    store.close()


@pytest.mark.usefixtures("hasty")
def test_an_engine_opens_and_reads_beside_a_stopped_writer(path: str) -> None:
    """Its tables are there: to see this it needs no lock."""
    key = Key("r", "d", "x", "t")
    with connect(f"embedded://{path}?sync=off") as engine:
        engine.ensure_table("t", ["d"])
        engine.commit([Mutation(key, "1")])
    stopped = writing(path, stop_oneself)
    wait_until_stopped(stopped)
    with connect(f"embedded://{path}?sync=off") as engine:
        engine.ensure_table("t", ["d"])
        found = engine.read([key])[key]
    assert found is not None and found.value == b"1"
    stopped.kill()


def test_a_commit_beside_a_stopped_writer_ends_soon_after_its_deadline(path: str) -> None:
    """It took ten seconds, whatever `deadline_ms`."""
    key = Key("r", "d", "x", "t")
    with connect(f"embedded://{path}?sync=off") as engine:
        engine.ensure_table("t", ["d"])
        engine.commit([Mutation(key, "1")])
        stopped = writing(path, stop_oneself)
        wait_until_stopped(stopped)
        began = time.monotonic()
        with pytest.raises(NotApplied, match=f"process={stopped.pid}$"):
            engine.commit([Mutation(key, "2")], deadline_ms=10)
        assert time.monotonic() - began < 5
        stopped.kill()


@pytest.mark.usefixtures("hasty")
def test_a_reader_without_the_right_to_write_and_a_writer_keep_each_other_out(path: str) -> None:
    """It has no slot by which LMDB would spare its pages."""
    stopped = writing(path, stop_oneself)
    wait_until_stopped(stopped)
    store = LmdbStore(path, sync=False, read_only=True)
    with pytest.raises(NotApplied, match=f"writing to the store .* process={stopped.pid}$"):
        get(store)
    os.kill(stopped.pid, signal.SIGCONT)
    stopped.join()
    assert get(store) == b"theirs"

    store.close()

    def read(tell: Tell) -> None:
        def stay(_: object) -> None:
            tell(b".")
            wait_for_ever()

        LmdbStore(path, sync=False, read_only=True).read(stay)

    reader = Child(read)
    assert reader.hear(1) == b"."
    store = LmdbStore(path, sync=False)
    with pytest.raises(NotApplied, match=f"reading the store .* process={reader.pid}$"):
        put(store, b"ours")
    reader.kill()
    put(store, b"ours")
    store.close()


@pytest.mark.usefixtures("hasty")
def test_a_stopped_opener_is_a_clear_error_to_others(path: str) -> None:
    """They may not open the files beside it, and do not wait for ever either."""

    def be_stopped(tell: Tell) -> None:
        lmdb.Environment = lambda *_, **__: stop_oneself(tell)  # the driver's, in this process
        LmdbStore(path, sync=False)

    stopped = Child(be_stopped)
    wait_until_stopped(stopped)
    with pytest.raises(NotApplied, match=f"opening the store .* process={stopped.pid}$"):
        LmdbStore(path, sync=False)
    stopped.kill()
    LmdbStore(path, sync=False).close()


@pytest.mark.usefixtures("hasty")
def test_a_commit_outlasts_a_writer_that_is_stopped_for_a_while(path: str) -> None:
    """The error says that nothing happened, so what can be repeated is."""
    key = Key("r", "d", "x", "t")
    with connect(f"embedded://{path}?sync=off") as engine:
        engine.ensure_table("t", ["d"])
        stopped = writing(path, stop_oneself)
        wait_until_stopped(stopped)
        later = threading.Timer(0.7, os.kill, (stopped.pid, signal.SIGCONT))
        later.start()
        assert engine.commit([Mutation(key, "1")]).complete
        later.join()
        stopped.join()


@pytest.mark.usefixtures("hasty")
def test_a_thread_that_does_not_end_is_a_clear_error_to_the_others(path: str) -> None:
    """They are one owner to the kernel, and take a lock of their own first."""
    store = LmdbStore(path, sync=False)
    inside, leave = threading.Event(), threading.Event()

    def stay(_: Writer) -> None:
        inside.set()
        assert leave.wait(60)

    thread = threading.Thread(target=store.write, args=(stay,))
    thread.start()
    assert inside.wait(60)
    with pytest.raises(NotApplied, match=f"writing to the store .* process={os.getpid()}$"):
        put(store, b"ours")
    leave.set()
    thread.join()
    put(store, b"ours")
    store.close()


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
        store = LmdbStore(path, sync=False)
        put(store, b"ours")
        assert get(store) == b"ours"
        store.close()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.usefixtures("hasty")
def test_a_child_that_ends_does_not_free_the_lock_of_its_parent(path: str) -> None:
    """It leaves the transaction on its way out, and closes what it inherited."""

    def outlive_a_child(tell: Tell) -> None:
        pid = os.fork()
        if not pid:
            raise SystemExit
        os.waitpid(pid, 0)
        tell(b"!")
        wait_for_ever()

    parent = writing(path, outlive_a_child)
    assert parent.hear(1) == b"!"
    store = LmdbStore(path, sync=False)
    with pytest.raises(NotApplied, match=f"process={parent.pid}$"):
        put(store, b"ours")
    parent.kill()
    put(store, b"ours")
    store.close()


def test_a_process_that_writes_without_a_pause_keeps_nobody_out(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of its transactions there is hardly a moment in which others find none."""
    monkeypatch.setattr("txn.tables.kv.exclusion.PATIENCE_MS", 2_000)

    def write(tell: Tell) -> None:
        store = LmdbStore(path, sync=False)
        tell(b".")
        while True:
            store.write(lambda _: time.sleep(0.1))

    busy = Child(write)
    assert busy.hear(1) == b"."
    store = LmdbStore(path, sync=False)
    try:
        for number in range(10):
            put(store, b"%d" % number)
    finally:
        busy.kill()
        store.close()
