"""Clients that do one thing again and again: how often all of them together did it in a second.

The clients of a case are threads in up to 4 processes. What is counted is what was begun between
two moments that are the same for all: a client that others keep waiting must not be measured while
these rest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any

from rich.console import Console
from rich.table import Table

PROCESSES = 4
WARM_UP_S = 0.5
PATIENCE_S = 60

Uris = dict[str, str]
Cycle = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked of whom, by how many."""

    subject: str
    work: str
    clients: int


@dataclass(frozen=True, slots=True)
class Measured:
    """How often a second, of all clients."""

    case: Case
    per_second: float


Opened = Callable[[Case, Uris, Sequence[int], ExitStack], list[Cycle]]
"""What each of these clients of a process does; a function of a module, as it is sent there."""


@dataclass(frozen=True, slots=True)
class Bench:
    """title: of what is counted. serving: starts what is measured, and tells where it is."""

    title: str
    subjects: Sequence[str]
    works: Sequence[str]
    clients: Sequence[int]
    serving: Callable[[], AbstractContextManager[Uris]]
    opened: Opened

    def run(self, seconds: float) -> list[Measured]:
        """Measure every case, the subjects in turn."""
        with self.serving() as uris:
            return [
                measure(Case(subject, work, count), uris, self.opened, seconds)
                for work, count, subject in product(self.works, self.clients, self.subjects)
            ]

    def show(self, found: Sequence[Measured]) -> None:
        """Print a table: one line for a subject."""
        rates = {each.case: each.per_second for each in found}
        columns = list(product(self.works, self.clients))
        table = Table(f"{self.title} a second")
        for work, count in columns:
            table.add_column(f"{work}, {count} client{'s' * (count > 1)}", justify="right")
        for subject in self.subjects:
            cells = [rates[Case(subject, work, count)] for work, count in columns]
            table.add_row(subject, *(f"{rate:,.1f}" for rate in cells))
        Console().print(table)

    def main(self, about: str | None) -> None:
        """The command of a bench."""
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("--seconds", type=float, default=2.0, help="for each case")
        parser.add_argument("--json", type=Path, help="write what was measured there as well")
        given = parser.parse_args()
        found = self.run(given.seconds)
        self.show(found)
        if given.json:
            given.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")


def measure(case: Case, uris: Uris, opened: Opened, seconds: float) -> Measured:
    """Measure one case in processes of its own."""
    context = multiprocessing.get_context("spawn")
    processes = min(PROCESSES, case.clients)
    ready, out = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(
            target=_process,
            args=(case, uris, opened, range(first, case.clients, processes)),
            kwargs={"seconds": seconds, "ready": ready, "out": out},
        )
        for first in range(processes)
    ]
    try:
        for worker in workers:
            worker.start()
        done = sum(out.get(timeout=seconds + PATIENCE_S) for _ in workers)
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            worker.kill()
    return Measured(case, done / seconds)


def _process(
    case: Case,
    uris: Uris,
    opened: Opened,
    clients: Sequence[int],
    *,
    seconds: float,
    ready: Any,
    out: Any,
) -> None:
    """The body of one measuring process."""
    with ExitStack() as stack:
        cycles = opened(case, uris, clients, stack)
        for cycle in cycles:
            cycle()
        done: list[int] = []
        ready.wait(PATIENCE_S)
        begin = time.perf_counter() + WARM_UP_S
        threads = [Thread(target=_repeat, args=(c, begin, begin + seconds, done)) for c in cycles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        out.put(sum(done))


def _repeat(cycle: Cycle, begin: float, end: float, done: list[int]) -> None:
    count = 0
    while (now := time.perf_counter()) < end:
        cycle()
        count += now >= begin
    done.append(count)
