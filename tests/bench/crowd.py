"""`python -m tests.bench.crowd`: many clients at one key, and how long each of them waits.

`hot`: clients count the same key up with `engine.run`, so many times each; told is how long one
count took, from its call to its commit, over all and for the client that fared worst.
`batches`: clients each commit a hundred transfers between 1,000 accounts together, until all of
them have; a second counts these calls. With `--clients 1` it is what one does that meets nobody.
Clients are threads in so many processes (one: an engine they share).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench import workloads
from tests.bench.emulator import TWO, client
from tests.integration import shuffling
from txn import Engine, Key, Mutation, Policy, TxnError, connect
from txn.stores import open_store
from txn.stores.hbase.native.store import NativeStore

ACCOUNTS = 1_000
BATCH = 100
PATIENCE_S = 300
SHARES = (50, 90, 99, 100)


@dataclass(frozen=True, slots=True)
class Crowd:
    """What a crowd does: clients in processes, so many times each, within a deadline each time.

    table: where. work: `hot` or `batches`.
    """

    uri: str
    table: str
    work: str
    clients: int
    processes: int
    times: int
    deadline_ms: int

    def key(self, row: str) -> Key:
        return Key(row, "d", "x", self.table)


@dataclass(frozen=True, slots=True)
class Waited:
    """waits: of each client, how long each time took (ms). attempts: of each time. failed: what
    did not commit, by the error's text. elapsed_s: from the first call to the last commit."""

    waits: list[list[float]]
    attempts: list[int]
    failed: list[str]
    elapsed_s: float


def gather(crowd: Crowd) -> Waited:
    """Let the crowd do its work; the table is there and empty."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(crowd.processes), context.Queue()
    workers = [
        context.Process(target=_process, args=(crowd, number, ready, results))
        for number in range(crowd.processes)
    ]
    for worker in workers:
        worker.start()
    try:
        found = [results.get(timeout=PATIENCE_S) for _ in workers]
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            worker.kill()
    return Waited(
        [each for part in found for each in part[0]],
        [each for part in found for each in part[1]],
        [each for part in found for each in part[2]],
        max(part[3] for part in found),
    )


def _process(crowd: Crowd, number: int, ready: Any, results: Any) -> None:
    policy = Policy(deadline_ms=crowd.deadline_ms, attempts=1_000)
    with connect(crowd.uri, table=crowd.table, policy=policy) as engine:
        engine.read([crowd.key("warm")])
        results.put(work(engine, crowd, number, ready.wait))


def work(
    engine: Engine, crowd: Crowd, process: int, ready: Callable[[], object]
) -> tuple[list[list[float]], list[int], list[str], float]:
    """Do one process's share in threads."""
    threads = crowd.clients // crowd.processes
    waits: list[list[float]] = [[] for _ in range(threads)]
    attempts: list[int] = []
    failed: list[str] = []

    def one_client(place: int) -> None:
        once = WORKS[crowd.work](engine, crowd, f"{process:03}-{place:03}")
        for _ in range(crowd.times):
            began = time.perf_counter()
            try:
                attempts.append(once())
            except TxnError as error:
                failed.append(repr(error))
            waits[place].append((time.perf_counter() - began) * 1000)

    running = [threading.Thread(target=one_client, args=(place,)) for place in range(threads)]
    ready()
    began = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return waits, attempts, failed, time.perf_counter() - began


def _hot(engine: Engine, crowd: Crowd, name: str) -> Callable[[], int]:
    key = crowd.key("hot")

    def once() -> int:
        tries = 0

        def count(t: Any) -> None:
            nonlocal tries
            tries += 1
            t.increment(key)

        engine.run(count, attempts=100_000, deadline_ms=crowd.deadline_ms)
        return tries

    return once


def _batches(engine: Engine, crowd: Crowd, name: str) -> Callable[[], int]:
    rng, tables = Random(name), workloads.Tables(crowd.table)

    def once() -> int:
        return workloads.transfers(engine, rng, ACCOUNTS, BATCH, tables=tables) // BATCH

    return once


WORKS = {"hot": _hot, "batches": _batches}


@contextmanager
def tables(uri: str) -> Iterator[Callable[[], str]]:
    """Give new tables of the store; those of HBase are dropped at the end."""
    made: list[str] = []
    with connect(uri) as engine:

        def table() -> str:
            made.append(f"crowd_{uuid.uuid4().hex[:12]}")
            engine.ensure_table(made[-1], ["d"])
            account = workloads.Tables(made[-1]).account
            engine.commit_many([([Mutation(account(i), b"1000")], []) for i in range(ACCOUNTS)])
            return made[-1]

        try:
            yield table
        finally:
            if drop := next((each for kind, each in DROPS.items() if uri.startswith(kind)), None):
                for name in made:
                    drop(uri, name)


def _drop_natively(uri: str, name: str) -> None:
    store = open_store(uri)
    assert isinstance(store, NativeStore)
    shuffling.drop(store, name.encode())
    store.close()


def _drop_by_gateway(uri: str, name: str) -> None:
    with client(uri) as gateway:
        table = TWO.TTableName(qualifier=name.encode())
        gateway.disableTable(table)
        gateway.deleteTable(table)


DROPS = {"hbase://": _drop_natively, "hbase+thrift2://": _drop_by_gateway}


def counted(uri: str, table: str) -> int:
    """What the hot key counts."""
    key = Key("hot", "d", "x", table)
    with connect(uri) as engine:
        cell = engine.read([key])[key]
        return int.from_bytes(cell.value) if cell else 0


def row(crowd: Crowd, found: Waited) -> list[str]:
    every = sorted(wait for client in found.waits for wait in client)
    shares = [every[min(len(every) - 1, len(every) * share // 100)] for share in SHARES]
    means = sorted(sum(client) / len(client) for client in found.waits)
    return [
        crowd.work,
        f"{crowd.clients} in {crowd.processes}",
        f"{len(every) / found.elapsed_s:,.0f}",
        *(f"{share:,.0f}" for share in shares),
        f"{means[0]:,.0f} {median(means):,.0f} {means[-1]:,.0f}",
        f"{sum(found.attempts) / max(1, len(found.attempts)):.1f}",
        str(len(found.failed)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.crowd", description=__doc__)
    parser.add_argument("works", nargs="*", default=["hot"])
    parser.add_argument("--store", default="embedded", help="embedded, or a URI")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--times", type=int, default=20, help="how often each client commits")
    parser.add_argument("--deadline-ms", type=int, default=30_000)
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    options = parser.parse_args()
    head = ("work", "clients", "a second", *(f"{share} %, ms" for share in SHARES))
    shown = Table(*head, "means of clients, ms", "tries", "failed", title="waiting")
    with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder:
        uri = f"embedded://{folder}/store" if options.store == "embedded" else options.store
        with tables(uri) as table:
            for name in options.works:
                for processes in options.processes:
                    crowd = Crowd(
                        *(uri, table(), name, options.clients, processes),
                        *(options.times, options.deadline_ms),
                    )
                    found = gather(crowd)
                    shown.add_row(*row(crowd, found))
                    if options.json:
                        total = counted(uri, crowd.table)
                        print(json.dumps({**asdict(crowd), **asdict(found), "counted": total}))
    if not options.json:
        Console(width=130).print(shown)


if __name__ == "__main__":
    main()
