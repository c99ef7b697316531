"""Writers of an embedded store that are killed in pairs: who holds the lock, and one that waits."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import struct
import time
import traceback
from contextlib import closing
from random import Random
from typing import NamedTuple

from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.ordered import Writer

PROCESSES = 4
PATIENCE_S = 30.0  # of which a writer itself waits 10 s; a busy machine needs some
MOST_APART_S = 0.000_1
COUNT = struct.Struct("q")
QUESTION = struct.Struct("hhqqi")


class Killed(NamedTuple):
    """In how many pairs one held the lock; how long the others took at most to go on."""

    owners: int
    longest_s: float


class Crew:
    """The processes, each of which counts its transactions in shared memory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._counts = mmap.mmap(-1, PROCESSES * COUNT.size)
        self.pids = [self._start(place) for place in range(PROCESSES)]

    def _start(self, place: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            store = LmdbStore(self._path, sync=False)
            while True:
                store.write(lambda writer: _count(writer, b"%d" % place))
                COUNT.pack_into(self._counts, place * COUNT.size, self.count(place) + 1)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(1)

    def count(self, place: int) -> int:
        number: int = COUNT.unpack_from(self._counts, place * COUNT.size)[0]
        return number

    def kill(self, places: list[int], apart_s: float) -> None:
        """Kill two, the second so much later, and start others in their places."""
        first, second = (self.pids[place] for place in places)
        os.kill(first, signal.SIGKILL)
        due = time.perf_counter() + apart_s
        while time.perf_counter() < due:
            pass
        os.kill(second, signal.SIGKILL)
        for place in places:
            status = os.waitpid(self.pids[place], 0)[1]
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it ended by itself"
            self.pids[place] = self._start(place)

    def wait(self) -> float:
        """Wait until each has written once more; return how long that took."""
        begun = time.monotonic()
        seen = [self.count(place) for place in range(PROCESSES)]
        for place in range(PROCESSES):
            while self.count(place) == seen[place]:
                waited = time.monotonic() - begun
                assert waited < PATIENCE_S, f"asleep: process={self.pids[place]}"
                time.sleep(0.000_2)
        return time.monotonic() - begun

    def close(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _count(writer: Writer, name: bytes) -> None:
    number = int(writer.get(b"a " + name) or b"0") + 1
    for column in (b"a ", b"b ", b"c "):
        writer.put(column + name, b"%d" % number)


def kill_pairs(path: str, pairs: int, rng: Random) -> Killed:
    """Kill so many pairs of writers, and see to it that the others go on."""
    LmdbStore(path, sync=False).close()
    owners, longest_s = 0, 0.0
    file = os.open(os.path.join(path, "writer.lock"), os.O_RDWR | os.O_CREAT)
    with closing(Crew(path)) as running:
        running.wait()
        for _ in range(pairs):
            time.sleep(rng.uniform(0, 0.001))
            owner = _owner(file)
            places = rng.sample(range(PROCESSES), 2)
            if owner in running.pids:
                owners += 1
                place = running.pids.index(owner)
                other = rng.choice([each for each in range(PROCESSES) if each != place])
                places = rng.sample([place, other], 2)
            running.kill(places, rng.choice([0.0, rng.uniform(0, MOST_APART_S)]))
            longest_s = max(longest_s, running.wait())
    os.close(file)
    store = LmdbStore(path, sync=False)
    for place in range(PROCESSES):
        keys = [column + b"%d" % place for column in (b"a ", b"b ", b"c ")]
        found = store.read(lambda reader: {reader.get(key) for key in keys})  # noqa: B023
        assert len(found) == 1, found
    store.close()
    return Killed(owners, longest_s)


def _owner(file: int) -> int | None:
    """Return the process that holds the writers' lock at this moment."""
    for _ in range(1000):
        question = QUESTION.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, *_, pid = QUESTION.unpack_from(fcntl.fcntl(file, fcntl.F_GETLK, question))
        if kind != fcntl.F_UNLCK:
            return int(pid)
    return None
