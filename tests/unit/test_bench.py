"""What the bench measures: its cases, its plan, and the work that they name."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.bench import __main__ as bench
from tests.bench import report, workloads
from tests.bench.measuring import Case, open_engine
from tests.bench.suites import PROTOCOLS, SUITES
from txn import Engine, Mutation
from txn.errors import TxnError
from txn.stores import open_store

pytestmark = pytest.mark.fast
TABLES = workloads.Tables("bench-six-phase")


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
    suite = replace(SUITES["protocols"], warm_s=20.0, rounds=2, seconds=6.0)
    planned = bench.plan(suite)
    count = len(PROTOCOLS)
    assert [case for _, case, _ in planned] == 3 * list(PROTOCOLS)
    assert [number for number, _, _ in planned] == [-1] * count + [0] * count + [1] * count
    warmed = sum(seconds for number, _, seconds in planned if number < 0)
    assert warmed == pytest.approx(20.0)
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


def test_figures_of_before_are_shown_without_the_clients_time() -> None:
    """They are drawn again from what was kept."""
    rows = report.load("thrift2")
    assert all(len(line) == len(report.HEAD) for line in report.lines(rows))
    line = report.lines([{**rows[0], "client_us": 1234.5}])[0]
    assert line[report.HEAD.index("client, µs")] == "1,234"
