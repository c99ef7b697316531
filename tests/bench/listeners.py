"""`python -m tests.bench listeners [STORE..]`: what `Metrics` add to the CPU time of a commit.

A commit puts two keys and asserts two values, on two engines of the same kind, in windows that take
turns. A cell is the median with no listener, the median with one, and the median of the ratios of
neighbouring windows. The embedded store does not wait for the disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from statistics import median

from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.table import Table

from tests.bench.calls import PROTOCOLS, Workload
from txn import connect
from txn.events import silent
from txn.metrics import Metrics

STORES = ("memory", "embedded")


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench listeners")
    parser.add_argument("stores", nargs="*", default=STORES)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--commits", type=int, default=200, help="of each window")
    options = parser.parse_args(words)
    table = Table("store", *PROTOCOLS, title="CPU of a commit, µs: without, with Metrics")
    for store in options.stores:
        with tempfile.TemporaryDirectory() as folder:
            uri = "memory://" if store == "memory" else f"embedded://{folder}/{{}}?sync=off"
            table.add_row(store, *(_compare(uri, each, options) for each in PROTOCOLS))
    Console().print(table)
    return 0


def _compare(uri: str, protocol: str, options: argparse.Namespace) -> str:
    workloads = []
    for number, listener in enumerate((silent, Metrics(CollectorRegistry()))):
        where = uri.format(f"{protocol}-{number}")
        engine = connect(where, protocol=protocol, on_event=listener)  # type: ignore[arg-type]
        workloads.append(Workload(engine, engine, "bench"))
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(-1, options.rounds):
        for workload, found in zip(workloads, times, strict=True):
            began_s = time.process_time()
            for _ in range(options.commits):
                workload.commit()
            if number >= 0:  # the first round only warms up
                found.append((time.process_time() - began_s) / options.commits * 1e6)
    ratio = median(watched / alone for alone, watched in zip(*times, strict=True))
    return f"{median(times[0]):.0f}, {median(times[1]):.0f}: {ratio:.2f}"
