"""The checker of leases finds what is wrong in histories that are wrong on purpose."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.history.leases import Anomaly, Stay, anomalies
from txn.locks import LockRequest, exclusive, shared

pytestmark = pytest.mark.fast

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY, OTHER_DAY, TABLE = "d/t/day=1", "d/t/day=2", "d/t"


def stay(lease_id: int, claim: LockRequest, entered: float, left: float, asked: float = 0) -> Stay:
    """One that got its lease as soon as it asked for it, unless it asked before."""
    times = (NOON + timedelta(seconds=each) for each in (entered + asked, entered, left))
    return Stay(lease_id, (claim,), *times)


@pytest.mark.parametrize(
    ("one", "other", "is_wrong"),
    [
        (exclusive(TABLE), exclusive(TABLE), True),
        (exclusive(TABLE), shared(DAY), True),
        (exclusive(TABLE), exclusive(DAY), True),
        (exclusive(DAY), exclusive(f"{DAY}/hour=3"), True),
        (shared(TABLE), shared(TABLE), False),
        (shared(TABLE), exclusive(DAY), False),
        (exclusive(DAY), exclusive(OTHER_DAY), False),
        (exclusive("d/t"), exclusive("d/t2"), False),
    ],
)
def test_only_those_that_deny_each_other_may_not_overlap(
    one: LockRequest, other: LockRequest, is_wrong: bool
) -> None:
    for first, second in ((one, other), (other, one)):
        before, after = stay(1, first, 0, 10), stay(3, second, 9.999, 20)
        between, next_one = stay(2, shared("d/u"), 1, 2), stay(4, second, 20, 30)
        wrong = [Anomaly("held at one time", before, after)] if is_wrong else []
        assert anomalies([next_one, after, between, before]) == wrong


def test_a_lease_without_an_end_is_found_with_those_whom_it_denies() -> None:
    endless = Stay(1, (exclusive(TABLE),), NOON, NOON, None)
    later = stay(2, shared(TABLE), 1_000, 1_001)
    expected = [Anomaly("without an end", endless, endless)]
    assert anomalies([endless, later]) == [*expected, Anomaly("held at one time", endless, later)]


def test_ids_must_grow_with_time() -> None:
    """A holder's id fences off those that held before it."""
    first, second = stay(7, shared(TABLE), 0, 10), stay(7, shared("d/u"), 1, 10)
    wrong = Anomaly("asked for later without a larger id", first, second)
    assert anomalies([first, second]) == [wrong]
    assert anomalies([first, stay(6, shared("d/u"), 1, 2, asked=-2)]) == []
