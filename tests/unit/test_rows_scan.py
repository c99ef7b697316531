"""Scans of rows: their ends, their pages, both directions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txn.clock import ManualClock
from txn.tables.admin import Admin
from txn.tables.filters.parsing import parse_filter
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.memory import MemoryStore
from txn.tables.kv.ordered import OrderedStore
from txn.tables.operations import FamilySettings, Put, Range, Selection
from txn.tables.rows import PAGE_BYTES, PAGE_ROWS_SEEN, Page, Rows

T = b"t"
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


@pytest.mark.parametrize("reverse", [False, True])
def test_a_page_of_no_rows_is_before_the_first_row(reverse: bool) -> None:
    rows = opened(MemoryStore())
    rows.mutate(T, [(row, [Put(b"d", b"x", b"1")]) for row in (b"a", b"b")])
    empty = rows.scan(T, Range(reverse=reverse), Selection(), limit_rows=0)
    page = rows.scan(T, Range(reverse=reverse), Selection(), limit_rows=9, resume=empty.resume)
    assert [each.row for each in page.results] == ([b"b", b"a"] if reverse else [b"a", b"b"])


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


def test_a_scan_goes_on_in_a_table_that_was_truncated_meanwhile() -> None:
    store = MemoryStore()
    rows = opened(store)
    rows.mutate(T, [(row, [Put(b"d", b"x", b"1")]) for row in (b"a", b"b")])
    first = rows.scan(T, Range(), Selection(), limit_rows=1)
    admin = Admin(store, ManualClock())
    admin.disable(T)
    admin.truncate(T)
    rows.mutate(T, [(b"c", [Put(b"d", b"x", b"1")])])
    page = rows.scan(T, Range(), Selection(), limit_rows=9, resume=first.resume)
    assert [result.row for result in page.results] == [b"c"]
