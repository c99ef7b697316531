"""Group commit of the embedded store: which writes share a commit, and what each is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import lmdb
import pytest

from tests.unit.interrupting import Interruption
from txn.clock import poll
from txn.errors import InvalidRequestError, MaybeApplied, NotApplied
from txn.tables.kv import group_commit
from txn.tables.kv import lmdb as lmdb_module
from txn.tables.kv.group_commit import CommitQueue
from txn.tables.kv.lmdb import FIRST_MAP_SIZE, LmdbStore
from txn.tables.kv.ordered import Writer

PATIENCE_S = 60
Body = Callable[[Writer], object]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(str(tmp_path / "store"))
    yield store
    store.close()


def get(store: LmdbStore, key: bytes) -> bytes | None:
    return store.read(lambda reader: reader.get(key))


def put(key: bytes, value: bytes = b"v") -> Body:
    return lambda writer: writer.put(key, value)


def count_commits(store: LmdbStore) -> int:
    files = store._shared._files
    assert files is not None
    return int(files.environment.info()["last_txnid"])


def refuse(writer: Writer) -> None:
    writer.put(b"refused", b"v")
    raise InvalidRequestError("half way")


class Commit:
    """A write that does not end, and those that wait for it."""

    def __init__(self, store: LmdbStore, pool: ThreadPoolExecutor) -> None:
        self._store, self._pool = store, pool
        self._entered, self._let = threading.Event(), threading.Event()
        self._first: Future[object] = pool.submit(store.write, self._stay, shared=True)
        assert self._entered.wait(PATIENCE_S)

    def _stay(self, writer: Writer) -> None:
        writer.put(b"first", b"v")
        self._entered.set()
        assert self._let.wait(PATIENCE_S)

    def call_beside(self, *calls: Callable[[], object]) -> list[Future[object]]:
        """Let threads make calls, in this order; all wait when this returns."""
        queue = self._store._shared.queue._queue
        before, asked = len(queue), list[Future[object]]()
        for call in calls:
            asked.append(self._pool.submit(call))
            assert poll(lambda: len(queue) >= before + len(asked), 60_000)
        return asked

    def write_beside(self, *bodies: Body) -> list[Future[object]]:
        return self.call_beside(*(partial(self._store.write, body, shared=True) for body in bodies))

    def end(self, asked: Sequence[Future[object]] = ()) -> None:
        """Let it end, and then those that were asked for."""
        self._let.set()
        for future in (self._first, *asked):
            future.result(PATIENCE_S)


@pytest.fixture
def commit(store: LmdbStore) -> Iterator[Commit]:
    with ThreadPoolExecutor(8) as pool:
        commit = Commit(store, pool)
        yield commit
        commit._let.set()


def test_writes_that_come_during_a_commit_are_one_commit(store: LmdbStore, commit: Commit) -> None:
    before = count_commits(store)
    asked = commit.write_beside(*(put(b"%d" % number) for number in range(5)))
    commit.end(asked)
    assert [get(store, b"%d" % number) for number in range(5)] == [b"v"] * 5
    assert count_commits(store) == before + 2  # theirs, and that of the first
    for number in range(3):
        store.write(put(b"%d" % number), shared=True)
    assert count_commits(store) == before + 5, "nobody waits for company"


@pytest.mark.parametrize(("durable", "flushes"), [((False, True), 1), ((False, False), 0)])
def test_a_commit_is_durable_if_one_of_its_writes_is(
    store: LmdbStore,
    commit: Commit,
    monkeypatch: pytest.MonkeyPatch,
    durable: tuple[bool, ...],
    flushes: int,
) -> None:
    steps: list[object] = []
    apply = lmdb_module._Shared._apply

    def count(self: lmdb_module._Shared, step: Callable[[], None]) -> None:
        steps.append(step)
        apply(self, step)

    asked = commit.call_beside(
        *(partial(store.write, put(b"k"), durable=each, shared=True) for each in durable)
    )
    monkeypatch.setattr(lmdb_module._Shared, "_apply", count)
    commit.end(asked)
    assert len(steps) == 2 + 1 + flushes  # the first write's two, a commit, and its flush


def test_one_that_raises_is_undone_alone(store: LmdbStore, commit: Commit) -> None:
    one, bad, two = commit.write_beside(put(b"one"), refuse, put(b"two"))
    commit.end()
    one.result(PATIENCE_S)
    two.result(PATIENCE_S)
    with pytest.raises(InvalidRequestError, match="half way"):
        bad.result(PATIENCE_S)
    assert [get(store, key) for key in (b"one", b"two", b"refused")] == [b"v", b"v", None]


def test_the_map_grows_for_writes_too_large_together(store: LmdbStore, commit: Commit) -> None:
    large = bytes(FIRST_MAP_SIZE * 2 // 3)
    asked = commit.write_beside(*(put(b"%d" % number, large) for number in range(3)))
    commit.end(asked)
    assert [len(get(store, b"%d" % number) or b"") for number in range(3)] == [len(large)] * 3


def test_when_a_commit_fails_none_of_its_writes_is_told_more_than_that(
    store: LmdbStore, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on disk: who runs its function again might undo what another reads there."""
    runs: list[int] = []
    asked = commit.write_beside(*[lambda _: runs.append(1)] * 3)

    apply = lmdb_module._Shared._apply

    def fail(self: lmdb_module._Shared, step: Callable[[], None]) -> None:
        def take_and_fail() -> None:
            step()
            if runs:
                raise lmdb.DiskError("no")

        apply(self, take_and_fail)

    monkeypatch.setattr(lmdb_module._Shared, "_apply", fail)
    commit.end()
    for future in asked:
        with pytest.raises(MaybeApplied, match=r"^the commit failed path='[^']+' reason='[^']+'$"):
            future.result(PATIENCE_S)
    assert len(runs) == 3


def test_a_write_that_waits_too_long_is_taken_back(
    store: LmdbStore, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told that it had no effect, so it must have none later; the next one leads instead."""
    monkeypatch.setattr("txn.tables.kv.exclusion.PATIENCE_MS", 10)
    (late,) = commit.write_beside(put(b"late"))
    with pytest.raises(NotApplied, match=r"another thread is writing .* waited_ms=\d\d"):
        late.result(PATIENCE_S)
    monkeypatch.undo()
    (patient,) = commit.write_beside(put(b"patient"))
    commit.end()
    patient.result(PATIENCE_S)
    assert (get(store, b"late"), get(store, b"patient")) == (None, b"v")


class Harmless(Exception):
    """What comes before anything is written."""


class Commits:
    """A store of names, whose first commit of several waits for `go`, and then ends in some way."""

    def __init__(self, ending: str) -> None:
        self.names: set[bytes] = set()
        self.go = threading.Event()
        self.queue = CommitQueue(self.commit, Harmless)
        self._ending = ending
        self._lock = threading.Lock()

    def commit(self, body: Callable[[Any], Any], is_durable: Callable[[], bool]) -> Any:
        with self._lock:
            assert self.go.wait(PATIENCE_S)
            names: list[bytes] = []
            result = body(names)
            ending = self._ending if len(names) > 1 else "well"
            if ending == "undone":
                raise Harmless
            if ending == "in doubt":
                raise MaybeApplied("lost")
            self.names.update(names)
            is_durable()
            return result

    def write(self, name: bytes) -> bool:
        """Return whether the name was certainly written."""
        try:
            self.queue.write(lambda writer: cast(list[bytes], writer).append(name), True)
        except MaybeApplied:
            return False
        return True

    def await_queue(self, count: int, leader: Future[None]) -> None:
        assert poll(lambda: len(self.queue._queue) >= count - leader.done(), 60_000)


def interrupt_leader(ending: str, at: int) -> bool:
    """Interrupt who leads two others; see that all are told the truth; tell if it came to that."""
    commits, interruption = Commits(ending), Interruption([str(group_commit.__file__)], at)

    def lead() -> None:
        with interruption:
            commits.write(b"leader")

    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(lead)
        commits.await_queue(1, leader)
        others = [pool.submit(commits.write, name) for name in (b"one", b"two")]
        commits.await_queue(3, leader)
        commits.go.set()
        written = [other.result(PATIENCE_S) for other in others]
        leader.result(PATIENCE_S)
        for name, is_written in zip((b"one", b"two"), written, strict=True):
            assert name in commits.names or not is_written, interruption.place
        assert pool.submit(commits.write, b"later").result(PATIENCE_S), interruption.place
    assert not commits.queue._queue, interruption.place
    return interruption.place is not None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ending", ["well", "undone", "in doubt"])
def test_a_leader_that_is_interrupted_anywhere_misleads_nobody(ending: str) -> None:
    """Others waited for ever; or they took a write for committed though its commit had failed."""
    count = 0
    while interrupt_leader(ending, count):
        count += 1
    assert count > 20
