"""What the bench measures: its cases, its plan, and the work that they name."""

from __future__ import annotations

import json
import sys
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
    costs,
    emulator,
    finished,
    flight,
    growth,
    peers,
    profile,
    report,
    spark,
    workloads,
)
from tests.bench.measuring import Case, Measured, open_engine
from tests.bench.suites import NATIVE, ONE, SUITES
from txn import Engine, Mutation
from txn.errors import TxnError
from txn.model import Edit, Family
from txn.stores import open_store

pytestmark = pytest.mark.fast
TABLES = workloads.Tables("bench-six-phase")
PROGRAMS = {"Java, no transactions", "Omid", "Tephra"}


def test_each_protocol_and_the_floor_has_tables_of_its_own() -> None:
    """Neither meets what the other has written."""
    case = Case("transfer", 1, 16)
    fenced = replace(case, protocol="fenced")
    names = [each.tables for each in (case.floor, case, fenced)]
    assert len({(each.name, each.transactions, each.flights) for each in names}) == 3
    assert len({each.transactions for each in names}) == 3
    assert fenced.floor == case.floor
    assert [each.name for each in (case.floor, case, fenced)] == [
        *("floor", "commit", "commit, fenced")
    ]


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


def test_a_protocol_is_named_only_where_it_is_not_the_usual_one() -> None:
    """A library that has but one takes no name of it."""
    open_engine("memory://", Case("transfer", 1, 1)).close()


def test_a_flight_is_twelve_cells_in_three_rows_and_happens_once() -> None:
    """As in the demonstration, with the marker of its token."""
    request = workloads.flight_request(TABLES, Random(1))
    assert len(request.mutations) == 12
    assert len({mutation.key.row for mutation in request.mutations}) == 3
    assert request.once is not None
    assert request.once != workloads.flight_request(TABLES, Random(1)).once


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


def test_a_flight_that_is_not_committed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be counted as work that was done."""
    same = workloads.flight_request(TABLES, Random(1))
    store = open_store("memory://")
    with Engine(store, table=TABLES.name, transactions=TABLES.transactions) as engine:
        workloads.found(engine, 2, TABLES)
        (absent,) = (m.key for m in same.mutations if m.key.column == b"dest")
        engine.commit([Mutation(absent, "ATL")])
        monkeypatch.setattr(workloads, "flight_request", lambda *_: same)
        with pytest.raises(TxnError):
            workloads.flights(engine, TABLES, Random(1), 1, "complete")


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
        growth.rows_lines(json.loads((report.FOLDER / "growth-rows.json").read_text())),
    ]
    for head, body in tables:
        assert all(report.join_cells(line) in page for line in (head, *body))


def test_a_line_without_a_measured_case_is_left_out() -> None:
    """Other programs are not in every run."""
    rows = [row for row in report.load("native") if not row["program"]]
    _, body = SUITES["native"].tables[0].build(rows)
    assert PROGRAMS.isdisjoint(line[0] for line in body)
    assert body[0][0] == "Python, no transactions"


def test_a_native_case_stands_beside_the_native_floor_and_beside_java() -> None:
    """A gateway costs the floor as much as it costs a transaction."""
    threads = Case("transfer", 1, 16, protocol="fenced", transport="native", way="threads")
    assert threads.floor == Case("transfer", 0, 16, transport="native", way="threads")
    assert replace(threads, way="submit", batch=8).floor == threads.floor
    assert replace(threads, clients=1).floor.way == "processes"
    assert threads.java == Case("transfer", 0, 16, program="java")
    assert threads.java.floor == threads.java
    assert replace(threads.java, batch=1, program="omid").floor == threads.java


def test_no_two_cases_of_a_suite_are_told_alike() -> None:
    """A row of the table is of one case."""
    for suite in SUITES.values():
        with_peers = suite.with_peers(Path("peers"))
        told = [(case.subject, case.name, case.clients) for case in with_peers.cases]
        assert len(set(told)) == len(told)


def test_other_programs_are_asked_for_what_they_can() -> None:
    """None commits many at a time, and none has flights."""
    suite = SUITES["native"].with_peers(Path("peers"))
    asked = [case for case in suite.cases if case.program]
    assert {case.program for case in asked} == {"java", "omid", "tephra"}
    assert {case.work for case in asked} == {"transfer", "ten cells"}
    assert {peers.work_of(case) for case in asked} == {"W1", "W2", "W3"}
    assert {case.program for case in asked if case.work == "ten cells"} == {"java"}
    assert all(case.floor in suite.cases for case in suite.cases)
    few = suite.only("1,000 accounts: commit, fenced, threads").cases
    assert {case.program for case in few} == {"", "java", "omid", "tephra"}
    assert {case.clients for case in few} == {16}


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


def test_what_another_program_tells_is_read() -> None:
    """It counts repeats, and in ms."""
    told = {"tps": 100.0, "p50_ms": 2.0, "p99_ms": 9.0, "commits": 50, "aborts": 25, "errors": 0}
    told |= {"cpu_client_ms_per_txn": 0.25, "cpu_servers_ms_per_txn": 0.5, "sum_diff": -3}
    assert peers.read_figures(told) == Measured(100.0, 2.0, 9.0, 1.5, 0, 250.0, 500.0, -3)


def test_a_program_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    """One waited for its HBase for ever, and the bench for it."""
    silent = "print('READY', flush=True); input(); input()"
    peer = peers.Peer("java", [sys.executable, "-c", silent], tmp_path)
    peer.silence_s = 0.1
    try:
        with pytest.raises(RuntimeError, match="java ended, or was silent"):
            peer.measure(Case("transfer", 0, 1, program="java"), 0.1)
    finally:
        peer.close()


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

        def submit(request: workloads.Wanted, ack: str) -> Future[object]:
            future: Future[object] = Future()
            if failing and failing.pop():
                future.set_exception(TxnError("in the way"))
            else:
                future.set_result(engine.commit(*request, ack=ack))
            return future

        engine.submit = submit  # type: ignore[attr-defined]
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


def test_calls_of_the_costs_do_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checked put whose check fails would cost less."""
    monkeypatch.setattr(costs, "ROWS", 100)
    store = open_store("memory://")
    store.ensure_table(costs.TABLE, {b"d": Family()})
    calls = costs.list_calls(store)
    assert list(calls) == ["get", "put", "checked"]
    for number in range(costs.ROWS):
        store.write([Edit(key, costs.VALUE, None) for key in costs.row_keys(number)])
    for call in calls.values():
        call(3, Random(1))
    measured = costs.measure(lambda rng: calls["get"](3, rng), 1, 0.01, {})
    assert measured["per_second"] > 0
    assert measured["ms"] > 0


def test_samples_are_counted_by_the_part_that_ran_and_by_those_that_called_it() -> None:
    """A part that calls itself is counted once."""
    outer, inner = "commit (txn/protocol/commit.py:7)", "call_store (/x/txn/protocol/attempt.py:3)"
    send = "write (txn/stores/wire.py)"
    begin = "_repeat (tests/bench/profile.py:9)"
    stacks = [f"{begin};{outer};{inner};{send} 3", f"{begin};{outer};{inner} 1", f"{outer} 5", ""]
    counts, total = profile.count_samples(stacks)
    assert total == 4
    assert counts["own"] == {"stores: pool, gateways, sockets": 3, "the protocol": 1}
    assert counts["callees"] == {
        **{"stores: pool, gateways, sockets": 3, "the protocol": 4, "the bench": 4}
    }
    assert counts["modules"] == {"txn/stores/wire.py": 3, "txn/protocol/attempt.py": 1}
    assert counts["top"] == {"stores/wire.py: write": 3, "protocol/attempt.py: call_store": 1}


def test_what_spark_pays_is_told_beside_the_plain_case_of_the_same_round() -> None:
    """The machine may be slower in one round than in the next."""
    place = spark.SparkPlace("hbase", "hbase://", gateway="hbase+thrift1://127.0.0.1:1")
    plain, fenced = (spark.SparkCase(place, "write", way) for way in ("plain", "fenced"))
    kept = {
        plain: [spark.SparkWindow(seconds, 1, 1) for seconds in (1, 2, 4)],
        fenced: [spark.SparkWindow(seconds, 2, 3) for seconds in (2, 4, 5)],
    }
    floor, mine = spark.list_rows(kept, 1000)
    assert (floor["ratios"], floor["aim"]) == ([1, 1, 1], None)
    assert (mine["ratios"], mine["aim"]) == ([0.5, 0.5, 0.8], 0.8)
    assert (mine["per_second"], mine["client_s"], mine["server_s"]) == (250, 2, 3)


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


def test_what_a_flight_costs_the_emulator_is_counted() -> None:
    """Its requests are the protocol's; the calls of functions for one are what we can save."""
    requests, counted = flight.count_costs(6, 6)
    # Six statuses, and 13 locks taken and released. Of the six flights together, the values and
    # then the empty tags, which compare nothing, are a request for each of three tables.
    assert (requests["checkAndPut"], requests["putMultiple"]) == (6 * 32, 2 * 3)
    assert counted["calls a request"] < 290
    # What waits for the log is flushed twice: 13 locks, the decision, the values, and 3-PUT. The
    # other 18 requests are deferred. Requests that come together share their flushes.
    assert counted["commits"] < counted["flushes"] < 2 * counted["commits"]
    assert counted["flushes"] <= 16 * 2 + 18 + 1
