"""A pool does each thing that it is handed once, and tells of what fails there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR

import pytest

from txn.host.worker_pool import WorkerPool

pytestmark = pytest.mark.fast

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
    """Nobody waits for it, so nobody else would hear of it."""
    pool = WorkerPool(1, "pool")
    with caplog.at_level(ERROR, "txn"):
        assert pool.submit_work(fail, 7)
        pool.close()
    (record,) = caplog.records
    assert record.name == "txn" and record.getMessage().endswith("work=fail pool=pool")
    assert record.exc_info is not None and repr(record.exc_info[1]) == "ZeroDivisionError(7)"


def test_what_ends_a_thread_is_told_of_and_raised(caplog: pytest.LogCaptureFixture) -> None:
    """A caller who does a pool's work for it can be interrupted in it."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with caplog.at_level(ERROR, "txn"), pytest.raises(KeyboardInterrupt):
        WorkerPool(1, "pool").do(interrupt)
    assert len(caplog.records) == 1


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
    """Threads do not go into it, and the lock may be held by one that is not there."""
    with a_busy_pool() as (pool, go):
        told, parents = threading.Event(), pool._pool
        assert parents is not None
        pool._start()  # as in a child of a fork
        assert pool.submit_work(told.set) and told.wait(PATIENCE_S)
        go.set()
        parents.shutdown()
