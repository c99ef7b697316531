"""`make bench`: measure, print a table, and write the figures and the plot of docs/performance.md.

`--plot-only` draws again from the last measurement, `--quick` takes one short round and writes
nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.bench.embedded import CASES, Case, Measured, measure

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "performance.json"
PLOT = DOCS / "performance.png"
PAGE = DOCS / "performance.md"
START, END = "<!-- figures: written by make bench -->", "<!-- end of figures -->"

Row = dict[str, Any]


def run(rounds: int, seconds: float) -> list[Row]:
    """Measure every case in each round; return a row a case, with ratios within the rounds."""
    found: dict[Case, list[Measured]] = {case: [] for case in CASES}
    plan = [(number, case) for number in range(rounds) for case in CASES]
    with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder:
        for number, case in track(plan, "measuring"):
            found[case].append(measure(case, seconds, number, Path(folder)))
    return [_row(case, found) for case in CASES]


def _row(case: Case, found: dict[Case, list[Measured]]) -> Row:
    floors = found[Case(0, case.processes)]
    pairs = list(zip(found[case], floors, strict=True))
    return {
        **asdict(case),
        "name": case.name,
        "per_second": median(mine.per_second for mine in found[case]),
        "call_ms": median(mine.call_ms for mine in found[case]),
        "share_of_floor": [mine.per_second / floor.per_second for mine, floor in pairs],
        "latency_to_floor": [mine.call_ms / floor.call_ms for mine, floor in pairs],
    }


def table(rows: list[Row]) -> list[list[str]]:
    """The rows as text: medians, and the range of the ratio over the rounds."""
    head = ["case", "processes", "transfers/s", "call, ms", "share of the floor", "range"]
    lines = [head]
    for row in rows:
        ratios = row["share_of_floor"]
        lines.append(
            [
                row["name"],
                str(row["processes"]),
                f"{row['per_second']:,.0f}",
                f"{row['call_ms']:.2f}",
                f"{median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            ]
        )
    return lines


def write(rows: list[Row]) -> None:
    """Put the table into docs/performance.md, between its two markers."""
    head, *body = table(rows)
    lines = ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *body)]
    text = PAGE.read_text()
    before, after = text.split(START)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{START}\n\n" + "\n".join(lines) + f"\n\n{END}{after}")


def plot(rows: list[Row]) -> None:
    """Draw throughput as shares of the floor, with each round's figure as a point."""
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    transfers = [row for row in rows if row["batch"]]
    for place, row in enumerate(transfers):
        ratios = row["share_of_floor"]
        axes.barh(place, median(ratios), color="#4c72b0" if row["processes"] == 1 else "#8da0cb")
        axes.plot(ratios, [place] * len(ratios), "k.", markersize=4)
    axes.axvline(1, color="black", linewidth=1)
    axes.text(1, -0.75, " the floor: 2 reads, 2 synced writes", va="center", fontsize=8)
    labels = [
        f"{r['name']}, {r['processes']} process" + "es" * (r["processes"] > 1) for r in transfers
    ]
    axes.set_yticks(range(len(transfers)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("transfers a second, as a share of the same store's floor in the same round")
    figure.savefig(PLOT, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case in each round")
    parser.add_argument("--quick", action="store_true", help="one short round; write nothing")
    parser.add_argument("--plot-only", action="store_true", help="draw from the last figures")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if options.plot_only:
        rows = json.loads(FIGURES.read_text())["rows"]
    elif options.quick:
        rows = run(1, 1.0)
    else:
        rows = run(options.rounds, options.seconds)
        about = {"python": platform.python_version(), "machine": platform.machine()}
        FIGURES.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    if not options.quick:
        write(rows)
        plot(rows)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    head, *body = table(rows)
    shown = Table(*head, title="transfers of two keys on the embedded store")
    for line in body:
        shown.add_row(*line)
    Console().print(shown)


if __name__ == "__main__":
    main()
