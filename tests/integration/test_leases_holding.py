"""Leases that extend themselves, and what their holders learn when they are lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from txn.clock import ManualClock, poll
from txn.leases import (
    exclusive,
    open_leases,
    path,
    shared,
)
from txn.leases.service import LeaseService
from txn.locks import LockLost

TABLE = [exclusive("d/t")]
WITHIN_MS = 60_000
AN_HOUR_S = 3600


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """Of one kind: test_leases.py of the contracts shows that both are equal."""
    return f"sqlite:///{tmp_path}/leases"


@pytest.fixture
def leases(database_url: str) -> Iterator[LeaseService]:
    with open_leases(database_url) as leases:
        yield leases


def test_it_ends_later_and_later_while_it_is_held(leases: LeaseService) -> None:
    """A job takes as long as it takes; its lease need not be longer than others may wait for it
    after it has died."""
    with leases.hold(TABLE, 12) as held:
        (first,) = leases.list_lease()
        assert poll(lambda: leases.list_lease()[0].end_utc > first.end_utc, WITHIN_MS)
        held.check()
        (later,) = leases.list_lease()
        assert (later.lease_id, later.start_utc) == (held.lease_id, first.start_utc)
    assert leases.list_lease() == []
    with pytest.raises(LockLost):
        held.check()
    held.release()


def test_it_has_what_whoever_runs_jobs_under_locks_asks_for(leases: LeaseService) -> None:
    objects = [exclusive("d/t/p=1"), shared("d/u")]
    with leases.hold(objects, AN_HOUR_S, user="nightly") as held:
        assert [str(each) for each in held.requests] == ["S d", "S d/t", "X d/t/p=1", "S d/u"]
        assert held.tokens == {path("d/t/p=1"): held.lease_id, path("d/u"): held.lease_id}
        assert {lease.user for lease in leases.list_lease()} == {"nightly"}
        held.check()
    with leases.hold(objects, AN_HOUR_S) as later:
        assert later.tokens[path("d/u")] > held.tokens[path("d/u")]


def test_a_holder_whose_lease_was_dropped_by_force_is_told(leases: LeaseService) -> None:
    with leases.hold(TABLE, 1) as held:
        leases.force_drop_lease(["d/t"])
        with pytest.raises(LockLost, match="X d/t"):
            held.check()
        assert poll(lambda: held.lost, WITHIN_MS)
    with leases.hold(TABLE, 1) as held:
        leases.force_drop_lease([])
        assert poll(lambda: held.lost, WITHIN_MS)
        with pytest.raises(LockLost):
            held.check()


BOTH = [exclusive("d/t"), shared("d/u")]


def test_a_holder_that_does_not_ask_learns_that_a_part_was_dropped_and_taken(
    leases: LeaseService, database_url: str
) -> None:
    still = ManualClock()
    with open_leases(database_url, clock=still) as holder, holder.hold(BOTH, 3) as held:
        leases.force_drop_lease("d/t")
        leases.grab_lease([exclusive("d/t")], AN_HOUR_S)
        assert poll(lambda: held.lost, WITHIN_MS)
        assert poll(lambda: leases.list_lease("d/u") == [], WITHIN_MS)
        held.release()
        assert [lease.user for lease in leases.list_lease("d/t")]  # another's is not dropped


def test_a_lease_that_was_dropped_in_part_or_is_anothers_is_lost(
    leases: LeaseService,
) -> None:
    with leases.hold(BOTH, AN_HOUR_S) as held:
        assert leases.drop_lease(held.lease_id, ["d/u"]) == 1  # nobody can tell who dropped it
        with pytest.raises(LockLost):
            held.check()
    with leases.hold(TABLE, AN_HOUR_S) as held:
        leases.force_drop_lease([])
        with leases.hold(TABLE, AN_HOUR_S) as other:
            with pytest.raises(LockLost):
                held.check()
            other.check()
            held.release()
            other.check()


def test_who_cannot_ask_takes_its_lease_for_lost_when_its_time_is_over(
    database_url: str,
) -> None:
    """By its own clock, which counts from before the lease was asked for."""
    clock = ManualClock()
    with open_leases(database_url, clock=clock) as leases, leases.hold(TABLE, AN_HOUR_S) as held:
        clock.set_wall_ms(clock.wall_ms() + AN_HOUR_S * 1000 * 24)  # as an operator may set it
        clock.advance(AN_HOUR_S * 980)
        held.check()
        clock.advance(AN_HOUR_S * 20)
        assert held.lost
        with pytest.raises(LockLost):
            held.check()


def test_what_was_lost_stays_lost(database_url: str) -> None:
    clock = ManualClock()
    said: list[bool] = []
    with open_leases(database_url, clock=clock) as leases, leases.hold(TABLE, 9) as held:
        (first,) = leases.list_lease()

        def let_pass(*facts: Any) -> None:
            if "UPDATE txn_leases" in facts[2] and not said:  # it is about to be extended
                clock.advance(9_000)
                said.append(held.lost)

        event.listen(Engine, "before_cursor_execute", let_pass)
        try:
            assert poll(lambda: leases.list_lease()[0].end_utc > first.end_utc, WITHIN_MS)
        finally:
            event.remove(Engine, "before_cursor_execute", let_pass)
        assert said == [True]
        assert held.lost


def test_what_was_waited_for_is_sure_for_all_of_its_time(database_url: str) -> None:
    """It begins when it is granted, not when it was asked for. The waiting is done on a clock that
    runs ahead, so that by that clock it took longer than the lease lasts."""
    clock = ManualClock()
    with open_leases(database_url, clock=clock) as leases:
        leases.grab_lease(TABLE, 1)
        with leases.hold(TABLE, 20, AN_HOUR_S) as held:
            assert not held.lost
            held.check()


def test_a_lease_cannot_be_held_for_longer_than_leases_may_be(database_url: str) -> None:
    with open_leases(database_url, max_lease_s=2) as leases, leases.hold(TABLE, 1.9) as held:
        assert poll(lambda: held.lost, WITHIN_MS)
        with pytest.raises(LockLost):
            held.check()
