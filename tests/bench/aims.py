"""What the native transport is to reach, and what a run of the suite `native` says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Aim:
    """wanted: what rows it is about, of which the best counts. of: its figure, beside all rows."""

    title: str
    least: float
    wanted: dict[str, Any]
    of: Callable[[Row, Sequence[Row]], float | None]


def share_of_java(clients: int) -> Callable[[Row, Sequence[Row]], float | None]:
    """Return what compares with plain Java's rate with so many clients."""

    def compare(row: Row, rows: Sequence[Row]) -> float | None:
        alike = {"program": "java", "work": row["work"], "clients": clients}
        java = [each for each in rows if matches(each, {**alike, "accounts": row["accounts"]})]
        return row["per_second"] / java[0]["per_second"] if java else None

    return compare


def rate(row: Row, _: Sequence[Row]) -> float:
    """Return how many a second."""
    return float(row["per_second"])


def quickness(row: Row, _: Sequence[Row]) -> float:
    """Return the floor's latency in latencies of this."""
    return 1 / median(row["latency_to_floor"])


OURS = {"protocol": "fenced", "transport": "native", "program": ""}
W1 = {**OURS, "work": "transfer", "accounts": 1000}
AIMS = (
    *(
        Aim(f"16 clients, {way}, to Java's 16", 0.6, {**W1, "clients": 16, "way": way}, figure)
        for way, figure in (("threads", share_of_java(16)), ("submit", share_of_java(16)))
    ),
    Aim("commit_many of 100, to Java's 16", 0.8, {**W1, "batch": 100}, share_of_java(16)),
    Aim(
        "transfers a second between ten accounts, 16 clients",
        300,
        {**W1, "accounts": 10, "clients": 16, "way": "threads"},
        rate,
    ),
    Aim("flights a second from one process", 1000, {**OURS, "work": "flights", "clients": 1}, rate),
    Aim(
        "decided, 1 client: the floor's latency to it",
        1.0,
        {**W1, "clients": 1, "ack": "decided"},
        quickness,
    ),
)


def matches(row: Row, wanted: dict[str, Any]) -> bool:
    """Return whether a row is of this kind; a floor is of none."""
    is_asked = bool(row["batch"] or wanted.get("program"))
    return is_asked and all(row.get(name) == value for name, value in wanted.items())


def lines(rows: Sequence[Row]) -> list[str]:
    """Return a line for each aim that the run says something of."""
    told = []
    for aim in AIMS:
        figures = [aim.of(row, rows) for row in rows if matches(row, aim.wanted)]
        known = [figure for figure in figures if figure is not None]
        if known:
            verdict = "reached" if max(known) >= aim.least else "not reached"
            told.append(f"{aim.title}: {max(known):,.2f}, aim {aim.least:,.2f}: {verdict}")
    wrong = [row for row in rows if row["batch"] and any(row.get("sum_diff", ()))]
    told += [f"WRONG SUM after {row['name']}: {row['sum_diff']}" for row in wrong]
    return told
