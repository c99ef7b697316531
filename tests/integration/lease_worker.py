"""A process that takes leases, for the tests of races: `python -m tests.integration.lease_worker`.

`race URL LOG SEED HOURS` takes random leases in two threads, until there is a file LOG.over, and
writes to the log when it got each and when it is about to give it back, by the database's clock;
HOURS is how far its own clock is off. `die` reads lines of JSON, each a `Death`, and tells whether
it came to it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path as Folder
from random import Random
from typing import NamedTuple

import time_machine
from sqlalchemy import Engine, event

from tests.history.leases import Stay
from tests.integration.workers import Log, told
from txn.clock import SystemClock
from txn.errors import StoreError
from txn.leases import (
    LeaseAlreadyExistsError,
    LeaseNotFoundError,
    LockRequest,
    exclusive,
    open_leases,
    path,
    shared,
)
from txn.leases.service import LeaseService
from txn.locks.model import Mode

OBJECTS = [f"d/{table}/p={part}" for table in "tu" for part in range(3)] + ["d/t", "d/u"]
THREADS = 2
WAIT_S = 120
SHORT_S, LONG_S = 0.2, 4
PLACE_S = 2
# What happens in the database: each is a moment at which a process can die.
STEPS = ("begin", "before_cursor_execute", "after_cursor_execute", "commit", "rollback")


class LeaseLog(Log):
    """Who held what and when."""

    def entered(self, stay: Stay) -> None:
        claims = {str(each.path): each.mode.value for each in stay.claims}
        times = {"asked": str(stay.asked), "entered": str(stay.entered), "ends": str(stay.left)}
        self.add(lease=stay.lease_id, claims=claims, **times)

    def extended(self, lease_id: int, until: datetime) -> None:
        self.add(extended=lease_id, ends=str(until))

    def left(self, lease_id: int, at: datetime) -> None:
        self.add(left=lease_id, at=str(at))


def history(log: Folder) -> list[Stay]:
    """Return what a log tells. Whoever did not leave had the lease until its end."""
    lines = told(log)
    ends = {line["extended"]: line["ends"] for line in lines if "extended" in line}
    left = {line["left"]: line["at"] for line in lines if "left" in line}
    found = []
    for line in lines:
        if "lease" in line:
            lease_id = line["lease"]
            end = datetime.fromisoformat(ends.get(lease_id, line["ends"]))
            until = min(end, datetime.fromisoformat(left.get(lease_id, str(end))))
            claims = tuple(LockRequest(path(at), Mode(is_)) for at, is_ in line["claims"].items())
            asked, entered = (datetime.fromisoformat(line[name]) for name in ("asked", "entered"))
            found.append(Stay(lease_id, claims, asked, entered, max(entered, until)))
    return found


def over(log: Folder) -> Folder:
    """The file that ends the race."""
    return log.with_suffix(".over")


def until_over(log: Folder) -> Iterator[None]:
    while not over(log).exists():
        yield


def race(leases: LeaseService, log: LeaseLog, seed: int, turns: Iterable[object]) -> None:
    """Take random leases; a database that is away for long costs a turn."""
    rng = Random(seed)
    for _ in turns:
        with suppress(StoreError):
            one_turn(leases, log, rng)


def one_turn(leases: LeaseService, log: LeaseLog, rng: Random) -> None:
    """Take some leases, hold them for a moment, and drop them or let them end by themselves."""
    objects = rng.sample(OBJECTS, rng.randint(1, 3))
    wanted = [exclusive(at) if rng.random() < 0.6 else shared(at) for at in objects]
    is_left_to_end = rng.random() < 0.1
    duration_s, wait_s = SHORT_S if is_left_to_end else LONG_S, rng.choice([0, WAIT_S])
    asked = leases.now()
    try:
        lease_id = leases.grab_lease(wanted, duration_s, wait_s)
    except LeaseAlreadyExistsError:
        return
    entered = leases.now()
    if ends := _ends(leases, lease_id, wanted):
        log.entered(Stay(lease_id, tuple(wanted), asked, entered, ends))
    SystemClock().sleep_ms(rng.randint(0, 3))
    if is_left_to_end:
        return
    try:
        if rng.random() < 0.3:
            log.extended(lease_id, leases.extend_lease(lease_id))
    except LeaseNotFoundError:
        return
    log.left(lease_id, leases.now())
    leases.drop_lease(lease_id)


def _ends(leases: LeaseService, lease_id: int, wanted: Iterable[LockRequest]) -> datetime | None:
    """When a lease ends, None if it has ended."""
    there = leases.list_lease([each.path for each in wanted])
    return min((each.end_utc for each in there if each.lease_id == lease_id), default=None)


class Death(NamedTuple):
    """A process does something in the database, and is killed at a step of it. objects: which."""

    url: str
    what: str
    step: int
    objects: list[str]


def dies(death: Death) -> bool:
    """Do it in a process of its own; return whether it was killed before it was done."""
    process = os.fork()
    if process == 0:
        try:
            _do(death)
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, death
    return os.WIFSIGNALED(status)


def _do(death: Death) -> None:
    if death.what == "open":
        _die_at(death.step)
    wanted = [exclusive(each) for each in death.objects]
    with open_leases(death.url, place_s=PLACE_S) as leases:
        is_there = death.what in {"extend", "drop"}
        lease_id = leases.grab_lease(wanted, SHORT_S) if is_there else 0
        _die_at(death.step)
        match death.what:
            case "grab":
                leases.grab_lease(wanted, SHORT_S)
            case "wait":
                leases.grab_lease(wanted, SHORT_S, WAIT_S)
            case "extend":
                with suppress(LeaseNotFoundError):
                    leases.extend_lease(lease_id, duration_s=2 * SHORT_S)
            case "drop":
                leases.drop_lease(lease_id)


def _die_at(step: int) -> None:
    """Kill this process at a step, of those that are taken from now on."""
    taken = 0

    def take_step(*_: object) -> None:
        nonlocal taken
        taken += 1
        if taken == step:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in STEPS:
        event.listen(Engine, name, take_step)


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "die":
        for line in sys.stdin:
            print(json.dumps(dies(Death(**json.loads(line)))), flush=True)
        return
    url, log, seed, hours = rest[0], Folder(rest[1]), int(rest[2]), float(rest[3])
    with (
        time_machine.travel(timedelta(hours=hours), tick=True),
        open_leases(url, place_s=PLACE_S) as leases,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        print("ready", flush=True)
        seeds = [seed * THREADS + number for number in range(THREADS)]
        list(pool.map(lambda seed: race(leases, LeaseLog(log), seed, until_over(log)), seeds))


if __name__ == "__main__":
    main()
