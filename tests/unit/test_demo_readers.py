"""What readers make of a table that should appear all at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from tests.integration.readers import (
    ALL,
    NOTHING,
    PART,
    ExpectedTable,
    Sights,
    expect_tables,
    read_source,
    watch_tables,
)
from txn import Engine, Key, Mutation, connect
from txn.demo.data import ANCHOR, FAMILY, tables_named
from txn.stores import open_store

pytestmark = pytest.mark.fast
TABLES = tables_named("flights")
ROWS = [f"{number:03}" for number in range(120)]
TABLE = ExpectedTable(TABLES.flights, ANCHOR, ROWS)
SOURCE = """\
year,month,day,dep_time,sched_dep_time,carrier,flight,tailnum,origin,dest
2013,1,1,517,515,UA,1545,N14228,EWR,IAH
2013,1,1,NA,600,B6,79,NA,JFK,MCO
2013,1,2,517,515,UA,1545,N14228,EWR,IAH
"""


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(open_store("memory://"), transactions=TABLES.transactions) as engine:
        engine.ensure_table(TABLES.flights, [FAMILY])
        yield engine


def put(engine: Engine, rows: list[str]) -> None:
    engine.commit([Mutation(Key(row, FAMILY, ANCHOR, TABLES.flights), "x") for row in rows])


def test_nothing_a_part_and_all_of_a_table_differ(engine: Engine) -> None:
    """The check at the end of the demonstration says no more than this."""
    assert list(TABLE.inspect(engine)) == [NOTHING] * 3
    put(engine, ROWS[:60])
    assert set(TABLE.inspect(engine)) == {PART}
    put(engine, ROWS[60:])
    assert list(TABLE.inspect(engine)) == [ALL] * 3


def test_one_row_that_is_not_read_by_name_is_found_by_the_scan(engine: Engine) -> None:
    """Cells are a sample; the scan counts all rows."""
    put(engine, [ROWS[1]])
    assert list(TABLE.inspect(engine)) == [NOTHING, PART, NOTHING]


def test_what_comes_while_a_scan_runs_does_not_count_as_a_part(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan sees rows at different instants, so what it counts then says nothing."""
    scan = engine.scan

    def commit_and_scan(*given: object, **how: object) -> Iterator[object]:
        put(engine, ROWS)
        yield from list(scan(*given, **how))[7:]  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "scan", commit_and_scan)
    assert list(TABLE.inspect(engine)) == [NOTHING, ALL]


def test_what_was_there_and_is_gone_is_counted() -> None:
    """A commit that readers have seen stays, whoever dies."""
    sights = Sights()
    for sight in (NOTHING, ALL, NOTHING, ALL):
        sights.add(sight)
    assert (sights.lost, sights.seen[ALL]) == (1, 2)


def test_the_tables_are_known_from_the_source(tmp_path: Path) -> None:
    """An aircraft that is not known has no entry."""
    source = tmp_path / "flights.csv"
    source.write_text(SOURCE)
    flights, entries = expect_tables(TABLES, read_source(source))
    assert flights.rows == [
        "EWR/2013-01-01/0515/UA1545",
        "EWR/2013-01-02/0515/UA1545",
        "JFK/2013-01-01/0600/B679",
    ]
    assert len(entries.rows) == 2 + 1 + 2


def test_readers_look_before_and_after_what_happens(tmp_path: Path) -> None:
    """The last look is after the end: whatever ran, all has to be seen at last."""
    source, uri = tmp_path / "flights.csv", f"embedded://{tmp_path}/store?sync=off"
    source.write_text(SOURCE)
    with connect(uri, transactions=TABLES.transactions) as engine:
        engine.ensure_table(TABLES.flights, [FAMILY])
        engine.ensure_table(TABLES.indexes, [FAMILY])
        flights, _ = expect_tables(TABLES, read_source(source))
        with watch_tables(uri, TABLES, source) as sights:
            while not sights[TABLES.indexes].seen.total():
                Event().wait(0.01)
            put(engine, list(flights.rows))
    assert (+sights[TABLES.flights].seen).keys() == {NOTHING, ALL}
    assert (+sights[TABLES.indexes].seen).keys() == {NOTHING}
    assert sights[TABLES.flights].seen[ALL] >= 3
