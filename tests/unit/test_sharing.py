"""Reads of many threads in one request of the native store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from txn.clock import ManualClock
from txn.errors import TableUnavailable
from txn.model import Key
from txn.stores.hbase.native.items import ReadRow
from txn.stores.hbase.native.sharing import SharedReads

PATIENCE_S = 60
TIMEOUT_MS = 30_000


def row(name: str) -> list[ReadRow]:
    return [ReadRow(Key(name, "", "", "t"), ())]


class Slow:
    """Reads that begin when they are let: calls has the rows of each that has begun. moving: rows
    that one try does not get."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []
        self.came, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.fails: Callable[[list[bytes]], BaseException | None] = lambda rows: None
        self.dues: list[int] = []
        self.clock = ManualClock()
        self.moving: set[bytes] = set()
        self.shared = SharedReads(self._read, self._try_once, self.clock)

    def read(self, name: str) -> list[Any]:
        return self.shared.read(row(name), self.clock.monotonic_ms() + TIMEOUT_MS)

    def _read(self, items: Sequence[ReadRow], due_ms: int) -> list[Any]:
        rows = [item.row for item in items]
        self.calls.append(rows)
        self.dues.append(due_ms)
        self.came.release()
        assert self.go.acquire(timeout=PATIENCE_S)
        if (error := self.fails(rows)) is not None:
            raise error
        return rows

    def _try_once(self, items: Sequence[ReadRow], due_ms: int) -> list[Any]:
        return [None if row in self.moving else row for row in self._read(items, due_ms)]

    def begin(self, pool: ThreadPoolExecutor, *names: str) -> list[Future[list[Any]]]:
        """Have the first read, alone, and the others stand in line behind it."""
        started = [pool.submit(self.read, names[0])]
        assert self.came.acquire(timeout=PATIENCE_S)
        for number, name in enumerate(names[1:], start=1):
            started.append(pool.submit(self.read, name))
            while len(self.shared._line) < number:
                pass
        return started

    def let_all(self) -> None:
        self.go.release(100)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes by itself because the machine is slow."""
    monkeypatch.setattr("txn.stores.hbase.native.sharing.PATIENCE_MS", PATIENCE_S * 1000)


def test_what_comes_while_a_read_is_under_way_is_read_together() -> None:
    slow = Slow()
    with ThreadPoolExecutor(4) as pool:
        done = slow.begin(pool, "a", "b", "c", "a")  # none is answered by one that began before it
        slow.let_all()
        assert [each.result(PATIENCE_S) for each in done] == [[b"a"], [b"b"], [b"c"], [b"a"]]
    assert slow.calls == [[b"a"], [b"b", b"c", b"a"]]
    assert slow.read("d") == [b"d"]


def test_not_too_many_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txn.stores.hbase.native.sharing.MOST", 2)
    slow = Slow()
    with ThreadPoolExecutor(6) as pool:
        done = slow.begin(pool, "a", "b", "c", "d", "e")
        slow.let_all()
        assert [each.result(PATIENCE_S) for each in done] == [[name.encode()] for name in "abcde"]
    assert slow.calls == [[b"a"], [b"b", b"c"], [b"d", b"e"]]


def test_each_is_told_what_is_wrong_with_its_own() -> None:
    slow = Slow()
    gone = TableUnavailable("no such table", b"t")
    slow.fails = lambda rows: gone if b"bad" in rows else None
    with ThreadPoolExecutor(3) as pool:
        first, good, bad = slow.begin(pool, "a", "good", "bad")
        slow.let_all()
        assert first.result(PATIENCE_S) == [b"a"] and good.result(PATIENCE_S) == [b"good"]
        with pytest.raises(TableUnavailable):
            bad.result(PATIENCE_S)
    with pytest.raises(TableUnavailable):  # alone, and not read a second time
        slow.read("bad")
    assert slow.calls[:2] == [[b"a"], [b"good", b"bad"]]
    assert sorted(slow.calls[2:4]) == [[b"bad"], [b"good"]]
    assert slow.calls[4:] == [[b"bad"]]


def test_who_reads_for_all_does_not_wait_for_anothers_region() -> None:
    """It may hold locks; a region that moves is away for seconds."""
    slow = Slow()
    slow.moving = {b"moving"}
    with ThreadPoolExecutor(4) as pool:
        done = slow.begin(pool, "a", "b", "moving", "c")
        slow.let_all()
        found = [each.result(PATIENCE_S) for each in done]
    assert found == [[b"a"], [b"b"], [b"moving"], [b"c"]]
    assert slow.calls == [[b"a"], [b"b", b"moving", b"c"], [b"moving"]]


def test_who_waits_too_long_reads_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txn.stores.hbase.native.sharing.PATIENCE_MS", 10)
    slow = Slow()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slow.read, "a")
        assert slow.came.acquire(timeout=PATIENCE_S)
        second = pool.submit(slow.read, "b")
        assert slow.came.acquire(timeout=PATIENCE_S)  # while the first has no answer
        assert not first.done() and slow.shared._line == []
        slow.let_all()
        assert (first.result(PATIENCE_S), second.result(PATIENCE_S)) == ([b"a"], [b"b"])
    assert slow.shared._reader is None and slow.read("c") == [b"c"]


def test_who_finds_a_read_that_takes_long_does_not_wait_for_it() -> None:
    """Those that come meanwhile gather behind the latest."""
    slow = Slow()
    with ThreadPoolExecutor(4) as pool:
        (stuck,) = slow.begin(pool, "stuck")
        slow.shared._since_ms -= PATIENCE_S * 1000 + 1
        done = slow.begin(pool, "a", "b", "c")
        slow.let_all()
        found = [each.result(PATIENCE_S) for each in (stuck, *done)]
    assert found == [[b"stuck"], [b"a"], [b"b"], [b"c"]]
    assert slow.calls == [[b"stuck"], [b"a"], [b"b", b"c"]]
    assert slow.shared._reader is None


def test_a_reader_that_is_interrupted_leaves_the_others_to_themselves() -> None:
    """As by KeyboardInterrupt; whoever comes later is not kept waiting."""
    slow = Slow()
    slow.fails = lambda rows: KeyboardInterrupt() if len(rows) > 1 else None
    with ThreadPoolExecutor(3) as pool:
        first, reader, other = slow.begin(pool, "a", "b", "c")
        slow.let_all()
        assert first.result(PATIENCE_S) == [b"a"] and other.result(PATIENCE_S) == [b"c"]
        assert isinstance(reader.exception(PATIENCE_S), KeyboardInterrupt)
    assert slow.shared._reader is None and slow.read("d") == [b"d"]


def test_a_child_waits_for_no_thread_of_its_parent() -> None:
    slow = Slow()
    with ThreadPoolExecutor(2) as pool:
        done = slow.begin(pool, "a", "b")
        child = os.fork()
        if not child:
            slow.came, slow.go = threading.Semaphore(0), threading.Semaphore(1)  # nobody's
            slow.shared.reset()  # as the store does
            os._exit(slow.read("c") != [b"c"])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        slow.let_all()
        assert [each.result(PATIENCE_S) for each in done] == [[b"a"], [b"b"]]
