"""`python -m tests.bench.vacant`: what keys that were written and deleted leave, and its repair.

So many keys are written, and deleted, in batches; then comes what `fsck --repair --scan` does, with
no retention. Cells are what a scan finds; entries are what the embedded store keeps for it, markers
and transaction rows among them; pages are what they take. A file never shrinks: it is used again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import lmdb

from recovery import check, compact, repair_all
from txn import Delete, Engine, Key, Mutation, connect

TABLE = b"queue"
BATCH = 500
PAGE = 4096


def use(engine: Engine, count: int) -> None:
    """Write the keys, and delete them."""
    keys = [Key(b"%08d" % number, b"d", b"item", TABLE) for number in range(count)]
    parts = [keys[start : start + BATCH] for start in range(0, count, BATCH)]
    for part in parts:
        engine.commit([Mutation(key, b"v" * 100) for key in part])
    for part in parts:
        engine.commit([Delete(key) for key in part])


def told(folder: Path) -> str:
    """Return what a store that nobody has open holds, as columns of a table."""
    with connect(f"embedded://{folder}") as engine:
        cells = sum(len(row.cells) for row in engine.context.store.scan(TABLE))
    with lmdb.open(str(folder), readonly=True, max_dbs=8) as environment:
        stat, size = environment.stat(), environment.info()["last_pgno"] * PAGE
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    used, kept = pages * PAGE / 2**20, size / 2**20
    return f"{cells:,} | {stat['entries']:,} | {used:.1f} of {kept:.1f} MB"


def sweep(engine: Engine) -> str:
    """Repair; return how many findings there were, and how long it took."""
    context, began = engine.context, time.monotonic()
    findings = check(context, grace_ms=0, retention_ms=0, scan=[TABLE])
    found = sum(1 for _ in repair_all(context, findings))
    compact(context, retention_ms=0, tables=[TABLE])
    return f"{found:,} | {time.monotonic() - began:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=11_000)
    count = parser.parse_args().keys
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "store"
        with connect(f"embedded://{folder}") as engine:
            engine.ensure_table(TABLE, ["d"])
            use(engine, count)
        print("| | cells | entries | pages in use | findings | took |\n|---|---|---|---|---|---|")
        print(f"| written and deleted | {told(folder)} | | |")
        with connect(f"embedded://{folder}") as engine:
            taken = sweep(engine)
        print(f"| repaired | {told(folder)} | {taken} |")


if __name__ == "__main__":
    main()
