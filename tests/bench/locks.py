"""`python -m tests.bench.locks`: both lock managers beside kazoo's own read and write locks.

Acquire and release, of one object and of 100 partitions with their two parents, from 1 client and
from 8 (threads in 4 processes), each client with objects of its own, so that nobody waits. What is
told is how many a second all clients do together. One ZooKeeper serves all subjects of a run, with
its log on disk as by default; the embedded store is measured with and without waiting for the disk.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path as Folder
from threading import Thread
from typing import Any

from kazoo.client import KazooClient
from rich.console import Console
from rich.table import Table

from tests.integration.zookeeper import ZooKeeper
from txn.locks import LockRequest, Path, exclusive, open_manager
from txn.locks.requests import Mode, in_order

CLIENTS = (1, 8)
PROCESSES = 4
PARTITIONS = 100
WARM_UP_S = 0.5
PATIENCE_S = 60
SUBJECTS = ("zookeeper", "kazoo's own", "embedded", "embedded, sync=off")
WORKS = ("one object", f"{PARTITIONS} partitions")

Cycle = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked of whom, by how many."""

    subject: str
    work: str
    clients: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Pairs of acquire and release a second, of all clients."""

    case: Case
    per_second: float


def wanted(work: str, client: int) -> tuple[LockRequest, ...]:
    """The objects of one client."""
    if work == WORKS[0]:
        return in_order([exclusive(f"t{client}")])
    return in_order(exclusive(f"d/t{client}/p={number}") for number in range(PARTITIONS))


def cycle(uri: str, work: str, client: int, stack: ExitStack) -> Cycle:
    """Acquire and release with a manager of ours."""
    manager = open_manager(uri)
    stack.callback(manager.close)
    requests = wanted(work, client)

    def run() -> None:
        manager.hold(requests).release()

    return run


def kazoo_cycle(hosts: str, base: str, work: str, client: int, stack: ExitStack) -> Cycle:
    """Acquire and release with kazoo's locks: one for each object, in the same order."""
    zookeeper = KazooClient(hosts)
    zookeeper.start()
    stack.callback(zookeeper.close)
    stack.callback(zookeeper.stop)

    def place(at: Path) -> str:
        return f"{base}/{'/'.join(at.parts)}/locks"

    def run() -> None:
        taken = []
        for request in wanted(work, client):
            kind = zookeeper.ReadLock if request.mode is Mode.SHARED else zookeeper.WriteLock
            taken.append(kind(place(request.path)))
            taken[-1].acquire()
        for lock in reversed(taken):
            lock.release()

    return run


def opened(case: Case, uris: dict[str, str], client: int, stack: ExitStack) -> Cycle:
    """What a client does again and again."""
    uri = uris[case.subject]
    if case.subject == "kazoo's own":
        hosts, _, base = uri.removeprefix("zookeeper://").partition("/")
        return kazoo_cycle(hosts, f"/{base}", case.work, client, stack)
    return cycle(uri, case.work, client, stack)


def clients(
    case: Case, uris: dict[str, str], numbers: list[int], *, seconds: float, ready: Any, out: Any
) -> None:
    """The clients of one process: tell for each how many a second it did."""
    with ExitStack() as stack:
        cycles = [opened(case, uris, number, stack) for number in numbers]
        found: list[float] = []
        for run in cycles:
            run()
        ready.wait(PATIENCE_S)
        threads = [Thread(target=repeat, args=(run, seconds, found)) for run in cycles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        out.put(found)


def repeat(run: Cycle, seconds: float, found: list[float]) -> None:
    """Run for a while; the first moments do not count."""
    until = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < until:
        run()
    count, began = 0, time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        run()
        count += 1
    found.append(count / (now - began))


def measure(case: Case, uris: dict[str, str], seconds: float) -> Measured:
    """Measure one case in processes of its own."""
    context = multiprocessing.get_context("spawn")
    processes = min(PROCESSES, case.clients)
    ready, out = context.Barrier(processes), context.Queue()
    shares = [list(range(first, case.clients, processes)) for first in range(processes)]
    workers = [
        context.Process(
            target=clients,
            args=(case, uris, share),
            kwargs={"seconds": seconds, "ready": ready, "out": out},
        )
        for share in shares
    ]
    for worker in workers:
        worker.start()
    rates = [rate for _ in workers for rate in out.get(timeout=PATIENCE_S)]
    for worker in workers:
        worker.join()
    return Measured(case, sum(rates))


def show(found: list[Measured]) -> None:
    """Print a table: one line for a subject."""
    console = Console()
    rates = {each.case: each.per_second for each in found}
    table = Table("acquire and release a second")
    columns = [(work, count) for work in WORKS for count in CLIENTS]
    for work, count in columns:
        table.add_column(f"{work}, {count} client{'s' * (count > 1)}", justify="right")
    for subject in SUBJECTS:
        cells = [rates.get(Case(subject, work, count)) for work, count in columns]
        table.add_row(subject, *("-" if rate is None else f"{rate:,.1f}" for rate in cells))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="for each case")
    parser.add_argument("--json", type=Folder, help="write what was measured there as well")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(place)
        server = ZooKeeper(folder / "zookeeper")
        server.start()
        base = f"zookeeper://{server.hosts}/bench/{uuid.uuid4().hex}"
        uris = {
            "zookeeper": base,
            "kazoo's own": f"{base}-kazoo",
            "embedded": f"embedded://{folder}/durable",
            "embedded, sync=off": f"embedded://{folder}/quick?sync=off",
        }
        try:
            found = [
                measure(Case(subject, work, count), uris, given.seconds)
                for work in WORKS
                for count in CLIENTS
                for subject in SUBJECTS
            ]
        finally:
            server.kill()
    show(found)
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
