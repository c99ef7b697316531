"""The measurements themselves: their plans, the work that they name and the tables on the page."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import Row

from recovery import check, summary
from tests.bench import __main__ as bench
from tests.bench import (
    aims,
    calls,
    emulator,
    finished,
    peers,
    report,
    spark,
    workloads,
)
from tests.bench.measuring import Case, open_engine
from tests.bench.suites import NATIVE, ONE, SUITES
from txn import Engine
from txn.errors import TxnError
from txn.request import Ack
from txn.stores import open_store

pytestmark = pytest.mark.long
TABLES = workloads.Tables("bench-six-phase")
PROGRAMS = {"Java, no transactions", "Omid", "Tephra"}


def test_each_case_comes_after_its_floor() -> None:
    """Ratios are of one round."""
    for suite in SUITES.values():
        assert len(set(suite.cases)) == len(suite.cases)
        for place, case in enumerate(suite.cases):
            assert case.floor in suite.cases[: place + 1]


def test_the_plan_warms_every_case_before_any_counts() -> None:
    """Servers compile what they run; rounds are interleaved."""
    count = len(NATIVE)
    suite = replace(SUITES["native"], warm_s=2.0 * count, rounds=2, seconds=6.0)
    planned = bench.plan(suite)
    assert [case for _, case, _ in planned] == 3 * list(NATIVE)
    assert [number for number, _, _ in planned] == [-1] * count + [0] * count + [1] * count
    warmed = sum(seconds for number, _, seconds in planned if number < 0)
    assert warmed == pytest.approx(2.0 * count)
    assert {seconds for number, _, seconds in planned if number >= 0} == {6.0}
    assert min(number for number, _, _ in bench.plan(replace(suite, warm_s=0))) == 0


def test_flights_are_committed_and_their_floor_writes_the_same_cells() -> None:
    """The floor is the same work without a transaction."""
    store = open_store("memory://")
    with Engine(store, table=TABLES.name, transactions=TABLES.transactions) as engine:
        workloads.found(engine, 2, TABLES)
        assert workloads.flights(engine, TABLES, Random(1), 3, "complete") == 3
        assert workloads.plain_flight(store, TABLES, Random(2)) == 1
        rows = [list(row.cells) for row in engine.scan(TABLES.flights.flights)]
        assert [len(cells) for cells in rows] == [10] * 4
        assert len(list(engine.scan(TABLES.flights.indexes))) == 8


def test_tables_of_the_page_are_written_from_the_figures_that_are_kept() -> None:
    """A case that is renamed would leave its line out."""
    rows = report.load("native")
    assert all(len(line) == len(report.HEAD) for line in report.lines(rows))
    for table in SUITES["native"].tables:
        head, body = table.build(rows)
        assert set(table.cells) - {line[0] for line in body} <= PROGRAMS
        assert len(body[0]) == len(head)
        assert all(body[0])
    emulated = report.load("emulator")
    head, body = emulator.page_table(emulated)
    assert all(len(line) == len(head) for line in body)
    assert len(body) == len(emulator.KINDS) * len(emulator.WORKS)


def test_the_page_shows_the_kept_tables() -> None:
    """They are not written by hand."""
    page = report.PAGE.read_text()
    tables = [
        SUITES["native"].tables[1].build(report.load("native")),
        emulator.page_table(report.load("emulator")),
        calls.build_table([each for each in calls.load().counts if each.store != "memory"]),
    ]
    for head, body in tables:
        assert all(report.join_cells(line) in page for line in (head, *body))


def test_scalardb_stands_beside_the_embedded_store_with_the_same_sync() -> None:
    """One that does not wait for the disk would be compared with one that does."""
    suite = SUITES["embedded"].with_peers(Path("peers"))
    asked = [case for case in suite.cases if case.program]
    assert {case.program for case in asked} == {"scalardb"}
    assert {case.peer.transport for case in suite.cases} == {"synced", "unsynced"}
    assert all(case.peer.transport == case.transport for case in suite.cases)
    unsynced = replace(ONE, transport="unsynced")
    assert unsynced.peer in asked
    assert peers.case_of(unsynced.peer) == "scalardb-OFF/cc-serializable"
    assert peers.case_of(unsynced.peer.floor) == "scalardb-OFF/floor"
    few = suite.only("accounts: commit, threads").cases
    assert {case.program for case in few} == {"", "scalardb"}
    assert {case.clients for case in few} == {16}


def test_aims_are_told_from_the_rows_of_one_run() -> None:
    """What was not measured is not told; a sum that is wrong always is."""
    java = {"work": "transfer", "program": "java", "batch": 0, "clients": 16, "accounts": 1000}
    ours = {**aims.W1, "clients": 16, "batch": 1, "way": "threads", "name": "commit"}
    rows = [{**java, "per_second": 1000.0}, {**ours, "per_second": 650.0, "sum_diff": [0]}]
    assert aims.lines(rows) == ["16 clients, threads, to Java's 16: 0.65, aim 0.60: reached"]
    assert aims.lines(rows[1:]) == []
    assert "WRONG SUM after commit: [0, 7]" in aims.lines([{**rows[1], "sum_diff": [0, 7]}])


def test_gathered_transfers_are_handed_in_before_any_is_waited_for() -> None:
    """Those that fail are tried again."""
    store = open_store("memory://")
    with Engine(store, table=TABLES.name, transactions=TABLES.transactions) as engine:
        workloads.found(engine, 10, TABLES)
        failing = [True]

        def submit(request: workloads.Wanted, ack: Ack) -> Future[object]:
            future: Future[object] = Future()
            if failing and failing.pop():
                future.set_exception(TxnError("in the way"))
            else:
                future.set_result(engine.commit(*request, ack=ack))
            return future

        engine.submit = submit  # type: ignore[method-assign, assignment]
        given = (engine, Random(1), 10, 3)
        assert workloads.transfers(*given, tables=TABLES, gathered=True) == 4
        keys = [TABLES.account(number) for number in range(10)]
        assert sum(int(cell.value) for cell in store.read(keys).values() if cell) == 10_000


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_copies_of_a_finished_row_are_rows_of_which_fsck_has_nothing_to_say(protocol: str) -> None:
    """They stand for millions that were committed."""
    case = Case("transfer", 1, 1, protocol=protocol)  # type: ignore[arg-type]
    with open_engine("memory://", case) as engine:
        template = finished.read_template(engine, case.tables.name)
        context = engine.context
        for edits in finished.copies(template, 5, Random(1), salt_buckets=1):
            context.store.write(edits)
        assert summary(context).transactions == {"5-COMPLETE": 6}
        assert summary(context).is_quiet
        assert list(check(context, grace_ms=0)) == []


@pytest.mark.parametrize("size", [1, spark.BATCH])
def test_spark_puts_and_scans_plainly_what_it_writes_as_transactions(
    tmp_path: Path, size: int
) -> None:
    """The plain case, and that in batches, are the same rows, all of them."""
    place = spark.SparkPlace("embedded", f"embedded://{tmp_path}/store?sync=off")
    case = spark.SparkCase(place, "read", "plain")
    spark.make_table(case)
    rows = [
        Row(id=f"{number % 4}-{number:05}", **{name: f"{name}{number}" for name in spark.NAMES})
        for number in range(spark.BATCH + 7)
    ]
    spark.put_by_store(place.uri, case.table, size, rows)
    parts = [(b"", b"2"), (b"2", None)]
    assert sum(spark.count_rows(place.uri, case.table, parts)) == spark.BATCH + 7
    spark.open_warm(place.uri).close()
    spark.open_warm.cache_clear()
