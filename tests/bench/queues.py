"""A cluster as queues: clients, region servers, and the steps of both protocols between them.

A request waits for a handler of its server, then for a core, then, where it writes, until the
write-ahead log is synced, which takes as long whatever else is synced, as the log is a pipeline;
its handler waits with it. Clients are in a closed loop; those of one process share one interpreter.
Rows lie on servers evenly and at random, buckets of the transaction table in turn. Locks are kept
as they are in the store, so transactions meet as often as keys and times make them.

What is left out: splits, compactions and caches; helpers, leases and queues for keys in demand (who
waits for a lock asks for it again after a pause). Time is in seconds; with a seed all of it is
repeatable.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, count
from random import Random
from statistics import mean, median
from typing import Literal

Protocol = Literal["six-phase", "fenced"]
Kind = Literal["get", "put", "checked"]

HANDLERS = 30
"""What HBase has by default; each serves one request at a time, its sync included."""
PAUSE_S = 0.005
"""After a conflict: half of it to one and a half of it, times the number of the attempt."""
MOST_PAUSES = 8
MOST_LOOKS = 200


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of a request, and of each row in it."""

    request: float
    row: float

    def of(self, rows: int) -> float:
        return self.request + self.row * rows


@dataclass(frozen=True, slots=True)
class Costs:
    """server, client: processor time of requests. protocol: that of a transaction beside them, by
    its keys. sync: of the log. network: of a request and its reply, waking up included."""

    server: dict[Kind, Price]
    client: dict[Kind, Price]
    protocol: dict[Protocol, Price]
    sync: float
    network: float


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated. reads: transactions read their keys and depend on it. machine: cores that
    all servers and clients share, None: each server has its own, and clients as many as they need.
    commits: how many are counted, after half as many that are not."""

    protocol: Protocol = "fenced"
    servers: int = 1
    cores: int = 16
    handlers: int = HANDLERS
    buckets: int = 1
    keys: int = 2
    rows: int = 1_000_000
    skew: float = 0.0
    reads: bool = False
    clients: int = 16
    processes: int = 1
    machine: int | None = None
    commits: int = 10_000
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Result:
    """per_second: commits. busiest, average: the part of their cores' time that the busiest server
    was at work, and all of them were; held: the same of the busiest server's handlers.
    client_cores: how many cores clients kept busy."""

    per_second: float
    latency_ms: float
    attempts: float
    busiest: float
    average: float
    held: float
    client_cores: float


class Cores:
    """So many processors with one queue; whoever comes first is served first."""

    def __init__(self, number: int) -> None:
        self.free = [0.0] * number
        self.busy = 0.0


def serve(now: float, work: float, *needed: Cores) -> float:
    """Occupy a core of each; return when the work is done."""
    start = max(now, *(cores.free[0] for cores in needed))
    for cores in needed:
        heapq.heapreplace(cores.free, start + work)
        cores.busy += work
    return start + work


@dataclass(slots=True)
class Call:
    """One request: what it does, once it is served, to each of its rows."""

    server: Server
    kind: Kind
    rows: int
    effect: Callable[[], None] | None = None
    waited_for: bool = True


Steps = Generator["list[Call] | float", None, int]
"""What a transaction asks for together, or for how long it pauses; at last its attempts."""


class Server:
    """A region server."""

    def __init__(self, world: World, cores: Cores) -> None:
        self._world, self.cores = world, cores
        self._idle, self._waiting = world.setup.handlers, deque[tuple[Call, Callable[[], None]]]()
        self.held = 0.0

    def take(self, call: Call, reply: Callable[[], None]) -> None:
        """Take a request in."""
        if self._idle:
            self._idle -= 1
            self._begin(call, reply)
        else:
            self._waiting.append((call, reply))

    def _begin(self, call: Call, reply: Callable[[], None]) -> None:
        world = self._world
        began = world.now

        def compute() -> None:
            if call.effect:
                call.effect()
            world.at(world.now + (0 if call.kind == "get" else world.costs.sync), release)

        def release() -> None:
            self.held += world.now - began
            world.at(world.now + world.costs.network / 2, reply)
            if self._waiting:
                self._begin(*self._waiting.popleft())
            else:
                self._idle += 1

        price = world.costs.server[call.kind].of(call.rows)
        world.at(serve(world.now, price, self.cores), compute)


class World:
    """Everything that there is, and the events to come."""

    def __init__(self, setup: Setup, costs: Costs) -> None:
        self.setup, self.costs, self.rng = setup, costs, Random(setup.seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        shared = Cores(setup.machine) if setup.machine else None
        self.servers = [Server(self, shared or Cores(setup.cores)) for _ in range(setup.servers)]
        self.clients = (shared,) if shared else ()
        self.client_s = 0.0
        self.locks: dict[int, tuple[int, object]] = {}
        self.latencies: list[float] = []
        self.attempts = 0

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Let something happen then."""
        heapq.heappush(self._events, (time, next(self._order), event))

    def step(self) -> None:
        """Let the next thing happen."""
        self.now, _, event = heapq.heappop(self._events)
        event()

    def server_of(self, key: int) -> Server:
        """Return where a row is."""
        return self.servers[(key * 2_654_435_761 >> 8) % len(self.servers)]

    def choose_bucket(self) -> Server:
        """Return where a new transaction has its row."""
        return self.servers[self.rng.randrange(self.setup.buckets) % len(self.servers)]

    def choose_keys(self) -> list[int]:
        """Return the keys of a new transaction."""
        setup, chosen = self.setup, dict[int, None]()
        if not setup.skew:
            return self.rng.sample(range(setup.rows), setup.keys)
        weights = zipf_weights(setup.rows, setup.skew)
        while len(chosen) < setup.keys:
            chosen[bisect(weights, self.rng.random() * weights[-1])] = None
        return list(chosen)

    def pause(self, attempt: int) -> float:
        """Return for how long to wait after a conflict."""
        return PAUSE_S * min(attempt, MOST_PAUSES) * (0.5 + self.rng.random())


@cache
def zipf_weights(rows: int, skew: float) -> list[float]:
    """Return the sums of the weights of the first rows."""
    return list(accumulate(place**-skew for place in range(1, rows + 1)))


# ------------------------------------------------------------------------------- transactions


@dataclass(slots=True)
class Attempt:
    """A try at a transaction: what it saw of its keys, and the locks that it has."""

    world: World
    keys: Sequence[int]
    seen: dict[int, tuple[int, object]] = field(default_factory=dict)
    granted: list[int] = field(default_factory=list)
    is_overtaken: bool = False
    bucket: Server = field(init=False)

    def __post_init__(self) -> None:
        self.bucket = self.world.choose_bucket()

    def on_keys(
        self, kind: Kind, effect: Callable[[int], None], keys: Iterable[int] | None = None
    ) -> list[Call]:
        """Return a request for each server that has some of the keys."""
        parts: dict[Server, list[int]] = {}
        for key in self.keys if keys is None else keys:
            parts.setdefault(self.world.server_of(key), []).append(key)

        def to_all(part: list[int]) -> Callable[[], None]:
            return lambda: [effect(key) for key in part] and None

        return [Call(server, kind, len(part), to_all(part)) for server, part in parts.items()]

    def on_row(self, kind: Kind) -> Call:
        """Return a request for the transaction row."""
        return Call(self.bucket, kind, 1)

    def look(self, key: int) -> None:
        self.seen[key] = self.world.locks.get(key, (0, None))

    def lock(self, key: int) -> None:
        counted, holder = self.world.locks.get(key, (0, None))
        is_changed = self.world.setup.reads and counted != self.seen[key][0]
        self.is_overtaken |= is_changed
        if holder is None and not is_changed:
            self.world.locks[key] = counted + 1, self
            self.granted.append(key)

    def free(self, key: int) -> None:
        counted, holder = self.world.locks[key]
        if holder is self:
            self.world.locks[key] = counted + 1, None

    def keep(self, key: int) -> None:
        """Do nothing to what was counted: the value is written."""

    @property
    def is_blocked(self) -> bool:
        return any(holder is not None for _, holder in self.seen.values())

    @property
    def has_all(self) -> bool:
        return len(self.granted) == len(self.keys)


def run_fenced(world: World, keys: Sequence[int]) -> Steps:
    """The steps of docs/protocol.md, "How it commits"."""
    for number in count(1):
        attempt = Attempt(world, keys)
        yield attempt.on_keys("get", attempt.look)
        while attempt.is_blocked:
            yield world.pause(1)
            yield attempt.on_keys("get", attempt.look)
        if len(keys) == 1:  # all of it in one unit
            yield attempt.on_keys("checked", attempt.lock)
            if attempt.has_all:
                attempt.free(keys[0])
                return number
        else:
            yield [attempt.on_row("put")]
            yield from _take_locks(attempt, number)
            if attempt.has_all:
                yield [attempt.on_row("checked")]
                yield attempt.on_keys("put", attempt.free)
                yield [Call(attempt.bucket, "put", 1, waited_for=False)]
                return number
            yield from _abort(attempt)
        yield world.pause(number)
    raise AssertionError


def run_six_phases(world: World, keys: Sequence[int]) -> Steps:
    """The steps of docs/protocol.md, "Committing"."""
    for number in count(1):
        attempt = Attempt(world, keys)
        if world.setup.reads:
            yield attempt.on_keys("get", attempt.look)
        yield [attempt.on_row("put")]
        yield from _take_locks(attempt, number)
        if attempt.has_all:
            yield [attempt.on_row("checked"), *attempt.on_keys("get", attempt.keep)]
            yield [attempt.on_row("checked")]
            for kind in ("put", "put"):  # values with tags, then empty tags
                yield attempt.on_keys(kind, attempt.keep)
                yield [attempt.on_row("checked")]
            yield attempt.on_keys("checked", attempt.free)
            yield [attempt.on_row("checked")]
            return number
        yield from _abort(attempt)
        yield world.pause(number)
    raise AssertionError


def _take_locks(attempt: Attempt, number: int) -> Generator[list[Call] | float, None, None]:
    """Ask for all at once, the first time; then for one after the other, and wait for each."""
    if number == 1:
        yield attempt.on_keys("checked", attempt.lock)
        return
    for place, key in enumerate(sorted(attempt.keys), start=1):
        for _ in range(MOST_LOOKS):
            yield attempt.on_keys("checked", attempt.lock, [key])
            if len(attempt.granted) == place or attempt.is_overtaken:
                break
            yield attempt.world.pause(1)
        if len(attempt.granted) < place:
            return


def _abort(attempt: Attempt) -> Generator[list[Call], None, None]:
    yield [attempt.on_row("checked")]
    if attempt.granted:
        yield attempt.on_keys("checked", attempt.free, attempt.granted)
    yield [attempt.on_row("put")]


RUNS = {"fenced": run_fenced, "six-phase": run_six_phases}
ROUNDS = {"fenced": 6, "six-phase": 10}
"""In so many rounds of calls a transaction spends what the protocol takes of its client."""


class Client:
    """It commits one transaction after the other."""

    def __init__(self, world: World, interpreter: Cores) -> None:
        self._world, self._interpreter = world, interpreter
        self._run = RUNS[world.setup.protocol]
        self._steps: Steps
        self._began = 0.0
        self._left = 0
        whole = world.costs.protocol[world.setup.protocol].of(world.setup.keys)
        self._own_price = whole / ROUNDS[world.setup.protocol]

    def begin(self) -> None:
        """Begin a transaction."""
        world = self._world
        self._began = world.now
        self._steps = self._run(world, world.choose_keys())
        self._go_on()

    def _work(self, price: float, then: Callable[[], None]) -> None:
        world = self._world
        world.client_s += price
        world.at(serve(world.now, price, self._interpreter, *world.clients), then)

    def _go_on(self) -> None:
        world = self._world
        try:
            wanted = next(self._steps)
        except StopIteration as ended:
            world.latencies.append(world.now - self._began)
            world.attempts += ended.value
            self.begin()
            return
        if isinstance(wanted, float):
            world.at(world.now + wanted, self._go_on)
        else:
            price = self._own_price + sum(
                world.costs.client[call.kind].of(call.rows) for call in wanted
            )
            self._work(price, lambda: self._send(wanted))

    def _send(self, calls: Sequence[Call]) -> None:
        world = self._world
        self._left = sum(call.waited_for for call in calls)
        for call in calls:
            reply = self._replied if call.waited_for else _ignore
            arrives = world.now + world.costs.network / 2
            world.at(arrives, lambda call=call, reply=reply: call.server.take(call, reply))
        if not self._left:
            self._go_on()

    def _replied(self) -> None:
        self._left -= 1
        if not self._left:
            self._go_on()


def _ignore() -> None:
    pass


def simulate(setup: Setup, costs: Costs) -> Result:
    """Run it; return what was counted."""
    world = World(setup, costs)
    interpreters = [Cores(1) for _ in range(setup.processes)]
    for number in range(setup.clients):
        client = Client(world, interpreters[number % setup.processes])
        world.at(number % 1000 * 1e-5, client.begin)
    while len(world.latencies) < setup.commits // 2:
        world.step()
    began, skipped = world.now, len(world.latencies)
    attempts, client_s = world.attempts, world.client_s
    busy = [server.cores.busy for server in world.servers]
    held = [server.held for server in world.servers]
    while len(world.latencies) < skipped + setup.commits:
        world.step()
    took, counted = world.now - began, world.latencies[skipped:]
    used = [
        (server.cores.busy - before) / took / len(server.cores.free)
        for server, before in zip(world.servers, busy, strict=True)
    ]
    return Result(
        per_second=len(counted) / took,
        latency_ms=median(counted) * 1000,
        attempts=(world.attempts - attempts) / len(counted),
        busiest=max(used),
        average=mean(used),
        held=max(
            (server.held - before) / took / setup.handlers
            for server, before in zip(world.servers, held, strict=True)
        ),
        client_cores=(world.client_s - client_s) / took,
    )
