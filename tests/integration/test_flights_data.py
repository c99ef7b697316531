"""What a flight becomes: its row, its cells, its entries in the indexes."""

from __future__ import annotations

import csv
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from tests.integration.readers import read_source
from txn.demo.data import Flight, flight_request, flight_row, tables_named, unpack

FLIGHT = {
    "year": "2013",
    "month": "1",
    "day": "2",
    "dep_time": "517",
    "sched_dep_time": "515",
    "dep_delay": "2",
    "arr_time": "830",
    "sched_arr_time": "819",
    "arr_delay": "11",
    "carrier": "UA",
    "flight": "1545",
    "tailnum": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "air_time": "227",
    "distance": "1400",
    "time_hour": "2013-01-02T10:00:00Z",
}
TABLES = tables_named("flights")
ROW = "EWR/2013-01-02/0515/UA1545"


@pytest.mark.fast
def test_a_flight_is_a_row_and_an_entry_in_each_index() -> None:
    """The indexes are what needs a transaction: three rows of two tables change together."""
    mutations = flight_request(TABLES, FLIGHT).mutations
    assert {(m.key.table, m.key.row) for m in mutations} == {
        (b"flights", ROW.encode()),
        (b"flights-indexes", f"route/EWR-IAH/{ROW}".encode()),
        (b"flights-indexes", f"aircraft/N14228/{ROW}".encode()),
    }


@pytest.mark.fast
def test_what_is_not_known_has_no_cell_and_no_entry() -> None:
    """A cancelled flight has no times, and often no aircraft; HBase has no empty values."""
    cancelled = FLIGHT | dict.fromkeys(("tailnum", "dep_time", "air_time"))
    mutations = flight_request(TABLES, cancelled).mutations
    assert not [m for m in mutations if m.key.column in (b"tailnum", b"dep_time", b"air_time")]
    assert not [m for m in mutations if m.key.row.startswith(b"aircraft/")]


def test_no_two_flights_of_the_year_have_the_same_row_key(tmp_path: Path) -> None:
    """Two flights under one key would make the second one's assertion fail for ever."""
    with unpack(tmp_path).open(newline="") as file:
        rows = Counter(flight_row(flight) for flight in csv.DictReader(file))
    assert len(rows) == 336_776
    assert max(rows.values()) == 1


def test_the_first_days_of_the_year_are_unpacked(tmp_path: Path) -> None:
    """The job would find too few flights, and prove itself right with these."""
    for folder in ("year", "days"):
        (tmp_path / folder).mkdir()
    part, whole = unpack(tmp_path / "days", 33), unpack(tmp_path / "year")
    days = list(read_source(part))
    assert days == [each for each in read_source(whole) if is_of_days(each, 33)]
    assert {(int(day["month"] or 0), int(day["day"] or 0)) for day in days} == {
        *((1, number) for number in range(1, 32)),
        *((2, number) for number in (1, 2)),
    }


def is_of_days(flight: Flight, days: int) -> bool:
    day = date(2013, int(flight["month"] or 0), int(flight["day"] or 0))
    return (day - date(2013, 1, 1)).days < days
