"""`python -m tests.bench scale`: what would be past one machine; it writes docs/scale.md.

A simulation (`tests/bench/queues.py`) with the costs that `python -m tests.bench costs` has
measured: transactions a second by region servers, by buckets of the transaction table, by keys and
by unevenness, with what is full first. `--measure` first measures, on this machine, what the
simulation is checked against: a standalone HBase, and three region servers. `--check` simulates
only these, `--study` all but these. What a cluster has and this machine does not are options.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import median
from typing import Any, cast

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.bench import costs, report
from tests.bench.growth import Growing, found
from tests.bench.measuring import Measured, measure_task
from tests.bench.queues import HANDLERS, Costs, Kind, Price, Protocol, Result, Setup, simulate
from tests.bench.servers import measured_hbase

PAGE = report.DOCS / "scale.md"
VALIDATION = report.FOLDER / "validation.json"
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


# ------------------------------------------------------------------------------- from figures


def read_costs(kept: Mapping[str, Any], transport: str, threads: int, *, gateway: bool) -> Costs:
    """Return the costs that were measured with so many threads, of the gateway too if it is to be
    among the servers."""
    calls = kept["stores"][transport]
    servers = ("server_us", "gateway_us") if gateway else ("server_us",)

    def price(kind: Kind, names: Sequence[str]) -> Price:
        one, hundred = (
            sum(calls[f"{kind} {size} {threads}"][name] for name in names) / 1e6
            for size in (1, 100)
        )
        row = max(0.0, (hundred - one) / 99)
        return Price(max(0.0, one - row), row)

    def waited_s(kind: Kind) -> float:
        call = calls[f"{kind} 1 1"]
        worked_us = call["client_us"] + call["server_us"] + call["gateway_us"]
        return float(call["ms"] / 1e3 - worked_us / 1e6)

    network = max(20e-6, waited_s("get"))
    return Costs(
        server={kind: price(kind, servers) for kind in KINDS},
        client={kind: price(kind, ("client_us",)) for kind in KINDS},
        protocol={name: _protocol_price(kept["client"][name]) for name in PROTOCOLS},
        sync=max(50e-6, waited_s("put") - network),
        network=network,
    )


def _protocol_price(by_keys: Mapping[str, float]) -> Price:
    few, many = by_keys["2"] / 1e6, by_keys["50"] / 1e6
    row = max(0.0, (many - few) / 48)
    return Price(max(0.0, few - 2 * row), row)


# ------------------------------------------------------------------------------- the study


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


# ------------------------------------------------------------------------------- the check


@dataclass(frozen=True, slots=True)
class Point:
    """One place at which the simulation is checked."""

    task: Growing
    servers: int

    @property
    def setup(self) -> Setup:
        """Return the same to be simulated: everything on this machine."""
        task = self.task
        return Setup(
            protocol=cast(Protocol, task.subject),
            servers=self.servers,
            buckets=task.buckets,
            keys=task.keys,
            rows=10_000,
            skew=task.skew or 0.0,
            reads=task.skew is not None,
            clients=task.clients,
            processes=task.processes,
            machine=os.cpu_count(),
            commits=4_000 if task.clients > 1 else 1_000,
        )


def points(servers: int) -> list[Point]:
    """Return the places of one kind of cluster."""
    shapes = [
        *({"keys": keys} for keys in (2, 10, 50)),
        *({"keys": keys, "clients": 16, "processes": 4} for keys in (2, 10, 50)),
        {"clients": 16, "processes": 4, "skew": 0.0},
        {"clients": 16, "processes": 4, "skew": 1.0},
    ]
    if servers > 1:
        shapes += [{"clients": 16, "processes": 4, "buckets": 16}]
    return [
        Point(Growing(protocol, **cast(Any, shape)), servers)
        for shape in shapes
        for protocol in PROTOCOLS
    ]


def measure(transport: str, rounds: int, seconds: float) -> Iterator[report.Row]:
    """Measure every place."""
    for servers in (1, 3):
        with measured_hbase(servers) as hbase:
            uri = hbase.native if transport == "native" else hbase.thrift2
            places = points(servers)
            for point in places:
                found(point.task, uri)
            kept: dict[Point, list[Measured]] = {point: [] for point in places}
            plan = [(number, point) for number in range(-1, rounds) for point in places]
            for number, point in track(plan, f"measuring, region servers: {servers}"):
                measured = measure_task(point.task, uri, hbase.processes, seconds, number + 2)
                if number >= 0:
                    kept[point].append(measured)
            for point, each in kept.items():
                figures = (median(one.per_second for one in each), median(m.call_ms for m in each))
                attempts = median(one.attempts for one in each)
                yield _validation_row(point, transport, *figures, attempts)


def _validation_row(
    point: Point, transport: str, per_second: float, ms: float, attempts: float
) -> report.Row:
    measured = {"per_second": per_second, "ms": ms, "attempts": attempts}
    return {
        "servers": point.servers,
        "transport": transport,
        "task": asdict(point.task),
        "measured": measured,
    }


def compare(rows: Sequence[report.Row]) -> Lines:
    """Return measured and simulated figures side by side."""
    body, ratios = [], []
    for row in track(rows, "checking"):
        point, measured = Point(Growing(**row["task"]), row["servers"]), row["measured"]
        kept = json.loads(costs.path_of(point.servers).read_text())
        prices = read_costs(
            kept, row["transport"], 1 if point.task.clients == 1 else 8, gateway=True
        )
        result = simulate(point.setup, prices)
        ratios.append(result.per_second / measured["per_second"])
        body.append(_compared(point, measured, result, ratios[-1]))
    head = ["region servers", "protocol", "keys", "clients", "buckets", "zipf"]
    head += ["measured, a second", "simulated", "ratio", "ms", "simulated", "attempts", "simulated"]
    if ratios:
        spread = f"median {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
        body.append(["all", *[""] * 7, spread, *[""] * 4])
    return head, body


def _compared(
    point: Point, measured: Mapping[str, float], result: Result, ratio: float
) -> list[str]:
    task = point.task
    return [
        *(
            str(point.servers),
            task.subject,
            str(task.keys),
            str(task.clients),
            str(task.buckets),
        ),
        "" if task.skew is None else f"{task.skew:g}",
        *(f"{measured['per_second']:,.0f}", f"{result.per_second:,.0f}", f"{ratio:.2f}"),
        *(f"{measured['ms']:.2f}", f"{result.latency_ms:.2f}"),
        "" if task.skew is None else f"{measured['attempts']:.2f}",  # else they are not told
        f"{result.attempts:.2f}",
    ]


# ------------------------------------------------------------------------------- the command


def run_study(options: argparse.Namespace) -> dict[str, Lines]:
    """Simulate, keep the figures, draw them and put them into the page; return the tables."""
    kept = json.loads(costs.path_of(1).read_text())
    prices = replace(
        read_costs(kept, options.transport, 8, gateway=False),
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
    parser.add_argument("--measure", action="store_true", help="what is checked against, first")
    parser.add_argument("--check", action="store_true", help="simulate only what was measured")
    parser.add_argument("--study", action="store_true", help="do not simulate what was measured")
    parser.add_argument("--rounds", type=int, default=3, help="of --measure")
    parser.add_argument("--seconds", type=float, default=3.0, help="of --measure, for each case")
    parser.add_argument("--transport", choices=("native", "thrift2"), default="native")
    parser.add_argument("--cores", type=int, default=16, help="of a region server")
    parser.add_argument("--handlers", type=int, default=HANDLERS, help="of a region server")
    parser.add_argument("--sync-ms", type=float, default=1.0, help="of the write-ahead log")
    parser.add_argument("--network-ms", type=float, default=0.3, help="there and back")
    parser.add_argument("--quick", action="store_true", help="write nothing")
    options = parser.parse_args(given)
    if options.measure:
        rows = list(measure(options.transport, options.rounds, options.seconds))
        VALIDATION.write_text(json.dumps(rows, indent=1) + "\n")
    tables = {} if options.check else run_study(options)
    if VALIDATION.exists() and not options.study:
        tables["validation"] = compare(json.loads(VALIDATION.read_text()))
    show(tables)


if __name__ == "__main__":
    main()
