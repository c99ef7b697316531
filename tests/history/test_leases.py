"""The checker of leases finds what is wrong in histories that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from tests.history.leases import Endless, OutOfOrder, Overlap, Stay, anomalies, deny
from txn.locks import LockRequest, exclusive, shared
from txn.locks.model import in_order

pytestmark = pytest.mark.fast

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY, OTHER_DAY, TABLE = "d/t/day=1", "d/t/day=2", "d/t"


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def stay(lease_id: int, claim: LockRequest, entered: float, left: float | None) -> Stay:
    """One that got its lease as soon as it asked for it."""
    moment = at(entered)
    return Stay(lease_id, (claim,), moment, moment, None if left is None else at(left))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (exclusive(TABLE), exclusive(TABLE)),
        (exclusive(TABLE), shared(TABLE)),
        (exclusive(TABLE), shared(DAY)),
        (exclusive(TABLE), exclusive(DAY)),
        (exclusive(DAY), shared(DAY)),
        (exclusive(DAY), exclusive(f"{DAY}/hour=3")),
    ],
)
def test_two_that_deny_each_other_at_one_time_are_found(
    one: LockRequest, other: LockRequest
) -> None:
    """This is the harm that leases are there to prevent."""
    for first, second in ((one, other), (other, one)):
        before, after = stay(1, first, 0, 10), stay(2, second, 9.999, 20)
        assert anomalies([after, before]) == [Overlap(before, after)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (shared(TABLE), shared(TABLE)),
        (shared(TABLE), exclusive(DAY)),
        (shared(TABLE), shared(DAY)),
        (exclusive(DAY), exclusive(OTHER_DAY)),
        (exclusive("d/t"), exclusive("d/u")),
        (exclusive("d/t"), exclusive("d/t2")),
        (exclusive("d/t"), exclusive("e/t")),
    ],
)
def test_what_goes_together_may_overlap(one: LockRequest, other: LockRequest) -> None:
    """A checker that cries wolf is turned off."""
    assert anomalies([stay(1, one, 0, 10), stay(2, other, 5, 15)]) == []


def test_who_enters_as_another_leaves_is_right() -> None:
    """The database's clock may be coarse: the end of one is the beginning of the next."""
    assert anomalies([stay(1, exclusive(TABLE), 0, 10), stay(2, exclusive(TABLE), 10, 20)]) == []


def test_one_that_stays_long_denies_all_that_come_meanwhile() -> None:
    """Not only the next one."""
    long = stay(1, exclusive(TABLE), 0, 100)
    inside = [stay(2, shared(DAY), 1, 2), stay(3, shared(DAY), 50, 51)]
    assert anomalies([long, *inside]) == [Overlap(long, each) for each in inside]


def test_a_lease_without_an_end_is_found_with_those_whom_it_denies() -> None:
    """It would keep others out for ever."""
    endless, later = stay(1, exclusive(TABLE), 0, None), stay(2, shared(TABLE), 1_000, 1_001)
    assert anomalies([endless, later]) == [Endless(endless), Overlap(endless, later)]


def test_ids_must_grow_with_time() -> None:
    """A holder's id fences off those that held before it."""
    first, second = stay(7, shared(TABLE), 0, 10), stay(7, shared("d/u"), 1, 10)
    assert anomalies([first, second]) == [OutOfOrder(first, second)]
    asked_before = Stay(6, (shared("d/u"),), at(-1), at(1), at(2))
    assert anomalies([first, asked_before]) == []


def test_leases_deny_each_other_as_locks_do() -> None:
    """The rule is that of the lock manager, where each parent is locked as shared; here it is told
    in another way, so that one mistake is not made twice."""

    def as_locks(some: Iterable[LockRequest], others: Iterable[LockRequest]) -> bool:
        theirs = {each.path: each.mode for each in in_order(others)}
        mine = [each for each in in_order(some) if each.path in theirs]
        return not all(each.mode.allows(theirs[each.path]) for each in mine)

    rng = Random(3)
    objects = ["d/t", "d/u", "d/t/p=1", "d/t/p=2", "d/t/p=1/q=1", "d/t/p=1/q=2"]
    for _ in range(3_000):
        some, others = (
            [rng.choice((shared, exclusive))(each) for each in rng.sample(objects, 2)]
            for _ in range(2)
        )
        assert deny(some, others) == as_locks(some, others), (some, others)
