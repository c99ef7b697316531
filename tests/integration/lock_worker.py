"""A process that takes locks, for the tests of races: `python -m tests.integration.lock_worker`.

`race URI LOG SEED TURNS` takes random requests in two threads and appends a line to the log when it
has entered, and one when it is about to leave, with what it holds and whether it is sure of that,
by the clock that all processes of a machine share. `pause URI STORE` takes one lock, stops itself,
and once it goes on writes under the lock what a line of its input says.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from tests.integration.workers import Log
from txn import GreaterThan, Key, Mutation, connect
from txn.client.engine import Engine
from txn.clock import SystemClock
from txn.errors import AssertionFailedError, StoreError
from txn.locks import Held, LockLost, LockManager, Waiting, exclusive, open_manager, path, shared

OBJECTS = [f"d/{table}/p={part}" for table in "tu" for part in range(3)] + ["d/t", "d/u"]
THREADS = 2
SESSION_MS = 1_500
OUTAGE_SESSION_MS = 8_000
PATIENT = Waiting(retries=100_000, pause_ms=60, deadline_ms=120_000, unlock_retries=50)
GUARDED = "guarded"


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


def race(manager: LockManager, log: Log, seed: int, turns: int) -> int:
    """Take random requests; return how many were given up because the server was away."""
    rng, clock = Random(seed), SystemClock()
    failed = 0
    for turn in range(turns):
        wanted = rng.sample(OBJECTS, rng.randint(1, 3))
        mode = exclusive if rng.random() < 0.6 else shared
        try:
            held = manager.hold([mode(each) for each in wanted])
        except StoreError:
            failed += 1
            continue
        name = f"{seed}-{turn}"
        modes = {str(request.path): request.mode.value for request in held.requests}
        tokens = {str(at): token for at, token in held.tokens.items()}
        entered_ns = time.monotonic_ns()
        log.add(enter=name, at_ns=entered_ns, modes=modes, tokens=tokens, sure=_is_sure(held))
        clock.sleep_ms(rng.randint(0, 3))
        left_ns = time.monotonic_ns()
        log.add(leave=name, at_ns=left_ns, sure=_is_sure(held))
        try:
            held.release()
        except StoreError:
            failed += 1
    return failed


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


def main() -> None:
    what, uri, *rest = sys.argv[1:]
    if what == "pause":
        return pause(uri, *rest)
    log, seed, turns = Log(Path(rest[0])), int(rest[1]), int(rest[2])
    session_ms = int(rest[3]) if rest[3:] else SESSION_MS
    manager = opened(uri, f"worker {seed}", session_ms)
    with closing(manager), ThreadPoolExecutor(THREADS) as pool:
        seeds = [seed * THREADS + number for number in range(THREADS)]
        failed = list(pool.map(lambda seed: race(manager, log, seed, turns), seeds))
    return print(json.dumps({"failed": sum(failed)}), flush=True)


if __name__ == "__main__":
    main()
