"""Pools of threads, and forks: each thing is done once, and both sides of a fork are told."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR

import pytest

from txn.host import forks
from txn.host.forks import Forked, start_in_each_process
from txn.host.worker_pool import WorkerPool

PATIENCE_S = 60


@contextmanager
def a_busy_pool() -> Iterator[tuple[WorkerPool, threading.Event]]:
    """Make a pool of two, of which one is busy until the event is set."""
    pool, came, go = WorkerPool(2, "pool"), threading.Event(), threading.Event()

    def work() -> None:
        came.set()
        assert go.wait(PATIENCE_S)

    assert pool.submit_work(work) and came.wait(PATIENCE_S)
    try:
        yield pool, go
    finally:
        go.set()
        pool.close()


def fail(number: int) -> None:
    raise ZeroDivisionError(number)


def test_a_failure_in_a_pool_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    pool = WorkerPool(1, "pool")
    with caplog.at_level(ERROR, "txn"):
        assert pool.submit_work(fail, 7)
        pool.close()
    (record,) = caplog.records
    assert record.name == "txn" and record.getMessage().endswith("work=fail pool=pool")
    assert record.exc_info is not None and repr(record.exc_info[1]) == "ZeroDivisionError(7)"

    def interrupt() -> None:
        raise KeyboardInterrupt

    # A caller who does a pool's work for it can be interrupted in it.
    with caplog.at_level(ERROR, "txn"), pytest.raises(KeyboardInterrupt):
        WorkerPool(1, "pool").do(interrupt)
    assert len(caplog.records) == 2


def test_what_no_thread_could_be_started_for_is_the_callers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that is there would find it, and do again what its caller does meanwhile."""
    done = list[str]()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with a_busy_pool() as (pool, _):
        monkeypatch.setattr("threading.Thread.start", refuse)
        assert not pool.submit_work(done.append, "twice")
    assert not done


def test_what_a_thread_has_begun_is_not_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have become free just as no other could be started."""
    done, told = list[str](), threading.Event()

    def work() -> None:
        done.append("once")
        told.set()

    with a_busy_pool() as (pool, go):

        def refuse(thread: threading.Thread) -> None:
            go.set()
            assert told.wait(PATIENCE_S)
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr("threading.Thread.start", refuse)
        assert pool.submit_work(work)
    assert done == ["once"]


def test_a_child_has_a_pool_of_its_own() -> None:
    with a_busy_pool() as (pool, go):
        told, parents = threading.Event(), pool._pool
        assert parents is not None
        pool._start()  # as in a child of a fork
        assert pool.submit_work(told.set) and told.wait(PATIENCE_S)
        go.set()
        parents.shutdown()


class Noting(Forked):
    """Something that notes what it is told, in a list that a child has a copy of."""

    def __init__(self, told: list[str]) -> None:
        self._prepared = told
        self.expect_forks()

    def before_fork(self) -> None:
        self._prepared.append("before")

    def after_fork(self, in_child: bool) -> None:
        self._prepared.append("in the child" if in_child else "in the parent")


class Starting:
    """Something that notes each start."""

    def __init__(self, told: list[str]) -> None:
        self._prepared = told
        start_in_each_process(self._start)

    def _start(self) -> None:
        self._prepared.append("start")


def fork(told: list[str], wanted: list[str]) -> bool:
    """Fork; return whether the child was told what is wanted of it."""
    child = os.fork()
    if child == 0:
        os._exit(0 if told == wanted else 1)
    return os.waitpid(child, 0)[1] == 0


def test_each_side_is_told_which_it_is() -> None:
    told: list[str] = []
    noting = Noting(told)
    assert fork(told, ["before", "in the child"])
    assert told == ["before", "in the parent"]
    assert fork(told, ["before", "in the parent", "before", "in the child"])
    assert noting


def test_a_start_is_made_again_in_each_child() -> None:
    told: list[str] = []
    starting = Starting(told)
    assert fork(told, ["start", "start"])
    assert told == ["start"]
    child = os.fork()
    if child == 0:
        os._exit(0 if fork(told, ["start"] * 3) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert starting


def test_nothing_lives_longer_for_having_expected_forks_or_started() -> None:
    told: list[str] = []
    Noting(told)
    Starting(told)
    gc.collect()
    assert fork(told, ["start"])
    assert told == ["start"]
    assert not any(isinstance(owner, Starting) for owner in forks._STARTS)
