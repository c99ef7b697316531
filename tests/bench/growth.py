"""`python -m tests.bench growth`: how cost grows with what a transaction is, and where it works.

    keys        keys of a transaction, each in a row of its own; one client
    values      bytes of each of two values; one client
    zipf        how unevenly the rows are chosen that sixteen clients read and change, two each
    processes   clients, each a process
    buckets     of the transaction table, on three region servers; sixteen clients
    rows        finished rows in the transaction table

Each is measured with both protocols and without transactions (the floor: a write a row, each a call
of its own; where rows are read, a read each as well), in rounds, in turns. Figures go to
docs/performance/growth-NAME.json, with a plot beside them; of `rows` a table to the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, pairwise
from random import Random
from statistics import median
from typing import Any, Literal, get_args

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.bench import report
from tests.bench.finished import make_finished
from tests.bench.measuring import Measured, Place, Protocol, measure_task
from tests.bench.servers import measured_hbase
from txn import Engine, Key, Mutation, Policy, connect
from txn.client.block import OptimisticTransaction
from txn.clock import SystemClock
from txn.model import Edit, Family
from txn.stores import open_store

Name = Literal["keys", "values", "zipf", "processes", "buckets", "rows"]
Subject = Literal["floor", "six-phase", "fenced"]

NAMES: tuple[Name, ...] = get_args(Name)
SUBJECTS: tuple[Subject, ...] = get_args(Subject)
PLACES: dict[Name, tuple[float, ...]] = {
    "keys": (1, 2, 5, 10, 20, 50, 100, 200, 500),
    "values": (10, 100, 1_000, 10_000, 100_000, 1_000_000),
    "zipf": (0, 0.4, 0.8, 1.0, 1.2),
    "processes": (1, 2, 4, 8),
    "buckets": (1, 4, 16, 64),
}
AXES: dict[Name, str] = {
    "keys": "keys of a transaction",
    "values": "bytes of a value",
    "zipf": "exponent of the zipf distribution",
    "processes": "processes",
    "buckets": "buckets of the transaction table",
    "rows": "finished rows",
}
ROWS = 10_000
LARGE, FEW_ROWS = 100_000, 100
"""Values of so many bytes go to fewer rows: they would fill the disk."""
FAMILY = "d"
PATIENCE = Policy(deadline_ms=60_000)
FINISHED = (1_000_000, 10_000_000)
EMPTY, FULL = "", "-full"


@dataclass(frozen=True, slots=True)
class Growing:
    """A task of one place: what is written how, by whom. skew: of the rows; None: nothing is read,
    and all rows are alike. database: apart from others of the same protocol."""

    subject: Subject
    keys: int = 2
    size: int = 10
    skew: float | None = None
    clients: int = 1
    processes: int = 1
    buckets: int = 1
    database: str = ""

    done_at_once = 1

    @property
    def table(self) -> str:
        return f"growth-{self.subject}-{self.buckets}{self.database}"

    @property
    def transactions(self) -> str:
        return f"{self.table}-transactions"

    def open(self, uri: str) -> Engine:
        """Connect."""
        protocol: Protocol = "fenced" if self.subject == "fenced" else "six-phase"
        return connect(
            uri,
            table=self.table,
            transactions=self.transactions,
            salt_buckets=self.buckets,
            policy=PATIENCE,
            protocol=protocol,
        )

    def bind(self, engine: Engine, rng: Random) -> Callable[[], int]:
        """Return what a client repeats."""
        choose = chooser(self, rng)
        match self.subject, self.skew:
            case "floor", skew:
                return partial(_write_plainly, engine, choose, b"v" * self.size, skew is not None)
            case _, None:
                return partial(_commit, engine, choose, b"v" * self.size)
            case _:
                return partial(_change, engine, choose)


def chooser(task: Growing, rng: Random) -> Callable[[], list[Key]]:
    """Return what gives the keys of a transaction, all different."""
    count = FEW_ROWS if task.size >= LARGE else ROWS
    column = "x" if task.skew is None else "number"
    keys = [Key(f"row{number:05}", FAMILY, column, task.table) for number in range(count)]
    if not task.skew:
        return lambda: rng.sample(keys, task.keys)
    weights = list(accumulate(1 / place**task.skew for place in range(1, count + 1)))

    def choose() -> list[Key]:
        chosen: dict[Key, None] = {}
        while len(chosen) < task.keys:
            chosen[rng.choices(keys, cum_weights=weights)[0]] = None
        return list(chosen)

    return choose


def _write_plainly(
    engine: Engine, choose: Callable[[], list[Key]], value: bytes, reads: bool
) -> int:
    store, now_ms = engine.context.store, SystemClock().wall_ms()
    for key in choose():
        if reads:
            store.read([key])
        store.write([Edit(key, value, now_ms)])
    return 1


def _commit(engine: Engine, choose: Callable[[], list[Key]], value: bytes) -> int:
    engine.commit([Mutation(key, value) for key in choose()])
    return 1


def _change(engine: Engine, choose: Callable[[], list[Key]]) -> int:
    """Count all keys up; return how many attempts that took."""
    keys, attempts = choose(), 0

    def count_up(t: OptimisticTransaction) -> None:
        nonlocal attempts
        attempts += 1
        for key, value in t.get_many(keys).items():
            t.put(key, b"%d" % (int(value or 0) + 1))

    engine.run(count_up)
    return attempts


def task_of(name: Name, subject: Subject, x: float) -> Growing:
    """Return what is measured at a place."""
    match name:
        case "keys":
            return Growing(subject, keys=int(x))
        case "values":
            return Growing(subject, size=int(x))
        case "zipf":
            return Growing(subject, skew=x, clients=16, processes=4)
        case "processes":
            return Growing(subject, clients=int(x), processes=int(x))
        case _:
            return Growing(subject, clients=16, processes=4, buckets=int(x))


def found(task: Growing, uri: str) -> None:
    """Make its tables, the data in three regions."""
    splits = [b"row%05d" % (ROWS * part // 3) for part in (1, 2)]
    store = open_store(uri)
    try:
        store.ensure_table(task.table.encode(), {FAMILY.encode(): Family()}, splits)
    finally:
        store.close()
    task.open(uri).close()


def run(name: Name, place: Place, rounds: int, seconds: float) -> list[report.Row]:
    """Measure every subject at every place in each round, after one that does not count."""
    cases = [(x, task_of(name, subject, x)) for x in PLACES[name] for subject in SUBJECTS]
    for task in dict.fromkeys(task for _, task in cases):
        found(task, place.uri)
    plan = [(number, x, task) for number in range(-1, rounds) for x, task in cases]
    kept: dict[tuple[float, Growing], list[Measured]] = {}
    for number, x, task in track(plan, f"growth, {name}"):
        part_s = seconds if number >= 0 else min(1.0, seconds)
        measured = measure_task(task, place.uri, place.servers, part_s, number + 2)
        if number >= 0:
            kept.setdefault((x, task), []).append(measured)
    return [row_of(x, task, rounds_of) for (x, task), rounds_of in kept.items()]


def row_of(x: float, task: Growing, measured: Sequence[Measured]) -> report.Row:
    """Return the medians over the rounds, and every round's rate."""
    figures = [asdict(each) for each in measured]
    medians = {name: median(each[name] for each in figures) for name in figures[0]}
    return {"x": x, **asdict(task), **medians, "rates": [each.per_second for each in measured]}


# ----------------------------------------------------------------------------- finished rows


def run_rows(place: Place, rounds: int, seconds: float, options: argparse.Namespace) -> Any:
    """Measure beside so many finished rows, then beside more, each time in turns with none."""
    subject: Subject = options.protocol
    tasks = {
        name: [
            Growing(subject, clients=clients, processes=max(1, clients // 4), database=name)
            for clients in (1, 16)
        ]
        for name in (EMPTY, FULL)
    }
    full = tasks[FULL][0]
    for each in (tasks[EMPTY][0], full):
        found(each, place.uri)
    kept: dict[tuple[int, Growing], list[Measured]] = {}
    wrote_s = 0.0
    for before, count in pairwise((0, *options.rows)):
        print(f"writing {count - before:,} rows", flush=True)
        wrote_s += fill(place.uri, full, count - before)
        turns = [(x, task) for x, name in ((0, EMPTY), (count, FULL)) for task in tasks[name]]
        plan = [(number, *turn) for number in range(-1, rounds) for turn in turns]
        for number, x, task in track(plan, f"growth, rows: {count:,}"):
            measured = measure_task(task, place.uri, place.servers, seconds, number + 2)
            if number >= 0:
                kept.setdefault((x, task), []).append(measured)
    rows = [row_of(x, task, each) for (x, task), each in kept.items()]
    return {"rows": rows, "wrote_s": wrote_s}


def fill(uri: str, task: Growing, count: int) -> float:
    """Put finished rows into a task's transaction table; return how many seconds it took."""
    return make_finished(uri, task.open, task.table, count, salt_buckets=task.buckets)


# ----------------------------------------------------------------------------- what is told


def lines(name: Name, rows: Sequence[report.Row]) -> tuple[list[str], list[list[str]]]:
    """Return a table: a line a place, for each subject its rate, latency and share of the floor."""
    head = [AXES[name], "floor, a second", "ms"]
    for subject in SUBJECTS[1:]:
        head += [f"{subject}, a second", "share", "ms", "99 %", "attempts"]
    places = sorted({row["x"] for row in rows})
    return head, [_line(x, [row for row in rows if row["x"] == x]) for x in places]


def _line(x: float, rows: Sequence[report.Row]) -> list[str]:
    by_subject = {row["subject"]: row for row in rows}
    floor = by_subject["floor"]
    told = [f"{x:,.9g}", f"{floor['per_second']:,.0f}", f"{floor['call_ms']:.2f}"]
    for subject in SUBJECTS[1:]:
        row = by_subject[subject]
        share = median(mine / its for mine, its in zip(row["rates"], floor["rates"], strict=True))
        told += [f"{row['per_second']:,.0f}", f"{share:.2f}", f"{row['call_ms']:.2f}"]
        told += [f"{row['slow_ms']:.1f}", f"{row['attempts']:.2f}"]
    return told


def rows_lines(kept: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the table of finished rows."""
    head = [AXES["rows"], "1 client, a second", "ms", "99 %", "16 clients, a second", "ms", "99 %"]
    body = []
    for x in sorted({row["x"] for row in kept["rows"]}):
        told = [f"{x:,}"]
        for row in (row for row in kept["rows"] if row["x"] == x):
            told += [f"{row['per_second']:,.0f}", f"{row['call_ms']:.2f}", f"{row['slow_ms']:.1f}"]
        body.append(told)
    return head, body


def plot(name: Name, rows: Sequence[report.Row]) -> None:
    """Draw rates and latencies of all subjects."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    rates, latencies = figure.subplots(1, 2)
    colours = {"floor": "black", "six-phase": "#8da0cb", "fenced": "#4c72b0"}
    for subject in SUBJECTS:
        mine = [row for row in rows if row["subject"] == subject]
        xs = [row["x"] for row in mine]
        style = {"marker": "o", "markersize": 4, "color": colours[subject], "label": subject}
        rates.plot(xs, [row["per_second"] for row in mine], **style)
        latencies.plot(xs, [row["call_ms"] for row in mine], **style)
    for axes, title in ((rates, "transactions a second"), (latencies, "median latency, ms")):
        axes.set_xscale("linear" if name == "zipf" else "log")
        axes.set_yscale("log")
        axes.set_xlabel(AXES[name])
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
    rates.legend(fontsize=8)
    figure.savefig(report.FOLDER / f"growth-{name}.png", dpi=120)


def tell(name: Name, kept: dict[str, Any], *, is_kept: bool) -> None:
    """Print the table; put it into the page or draw the plot, where figures are kept."""
    head, body = rows_lines(kept) if name == "rows" else lines(name, kept["rows"])
    table = Table(*head, title=f"growth, {name}")
    for line in body:
        table.add_row(*line)
    Console(width=180).print(table)
    if is_kept:
        if name == "rows":
            report.put(f"growth-{name}", head, body)
        else:
            plot(name, kept["rows"])


@contextmanager
def opened(name: Name, options: argparse.Namespace) -> Iterator[Place]:
    """Give the store that is measured."""
    if options.store:
        yield Place(options.store)
        return
    with measured_hbase(3 if name == "buckets" else 1) as hbase:
        uri = hbase.native if options.transport == "native" else hbase.thrift2
        yield Place(uri, hbase.processes)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=NAMES, action="append", help="one of them, or some")
    parser.add_argument("--store", metavar="URI", help="instead of an HBase of its own")
    parser.add_argument("--transport", choices=("native", "thrift2"), default="native")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case in each round")
    parser.add_argument("--rows", type=int, nargs="+", default=FINISHED, help="finished rows")
    parser.add_argument("--protocol", choices=SUBJECTS[1:], default="fenced", help="of these")
    parser.add_argument("--quick", action="store_true", help="write nothing")
    parser.add_argument("--kept", action="store_true", help="draw the last figures again")
    options = parser.parse_args(given)
    for name in options.only or NAMES:
        path = report.FOLDER / f"growth-{name}.json"
        if options.kept:
            kept = json.loads(path.read_text())
        else:
            with opened(name, options) as place:
                of = (place, options.rounds, options.seconds)
                kept = run_rows(*of, options) if name == "rows" else {"rows": run(name, *of)}
        if not options.quick:
            path.write_text(json.dumps(kept, indent=1) + "\n")
        tell(name, kept, is_kept=not options.quick)


if __name__ == "__main__":
    main()
