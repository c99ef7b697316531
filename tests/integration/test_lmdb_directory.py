"""An embedded store's files among processes: half made, cut short, without slots or rights."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

from tests.integration.children import Child, Tell, other_readers, run, start, wait_for_ever
from txn import Key, Mutation, connect
from txn.errors import NotApplied, StoreClosedError
from txn.tables import kv
from txn.tables.kv.lmdb import LmdbStore

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


def open_and_close(path: str) -> None:
    LmdbStore(path, sync=False).close()


def put(store: LmdbStore, value: bytes) -> None:
    store.write(lambda writer: writer.put(b"k", value))


def get(store: LmdbStore) -> bytes | None:
    return store.read(lambda reader: reader.get(b"k"))


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


def test_a_file_cut_short_is_an_error_to_all_and_kills_none(path: str, store: LmdbStore) -> None:
    """It may be longer than this process has seen it, and yet be shorter than it was."""
    put(store, b"v")
    grow = """
        import sys
        from txn.tables.kv.lmdb import LmdbStore
        store = LmdbStore(sys.argv[1], sync=False)
        for number in range(300):
            store.write(lambda writer: writer.put(b"%d" % number, bytes(3000)))
    """
    run(grow, path)  # not forked, since files are closed before a fork
    data = Path(path) / "data.mdb"
    os.truncate(data, data.stat().st_size // 2)
    for call in (get, lambda store: put(store, b"w")):
        with pytest.raises(StoreClosedError, match="cut short while this process used it"):
            call(store)
    store.close()
    with pytest.raises(NotApplied, match=f"cut short: restore it from a backup file='{data}'"):
        LmdbStore(path, sync=False)


def test_a_replaced_lock_file_is_told_after_the_next_commit(path: str, store: LmdbStore) -> None:
    """It would see none of them, and writers would use the pages that it reads."""
    put(store, b"1")
    os.unlink(Path(path) / "lock.mdb")
    write = """
        import sys
        from txn.tables.kv.lmdb import LmdbStore
        store = LmdbStore(sys.argv[1], sync=False)
        store.write(lambda writer: writer.put(b"k", b"2"))
    """
    run(write, path)
    with pytest.raises(StoreClosedError, match="the store's lock file was replaced"):
        get(store)
    store.close()
    with closing(LmdbStore(path, sync=False)) as again:
        assert get(again) == b"2"


@contextmanager
def holding_a_slot(path: str, count: int) -> Iterator[list[int]]:
    """Processes that have each read once, and keep the slot for their next reads."""

    def hold(tell: Tell) -> None:
        store = LmdbStore(path, sync=False, max_readers=count)
        get(store)
        tell(b".")
        wait_for_ever()

    children = [start(hold) for _ in range(count)]
    try:
        yield [child.pid for child in children]
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                child.kill()


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_slots_of_the_dead_keep_no_process_out_while_another_one_lives(path: str) -> None:
    """Opening takes a slot, and LMDB frees the slots of the dead only where it is open."""
    with holding_a_slot(path, 6) as pids:
        for pid in pids[1:]:
            end(pid)
        for _ in range(3):
            with closing(LmdbStore(path, sync=False)) as store:
                put(store, b"v")
                assert get(store) == b"v"


def test_slots_of_stopped_processes_are_not_taken(path: str) -> None:
    with holding_a_slot(path, 3) as pids:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED)
        for _ in range(2):
            with pytest.raises(NotApplied, match=r"reader slots.*\?max_readers=.*max_readers=3$"):
                LmdbStore(path, sync=False)
        end(pids[0])
        open_and_close(path)


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


def test_a_process_of_the_same_number_in_another_container_is_a_clear_error(path: str) -> None:
    """LMDB tells processes by their numbers, and each container may have a process 1."""
    open_and_close(path)

    def hold(tell: Tell) -> None:
        file = os.open(os.path.join(path, "lock.mdb"), os.O_RDWR)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, os.getppid())
        tell(b".")
        wait_for_ever()

    other = start(hold)
    with pytest.raises(NotApplied, match=f"process of the same number.* process={os.getpid()}$"):
        LmdbStore(path, sync=False)
    other.kill()
    open_and_close(path)


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


def test_a_reader_without_the_right_to_write_follows_a_growing_store(path: str) -> None:
    open_and_close(path)

    def read(tell: Tell) -> None:
        reader = LmdbStore(path, sync=False, read_only=True)
        while (size := len(get(reader) or b"")) < 40 * MEGABYTE:
            tell(b"." if size < 10 else b"!")

    beside = Child(read)
    assert beside.hear(3) == b"..."
    with closing(LmdbStore(path, sync=False)) as store:
        for size in range(1, 41):
            put(store, bytes(size * MEGABYTE))
        beside.join()
