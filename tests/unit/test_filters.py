"""The filter language: each filter by hand, and what is no filter."""

from __future__ import annotations

import pytest

from tests.unit import filter_cases as cases
from txn.clock import ManualClock
from txn.tables.admin import Admin
from txn.tables.filters.parsing import parse_filter
from txn.tables.filters.patterns import searcher
from txn.tables.kv.memory import MemoryStore
from txn.tables.operations import Expression, FamilySettings, Put, Range, Refused, Selection
from txn.tables.rows import Rows


@pytest.fixture(scope="module")
def rows() -> Rows:
    store, clock = MemoryStore(), ManualClock()
    Admin(store, clock).create(b"t", cases.FAMILIES)
    found = Rows(store, clock)
    found.mutate(b"t", [(row, [put]) for row, put in cases.HISTORY])
    return found


@pytest.mark.parametrize("text", cases.FOUND)
def test_each_filter_finds_what_it_finds_in_hbase(rows: Rows, text: bytes) -> None:
    page = rows.scan(b"t", Range(), Selection(filter=parse_filter(text)), limit_rows=100)
    assert cases.shown(page.results, cases.newest()) == cases.FOUND[text]
    assert page.resume is None


@pytest.mark.parametrize("text", cases.FOUND_IN_REVERSE)
def test_each_filter_finds_what_it_finds_in_hbase_in_reverse(rows: Rows, text: bytes) -> None:
    page = rows.scan(
        b"t", Range(reverse=True), Selection(filter=parse_filter(text)), limit_rows=100
    )
    assert cases.shown(page.results, cases.newest()) == cases.FOUND_IN_REVERSE[text]


@pytest.mark.parametrize("text", cases.FOUND)
def test_a_filter_remembers_what_it_has_seen_from_page_to_page(rows: Rows, text: bytes) -> None:
    """A scan is many short transactions, which a client must not notice."""
    selection = Selection(filter=parse_filter(text))
    results, resume = [], None
    while True:
        page = rows.scan(b"t", Range(), selection, limit_rows=1, resume=resume)
        results += page.results
        resume = page.resume
        if resume is None:
            break
    assert cases.shown(results, cases.newest()) == cases.FOUND[text]


@pytest.mark.parametrize("text", cases.REFUSED)
def test_what_is_no_filter_is_refused_with_its_place(rows: Rows, text: bytes) -> None:
    with pytest.raises(Refused, match=cases.REFUSED[text]) as caught:
        rows.scan(b"t", Range(), Selection(filter=parse_filter(text)), limit_rows=1)
    assert caught.value.reason == "illegal argument"


def test_and_binds_closer_than_or_and_skip_closer_than_both() -> None:
    a, b, c = (Expression("PrefixFilter", (name,)) for name in (b"a", b"b", b"c"))
    text = b"PrefixFilter('a') OR SKIP PrefixFilter('b') AND WHILE SKIP PrefixFilter('c')"
    skip_b, skip_c = (Expression("SKIP", (each,)) for each in (b, c))
    both = Expression("AND", (skip_b, Expression("WHILE", (skip_c,))))
    assert parse_filter(text) == Expression("OR", (a, both))
    text = b"PrefixFilter('a') AND PrefixFilter('b')AND PrefixFilter('c')"
    assert parse_filter(text) == Expression("AND", (a, b, c))


def test_a_filter_that_decides_on_whole_rows_refuses_a_batch(rows: Rows) -> None:
    """HBase does: it would decide on a part of the row."""
    selection = Selection(filter=parse_filter(b"PageFilter(1)"), batch=1)
    with pytest.raises(Refused, match="batch"):
        rows.scan(b"t", Range(), selection, limit_rows=1)


def test_a_filter_that_reads_families_late_refuses_to_go_back(rows: Rows) -> None:
    text = b"SingleColumnValueFilter('d', 'color', =, 'binary:red', true, true)"
    with pytest.raises(Refused, match="reverse"):
        rows.scan(b"t", Range(reverse=True), Selection(filter=parse_filter(text)), limit_rows=1)


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (b"^(a+)+$", b"a" * 50_000 + b"b"),
        (b"(x+x+)+y", b"x" * 50_000),
        (b"^(a|a?)+$", b"a" * 50_000 + b"b"),
        (b"(.*)(.*)(.*)(.*)(.*)[^a]$", b"a" * 50_000),
    ],
)
def test_no_pattern_takes_more_time_than_there_is_to_search(pattern: bytes, value: bytes) -> None:
    """Going back, each of these takes years, and a client would have the worker for itself."""
    assert not searcher(pattern)(value)


@pytest.mark.parametrize(
    "pattern",
    [b"(?=a)", b"(?<!a)b", rb"(a)\1", b"a++", b"(?>a)", b"(" * 2000, b"((a{99}){99}){99}"],
)
def test_a_pattern_that_cannot_be_bounded_is_refused(pattern: bytes) -> None:
    """What Java's have and RE2 has not must not silently mean something else."""
    with pytest.raises(Refused, match="not a regular expression"):
        searcher(pattern)
    with pytest.raises(Refused, match="too long"):
        searcher(b"a" * 10_001)


def test_a_pattern_is_of_characters_and_a_dot_is_any_of_them() -> None:
    assert searcher("^日.本$".encode())("日\n本".encode())
    assert searcher(b"^a.b$")(b"a\xffb")
    assert not searcher(rb"^\d$")("\u0663".encode())
    assert searcher(rb"\Qa.b\E")(b"a.b")


def test_a_column_without_a_name_has_no_next_column() -> None:
    """HBase steps from version to version there, and filters that count see each of them."""
    store, clock = MemoryStore(), ManualClock()
    Admin(store, clock).create(b"t", {b"d": FamilySettings(versions=5)})
    puts = [Put(b"d", column, b"", time) for column in (b"", b"n") for time in (1, 2, 3)]
    found = Rows(store, clock)
    found.mutate(b"t", [(b"r", puts)])
    for text, columns in ((b"(3)", [b""]), (b"(4)", [b"", b"n"])):
        selection = Selection(filter=parse_filter(b"ColumnCountGetFilter" + text))
        (result,) = found.get(b"t", [b"r"], selection)
        assert [version.column for version in result.versions] == columns
