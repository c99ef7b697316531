"""A cluster as queues: clients, region servers, and the steps of both protocols between them.

A request waits for a handler of its server, then for a core, then, if a write in it is not
deferred, until the write-ahead log is synced, which takes as long whatever else is synced, as the
log is a pipeline; its handler waits with it. Clients are in a closed loop; those of one process
share one interpreter, and the requests that complete their transactions. Rows lie on servers evenly
and at random, buckets of the transaction table in turn. Locks are kept as they are in the store, so
transactions meet as often as keys and times make them.

What is left out: splits, compactions and caches; helpers, leases and queues for keys in demand (who
waits for a lock asks for it again after a pause). Time is in seconds; with a seed all of it is
repeatable.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate, count
from random import Random
from statistics import mean, median
from typing import Literal, NamedTuple

from txn.client.finisher import COMPLETE_WITHIN_S, COMPLETED_AT_ONCE

Protocol = Literal["six-phase", "fenced"]
Kind = Literal["get", "put", "checked"]

HANDLERS = 30
"""What HBase has by default; each serves one request at a time, its sync included."""
PAUSE_S = 0.005
"""After a conflict: half of it to one and a half of it, times the number of the attempt."""
MOST_PAUSES = 8
MOST_LOOKS = 200
BUCKETS_TRIED = 16
"""As in `txn.protocol.row.make_row_key`."""


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of a request, and of each row in it."""

    request: float
    row: float

    def of(self, rows: int) -> float:
        return self.request + self.row * rows


def price_request(prices: Mapping[Kind, Price], rows: Mapping[Kind, int]) -> float:
    """Return what a request costs: the dearest of its kinds, and each of its rows."""
    return max(prices[kind].request for kind in rows) + sum(
        prices[kind].row * number for kind, number in rows.items()
    )


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
    """What is simulated. reads: transactions read their keys and depend on it. cores: of each
    server; clients have as many as they need. commits: how many are counted, after half as many
    that are not."""

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
    """One request: its rows, by what it does with them, and what that changes once it is served.
    is_synced: it writes, and waits for the log."""

    server: Server
    rows: Counter[Kind] = field(default_factory=Counter)
    effects: list[Callable[[], None]] = field(default_factory=list)
    is_synced: bool = False


class Part(NamedTuple):
    """What is asked of one row."""

    server: Server
    kind: Kind
    effect: Callable[[], None] | None = None
    is_deferred: bool = False


def join_parts(parts: Iterable[Part]) -> list[Call]:
    """Return one request for each server."""
    calls: dict[Server, Call] = {}
    for server, kind, effect, is_deferred in parts:
        call = calls.setdefault(server, Call(server))
        call.rows[kind] += 1
        call.is_synced |= kind != "get" and not is_deferred
        if effect:
            call.effects.append(effect)
    return list(calls.values())


class Commit(NamedTuple):
    """How many attempts it took, and what completes its row later."""

    attempts: int
    rest: Part | None = None


Steps = Generator["list[Part] | float", None, Commit]
"""What a transaction asks for together, or for how long it pauses."""


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
            for effect in call.effects:
                effect()
            world.at(world.now + (world.costs.sync if call.is_synced else 0), release)

        def release() -> None:
            self.held += world.now - began
            world.at(world.now + world.costs.network / 2, reply)
            if self._waiting:
                self._begin(*self._waiting.popleft())
            else:
                self._idle += 1

        price = price_request(world.costs.server, call.rows)
        world.at(serve(world.now, price, self.cores), compute)


class World:
    """Everything that there is, and the events to come."""

    def __init__(self, setup: Setup, costs: Costs) -> None:
        self.setup, self.costs, self.rng = setup, costs, Random(setup.seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.servers = [Server(self, Cores(setup.cores)) for _ in range(setup.servers)]
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

    def choose_bucket(self, keys: Sequence[int]) -> Server:
        """Return where a new transaction has its row: on the server of most keys, if one of the
        buckets tried is there."""
        [(wanted, _)] = Counter(map(self.server_of, keys)).most_common(1)
        tried = (self.rng.randrange(self.setup.buckets) for _ in range(BUCKETS_TRIED))
        servers = [self.servers[bucket % len(self.servers)] for bucket in tried]
        return wanted if wanted in servers else servers[0]

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
        self.bucket = self.world.choose_bucket(self.keys)

    def on_keys(
        self,
        kind: Kind,
        effect: Callable[[int], None] | None = None,
        keys: Iterable[int] | None = None,
        is_deferred: bool = False,
    ) -> Iterator[Part]:
        """Ask for each of the keys."""
        for key in self.keys if keys is None else keys:
            each = partial(effect, key) if effect else None
            yield Part(self.world.server_of(key), kind, each, is_deferred)

    def on_row(self, kind: Kind, is_deferred: bool = False) -> Part:
        """Ask for the transaction row."""
        return Part(self.bucket, kind, is_deferred=is_deferred)

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

    @property
    def is_blocked(self) -> bool:
        return any(holder is not None for _, holder in self.seen.values())

    @property
    def has_all(self) -> bool:
        return len(self.granted) == len(self.keys)


def run_fenced(world: World, keys: Sequence[int]) -> Steps:
    """The steps of docs/protocol.md, "The fenced protocol"."""
    for number in count(1):
        attempt = Attempt(world, keys)
        yield [*attempt.on_keys("get", attempt.look)]
        while attempt.is_blocked:
            yield world.pause(1)
            yield [*attempt.on_keys("get", attempt.look)]
        if len(keys) == 1:  # all of it in one unit
            yield [*attempt.on_keys("checked", attempt.lock)]
            if attempt.has_all:
                attempt.free(keys[0])
                return Commit(number)
        else:
            yield from _take_locks(attempt, number, attempt.on_row("put", is_deferred=True))
            if attempt.has_all:
                yield [attempt.on_row("checked")]
                yield [*attempt.on_keys("put", attempt.free)]
                return Commit(number, attempt.on_row("put", is_deferred=True))
            yield from _abort(attempt, attempt.on_row("put"), is_deferred=False)
        yield world.pause(number)
    raise AssertionError


def run_six_phases(world: World, keys: Sequence[int]) -> Steps:
    """The steps of docs/protocol.md, "Committing"."""
    for number in count(1):
        attempt = Attempt(world, keys)
        deferred_step = attempt.on_row("checked", is_deferred=True)
        if world.setup.reads:
            yield [*attempt.on_keys("get", attempt.look)]
        yield from _take_locks(attempt, number, deferred_step)
        if attempt.has_all:
            yield [deferred_step, *attempt.on_keys("get")]
            yield [attempt.on_row("checked")]
            yield [*attempt.on_keys("put")]  # values with tags
            yield [attempt.on_row("checked"), *attempt.on_keys("put", is_deferred=True)]  # tags
            yield [deferred_step, *attempt.on_keys("checked", attempt.free, is_deferred=True)]
            return Commit(number, deferred_step)
        yield from _abort(attempt, attempt.on_row("checked"), is_deferred=True)
        yield world.pause(number)
    raise AssertionError


def _take_locks(
    attempt: Attempt, number: int, row: Part
) -> Generator[list[Part] | float, None, None]:
    """Ask for all at once, the first time; then for one after the other, and wait for each. The
    row travels with the first request."""
    if number == 1:
        yield [row, *attempt.on_keys("checked", attempt.lock)]
        return
    rows = [row]
    for place, key in enumerate(sorted(attempt.keys), start=1):
        for _ in range(MOST_LOOKS):
            yield [*rows, *attempt.on_keys("checked", attempt.lock, [key])]
            rows = []
            if len(attempt.granted) == place or attempt.is_overtaken:
                break
            yield attempt.world.pause(1)
        if len(attempt.granted) < place:
            return


def _abort(attempt: Attempt, last: Part, is_deferred: bool) -> Generator[list[Part], None, None]:
    """is_deferred: whether releases are."""
    yield [attempt.on_row("checked")]
    if attempt.granted:
        yield [*attempt.on_keys("checked", attempt.free, attempt.granted, is_deferred)]
    yield [last]


RUNS = {"fenced": run_fenced, "six-phase": run_six_phases}
ROUNDS = {"fenced": 4, "six-phase": 6}
"""In so many rounds of calls a transaction spends what the protocol takes of its client."""


class Process:
    """A client process: its interpreter, and the rows that are to be completed together."""

    def __init__(self, world: World) -> None:
        self._world, self._interpreter = world, Cores(1)
        self._due: list[Part] = []
        self._batch = 0

    def work(self, price: float, then: Callable[[], None]) -> None:
        """Occupy the interpreter."""
        world = self._world
        world.client_s += price
        world.at(serve(world.now, price, self._interpreter), then)

    def send(self, parts: Iterable[Part], own_price: float, reply: Callable[[], None]) -> int:
        """Send requests; return how many replies there will be."""
        world, calls = self._world, join_parts(parts)

        def depart() -> None:
            for call in calls:
                arrives = world.now + world.costs.network / 2
                world.at(arrives, partial(call.server.take, call, reply))

        prices = world.costs.client
        self.work(own_price + sum(price_request(prices, call.rows) for call in calls), depart)
        return len(calls)

    def complete_later(self, part: Part) -> None:
        """Send it soon, with others."""
        self._due.append(part)
        if len(self._due) == 1:
            batch = self._batch
            self._world.at(self._world.now + COMPLETE_WITHIN_S, lambda: self._complete(batch))
        elif len(self._due) == COMPLETED_AT_ONCE:
            self._complete(self._batch)

    def _complete(self, batch: int) -> None:
        if batch == self._batch:
            self._batch += 1
            due, self._due = self._due, []
            self.send(due, 0.0, _ignore)


class Client:
    """It commits one transaction after the other."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process
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

    def _go_on(self) -> None:
        world = self._world
        try:
            wanted = next(self._steps)
        except StopIteration as ended:
            attempts, rest = ended.value
            world.latencies.append(world.now - self._began)
            world.attempts += attempts
            if rest is not None:
                self._process.complete_later(rest)
            self.begin()
            return
        if isinstance(wanted, float):
            world.at(world.now + wanted, self._go_on)
        else:
            self._left = self._process.send(wanted, self._own_price, self._replied)

    def _replied(self) -> None:
        self._left -= 1
        if not self._left:
            self._go_on()


def _ignore() -> None:
    pass


def simulate(setup: Setup, costs: Costs) -> Result:
    """Run it; return what was counted."""
    world = World(setup, costs)
    processes = [Process(world) for _ in range(setup.processes)]
    for number in range(setup.clients):
        client = Client(world, processes[number % setup.processes])
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
