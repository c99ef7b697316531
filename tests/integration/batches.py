"""Threads that transfer money in batches while something is done to their store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random

from txn import AbortedError, Committed, Engine, Key, Mutation, Request, TxnError, Version
from txn.model import Family

ACCOUNTS = 200
BALANCE = 100
BATCH = 10
SPLITS = (b"account050", b"account100", b"account150")

HandIn = Callable[[Engine, Sequence[Request]], Sequence[Committed | BaseException]]


def account(number: int) -> Key:
    return Key(f"account{number:03}", "d", "x")


def commit_atomically(engine: Engine, requests: Sequence[Request]) -> list[Committed | TxnError]:
    return engine.commit_many(requests)


def submit_all(engine: Engine, requests: Sequence[Request]) -> list[Committed | BaseException]:
    futures = [engine.submit(request) for request in requests]
    return [future.exception() or future.result() for future in futures]


CLIENTS: tuple[HandIn, ...] = (commit_atomically, submit_all) * 2


@contextmanager
def transferring(engine: Engine, table: str) -> Iterator[None]:
    """Make the table, and let clients transfer in it until the end of the block: two by
    `commit_many`, two by `submit`. Each commits something; no money is lost."""
    engine.context.store.ensure_table(table.encode(), {b"d": Family()}, SPLITS)
    engine.commit([Mutation(account(number), b"%d" % BALANCE) for number in range(ACCOUNTS)])
    stop = threading.Event()

    def work(client: int) -> int:
        rng, committed = Random(client), 0
        while not stop.is_set():
            committed += transfer_many(engine, rng, CLIENTS[client])
        return committed

    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        working = [pool.submit(work, client) for client in range(len(CLIENTS))]
        try:
            yield
        finally:
            stop.set()
    committed = [each.result() for each in working]
    assert all(committed), committed
    cells = engine.read([account(number) for number in range(ACCOUNTS)])
    assert sum(int(cell.value) for cell in cells.values() if cell) == ACCOUNTS * BALANCE


def transfer_many(engine: Engine, rng: Random, hand_in: HandIn) -> int:
    """Hand in transfers together; return how many were committed. Anything but a conflict fails."""
    keys = [account(number) for number in rng.sample(range(ACCOUNTS), 2 * BATCH)]
    cells = engine.read(keys)
    requests = []
    for payer, payee in zip(keys[::2], keys[1::2], strict=True):
        mutations, versions = [], []
        for key, by in ((payer, -1), (payee, 1)):
            cell = cells[key]
            assert cell is not None
            mutations.append(Mutation(key, b"%d" % (int(cell.value) + by)))
            versions.append(Version(key, cell.timestamp))
        requests.append(Request(tuple(mutations), tuple(versions)))
    results = hand_in(engine, requests)
    failed = [each for each in results if isinstance(each, BaseException)]
    assert all(isinstance(each, AbortedError) for each in failed), failed
    return len(results) - len(failed)
