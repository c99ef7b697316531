"""Threads that work again and again: what ends them, and what is told where they fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from tests.unit.test_locks_stored import manager_on
from txn import Engine, Key, Mutation
from txn.clock import ManualClock, SystemClock
from txn.errors import (
    CommitOutcomeUnknown,
    CorruptRowError,
    InvalidRequestError,
    MaybeApplied,
    StoreClosedError,
    TxnError,
)
from txn.events import Event, WorkFailed
from txn.leases.model import HeldLease
from txn.locks import LockManager, exclusive
from txn.locks.stored import StoredQueues
from txn.repeating import repeat
from txn.stores import open_store

pytestmark = pytest.mark.fast


class Pauses(threading.Event):
    """Notes each pause, and lets none take time. It is over after so many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(round(timeout, 3))
        return len(self.seconds) > self._most


@pytest.mark.parametrize(
    "error",
    [
        MaybeApplied("away"),
        CommitOutcomeUnknown(b"t"),
        InvalidRequestError("no"),
        ValueError("odd"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_fails_is_told_and_done_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Event] = []
    fails = iter([error, error, None, error, None, None])

    def work() -> None:
        if (failure := next(fails)) is not None:
            raise failure

    pauses = Pauses(6)
    repeat("send heartbeat", work, pauses, 30, told.append)
    assert next(fails, "all was done") == "all was done"
    assert pauses.seconds == [30, 3, 6, 30, 3, 30, 30]
    assert told == [WorkFailed("send heartbeat")] * 3
    level = logging.WARNING if isinstance(error, TxnError) else logging.ERROR
    assert [record.levelno for record in caplog.records] == [level] * 3


def test_the_pauses_after_failures_have_a_bound() -> None:
    def work() -> None:
        raise MaybeApplied("away")

    pauses = Pauses(6)
    repeat("send heartbeat", work, pauses, 30)
    assert pauses.seconds == [30, 3, 6, 9, 10, 10, 10]


def test_a_watch_that_raises_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*event: Event) -> None:
        raise ValueError("odd")

    pauses = Pauses(2)
    repeat("send heartbeat", fail, pauses, 30, fail)
    assert pauses.seconds == [30, 3, 6]
    assert caplog.text.count("a listener failed: work=send heartbeat") == 2


def test_a_closed_store_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        raise StoreClosedError("closed")

    pauses = Pauses(9)
    repeat("send heartbeat", work, pauses, 30)
    assert pauses.seconds == [30]
    assert not caplog.records


def test_what_says_that_it_is_done_with_ends() -> None:
    pauses = Pauses(9)
    repeat("send heartbeat", lambda: False, pauses, 30)
    assert pauses.seconds == [30]


def until(is_so: Callable[[], bool]) -> None:
    turn = threading.Event()
    for _ in range(5_000):
        if is_so():
            return
        turn.wait(0.001)
    raise AssertionError("it has not come")


def test_a_lease_goes_on_being_extended_after_any_error() -> None:
    fails = iter([ZeroDivisionError("odd"), CorruptRowError("odd")])
    extended: list[bool] = []

    def extend() -> None:
        if (failure := next(fails, None)) is not None:
            raise failure
        extended.append(True)

    clock = SystemClock()
    held = HeldLease(
        7,
        (exclusive("d"),),
        duration_s=0.1,
        began_ms=clock.monotonic_ms() + 10_000,
        clock=clock,
        extend=extend,
        are_there=lambda: True,
        drop=lambda: None,
    )
    until(lambda: bool(extended))  # a second one would have to come within 0.1 s
    held.release()


def queues_of(manager: LockManager) -> StoredQueues:
    assert isinstance(manager._backend, StoredQueues)
    return manager._backend


def test_a_row_that_is_no_line_of_locks_ends_no_session() -> None:
    """What is owed is given back between two beats; the row of another object may be odd."""
    store, clock = open_store("memory://"), ManualClock()
    manager = manager_on(store, clock, "one", lease_ms=30)
    engine = Engine(store, clock=clock)
    bad = Key("bad", "o", "queue", "locks")
    engine.commit([Mutation(bad, b"junk")])
    with pytest.raises(CorruptRowError, match="not a queue of locks"):
        manager.hold([exclusive("bad")])
    assert any(each.is_owed for each in manager._asked.values())
    session = queues_of(manager).sessions.open(lambda: None)
    seen = session._count
    until(lambda: session._count >= seen + 3)
    with manager.hold([exclusive("good")]):
        assert not session.heartbeat.lost
    manager.close()


def test_a_session_goes_on_after_any_error(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = open_store("memory://"), ManualClock()
    manager = manager_on(store, clock, "one", lease_ms=30)
    engine = queues_of(manager).engine
    session = queues_of(manager).sessions.open(lambda: None)
    commit, fails = engine.commit, iter([ZeroDivisionError("odd"), CorruptRowError("odd")])

    def fail(*arguments: object, **more: object) -> object:
        if (failure := next(fails, None)) is not None:
            raise failure
        return commit(*arguments, **more)  # type: ignore[arg-type]

    engine.commit = fail  # type: ignore[method-assign, assignment]
    before_ms = session.heartbeat._sure_until_ms
    clock.advance(5)
    until(lambda: session.heartbeat._sure_until_ms >= before_ms + 5)
    assert not session.heartbeat.lost and caplog.text.count("work=send heartbeat") == 2
    manager.close()
