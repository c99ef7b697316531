"""Figures as a table for people, a table in docs/performance.md, and a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from rich.console import Console
from rich.table import Table

mpl.use("Agg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "performance"
PAGE = DOCS / "performance.md"
HEAD = (
    *("work", "case", "clients", "a second", "call, ms", "99 %", "share of floor", "range"),
    *("latency to floor", "attempts", "requests", "client, µs", "server, µs"),
)

JAVA = "to Java"

Row = dict[str, Any]


def head(rows: list[Row]) -> tuple[str, ...]:
    """The columns that there are: a plain Java client is not in every run."""
    return (*HEAD, JAVA) if _has_java(rows) else HEAD


def _has_java(rows: list[Row]) -> bool:
    return any(row.get("share_of_java") for row in rows)


def save(suite: str, rows: list[Row], **about: str) -> None:
    """Keep the figures, so that the plot can be drawn again."""
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps({**about, "rows": rows}, indent=1)
    (FOLDER / f"{suite}.json").write_text(text + "\n")


def load(suite: str) -> list[Row]:
    """Return the figures that were kept last."""
    rows: list[Row] = json.loads((FOLDER / f"{suite}.json").read_text())["rows"]
    return rows


def lines(rows: list[Row]) -> list[list[str]]:
    """The rows as text: medians over the rounds, and the range of the ratio."""
    has_java = _has_java(rows)
    return [
        [
            row["subject"],
            row["name"],
            str(row["clients"]),
            f"{row['per_second']:,.0f}",
            f"{row['call_ms']:.2f}",
            f"{row['slow_ms']:.1f}",
            f"{median(row['share_of_floor']):.2f}",
            f"{min(row['share_of_floor']):.2f} to {max(row['share_of_floor']):.2f}",
            f"{median(row['latency_to_floor']):.2f}",
            f"{row['attempts']:.2f}",
            f"{row['requests']:.1f}" if row["requests"] else "",
            f"{row['client_us']:,.0f}" if row.get("client_us") else "",  # older figures have none
            f"{row['server_us']:,.0f}" if row["server_us"] else "",
            *([_median_text(row["share_of_java"])] if has_java else []),
        ]
        for row in rows
    ]


def _median_text(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f}" if ratios else ""


def show(rows: list[Row], title: str) -> None:
    """Print the table."""
    table = Table(*head(rows), title=title)
    for line in lines(rows):
        table.add_row(*line)
    Console(width=180).print(table)


def write(suite: str, rows: list[Row], picture: str = "") -> None:
    """Put the table into docs/performance.md, between the suite's two markers."""
    put(suite, head(rows), lines(rows), picture=picture)


def put(
    suite: str,
    head: Sequence[str],
    body: Sequence[Sequence[str]],
    *,
    page: Path = PAGE,
    picture: str = "",
) -> None:
    """Put any table there, or into another page. picture: the name of a plot that follows it."""
    start, end = f"<!-- {suite}: written by make bench -->", f"<!-- end of {suite} -->"
    before, rest = page.read_text().split(start)
    after = rest.split(end)[1]
    table = "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *body))
    shown = f"\n\n![{suite.replace('-', ', ')}](performance/{picture})" if picture else ""
    page.write_text(f"{before}{start}\n\n{table}{shown}\n\n{end}{after}")


def plot(suite: str, rows: list[Row], title: str) -> None:
    """Draw throughput as shares of the floor, with each round's figure as a point."""
    ours = [row for row in rows if row["batch"] and not row.get("program")]
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.4 * len(ours)), layout="constrained")
    for place, row in enumerate(ours):
        shares = row["share_of_floor"]
        axes.barh(place, median(shares), color="#4c72b0" if row["clients"] == 1 else "#8da0cb")
        axes.plot(shares, [place] * len(shares), "k.", markersize=4)
    axes.axvline(1, color="black", linewidth=1)
    axes.text(1, -0.75, " the floor", va="center", fontsize=8)
    labels = [f"{row['subject']}: {row['name']}, clients: {row['clients']}" for row in ours]
    axes.set_yticks(range(len(ours)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("share of the floor's throughput in the same round")
    axes.set_title(title, fontsize=10)
    figure.savefig(FOLDER / f"{suite}.png", dpi=120)
    plt.close(figure)
