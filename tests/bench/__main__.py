"""`make bench`: measure, print a table, and write the figures and tables of docs/performance.md.

`python -m tests.bench [SUITE..]`. `--kept` writes the tables again from the last figures; `--quick`
takes one short round and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from rich.progress import track

from tests.bench import (
    aims,
    calls,
    finished,
    listeners,
    parent,
    report,
    rounds,
    spark,
)
from tests.bench.measuring import Case, Measured, measure
from tests.bench.suites import SUITES, Suite, opened

LEAST_S = 1.0
COMMANDS: dict[str, Callable[[Sequence[str]], int | None]] = {
    "calls": calls.main,
    "finished": finished.main,
    "listeners": listeners.main,
    "parent": parent.main,
    "rounds": rounds.main,
    "spark": spark.main,
}
"""What has options of its own: `python -m tests.bench COMMAND --help`."""


def run(suite: Suite) -> list[report.Row]:
    """Measure every case in each round; return a row a case, with ratios within the rounds."""
    found: dict[Case, list[Measured]] = {case: [] for case in suite.cases}
    with opened(suite) as stores:
        for number, case, seconds in track(plan(suite), suite.title):
            measured = measure(case, next(stores), seconds, seed=number + 1)
            if number >= 0:
                found[case].append(measured)
    return [_row(case, found) for case in suite.cases]


def plan(suite: Suite) -> list[tuple[int, Case, float]]:
    """Return what is measured when: the round, from 0 on, the case, and for how long. A round of
    -1 is to warm the servers with every case, and does not count."""
    share_s = max(suite.warm_s / len(suite.cases), LEAST_S)
    warm = [(-1, case, share_s) for case in suite.cases] if suite.warm_s else []
    rounds = range(suite.rounds)
    return warm + [(number, case, suite.seconds) for number in rounds for case in suite.cases]


def _row(case: Case, found: dict[Case, list[Measured]]) -> report.Row:
    peers = found.get(case.peer, [])
    pairs = list(zip(found[case], found[case.floor], strict=True))
    return {
        **asdict(case),
        "name": case.name,
        "subject": case.subject,
        "per_second": median(mine.per_second for mine, _ in pairs),
        "call_ms": median(mine.call_ms for mine, _ in pairs),
        "slow_ms": median(mine.slow_ms for mine, _ in pairs),
        "attempts": median(mine.attempts for mine, _ in pairs),
        "requests": median(mine.requests for mine, _ in pairs),
        "client_us": median(mine.client_us for mine, _ in pairs),
        "server_us": median(mine.server_us for mine, _ in pairs),
        "share_of_floor": [mine.per_second / floor.per_second for mine, floor in pairs],
        "latency_to_floor": [mine.call_ms / floor.call_ms for mine, floor in pairs],
        "share_of_peer": [
            mine.per_second / its.per_second for mine, its in zip(found[case], peers, strict=False)
        ],
        "sum_diff": [mine.sum_diff for mine, _ in pairs],
    }


def main() -> None:
    if sys.argv[1:2] and (command := COMMANDS.get(sys.argv[1])):
        sys.exit(command(sys.argv[2:]))
    else:
        run_suites()


def run_suites() -> None:
    """Measure the suites that are named, or write them again."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        epilog=f"Commands with options of their own: {', '.join(COMMANDS)}.",
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--rounds", type=int, help="how many count")
    parser.add_argument("--seconds", type=float, help="for each case in each round")
    parser.add_argument("--warm", type=float, help="seconds for all before anything counts")
    parser.add_argument("--only", metavar="TEXT", help="cases whose names say so; write nothing")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="measure those beside ours")
    parser.add_argument("--quick", action="store_true", help="one short round; write nothing")
    parser.add_argument("--kept", action="store_true", help="write the last figures again")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    for name in options.suites or ["embedded"]:
        given = {"rounds": options.rounds, "seconds": options.seconds, "warm_s": options.warm}
        asked = {key: value for key, value in given.items() if value is not None}
        suite = replace(SUITES[name], **({"rounds": 1, "seconds": 1.0} if options.quick else asked))
        suite = suite.with_peers(options.peers.resolve()) if options.peers else suite
        suite = suite.only(options.only) if options.only else suite
        rows = report.load(name) if options.kept else run(suite)
        is_kept = not options.quick and not options.only
        if is_kept and not options.kept:
            report.save(name, rows, python=platform.python_version())
        for table in suite.tables if is_kept else ():
            head, body = table.build(rows)
            if len(body) == len(table.cells):  # else other programs were not measured
                report.put(table.name, head, body)
        if options.json:
            print(json.dumps(rows, indent=1))
        else:
            report.show(rows, suite.title)
            print(*aims.lines(rows), sep="\n")


if __name__ == "__main__":
    main()
