"""The pauses between tries, and where a loop of tries ends."""

from __future__ import annotations

from random import Random

import pytest

from txn.clock import ManualClock
from txn.policy import Backoff

BACKOFF = Backoff(first_ms=10, longest_ms=100)


def test_a_pause_doubles_up_to_the_longest_and_keeps_at_least_half() -> None:
    for tries, whole_ms in ((1, 20), (2, 40), (3, 80), (4, 100), (1_000, 100)):
        pauses = {BACKOFF.pause_ms(tries, Random(seed)) for seed in range(300)}
        assert min(pauses) >= whole_ms // 2
        assert max(pauses) <= whole_ms
        assert len(pauses) > 5


def test_a_loop_ends_after_so_many_tries_and_waits_only_between_them() -> None:
    clock = ManualClock()
    began_ms = clock.monotonic_ms()
    assert list(BACKOFF.tries(clock, Random(0), most=3)) == [1, 2, 3]
    assert 10 + 20 <= clock.monotonic_ms() - began_ms <= 20 + 40


def test_a_loop_ends_when_its_time_is_over_but_tries_once() -> None:
    clock = ManualClock()
    assert list(BACKOFF.tries(clock, Random(0), due_ms=clock.monotonic_ms())) == [1]
    began_ms = clock.monotonic_ms()
    tries = list(BACKOFF.tries(clock, Random(0), due_ms=began_ms + 50))
    assert len(tries) in (3, 4)
    assert clock.monotonic_ms() == began_ms + 50  # the last pause is cut short


def test_a_loop_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="without an end"):
        next(BACKOFF.tries(ManualClock(), Random(0)))
