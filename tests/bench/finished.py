"""Finished transaction rows by the million, as their owners would have left them; and
`python -m tests.bench finished`: what `txn fsck` and `txn ls` take to look at a store of them.

One real transaction is committed and its row is read; every further row has the same cells, under a
row key of its own, with the timestamps moved as far. They are written in batches through the
store, by a few processes. They were begun within the last hour: `fsck` has nothing to say.
Told are time, processor time, and memory: a process's own, and what it has mapped of the store.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

from txn import Engine, Key, Mutation, connect
from txn.model import Cell, Edit, Row
from txn.protocol.row import created_ms, is_row_key, new_row_key
from txn.stores import open_store

AGE_MS = 3_600_000
BATCH = 500
PROCESSES = 4


def make_finished(
    uri: str, connected: Callable[[str], Engine], table: str, count: int, *, salt_buckets: int = 1
) -> float:
    """Write so many rows into the transaction table of what is connected; return how many seconds
    it took. table: of data, for the one that is copied."""
    with connected(uri) as engine:
        template = read_template(engine, table)
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    shares = [count // PROCESSES + (i < count % PROCESSES) for i in range(PROCESSES)]
    workers = [
        context.Process(target=_write, args=(uri, template, share, seed, salt_buckets))
        for seed, share in enumerate(shares)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed := [worker.exitcode for worker in workers if worker.exitcode]:
        raise RuntimeError(f"cannot write rows: exit codes {failed}")
    return time.monotonic() - began


def read_template(engine: Engine, table: str) -> Row:
    """Commit one transaction, of two accounts that nothing else uses, and return its row."""
    engine.ensure_table(table, ["d"])
    keys = [Key(f"template{number}", "d", "balance", table) for number in range(2)]
    committed = engine.commit([Mutation(key, b"1000") for key in keys])
    engine.flush()
    row_key = committed.transaction
    assert is_row_key(row_key)
    (row,) = engine.context.store.scan(engine.context.table, row_key, row_key + b"\0")
    return row


def copies(template: Row, count: int, rng: Random, salt_buckets: int) -> Iterator[list[Edit]]:
    """Yield the cells of so many rows, each a copy under another row key."""
    began_ms = created_ms(template.row)
    for number in range(count):
        at_ms = began_ms - AGE_MS + number * AGE_MS // count
        row_key = new_row_key(at_ms, rng.getrandbits(128), salt_buckets)
        yield list(_move(template.cells, row_key, at_ms - began_ms))


def _move(cells: dict[Key, Cell], row_key: bytes, by_ms: int) -> Iterator[Edit]:
    for key, cell in cells.items():
        yield Edit(key._replace(row=row_key), cell.value, cell.timestamp + by_ms)


def _write(uri: str, template: Row, count: int, seed: int, salt_buckets: int) -> None:
    """The body of one process."""
    store = open_store(uri)
    try:
        rows = copies(template, count, Random(seed), salt_buckets)
        while part := list(islice(rows, BATCH)):
            store.write(_join(part), durable=False)
        store.write([])
    finally:
        store.close()


def _join(rows: Sequence[list[Edit]]) -> list[Edit]:
    return [edit for row in rows for edit in row]


STATUSES = ("0", "none", "5")
COMMANDS = (
    ["fsck"],
    *(["ls", "--status", status] for status in STATUSES),
    ["ls", "--status", "5", "--count"],
    ["ls"],
)
MEMORY = {"RssAnon:": 0, "RssFile:": 0}
LOOK_EVERY_S = 0.05


def measure(uri: str, command: Sequence[str]) -> str:
    """Run `txn` on a store; return what it took, as columns of a table."""
    script = [sys.executable, "-c", "from recovery.commands import main; main()"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen([*script, *command, "--store", uri], stdout=subprocess.DEVNULL)
    most = dict(MEMORY)
    while process.poll() is None:
        for name, kilobytes in read_memory(process.pid).items():
            most[name] = max(most[name], kilobytes)
        time.sleep(LOOK_EVERY_S)
    took_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    own, mapped = (f"{kilobytes / 1024:.0f} MB" for kilobytes in most.values())
    if process.returncode:
        raise RuntimeError(f"failed: {command}")
    return f"`txn {' '.join(command)}` | {took_s:.1f} s | {cpu_s:.1f} s | {own} | {mapped}"


def read_memory(process: int) -> dict[str, int]:
    """Return how many kilobytes a process has for itself, and of files."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return {}
    parts = [line.split() for line in lines if line]
    return {part[0]: int(part[1]) for part in parts if part[0] in MEMORY}


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What fsck and ls take beside finished rows.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="0: use what is there")
    parser.add_argument("--store", help="one to fill and look at; else an embedded one is made")
    parser.add_argument("--times", type=int, default=1, help="how often each command is run")
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as place:
        uri = options.store or f"embedded://{place}/store?sync=off"
        if options.rows:
            make_finished(uri, connect, "data", options.rows)
        print("| command | took | processor | memory of its own | mapped |\n|---|---|---|---|---|")
        for command in COMMANDS * options.times:
            print(f"| {measure(uri, command)} |", flush=True)


if __name__ == "__main__":
    main()
