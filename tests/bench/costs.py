"""`python -m tests.bench costs`: what single calls of a store cost, for the model of docs/scale.md.

Gets, puts and checked puts of one row, and of 10 and 100 rows in one call, by one thread and by
eight; scans, for each row. Told are, for a call, its latency and the processor time of the client,
of HBase's servers and of its gateway. What the protocols themselves take of the client is measured
over a store in memory, that store included.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from random import Random
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tests.bench import report
from tests.bench.measuring import Case, Protocol, open_engine
from tests.bench.servers import Servers, measured_hbase
from txn import Engine, Key, Mutation
from txn.model import Check, Edit, Family
from txn.stores import open_store
from txn.stores.base import Store

TABLE = b"bench-costs"
KEPT = report.FOLDER / "costs.json"
ROWS = 10_000
SIZES = (1, 10, 100)
THREADS = (1, 8)
KEYS = (1, 2, 10, 50)
VALUE = b"1000"
PROTOCOLS: tuple[Protocol, ...] = ("six-phase", "fenced")
SPLITS = [b"row%06d" % (ROWS * part // 3) for part in (1, 2)]

Call = Callable[[Random], object]
Cost = dict[str, Any]


def row_keys(number: int) -> tuple[Key, Key]:
    """Return the value and the lock of a row."""
    row = b"row%06d" % number
    return Key(row, b"d", b"x", TABLE), Key(row, b"d", b"_lock", TABLE)


def list_calls(store: Store) -> dict[str, Callable[[int, Random], object]]:
    """Return what is measured, each for so many rows."""

    def choose(count: int, rng: Random) -> list[tuple[Key, Key]]:
        return [row_keys(number) for number in rng.sample(range(ROWS), count)]

    def get(count: int, rng: Random) -> object:
        return store.read([key for pair in choose(count, rng) for key in pair])

    def put(count: int, rng: Random) -> None:
        edits = [Edit(key, VALUE, None) for pair in choose(count, rng) for key in pair]
        store.write(edits, by_row=True)

    def checked(count: int, rng: Random) -> None:
        pairs = choose(count, rng)
        checks = [Check(lock, VALUE, ((lock, VALUE), (value, VALUE))) for value, lock in pairs]
        assert all(store.check_and_put(checks))

    return {"get": get, "put": put, "checked": checked}


def measure(call: Call, threads: int, seconds: float, pids: Mapping[str, Sequence[int]]) -> Cost:
    """Let so many threads repeat a call for so long."""
    for seed in range(3):
        call(Random(seed))
    times: list[float] = []
    end = time.perf_counter() + seconds
    clients = [
        threading.Thread(target=_repeat, args=(call, Random(seed), end, times))
        for seed in range(threads)
    ]
    before, began_s, began = _spent(pids), time.process_time(), time.perf_counter()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    took, client_s, after = time.perf_counter() - began, time.process_time() - began_s, _spent(pids)
    count = len(times)
    return {
        "per_second": count / took,
        "ms": median(times) * 1000,
        "client_us": client_s * 1e6 / count,
        **{f"{name}_us": (after[name] - before[name]) * 1e6 / count for name in pids},
    }


def _repeat(call: Call, rng: Random, end: float, times: list[float]) -> None:
    began = time.perf_counter()
    while not times or began < end:  # once at least, however busy the machine
        call(rng)
        times.append((now := time.perf_counter()) - began)
        began = now


def _spent(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    spent = {}
    for name, group in pids.items():
        times = [psutil.Process(pid).cpu_times() for pid in group]
        spent[name] = float(sum(each.user + each.system for each in times))
    return spent


def measure_store(uri: str, pids: Mapping[str, Sequence[int]], seconds: float) -> Cost:
    """Return the cost of each call, by its name, its rows and its threads."""
    store = open_store(uri)
    try:
        store.ensure_table(TABLE, {b"d": Family()}, SPLITS)
        for start in range(0, ROWS, 500):
            pairs = [row_keys(number) for number in range(start, start + 500)]
            store.write([Edit(key, VALUE, None) for pair in pairs for key in pair])
        found: Cost = {}
        for (name, call), size, threads in product(list_calls(store).items(), SIZES, THREADS):
            each = partial(call, size)
            measure(each, threads, seconds / 2, pids)  # to warm it
            found[f"{name} {size} {threads}"] = {
                **{"call": name, "rows": size, "threads": threads},
                **measure(each, threads, seconds, pids),
            }
        found["scan"] = _by_row(measure(lambda _: _count(store.scan(TABLE)), 1, seconds, pids))
        return found
    finally:
        store.close()


def _count(rows: Any) -> int:
    return sum(1 for _ in rows)


def _by_row(cost: Cost) -> Cost:
    """Return the cost of one row of a call that had all of them."""
    per_call = {name: value / ROWS for name, value in cost.items() if name != "per_second"}
    return {**per_call, "per_second": cost["per_second"] * ROWS}


def measure_client(seconds: float) -> Cost:
    """Return the processor time (µs) of a transaction of so many keys over a store in memory."""
    found: Cost = {}
    for protocol in PROTOCOLS:
        case = Case("transfer", 1, 1, protocol=protocol)
        with open_engine("memory://", case) as engine:
            engine.ensure_table(TABLE, ["d"])
            found[protocol] = {
                str(count): measure(partial(_commit, engine, count), 1, seconds, {})["client_us"]
                for count in KEYS
            }
    return found


def _commit(engine: Engine, count: int, rng: Random) -> None:
    numbers = rng.sample(range(ROWS), count)
    engine.commit([Mutation(row_keys(number)[0], VALUE) for number in numbers])


def group_processes(hbase: Servers) -> dict[str, list[int]]:
    """Return the processes of HBase, and the gateways."""
    found: dict[str, list[int]] = {"server": [], "gateway": []}
    for name, pid in hbase.names.items():
        found["gateway" if name.startswith("thrift") else "server"].append(pid)
    return found


def measure_all(seconds: float) -> Cost:
    """Measure both ways to an HBase of its own."""
    with measured_hbase() as hbase:
        pids = group_processes(hbase)
        stores = {"thrift2": hbase.thrift2, "native": hbase.native}
        found = {name: measure_store(uri, pids, seconds) for name, uri in stores.items()}
    return {
        "cores": os.cpu_count(),
        "stores": found,
        "client": measure_client(seconds / 2),
    }


def show(found: Cost) -> None:
    """Print it."""
    head = ("store", "call", "rows", "threads", "a second", "ms", "client µs", "server µs")
    table = Table(*head, "gateway µs", title="what a call costs")
    for store, calls in found["stores"].items():
        for name, cost in calls.items():
            figures = (cost[key] for key in ("per_second", "ms", "client_us", "server_us"))
            table.add_row(
                *(store, cost.get("call", name), str(cost.get("rows", 1))),
                str(cost.get("threads", 1)),
                *(f"{figure:,.2f}" for figure in (*figures, cost["gateway_us"])),
            )
    Console(width=140).print(table)
    print(json.dumps({"client": found["client"]}, indent=1))


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench costs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each call")
    parser.add_argument("--quick", action="store_true", help="write nothing")
    options = parser.parse_args(given)
    found = measure_all(options.seconds)
    if not options.quick:
        KEPT.write_text(json.dumps(found, indent=1) + "\n")
    show(found)


if __name__ == "__main__":
    main()
