"""Transfers between accounts on the embedded store, beside what the store alone can do.

The floor is the same work without a transaction: two reads and two writes, each a call of its own,
each write synced. A transfer reads both balances in one batch and asserts their versions, so it is
what an optimistic client does. Each round measures every case once, in turn, in processes of its
own, and a ratio is always to the floor of the same round.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from txn import Committed, Engine, Key, Mutation, Version, connect
from txn.clock import SystemClock
from txn.model import Edit

ACCOUNTS = 1000
TABLE = "accounts"
BALANCE = b"1000"


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: the floor (batch 0), or transfers in batches, by so many processes."""

    batch: int
    processes: int

    @property
    def name(self) -> str:
        work = "floor" if self.batch == 0 else f"commit_many of {self.batch}"
        return work if self.batch != 1 else "commit"


@dataclass(frozen=True, slots=True)
class Measured:
    """One case in one round: transfers a second of all processes, and the median time of a call."""

    per_second: float
    call_ms: float


CASES = tuple(Case(batch, processes) for processes in (1, 2) for batch in (0, 1, 10, 100))


def account(number: int) -> Key:
    return Key(f"account{number:04d}", "d", "balance", TABLE)


def create(uri: str) -> None:
    """Make the accounts, each with a balance."""
    with connect(uri, table=TABLE) as engine:
        engine.ensure_table(TABLE, ["d"])
        engine.commit_many([([Mutation(account(i), BALANCE)], []) for i in range(ACCOUNTS)])


def transfers(engine: Engine, chance: Random, count: int) -> None:
    """Commit so many transfers together; those that met another process's are run again."""
    while count:
        numbers = chance.sample(range(ACCOUNTS), 2 * count)
        seen = engine.context.store.read([account(number) for number in numbers])
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        results = engine.commit_many([_transfer(seen, *pair) for pair in pairs])
        count -= sum(isinstance(result, Committed) for result in results)


def _transfer(seen: dict[Key, Any], source: int, target: int) -> Any:
    keys = account(source), account(target)
    assertions = [Version(key, seen[key].timestamp) for key in keys]
    balances = int(seen[keys[0]].value) - 1, int(seen[keys[1]].value) + 1
    return [Mutation(k, b"%d" % v) for k, v in zip(keys, balances, strict=True)], assertions


def plain_transfer(store: Any, chance: Random) -> None:
    """The floor: the same reads and writes, with nothing that holds them together."""
    keys = [account(number) for number in chance.sample(range(ACCOUNTS), 2)]
    cells = [store.read([key])[key] for key in keys]
    now = SystemClock().wall_ms()
    for key, cell, by in zip(keys, cells, (-1, 1), strict=True):
        store.write([Edit(key, b"%d" % (int(cell.value) + by), max(now, cell.timestamp + 1))])


def work(uri: str, case: Case, seconds: float, seed: int, start: tuple[Any, Any]) -> None:
    """The body of one measuring process; `start` is a barrier, and a queue for what it found."""
    chance, batch = Random(seed), case.batch
    ready, results = start
    engine = connect(uri, table=TABLE)
    store = engine.context.store
    floor, ours = partial(plain_transfer, store, chance), partial(transfers, engine, chance, batch)
    call: Callable[[], None] = ours if batch else floor
    call()
    ready.wait()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        call()
        times.append(time.perf_counter() - began)
    results.put((len(times) * max(batch, 1) / sum(times), median(times) * 1000))
    engine.close()


def measure(case: Case, seconds: float, seed: int, folder: Path) -> Measured:
    """Run one case on a store of its own."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        uri = f"embedded://{directory}/store"
        create(uri)
        ready, results = context.Barrier(case.processes), context.Queue()
        workers = [
            context.Process(target=work, args=(uri, case, seconds, seed + i, (ready, results)))
            for i in range(case.processes)
        ]
        for worker in workers:
            worker.start()
        rows = [results.get(timeout=seconds + 60) for _ in workers]
        for worker in workers:
            worker.join()
    return Measured(sum(row[0] for row in rows), median(row[1] for row in rows))
