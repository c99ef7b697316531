"""One key looked at, in both protocols, and the rows of a data table a page at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recovery.bounds import ReadLimits, Stop
from recovery.console.keys import list_sizes, list_table_keys, read_key_details
from tests.unit.worlds import TABLE, World, X, Y, Z, after_status
from txn.assertions import Some
from txn.errors import NotApplied
from txn.model import Cell, Delete, Edit, Key, Mutation
from txn.protocol.locks import read_lock
from txn.protocol.statuses import ProtocolName, Status
from txn.stores.base import TableSize
from txn.testing.counting import CountingStore
from txn.testing.faulty import Crash, Fault, Reply

both = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])


def left_by(world: World, status: Status) -> bytes:
    """Let a client of X and Y die with its row in this status; return the row key."""
    world.clock.advance(1)
    after_status(world, status, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.client(world.faults, seed=50).commit([Mutation(X, b"2"), Mutation(Y, b"2")])
    world.faults.crashed, world.faults.plan = False, lambda call: Fault()
    return world.rows()[-1].row_key


@both
def test_a_key_is_shown_with_who_wrote_it(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    first = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    world.clock.advance(5)
    second = world.engine.commit([Mutation(Z, b"1"), Mutation(Y, b"2")], [Some(X)])
    found = read_key_details(world.engine.context, X)
    assert found.is_there
    assert found.cells.value == Cell(b"1", first.timestamp)
    assert (found.cells.holder, found.holder_row) == (b"", None)
    assert found.is_ours is True
    assert [row.row_key for row in found.transactions.rows] == [
        second.transaction,
        first.transaction,
    ]
    if protocol == "fenced":
        assert found.count == read_lock(found.cells.lock_key, found.cells.lock).taken == 2
        assert found.cells.tag is None
    else:
        assert found.count is None
        assert found.cells.tag is not None
        assert found.cells.tag.timestamp == first.timestamp
    few = read_key_details(world.engine.context, X, count=1)
    assert [row.row_key for row in few.transactions.rows] == [second.transaction]


@both
def test_a_key_is_shown_with_the_versions_before_it(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    for value in (b"0", b"1", b"2", b"3"):
        world.clock.advance(5)
        world.engine.commit([Mutation(X, value), Mutation(Y, value)])
    found = read_key_details(world.engine.context, X)
    assert [cell.value for cell in found.earlier] == [b"2", b"1"]
    assert found.are_all
    assert [row.plan and row.plan.timestamp for row in found.transactions.rows][1:3] == [
        cell.timestamp for cell in found.earlier
    ]
    world.engine.commit([Delete(X), Delete(Y)])
    gone = read_key_details(world.engine.context, X)
    assert (gone.cells.value, gone.is_ours, gone.earlier) == (None, True, [])


@both
def test_a_held_key_is_shown_with_its_holder(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    row_key = left_by(world, Status.ASSERTED)
    found = read_key_details(world.engine.context, X)
    assert found.cells.holder == row_key
    assert found.holder_row is not None
    assert (found.holder_row.status, found.is_ours) == (Status.ASSERTED, True)


@both
def test_a_value_that_was_put_past_the_protocol_is_not_ours(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    world.put(Z, b"1")
    assert read_key_details(world.engine.context, Z).is_ours is None
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    world.clock.advance(60_000)
    world.put(X, b"past")
    found = read_key_details(world.engine.context, X)
    assert found.cells.value is not None
    assert (found.cells.value.value, found.is_ours) == (b"past", False)
    assert read_key_details(world.engine.context, Y).is_ours is True


@both
def test_a_table_is_listed_in_pages(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    keys = [Key(f"r{row:02}", "d", name, TABLE) for row in range(12) for name in ("a", "b")]
    world.engine.commit([Mutation(key, b"1") for key in keys])
    context = world.engine.context
    found, start, pages = [], b"", 0
    while True:
        page = list_table_keys(context, TABLE, start, count=5)
        found += [each.key for each in page.keys]
        pages += 1
        if page.next is None:
            break
        assert page.stopped is Stop.FOUND
        start = page.next
    assert (found, pages) == (keys, 3)
    row_key = left_by(world, Status.ASSERTED)
    holders = {each.key: each.holder for each in list_table_keys(context, TABLE, b"r11").keys}
    assert holders == {keys[-2]: b"", keys[-1]: b""}
    held = read_key_details(context, X).cells.holder
    assert held == row_key


def test_a_page_of_a_table_is_bounded() -> None:
    world = World()
    rows: list[Any] = [Key(f"r{row:04}", "d", "a", TABLE) for row in range(3_000)]
    world.store.write([Edit(key, b"x" * 1_000, 5) for key in rows])
    store = CountingStore(world.store)
    context = replace(world.engine.context, store=store)
    page = list_table_keys(context, TABLE, limits=ReadLimits(bytes_=10_000))
    assert (page.next, page.stopped, page.rows) == (b"r0010", Stop.BYTES, 10)
    page = list_table_keys(context, TABLE, limits=ReadLimits(ms=0))
    assert (page.next, page.stopped) == (b"r0001", Stop.TIME)
    assert store.calls == {"scan": 2}


def test_tables_are_listed_with_what_the_store_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.engine.commit([Mutation(X, b"1")])
    tables, number = list_sizes(world.engine.context)
    assert [each.name for each in tables] == [TABLE, b"txn"]
    assert number == 2
    assert (tables[0].size.cells, tables[0].size.is_whole) == (3, True)  # with its lock and tag
    assert tables[0].size.regions is None
    monkeypatch.setattr("txn.stores.local.COUNTED_CELLS", 4)
    assert [each.size.cells for each in list_sizes(world.engine.context)[0]] == [2, 2]
    monkeypatch.setattr("txn.stores.local.COUNTED_BYTES", 2)
    found = list_sizes(world.engine.context)[0][0].size
    assert (found.cells, found.is_whole) == (1, False)
    monkeypatch.setattr("recovery.console.keys.MOST_TABLES", 1)
    few, number = list_sizes(world.engine.context)
    assert (len(few), number) == (1, 2)

    def fail(tables: object) -> None:
        raise NotApplied("no answer")

    monkeypatch.setattr(world.faults, "measure_tables", fail)
    assert list_sizes(world.engine.context)[0][0].size == TableSize()
