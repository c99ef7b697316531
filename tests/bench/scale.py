"""`python -m tests.bench scale`: what would be past one machine; it writes docs/scale.md.

A simulation (`tests/bench/queues.py`) with the costs that `python -m tests.bench costs` has
measured: transactions a second by region servers, by buckets of the transaction table, by keys and
by unevenness, with what is full first. What a cluster has and this machine does not are options.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.bench import costs, report
from tests.bench.queues import HANDLERS, Costs, Kind, Price, Protocol, Result, Setup, simulate

PAGE = report.DOCS / "scale.md"
KEPT = report.FOLDER / "scale.json"
Lines = tuple[list[str], list[list[str]]]
"""The head of a table, and its body."""

PROTOCOLS: tuple[Protocol, ...] = ("six-phase", "fenced")
KINDS: tuple[Kind, ...] = ("get", "put", "checked")
SERVERS = (1, 3, 10, 30, 100)
BUCKETS = (1, 2, 4, 8, 16, 32, 64, 100)
KEYS = (1, 2, 5, 10, 20, 50, 100)
SKEWS = (0.0, 0.4, 0.6, 0.8, 1.0, 1.2)
MANY_HANDLERS = 256
CLIENTS = 256
"""Clients a region server: more of them commit hardly more."""
SKEWED_CLIENTS = 16
FULL = 0.85
ON_THE_PAGE = (1, 10, 100)


def read_costs(kept: Mapping[str, Any], transport: str, threads: int) -> Costs:
    """Return the costs that were measured with so many threads."""
    calls = kept["stores"][transport]

    def price(kind: Kind, name: str) -> Price:
        one, hundred = (calls[f"{kind} {size} {threads}"][name] / 1e6 for size in (1, 100))
        row = max(0.0, (hundred - one) / 99)
        return Price(max(0.0, one - row), row)

    def waited_s(kind: Kind) -> float:
        call = calls[f"{kind} 1 1"]
        worked_us = call["client_us"] + call["server_us"] + call["gateway_us"]
        return float(call["ms"] / 1e3 - worked_us / 1e6)

    network = max(20e-6, waited_s("get"))
    return Costs(
        server={kind: price(kind, "server_us") for kind in KINDS},
        client={kind: price(kind, "client_us") for kind in KINDS},
        protocol={name: _protocol_price(kept["client"][name]) for name in PROTOCOLS},
        sync=max(50e-6, waited_s("put") - network),
        network=network,
    )


def _protocol_price(by_keys: Mapping[str, float]) -> Price:
    few, many = by_keys["2"] / 1e6, by_keys["50"] / 1e6
    row = max(0.0, (many - few) / 48)
    return Price(max(0.0, few - 2 * row), row)


def study(cores: int, handlers: int) -> dict[str, list[tuple[float, Setup]]]:
    """Return what is simulated for each table: the place, and what is there."""

    def of(servers: int, **given: Any) -> list[Setup]:
        clients = given.pop("clients", CLIENTS) * servers
        fixed = {"cores": cores, "handlers": handlers, "commits": max(3_000, 2 * clients)}
        setup = Setup(servers=servers, clients=clients, processes=clients, **{**fixed, **given})
        return [replace(setup, protocol=name) for name in PROTOCOLS]

    shapes = ({"buckets": 1}, {"buckets": 100}, {"buckets": 100, "handlers": MANY_HANDLERS})
    return {
        "servers": [
            (servers, setup)
            for servers, shape in product(SERVERS, shapes)
            for setup in of(servers, **shape)
        ],
        "buckets": [(buckets, setup) for buckets in BUCKETS for setup in of(20, buckets=buckets)],
        "keys": [(keys, setup) for keys in KEYS for setup in of(10, buckets=100, keys=keys)],
        "skew": [
            (skew, setup)
            for skew in SKEWS
            for setup in of(10, buckets=100, skew=skew, reads=True, clients=SKEWED_CLIENTS)
        ],
    }


def find_full(setup: Setup, result: Result) -> str:
    """Return what keeps it from being more."""
    if result.average > FULL:
        return "all servers' processors"
    if result.attempts > 1.5:
        return "keys in demand"
    if result.busiest > FULL:
        return "one server's processors"
    if result.held > FULL:
        needs_no_row = setup.buckets < setup.servers
        return "one server's handlers" if needs_no_row else "handlers"
    return "clients"


def run(
    cases: Sequence[tuple[float, Setup]], prices: Costs, pool: ProcessPoolExecutor, title: str
) -> list[report.Row]:
    """Simulate all of a table."""
    tasks = [pool.submit(simulate, setup, prices) for _, setup in cases]
    results = [task.result() for task in track(tasks, f"simulating, {title}")]
    return [row_of(*case, result) for case, result in zip(cases, results, strict=True)]


def row_of(x: float, setup: Setup, result: Result) -> report.Row:
    """Return what is kept of a simulation."""
    return {"x": x, **asdict(setup), **asdict(result), "full": find_full(setup, result)}


def page_lines(rows: Sequence[report.Row]) -> Lines:
    """Return the table of the page: some numbers of region servers, both protocols in a line."""
    head = ["region servers", "buckets", "handlers", "six-phase, a second", "fenced, a second"]
    body = []
    for six_phase, fenced in zip(rows[::2], rows[1::2], strict=True):
        if fenced["x"] in ON_THE_PAGE:
            shape = (fenced["x"], fenced["buckets"], fenced["handlers"])
            rates = (f"{row['per_second']:,.0f}" for row in (six_phase, fenced))
            rest = (fenced["full"], f"{fenced['client_cores']:,.0f}")
            body.append([*map(str, shape), *rates, *rest])
    return [*head, "full first (fenced)", "client cores (fenced)"], body


def lines(name: str, rows: Sequence[report.Row]) -> Lines:
    """Return a table of the study: a line a place, and with how many buckets."""
    first = {"servers": "region servers", "skew": "zipf exponent"}.get(name, name)
    is_first = name == "servers"
    heads = [first, *(["buckets", "handlers"] if is_first else [])]
    for protocol in PROTOCOLS:
        heads += [f"{protocol}, a second", "full first"]
        heads += ["attempts"] if name == "skew" else ["client cores"]
    places: dict[tuple[Any, ...], list[report.Row]] = {}
    for row in rows:
        places.setdefault((row["x"], row["buckets"], row["handlers"]), []).append(row)
    body = []
    for (x, *shape), both in places.items():
        told = [f"{x:g}", *(map(str, shape) if is_first else ())]
        for row in both:
            told += [f"{row['per_second']:,.0f}", row["full"]]
            told.append(
                f"{row['attempts']:.2f}" if name == "skew" else f"{row['client_cores']:,.1f}"
            )
        body.append(told)
    return heads, body


def plot(found_rows: Mapping[str, Sequence[report.Row]]) -> None:
    """Draw the study."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    grid: Any = figure.subplots(2, 2)
    titles = {
        "servers": "region servers",
        "buckets": "buckets, on 20 region servers",
        "keys": "keys of a transaction, on 10 region servers",
        "skew": "zipf exponent, on 10 region servers",
    }
    colours = {"fenced": "#4c72b0", "six-phase": "#8da0cb"}
    for axes, (name, title) in zip(grid.flat, titles.items(), strict=True):
        rows = found_rows[name]
        for (protocol, *shape), mine in _curves(name, rows).items():
            buckets, handlers = shape or (0, 0)
            axes.plot(
                [row["x"] for row in mine],
                [row["per_second"] for row in mine],
                {1: "o:"}.get(buckets, "o--" if handlers == MANY_HANDLERS else "o-"),
                color=colours[protocol],
                label=f"{protocol}, buckets {buckets}, handlers {handlers}" if shape else protocol,
                markersize=4,
            )
        axes.set_xscale("linear" if name == "skew" else "log")
        axes.set_yscale("log")
        axes.set_xlabel(title)
        axes.set_ylabel("transactions a second")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(report.FOLDER / "scale.png", dpi=120)


def _curves(name: str, rows: Sequence[report.Row]) -> dict[tuple[Any, ...], list[report.Row]]:
    """Return the rows of each line of a plot."""
    shape = ("buckets", "handlers") if name == "servers" else ()
    curves: dict[tuple[Any, ...], list[report.Row]] = {}
    for row in rows:
        curves.setdefault((row["protocol"], *(row[each] for each in shape)), []).append(row)
    return curves


def run_study(options: argparse.Namespace) -> dict[str, Lines]:
    """Simulate, keep the figures, draw them and put them into the page; return the tables."""
    kept = json.loads(costs.KEPT.read_text())
    prices = replace(
        read_costs(kept, options.transport, 8),
        sync=options.sync_ms / 1e3,
        network=options.network_ms / 1e3,
    )
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = {
            name: run(cases, prices, pool, name)
            for name, cases in study(options.cores, options.handlers).items()
        }
    if not options.quick:
        KEPT.write_text(json.dumps({**vars(options), **rows}, indent=1) + "\n")
        plot(rows)
        report.put("scale-servers", *page_lines(rows["servers"]), page=PAGE)
    return {name: lines(name, each) for name, each in rows.items()}


def show(tables: Mapping[str, Lines]) -> None:
    """Print the tables."""
    for name, (head, body) in tables.items():
        table = Table(*head, title=name)
        for line in body:
            table.add_row(*line)
        Console(width=180).print(table)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench scale", description=__doc__)
    parser.add_argument("--transport", choices=("native", "thrift2"), default="native")
    parser.add_argument("--cores", type=int, default=16, help="of a region server")
    parser.add_argument("--handlers", type=int, default=HANDLERS, help="of a region server")
    parser.add_argument("--sync-ms", type=float, default=1.0, help="of the write-ahead log")
    parser.add_argument("--network-ms", type=float, default=0.3, help="there and back")
    parser.add_argument("--quick", action="store_true", help="write nothing")
    options = parser.parse_args(given)
    show(run_study(options))


if __name__ == "__main__":
    main()
