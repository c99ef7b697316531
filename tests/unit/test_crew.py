"""A crew does each thing that it is handed once, and tells of what fails there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR

import pytest

from txn.host.crew import WorkerPool

pytestmark = pytest.mark.fast

PATIENCE_S = 60


@contextmanager
def a_busy_crew() -> Iterator[tuple[WorkerPool, threading.Event]]:
    """Have a crew of two, of which one is busy until the event is set."""
    crew, came, go = WorkerPool(2, "crew"), threading.Event(), threading.Event()

    def work() -> None:
        came.set()
        assert go.wait(PATIENCE_S)

    assert crew.submit_work(work) and came.wait(PATIENCE_S)
    try:
        yield crew, go
    finally:
        go.set()
        crew.close()


def fail(number: int) -> None:
    raise ZeroDivisionError(number)


def test_what_fails_in_a_crew_is_told_of_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for it, so nobody else would hear of it."""
    crew = WorkerPool(1, "crew")
    with caplog.at_level(ERROR, "txn"):
        assert crew.submit_work(fail, 7)
        crew.close()
    (record,) = caplog.records
    assert record.name == "txn" and record.getMessage().endswith("work=fail crew=crew")
    assert record.exc_info is not None and repr(record.exc_info[1]) == "ZeroDivisionError(7)"


def test_what_ends_a_thread_is_told_of_and_raised(caplog: pytest.LogCaptureFixture) -> None:
    """A caller who does a crew's work for it can be interrupted in it."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with caplog.at_level(ERROR, "txn"), pytest.raises(KeyboardInterrupt):
        WorkerPool(1, "crew").do(interrupt)
    assert len(caplog.records) == 1


def test_what_no_thread_could_be_started_for_is_the_callers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that is there would find it, and do again what its caller does meanwhile."""
    done = list[str]()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with a_busy_crew() as (crew, _):
        monkeypatch.setattr("threading.Thread.start", refuse)
        assert not crew.submit_work(done.append, "twice")
    assert not done


def test_what_a_thread_has_begun_is_not_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have become free just as no other could be started."""
    done, told = list[str](), threading.Event()

    def work() -> None:
        done.append("once")
        told.set()

    with a_busy_crew() as (crew, go):

        def refuse(thread: threading.Thread) -> None:
            go.set()
            assert told.wait(PATIENCE_S)
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr("threading.Thread.start", refuse)
        assert crew.submit_work(work)
    assert done == ["once"]


def test_a_child_has_a_crew_of_its_own() -> None:
    """Threads do not go into it, and the lock may be held by one that is not there."""
    with a_busy_crew() as (crew, go):
        told, parents = threading.Event(), crew._pool
        assert parents is not None
        crew._start()  # as in a child of a fork
        assert crew.submit_work(told.set) and told.wait(PATIENCE_S)
        go.set()
        parents.shutdown()
