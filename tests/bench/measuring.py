"""One case in one round: so many clients, for so long, in processes of their own or in one."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import median
from typing import Any, Literal, NamedTuple
from typing import Protocol as Contract

import psutil

from tests.bench import workloads
from txn import Engine, connect
from txn.request import Ack
from txn.stores import open_store
from txn.stores.gateway import Connection
from txn.stores.hbase.native.connection import RpcConnection

Work = Literal["transfer", "ten cells", "flights"]
Protocol = Literal["six-phase", "fenced"]
Transport = Literal["", "thrift2", "native", "synced", "unsynced"]
"""How an HBase is reached, or whether commits of a local store wait for the disk."""
Way = Literal["processes", "threads", "submit"]
"""How clients are there: in up to four processes, as threads of one engine, or as threads of one
engine that hand in what they want together and then wait for all of it."""
Program = Literal["", "java", "omid", "tephra", "scalardb"]
"""Somebody else's, which is measured beside ours."""

USUAL: Protocol = "six-phase"
THREADS = 4
TRANSPORTS = {
    **{"": "", "thrift2": ", Thrift 2", "native": ", native"},
    **{"synced": "", "unsynced": ", unsynced"},
}
LOCAL: tuple[Transport, ...] = ("synced", "unsynced")
WAYS = {"processes": "", "threads": ", threads", "submit": ""}
PROGRAMS = {"java": "Java", "omid": "Omid", "tephra": "Tephra", "scalardb": "ScalarDB"}
PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Case:
    """work: what is done. batch: how many at once; 0 is the floor, which has no protocol. clients:
    how many at a time."""

    work: Work
    batch: int
    clients: int
    accounts: int = 1000
    ack: Ack = "complete"
    protocol: Protocol = USUAL
    transport: Transport = ""
    way: Way = "processes"
    program: Program = ""

    @property
    def processes(self) -> int:
        """How many its clients are threads of."""
        if self.way != "processes":
            return 1
        return max(1, self.clients // THREADS) if self.clients > 2 else self.clients

    @property
    def done_at_once(self) -> int:
        """How many transactions a call is."""
        return max(self.batch, 1)

    def open(self, uri: str) -> Engine:
        """Connect."""
        return open_engine(uri, self)

    def bind(self, engine: Engine, rng: Random) -> Callable[[], int]:
        """Return what a client repeats."""
        return _call(engine, self, rng)

    @property
    def name(self) -> str:
        if self.program:
            kind = "" if self.batch else ", no transactions"
            return PROGRAMS[self.program] + kind + TRANSPORTS[self.transport]
        where = WAYS[self.way] + TRANSPORTS[self.transport]
        if self.batch == 0:
            return "floor" + where
        decided = ", until decided" if self.ack == "decided" else ""
        protocol = "" if self.protocol == USUAL else f", {self.protocol}"
        return self._call + protocol + where + decided

    @property
    def _call(self) -> str:
        if self.way == "submit":
            return f"submit, {self.batch} at a time"
        return "commit" if self.batch == 1 else f"commit_many of {self.batch}"

    @property
    def subject(self) -> str:
        match self.work:
            case "flights":
                return "flights with their indexes"
            case "ten cells":
                return "10 cells on 10 rows"
            case "transfer":
                return f"transfers, {self.accounts:,} accounts"

    @property
    def floor(self) -> Case:
        """What it is measured beside: nobody's transactions, by the same way to the store."""
        if self.program:
            return replace(self, batch=0) if self.transport in LOCAL else self.java
        way: Way = "processes" if self.way == "processes" or self.clients == 1 else "threads"
        work = (self.work, 0, self.clients, self.accounts)
        return Case(*work, transport=self.transport, way=way)

    @property
    def java(self) -> Case:
        """The same work of a plain Java client."""
        return Case(self.work, 0, self.clients, self.accounts, program="java")

    @property
    def peer(self) -> Case:
        """What another program does of the same: ScalarDB on a local store, else plain Java."""
        if self.transport not in LOCAL:
            return self.java
        work = (self.work, 1, self.clients, self.accounts)
        return Case(*work, transport=self.transport, program="scalardb")

    @property
    def tables(self) -> workloads.Tables:
        """Where it works."""
        return workloads.Tables("bench-floor" if self.batch == 0 else f"bench-{self.protocol}")


def open_engine(uri: str, case: Case, **named: Any) -> Engine:
    """Connect as a case does: with its protocol, where that has to be named."""
    if case.protocol != USUAL:
        named["protocol"] = case.protocol
    return connect(uri, table=case.tables.name, transactions=case.tables.transactions, **named)


@dataclass(frozen=True, slots=True)
class Measured:
    """per_second: of all clients. call_ms: median and 99th percentile.

    For one transaction each: attempts; requests, of those that failed too; client_us and server_us,
    the processor time (microseconds) of all clients, and of all servers: 0 where there is none, or
    none of our own. sum_diff: by how much the sum of all balances is wrong after it.
    """

    per_second: float
    call_ms: float
    slow_ms: float
    attempts: float
    requests: float
    client_us: float
    server_us: float
    sum_diff: int = 0


class Place(NamedTuple):
    """A store that has its accounts, the processes that serve it, other ways to it, and other
    programs that use it."""

    uri: str
    servers: tuple[int, ...] = ()
    others: Mapping[str, str] = {}
    programs: Mapping[str, Callable[[Case, float], Measured]] = {}

    def uri_of(self, case: Case) -> str:
        """Return the store as the case reaches it."""
        return self.others.get(case.transport, self.uri)


def measure(case: Case, place: Place, seconds: float, seed: int) -> Measured:
    """Run one case."""
    if case.program:
        return place.programs[case.program](case, seconds)
    uri = place.uri_of(case)
    before = _total(uri, case)
    measured = measure_task(case, uri, place.servers, seconds, seed)
    return replace(measured, sum_diff=_total(uri, case) - before)


def _total(uri: str, case: Case) -> int:
    """Return the sum of all balances."""
    if case.work != "transfer":
        return 0
    store = open_store(uri)
    try:
        keys = [case.tables.account(number) for number in range(case.accounts)]
        return sum(int(cell.value) for cell in store.read(keys).values() if cell)
    finally:
        store.close()


class Task(Contract):
    """What clients repeat; it is sent to their processes."""

    @property
    def clients(self) -> int:
        """How many there are."""

    @property
    def processes(self) -> int:
        """How many they are threads of."""

    @property
    def done_at_once(self) -> int:
        """How many transactions a call is."""

    def open(self, uri: str) -> Engine:
        """Connect; once a process."""

    def bind(self, engine: Engine, rng: Random) -> Callable[[], int]:
        """Return the call of one client, which returns how many attempts it took."""


def measure_task(
    case: Task, uri: str, servers: Sequence[int], seconds: float, seed: int
) -> Measured:
    """Let clients repeat it for so long."""
    context = multiprocessing.get_context("spawn")
    processes = case.processes
    ready, results = context.Barrier(processes + 1), context.Queue()
    threads = case.clients // processes
    workers = [
        context.Process(
            target=_process,
            args=(uri, case, seconds, (seed + i * 100, threads), (ready, results)),
        )
        for i in range(processes)
    ]
    for worker in workers:
        worker.start()
    try:
        ready.wait(PATIENCE_S)
        before_s = _processor_s(servers)
        found = [results.get(timeout=seconds + PATIENCE_S) for _ in workers]
        spent_s = _processor_s(servers) - before_s
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            worker.kill()
    times = sorted(each for part, _, _ in found for each, _ in part)
    attempts = sum(tries for part, _, _ in found for _, tries in part)
    requests = sum(sent for _, sent, _ in found)
    client_s = sum(spent for _, _, spent in found)
    done = len(times) * case.done_at_once
    return Measured(
        per_second=done * case.clients / sum(times),
        call_ms=median(times) * 1000,
        slow_ms=times[len(times) * 99 // 100] * 1000,
        attempts=attempts / done,
        requests=requests / done,
        client_us=client_s * 1e6 / done,
        server_us=spent_s * 1e6 / done,
    )


def _processor_s(processes: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in processes]
    return float(sum(time.user + time.system for time in times))


def _process(
    uri: str, case: Task, seconds: float, seeds: tuple[int, int], start: tuple[Any, Any]
) -> None:
    """The body of one measuring process; `start` is a barrier, and a queue for what it found."""
    seed, threads = seeds
    ready, results = start
    with case.open(uri) as engine:
        calls = [case.bind(engine, Random(seed + i)) for i in range(threads)]
        for call in calls:
            call()
        sent = counted_requests()
        ready.wait()
        began_s = time.process_time()
        found: list[tuple[float, int]] = []
        clients = [threading.Thread(target=_repeat, args=(c, seconds, found)) for c in calls]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        spent_s = time.process_time() - began_s
    results.put((found, sent(), spent_s))


def counted_requests() -> Callable[[], int]:
    """Count what this process sends to gateways and servers from here on."""
    counts: dict[int, int] = {}  # by thread: a lock would be one more to wait for

    def count(send: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            thread = threading.get_ident()
            counts[thread] = counts.get(thread, 0) + 1
            return send(*given, **named)

        return counted

    for connection in (Connection, RpcConnection):
        connection.send = count(connection.send)  # type: ignore[method-assign]
    return lambda: sum(counts.values())


def _call(engine: Engine, case: Case, rng: Random) -> Callable[[], int]:
    store, tables = engine.context.store, case.tables
    match case.work, case.batch:
        case "transfer", 0:
            return partial(workloads.plain_transfer, store, rng, case.accounts, tables)
        case "transfer", batch:
            of = (case.accounts, batch, case.ack)
            gathered = case.way == "submit"
            return partial(workloads.transfers, engine, rng, *of, tables=tables, gathered=gathered)
        case "ten cells", 0:
            return partial(workloads.ten_plain_cells, store, tables, rng)
        case "ten cells", _:
            return partial(workloads.ten_cells, engine, tables, rng, case.ack)
        case _, 0:
            return partial(workloads.plain_flight, store, tables, rng)
        case _, batch:
            return partial(workloads.flights, engine, tables, rng, batch, case.ack)


def _repeat(call: Callable[[], int], seconds: float, found: list[tuple[float, int]]) -> None:
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        attempts = call()
        found.append((time.perf_counter() - began, attempts))
