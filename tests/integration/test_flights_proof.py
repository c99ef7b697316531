"""What a flight becomes in the tables, by each way to load it; and the proof at the end of the job,
which fails for every way in which the tables can be wrong."""

from __future__ import annotations

import csv
from collections import Counter
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.integration.readers import read_source
from txn import Engine, Key, connect
from txn.demo.data import FAMILY, Flight, WayName, flight_request, flight_row, tables_named, unpack
from txn.demo.job import WAYS, Load, read_flights
from txn.demo.proof import reconcile
from txn.model import Check, Edit
from txn.protocol.row import child_key, column, status_key
from txn.protocol.statuses import Status
from txn.spark import Counts

TABLES = tables_named("flights")
DAMAGE_AT = 1 << 42  # a timestamp (ms) later than any that the test's commits get


@pytest.fixture(scope="module")
def flights(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    csv = unpack(tmp_path_factory.mktemp("csv"), 1)
    known = read_flights(spark, csv).where("tailnum is not null and dep_time is not null")
    return known.limit(20).cache()


@pytest.fixture
def uri(flights: DataFrame, tmp_path: Path) -> str:
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri, transactions=TABLES.transactions) as engine:
        engine.ensure_table(TABLES.flights, [FAMILY])
        engine.ensure_table(TABLES.indexes, [FAMILY])
        for flight in (row.asDict() for row in flights.collect()):
            request = flight_request(TABLES, flight)
            engine.commit(request.mutations, request.assertions, once=flight_row(flight))
    return uri


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_each_way_brings_every_flight_once(
    spark: SparkSession, flights: DataFrame, tmp_path: Path, name: WayName
) -> None:
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri, transactions=TABLES.transactions) as engine:
        engine.ensure_table(TABLES.flights, [FAMILY])
        engine.ensure_table(TABLES.indexes, [FAMILY])
    way = WAYS[name]
    transactions = way.count_transactions(20)
    first, again = Counts.of(spark), Counts.of(spark)
    for counts in (first, again):
        way.run(Load(uri, TABLES, flights, counts, tmp_path), 20)
    checks = reconcile(spark, uri, TABLES, flights, transactions)
    assert [check for check in checks if not check.holds] == []
    assert first.summary().committed == transactions
    assert again.summary().committed == 0


def broken(spark: SparkSession, uri: str, flights: DataFrame) -> dict[str, tuple[int, int]]:
    checks = reconcile(spark, uri, TABLES, flights, 20)
    return {check.name: (check.expected, check.found) for check in checks if not check.holds}


def put(engine: Engine, row: str, name: str, table: str, value: bytes | None) -> None:
    engine.context.store.write([Edit(Key(row, FAMILY, name, table), value, DAMAGE_AT)])


def begin_transaction(engine: Engine) -> None:
    """Leave the row of a transaction whose owner died before it had locked anything."""
    store, table = engine.context.store, engine.context.table
    row_key = b"transaction.1700000000000." + b"0" * 32
    status = status_key(table, row_key)
    buffer = (column(table, row_key, b"buffer"), b"?")
    store.check_and_put([Check(status, b"", ((status, Status.WRITTEN.value), buffer))])


def test_what_others_do_is_not_counted(spark: SparkSession, uri: str, flights: DataFrame) -> None:
    flight = flights.collect()[0].asDict()
    with connect(uri) as engine:
        others = tables_named("others")
        for table in (others.flights, others.indexes):
            engine.ensure_table(table, [FAMILY])
        engine.commit(flight_request(others, flight).mutations)
        engine.commit(flight_request(others, flight).mutations, once=flight_row(flight))
        put(engine, "row", "dest_lock", others.flights, b"transaction.1")
        begin_transaction(engine)
    assert broken(spark, uri, flights) == {}


def test_each_damage_is_found_by_its_check(
    spark: SparkSession, uri: str, flights: DataFrame
) -> None:
    """The tables are compared with the source cell by cell, in both directions; an index is right
    only if both directions are. Of a flight that was committed twice only the transaction rows
    tell, and a part may outlive its transaction."""
    one, two, three, *_ = (row.asDict() for row in flights.collect())
    rows = [flight_row(flight) for flight in (one, two, three)]
    with connect(uri, transactions=TABLES.transactions) as engine:
        engine.commit(flight_request(TABLES, three).mutations)
        put(engine, rows[0], "dep_time", TABLES.flights, b"never")
        put(engine, rows[1], "colour", TABLES.flights, b"red")
        put(engine, "ZZZ/2013-01-01/0000/XX1", "dest", TABLES.flights, b"ZZZ")
        put(engine, f"aircraft/{one['tailnum']}/{rows[0]}", "flight", TABLES.indexes, None)
        for row in ("nothing", "nobody"):
            put(engine, f"route/EWR-IAH/{row}", "flight", TABLES.indexes, row.encode())
        put(engine, rows[2], "dest_lock", TABLES.flights, b"transaction.1")
        put(engine, rows[2], "dest_tag", TABLES.flights, b"17")
        begin_transaction(engine)
        store, table = engine.context.store, engine.context.table
        whole = b"transaction.1700000000000." + b"1" * 32
        for row_key, is_complete in ((whole, False), (child_key(whole, 0, 0), True)):
            status = Status.COMPLETE if is_complete else Status.ABORTED
            store.write([Edit(status_key(table, row_key), status.value, DAMAGE_AT)])
    assert broken(spark, uri, flights) == {
        "flights": (20, 22),
        "flights: missing or different": (0, 1),
        "flights: not in the source": (0, 3),
        "index by aircraft: entries": (20, 19),
        "index by aircraft: flights without entry": (0, 1),
        "index by route: entries": (21, 22),
        "index by route: entries without flight": (0, 2),
        "index by route: flights without entry": (0, 1),
        "cells locked": (0, 1),
        "cells tagged": (0, 1),
        "transaction rows unfinished": (0, 1),
        "transactions committed twice": (0, 1),
        "parts of what was not committed": (0, 1),
    }


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
ROW = "EWR/2013-01-02/0515/UA1545"


@pytest.mark.fast
def test_a_flight_is_a_row_and_an_entry_in_each_index() -> None:
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
