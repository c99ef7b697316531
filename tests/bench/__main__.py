"""`make bench`: measure, print a table, and write the figures and plots of docs/performance.md.

`python -m tests.bench [SUITE..]`. `--plot-only` draws again from the last measurements; `--quick`
takes one short round and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from statistics import median

from rich.progress import track

from tests.bench import report
from tests.bench.measuring import Case, Measured, measure
from tests.bench.suites import SUITES, Suite, opened


def run(suite: Suite, rounds: int, seconds: float) -> list[report.Row]:
    """Measure every case in each round; return a row a case, with ratios within the rounds."""
    found: dict[Case, list[Measured]] = {case: [] for case in suite.cases}
    first = -1 if suite.warm else 0
    plan = [(number, case) for number in range(first, rounds) for case in suite.cases]
    with opened(suite) as stores:
        for number, case in track(plan, suite.title):
            measured = measure(case, next(stores), seconds, seed=number + 1)
            if number >= 0:
                found[case].append(measured)
    return [_row(case, found) for case in suite.cases]


def _row(case: Case, found: dict[Case, list[Measured]]) -> report.Row:
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
        "server_us": median(mine.server_us for mine, _ in pairs),
        "share_of_floor": [mine.per_second / floor.per_second for mine, floor in pairs],
        "latency_to_floor": [mine.call_ms / floor.call_ms for mine, floor in pairs],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case in each round")
    parser.add_argument("--quick", action="store_true", help="one short round; write nothing")
    parser.add_argument("--plot-only", action="store_true", help="draw from the last figures")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    for name in options.suites or ["embedded"]:
        suite = SUITES[name]
        if options.plot_only:
            rows = report.load(name)
        elif options.quick:
            rows = run(suite, 1, 1.0)
        else:
            rows = run(suite, options.rounds, options.seconds)
            report.save(name, rows, python=platform.python_version())
        if not options.quick:
            report.write(name, rows)
            report.plot(name, rows, suite.title)
        if options.json:
            print(json.dumps(rows, indent=1))
        else:
            report.show(rows, suite.title)


if __name__ == "__main__":
    main()
