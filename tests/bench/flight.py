"""`python -m tests.bench flight`: what the commit of a flight costs the emulator and its client.

First with the server in this process, where all can be counted: requests by method, calls of Python
functions a request in the server's threads, and commits and flushes of the disk a flight. Then with
`txn serve` in a process of its own: processor and wall time a flight, synced and with `sync=off`.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import psutil

from tests.bench.measuring import Case, open_engine
from tests.bench.workloads import flights, found
from tests.integration.serving import served
from txn.clock import SystemClock
from txn.emulator.serving import Hosted, open_services
from txn.server.listening import listen
from txn.server.ports import Server
from txn.stores import open_ordered
from txn.stores.gateway import Connection, Request
from txn.tables.kv import lmdb as lmdb_store

CASE = Case("flights", 1, 1)
WARM = 25
Costs = dict[str, float]


def commit_flights(uri: str, count: int, batch: int, begin: Callable[[], object]) -> None:
    """Commit so many flights, some at a time, after a few that do not count."""
    rng = Random(1)
    with open_engine(uri, CASE) as engine:
        found(engine, 0, CASE.tables)
        flights(engine, CASE.tables, rng, WARM, "complete")
        engine.flush()
        begin()
        for start in range(0, count, batch):
            some = min(batch, count - start)
            flights(engine, CASE.tables, rng, some, "complete")
        engine.flush()


def count_costs(count: int, batch: int) -> tuple[Counter[str], Costs]:
    """Return the requests by method, and what else can be counted, all for one flight."""
    requests, steps = Counter[str](), Counter[str]()
    send, write = Connection.send, lmdb_store._Shared._change
    apply = lmdb_store._Shared._apply

    def count_request(connection: Connection, request: Request[Any], **named: Any) -> None:
        requests[request[0]] += 1
        send(connection, request, **named)

    def count_commit(shared: Any, *given: Any) -> object:
        steps["commits"] += 1
        return write(shared, *given)

    def count_flush(shared: Any, step: Callable[[], None]) -> None:
        steps["flushes"] += 1
        apply(shared, step)

    def count_call(frame: object, event: str, _: object) -> None:
        if event == "call":
            steps["calls"] += 1

    def forget() -> None:
        requests.clear()
        steps.clear()

    threading.setprofile(count_call)  # of threads to come, which are the server's
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            patch.object(Connection, "send", count_request),
            patch.object(lmdb_store._Shared, "_change", count_commit),
            patch.object(lmdb_store._Shared, "_apply", count_flush),
        ):
            hosted = Hosted(f"embedded://{folder}/store", {"thrift2": 0})
            stopped, services = open_services(hosted, open_ordered(hosted.store), SystemClock())
            with Server([(listen("127.0.0.1", 0), services["thrift2"])]) as server:
                uri = f"hbase+thrift2://127.0.0.1:{server.ports[0]}"
                commit_flights(uri, count, batch, forget)
            stopped()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    calls = steps.pop("calls") / requests.total()
    return requests, {
        "calls a request": calls,
        **{name: steps[name] / count for name in ("commits", "flushes")},
    }


def measure_times(options: str, count: int, batch: int) -> Costs:
    """Return the milliseconds of the wall clock, and of the processor, that a flight takes."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served(f"embedded://{folder}/store{options}", Path(folder, "log"), "--thrift2", "0") as s,
    ):
        server = psutil.Process(s.process.pid)
        before: list[float] = []

        def read_clocks() -> list[float]:
            spent = server.cpu_times()
            return [time.perf_counter(), spent.user + spent.system, time.process_time()]

        commit_flights(s.uris["thrift2"], count, batch, lambda: before.extend(read_clocks()))
        after = read_clocks()
    names = ("wall ms", "server ms", "client ms")
    return {
        name: (end - start) * 1000 / count
        for name, start, end in zip(names, before, after, strict=True)
    }


def show(name: str, costs: Costs) -> None:
    print(f"{name:10}", ", ".join(f"{what} {cost:.1f}" for what, cost in costs.items()))


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench flight", description=__doc__)
    parser.add_argument("--flights", type=int, default=500)
    parser.add_argument("--together", type=int, default=250, help="how many a commit_many")
    options = parser.parse_args(given)
    count, batch = options.flights, options.together
    requests, counted = count_costs(count, batch)
    show("requests", {name: number / count for name, number in requests.items()})
    show("counted", counted)
    for name, query in (("synced", ""), ("sync=off", "?sync=off")):
        show(name, measure_times(query, count, batch))


if __name__ == "__main__":
    main()
