"""`python -m tests.bench.leases`: grabbing and dropping leases beside a bare insert and delete.

Each client grabs a table of its own for a minute and drops it, so that nobody waits; or all of them
grab one table as shared, where their turns come one after the other. Beside it the floor: a row is
inserted and deleted in the same database, by its driver alone, each in a transaction of its own.
16 clients are 4 threads in each of 4 processes. PostgreSQL runs on this machine, on a Unix socket;
both databases wait for the disk at each commit.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path as Folder
from threading import Thread
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from tests.integration.postgresql import PostgreSQL
from txn.leases import exclusive, open_leases, shared
from txn.leases.service import LeaseService

CLIENTS = (1, 16)
PROCESSES = 4
LEASE_S = 60
WARM_UP_S = 0.5
PATIENCE_S = 60
DATABASES = ("SQLite", "PostgreSQL")
OWN, SAME, FLOOR = WORKS = ("a table of its own", "one table, shared", "insert and delete")

Cycle = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked of which database, by how many."""

    database: str
    work: str
    clients: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Pairs of grab and drop, or of insert and delete, a second, of all clients."""

    case: Case
    per_second: float


def grab_and_drop(leases: LeaseService, work: str, client: int) -> Cycle:
    """What a client of the leases does; those of a process share a service."""
    wanted = [exclusive(f"d/t{client}") if work == OWN else shared("d/t")]

    def run() -> None:
        leases.drop_lease(leases.grab_lease(wanted, LEASE_S))

    return run


def insert_and_delete(url: str, client: int, stack: ExitStack) -> Cycle:
    """The same without leases; each client has a connection of its own."""
    connection = stack.enter_context(closing(bare(url)))

    def run() -> None:
        connection.execute(f"INSERT INTO bare VALUES ({client})")
        connection.execute(f"DELETE FROM bare WHERE client = {client}")

    return run


def bare(url: str) -> Any:
    """A connection without SQLAlchemy, on which each statement is a transaction."""
    if url.startswith("postgresql"):
        return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
    connection = sqlite3.connect(
        url.removeprefix("sqlite:///"), PATIENCE_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def clients(
    case: Case, url: str, numbers: list[int], *, seconds: float, ready: Any, out: Any
) -> None:
    """The clients of one process: tell how much they did in those seconds."""
    with ExitStack() as stack:
        if case.work == FLOOR:
            cycles = [insert_and_delete(url, number, stack) for number in numbers]
        else:
            leases = stack.enter_context(open_leases(url))
            cycles = [grab_and_drop(leases, case.work, number) for number in numbers]
        done: list[int] = []
        ready.wait(PATIENCE_S)
        window = time.perf_counter() + WARM_UP_S, time.perf_counter() + WARM_UP_S + seconds
        threads = [Thread(target=repeat, args=(run, *window, done)) for run in cycles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        out.put(sum(done))


def repeat(run: Cycle, begin: float, end: float, done: list[int]) -> None:
    """Tell how often it was done between two moments, which are the same for all: a client that
    others keep waiting must not be measured while these rest."""
    count = 0
    while (now := time.perf_counter()) < end:
        run()
        count += now >= begin
    done.append(count)


def measure(case: Case, url: str, seconds: float) -> Measured:
    """Measure one case in processes of its own."""
    context = multiprocessing.get_context("spawn")
    processes = min(PROCESSES, case.clients)
    ready, out = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(
            target=clients,
            args=(case, url, list(range(first, case.clients, processes))),
            kwargs={"seconds": seconds, "ready": ready, "out": out},
        )
        for first in range(processes)
    ]
    for worker in workers:
        worker.start()
    done = sum(out.get(timeout=PATIENCE_S) for _ in workers)
    for worker in workers:
        worker.join()
    return Measured(case, done / seconds)


def show(found: list[Measured]) -> None:
    """Print a table: one line for a database."""
    rates = {each.case: each.per_second for each in found}
    columns = [(work, count) for work in WORKS for count in CLIENTS]
    table = Table("a second")
    for work, count in columns:
        table.add_column(f"{work}, {count} client{'s' * (count > 1)}", justify="right")
    for database in DATABASES:
        cells = [rates[Case(database, work, count)] for work, count in columns]
        table.add_row(database, *(f"{rate:,.0f}" for rate in cells))
    Console().print(table)


def run(seconds: float) -> list[Measured]:
    """Measure every case, the two databases in turn."""
    server = PostgreSQL()
    with ExitStack() as stack:
        stack.callback(server.remove)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server.start()
        urls = {"SQLite": f"sqlite:///{folder}/leases", "PostgreSQL": server.new_database()}
        for url in urls.values():
            open_leases(url).close()
            with closing(bare(url)) as connection:
                connection.execute("CREATE TABLE bare (client INTEGER PRIMARY KEY)")
        return [
            measure(Case(database, work, count), urls[database], seconds)
            for work in WORKS
            for count in CLIENTS
            for database in DATABASES
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case")
    parser.add_argument("--json", type=Folder, help="write what was measured there as well")
    given = parser.parse_args()
    found = run(given.seconds)
    show(found)
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
