"""Threads that work again and again: what ends them, and what is told where they fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from txn.clock import SystemClock
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
from txn.locks import exclusive
from txn.repeating import repeat


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


def close() -> bool:
    raise StoreClosedError("closed")


@pytest.mark.parametrize("work", [close, lambda: False])
def test_a_closed_store_or_work_that_is_done_with_ends_it(
    work: Callable[[], bool | None], caplog: pytest.LogCaptureFixture
) -> None:
    pauses = Pauses(9)
    repeat("send heartbeat", work, pauses, 30)
    assert pauses.seconds == [30]
    assert not caplog.records


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
