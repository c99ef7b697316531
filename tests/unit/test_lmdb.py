"""The embedded store in one process: its map, slots, handles, files that are cut or replaced."""

from __future__ import annotations

import os
import re
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
    StoreError,
)
from txn.leases.opening import open_leases
from txn.model import Family
from txn.stores import open_store
from txn.tables.kv.files import FORMAT, is_writable
from txn.tables.kv.lmdb import FIRST_MAP_SIZE, LmdbStore
from txn.tables.kv.ordered import Reader, Writer

MEGABYTE = 1024 * 1024
PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def store(path: str) -> Iterator[LmdbStore]:
    store = LmdbStore(path, sync=False)
    yield store
    store.close()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A store with some values."""
    filled = tmp_path / "filled"
    fill(filled)
    return filled


@pytest.fixture
def data(filled: Path) -> Path:
    return filled / "data.mdb"


@pytest.fixture
def full(filled: Path) -> Iterator[LmdbStore]:
    full = LmdbStore(str(filled), sync=False)
    yield full
    full.close()


def fill(filled: Path, count: int = 50) -> None:
    full = LmdbStore(str(filled), sync=False)
    for number in range(count):
        put(full, b"%d" % number, bytes(3000))
    full.close()


def get(store: LmdbStore, key: bytes = b"0") -> bytes | None:
    return store.read(lambda reader: reader.get(key))


def put(store: LmdbStore, key: bytes = b"k", value: bytes = b"v") -> None:
    store.write(lambda writer: writer.put(key, value))


def replace(filled: Path) -> None:
    """Do what a restore does: put another store where one was."""
    fill(filled.with_name("backup"), 1)
    for name in ("data.mdb", "lock.mdb"):
        os.replace(filled.with_name("backup") / name, filled / name)


@pytest.mark.parametrize("together", [False, True])
def test_a_full_map_grows_and_its_transaction_starts_again(
    store: LmdbStore, together: bool
) -> None:
    """The map starts small because of address-space limits; nobody should have to size it."""
    tries: list[int] = []

    def body(writer: Writer) -> None:
        tries.append(1)
        for number in range(3):
            writer.put(b"%d" % number, bytes(FIRST_MAP_SIZE))

    store.atomically(lambda: store.write(body)) if together else store.write(body)
    assert len(tries) > 1
    assert [len(get(store, b"%d" % number) or b"") for number in range(3)] == [FIRST_MAP_SIZE] * 3


def test_the_map_grows_beside_readers_and_writers(store: LmdbStore) -> None:
    """It may be resized only while no transaction of this process is active."""
    put(store, b"k", b"0")
    stop = threading.Event()

    def repeat(body: Callable[[], None]) -> None:
        while not stop.is_set():
            body()

    def read() -> None:
        assert get(store, b"k") == b"0"

    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(repeat, body) for body in (read, read, lambda: put(store, b"o", b""))]
        for number in range(20):
            put(store, b"big %d" % number, bytes(5 * MEGABYTE))
        stop.set()
        for other in others:
            other.result(60)


def test_a_reader_that_finds_no_slot_waits_for_those_of_its_process(path: str) -> None:
    store = LmdbStore(path, sync=False, max_readers=2)
    leave = threading.Event()
    with ThreadPoolExecutor(3) as pool:

        def wait(_: Reader) -> None:
            inside.release()
            assert leave.wait(60)

        inside = threading.Semaphore(0)
        readers = [pool.submit(store.read, wait) for _ in range(2)]
        for _ in readers:
            assert inside.acquire(timeout=60)
        third = pool.submit(get, store, b"k")
        leave.set()
        assert third.result(60) is None
    store.close()


def test_handles_of_a_process_share_what_is_open(path: str, store: LmdbStore) -> None:
    """LMDB must not open a file twice in one process, and engines open stores freely."""
    os.symlink(path, path + ".link")
    other = LmdbStore(path + ".link/../store", sync=False)
    put(other, b"k", b"1")
    assert get(store, b"k") == b"1"
    other.close()
    assert get(store, b"k") == b"1"
    with pytest.raises(StoreError, match="closed"):
        get(other, b"k")


def test_one_process_cannot_have_both_kinds_of_sync_or_mode(path: str, store: LmdbStore) -> None:
    with pytest.raises(InvalidRequestError, match="another sync"):
        LmdbStore(path, sync=True)
    with pytest.raises(InvalidRequestError, match=r"another mode path='.*' mode='rw'"):
        open_store(f"embedded://{path}?sync=off&mode=ro")


def test_a_new_store_s_directory_says_what_it_is(path: str) -> None:
    LmdbStore(path).close()
    open_store(f"embedded://{path}", create=False).close()
    assert sorted(os.listdir(path)) == ["data.mdb", "format", "lock.mdb", "writer.lock"]
    assert (Path(path) / "format").read_text() == "hbase-txn embedded store, format 1\n"


@pytest.mark.parametrize("kind", ["absent", "empty", "half made", "other files"])
@pytest.mark.parametrize("query", ["", "?mode=ro"])
def test_an_absent_store_is_made_only_on_demand(tmp_path: Path, kind: str, query: str) -> None:
    """Who reads from a mistyped path must neither find an empty store nor leave one behind."""
    path = tmp_path / "misspelt"
    names = {"half made": [".format-begun"], "other files": ["letter.txt"]}.get(kind, [])
    if kind != "absent":
        path.mkdir()
    for name in names:
        (path / name).write_text("")
    found = f" contains={names}" if names else ""
    with pytest.raises(
        InvalidRequestError, match=re.escape(f"`txn init` path='{path}'{found}") + "$"
    ):
        open_store(f"embedded://{path}{query}", create=bool(query))
    assert path.exists() == (kind != "absent")
    assert not path.exists() or os.listdir(path) == names


class Flushed:
    """What was flushed, with the names in it at that time if it is a folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, list[str]] = {}
        self._flush = os.fsync
        monkeypatch.setattr(os, "fsync", self._record)

    def _record(self, file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        self.names[path] = sorted(os.listdir(path)) if os.path.isdir(path) else []
        self._flush(file)


@pytest.mark.parametrize("kind", ["store", "leases"])
def test_a_new_folder_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    flushed, path = Flushed(monkeypatch), tmp_path / "a" / "b" / "c"
    if kind == "store":
        LmdbStore(str(path)).close()
        assert {"data.mdb", "format"} <= set(flushed.names[str(path)])
        assert str(path / "data.mdb") in flushed.names
    else:
        open_leases(f"sqlite:///{path}/leases.db").close()
    names = [flushed.names[str(folder)] for folder in (tmp_path, tmp_path / "a", path.parent)]
    assert names == [["a"], ["b"], ["c"]]
    assert str(tmp_path.parent) in flushed.names  # a killed process may have made tmp_path


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match=r"not a store of ours.*letter\.txt"):
        LmdbStore(str(tmp_path))
    assert os.listdir(tmp_path) == ["letter.txt"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"hbase-txn embedded store, format {FORMAT + 1}\n", "newer format"),
        ("hbase-txn embedded store, format \n", "not a store of ours"),
        ("", "not a store of ours"),
        ("\xff\xfe something else", "not a store of ours"),
    ],
)
def test_a_format_that_is_not_known_is_refused(path: str, text: str, reason: str) -> None:
    LmdbStore(path).close()
    (Path(path) / "format").write_bytes(text.encode("latin-1"))
    with pytest.raises(StoreError, match=reason):
        LmdbStore(path)


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below"):
        with pytest.raises(StoreError, match="not a directory"):
            LmdbStore(str(path))


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("cassandra://x", r"unknown kind of store.*known=.*'embedded'.*'memory', 'txn'"),
        ("file:///var/lib/app", "did you mean embedded:///var/lib/app uri='file:///var/lib/app' "),
        ("embeded:///app?token=t", "did you mean embedded:///app uri='embeded:///app' "),
        ("ftp://h/x", "unknown kind of store uri='ftp://h/x' "),
        ("", "unknown kind of store uri='' "),
        ("/var/lib/app", "unknown kind of store: did you mean embedded:///var/lib/app "),
        ("embedded://tmp/bank", "three slashes: did you mean embedded:///tmp/bank "),
        ("embedded:relative", "three slashes: did you mean embedded:///relative "),
        (
            "embedded:///p?fsync=off",
            r"unknown option option='fsync' uri='embedded:///p\?fsync=\*\*\*' "
            r"known=\['max_readers', 'mode', 'sync'\]",
        ),
        ("embedded:///p?sync=no", r"unknown value.*known=\['on', 'off'\]"),
        ("embedded:///p?max_readers=0", "not a positive number option='max_readers' given='0'"),
        ("embedded:///p?max_readers=100001", "too large option='max_readers'.*limit=100000"),
        ("embedded:///p#part", r"fragment uri='embedded:///p#\*\*\*'"),
        ("memory://[", "not a URI"),
    ],
)
def test_a_bad_uri_is_refused_with_what_is_known(uri: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        open_store(uri)


def test_a_path_in_a_uri_may_be_escaped(tmp_path: Path) -> None:
    open_store(f"embedded://{tmp_path}/two%20words%3F").close()
    assert (tmp_path / "two words?" / "format").exists()


def test_memory_stores_are_shared_by_name_only() -> None:
    table = b"t"
    for uri, is_shared in (("memory://", False), ("memory://test-lmdb-shared", True)):
        one, two = open_store(uri), open_store(uri)
        one.ensure_table(table, {b"d": Family()})
        assert (two.describe(table) is not None) == is_shared


def test_the_first_key_of_a_range_is_the_one_that_a_walk_begins_with(store: LmdbStore) -> None:
    keys = [b"a", b"b" * 490, b"b" * 491, b"b" * 2000, b"b" * 2000 + b"c", b"c", b"d" * 600, b"e"]
    for key in keys:
        put(store, key, b"1")
    bounds = [*keys, *(key + b"\0" for key in keys), b"b", b"bb", b"c\xff", b"z"]

    def compare(reader: Reader) -> None:
        for start in bounds:
            for stop in bounds:
                assert reader.first(start, stop) == next(reader.keys(start, stop), None)

    store.read(compare)
    store.write(compare)
    store.atomically(lambda: store.read(compare))


@pytest.mark.parametrize("size", [1, 100, PAGE, PAGE + 100, 2 * PAGE, -PAGE, -1, None])
def test_a_data_file_that_is_cut_short_is_refused(
    filled: Path, data: Path, size: int | None
) -> None:
    """A missing page, once LMDB has mapped it, kills the process without a word."""
    whole = data.stat().st_size
    left = whole // 2 if size is None else size % whole
    os.truncate(data, left)
    for read_only in (False, True):
        with pytest.raises(NotApplied, match=f"cut short.*file='{data}' bytes={left}"):
            LmdbStore(str(filled), read_only=read_only)
    assert data.stat().st_size == left


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_a_lost_data_file_is_not_made_anew(filled: Path, data: Path, state: str) -> None:
    """It would be a new database, of the default protocol, to whoever had one here."""
    if state == "missing":
        data.unlink()
    else:
        os.truncate(data, 0)
    before = sorted(os.listdir(filled))
    for create in (True, False):
        with pytest.raises(NotApplied, match=f"{state}: restore it.*{data}"):
            LmdbStore(str(filled), create=create)
    assert sorted(os.listdir(filled)) == before
    assert not data.exists() or not data.stat().st_size


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize(
    ("at", "reason"), [(16, "damaged"), (20, "another version of LMDB"), (40, "damaged")]
)
def test_a_damaged_page_is_refused(
    filled: Path, data: Path, page: int, at: int, reason: str
) -> None:
    content = bytearray(data.read_bytes())
    content[page * PAGE + at] ^= 0x7F
    data.write_bytes(content)
    with pytest.raises(NotApplied, match=f"{reason}.*{data}"):
        LmdbStore(str(filled))
    assert data.read_bytes() == content


@pytest.mark.parametrize("count", [10, 800])
def test_a_file_that_lacks_only_free_pages_is_whole(filled: Path, data: Path, count: int) -> None:
    """LMDB does not write a page at the end that one transaction took and gave back."""
    keys = [b"more %d" % number for number in range(count)]
    full = LmdbStore(str(filled), sync=False)

    def add(writer: Writer) -> None:
        for key in keys:
            writer.put(key, bytes(3000))

    def remove(writer: Writer) -> None:
        for key in keys:
            writer.delete(key)

    full.write(add)
    full.write(remove)
    for number in range(50):  # the pages of the tree itself go back to the beginning
        put(full, b"%d" % number, b"small")
    full.close()
    whole = data.stat().st_size
    for left in range(whole, 0, -PAGE * (count // 10)):
        os.truncate(data, left)
        try:
            full = LmdbStore(str(filled), sync=False)
        except NotApplied:
            break
        assert get(full) == b"small"
        assert data.stat().st_size == left
        put(full, b"0", b"small")
        put(full, b"0", b"small")
        assert data.stat().st_size == whole  # for the next ones, which need not look so long
        full.close()
    assert left < whole - PAGE * (count // 10)


def test_a_file_cut_short_beneath_a_process_is_an_error_to_it(full: LmdbStore, data: Path) -> None:
    os.truncate(data, data.stat().st_size // 2)
    for call in (put, get, put):
        with pytest.raises(StoreClosedError, match=f"cut short while.*{data}|cut short while"):
            call(full)


@pytest.mark.parametrize("calls", [(put, get, put), ()])
def test_a_replaced_store_takes_no_more_commits(
    full: LmdbStore, filled: Path, calls: Sequence[Callable[[LmdbStore], object]]
) -> None:
    """They would go to a file that nobody can open. A new handle has the new files."""
    replace(filled)
    for call in calls:
        with pytest.raises(StoreClosedError, match="the store was replaced while this process"):
            call(full)
    other = LmdbStore(str(filled), sync=False)
    put(other)
    assert get(other, b"k") == b"v"
    assert get(other, b"1") is None
    with pytest.raises(StoreClosedError, match="replaced"):
        put(full)
    full.close()
    assert get(other, b"k") == b"v"
    other.close()


def test_a_store_replaced_amid_a_commit_does_not_acknowledge_it(
    full: LmdbStore, filled: Path
) -> None:
    def body(writer: Writer) -> None:
        writer.put(b"k", b"v")
        replace(filled)

    with pytest.raises(MaybeApplied, match=r"the commit may be lost.*replaced"):
        full.write(body)


@pytest.mark.parametrize("names", [("data.mdb",), ("data.mdb", "lock.mdb")])
@pytest.mark.parametrize("call", [put, get])
def test_an_older_state_in_the_same_file_is_an_error(
    full: LmdbStore, filled: Path, names: Sequence[str], call: Callable[[LmdbStore], object]
) -> None:
    """`cp backup/* store/` after one commit keeps the files."""
    get(full)
    before = {name: (filled / name).read_bytes() for name in names}
    put(full)
    for name, content in before.items():
        with open(filled / name, "r+b") as file:
            file.write(content)
    with pytest.raises(StoreClosedError, match="something else has changed"):
        call(full)


@pytest.mark.parametrize("calls", [(put, get), (get, put)])
@pytest.mark.parametrize("what", ["replaced", "cut short"])
def test_a_lock_file_that_is_gone_or_cut_is_an_error(
    full: LmdbStore, filled: Path, what: str, calls: Sequence[Callable[[LmdbStore], object]]
) -> None:
    """Without it the processes know nothing of each other's readers and commits."""
    lock = filled / "lock.mdb"
    if what == "replaced":
        lock.unlink()
        lock.touch()
    else:
        os.truncate(lock, 0)
    for call in calls:
        with pytest.raises(StoreClosedError, match=f"the store's lock file was {what}"):
            call(full)
    full.close()
    again = LmdbStore(str(filled), sync=False)
    put(again)
    again.close()


def test_a_moved_folder_is_an_error_until_it_is_opened_there(full: LmdbStore, filled: Path) -> None:
    moved = filled.rename(filled.with_name("moved"))
    with pytest.raises(StoreClosedError, match="the store was moved or deleted"):
        put(full)
    other = LmdbStore(str(moved), sync=False)
    put(other)
    other.close()


def test_a_store_opened_to_be_read_changes_nothing(filled: Path) -> None:
    before = {name: (filled / name).stat() for name in os.listdir(filled)}
    full = LmdbStore(str(filled), read_only=True)
    assert get(full) == bytes(3000)
    with pytest.raises(ReadOnlyError, match=f"nothing was written path='{filled}'"):
        put(full)
    with pytest.raises(ReadOnlyError):
        full.atomically(lambda: None)
    full.unmap()
    assert get(full) == bytes(3000)
    full.close()
    after = {name: (filled / name).stat() for name in os.listdir(filled)}
    assert {name: (s.st_mtime_ns, s.st_size) for name, s in after.items()} == {
        name: (s.st_mtime_ns, s.st_size) for name, s in before.items()
    }


def test_a_store_without_lock_files_can_be_read(filled: Path, data: Path) -> None:
    (filled / "lock.mdb").unlink()
    (filled / "writer.lock").unlink()
    full = LmdbStore(str(filled), read_only=True)
    assert get(full) == bytes(3000)
    full.close()
    assert sorted(os.listdir(filled)) == ["data.mdb", "format"]


def test_a_thread_reads_at_a_time_where_nothing_may_be_written(filled: Path) -> None:
    """They share one lock of the process, so one's end must not free the others'."""
    full = LmdbStore(str(filled), read_only=True)
    inside, leave = threading.Event(), threading.Event()

    def stay(_: Reader) -> None:
        inside.set()
        assert leave.wait(60)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(full.read, stay)
        assert inside.wait(60)
        second = pool.submit(get, full)
        leave.set()
        first.result(60)
        assert second.result(60) == bytes(3000)
    full.close()


def test_tables_that_are_there_are_ensured_without_a_write(tmp_path: Path) -> None:
    uri = f"embedded://{tmp_path}/store"
    full = open_store(uri)
    full.ensure_table(b"t", {b"d": Family()})
    full.close()
    full = open_store(f"{uri}?mode=ro")
    full.ensure_table(b"t", {b"d": Family()})
    with pytest.raises(InvalidRequestError, match="other settings"):
        full.ensure_table(b"t", {b"d": Family(versions=7)})
    for table, family in ((b"t", b"e"), (b"u", b"d")):
        with pytest.raises(ReadOnlyError):
            full.ensure_table(table, {family: Family()})
    full.close()


def test_a_store_that_somebody_makes_meanwhile_is_not_read_only(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that opened a new store together were told that it was open in another mode."""
    os.makedirs(path, exist_ok=True)
    ask = os.access

    def ask_before_it_is_there(at: str, mode: int) -> bool:
        allowed = ask(at, mode)
        if at != path:
            Path(at).touch()
        return allowed

    monkeypatch.setattr(os, "access", ask_before_it_is_there)
    assert is_writable(path)
