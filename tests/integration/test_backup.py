"""`txn backup`: a copy of a busy store is of one instant, and an interrupted one is none."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest

from recovery import backup, check, repair_all
from recovery.backup import check_entries
from recovery.commands import database
from tests.integration.bank import ACCOUNTS, BALANCE, TABLE, found_bank, open_bank
from tests.integration.children import Child
from tests.integration.commands import run_here
from txn import Engine, Key, Mutation, connect
from txn.errors import CorruptRowError, InvalidRequestError, NotApplied
from txn.tables.kv.lmdb import LmdbStore

KEY = Key("r", "d", "c", "t")


@pytest.fixture
def store(tmp_path: Path) -> str:
    uri = f"embedded://{tmp_path}/store"
    with connect(uri, table="t") as engine:
        engine.ensure_table("t", ["d"])
        engine.commit([Mutation(KEY, bytes(300_000))])
    return uri


def read_value(path: Path) -> bytes:
    with connect(f"embedded://{path}", table="t") as engine:
        cell = engine.read([KEY])[KEY]
        assert cell is not None
        return cell.value


def sum_balances(engine: Engine) -> int:
    return sum(int(cell.value) for cell in engine.read(ACCOUNTS).values() if cell)


def test_a_backup_beside_writers_is_of_one_instant(tmp_path: Path) -> None:
    uri, log = f"embedded://{tmp_path}/store?sync=off", tmp_path / "log"
    found_bank(uri)
    line = [sys.executable, "-m", "tests.integration.bank", uri]
    writers = [subprocess.Popen([*line, str(seed), str(log)]) for seed in range(3)]
    try:
        for number in range(4):
            while not log.exists() or len(log.read_text().splitlines()) < 20 * (number + 1):
                assert all(each.poll() is None for each in writers)
                time.sleep(0.02)
            backup(uri, tmp_path / f"copy{number}")
    finally:
        for each in writers:
            each.kill()
            each.wait()
    rows = []
    for number in range(4):
        with open_bank(f"embedded://{tmp_path}/copy{number}?sync=off") as engine:
            context, tables = engine.context, [TABLE.encode()]
            list(repair_all(context, check(context, grace_ms=0, scan=tables)))
            assert list(check(context, grace_ms=0, scan=tables)) == []
            assert sum_balances(engine) == len(ACCOUNTS) * BALANCE
            rows.append(sum(1 for _ in context.store.scan(TABLE.encode())))
    assert rows == sorted(rows) and rows[0] < rows[-1]


@pytest.mark.parametrize("when", ["copying bytes", "checking entries"])
def test_an_interrupted_or_killed_backup_leaves_none(store: str, tmp_path: Path, when: str) -> None:
    def interrupt(step: str, done: int, total: int) -> None:
        if step == when:
            raise KeyboardInterrupt

    def stop(step: str, done: int, total: int) -> None:
        if step == when:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(KeyboardInterrupt):
        backup(store, tmp_path / "copy", on_step=interrupt)
    assert os.listdir(tmp_path) == ["store"]
    child = Child(lambda tell: backup(store, tmp_path / "copy", on_step=stop) and None)
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == -signal.SIGKILL
    left, _ = sorted(os.listdir(tmp_path))
    assert left.startswith(".copy.") and left.endswith(".part")
    backup(store, tmp_path / "copy")
    assert read_value(tmp_path / "copy") == bytes(300_000)


def test_a_restored_backup_is_the_store(store: str, tmp_path: Path) -> None:
    size = backup(store, tmp_path / "copy")
    assert size == (tmp_path / "copy" / "data.mdb").stat().st_size
    with connect(store, table="t") as engine:
        engine.commit([Mutation(KEY, b"after the backup")])
    shutil.move(tmp_path / "store", tmp_path / "aside")
    shutil.copytree(tmp_path / "copy", tmp_path / "store")
    assert read_value(tmp_path / "store") == bytes(300_000)


def test_a_full_disk_makes_no_backup(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(NotApplied, match=r"no backup was made .*File too large"):
            backup(store, tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    usage = SimpleNamespace(free=1_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(
        NotApplied, match=r"no backup was made .*disk is too small.*free_bytes=1000"
    ):
        backup(store, tmp_path / "copy")
    assert os.listdir(tmp_path) == ["store"]


def test_a_copy_whose_entries_are_missing_is_found(store: str, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    backup(store, path)
    with closing(LmdbStore(str(path))) as copied:
        entries = copied.use_environment(lambda environment: environment.stat()["entries"])
        copied.use_environment(partial(check_entries, on_step=lambda *_: None))
    data = (path / "data.mdb").read_bytes()
    number, false = (struct.pack("@N", each) for each in (entries, entries + 1))
    assert data[:8192].count(number) > 0
    (path / "data.mdb").write_bytes(data[:8192].replace(number, false) + data[8192:])
    with closing(LmdbStore(str(path))) as copied, pytest.raises(CorruptRowError, match="damaged"):
        copied.use_environment(partial(check_entries, on_step=lambda *_: None))


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("memory://", "only an embedded store has files"),
        ("hbase://zk", "on HBase take snapshots of all tables"),
        ("txn://host:1", "on the machine that keeps it"),
        ("/data", "embedded:///path"),
        ("embedded:///absent/store", "no such store"),
    ],
)
def test_other_stores_are_told_what_to_use(uri: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        backup(uri, tmp_path / "copy")
    assert os.listdir(tmp_path) == []


def test_a_backup_replaces_nothing(store: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    (tmp_path / "file").touch()
    for dest, words in {
        "full": "absent or an empty folder",
        "file": "absent or an empty folder",
        "store/copy": "in the store's own folder",
        "/proc": "absent or an empty folder",
        "/dev/shm": "mount point|empty folder",
    }.items():
        with pytest.raises(InvalidRequestError, match=f"no backup was made.*({words})"):
            backup(store, tmp_path / dest)


def test_a_copy_of_lmdb_itself_is_told_what_it_lacks(store: str, tmp_path: Path) -> None:
    """`mdb_copy` knows nothing of the file `format`; with it, the copy is a store."""
    made = tmp_path / "made"
    made.mkdir()
    with lmdb.open(str(tmp_path / "store"), readonly=True, lock=False) as environment:
        environment.copy(str(made))
    for create in (True, False):
        with pytest.raises((InvalidRequestError, NotApplied), match=r"`format`.*`txn backup`"):
            LmdbStore(str(made), create=create)
    shutil.copy(tmp_path / "store" / "format", made)
    assert read_value(made) == bytes(300_000)


def test_the_command_says_what_it_made(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_here("backup", store, str(tmp_path / "one"), "--json")
    made = json.loads(done.stdout)
    assert (done.returncode, made["path"]) == (0, str(tmp_path / "one"))
    assert "checked" in run_here("backup", store, str(tmp_path / "two")).stdout
    again = run_here("backup", store, str(tmp_path / "two"))
    assert (again.returncode, "no backup was made" in again.stderr) == (2, True)

    def interrupt(*_: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(database, "copy_store", interrupt)
    ended = run_here("backup", store, str(tmp_path / "three"))
    assert (ended.returncode, ended.stderr) == (2, "error: interrupted: no backup was made\n")
