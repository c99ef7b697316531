"""`python -m tests.bench calls [STORE..]`: how many interpreter calls each path to a store makes.

`sys.setprofile` counts calls of Python functions, resumed generators among them, and of C
functions. Each figure is the median of some runs after a warm-up, for one commit, request, block,
read of two keys, or scanned row; a request changes two keys and asserts their values, and making it
counts too. Only the caller's thread counts: not what servers do, or the thread that puts the last
status later. Of `submit` the thread that commits the batch counts, too, and the wait for its
futures does not.

`native` and `gateway` (by Thrift 2) run against servers in threads of this process, or against the
HBase that an option names: a test shows that both make the same calls. `--save` keeps the figures
in docs/performance/calls.json and puts their table into docs/performance.md. Tests count anew and
fail if one has grown by more than 5 %. Each version of Python makes other calls, so figures are
compared only with those of their own version.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
from rich.console import Console
from rich.table import Table

from tests.bench import report
from tests.bench.measuring import Protocol
from tests.integration.emulator import emulated
from tests.unit.fake_cluster import fake_cluster
from txn import Engine, Exact, Key, Mutation, Policy, connect
from txn.request import Committed, Request

COMMAND = "python -m tests.bench calls --save"
VERSION = ".".join(platform.python_version_tuple()[:2])
KEPT = report.FOLDER / "calls.json"
STORES = ("memory", "embedded", "native", "gateway")
PROTOCOLS: tuple[Protocol, ...] = ("six-phase", "fenced")
PATHS = ("commit", "commit_many", "submit", "block", "read", "scanned row")
TOLERANCE = 0.05
ROWS = 100
MANY = 20
WARM = 5
RUNS = 9
LINGER_MS = 20  # so that all that is submitted in a run is one batch
THREADS = "txn-group-commit"
FAMILY = "d"

Work = Callable[[], object]


class Count(NamedTuple):
    """How many calls a path makes, for one commit, request, block, read or row."""

    store: str
    protocol: str
    path: str
    calls: float

    @property
    def name(self) -> str:
        return f"{self.path}, {self.store}, {self.protocol}"


class Kept(NamedTuple):
    python: str
    counts: list[Count]


class Workload:
    """The paths of an engine, and of one that lets submitted requests gather. All keys, and all
    values, have the same length."""

    def __init__(self, engine: Engine, lingering: Engine, table: str) -> None:
        self._engine = engine
        self._lingering = lingering
        self._table = table
        self._keys = [
            Key(f"account{number:04}", FAMILY, "balance", table) for number in range(ROWS)
        ]
        self._values = [b"%06d" % 0] * ROWS
        self._numbers = count(1)
        engine.ensure_table(table, [FAMILY])
        engine.commit_many([([Mutation(key, b"%06d" % 0)], []) for key in self._keys])

    def _request(self, pair: int) -> Request:
        """Return a request that changes two keys if they have the value that was put last."""
        value = b"%06d" % next(self._numbers)
        places = (2 * pair, 2 * pair + 1)
        mutations = [Mutation(self._keys[place], value) for place in places]
        assertions = [Exact(self._keys[place], self._values[place]) for place in places]
        for place in places:
            self._values[place] = value
        return Request(tuple(mutations), tuple(assertions))

    def commit(self) -> None:
        request = self._request(0)
        self._engine.commit(request.mutations, request.assertions)

    def commit_many(self) -> None:
        self._engine.commit_many([self._request(pair) for pair in range(MANY)])

    def submit(self) -> list[Future[Committed]]:
        return [self._lingering.submit(self._request(pair)) for pair in range(MANY)]

    def block(self) -> None:
        value = b"%06d" % next(self._numbers)
        with self._engine.transaction() as t:
            for place, key in enumerate(t.get_many(self._keys[:2])):
                t.put(key, value)
                self._values[place] = value

    def read(self) -> None:
        self._engine.read(self._keys[:2])

    def scan(self) -> None:
        for _ in self._engine.scan(self._table):
            pass


class Tally:
    """Counts calls of the threads that have it as their profile function."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: object, event: str, argument: object) -> None:
        self.calls += event in {"call", "c_call"}

    def begin(self, frame: object, event: str, argument: object) -> None:
        """Count in a new thread from here on, if it is one that commits batches."""
        is_ours = threading.current_thread().name.startswith(THREADS)
        sys.setprofile(self if is_ours else None)


def count_calls(work: Work) -> int:
    """Return how many calls this thread makes in the work."""
    tally = Tally()
    sys.setprofile(tally)
    try:
        work()
    finally:
        sys.setprofile(None)
    return tally.calls - 2  # the work itself, and the end of counting


def count_batch(workload: Workload, threads: Tally) -> int:
    """Return how many calls it takes to submit a batch and to commit it."""
    before = threads.calls
    futures: list[Future[Committed]] = []
    submitted = count_calls(lambda: futures.extend(workload.submit()))
    while not all(future.done() for future in futures):
        time.sleep(LINGER_MS / 1000)
    time.sleep(LINGER_MS / 1000)  # until the thread has ended its turn
    for future in futures:
        future.result()
    return submitted + threads.calls - before


def take_median(count_run: Callable[[], int], divisor: int = 1) -> float:
    """Return the median of some runs that count, after some that do not."""
    counts = [count_run() for _ in range(WARM + RUNS)][WARM:]
    return median(counts) / divisor


def count_paths(uri: str, protocol: Protocol) -> dict[str, float]:
    """Return how many calls each path makes on a store."""
    tag = uuid.uuid4().hex[:8]
    open_engine = partial(connect, uri, protocol=protocol, transactions=f"calls-{tag}-transactions")
    threads = Tally()
    with open_engine() as engine, open_engine(policy=Policy(linger_ms=LINGER_MS)) as lingering:
        w = Workload(engine, lingering, f"calls-{tag}")
        paths = {
            "commit": (w.commit, 1),
            "commit_many": (w.commit_many, MANY),
            "block": (w.block, 1),
            "read": (w.read, 1),
            "scanned row": (w.scan, ROWS),
        }
        found = {
            path: take_median(partial(count_calls, work), divisor)
            for path, (work, divisor) in paths.items()
        }
        engine.flush()
        threading.setprofile(threads.begin)
        try:
            found["submit"] = take_median(partial(count_batch, w, threads), MANY)
        finally:
            threading.setprofile(None)
    return found


@contextmanager
def opened(store: str, uri: str | None) -> Iterator[str]:
    """Give the URI of a store: the one that is named, else one of our own for this."""
    if uri is not None:
        yield uri
        return
    match store:
        case "memory":
            yield "memory://calls"
        case "embedded":
            with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder:
                yield f"embedded://{folder}/store?sync=off"
        case "native":
            with fake_cluster(1, lambda table, region: 0) as cluster:
                yield cluster.uri
        case "gateway":
            with emulated() as servers:
                yield servers.thrift2


def count_all(stores: Sequence[str], uris: Mapping[str, str]) -> list[Count]:
    """Count every path of these stores with both protocols."""
    found = []
    gc.collect()
    gc.disable()  # what is collected, and when, is chance
    try:
        for store in stores:
            for protocol in PROTOCOLS:
                with opened(store, uris.get(store)) as uri:
                    calls = count_paths(uri, protocol)
                found += [Count(store, protocol, path, round(calls[path], 2)) for path in PATHS]
    finally:
        gc.enable()
    return found


def count_apart(stores: Sequence[str], uris: Mapping[str, str]) -> list[Count]:
    """Count in a process of its own, in which no test has left caches, tracers or threads."""
    command = [sys.executable, "-m", "tests.bench.calls", *stores, "--json"]
    options = [f"--{store}={uri}" for store, uri in uris.items()]
    root = Path(__file__).parents[2]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True, cwd=root)
    return [Count(**each) for each in json.loads(done.stdout)["counts"]]


def save(counts: Sequence[Count], path: Path = KEPT) -> None:
    """Keep the counts, and of which Python they are."""
    path.write_text(encode(counts) + "\n")


def load(path: Path = KEPT) -> Kept:
    """Return the counts that are kept."""
    kept = json.loads(path.read_text())
    return Kept(kept["python"], [Count(**each) for each in kept["counts"]])


def require_figures_of_this_python(path: Path = KEPT) -> None:
    """Skip a test if the figures are of another Python."""
    if (python := load(path).python) != VERSION:
        pytest.skip(f"the figures are of Python {python}, and this is {VERSION}: {COMMAND}")


def encode(counts: Sequence[Count]) -> str:
    rows = ",\n".join(f"  {json.dumps(each._asdict())}" for each in counts)
    return f'{{\n "python": {json.dumps(VERSION)},\n "counts": [\n{rows}\n ]\n}}'


def list_grown(counts: Sequence[Count], kept: Sequence[Count]) -> list[str]:
    """Return a line for each count that has grown by more than the tolerance, or is not kept."""
    calls_before = {each.name: each.calls for each in kept}
    found = []
    for each in counts:
        before = calls_before.get(each.name)
        if before is None:
            found.append(f"{each.name}: {each.calls:g} calls, and no figure is kept")
        elif each.calls > before * (1 + TOLERANCE):
            growth = f"{each.calls / before - 1:+.1%}"
            found.append(f"{each.name}: from {before:g} to {each.calls:g} calls ({growth})")
    return found


def explain(grown: Sequence[str]) -> str:
    """Return the text of a test that fails."""
    return "\n".join([*grown, f"if that is worth it, keep new figures: {COMMAND}"])


def build_table(counts: Sequence[Count]) -> tuple[list[str], list[list[str]]]:
    """Return a table of paths, with a column for each store and protocol."""
    places = list(dict.fromkeys((each.store, each.protocol) for each in counts))
    calls = {each[:3]: each.calls for each in counts}
    body = [[path, *(f"{calls[(*place, path)]:,.0f}" for place in places)] for path in PATHS]
    return ["path", *map(", ".join, places)], body


def show(counts: Sequence[Count]) -> None:
    """Print it."""
    head, body = build_table(counts)
    table = Table(*head, title=f"interpreter calls, Python {platform.python_version()}")
    for line in body:
        table.add_row(*line)
    Console(width=120).print(table)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench calls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stores", nargs="*", metavar="STORE", help=f"of {', '.join(STORES)}")
    parser.add_argument("--native", metavar="URI", help="an HBase, by its own RPC")
    parser.add_argument("--gateway", metavar="URI", help="an HBase's Thrift 2 gateway")
    parser.add_argument("--save", action="store_true", help="keep the figures, of all stores")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(given)
    stores = options.stores or STORES
    if unknown := set(stores).difference(STORES):
        parser.error(f"no such store: {', '.join(sorted(unknown))}")
    if options.save and set(stores) != set(STORES):
        parser.error("--save keeps the figures of all stores: name none")
    uris = {name: uri for name in ("native", "gateway") if (uri := getattr(options, name))}
    counts = count_all(stores, uris)
    if options.save:
        save(counts)
        report.put("calls", *build_table([each for each in counts if each.store != "memory"]))
    if options.json:
        print(encode(counts))
    else:
        show(counts)


if __name__ == "__main__":
    main()
