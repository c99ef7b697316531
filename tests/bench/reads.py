"""`python -m tests.bench.reads`: atomic reads beside a plain batch get of the same keys.

One client reads 1, 10 and 100 keys, each in a row of its own: in one plain batch of the store (the
floor), with `Engine.read` while nobody holds them, and with `Engine.read` while a writer that has
not decided holds all of them. The three take turns, call by call, so that noise falls on all alike.
`one row` is ten keys of one row.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench.crowd import tables
from txn import Engine, Key, Mutation, Policy, connect
from txn.model import Check
from txn.protocol.statuses import Status
from txn.stores.base import Store
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply

COUNTS = (1, 10, 100)
VALUE = b"v" * 100
WARM = 20


@dataclass(frozen=True, slots=True)
class Measured:
    """keys: how many, and where. Median milliseconds of a call: of a plain batch get, of an atomic
    read, and of one of keys that a writer holds; and the medians of the ratios to the floor."""

    keys: str
    plain_ms: float
    free_ms: float
    held_ms: float
    free_ratio: float
    held_ratio: float


def measure(
    engine: Engine, name: str, free: Sequence[Key], held: Sequence[Key], seconds: float
) -> Measured:
    """Take turns for so many seconds."""
    store = engine.context.store
    works: list[Callable[[], object]] = [
        lambda: store.read(free),
        lambda: engine.read(free),
        lambda: engine.read(held),
    ]
    for work in works * WARM:
        work()
    times: list[list[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        times.append([_elapsed_ms(work) for work in works])
    return Measured(
        name,
        *(median(turn[place] for turn in times) for place in range(3)),
        *(median(turn[place] / turn[0] for turn in times) for place in (1, 2)),
    )


def _elapsed_ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def held(store: Store, table: str, keys: Sequence[Key]) -> None:
    """Let a writer stop when it holds the keys, for longer than anything here takes."""

    def plan(call: Call) -> Fault:
        status = Status.ASSERTED.value
        decides = any(isinstance(i, Check) and status in dict(i.puts).values() for i in call.items)
        return Fault(frozenset(), Reply.CRASH) if decides else Fault()

    policy = Policy(lock_ttl_ms=3_600_000)
    with suppress(Crash):
        Engine(FaultyStore(store, plan), table=table, policy=policy).commit(
            [Mutation(key, VALUE) for key in keys]
        )


def rows(engine: Engine, table: str, seconds: float) -> list[Measured]:
    found = []
    places = [(f"{n} in {n} rows", n, n) for n in COUNTS] + [("10 in one row", 10, 1)]
    for name, count, spread in places:
        free, locked = (
            [Key(f"{name}-{which}-{i % spread}", "d", f"c{i}", table) for i in range(count)]
            for which in ("free", "held")
        )
        engine.commit([Mutation(key, VALUE) for key in (*free, *locked)])
        held(engine.context.store, table, locked)
        found.append(measure(engine, name, free, locked, seconds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reads", description=__doc__)
    parser.add_argument("stores", nargs="*", default=["embedded"], help="embedded, or URIs")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each number of keys")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    head = ("store", "keys", "plain, ms", "read, ms", "held, ms", "read/plain", "held/plain")
    shown = Table(*head, title="atomic reads beside a plain batch get")
    for store in options.stores:
        with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder:
            uri = f"embedded://{folder}/store" if store == "embedded" else store
            with tables(uri) as table, connect(uri) as engine:
                for each in rows(engine, table(), options.seconds):
                    figures = asdict(each)
                    print(json.dumps({"store": store, **figures})) if options.json else None
                    shown.add_row(
                        store.partition(":")[0],
                        each.keys,
                        *(f"{figures[name]:.2f}" for name in list(figures)[1:]),
                    )
    if not options.json:
        Console(width=110).print(shown)


if __name__ == "__main__":
    main()
