"""What deletes and newer versions have hidden goes by itself, a little at a time."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.serving import PATIENCE_S, served
from txn.clock import ManualClock, poll
from txn.emulator.serving import PAGE_REST_MS, ROUND_REST_MS, Compactor
from txn.emulator.workers import Supervisor
from txn.stores.local import LocalStore
from txn.tables.admin import Admin
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.memory import MemoryStore
from txn.tables.kv.ordered import OrderedStore
from txn.tables.operations import FamilySettings, Put, Remove
from txn.tables.pages import PAGE_ROWS
from txn.tables.rows import Rows

LOG = logging.getLogger(__name__)
DAY_MS = 86_400_000
ROWS = 2 * PAGE_ROWS + 1


def deleted(store: OrderedStore, clock: ManualClock, table: bytes, count: int) -> None:
    """Make a table of rows that have been deleted."""
    Admin(store, clock).create(table, {b"d": FamilySettings()})
    rows = Rows(store, clock)
    for operation in (Put(b"d", b"x", b"v"), Remove(b"d", b"x")):
        rows.mutate(table, [(b"row%d" % number, [operation]) for number in range(count)])


def kept(store: OrderedStore) -> int:
    """How many cells of such tables are kept, seen or not."""
    return store.read(lambda reader: sum(b"row" in key for key in reader.keys(b"", b"\xff" * 9)))


def round_of(compactor: Compactor) -> int:
    """Go over all tables once; return how many pages that took."""
    pages = 0
    while compactor.step() != ROUND_REST_MS:
        pages += 1
    return pages


@pytest.mark.parametrize("set_ms", [0, 2 * DAY_MS])
def test_markers_stay_for_their_time_and_then_go(set_ms: int) -> None:
    """A marker masks late duplicates; one that is kept for ever fills the disk. It is as old as the
    monotonic clock says, or the time of day, whichever is less."""
    store, clock = MemoryStore(), ManualClock()
    deleted(store, clock, b"t", 10)
    compactor = Compactor(store, clock, DAY_MS, LOG)
    clock.set_wall_ms(clock.wall_ms() + set_ms)
    clock.advance(DAY_MS)
    round_of(compactor)
    assert kept(store) == 10
    clock.advance(1)
    round_of(compactor)
    assert kept(store) == 0


def test_a_step_is_a_page() -> None:
    store, clock = MemoryStore(), ManualClock()
    deleted(store, clock, b"t", ROWS)
    compactor = Compactor(store, clock, 0, LOG)
    clock.advance(1)
    assert compactor.step() == PAGE_REST_MS
    assert kept(store) == ROWS - PAGE_ROWS
    assert round_of(compactor) == 2
    assert kept(store) == 0


def test_an_error_that_nobody_has_foreseen_ends_the_round_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller is the supervisor of the workers: it would end with the compactor."""
    store, clock = MemoryStore(), ManualClock()
    deleted(store, clock, b"t", 1)
    compactor = Compactor(store, clock, 0, LOG)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "read", lambda *_: 1 // 0)
        assert [compactor.step(), compactor.step()] == [ROUND_REST_MS] * 2
    clock.advance(1)
    round_of(compactor)
    assert kept(store) == 0


def test_a_worker_is_started_as_soon_as_the_system_allows_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The supervisor ended with the first fork that failed, and its workers were orphans."""
    tries: list[int] = []

    def fork() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise BlockingIOError("no more processes")
        return 123

    monkeypatch.setattr(os, "fork", fork)
    supervisor = Supervisor(lambda: lambda: None, 1, 0, ManualClock(), LOG)
    supervisor._fork_again()
    assert len(tries) == 3 and caplog.text.count("cannot start a worker") == 2


def test_a_page_without_anything_to_drop_waits_for_no_writer(tmp_path: Path) -> None:
    store, clock = LmdbStore(str(tmp_path / "store"), sync=False), ManualClock()
    deleted(store, clock, b"t", 3)
    tables, before = LocalStore(store, clock), kept(store)
    with ThreadPoolExecutor(1) as pool:

        def beside(_: object) -> bytes | None:
            return pool.submit(tables.compact_page, b"t", b"", 0).result(PATIENCE_S)

        assert store.write(beside) is None
    assert kept(store) == before
    store.close()


def test_serve_sweeps_beside_its_requests(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = LmdbStore(str(path), sync=False)
    deleted(store, ManualClock(), b"t", 3)
    options = ("--thrift2", "0", "--keep-deletes", "0s", "--workers", "2")
    with served(f"embedded://{path}?sync=off", tmp_path / "log", *options) as server:
        assert poll(lambda: not kept(store), PATIENCE_S * 1000)
        assert server.stop() == 0
    store.close()
