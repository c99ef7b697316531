"""An embedded store's files: cut short, lost, replaced, or not to be written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from txn.errors import (
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    ReadOnlyError,
    StoreClosedError,
)
from txn.model import Family
from txn.stores import open_store
from txn.tables.kv import files
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.ordered import Reader, Writer

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with some values."""
    path = tmp_path / "store"
    fill(path)
    return path


@pytest.fixture
def data(path: Path) -> Path:
    return path / "data.mdb"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(str(path), sync=False)
    yield store
    store.close()


def fill(path: Path, count: int = 50) -> None:
    store = LmdbStore(str(path), sync=False)
    for number in range(count):
        put(store, b"%d" % number, bytes(3000))
    store.close()


def get(store: LmdbStore, key: bytes = b"0") -> bytes | None:
    return store.read(lambda reader: reader.get(key))


def put(store: LmdbStore, key: bytes = b"k", value: bytes = b"v") -> None:
    store.write(lambda writer: writer.put(key, value))


def replace(path: Path) -> None:
    """Do what a restore does: put another store where one was."""
    fill(path.with_name("backup"), 1)
    for name in ("data.mdb", "lock.mdb"):
        os.replace(path.with_name("backup") / name, path / name)


@pytest.mark.parametrize("size", [1, 100, PAGE, PAGE + 100, 2 * PAGE, -PAGE, -1, None])
def test_a_data_file_that_is_cut_short_is_refused(path: Path, data: Path, size: int | None) -> None:
    """A missing page, once LMDB has mapped it, kills the process without a word."""
    whole = data.stat().st_size
    left = whole // 2 if size is None else size % whole
    os.truncate(data, left)
    for read_only in (False, True):
        with pytest.raises(NotApplied, match=f"cut short.*file='{data}' bytes={left}"):
            LmdbStore(str(path), read_only=read_only)
    assert data.stat().st_size == left


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_a_lost_data_file_is_not_made_anew(path: Path, data: Path, state: str) -> None:
    """It would be a new database, of the default protocol, to whoever had one here."""
    if state == "missing":
        data.unlink()
    else:
        os.truncate(data, 0)
    before = sorted(os.listdir(path))
    for create in (True, False):
        with pytest.raises(NotApplied, match=f"{state}: restore it.*{data}"):
            LmdbStore(str(path), create=create)
    assert sorted(os.listdir(path)) == before
    assert not data.exists() or not data.stat().st_size


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize(
    ("at", "reason"), [(16, "damaged"), (20, "another version of LMDB"), (40, "damaged")]
)
def test_a_damaged_page_is_refused(path: Path, data: Path, page: int, at: int, reason: str) -> None:
    content = bytearray(data.read_bytes())
    content[page * PAGE + at] ^= 0x7F
    data.write_bytes(content)
    with pytest.raises(NotApplied, match=f"{reason}.*{data}"):
        LmdbStore(str(path))
    assert data.read_bytes() == content


def test_a_last_page_far_away_is_refused_at_once(path: Path, data: Path) -> None:
    """A bit that flips in its number may say so; to list all pages up to it would take for ever."""
    content = bytearray(data.read_bytes())
    for page in (0, PAGE):
        at = page + files._HEADER.size
        *known, _, number = files._META.unpack_from(content, at)
        files._META.pack_into(content, at, *known, 1 << 62, number)
    data.write_bytes(content)
    with pytest.raises(NotApplied, match="cut short"):
        LmdbStore(str(path))


@pytest.mark.parametrize("count", [10, 800])
def test_a_file_that_lacks_only_free_pages_is_whole(path: Path, data: Path, count: int) -> None:
    """LMDB does not write a page at the end that one transaction took and gave back."""
    keys = [b"more %d" % number for number in range(count)]
    store = LmdbStore(str(path), sync=False)

    def add(writer: Writer) -> None:
        for key in keys:
            writer.put(key, bytes(3000))

    def remove(writer: Writer) -> None:
        for key in keys:
            writer.delete(key)

    store.write(add)
    store.write(remove)
    for number in range(50):  # the pages of the tree itself go back to the beginning
        put(store, b"%d" % number, b"small")
    store.close()
    whole = data.stat().st_size
    for left in range(whole, 0, -PAGE * (count // 10)):
        os.truncate(data, left)
        try:
            store = LmdbStore(str(path), sync=False)
        except NotApplied:
            break
        assert get(store) == b"small"
        assert data.stat().st_size == left
        put(store, b"0", b"small")
        put(store, b"0", b"small")
        assert data.stat().st_size == whole  # for the next ones, which need not look so long
        store.close()
    assert left < whole - PAGE * (count // 10)


def test_a_file_cut_short_beneath_a_process_is_an_error_to_it(store: LmdbStore, data: Path) -> None:
    os.truncate(data, data.stat().st_size // 2)
    for call in (put, get, put):
        with pytest.raises(StoreClosedError, match=f"cut short while.*{data}|cut short while"):
            call(store)


@pytest.mark.parametrize("calls", [(put, get, put), ()])
def test_a_replaced_store_takes_no_more_commits(
    store: LmdbStore, path: Path, calls: Sequence[Callable[[LmdbStore], object]]
) -> None:
    """They would go to a file that nobody can open any more. A new handle has the new files, and
    notices that the others have not."""
    replace(path)
    for call in calls:
        with pytest.raises(StoreClosedError, match="the store was replaced while this process"):
            call(store)
    other = LmdbStore(str(path), sync=False)
    put(other)
    assert get(other, b"k") == b"v"
    assert get(other, b"1") is None
    with pytest.raises(StoreClosedError, match="replaced"):
        put(store)
    store.close()
    assert get(other, b"k") == b"v"
    other.close()


def test_a_store_replaced_amid_a_commit_does_not_acknowledge_it(
    store: LmdbStore, path: Path
) -> None:

    def body(writer: Writer) -> None:
        writer.put(b"k", b"v")
        replace(path)

    with pytest.raises(MaybeApplied, match=r"the commit may be lost.*replaced"):
        store.write(body)


def test_a_store_replaced_at_rest_is_not_taken_for_the_old_one(
    store: LmdbStore, path: Path
) -> None:
    store.unmap()
    replace(path)
    with pytest.raises(StoreClosedError, match="replaced"):
        put(store)
    other = LmdbStore(str(path), sync=False)
    put(other)
    other.close()


@pytest.mark.parametrize("names", [("data.mdb",), ("data.mdb", "lock.mdb")])
@pytest.mark.parametrize("call", [put, get])
def test_an_older_state_in_the_same_file_is_an_error(
    store: LmdbStore, path: Path, names: Sequence[str], call: Callable[[LmdbStore], object]
) -> None:
    """`cp backup/* store/` after one commit keeps the files. LMDB's lock file remembers other
    commits, or both agree on less than was acknowledged."""
    get(store)
    before = {name: (path / name).read_bytes() for name in names}
    put(store)
    for name, content in before.items():
        with open(path / name, "r+b") as file:
            file.write(content)
    with pytest.raises(StoreClosedError, match="something else has changed"):
        call(store)


def test_a_newer_state_in_the_same_file_is_an_error(store: LmdbStore, path: Path) -> None:
    backup = path.with_name("backup")
    fill(backup, 200)
    with open(path / "data.mdb", "r+b") as file:
        file.write((backup / "data.mdb").read_bytes())
    for call in (get, put):
        with pytest.raises(StoreClosedError, match="something else has changed"):
            call(store)


@pytest.mark.parametrize("calls", [(put, get), (get, put)])
@pytest.mark.parametrize("what", ["replaced", "cut short"])
def test_a_lock_file_that_is_gone_or_cut_is_an_error(
    store: LmdbStore, path: Path, what: str, calls: Sequence[Callable[[LmdbStore], object]]
) -> None:
    """Without it the processes know nothing of each other's readers and commits."""
    lock = path / "lock.mdb"
    if what == "replaced":
        lock.unlink()
        lock.touch()
    else:
        os.truncate(lock, 0)
    for call in calls:
        with pytest.raises(StoreClosedError, match=f"the store's lock file was {what}"):
            call(store)
    store.close()
    again = LmdbStore(str(path), sync=False)
    put(again)
    again.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_replaced_file_of_writers_locks_is_an_error(path: Path, read_only: bool) -> None:
    store = LmdbStore(str(path), sync=False, read_only=read_only)
    (path / "writer.lock").unlink()
    (path / "writer.lock").touch()
    with pytest.raises(StoreClosedError, match="lock file was replaced"):
        get(store) if read_only else put(store)
    store.close()


def test_a_moved_folder_is_an_error_until_it_is_opened_there(store: LmdbStore, path: Path) -> None:
    moved = path.rename(path.with_name("moved"))
    with pytest.raises(StoreClosedError, match="the store was moved or deleted"):
        put(store)
    other = LmdbStore(str(moved), sync=False)
    put(other)
    other.close()


def test_threads_beside_each_other_do_not_mistake_growth_for_a_loss(store: LmdbStore) -> None:

    def grow(name: int) -> None:
        for number in range(100):
            put(store, b"%d %d" % (name, number), bytes(5000))
            assert get(store, b"%d %d" % (name, number)) == bytes(5000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(grow, range(4)))


def test_a_store_opened_to_be_read_changes_nothing(path: Path) -> None:
    before = {name: (path / name).stat() for name in os.listdir(path)}
    store = LmdbStore(str(path), read_only=True)
    assert get(store) == bytes(3000)
    with pytest.raises(ReadOnlyError, match=f"nothing was written path='{path}'"):
        put(store)
    with pytest.raises(ReadOnlyError):
        store.atomically(lambda: None)
    store.unmap()
    assert get(store) == bytes(3000)
    store.close()
    after = {name: (path / name).stat() for name in os.listdir(path)}
    assert {name: (s.st_mtime_ns, s.st_size) for name, s in after.items()} == {
        name: (s.st_mtime_ns, s.st_size) for name, s in before.items()
    }


def test_a_store_without_lock_files_can_be_read(path: Path, data: Path) -> None:
    (path / "lock.mdb").unlink()
    (path / "writer.lock").unlink()
    store = LmdbStore(str(path), read_only=True)
    assert get(store) == bytes(3000)
    store.close()
    assert sorted(os.listdir(path)) == ["data.mdb", "format"]


def test_a_thread_reads_at_a_time_where_nothing_may_be_written(path: Path) -> None:
    """They share one lock of the process, so one's end must not free the others'."""
    store = LmdbStore(str(path), read_only=True)
    inside, leave = threading.Event(), threading.Event()

    def stay(_: Reader) -> None:
        inside.set()
        assert leave.wait(60)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(store.read, stay)
        assert inside.wait(60)
        second = pool.submit(get, store)
        leave.set()
        first.result(60)
        assert second.result(60) == bytes(3000)
    store.close()


def test_tables_that_are_there_are_ensured_without_a_write(tmp_path: Path) -> None:
    uri = f"embedded://{tmp_path}/store"
    store = open_store(uri)
    store.ensure_table(b"t", {b"d": Family()})
    store.close()
    store = open_store(f"{uri}?mode=ro")
    store.ensure_table(b"t", {b"d": Family()})
    with pytest.raises(InvalidRequestError, match="other settings"):
        store.ensure_table(b"t", {b"d": Family(versions=7)})
    for table, family in ((b"t", b"e"), (b"u", b"d")):
        with pytest.raises(ReadOnlyError):
            store.ensure_table(table, {family: Family()})
    store.close()
