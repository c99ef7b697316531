"""Leases that extend themselves, and what their holders learn when they are lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.integration.postgresql import PostgreSQL
from txn.clock import ManualClock
from txn.errors import StoreError
from txn.leases import (
    LeaseAlreadyExistsError,
    exclusive,
    open_leases,
    path,
    shared,
)
from txn.leases.service import LeaseService
from txn.locks import LockLost

TABLE = [exclusive("d/t")]
WITHIN_S = 60
AN_HOUR_S = 3600


@pytest.fixture
def leases(database_url: str) -> Iterator[LeaseService]:
    with open_leases(database_url) as leases:
        yield leases


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_ends_later_and_later_while_it_is_held(leases: LeaseService) -> None:
    """A job takes as long as it takes; its lease need not be longer than others may wait for it
    after it has died."""
    with leases.hold(TABLE, 12) as held:
        (first,) = leases.list_lease()
        until(lambda: leases.list_lease()[0].end_utc > first.end_utc)
        held.check()
        (later,) = leases.list_lease()
        assert (later.lease_id, later.start_utc) == (held.lease_id, first.start_utc)
    assert leases.list_lease() == []


def test_it_has_what_whoever_runs_jobs_under_locks_asks_for(leases: LeaseService) -> None:
    """So a lease can stand wherever a lock does; its id grows, and is a fencing token."""
    objects = [exclusive("d/t/p=1"), shared("d/u")]
    with leases.hold(objects, AN_HOUR_S, user="nightly") as held:
        assert [str(each) for each in held.requests] == ["S d", "S d/t", "X d/t/p=1", "S d/u"]
        assert held.tokens == {path("d/t/p=1"): held.lease_id, path("d/u"): held.lease_id}
        assert {lease.user for lease in leases.list_lease()} == {"nightly"}
        held.check()
    with leases.hold(objects, AN_HOUR_S) as later:
        assert later.tokens[path("d/u")] > held.tokens[path("d/u")]


def test_what_others_have_is_not_held(leases: LeaseService) -> None:
    """A block must not run without its lease."""
    with leases.hold([shared("d/t")], AN_HOUR_S), pytest.raises(LeaseAlreadyExistsError):
        leases.hold(TABLE, AN_HOUR_S)


def test_a_holder_whose_lease_was_dropped_by_force_is_told(leases: LeaseService) -> None:
    """At once if it asks; else when its lease would have been extended."""
    with leases.hold(TABLE, 1) as held:
        leases.force_drop_lease(["d/t"])
        with pytest.raises(LockLost, match="X d/t"):
            held.check()
        until(lambda: held.lost)
    with leases.hold(TABLE, 1) as held:
        leases.force_drop_lease([])
        until(lambda: held.lost)
        with pytest.raises(LockLost):
            held.check()


BOTH = [exclusive("d/t"), shared("d/u")]


def test_a_lease_of_which_a_part_was_dropped_is_lost(leases: LeaseService) -> None:
    """All of it or nothing: a job that reads one table and writes another needs both."""
    with leases.hold(BOTH, AN_HOUR_S) as held:
        leases.force_drop_lease(["d/u"])
        with pytest.raises(LockLost):
            held.check()


def test_a_holder_that_does_not_ask_learns_that_a_part_was_dropped_and_taken(
    leases: LeaseService, database_url: str
) -> None:
    """When its lease would have been extended; it is not any more, and what is left of it ends. By
    its own clock no time passes: it is the database that says so."""
    still = ManualClock()
    with open_leases(database_url, clock=still) as holder, holder.hold(BOTH, 3) as held:
        leases.force_drop_lease("d/t")
        leases.grab_lease([exclusive("d/t")], AN_HOUR_S)
        until(lambda: held.lost)
        until(lambda: leases.list_lease("d/u") == [])
        held.release()
        assert [lease.user for lease in leases.list_lease("d/t")]  # another's is not dropped


def test_a_part_that_is_given_back_is_a_part_that_is_lost(leases: LeaseService) -> None:
    """Nobody can tell who dropped it by the lease's id: its holder, or a person by hand."""
    with leases.hold(BOTH, 6) as held:
        assert leases.drop_lease(held.lease_id, ["d/u"]) == 1
        until(lambda: held.lost)
        with pytest.raises(LockLost):
            held.check()
    assert leases.list_lease() == []


def test_a_lease_that_another_one_has_now_is_lost(leases: LeaseService) -> None:
    """It is the same object, and not the same lease."""
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
        clock.advance(AN_HOUR_S * 980)
        held.check()
        clock.advance(AN_HOUR_S * 20)
        assert held.lost
        with pytest.raises(LockLost):
            held.check()


def test_what_was_lost_stays_lost(database_url: str) -> None:
    """Its holder has stopped, and undone what it could, even if it had the lease all the while."""
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
            until(lambda: leases.list_lease()[0].end_utc > first.end_utc)
        finally:
            event.remove(Engine, "before_cursor_execute", let_pass)
        assert said == [True]
        assert held.lost


def test_a_clock_that_is_set_changes_nothing(database_url: str) -> None:
    """Its holder counts on a clock that nobody sets."""
    clock = ManualClock()
    with open_leases(database_url, clock=clock) as leases, leases.hold(TABLE, AN_HOUR_S) as held:
        clock.set_wall_ms(clock.wall_ms() + AN_HOUR_S * 1000 * 24)
        held.check()


def test_a_holder_does_not_believe_in_a_lease_that_nobody_confirms(
    postgresql: PostgreSQL,
) -> None:
    """Before it publishes its work it asks; no answer is no."""
    clock = ManualClock()
    with open_leases(postgresql.new_database(), clock=clock) as leases:
        held = leases.hold(TABLE, AN_HOUR_S)
        postgresql.kill()
        try:
            assert not held.lost
            with pytest.raises(LockLost, match="cannot tell whether"):
                held.check()
            with pytest.raises(StoreError):
                held.release()
        finally:
            postgresql.start()
        held.release()
        assert leases.list_lease() == []


def test_an_outage_that_is_shorter_than_the_lease_is_survived(postgresql: PostgreSQL) -> None:
    """A database is restarted for an update while a job of many hours is under way."""
    with open_leases(postgresql.new_database()) as leases, leases.hold(TABLE, 24) as held:
        (first,) = leases.list_lease()
        postgresql.restart()
        until(lambda: leases.list_lease()[0].end_utc > first.end_utc)
        held.check()


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
    """It ends then, and its holder knows."""
    with open_leases(database_url, max_lease_s=2) as leases, leases.hold(TABLE, 1.9) as held:
        until(lambda: held.lost)
        with pytest.raises(LockLost):
            held.check()


def test_after_it_was_given_back_it_is_not_held(leases: LeaseService) -> None:
    """Nor extended any more; to give it back twice is no error."""
    held = leases.hold(TABLE, AN_HOUR_S)
    held.release()
    with pytest.raises(LockLost):
        held.check()
    held.release()
    assert leases.list_lease() == []
