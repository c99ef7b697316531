"""One process of the bank: two threads that transfer between accounts until they are killed.

`python -m tests.integration.bank URI SEED LOG`. Each transfer also writes a receipt, a row of its
own, in the same transaction; its name is appended to the log once the commit was reported.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from random import Random

from tests.integration.workers import Log
from txn import AbortedError, Engine, Key, Mutation, Policy, Version, connect
from txn.protocol.statuses import ProtocolName

TABLE = "bank"
ACCOUNTS = [Key(f"account{number:02d}", "d", "balance", TABLE) for number in range(20)]
BALANCE = 1000
PAUSE_S = 0.05
"""Else there are soon more transactions for fsck to look at than it can between two kills."""

POLICY = Policy(lock_ttl_ms=400, deadline_ms=60_000, attempts=50)


def receipt(name: str) -> Key:
    return Key(f"receipt/{name}", "d", "x", TABLE)


def open_bank(uri: str, protocol: ProtocolName | None = None) -> Engine:
    return connect(uri, table=TABLE, policy=POLICY, protocol=protocol)


def found_bank(uri: str, protocol: ProtocolName = "six-phase") -> None:
    """Make the table and give each account its balance."""
    with open_bank(uri, protocol) as engine:
        engine.ensure_table(TABLE, ["d"])
        engine.commit([Mutation(key, str(BALANCE)) for key in ACCOUNTS])


def transfer(engine: Engine, rng: Random, name: str, ack: str) -> bool:
    """Move some money; return whether that was reported as committed."""
    keys = rng.sample(ACCOUNTS, 2)
    cells = engine.read(keys)
    amount = rng.randint(1, 10)
    mutations, versions = [Mutation(receipt(name), str(amount))], []
    for key, by in zip(keys, (-amount, amount), strict=True):
        cell = cells[key]
        assert cell is not None
        mutations.append(Mutation(key, str(int(cell.value) + by)))
        versions.append(Version(key, cell.timestamp))
    try:
        engine.commit(mutations, versions, ack=ack)  # type: ignore[arg-type]
    except AbortedError:
        return False
    return True


def work(engine: Engine, seed: int, log: Log) -> None:
    rng, number = Random(seed), 0
    while True:
        number += 1
        name = f"{os.getpid()}-{seed}-{number}"
        if transfer(engine, rng, name, rng.choice(["complete", "decided"])):
            log.add(committed=name)
        time.sleep(PAUSE_S)


def main() -> None:
    uri, seed, path = sys.argv[1:]
    log = Log(Path(path))
    engine = open_bank(uri)
    threads = [
        threading.Thread(target=work, args=(engine, 2 * int(seed) + i, log)) for i in range(2)
    ]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
