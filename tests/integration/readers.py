"""Readers check, beside a job, that a table appears completely or not at all."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic

from txn.client.connect import connect
from txn.client.engine import Engine
from txn.demo import data
from txn.demo.data import FAMILY, DemoTables, Flight
from txn.model import Key

KEYS = 50
"""The number of cells, spread over the rows of a table, that are read at one instant."""
RESTS = 3
LEAST_REST_S, MOST_REST_S = 0.1, 2.0
"""The limits of a reader's pause, a multiple of its reading time, so as not to slow the job."""

SIGHTS = NOTHING, PART, ALL = ("nothing", "a part", "all")
"""How much of a table a reader sees."""


@dataclass(frozen=True, slots=True)
class ExpectedTable:
    """A table in its final state. column: one that each of its rows has."""

    name: str
    column: str
    rows: Sequence[str]

    def inspect(self, engine: Engine) -> Iterator[str]:
        """Yield three sights: of some cells, of the rows of a scan, and of the cells again.

        A scan is not of one instant, so its rows count only between equal reads of the cells.
        """
        step = -(-len(self.rows) // KEYS)
        chosen = {*self.rows[::step], self.rows[-1]}
        keys = [Key(row, FAMILY, self.column, self.name) for row in chosen]

        def read_keys() -> str:
            found = sum(cell is not None for cell in engine.read(keys).values())
            return _name_sight(found, len(keys))

        before = read_keys()
        column = (FAMILY.encode(), self.column.encode())
        count = sum(1 for _ in engine.scan(self.name, columns=[column]))
        after = read_keys()
        yield before
        if before == after:
            yield _name_sight(count, len(self.rows))
        yield after


def _name_sight(count: int, total: int) -> str:
    if count == 0:
        return NOTHING
    return ALL if count == total else PART


@dataclass(slots=True)
class Sights:
    """The sights of a table, counted. lost: how often a complete table was gone later."""

    seen: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(SIGHTS, 0)))
    lost: int = 0

    def add(self, sight: str) -> None:
        """Count a sight, which is later than those before it."""
        self.lost += self.seen[ALL] > 0 and sight != ALL
        self.seen[sight] += 1


@contextmanager
def watch_tables(uri: str, tables: DemoTables, source: Path) -> Iterator[dict[str, Sights]]:
    """Read the tables repeatedly during the block, and once after it; yield the sights of each."""
    expected = expect_tables(tables, read_source(source))
    sights = {table.name: Sights() for table in expected}
    over = Event()

    def read() -> None:
        with connect(uri, transactions=tables.transactions) as engine:
            is_over = False
            while not is_over:
                is_over, began_s = over.is_set(), monotonic()
                for table in expected:
                    for sight in table.inspect(engine):
                        sights[table.name].add(sight)
                rest_s = RESTS * (monotonic() - began_s)
                over.wait(min(max(LEAST_REST_S, rest_s), MOST_REST_S))

    with ThreadPoolExecutor(1, "readers") as readers:
        reading = readers.submit(read)
        try:
            yield sights
        finally:
            over.set()
        reading.result()


def expect_tables(tables: DemoTables, flights: Iterator[Flight]) -> list[ExpectedTable]:
    rows, entries = list[str](), list[str]()
    for flight in flights:
        row = data.flight_row(flight)
        rows.append(row)
        entries += data.index_rows(
            flight["origin"] or "", row, flight["dest"] or "", flight["tailnum"]
        )
    return [
        ExpectedTable(tables.flights, data.ANCHOR, sorted(rows)),
        ExpectedTable(tables.indexes, data.ENTRY, sorted(entries)),
    ]


def read_source(source: Path) -> Iterator[Flight]:
    with source.open(newline="") as lines:
        for line in csv.DictReader(lines):
            yield {name: None if text == "NA" else text for name, text in line.items()}
