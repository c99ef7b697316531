"""A process that takes locks or leases, to race: `python -m tests.integration.lock_worker`.

`race URI FOLDER SEED [HOURS [SESSION_MS]]` takes random requests in two threads until there is a
file FOLDER/over; HOURS is how far its own clock is off. `pause URI STORE` takes one lock, stops
itself, and once it goes on writes under the lock what a line of its input says. `die` reads lines
of JSON, each a `Death`, and tells whether it came to it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

import time_machine
from sqlalchemy import Engine as SQLEngine
from sqlalchemy import event

from txn import GreaterThan, Key, Mutation, connect
from txn.client.engine import Engine
from txn.clock import SystemClock
from txn.errors import AssertionFailedError, StoreError
from txn.leases import LeaseNotFoundError, open_leases
from txn.locks import (
    Held,
    LockLost,
    LockManager,
    LockRequest,
    Mode,
    Waiting,
    exclusive,
    open_manager,
    path,
    shared,
)

OBJECTS = [f"d/{table}/p={part}" for table in "tu" for part in range(3)] + ["d/t", "d/u"]
THREADS = 2
SESSION_MS = 1_500
OUTAGE_SESSION_MS = 8_000
PATIENT = Waiting(retries=100_000, pause_ms=60, deadline_ms=120_000, unlock_retries=50)
GUARDED = "guarded"
WAIT_S = 120
SHORT_S, LONG_S = 0.2, 4
PLACE_S = 2
# What happens in the database of leases: each is a moment at which a process can die.
STEPS = ("begin", "before_cursor_execute", "after_cursor_execute", "commit", "rollback")


class StoppingClock(SystemClock):
    """Stops the process between two beats of its session. One that is stopped while it writes to
    the embedded store keeps that from everybody: it is alive."""

    def __init__(self) -> None:
        self.is_armed = False

    def monotonic_ms(self) -> int:
        is_beating = threading.current_thread() is not threading.main_thread()
        if self.is_armed and is_beating and not is_writing(sys._getframe()):
            self.stop()
        return super().monotonic_ms()

    def stop(self) -> None:
        self.is_armed = False
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5)  # another thread may get the signal, and be slow: begin no write meanwhile


def is_writing(frame: FrameType | None) -> bool:
    """Whether this is asked for within a local transaction of the store."""
    while frame is not None and frame.f_code.co_name != "atomically":
        frame = frame.f_back
    return frame is not None


def opened(uri: str, name: str, session_ms: int = SESSION_MS, **details: Any) -> LockManager:
    """A manager whose locks end soon after its process."""
    session = "session_ms" if uri.startswith("zookeeper") else "lease_ms"
    return open_manager(uri, name=name, waiting=PATIENT, **{session: session_ms}, **details)


@contextmanager
def guarded(folder: Path, held: Held) -> Iterator[None]:
    """Take the kernel's lock of a file for each object. Whoever denies us must have left before we
    entered, unless it was not sure of its own any more; each writes into the file when it left."""
    held.check()
    entered_ns = time.monotonic_ns()
    files = {}
    try:
        for request in held.requests:
            name = folder / str(request.path).replace("/", "+")
            file = files[request] = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            is_alone = request.mode is Mode.EXCLUSIVE
            fcntl.flock(file, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
            stays = [line.split() for line in os.pread(file, 10**6, 0).splitlines()]
            left = [int(ns) for mode, ns in stays if is_alone or mode == b"X"]
            assert max(left, default=0) <= entered_ns, f"two were in {request}"
        with (folder / "entered").open("ab") as entered:
            entered.write(b"!")
        yield
        left_ns = time.monotonic_ns()
        held.check()
        for request, file in files.items():
            os.write(file, f"{request.mode.value} {left_ns}\n".encode())
    finally:
        for file in files.values():
            os.close(file)


def race(hold: Callable[[list[LockRequest]], Held], folder: Path, seed: int) -> int:
    """Take random requests; return how many were given up because the server was away."""
    rng, failed = Random(seed), 0
    while not (folder / "over").exists():
        objects = rng.sample(OBJECTS, rng.randint(1, 3))
        wanted = [exclusive(at) if rng.random() < 0.6 else shared(at) for at in objects]
        try:
            with hold(wanted) as held, suppress(LockLost), guarded(folder, held):
                SystemClock().sleep_ms(rng.randint(0, 3))
        except StoreError:
            failed += 1
    return failed


def race_in_threads(
    uri: str, folder: str, seed: int, hours: float = 0, session_ms: int = SESSION_MS
) -> None:
    is_of_leases = uri.startswith(("sqlite", "postgresql"))
    with time_machine.travel(timedelta(hours=hours), tick=True):
        owner: Any
        if is_of_leases:
            owner, how = open_leases(uri, place_s=PLACE_S), {"duration_s": LONG_S, "wait_s": WAIT_S}
        else:
            owner, how = opened(uri, f"worker {seed}", session_ms), {}
        with owner, ThreadPoolExecutor(THREADS) as pool:
            hold = partial(owner.hold, **how)
            seeds = [seed * THREADS + number for number in range(THREADS)]
            print("ready", flush=True)
            failed = sum(pool.map(lambda seed: race(hold, Path(folder), seed), seeds))
    print(json.dumps({"failed": failed}), flush=True)


def _is_sure(held: Held) -> bool:
    try:
        held.check()
    except LockLost:
        return False
    return True


def write_guarded(engine: Engine, value: str, token: int) -> bool:
    """Write beside the token of the lock, unless a greater one has been here."""
    guard = Key("object", "d", "token", GUARDED)
    written = b"%020d" % token
    mutations = [Mutation(guard, written), Mutation(Key("object", "d", "v", GUARDED), value)]
    try:
        engine.commit(mutations, [~GreaterThan(guard, written)])
    except AssertionFailedError:
        return False
    return True


def pause(uri: str, store: str) -> None:
    """Hold a lock, tell its token and stop; for each line of input write it, and tell what came of
    it."""
    clock = StoppingClock()
    with closing(opened(uri, "paused", clock=clock)) as manager, connect(store) as engine:
        held = manager.hold([exclusive("d/t")])
        token = held.tokens[path("d/t")]
        print(token, flush=True)
        if uri.startswith("zookeeper"):
            clock.stop()
        else:
            clock.is_armed = True
        for line in sys.stdin:
            is_written = write_guarded(engine, line.strip(), token)
            print(json.dumps({"written": is_written, "sure": _is_sure(held)}), flush=True)


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
        event.listen(SQLEngine, name, take_step)


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "pause":
        pause(*rest)
    elif what == "race":
        uri, folder, seed, *numbers = rest
        race_in_threads(uri, folder, int(seed), *map(int, numbers))
    else:
        for line in sys.stdin:
            print(json.dumps(dies(Death(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
