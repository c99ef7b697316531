"""`python -m tests.bench parent [STORE..]`: threads that write rows of their own, and assert that
one parent row exists.

The same commits without the assertion, with the parent locked, and with it validated, in windows
that take turns; every thread calls `commit` of one engine. A cell is the median rate and, behind
it, its share of the rate without the assertion in the same round, with the range over the rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from statistics import median

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.bench.measuring import Protocol
from tests.bench.servers import measured_hbase
from txn import Engine, Key, Mutation, Some, connect
from txn.assertions import Assertion

STORES = ("embedded", "native")
PROTOCOLS: tuple[Protocol, ...] = ("six-phase", "fenced")
WAYS = ("no assertion", "locked", "validated")
TABLE = "bench"
PARENT = Key("parent", "d", "x", TABLE)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench parent")
    parser.add_argument("stores", nargs="*", default=STORES)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--rows", type=int, default=1, help="that each commit writes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each window")
    options = parser.parse_args(words)
    table = Table("store", "protocol", *WAYS, title=f"{options.threads} threads, commits a second")
    for store in options.stores:
        with _open_engines(store) as engines:
            for protocol, engine in engines.items():
                cells = _measure(engine, f"{store}, {protocol}", options)
                table.add_row(store, protocol, *cells)
    Console().print(table)
    return 0


@contextmanager
def _open_engines(store: str) -> Iterator[dict[Protocol, Engine]]:
    """Give an engine for each protocol, with its own transaction table."""
    if store == "embedded":
        with tempfile.TemporaryDirectory() as folder:
            yield {each: _open(f"embedded://{folder}/{each}", each) for each in PROTOCOLS}
    else:
        with measured_hbase() as servers:
            yield {each: _open(servers.native, each) for each in PROTOCOLS}


def _open(uri: str, protocol: Protocol) -> Engine:
    engine = connect(uri, table=f"{TABLE}-{protocol}", transactions=protocol, protocol=protocol)
    engine.ensure_table(f"{TABLE}-{protocol}", ["d"])
    engine.commit([Mutation(PARENT._replace(table=None), b"1")])
    return engine


def _measure(engine: Engine, name: str, options: argparse.Namespace) -> list[str]:
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    windows = [*product(range(-1, options.rounds), WAYS)]
    for number, way in track(windows, name):
        rate = _run_window(engine, way, options)
        if number >= 0:  # the first round only warms up
            rates[way].append(rate)
    alone = rates["no assertion"]
    return [_cell(rates[way], alone) for way in WAYS]


def _run_window(engine: Engine, way: str, options: argparse.Namespace) -> float:
    """Return the commits a second of all threads together."""
    parent = PARENT._replace(table=None)
    asserted: list[Assertion] = [] if way == "no assertion" else [Some(parent)]
    threads: int = options.threads
    due, done = time.monotonic() + options.seconds, [0] * threads

    def work(thread: int) -> None:
        rows = [Key(f"row-{thread}-{number}", "d", "x") for number in range(options.rows)]
        while time.monotonic() < due:
            value = str(done[thread]).encode()
            mutations = [Mutation(row, value) for row in rows]
            engine.commit(mutations, asserted, validate=way == "validated")
            done[thread] += 1

    workers = [threading.Thread(target=work, args=[number]) for number in range(threads)]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / (time.monotonic() - began)


def _cell(rates: Sequence[float], alone: Sequence[float]) -> str:
    shares = [rate / one for rate, one in zip(rates, alone, strict=True)]
    words = f"{median(rates):,.0f}"
    if rates is alone:
        return words
    return f"{words}  {median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
