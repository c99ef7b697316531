"""What readers make of a table that should appear all at once."""

from __future__ import annotations

from tests.integration.readers import ALL, NOTHING, PART, ExpectedTable, Sights
from txn import Engine, Key, Mutation
from txn.demo.data import ANCHOR, FAMILY, tables_named
from txn.stores import open_store

FLIGHTS = tables_named("flights").flights
ROWS = [f"{number:03}" for number in range(120)]
TABLE = ExpectedTable(FLIGHTS, ANCHOR, ROWS)


def test_nothing_a_part_and_all_of_a_table_differ() -> None:
    """One row that is not read by name is found by the scan."""
    with Engine(open_store("memory://")) as engine:
        engine.ensure_table(FLIGHTS, [FAMILY])

        def put(rows: list[str]) -> None:
            engine.commit([Mutation(Key(row, FAMILY, ANCHOR, FLIGHTS), "x") for row in rows])

        assert list(TABLE.inspect(engine)) == [NOTHING] * 3
        put([ROWS[1]])
        assert list(TABLE.inspect(engine)) == [NOTHING, PART, NOTHING]
        put(ROWS[:60])
        assert set(TABLE.inspect(engine)) == {PART}
        put(ROWS[60:])
        assert list(TABLE.inspect(engine)) == [ALL] * 3
    sights = Sights()
    for sight in (NOTHING, ALL, NOTHING, ALL):
        sights.add(sight)
    assert (sights.lost, sights.seen[ALL]) == (1, 2)
