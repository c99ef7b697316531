"""Many threads and processes at the same leases, their clocks hours apart, killed at any step.

Who has a lease takes the kernel's own locks for the same objects, which must be free: see
lock_worker.py. TXN_STEP=1 kills at each step of making the tables, as `make long` does.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path as Folder
from typing import Any

import pytest
from sqlalchemy import Row, create_engine, select

from tests.integration.lock_worker import LONG_S, SHORT_S, Death
from tests.integration.postgresql import PostgreSQL, mortal_postgresql  # noqa: F401
from tests.integration.test_locks_races import finish, wait_for_entries
from tests.integration.workers import Start, starting
from txn.clock import ManualClock, poll
from txn.errors import StoreError
from txn.leases import exclusive, open_leases, tables
from txn.leases.service import LeaseService
from txn.locks import LockLost

# How far the clocks of processes are off; the first ones are killed.
HOURS = (0, -7, 24, -48, 10_000)
KILLED = 2
STEP = int(os.environ.get("TXN_STEP", "3"))  # of the steps of making tables, which is killed at
WITHIN_S = 240
# No end may be later than this by the database's clock, places in a line among them.
LONGEST = timedelta(seconds=60)
NewUrl = Callable[[], str]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def new_url(request: pytest.FixtureRequest, tmp_path: Folder) -> NewUrl:
    """Empty databases."""
    if request.param == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql")
        return server.new_database
    numbers = count()
    return lambda: f"sqlite:///{tmp_path}/{next(numbers)}.sqlite"


@pytest.fixture
def url(new_url: NewUrl) -> str:
    return new_url()


@pytest.fixture
def start() -> Iterator[Start]:
    with starting("tests.integration.lock_worker") as start:
        yield start


def rows(url: str) -> Sequence[Row[Any]]:
    """What is in the table: leases, places of who waits, and what has ended."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(select(tables.leases)).all()
    engine.dispose()
    return found


def each_has_an_end(url: str, leases: LeaseService) -> bool:
    """Whether all in the table ends before long."""
    latest = leases.now() + LONGEST
    return all(row.end_utc is not None and row.end_utc < latest for row in rows(url))


def test_processes_with_clocks_hours_apart_some_of_them_killed(
    url: str, start: Start, tmp_path: Folder
) -> None:
    workers = [start("race", url, tmp_path, seed, hours) for seed, hours in enumerate(HOURS)]
    for worker in workers[:KILLED]:
        wait_for_entries(tmp_path, 5)
        worker.kill()
        worker.wait()
    wait_for_entries(tmp_path, 20)
    finish_leases(tmp_path, workers[KILLED:], url)


@pytest.mark.long
def test_a_database_that_is_restarted_and_killed_under_load(
    mortal_postgresql: PostgreSQL,  # noqa: F811
    start: Start,
    tmp_path: Folder,
) -> None:
    url = mortal_postgresql.new_database()
    workers = [start("race", url, tmp_path, seed) for seed in range(4)]
    wait_for_entries(tmp_path, 10)
    mortal_postgresql.restart()
    wait_for_entries(tmp_path, 10)
    mortal_postgresql.kill()
    mortal_postgresql.start()
    wait_for_entries(tmp_path, 10)
    finish_leases(tmp_path, workers, url)


def finish_leases(folder: Folder, workers: list[subprocess.Popen[str]], url: str) -> None:
    """End a race: all leases must end."""
    finish(folder, workers)
    with open_leases(url) as leases:
        assert each_has_an_end(url, leases)
        assert poll(lambda: leases.list_lease() == [], WITHIN_S * 1000)


@pytest.mark.long
def test_a_holder_does_not_believe_in_a_lease_that_nobody_confirms(
    mortal_postgresql: PostgreSQL,  # noqa: F811
) -> None:
    """Before it publishes its work it asks; no answer is no."""
    clock = ManualClock()
    with open_leases(mortal_postgresql.new_database(), clock=clock) as leases:
        held = leases.hold([exclusive("d/t")], 3_600)
        mortal_postgresql.kill()
        try:
            assert not held.lost
            with pytest.raises(LockLost, match="cannot tell whether"):
                held.check()
            with pytest.raises(StoreError):
                held.release()
        finally:
            mortal_postgresql.start()
        held.release()
        assert leases.list_lease() == []


@pytest.mark.parametrize(
    "what", ["grab", pytest.param("wait", marks=pytest.mark.long), "extend", "drop"]
)
def test_whoever_is_killed_at_any_step_leaves_a_lease_that_ends_or_none(
    what: str, url: str, start: Start
) -> None:
    """What is left must be all of a lease or none of it, and end by itself."""
    worker = start("die")
    everything = []
    with open_leases(url) as leases:
        for step in count(1):
            objects = [f"d/{name}{step}/p=1" for name in "tuv"]
            everything += objects
            others = objects[1:2] if what == "wait" else []
            if others:
                leases.grab_lease(map(exclusive, others), SHORT_S)
            is_dead = dies(worker, Death(url, what, step, objects))
            assert each_has_an_end(url, leases)
            assert parts(url, objects) <= {tuple(objects), tuple(others)}
            if not is_dead:
                break
        leases.grab_lease([exclusive(each) for each in everything], LONG_S, WITHIN_S)
    assert step > 3


@pytest.mark.long
def test_whoever_is_killed_while_it_makes_the_tables_hinders_nobody(
    new_url: NewUrl, start: Start
) -> None:
    worker = start("die")
    for step in count(1, STEP):
        url = new_url()
        is_dead = dies(worker, Death(url, "open", step, []))
        with open_leases(url) as leases:
            assert leases.grab_lease(exclusive("d/t"), LONG_S) == 1
        if not is_dead:
            break
    assert step > 3


def parts(url: str, objects: list[str]) -> set[tuple[str, ...]]:
    """Of each lease that has some of the objects those that it has."""
    of_each: dict[int, list[str]] = {}
    for row in rows(url):
        if row.object in objects:
            of_each.setdefault(row.lease_id, []).append(row.object)
    return {tuple(sorted(each)) for each in of_each.values()}


def dies(worker: subprocess.Popen[str], death: Death) -> bool:
    """Whether a process was killed by this, else it came to the end of what it did."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps(death._asdict()) + "\n")
    worker.stdin.flush()
    return bool(json.loads(worker.stdout.readline()))
