"""Finished transaction rows by the million, as their owners would have left them.

One real transaction is committed and its row is read; every further row has the same cells, under a
row key of its own, with the timestamps moved as far. They are written in batches through the
store, by a few processes. All are an hour old: `fsck` looks at them, and has nothing to say.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from random import Random

from txn import Engine, Key, Mutation
from txn.model import Cell, Edit, Row
from txn.protocol.row import created_ms, is_row_key, new_row_key
from txn.stores import open_store

AGE_MS = 3_600_000
BATCH = 500
PROCESSES = 4


def make_finished(
    uri: str, connected: Callable[[str], Engine], table: str, count: int, *, buckets: int = 1
) -> float:
    """Write so many rows into the transaction table of what is connected; return how many seconds
    it took. table: of data, for the one that is copied."""
    with connected(uri) as engine:
        template = read_template(engine, table)
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    shares = [count // PROCESSES + (i < count % PROCESSES) for i in range(PROCESSES)]
    workers = [
        context.Process(target=_write, args=(uri, template, share, seed, buckets))
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


def copies(template: Row, count: int, chance: Random, buckets: int) -> Iterator[list[Edit]]:
    """Yield the cells of so many rows, each a copy under another row key."""
    began_ms = created_ms(template.row)
    for number in range(count):
        at_ms = began_ms - AGE_MS + number % 1000
        row_key = new_row_key(at_ms, chance.getrandbits(128), buckets)
        yield list(_move(template.cells, row_key, at_ms - began_ms))


def _move(cells: dict[Key, Cell], row_key: bytes, by_ms: int) -> Iterator[Edit]:
    for key, cell in cells.items():
        yield Edit(key._replace(row=row_key), cell.value, cell.timestamp + by_ms)


def _write(uri: str, template: Row, count: int, seed: int, buckets: int) -> None:
    """The body of one process."""
    store = open_store(uri)
    try:
        rows = copies(template, count, Random(seed), buckets)
        while part := list(islice(rows, BATCH)):
            store.write(_join(part), durable=False)
        store.write([])
    finally:
        store.close()


def _join(rows: Sequence[list[Edit]]) -> list[Edit]:
    return [edit for row in rows for edit in row]
