"""Rows as plain clients see them, beside what a transaction sees of the same cells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txn.clock import ManualClock
from txn.model import MAX_CELL, Cell, Check, Edit, Key, RowExclusion
from txn.stores.local import LocalStore
from txn.tables.admin import Admin
from txn.tables.changes import MAX_COLUMN
from txn.tables.filters.parsing import parse_filter
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.memory import MemoryStore
from txn.tables.kv.ordered import OrderedStore
from txn.tables.operations import (
    Add,
    Append,
    Condition,
    FamilySettings,
    Operation,
    Put,
    Range,
    Refused,
    Remove,
    Selection,
)
from txn.tables.rows import PAGE_BYTES, PAGE_ROWS_SEEN, Page, Rows

T = b"t"
X = Key("r", "d", "x", T)
ALL = Selection(versions=100)


class World:
    """One store with its three views."""

    def __init__(self, store: OrderedStore) -> None:
        self.store = store
        self.clock = ManualClock(1_000)
        self.rows = Rows(store, self.clock)
        self.tables = LocalStore(store, self.clock)
        self.admin = Admin(store, self.clock)
        self.admin.create(T, {b"d": FamilySettings(versions=3), b"e": FamilySettings()})

    def do(self, *operations: Operation, row: bytes = b"r") -> None:
        self.rows.mutate(T, [(row, operations)])

    def seen(self, selection: Selection = ALL, row: bytes = b"r") -> list[tuple[bytes, int, bytes]]:
        (result,) = self.rows.get(T, [row], selection)
        return [version[1:] for version in result.versions]


@pytest.fixture(params=["memory", "embedded"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    embedded = request.param == "embedded"
    store = LmdbStore(str(tmp_path / "store"), sync=False) if embedded else MemoryStore()
    yield World(store)
    store.close()


def test_a_deleted_family_hides_what_arrives_later_below_it(world: World) -> None:
    world.do(Put(b"d", b"x", b"old", 5), Put(b"d", b"x", b"new", 9))
    world.do(Remove(b"d", None, 7))
    world.do(Put(b"d", b"x", b"late", 6), Put(b"d", b"y", b"late", 7), Put(b"d", b"y", b"kept", 8))
    assert world.seen() == [(b"x", 9, b"new"), (b"y", 8, b"kept")]


def test_a_deleted_version_hides_its_timestamp_only(world: World) -> None:
    """Of a family, that of all columns; two deletes of the newest are of the two newest."""
    world.do(Put(b"d", b"x", b"1", 5), Put(b"d", b"x", b"2", 6))
    world.do(Remove(b"d", None, 6, exact=True))
    world.do(Put(b"d", b"y", b"late", 6), Put(b"d", b"y", b"other", 7))
    assert world.seen() == [(b"x", 5, b"1"), (b"y", 7, b"other")]
    for time in (7, 8):
        world.do(Put(b"d", b"x", b"%d" % time, time))
    world.do(Remove(b"d", b"x", None, exact=True), Remove(b"d", b"x", None, exact=True))
    assert world.seen() == [(b"x", 5, b"1"), (b"y", 7, b"other")]


def test_a_mutation_is_carried_out_on_what_was_there_before_it(world: World) -> None:
    world.do(Put(b"d", b"n", bytes(7) + b"\1", 5))
    world.do(Remove(b"d", b"x"), Put(b"d", b"x", b"masked"), Add(b"d", b"n", 1))
    assert world.seen(Selection()) == [(b"n", 1_000, bytes(7) + b"\2")]


def test_a_transaction_sees_what_a_plain_client_deleted(world: World) -> None:
    world.tables.write([Edit(X, b"mine", 900)])
    world.do(Remove())
    assert world.tables.read([X]) == {X: None}
    world.tables.write([Edit(X, b"late", 950)])
    assert world.tables.read([X]) == {X: None}
    assert world.tables.check_and_put([Check(X, b"", ((X, b"masked"),))]) == [True]
    assert world.tables.read([X]) == {X: None}
    world.clock.advance(1)
    assert world.tables.check_and_put([Check(X, b"", ((X, b"lock"),))]) == [True]
    assert world.tables.read([X]) == {X: Cell(b"lock", 1_001)}
    assert [row.row for row in world.tables.scan(T)] == [b"r"]


def test_numbers_grow_and_values_are_appended_to_above_what_they_replace(world: World) -> None:
    world.do(Put(b"d", b"n", b"\x7f" + b"\xff" * 7, 2_000), Put(b"d", b"v", b"a", 10))
    (result,) = world.rows.mutate(T, [(b"r", [Append(b"d", b"v", b"b"), Add(b"d", b"n", 1)])])
    assert [version[1:] for version in result.versions] == [
        (b"n", 2_001, b"\x80" + bytes(7)),
        (b"v", 1_000, b"ab"),
    ]
    with pytest.raises(Refused, match="8 bytes") as caught:
        world.do(Put(b"d", b"x", b"undone"), Add(b"d", b"v", 1))
    assert caught.value.reason == "do not retry"
    assert world.seen(Selection(((b"d", b"x"),))) == []


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Condition(b"d", b"x", "=", b"m"), True),
        (Condition(b"d", b"x", "<", b"a"), True),
        (Condition(b"d", b"x", ">", b"a"), False),
        (Condition(b"d", b"none", "!=", b"m"), False),
        (Condition(b"d", b"none", "=", None), True),
        (Condition(b"d", b"x", "!=", b""), True),
    ],
)
def test_the_expected_value_stands_on_the_left(
    world: World, condition: Condition, holds: bool
) -> None:
    world.do(Put(b"d", b"x", b"m", 2_000))
    assert world.rows.check_and_mutate(T, b"r", condition, [Put(b"d", b"y", b"done")]) is holds
    # Never below what was looked at, or it would be hidden by it.
    at = 2_000 if condition.column == b"x" else 1_000
    assert world.seen(Selection(((b"d", b"y"),))) == ([(b"y", at, b"done")] if holds else [])


def test_a_compaction_forgets_markers_and_what_has_expired(world: World) -> None:
    empty = list(world.store.read(lambda reader: list(reader.keys(b"", b"\xff"))))
    world.do(Put(b"d", b"y", b"1", ttl_ms=100))
    world.do(Put(b"d", b"x", b"1", 5), Remove(b"d", b"x", 6, exact=True), Remove(timestamp=7))
    world.clock.advance(101)
    world.tables.compact(T, 7)
    world.do(Put(b"d", b"x", b"masked", 7))
    assert world.seen() == []
    world.tables.compact(T)
    assert list(world.store.read(lambda reader: list(reader.keys(b"", b"\xff")))) == empty
    world.do(Put(b"d", b"x", b"seen", 7))
    assert world.seen() == [(b"x", 7, b"seen")]


def test_a_cell_with_a_ttl_of_its_own_is_gone_after_it_for_everybody(world: World) -> None:
    world.do(Put(b"d", b"x", b"1", ttl_ms=100), Put(b"d", b"n", b"2"))
    world.clock.advance(100)
    assert world.tables.read([X]) == {X: Cell(b"1", 1_000)}
    assert not world.tables.check_and_put([Check(X, b"", ((X, b"3"),))])[0]
    world.clock.advance(1)
    assert world.seen() == [(b"n", 1_000, b"2")]
    assert world.seen(Selection(((b"d", b"x"),))) == []
    assert world.tables.read([X]) == {X: None}
    assert world.tables.read_versions([X], 3) == {X: []}
    for columns in (None, {(b"d", b"x"), (b"d", b"n"), (b"e", b"x")}, {(b"d", b"x"), (b"d", b"n")}):
        [row] = world.tables.scan(T, columns=columns)
        assert [key.column for key in row.cells] == [b"n"]
    [row] = world.tables.scan(T, exclude=RowExclusion(b"d", b"x", frozenset([b"1"])))
    assert [key.column for key in row.cells] == [b"n"]
    [result] = world.rows.scan(T, Range(), ALL, limit_rows=9).results
    assert [version.column for version in result.versions] == [b"n"]
    assert world.rows.check_and_mutate(T, b"r", Condition(b"d", b"x"), [Put(b"d", b"y", b"4")])
    assert world.tables.check_and_put([Check(X, b"", ((X, b"3"),))])[0]
    assert world.tables.read([X]) == {X: Cell(b"3", 1_101)}


def test_versions_that_must_stay_outlive_the_ttl(world: World) -> None:
    world.admin.add_family(T, b"m", FamilySettings(versions=3, min_versions=1, ttl_ms=100))
    for time in (800, 850, 950):
        world.do(Put(b"m", b"x", b"%d" % time, time))
    assert world.seen() == [(b"x", 950, b"950")]
    world.clock.advance(1_000)
    key = X._replace(family=b"m")
    assert world.tables.read([key]) == {key: Cell(b"950", 950)}
    world.tables.compact(T)
    assert world.seen() == [(b"x", 950, b"950")]


@pytest.mark.parametrize(
    ("row", "operation", "reason"),
    [
        (b"", Put(b"d", b"x", b"1"), "illegal argument"),
        (b"r" * 32_768, Put(b"d", b"x", b"1"), "illegal argument"),
        (b"r", Put(b"q", b"x", b"1"), "no such column family"),
        (b"r", Remove(b"q"), "no such column family"),
        (b"r", Put(b"d", b"x", b"1", -1), "retries exhausted"),
        (b"r", Put(b"d", b"x", bytes(MAX_CELL - 26)), "do not retry"),
        (b"r", Append(b"d", b"x", bytes(MAX_CELL - 26)), "do not retry"),
        (b"r", Put(b"d", b"x" * (MAX_COLUMN + 1), b"1"), "illegal argument"),
    ],
)
def test_what_hbase_refuses_is_refused_with_its_reason(
    world: World, row: bytes, operation: Operation, reason: str
) -> None:
    with pytest.raises(Refused) as caught:
        world.do(Put(b"d", b"x", b"undone"), operation, row=row)
    assert caught.value.reason == reason
    assert world.seen() == []


def test_a_column_may_be_longer_than_a_row(world: World) -> None:
    row, long = b"\0" * 32_767, b"c" * MAX_COLUMN
    names = [long[:-1], long, long[:-1] + b"d"]
    world.do(*[Put(b"d", name, b"1") for name in names], row=row)
    assert [name for name, *_ in world.seen(row=row)] == names
    for reverse in (False, True):
        page = world.rows.scan(T, Range(reverse=reverse), ALL, limit_rows=9)
        assert [version.column for version in page.results[0].versions] == names
    world.do(Remove(b"d", long), row=row)
    assert [name for name, *_ in world.seen(row=row)] == [names[0], names[2]]


LONG = b"k" * 700
ROWS = [b"a", b"a\0", b"a\0\0", b"a\0\xff", b"b", LONG, LONG + b"\0", LONG + b"z", b"\xff" * 600]


def opened(store: OrderedStore) -> Rows:
    clock = ManualClock()
    Admin(store, clock).create(b"before", {b"d": FamilySettings()})
    Admin(store, clock).create(T, {b"d": FamilySettings(), b"e": FamilySettings()})
    Admin(store, clock).create(b"after", {b"d": FamilySettings()})
    rows = Rows(store, clock)
    for table in (b"before", b"after"):
        rows.mutate(table, [(b"x", [Put(b"d", b"x", b"1")])])
    return rows


@pytest.fixture(scope="module", params=["memory", "embedded"])
def rows(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rows]:
    path: Path = tmp_path_factory.mktemp("scans")
    embedded = request.param == "embedded"
    store = LmdbStore(str(path / "store"), sync=False) if embedded else MemoryStore()
    found = opened(store)
    found.mutate(T, [(row, [Put(b"d", b"x", row), Put(b"e", b"y", b"2")]) for row in ROWS])
    yield found
    store.close()


def scanned(rows: Rows, asked: Range, selection: Selection, limit: int) -> list[bytes]:
    found, page = [], Page([], None)
    while True:
        page = rows.scan(T, asked, selection, limit_rows=limit, resume=page.resume)
        assert len(page.results) <= limit
        found += [result.row for result in page.results]
        if page.resume is None:
            return found


ends = st.one_of(st.just(b""), st.sampled_from([*ROWS, b"0", b"a\0\1", LONG + b"a", b"\xff" * 601]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    asked=st.builds(Range, ends, ends, st.booleans(), st.booleans()),
    limit=st.integers(1, 4),
)
def test_any_range_is_scanned_in_order_in_pages_of_any_size(
    rows: Rows, asked: Range, limit: int
) -> None:
    ends_ = [(asked.start, True), (asked.stop, asked.include_stop)]
    (first, first_too), (last, last_too) = reversed(ends_) if asked.reverse else ends_

    def inside(row: bytes) -> bool:
        after = row > first or (row == first and first_too)
        return after and (not last or row < last or (row == last and last_too))

    expected = sorted(filter(inside, ROWS), reverse=asked.reverse)
    assert scanned(rows, asked, Selection(), limit) == expected


def test_a_page_ends_where_much_was_looked_at_in_vain() -> None:
    rows = opened(MemoryStore())
    count = PAGE_ROWS_SEEN + 1
    rows.mutate(T, [(b"%05d" % number, [Put(b"d", b"x", b"1")]) for number in range(count)])
    nothing = Selection(filter=parse_filter(b"ValueFilter(=, 'binary:2')"))
    page = rows.scan(T, Range(), nothing, limit_rows=10)
    assert page.results == []
    assert page.resume is not None
    assert rows.scan(T, Range(), nothing, limit_rows=10, resume=page.resume).resume is None


def test_a_page_ends_where_its_values_are_large() -> None:
    rows = opened(MemoryStore())
    size = PAGE_BYTES // 2
    rows.mutate(T, [(b"%d" % number, [Put(b"d", b"x", bytes(size))]) for number in range(9)])
    assert len(rows.scan(T, Range(), Selection(), limit_rows=9).results) == 2


def test_a_row_of_many_versions_comes_as_several_results() -> None:
    rows = opened(MemoryStore())
    puts = [Put(b"d", b"%d" % number, b"1") for number in range(5)]
    rows.mutate(T, [(b"r", puts), (b"s", puts[:2])])
    page = rows.scan(T, Range(), Selection(batch=2), limit_rows=9)
    assert [(each.row, len(each.versions), each.partial) for each in page.results] == [
        (b"r", 2, True),
        (b"r", 2, True),
        (b"r", 1, False),
        (b"s", 2, False),
    ]
