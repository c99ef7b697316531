"""The embedded store among real processes: killed, forked, growing, and short of address space."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from txn import Mutation, connect
from txn.errors import NotApplied, StoreClosedError
from txn.model import Check, Edit, Family, Key
from txn.stores import open_store
from txn.stores.base import Store
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.ordered import Reader, Writer

TABLE = b"t"
MEGABYTE = 1024 * 1024


class Child:
    """A forked process; what it writes to its pipe tells how far it has come."""

    def __init__(self, body: Callable[[Callable[[bytes], None]], None]) -> None:
        self._pipe, child_end = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._pipe)
            try:
                body(lambda told: _write(child_end, told))
                os._exit(0)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(child_end)

    def hear(self, size: int) -> bytes:
        """Return the next bytes that it tells, fewer only if it has ended."""
        heard = b""
        while len(heard) < size and (more := os.read(self._pipe, size - len(heard))):
            heard += more
        return heard

    def wait_until_it_waits(self) -> None:
        """Wait until it does nothing by itself, as what waits for a lock."""
        deadline = time.monotonic() + 60
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < deadline, "it goes on"

    def kill(self) -> bytes:
        """Kill it, if it lives, and return all that it told."""
        os.kill(self.pid, signal.SIGKILL)
        rest = b""
        while more := os.read(self._pipe, 65536):
            rest += more
        self._reap()
        return rest

    def join(self) -> None:
        """Wait for its end, which must be a good one."""
        rest = self.hear(1 << 30)
        assert self._reap() == 0, rest

    def _reap(self) -> int:
        os.close(self._pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _write(pipe: int, told: bytes) -> None:
    os.write(pipe, told)


def wait_for_ever() -> None:
    signal.pause()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@contextmanager
def opened(path: str, query: str = "?sync=off") -> Iterator[Store]:
    store = open_store(f"embedded://{path}{query}")
    try:
        store.ensure_table(TABLE, {b"d": Family(versions=1)})
        yield store
    finally:
        store.close()


def cell(row: str, column: str) -> Key:
    return Key(row, "d", column, TABLE)


def values(store: Store, *keys: Key) -> list[bytes | None]:
    found = store.read(keys)
    return [None if (one := found[key]) is None else one.value for key in keys]


# --- killed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["?sync=off", ""])
def test_a_writer_killed_at_any_moment_leaves_whole_calls(path: str, query: str) -> None:
    """A Spark worker dies by SIGKILL: no half call, no lost one, and nobody has to wait for it."""
    keys = [cell(f"row {number}", "x") for number in range(40)]
    rng = random.Random(7)

    def write(tell: Callable[[bytes], None]) -> None:
        with opened(path, query) as store:
            count = int(values(store, keys[0])[0] or b"0")
            while True:
                count += 1
                store.write([Edit(key, b"%d" % count, count) for key in keys])
                tell(b"%10d" % count)

    told = 0
    for _ in range(40):
        child = Child(write)
        heard = child.hear(10 * rng.randrange(1, 20)) + child.kill()
        told = int(heard[-10 - len(heard) % 10 :][:10])
        with opened(path, query) as store:
            found = values(store, *keys)
            assert len(set(found)) == 1, found
            assert int(found[0] or b"0") in {told, told + 1}
            store.write([Edit(cell("parent", "x"), b"free", told)])


def test_a_writer_killed_inside_its_transaction_frees_the_others(path: str) -> None:
    """Its lock is taken over and its changes have never been."""

    def write(tell: Callable[[bytes], None]) -> None:
        def body(writer: Writer) -> None:
            for number in range(1000):
                writer.put(b"%d" % number, bytes(5000))
            tell(b".")
            wait_for_ever()

        LmdbStore(path, sync=False).write(body)

    store = LmdbStore(path, sync=False)
    store.write(lambda writer: writer.put(b"k", b"1"))
    for _ in range(20):
        child = Child(write)
        assert child.hear(1) == b"."
        child.kill()
        assert store.write(lambda writer: list(writer.keys(b"", b"\xff"))) == [b"k"]
    store.close()


@contextmanager
def other_readers(path: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Started, not forked, processes inside read transactions: a fork would close our files."""
    script = """
        import signal, sys
        from txn.tables.kv.lmdb import LmdbStore
        store = LmdbStore(sys.argv[1], sync=False)
        store.read(lambda reader: (print("inside", flush=True), signal.pause()))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), path]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"inside\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_process_killed_while_it_opens_the_store_spoils_it_for_nobody(path: str) -> None:
    """The first one to open it makes LMDB's lock file anew. One that waited in LMDB meanwhile would
    take the file as it is then: empty, or with the number of an old commit to go on from."""
    with opened(path) as store:
        store.write([Edit(cell("r", "x"), b"old", 1)])

    def be_killed_half_way(tell: Callable[[bytes], None]) -> None:
        def half(folder: str, **_: object) -> None:
            file = os.open(os.path.join(folder, "lock.mdb"), os.O_RDWR)
            fcntl.lockf(file, fcntl.LOCK_EX, 1)
            os.ftruncate(file, 0)
            tell(b".")
            wait_for_ever()

        lmdb.Environment = half  # the driver's, in this process
        LmdbStore(path, sync=False)

    def wait_for_it(tell: Callable[[bytes], None]) -> None:
        tell(b".")
        with opened(path) as inner:
            inner.write([Edit(cell("r", "y"), b"new", 1)])

    first = Child(be_killed_half_way)
    assert first.hear(1) == b"."
    second = Child(wait_for_it)
    assert second.hear(1) == b"."
    second.wait_until_it_waits()
    first.kill()
    second.join()
    with opened(path) as store:
        assert values(store, cell("r", "x"), cell("r", "y")) == [b"old", b"new"]


def test_slots_of_killed_readers_are_taken_back(path: str) -> None:
    """A killed reader keeps its slot: without a check, enough deaths would stop everyone."""
    store = LmdbStore(path, sync=False, max_readers=6)
    with other_readers(path, 6):
        pass
    assert store.read(lambda one: one.get(b"k")) is None
    store.close()


def test_each_open_takes_back_the_slots_of_the_dead(path: str) -> None:
    """A living process that has a slot of its own would never need to look."""
    store = LmdbStore(path, sync=False, max_readers=3)
    for _ in range(6):
        with other_readers(path, 1):
            pass
    store.close()


def test_slots_of_living_readers_are_not_taken(path: str) -> None:
    """Too many live readers is an error that says so, and it passes with the first of them."""
    store = LmdbStore(path, sync=False, max_readers=3)
    with other_readers(path, 3) as readers:
        with pytest.raises(NotApplied, match=r"\?max_readers= path=.* max_readers=3"):
            store.read(lambda one: one.get(b"k"))
        readers[0].kill()
        readers[0].wait()
        assert store.read(lambda one: one.get(b"k")) is None
    store.close()


def test_a_killed_reader_does_not_make_the_file_grow_for_ever(path: str) -> None:
    """Pages that it seemed to read are used again before the map is made larger."""
    store = LmdbStore(path, sync=False)
    store.write(lambda writer: writer.put(b"k", bytes(MEGABYTE)))
    with other_readers(path, 1):
        for _ in range(5):
            store.write(lambda writer: writer.put(b"k", os.urandom(MEGABYTE)))
    for _ in range(60):
        store.write(lambda writer: writer.put(b"k", os.urandom(MEGABYTE)))
    assert os.path.getsize(os.path.join(path, "data.mdb")) <= 16 * MEGABYTE
    store.close()


# --- many at once -------------------------------------------------------------------------------


def test_counters_of_many_processes_lose_nothing(path: str) -> None:
    """Compare-and-set is all that keeps two transactions apart."""

    def count(tell: Callable[[bytes], None]) -> None:
        with opened(path) as store:
            for turn in range(300):
                key = cell("counter", "x") if turn % 2 else cell("k" * 1000, "x")
                while True:
                    old = values(store, key)[0] or b""
                    new = b"%d" % (int(old or b"0") + 1)
                    if store.check_and_put([Check(key, old, ((key, new),))], durable=False)[0]:
                        break
            tell(b".")

    children = [Child(count) for _ in range(4)]
    for child in children:
        child.join()
    with opened(path) as store:
        assert values(store, cell("counter", "x"), cell("k" * 1000, "x")) == [b"600", b"600"]


def test_a_map_grown_by_another_process_is_followed(path: str) -> None:
    """Readers and writers of an old, smaller map go on with the new one."""
    store = LmdbStore(path, sync=False)
    store.write(lambda writer: writer.put(b"k", b"0"))

    def fill(tell: Callable[[bytes], None]) -> None:
        inner = LmdbStore(path, sync=False)
        inner.write(lambda writer: writer.put(b"k", bytes(50 * MEGABYTE)))

    def read(tell: Callable[[bytes], None]) -> None:
        inner = LmdbStore(path, sync=False)
        while inner.read(lambda one: len(one.get(b"k") or b"")) == 1:
            tell(b".")

    beside = Child(read)
    assert beside.hear(3) == b"..."
    Child(fill).join()
    beside.join()
    assert store.read(lambda one: len(one.get(b"k") or b"")) == 50 * MEGABYTE
    store.write(lambda writer: writer.put(b"other", b"1"))
    store.close()


def test_a_store_that_grows_while_it_is_opened_can_be_opened(path: str) -> None:
    """A store beyond the first map's size is mapped as large as it is, and has outgrown that at
    once where another process goes on writing."""
    store = LmdbStore(path, sync=False)
    store.write(lambda writer: writer.put(b"k", bytes(20 * MEGABYTE)))
    store.close()

    def grow(tell: Callable[[bytes], None]) -> None:
        inner = LmdbStore(path, sync=False)
        for number in range(1_000_000):
            inner.write(lambda writer, key=b"%d" % number: writer.put(key, bytes(3_000)))
            if number == 10:
                tell(b".")

    growing = Child(grow)
    try:
        assert growing.hear(1) == b"."
        for _ in range(100):
            store = LmdbStore(path, sync=False)
            assert store.read(lambda one: len(one.get(b"k") or b"")) == 20 * MEGABYTE
            store.close()
    finally:
        growing.kill()


# --- forked -------------------------------------------------------------------------------------


def test_parent_and_child_go_on_with_the_same_store(path: str) -> None:
    """Idle environments are closed before a fork and opened again by whoever uses them."""
    with opened(path) as store:
        store.write([Edit(cell("r", "x"), b"parent", 1)])

        def body(tell: Callable[[bytes], None]) -> None:
            assert values(store, cell("r", "x")) == [b"parent"]
            store.write([Edit(cell("r", "y"), b"child", 1)])
            store.close()

        for _ in range(20):
            child = Child(body)
            store.write([Edit(cell("r", "z"), b"parent", 1)])
            child.join()
        assert values(store, *(cell("r", column) for column in "xyz")) == [
            b"parent",
            b"child",
            b"parent",
        ]


def test_closing_after_a_fork_does_not_open_the_files_again(path: str) -> None:
    """They were closed before the fork, and may be gone: a folder for a while ends with them."""
    store = LmdbStore(path, sync=False)
    Child(lambda tell: store.close()).join()
    shutil.rmtree(path)
    store.close()
    assert not os.path.exists(path)


def test_a_fork_beside_busy_threads_is_as_good(path: str) -> None:
    """Local transactions are short, so a fork waits for them: Spark and pools fork at any time."""
    with opened(path) as store, ThreadPoolExecutor(4) as pool:
        stop = threading.Event()

        def work(name: str) -> int:
            count = 0
            while not stop.is_set():
                count += 1
                store.write([Edit(cell(name, "x"), b"%d" % count, count)])
                assert values(store, cell(name, "x")) == [b"%d" % count]
            return count

        counts = [pool.submit(work, f"thread {number}") for number in range(4)]
        try:
            for number in range(30):

                def write(tell: Callable[[bytes], None], number: int = number) -> None:
                    signal.alarm(60)
                    store.write([Edit(cell(f"child {number}", "x"), b"1", 1)])

                Child(write).join()
        finally:
            stop.set()
        expected = [b"%d" % count.result(60) for count in counts]
        assert values(store, *(cell(f"thread {number}", "x") for number in range(4))) == expected
        assert values(store, *(cell(f"child {number}", "x") for number in range(30))) == [b"1"] * 30


def test_a_fork_beside_a_thread_that_waits_to_be_alone_is_as_good(path: str) -> None:
    """That thread is not in the child, where nobody may wait for it to have been alone."""
    store = LmdbStore(path, sync=False)
    for number in range(20):
        leave, was_alone = threading.Event(), threading.Event()

        def stay(_: Reader, leave: threading.Event = leave) -> None:
            assert leave.wait(60)

        def grow(was_alone: threading.Event = was_alone) -> None:
            store._shared._run_alone(was_alone.set)

        def body(tell: Callable[[bytes], None], key: bytes = b"%d" % number) -> None:
            signal.alarm(10)
            store.write(lambda writer: writer.put(key, b"1"))

        threads = [threading.Thread(target=store.read, args=(stay,)), threading.Thread(target=grow)]
        for thread in threads:
            thread.start()
        threading.Timer(0.05, leave.set).start()
        Child(body).join()
        assert was_alone.wait(60)
        for thread in threads:
            thread.join()
        assert store.read(lambda one, key=b"%d" % number: one.get(key)) == b"1"
    store.close()


def test_a_child_hands_over_commits_although_a_thread_of_its_parent_did(path: str) -> None:
    """It may hold the lock of the engine's queue, and will never let it go in the child."""
    key = Key("r", "d", "x", "t")
    with connect(f"embedded://{path}?sync=off") as engine:
        engine.ensure_table("t", ["d"])

        def body(tell: Callable[[bytes], None]) -> None:
            signal.alarm(60)
            engine.commit([Mutation(key, "1")], ack="decided")
            engine.flush()

        with engine._backend._finisher._lock:
            child = Child(body)
        child.join()
        found = engine.read([key])[key]
        assert found is not None and found.value == b"1"


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_child_cannot_use_what_was_busy(
    path: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Touching it would corrupt the parent's; the error says what to do instead."""
    monkeypatch.setattr("txn.tables.kv.lmdb.FORK_PATIENCE_S", 0.05)
    store = LmdbStore(path, sync=False)
    inside, leave = threading.Event(), threading.Event()

    def stay(_: Writer) -> None:
        inside.set()
        assert leave.wait(60)

    def body(tell: Callable[[bytes], None]) -> None:
        for handle in (LmdbStore(path, sync=False), store):
            # Not an error that passes: nothing tries again what raises it.
            with pytest.raises(StoreClosedError, match="busy when this process was forked"):
                handle.read(lambda one: one.get(b"k"))
            handle.close()

    thread = threading.Thread(target=getattr(store, kind), args=(stay,))
    thread.start()
    assert inside.wait(60)
    Child(body).join()
    leave.set()
    thread.join()
    store.write(lambda writer: writer.put(b"k", b"1"))
    Child(lambda tell: store.write(lambda writer: writer.put(b"k", b"2"))).join()
    assert store.read(lambda one: one.get(b"k")) == b"2"
    store.close()


@pytest.mark.parametrize("way", ["raise SystemExit(0)", "return"])
def test_a_fork_inside_a_transaction_spares_the_parent_s(path: str, way: str) -> None:
    """A signal handler may fork at any place; the child must neither abort nor commit there."""
    script = f"""
        import os, sys
        import txn.tables.kv.lmdb as ours
        from txn.errors import StoreError
        ours.FORK_PATIENCE_S = 1000  # for other threads
        store = ours.LmdbStore(sys.argv[1], sync=False)
        parent = os.getpid()

        def body(writer):
            writer.put(b"k", b"1")
            if not os.fork():
                {way}
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
            assert writer.get(b"k") == b"1"
            writer.put(b"l", b"2")

        try:
            store.write(body)
        except StoreError:
            assert os.getpid() != parent
            sys.exit(0)
        assert os.getpid() == parent
        print(store.read(lambda reader: [reader.get(b"k"), reader.get(b"l")]))
    """
    assert run(script, path) == "[b'1', b'2']\n"


def test_a_child_s_way_out_spares_the_reader_of_its_parent(path: str) -> None:
    """The slot is in shared memory: given back by the child, the parent's pages would be reused."""
    script = """
        import os, subprocess, sys
        import txn.tables.kv.lmdb as ours
        ours.FORK_PATIENCE_S = 1000  # for other threads
        store = ours.LmdbStore(sys.argv[1], sync=False)
        store.write(lambda writer: writer.put(b"k", b"1" * 1_000_000))
        overwrite = '''if True:
            import os, sys
            from txn.tables.kv.lmdb import LmdbStore
            store = LmdbStore(sys.argv[1], sync=False)
            for _ in range(30):
                store.write(lambda writer: writer.put(b"k", os.urandom(1_000_000)))
        '''

        def body(reader):
            if not os.fork():
                raise SystemExit(0)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
            subprocess.run([sys.executable, "-c", overwrite, sys.argv[1]], check=True)
            return reader.get(b"k")

        print(store.read(body) == b"1" * 1_000_000)
    """
    assert run(script, path) == "True\n"


def test_a_child_ends_although_another_thread_of_its_parent_was_writing(path: str) -> None:
    """The end of its interpreter would wait for that thread, which the child does not have."""
    script = """
        import os, sys, threading
        import txn.tables.kv.lmdb as ours
        ours.FORK_PATIENCE_S = 0.05
        store = ours.LmdbStore(sys.argv[1], sync=False)
        inside, leave = threading.Event(), threading.Event()
        thread = threading.Thread(
            target=store.write, args=(lambda writer: (inside.set(), leave.wait(60)),)
        )
        thread.start()
        inside.wait(60)
        if not os.fork():
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        leave.set()
        thread.join()
    """
    assert run(script, path) == "0\n"


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- short of something -------------------------------------------------------------------------


def test_an_address_space_limit_is_a_clear_error_and_leaves_the_store_whole(path: str) -> None:
    """Spark limits its Python workers this way (spark.executor.pyspark.memory)."""
    script = """
        import resource, sys
        from txn.errors import NotApplied
        from txn.tables.kv.lmdb import LmdbStore
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 100 * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        store = LmdbStore(sys.argv[1], sync=False)
        value = bytes(1024 * 1024)
        for number in range(1000):
            try:
                store.write(lambda writer: writer.put(b"%04d" % number, value))
            except NotApplied as error:
                assert "address space" in str(error), error
                break
        assert number > 20, number
        kept = store.read(lambda reader: list(reader.keys(b"", b"\\xff")))
        assert len(kept) == number, (len(kept), number)
        store.write(lambda writer: writer.delete(b"0000"))
        store.write(lambda writer: writer.delete(b"0001"))
        store.write(lambda writer: writer.put(b"small", b"1"))
        print("whole")
    """
    assert run(script, path) == "whole\n"
    store = LmdbStore(path, sync=False)
    assert store.read(lambda one: one.get(b"small")) == b"1"
    store.close()


def test_a_full_disk_is_reported_and_leaves_the_store_whole(path: str) -> None:
    """A commit that fails half way through its writing must never be seen, nor stop the next."""
    script = """
        import resource, sys
        from txn.errors import MaybeApplied
        from txn.tables.kv.lmdb import LmdbStore
        store = LmdbStore(sys.argv[1])
        store.write(lambda writer: writer.put(b"k", b"old"))
        limit = 8 * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        def fill(writer):
            for number in range(12):
                writer.put(b"%d" % number, bytes(1024 * 1024))
            writer.put(b"k", b"new")

        try:
            store.write(fill)
        except MaybeApplied as error:
            assert "commit failed" in str(error), error
            assert store.read(lambda reader: list(reader.keys(b"", b"z"))) == [b"k"]
            store.write(lambda writer: writer.put(b"l", b"small"))
            print(store.read(lambda reader: [reader.get(b"k"), reader.get(b"l")]))
    """
    assert run(script, path) == "[b'old', b'small']\n"
