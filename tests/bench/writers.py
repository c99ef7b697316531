"""What writers of one embedded store do to each other: `python -m tests.bench.writers [TREE]`.

Commits of one cell, each process on keys of its own, so that nothing but the store is contended.
With the path of another checkout its code is measured in turns with this one's, and the ratios are
of neighbouring runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

from txn import Key, Mutation, connect

HERE = Path(__file__).parents[2]
CASES = list(product((1, 2), ("?sync=off", "")))


class Found(NamedTuple):
    """The rate of all the processes, and the slowest commit of any."""

    per_second: float
    slowest_ms: float


def work(uri: str, name: str, begin: float, seconds: float) -> None:
    """Commit from a time of day on for so long; print how often a second, and the slowest."""
    with connect(uri, table="t", salt_buckets=1) as engine:
        engine.ensure_table("t", ["d"])
        time.sleep(max(0.0, begin - time.time()))
        count, slowest, before = 0, 0.0, time.perf_counter()
        due = before + seconds
        while before < due:
            engine.commit([Mutation(Key(f"{name}{count % 100}", "d", "x"), "1")])
            now = time.perf_counter()
            count, slowest, before = count + 1, max(slowest, now - before), now
        print(json.dumps([count / seconds, slowest * 1000]))


def measure(tree: Path, processes: int, query: str, seconds: float) -> Found:
    """Measure the code of a checkout on a new store."""
    with tempfile.TemporaryDirectory(prefix="txn-writers-") as folder:
        begin = time.time() + 1.5
        command = [sys.executable, __file__, "--work", f"embedded://{folder}/store{query}"]
        running = [
            subprocess.Popen(
                [*command, chr(97 + number), str(begin), str(seconds)],
                env={"PYTHONPATH": str(tree)},
                stdout=subprocess.PIPE,
            )
            for number in range(processes)
        ]
        told = [json.loads(process.communicate()[0]) for process in running]
    return Found(sum(rate for rate, _ in told), max(slowest for _, slowest in told))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.writers", description=__doc__)
    parser.add_argument("tree", nargs="?", help="another checkout, to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    trees = [HERE] if options.tree is None else [Path(options.tree), HERE]
    print("processes  store      commits/s: other, this  ratio (least - most)  slowest ms")
    for processes, query in CASES:
        rounds = [
            [measure(tree, processes, query, options.seconds) for tree in trees]
            for _ in range(options.rounds)
        ]
        ratios = [found[-1].per_second / found[0].per_second for found in rounds]
        rates = ", ".join(
            f"{median(found[place].per_second for found in rounds):.0f}"
            for place in range(len(trees))
        )
        slowest = ", ".join(
            f"{max(found[place].slowest_ms for found in rounds):.1f}" for place in range(len(trees))
        )
        kind = "unsynced" if query else "synced"
        spread = f"{median(ratios):.3f} ({min(ratios):.3f} - {max(ratios):.3f})"
        print(f"{processes:<10} {kind:<10} {rates:<23} {spread:<21} {slowest}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
    else:
        main()
