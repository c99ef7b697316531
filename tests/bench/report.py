"""Kept figures, as a table for the terminal and as tables of a page in docs/."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "performance"
PAGE = DOCS / "performance.md"
HEAD = (
    *("work", "case", "clients", "a second", "call, ms", "99 %", "share of floor", "range"),
    *("latency to floor", "attempts", "requests", "client, µs", "server, µs", "to peer"),
)

Row = dict[str, Any]


def save(suite: str, rows: list[Row], **about: str) -> None:
    """Keep the figures, so that the tables can be written again."""
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps({**about, "rows": rows}, indent=1)
    (FOLDER / f"{suite}.json").write_text(text + "\n")


def load(suite: str) -> list[Row]:
    """Return the figures that were kept last."""
    rows: list[Row] = json.loads((FOLDER / f"{suite}.json").read_text())["rows"]
    return rows


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """The rows as text: medians over the rounds, and the range of the ratio."""
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
            f"{row['client_us']:,.0f}",
            f"{row['server_us']:,.0f}" if row["server_us"] else "",
            f"{median(row['share_of_peer']):.2f}" if row["share_of_peer"] else "",
        ]
        for row in rows
    ]


def show(rows: Sequence[Row], title: str) -> None:
    """Print the table."""
    table = Table(*HEAD, title=title)
    for line in lines(rows):
        table.add_row(*line)
    Console(width=180).print(table)


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of a page. cells: for each line, by its title, the case that each column shows. show:
    the text of its figures. A case that was not measured leaves its cell empty, and a line without
    any is left out."""

    name: str
    corner: str
    cells: Mapping[str, Mapping[str, Any]]
    show: Callable[[Row], str]

    def build(self, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
        """Return its head and its body."""
        columns = list(dict.fromkeys(title for line in self.cells.values() for title in line))
        body = [
            [title, *(self._find(rows, line.get(column)) for column in columns)]
            for title, line in self.cells.items()
        ]
        return [self.corner, *columns], [line for line in body if any(line[1:])]

    def _find(self, rows: Sequence[Row], case: Any) -> str:
        wanted = asdict(case) if case else {}
        same = (row for row in rows if all(row[name] == wanted[name] for name in wanted))
        return next(map(self.show, same), "") if wanted else ""


def show_rate(row: Row) -> str:
    return f"{row['per_second']:,.0f}"


def show_share_of_peer(row: Row) -> str:
    """A rate, and its share of that of the program beside it."""
    is_ours = row["batch"] and not row["program"] and row["share_of_peer"]
    return show_rate(row) + (f" ({median(row['share_of_peer']):.2f})" if is_ours else "")


def show_share_of_floor(row: Row) -> str:
    """The rate of a floor, and the share of its floor of anything else."""
    return f"{median(row['share_of_floor']):.2f}" if row["batch"] else show_rate(row)


def join_cells(line: Sequence[str]) -> str:
    return f"| {' | '.join(line)} |"


def put(
    name: str,
    head: Sequence[str],
    body: Sequence[Sequence[str]],
    *,
    page: Path = PAGE,
) -> None:
    """Put a table into a page, between its two markers."""
    start, end = f"<!-- {name}: written by tests/bench -->", f"<!-- end of {name} -->"
    before, rest = page.read_text().split(start)
    after = rest.split(end)[1]
    table = "\n".join((join_cells(head), f"|{'---|' * len(head)}", *map(join_cells, body)))
    page.write_text(f"{before}{start}\n\n{table}\n\n{end}{after}")
