"""Who is hurt, how, and for how long; and doing it to the servers, one fault after the other.

The first faults are one of each kind that a run must have: a gateway and a region server are
killed, and regions are split and moved. The rest is chance. A paused region server loses its
regions while it does not know, which is worse than dying: it may answer as before once it goes on.
The master is spared: where it dies while regions open, HBase itself stands still for minutes
(docs/hbase.md), from which nobody learns anything.
"""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from tests.chaos.bank import ACCOUNTS, BUCKETS, POLICY, TABLE
from tests.chaos.crew import Crew
from tests.chaos.history import Log, now_ns
from tests.integration.shuffling import Shuffler
from txn.clock import Clock, SystemClock
from txn.cluster.cluster import Cluster
from txn.cluster.configuration import SESSION_MS
from txn.errors import StoreError
from txn.request import TRANSACTIONS
from txn.stores import open_store
from txn.stores.hbase.native.store import NativeStore

GATEWAYS = ("thrift1", "thrift2")
REGIONS = ("region1", "region2")
MOVED = "regions"
TRANSACTION = b"%02d.transaction.%013d"  # where rows of a bucket begin from a time on
FAILOVER_S = 25.0
ENDS_WITHIN_S = 20
LOOK_EACH_S = 0.2
PAUSED = 0.25


@dataclass(frozen=True, slots=True)
class Fault:
    """Kill or pause servers; after `down_s` they are started again, or go on. Or move, or split,
    regions."""

    kind: str
    victims: tuple[str, ...]
    down_s: float

    def __str__(self) -> str:
        return f"{self.kind} {' and '.join(self.victims)}"


@dataclass(frozen=True, slots=True)
class Inflicted:
    """A fault that has happened, from the moment of the first blow until all were up again."""

    fault: Fault
    at_ns: int
    until_ns: int


def planned(rng: Random) -> Iterator[tuple[float, Fault]]:
    """Yield faults for ever, each with the seconds to wait before it."""
    yield 2, Fault("kill", (rng.choice(GATEWAYS),), 1)
    yield 1, Fault("split", (MOVED,), 0)
    yield 1, Fault("move", (MOVED,), 0)  # both servers are there, so it has somewhere to go
    yield 1, Fault("kill", (rng.choice(REGIONS),), 2)
    while True:
        yield rng.uniform(2, 15), _any_fault(rng)


def _any_fault(rng: Random) -> Fault:
    gateway, region = rng.choice(GATEWAYS), rng.choice(REGIONS)
    beyond_session_s = SESSION_MS / 1000 + rng.uniform(2, 8)
    faults = {
        Fault("kill", (gateway,), rng.uniform(0, 6)): 4,
        Fault("kill", (region,), rng.uniform(0, FAILOVER_S)): 4,
        Fault("kill", (gateway, region), rng.uniform(0, FAILOVER_S)): 1,
        Fault("kill", GATEWAYS, rng.uniform(0, 6)): 1,
        Fault("pause", (gateway,), rng.uniform(1, 8)): 1,
        Fault("pause", (region,), beyond_session_s): 2,
        Fault("move", (MOVED,), rng.uniform(0, 2)): 3,
        Fault("split", (MOVED,), rng.uniform(0, 2)): 2,
    }
    return rng.choices(list(faults), list(faults.values()))[0]


class ClientFaults:
    """Kills clients, whose places are taken at once, and pauses some for longer than their lease:
    what they go on with has been aborted or finished by others."""

    def __init__(self, crew: Crew, rng: Random, each_s: float) -> None:
        self.hurt: Counter[str] = Counter()
        self._crew = crew
        self._rng = rng
        self._each_s = each_s
        self._next_s = 0.0
        self._paused: dict[str, float] = {}

    def step(self, now_s: float) -> None:
        """Do what is due at this time."""
        for place in [place for place, until_s in self._paused.items() if now_s > until_s]:
            self._crew.resume(place)
            del self._paused[place]
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._rng.expovariate(1 / self._each_s)
        place = self._rng.choice(list(self._crew.places))
        kind = "pause" if self._rng.random() < PAUSED else "kill"
        self.hurt[f"{kind} client ({self._crew.places[place][0]})"] += 1
        if kind == "pause":
            self._crew.pause(place)
            self._paused[place] = now_s + POLICY.lock_ttl_ms / 1000 * self._rng.uniform(1, 2)
        else:
            self._paused.pop(place, None)
            self._crew.kill(place)
            self._crew.start(place)

    def stop(self) -> None:
        """Let those that are paused go on."""
        for place in self._paused:
            self._crew.resume(place)


class ServerFaults:
    """A thread that hurts a cluster until it is told to stop, and then leaves it whole."""

    def __init__(self, cluster: Cluster, rng: Random, log: Log, clock: Clock | None = None) -> None:
        self.inflicted: list[Inflicted] = []
        self.fallen: list[str] = []
        self.failure: Exception | None = None
        self.now = ""
        self._cluster = cluster
        self._rng = rng
        self._log = log
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-faults")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the fault that is under way end, with its victims up again; then end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            for wait_s, fault in planned(self._rng):
                if self._stop.wait(wait_s):
                    break
                self._inflict(fault)
            self._raise_fallen()
        except Exception as error:  # noqa: BLE001 - it is told in the thread that waits for it
            self.failure = error

    def _inflict(self, fault: Fault) -> None:
        at_ns, self.now = now_ns(), str(fault)
        happened = self._begin(fault)
        self._stop.wait(fault.down_s)
        down_s = (now_ns() - at_ns) / 1e9
        self.now = f"{fault}: coming back"
        if fault.kind == "kill":
            self._each(fault, self._cluster.restart)
        elif fault.kind == "pause":
            self._each(fault, lambda name: self._signal(name, signal.SIGCONT))
            self._each(fault, self._await_suicide)
        self.now = ""
        if happened:
            self.inflicted.append(Inflicted(fault, at_ns, now_ns()))
        told = str(fault) if happened else f"the master would not {fault}"
        self._log.did(told, "fault", at_ns, down_s=down_s)
        self._raise_fallen()

    def _begin(self, fault: Fault) -> bool:
        """Strike; return whether it did anything, as the master may be unwilling."""
        if fault.victims == (MOVED,):
            return self._change_regions(fault.kind)
        if fault.kind == "kill":
            self._each(fault, self._cluster.kill)
        else:
            self._each(fault, lambda name: self._signal(name, signal.SIGSTOP))
        return True

    def _change_regions(self, kind: str) -> bool:
        """Move or split a region of the accounts and one of the transactions; return whether the
        master was willing, for one of them at least."""
        store = open_store(self._cluster.uris["native"])
        assert isinstance(store, NativeStore)
        rows = {
            TABLE: self._rng.choice(ACCOUNTS).encode(),
            TRANSACTIONS: TRANSACTION % (self._rng.randrange(BUCKETS), self._clock.wall_ms()),
        }
        try:
            done = []
            for table, row in rows.items():
                regions = Shuffler(store, table.encode(), self._rng)
                done.append(regions.move() if kind == "move" else regions.split(row))
            return any(done)
        except StoreError:
            return False
        finally:
            store.close()

    def _each(self, fault: Fault, work: Callable[[str], None]) -> None:
        for name in fault.victims:
            work(name)

    def _signal(self, name: str, number: int) -> None:
        self._cluster.processes[name].signal(number)

    def _await_suicide(self, name: str) -> None:
        """A region server that learns that it was given up ends itself; start it again."""
        if name not in REGIONS:
            return
        for _ in range(int(ENDS_WITHIN_S / LOOK_EACH_S)):
            if not self._cluster.processes[name].is_alive:
                self._cluster.restart(name)
                return
            self._clock.sleep_ms(int(LOOK_EACH_S * 1000))

    def _raise_fallen(self) -> None:
        """Start again what ended without our doing, which HBase's servers do when in doubt."""
        for name, process in self._cluster.processes.items():
            if not process.is_alive:
                self.fallen.append(name)
                self._cluster.restart(name)
