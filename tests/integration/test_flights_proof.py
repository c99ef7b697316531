"""Flights are loaded by each way; and the proof at the end of the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from txn import Engine, Key, connect
from txn.demo.data import FAMILY, WayName, flight_request, flight_row, tables_named, unpack
from txn.demo.job import WAYS, Load
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
    read = spark.read.csv(str(csv), header=True, nullValue="NA")
    known = read.where("tailnum is not null and dep_time is not null")
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
    transactions = way.transactions * (1 if way.is_atomic else 20)
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
    """Of a flight that was committed twice only the transaction rows tell."""
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
