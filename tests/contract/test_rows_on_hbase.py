"""The same mutations and questions to `Rows` and to a real HBase: the same answers.

What HBase leaves to chance until a flush (see `txn.tables.cells`) is not asked: family `d` keeps
more versions than are ever put, and of `e`, which keeps two, no hidden version can come back.
Timestamps are given, but for those of Adds, Appends and some deletes: these are the present.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.rows_gateway import GatewayRows, gateway_rows
from tests.integration.hbase import HBase
from tests.unit import filter_cases as cases
from txn.clock import SystemClock
from txn.errors import InvalidRequestError
from txn.tables.admin import Admin
from txn.tables.filters.parsing import parse_filter
from txn.tables.kv.memory import MemoryStore
from txn.tables.operations import (
    Add,
    Append,
    Condition,
    FamilySettings,
    Operation,
    Put,
    Range,
    Remove,
    Result,
    Selection,
)
from txn.tables.rows import Page, Rows

HOUR_MS = 3_600_000
TTL_MS = HOUR_MS // 2
FAMILIES = {
    b"d": FamilySettings(versions=50),
    b"e": FamilySettings(versions=2),
    b"m": FamilySettings(versions=5, min_versions=1, ttl_ms=TTL_MS),
}
ROWS = [b"a", b"ab", b"b", b"b\0", b"c"]
COLUMNS = [b"", b"x", b"xy", b"y"]
TRIPS = itertools.count()


@dataclass
class Pair:
    """A real HBase and ours, with a table of the same name; each example has rows of its own."""

    gateway: GatewayRows
    rows: Rows
    table: bytes
    prefix: bytes = b""
    now_ms: int = 0

    def both(self, ask: Callable[[GatewayRows | Rows], Any]) -> Any:
        """Ask both; return the answer that both give."""
        answers = []
        for one in (self.gateway, self.rows):
            try:
                answers.append(ask(one))
            except InvalidRequestError:
                answers.append("refused")
        assert answers[1] == answers[0]
        return answers[0]

    def mutate(self, row: bytes, operation: Operation) -> None:
        mutations = [(self.prefix + row, [operation])]
        self.both(lambda one: [self._timeless(r) for r in one.mutate(self.table, mutations)])
        if not isinstance(operation, Put | Remove) or operation.timestamp is None:
            self._let_time_pass()

    def check(self, row: bytes, condition: Condition, operations: list[Operation]) -> None:
        self.both(
            lambda one: one.check_and_mutate(self.table, self.prefix + row, condition, operations)
        )
        self._let_time_pass()

    def _let_time_pass(self) -> None:
        """Be busy until the next millisecond: within one, a delete masks what comes after it."""
        clock = SystemClock()
        end_ms = clock.monotonic_ms() + 2
        while clock.monotonic_ms() < end_ms:
            self.gateway.get(self.table, [self.prefix], Selection())

    def get(self, rows: list[bytes], selection: Selection, text: bytes | None = None) -> Any:
        names = [self.prefix + row for row in rows]

        def ask(one: GatewayRows | Rows) -> list[Result]:
            if isinstance(one, GatewayRows):
                found = one.get(self.table, names, selection, text)
            else:
                found = one.get(self.table, names, _with_filter(selection, text))
            return [self._timeless(result) for result in found]

        return self.both(ask)

    def scan(self, rows: Range, selection: Selection, text: bytes | None = None) -> Any:
        start, stop = rows.start, rows.stop
        first, last = self.prefix, self.prefix + b"\xff"
        low, high = (last, first) if rows.reverse else (first, last)
        there = replace(
            rows,
            start=self.prefix + start if start else low,
            stop=self.prefix + stop if stop else high,
            # What HBase's old clients, and its gateways, make of it.
            include_stop=start == stop != b"",
        )

        def ask(one: GatewayRows | Rows) -> list[Result]:
            if isinstance(one, GatewayRows):
                found = one.scan(self.table, there, selection, text)
            else:
                found = list(_pages(one, self.table, there, _with_filter(selection, text)))
            return [self._timeless(result) for result in found]

        return self.both(ask)

    def _timeless(self, result: Result) -> Result:
        """The result, with one timestamp for all that is the present.

        Whether HBase knows that nothing follows in the row is up to what is hidden there.
        """
        return result._replace(
            partial=False,
            versions=tuple(
                version._replace(timestamp=1_000)
                if abs(version.timestamp - self.now_ms) < HOUR_MS
                else version
                for version in result.versions
            ),
        )


def _with_filter(selection: Selection, text: bytes | None) -> Selection:
    return selection if text is None else replace(selection, filter=parse_filter(text))


def _pages(rows: Rows, table: bytes, asked: Range, selection: Selection) -> Iterator[Result]:
    page = Page([], None)
    while True:
        page = rows.scan(table, asked, selection, limit_rows=2, resume=page.resume)
        yield from page.results
        if page.resume is None:
            return


@pytest.fixture(scope="module")
def tables(hbase: HBase) -> Iterator[Pair]:
    clock, store = SystemClock(), MemoryStore()
    table = b"rows-" + uuid.uuid4().hex[:12].encode()
    with ExitStack() as stack:
        gateway = stack.enter_context(gateway_rows(hbase.thrift2))
        for name, families in ((table, FAMILIES), (table + b"-cases", cases.FAMILIES)):
            gateway.create(name, families)
            stack.callback(gateway.drop, name)
            Admin(store, clock).create(name, families)
        yield Pair(gateway, Rows(store, clock), table)


@pytest.fixture
def pair(tables: Pair) -> Pair:
    return fresh(tables)


def fresh(tables: Pair) -> Pair:
    prefix = b"%06d" % next(TRIPS) + uuid.uuid4().hex[:6].encode() + b"/"
    return replace(tables, prefix=prefix, now_ms=SystemClock().wall_ms())


times = st.integers(1, 6)
columns = st.sampled_from(COLUMNS)
values = st.sampled_from([b"", b"1", b"2", b"ab", b"b"])
numbers = st.sampled_from([1, -1, (1 << 63) - 1])
ttls = st.sampled_from([None, None, 1 << 62, -1])  # neither ends while the test runs
rows_ = st.sampled_from(ROWS)
some_times = st.one_of(times, times, times, st.none())
operations = st.one_of(
    st.builds(Put, st.sampled_from([b"d", b"e"]), columns, values, times, ttls),
    st.builds(Put, st.sampled_from([b"d", b"e"]), columns, values, times, st.none()),
    st.builds(Put, st.just(b"d"), columns, values, times, ttls),
    st.builds(Remove, st.just(b"d"), columns, some_times, st.booleans()),
    st.builds(Remove, st.just(b"d"), st.none(), times, st.booleans()),
    st.builds(Remove, st.just(b"e"), st.one_of(st.none(), columns), some_times, st.just(False)),
    st.builds(Remove, st.none(), st.none(), some_times, st.just(False)),
    st.builds(Add, st.just(b"d"), st.just(b"n"), numbers, ttls),
    st.builds(Append, st.just(b"d"), columns, values, ttls),
)


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    versions = draw(st.sampled_from([1, 2, 3, 100]))
    if draw(st.booleans()):
        return Selection(versions=versions)
    names = st.lists(
        st.tuples(st.just(b"d"), st.one_of(st.none(), columns)), min_size=1, max_size=3
    )
    since = draw(st.integers(0, 5))
    until = draw(st.integers(since + 1, 7))
    return Selection(tuple(draw(names)), versions, since, until)


def _quote(value: bytes) -> bytes:
    return b"'" + value.replace(b"'", b"''") + b"'"


comparators = st.one_of(
    st.builds(
        lambda kind, value: (kind, b":" + value),
        st.sampled_from([b"binary", b"binaryprefix"]),
        st.sampled_from([b"", b"1", b"a", b"b", b"x", b"xy", b"d", b"e"]),
    ),
    st.builds(
        lambda kind, value: (kind, b":" + value),
        st.sampled_from([b"substring", b"regexstring"]),
        st.sampled_from([b"1", b"A", b"b", b"x"]),
    ),
)


@st.composite
def comparisons(draw: st.DrawFn) -> bytes:
    kind, value = draw(comparators)
    ordered = [b"<", b"<=", b">", b">="] if kind.startswith(b"binary") else []
    operator = draw(st.sampled_from([b"=", b"!=", *ordered]))
    return operator + b", " + _quote(kind + value)


def _call(name: bytes, *arguments: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(*arguments).map(lambda found: name + b"(" + b", ".join(found) + b")")


quoted_columns = columns.map(_quote)
quoted_families = st.sampled_from([b"'d'", b"'e'"])
small = st.integers(0, 3).map(lambda number: b"%d" % number)
booleans = st.sampled_from([b"true", b"false"])
prefixes = st.lists(quoted_columns, min_size=1, max_size=2, unique=True).map(b", ".join)
simple_filters = st.one_of(
    st.just(b"KeyOnlyFilter()"),
    st.just(b"FirstKeyOnlyFilter()"),
    _call(b"ColumnPrefixFilter", quoted_columns),
    _call(b"MultipleColumnPrefixFilter", prefixes),
    _call(b"ColumnCountGetFilter", small),
    _call(b"PageFilter", st.sampled_from([b"1", b"2", b"9"])),
    _call(b"ColumnPaginationFilter", small, small),
    _call(b"TimestampsFilter", times.map(lambda time: b"%d" % time), small),
    _call(b"RowFilter", comparisons()),
    _call(b"FamilyFilter", comparisons()),
    _call(b"QualifierFilter", comparisons()),
    _call(b"ValueFilter", comparisons()),
    _call(b"ColumnRangeFilter", quoted_columns, booleans, quoted_columns, booleans),
    _call(b"SingleColumnValueFilter", quoted_families, quoted_columns, comparisons()),
    _call(
        b"SingleColumnValueExcludeFilter",
        quoted_families,
        quoted_columns,
        comparisons(),
        booleans,
        booleans,
    ),
    _call(b"DependentColumnFilter", quoted_families, quoted_columns, booleans),
    _call(b"DependentColumnFilter", quoted_families, quoted_columns, booleans, comparisons()),
    _call(b"ColumnValueFilter", quoted_families, quoted_columns, comparisons()),
)
filters = st.recursive(
    simple_filters,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from([b"SKIP ", b"WHILE "]), inner).map(b"".join),
        st.tuples(inner, st.sampled_from([b" AND ", b" OR "]), inner).map(b"".join),
        inner.map(lambda text: b"(" + text + b")"),
    ),
    max_leaves=4,
)
histories = st.lists(st.tuples(rows_, operations), max_size=15)

some = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_each_filter_by_hand_finds_the_same(tables: Pair) -> None:
    """The cases of the unit tests are HBase's answers, not ours."""
    pair = replace(fresh(tables), table=tables.table + b"-cases", prefix=b"")
    for row, put in cases.HISTORY:
        pair.mutate(row, put)
    for text, found in cases.FOUND.items():
        assert cases.shown(pair.scan(Range(), Selection(), text), cases.newest()) == found
        pair.scan(Range(reverse=True), Selection(), text)
        pair.get([b"apple", b"banana", b"cherry"], Selection(versions=3), text)
    for text, found in cases.FOUND_IN_REVERSE.items():
        results = pair.scan(Range(reverse=True), Selection(), text)
        assert cases.shown(results, cases.newest()) == found


@pytest.mark.parametrize("text", cases.REFUSED)
def test_each_text_that_is_no_filter_is_refused_by_both(pair: Pair, text: bytes) -> None:
    """What works here must work there."""
    if text:  # which the gateway takes for no filter at all
        assert pair.scan(Range(), Selection(), text) == "refused"


@some
@given(history=histories, questions=st.lists(selections(), min_size=1, max_size=3))
def test_any_history_leaves_the_same_versions(
    tables: Pair, history: list[tuple[bytes, Operation]], questions: list[Selection]
) -> None:
    """Clients that were written against HBase rely on what its deletes and versions hide."""
    pair = fresh(tables)
    for row, operation in history:
        pair.mutate(row, operation)
    pair.get(ROWS, Selection(versions=100))
    for selection in questions:
        pair.get(ROWS, selection)
        pair.scan(Range(), selection)
        pair.scan(Range(reverse=True), selection)


@some
@given(
    history=histories,
    asked=st.lists(st.tuples(filters, selections(), st.booleans()), min_size=3, max_size=6),
)
def test_any_filter_finds_the_same(
    tables: Pair,
    history: list[tuple[bytes, Operation]],
    asked: list[tuple[bytes, Selection, bool]],
) -> None:
    """A filter is the part of a query that runs on the server: nobody else can put it right.

    Each row is left with something to see: whether a filter of rows is asked about one that has
    been deleted depends on whether HBase has compacted it away."""
    pair = fresh(tables)
    for row, operation in history:
        pair.mutate(row, operation)
    for row, family in itertools.product({row for row, _ in history}, (b"d", b"e")):
        pair.mutate(row, Put(family, b"kept", b"", pair.now_ms + 2 * HOUR_MS))
    for text, selection, reverse in asked:
        pair.scan(Range(reverse=reverse), selection, text)
        pair.get(ROWS, selection, text)


@some
@given(
    history=histories,
    ends=st.tuples(st.sampled_from([b"", *ROWS]), st.sampled_from([b"", *ROWS])),
    reverse=st.booleans(),
    batch=st.one_of(st.none(), st.integers(1, 3)),
)
def test_any_range_is_the_same_rows(
    tables: Pair,
    history: list[tuple[bytes, Operation]],
    ends: tuple[bytes, bytes],
    reverse: bool,
    batch: int | None,
) -> None:
    """Ends, their order and batches are where an own implementation goes wrong by one."""
    pair = fresh(tables)
    for row, operation in history:
        pair.mutate(row, operation)
    pair.scan(Range(*ends, reverse=reverse), Selection(versions=100, batch=batch))


conditions = st.builds(
    Condition,
    st.just(b"d"),
    columns,
    st.sampled_from(["<", "<=", "=", "!=", ">=", ">"]),
    st.sampled_from([b"", b"1", b"a", b"b"]),
)
checked = st.one_of(
    st.builds(Put, st.just(b"d"), columns, values, st.one_of(times, st.none()), ttls),
    st.builds(Remove, st.just(b"d"), columns, times, st.booleans()),
)


@some
@given(
    history=histories,
    asked=st.lists(
        st.tuples(rows_, conditions, st.lists(checked, min_size=1, max_size=3)),
        min_size=1,
        max_size=4,
    ),
)
def test_any_check_is_decided_and_carried_out_alike(
    tables: Pair,
    history: list[tuple[bytes, Operation]],
    asked: list[tuple[bytes, Condition, list[Operation]]],
) -> None:
    """Clients build locks from these calls."""
    pair = fresh(tables)
    for row, operation in history:
        pair.mutate(row, operation)
    for row, condition, wanted in asked:
        pair.check(row, condition, wanted)
    pair.get(ROWS, Selection(versions=100))


@pytest.mark.parametrize("versions", [1, 2, 5])
@pytest.mark.parametrize("named", [(), ((b"m", None),), ((b"m", b"x"), (b"m", b"y"))])
def test_what_a_ttl_and_min_versions_leave(
    tables: Pair, versions: int, named: tuple[tuple[bytes, bytes | None], ...]
) -> None:
    """With a quirk: a column that is asked for by name shows one expired version more."""
    pair = fresh(tables)
    for column, ages in ((b"x", (5, 6, HOUR_MS, HOUR_MS + 1)), (b"y", (HOUR_MS, HOUR_MS + 1))):
        for age in ages:
            pair.mutate(b"a", Put(b"m", column, b"%d" % age, pair.now_ms - age))
    pair.get([b"a"], Selection(named, versions))
    pair.get([b"a"], Selection(named, versions, until=pair.now_ms - 5))


@pytest.mark.parametrize(
    ("limit", "offset"), [(1, 0), (2, 1), (3, 4), (0, 0), (0, 2), (None, 2), (2, 9)]
)
def test_limits_of_a_family_in_a_row(tables: Pair, limit: int | None, offset: int) -> None:
    """They page through wide rows; a limit of 0 is one of 1 to HBase."""
    pair = fresh(tables)
    for family, number in itertools.product((b"d", b"e"), range(6)):
        pair.mutate(b"a", Put(family, b"c%d" % number, b"1", 5))
    pair.get([b"a"], Selection(store_limit=limit, store_offset=offset))


def test_a_family_may_have_a_time_range_of_its_own(tables: Pair) -> None:
    """Thrift 2 scans can say so."""
    pair = fresh(tables)
    for family, time in itertools.product((b"d", b"m"), (3, 5, 7)):
        # Family m keeps one version for ever, whatever its age.
        pair.mutate(b"a", Put(family, b"x", b"1", time))
    pair.scan(Range(), Selection(versions=9, until=6, family_times=((b"d", 4, 9),)))
    pair.scan(Range(), Selection(versions=9, family_times=((b"m", 3, 5), (b"d", 0, 4))))


def test_an_increment_is_above_what_it_replaces(tables: Pair) -> None:
    """Even where that is of the future; and only of a number of 8 bytes."""
    pair = fresh(tables)
    future = pair.now_ms + 2 * HOUR_MS
    pair.mutate(b"a", Put(b"d", b"n", bytes(7) + b"\5", future))
    pair.mutate(b"a", Add(b"d", b"n", 3))
    pair.mutate(b"a", Append(b"d", b"n", b"!"))
    pair.mutate(b"a", Add(b"d", b"n", 3))
    pair.get([b"a"], Selection(versions=9))
