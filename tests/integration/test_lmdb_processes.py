"""The embedded store among real processes: killed, forked, growing, or short of something."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType

import lmdb
import pytest

from tests.integration.children import Child, Tell, other_readers, run, start, wait_for_ever
from txn import Mutation, connect
from txn.errors import NotApplied, StoreClosedError
from txn.model import Edit, Family, Key
from txn.stores import open_store
from txn.stores.base import Store
from txn.tables import kv
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.ordered import Writer

TABLE = b"t"
MEGABYTE = 1024 * 1024
FILES = ["data.mdb", "format", "lock.mdb", "writer.lock"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def store(path: str) -> Iterator[LmdbStore]:
    store = LmdbStore(path, sync=False)
    yield store
    store.close()


@contextmanager
def opened(path: str, query: str = "?sync=off") -> Iterator[Store]:
    with closing(open_store(f"embedded://{path}{query}")) as store:
        store.ensure_table(TABLE, {b"d": Family(versions=1)})
        yield store


def get(store: LmdbStore, key: bytes = b"k") -> bytes | None:
    return store.read(lambda reader: reader.get(key))


def put(store: LmdbStore, value: bytes, key: bytes = b"k") -> None:
    store.write(lambda writer: writer.put(key, value))


def cell(row: str, column: str) -> Key:
    return Key(row, "d", column, TABLE)


def values(store: Store, *keys: Key) -> list[bytes | None]:
    found = store.read(keys)
    return [None if (one := found[key]) is None else one.value for key in keys]


@pytest.mark.parametrize(
    ("query", "times"),
    [("", 5), *(pytest.param(query, 40, marks=pytest.mark.long) for query in ("", "?sync=off"))],
)
def test_a_writer_killed_at_any_time_leaves_whole_calls(path: str, query: str, times: int) -> None:
    """A Spark worker dies by SIGKILL: no half call, no lost one, and nobody has to wait for it."""
    keys = [cell(f"row {number}", "x") for number in range(40)]
    rng = random.Random(7)

    def write(tell: Tell) -> None:
        with opened(path, query) as store:
            count = int(values(store, keys[0])[0] or b"0")
            while True:
                count += 1
                store.write([Edit(key, b"%d" % count, count) for key in keys])
                tell(b"%10d" % count)

    told = 0
    for _ in range(times):
        child = Child(write)
        heard = child.hear(10 * rng.randrange(1, 20)) + child.kill()
        told = int(heard[-10 - len(heard) % 10 :][:10])
        with opened(path, query) as store:
            found = values(store, *keys)
            assert len(set(found)) == 1, found
            assert int(found[0] or b"0") in {told, told + 1}
            store.write([Edit(cell("parent", "x"), b"free", told)])


def test_a_writer_killed_in_its_transaction_frees_the_others(path: str, store: LmdbStore) -> None:
    def write(tell: Tell) -> None:
        def body(writer: Writer) -> None:
            for number in range(1000):
                writer.put(b"%d" % number, bytes(5000))
            tell(b".")
            wait_for_ever()

        LmdbStore(path, sync=False).write(body)

    put(store, b"1")
    for _ in range(3):
        start(write).kill()
        assert store.write(lambda writer: list(writer.keys(b"", b"\xff"))) == [b"k"]


def test_a_process_killed_while_it_opens_the_store_spoils_it_for_nobody(path: str) -> None:
    """It had begun LMDB's lock file anew, for which another one waited in LMDB."""
    with opened(path) as store:
        store.write([Edit(cell("r", "x"), b"old", 1)])

    def be_killed_half_way(tell: Tell) -> None:
        def half(folder: str, **_: object) -> None:
            file = os.open(os.path.join(folder, "lock.mdb"), os.O_RDWR)
            fcntl.lockf(file, fcntl.LOCK_EX, 1)
            os.ftruncate(file, 0)
            tell(b".")
            wait_for_ever()

        lmdb.Environment = half  # type: ignore[assignment,misc]
        LmdbStore(path, sync=False)

    def wait_for_it(tell: Tell) -> None:
        tell(b".")
        with opened(path) as inner:
            inner.write([Edit(cell("r", "y"), b"new", 1)])

    first, second = start(be_killed_half_way), start(wait_for_it)
    second.wait_until_it_waits()
    first.kill()
    second.join()
    with opened(path) as store:
        assert values(store, cell("r", "x"), cell("r", "y")) == [b"old", b"new"]


def test_slots_of_living_readers_are_not_taken(path: str) -> None:
    """Too many live readers is an error that says so, and it passes with the first of them."""
    store = LmdbStore(path, sync=False, max_readers=3)
    with other_readers(path, 3) as readers:
        with pytest.raises(NotApplied, match=r"\?max_readers= path=.* max_readers=3"):
            get(store)
        readers[0].kill()
        readers[0].wait()
        assert get(store) is None
    store.close()


def test_a_killed_reader_does_not_make_the_file_grow_for_ever(path: str, store: LmdbStore) -> None:
    """Pages that it seemed to read are used again before the map is made larger."""
    put(store, bytes(MEGABYTE))
    with other_readers(path, 1):
        for _ in range(5):
            put(store, os.urandom(MEGABYTE))
    for _ in range(60):
        put(store, os.urandom(MEGABYTE))
    assert os.path.getsize(os.path.join(path, "data.mdb")) <= 16 * MEGABYTE


def test_a_map_grown_by_another_process_is_followed(path: str, store: LmdbStore) -> None:
    put(store, b"0")

    def read(tell: Tell) -> None:
        inner = LmdbStore(path, sync=False)
        while len(get(inner) or b"") == 1:
            tell(b".")

    beside = Child(read)
    assert beside.hear(3) == b"..."
    Child(lambda tell: put(LmdbStore(path, sync=False), bytes(50 * MEGABYTE))).join()
    beside.join()
    assert len(get(store) or b"") == 50 * MEGABYTE
    put(store, b"1", b"other")


def test_a_fork_beside_busy_threads_is_as_good(path: str) -> None:
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
            for number in range(10):

                def write(tell: Tell, number: int = number) -> None:
                    signal.alarm(60)
                    store.write([Edit(cell(f"child {number}", "x"), b"1", 1)])

                Child(write).join()
        finally:
            stop.set()
        expected = [b"%d" % count.result(60) for count in counts]
        assert values(store, *(cell(f"thread {number}", "x") for number in range(4))) == expected
        assert values(store, *(cell(f"child {number}", "x") for number in range(10))) == [b"1"] * 10


def test_a_child_hands_over_commits_although_a_thread_of_its_parent_did(path: str) -> None:
    """It may hold the lock of the engine's queue, and will never let it go in the child."""
    key = Key("r", "d", "x", "t")
    with connect(f"embedded://{path}?sync=off") as engine:
        engine.ensure_table("t", ["d"])

        def body(tell: Tell) -> None:
            signal.alarm(60)
            engine.commit([Mutation(key, "1")], ack="decided")
            engine.flush()

        with engine._backend._finisher._lock:  # type: ignore[attr-defined]
            child = Child(body)
        child.join()
        found = engine.read([key])[key]
        assert found is not None and found.value == b"1"


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_child_cannot_use_what_was_busy(
    path: str, store: LmdbStore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Touching it would corrupt the parent's; the error says what to do instead."""
    monkeypatch.setattr("txn.tables.kv.lmdb.FORK_PATIENCE_S", 0.05)
    inside, leave = threading.Event(), threading.Event()

    def stay(_: Writer) -> None:
        inside.set()
        assert leave.wait(60)

    def body(tell: Tell) -> None:
        for handle in (LmdbStore(path, sync=False), store):
            # Not an error that passes: nothing tries again what raises it.
            with pytest.raises(StoreClosedError, match="busy when this process was forked"):
                get(handle)
            handle.close()

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(getattr(store, kind), stay)
        assert inside.wait(60)
        Child(body).join()
        leave.set()
        busy.result(60)
    put(store, b"1")
    Child(lambda tell: put(store, b"2")).join()
    assert get(store) == b"2"


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
    with closing(LmdbStore(path, sync=False)) as store:
        assert get(store, b"small") == b"1"


def test_a_store_whose_maker_was_killed_at_any_line_can_be_opened(tmp_path: Path) -> None:
    """Nothing was in it; nobody has to find out which files to delete."""
    folder = os.path.dirname(kv.__file__)

    def make(path: str, line: int) -> bool:
        """Return whether the maker came to its end."""
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        left = line

        def trace(frame: FrameType, event: str, _: object) -> object:
            nonlocal left
            if not frame.f_code.co_filename.startswith(folder):
                return None
            left -= event == "line"
            if left < 0:
                os._exit(1)
            return trace

        try:
            sys.settrace(trace)  # type: ignore[arg-type]
            LmdbStore(path, sync=False)
            os._exit(0)
        finally:
            os._exit(1)

    line, is_made = 0, False
    while not is_made:
        path = str(tmp_path / f"{line}")
        is_made = make(path, line)
        store = LmdbStore(path, sync=False)
        put(store, b"v")
        assert get(store) == b"v"
        store.close()
        names = os.listdir(path)
        assert sorted(name for name in names if not name.startswith(".format-")) == FILES
        line += 9
    assert line > 100


def test_a_reader_s_pages_are_spared_when_slots_of_the_dead_are_freed(path: str) -> None:
    """Freed by mistake, its slot would let writers use the pages that it reads."""
    with closing(LmdbStore(path, sync=False, max_readers=4)) as store:
        put(store, b"1" * MEGABYTE)
    with other_readers(path, 4) as readers:
        for reader in readers[1:]:
            reader.kill()
            reader.wait()
        with closing(LmdbStore(path, sync=False)) as store:
            files = store._shared._files
            assert files is not None
            slots = {line.split()[0] for line in files.environment.readers().splitlines()[1:]}
            assert slots - {str(os.getpid())} == {str(readers[0].pid)}


UNPRIVILEGED = """
    import os, sys
    from txn import *
    parent = os.path.dirname(sys.argv[1])
    while parent != "/tmp" and len(parent) > 1:
        os.chmod(parent, 0o755)
        parent = os.path.dirname(parent)
    os.chmod(sys.argv[1], 0o555)
    if os.getuid() == 0:
        os.setuid(65534)
    os.umask(0o777)  # what it made nevertheless would be seen
"""


def test_a_store_that_may_not_be_written_can_be_looked_at(path: str) -> None:
    key = Key("r", "d", "x", "t")
    with connect(f"embedded://{path}") as engine:
        engine.ensure_table("t", ["d"])
        engine.commit([Mutation(key, "1")])
    script = f"""
    import sys
    from typer.testing import CliRunner
    from recovery.commands import app

    store = "embedded://" + sys.argv[1]

    def look():
        for words in ("ls", "show transaction", "get t/r/d:x", "fsck --scan t", "doctor t"):
            result = CliRunner().invoke(app, [*words.split(), "--store", store])
            yield words.split()[0] + f" {{result.exit_code}}\\n" + result.output

    list(look())  # imports what may be out of reach later
    {UNPRIVILEGED}
    key = Key("r", "d", "x", "t")
    with connect(store) as engine:
        print(engine.read([key])[key].value)
        try:
            engine.commit([Mutation(key, "2")])
        except InvalidRequestError as error:
            print(error)
    print(*look())
    """
    told = run(script, path)
    assert told.startswith("b'1'\nthe store can only be read here: nothing was written path=")
    for command in ("ls", "show", "get", "fsck", "doctor"):
        assert f"{command} 0\n" in told
    assert "caution  store: can only be read here" in told
    assert sorted(os.listdir(path)) == FILES


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


def test_a_disk_that_is_full_is_an_error_to_who_makes_a_store(path: str) -> None:
    """Each file needs its space before LMDB maps it: a page without space kills the process."""
    script = """
        import os, resource, sys
        from txn.errors import NotApplied
        from txn.tables.kv.lmdb import LmdbStore
        for limit in (10, 5000, 20000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                LmdbStore(sys.argv[1])
            except NotApplied as error:
                print(str(error).partition(" path=")[0], str(error).rpartition("reason=")[2])
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, resource.RLIM_INFINITY))
        store = LmdbStore(sys.argv[1])
        store.write(lambda writer: writer.put(b"k", b"v"))
        print(store.read(lambda reader: reader.get(b"k")))
    """
    told = run(script, path).splitlines()
    assert told[-1] == "b'v'"
    assert len(told) == 4
    assert all("cannot open the store" in line and "File too large" in line for line in told[:3])
