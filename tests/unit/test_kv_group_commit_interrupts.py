"""A thread that is interrupted at any line of the embedded store's group commit keeps no other
waiting, and no other takes for committed what is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, cast

import pytest

from tests.unit.test_group_commit_interrupts import Interrupt
from txn.errors import MaybeApplied
from txn.tables.kv.group_commit import CommitQueue

pytestmark = pytest.mark.fast

PATIENCE_S = 10
Ending = Literal["well", "undone", "in doubt"]


class Harmless(Exception):
    """What comes before anything is written."""


class Commits:
    """A store of names, whose first commit of several waits for `go`, and then ends in some way."""

    def __init__(self, ending: Ending) -> None:
        self.names: set[bytes] = set()
        self.go = threading.Event()
        self.queue = CommitQueue(self.commit, Harmless)
        self._ending = ending
        self._lock = threading.Lock()

    def commit(self, body: Callable[[Any], Any], is_durable: Callable[[], bool]) -> Any:
        with self._lock:
            assert self.go.wait(PATIENCE_S)
            names: list[bytes] = []
            result = body(names)
            ending = self._ending if len(names) > 1 else "well"
            if ending == "undone":
                raise Harmless
            if ending == "in doubt":
                raise MaybeApplied("lost")
            self.names.update(names)
            is_durable()
            return result

    def write(self, name: bytes) -> bool:
        """Return whether the name was certainly written."""
        try:
            self.queue.write(lambda writer: cast(list[bytes], writer).append(name), True)
        except MaybeApplied:
            return False
        return True

    def await_queue(self, count: int, leader: Future[None]) -> None:
        until = time.monotonic() + PATIENCE_S
        while len(self.queue._queue) < count - leader.done() and time.monotonic() < until:
            time.sleep(0.0005)


def interrupt_leader(ending: Ending, at: int) -> bool:
    """Interrupt who leads two others at a line, and see that these, and later ones, are told the
    truth; return whether it came to that line."""
    commits, interrupt = Commits(ending), Interrupt(at)

    def lead() -> None:
        with interrupt:
            commits.write(b"leader")

    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(lead)
        commits.await_queue(1, leader)
        others = [pool.submit(commits.write, name) for name in (b"one", b"two")]
        commits.await_queue(3, leader)
        commits.go.set()
        written = [other.result(PATIENCE_S) for other in others]
        leader.result(PATIENCE_S)
        for name, is_written in zip((b"one", b"two"), written, strict=True):
            assert name in commits.names or not is_written, interrupt.place
        assert pool.submit(commits.write, b"later").result(PATIENCE_S), interrupt.place
    assert not commits.queue._queue, interrupt.place
    return interrupt.place is not None


@pytest.mark.parametrize("ending", ["well", "undone", "in doubt"])
def test_a_leader_that_is_interrupted_anywhere_misleads_nobody(ending: Ending) -> None:
    """Others waited for ever; or they took a write for committed though its commit had failed."""
    count = 0
    while interrupt_leader(ending, count):
        count += 1
    assert count > 20
