"""The embedded store's map, slots, handles and directory, in one process."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest

from txn import Key, Mutation, connect
from txn.errors import CorruptRowError, InvalidRequestError, NotApplied, StoreError
from txn.leases.opening import open_leases
from txn.model import Family
from txn.stores import open_store
from txn.tables.kv.files import FORMAT
from txn.tables.kv.lmdb import FIRST_MAP_SIZE, LmdbStore
from txn.tables.kv.ordered import Reader, Writer

MEGABYTE = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def store(path: str) -> Iterator[LmdbStore]:
    store = LmdbStore(path, sync=False)
    yield store
    store.close()


def get(store: LmdbStore, key: bytes) -> bytes | None:
    return store.read(lambda reader: reader.get(key))


def put(store: LmdbStore, key: bytes, value: bytes) -> None:
    store.write(lambda writer: writer.put(key, value))


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


def test_a_mistake_of_ours_is_raised_as_it_is(store: LmdbStore) -> None:
    """As an error of the store it would be tried again for as long as a store is given."""
    with pytest.raises(lmdb.BadValsizeError):
        put(store, b"", b"an empty key")
    put(store, b"k", b"1")
    assert get(store, b"k") == b"1"


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
        self.fails = False
        self._flush = os.fsync
        monkeypatch.setattr(os, "fsync", self._record)

    def _record(self, file: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
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


def test_a_store_of_a_killed_maker_is_on_disk(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been killed right before it flushed the folder."""
    LmdbStore(path).close()
    (Path(path) / ".format-begun").write_text("")
    flushed = Flushed(monkeypatch)
    LmdbStore(path).close()
    assert ".format-begun" in flushed.names[path]
    assert not os.path.exists(f"{path}/.format-begun")


def test_a_new_store_s_first_pages_are_written_again_after_a_failed_flush(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that is only repeated succeeds, and may leave an empty file."""
    flushed = Flushed(monkeypatch)
    os.mkdir(path)
    monkeypatch.setattr("txn.tables.kv.files.make_folder", lambda path: None)
    flushed.fails = True
    with pytest.raises(NotApplied, match="Input/output error"):
        LmdbStore(path)
    flushed.fails = False
    written: list[bytes] = []
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *to: written.append(to[1]) or write(*to))
    LmdbStore(path).close()
    assert written == [(Path(path) / "data.mdb").read_bytes()]


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
        ("tnx://x?token=secret", r"unknown kind of store: did you mean txn://x uri='tnx://x' "),
        ("file:///var/lib/app", "did you mean embedded:///var/lib/app uri='file:///var/lib/app' "),
        ("embeded:///app?token=t", "did you mean embedded:///app uri='embeded:///app' "),
        ("hbase+thrift://h:1", r"did you mean hbase\+thrift[12]://h:1 "),
        ("ftp://h/x", "unknown kind of store uri='ftp://h/x' "),
        ("10.0.0.1:9090", "unknown kind of store uri='10.0.0.1:9090' "),
        ("", "unknown kind of store uri='' "),
        ("/var/lib/app", "unknown kind of store: did you mean embedded:///var/lib/app "),
        ("embedded://tmp/bank", "three slashes: did you mean embedded:///tmp/bank "),
        ("embedded://relative/path", "three slashes"),
        ("embedded:relative", "three slashes: did you mean embedded:///relative "),
        ("embedded://", "three slashes"),
        (
            "embedded:///p?fsync=off",
            r"unknown option option='fsync' uri='embedded:///p\?fsync=\*\*\*' "
            r"known=\['max_readers', 'mode', 'sync'\]",
        ),
        ("embedded:///p?sync=no", r"unknown value.*known=\['on', 'off'\]"),
        ("embedded:///p?mode=read", r"unknown value.*known=\['rw', 'ro'\]"),
        ("embedded:///p?max_readers=0", "not a positive number option='max_readers' given='0'"),
        ("embedded:///p?max_readers=100001", "too large option='max_readers'.*limit=100000"),
        ("memory://name?sync=off", "unknown option"),
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


def test_a_store_gives_its_memory_back_unless_it_is_being_read(store: LmdbStore) -> None:
    """Each page that a long scan has read counts as memory of the process until then."""
    put(store, b"k", b"v")
    store.unmap()
    assert store._shared._files is None
    assert get(store, b"k") == b"v"

    def read(reader: Reader) -> bytes | None:
        store.unmap()
        return reader.get(b"k")

    assert store.read(read) == b"v"
    assert store._shared._files is not None


@pytest.mark.parametrize("damage", ["key", "cell"])
def test_bytes_that_were_never_written_are_an_error_of_ours(path: str, damage: str) -> None:
    ordered = LmdbStore(path, sync=False)
    key, other = (Key(row, b"d", b"x", b"t") for row in (b"a", b"b"))
    with connect(f"embedded://{path}?sync=off") as engine:
        engine.ensure_table("t", ["d"])
        engine.commit([Mutation(key, b"1"), Mutation(other, b"1")])
        cells = ordered.read(lambda reader: [*reader.items(b"", b"\xff")])
        name, state = next(each for each in cells if each[0].endswith(b"a\0\0d\0x"))
        if damage == "key":
            put(ordered, name[:4] + b"no end", state)
        else:
            put(ordered, name, state[:5])
            with pytest.raises(CorruptRowError, match="the call had no effect"):
                engine.read([key])
            with pytest.raises(CorruptRowError):
                engine.commit([Mutation(other, b"2"), Mutation(key, b"2")])
        with pytest.raises(CorruptRowError):
            list(engine.scan("t"))
        assert [cell and cell.value for cell in engine.read([other]).values()] == [b"1"]
    ordered.close()
