"""Any history of calls, through both of HBase's services at once, and every filter: the emulator
answers as a real HBase does.

Only what HBase leaves to chance is kept out: versions that are hidden until they are flushed away,
a put and a delete of one cell in one call at the present, which may be the same millisecond, and
filters of whole rows that have been deleted, which may be compacted away or not: each row keeps
a cell in each family.
"""

import struct
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.contract.both import NOW_MS, Ends, fresh
from tests.unit import filter_cases
from txn.emulator.thrift1 import IDL as ONE
from txn.stores.hbase.idl import IDL as TWO

MANY = 1000  # versions: more than a history can put, so that none is ever hidden
ROWS = (b"a", b"ab", b"b", b"b\0")
FAMILIES = (b"d", b"e")
KEPT_MS = NOW_MS + 7_200_000
TTLS = [None, None, 1 << 62, -1]  # neither ends while the test runs

rows = st.sampled_from(ROWS)
families = st.sampled_from(FAMILIES)
qualifiers = st.sampled_from([b"", b"x", b"xy", b"y"])
times = st.one_of(st.none(), st.integers(1, 6))
values = st.sampled_from([b"", b"1", b"2", b"ab", b"b", b"1" * 8])
attributes = st.sampled_from([ttl and {b"_ttl": struct.pack(">q", ttl)} for ttl in TTLS])
columns = st.tuples(families, qualifiers)
names = st.one_of(families, columns.map(b":".join))
named = st.one_of(families.map(TWO.TColumn), columns.map(lambda column: TWO.TColumn(*column)))
mutations = st.builds(
    ONE.Mutation, isDelete=st.booleans(), column=columns.map(b":".join), value=values
)
cells = st.builds(lambda column, *rest: TWO.TColumnValue(*column, *rest), columns, values, times)
deleted = st.builds(lambda column, time: TWO.TColumn(*column, time), columns, times)
changes = st.one_of(
    st.builds(lambda cell, ttl: ("put", [cell], ttl), cells, attributes),
    st.builds(lambda column, kind: ("delete", [column], kind), deleted, st.integers(0, 3)),
)
time_ranges = st.tuples(st.integers(0, 4), st.integers(4, 8)).map(lambda t: TWO.TTimeRange(*t))
selections = st.fixed_dictionaries(
    {"maxVersions": st.integers(1, 3)},
    optional={
        "columns": st.lists(named, min_size=1, max_size=3),
        "timeRange": time_ranges,
    },
)


def quote(value: bytes) -> bytes:
    return b"'" + value.replace(b"'", b"''") + b"'"


def call(name: bytes, *arguments: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(*arguments).map(lambda found: name + b"(" + b", ".join(found) + b")")


compared = st.one_of(
    st.tuples(
        st.sampled_from([b"=", b"!=", b"<", b"<=", b">", b">="]),
        st.sampled_from([b"binary:", b"binaryprefix:"]),
        st.sampled_from([b"", b"1", b"a", b"b", b"x", b"xy", b"d", b"e"]),
    ),
    st.tuples(
        st.sampled_from([b"=", b"!="]),
        st.sampled_from([b"substring:", b"regexstring:"]),
        st.sampled_from([b"1", b"A", b"b", b"x"]),
    ),
).map(lambda found: found[0] + b", " + quote(found[1] + found[2]))
column, family = qualifiers.map(quote), families.map(quote)
small = st.integers(0, 6).map(b"%d".__mod__)
boolean = st.sampled_from([b"true", b"false"])
prefixes = st.lists(column, min_size=1, max_size=2, unique=True).map(b", ".join)
one_filter = st.one_of(
    *(st.just(each) for each in (b"KeyOnlyFilter()", b"FirstKeyOnlyFilter()")),
    call(b"ColumnPrefixFilter", column),
    call(b"MultipleColumnPrefixFilter", prefixes),
    call(b"ColumnCountGetFilter", small),
    call(b"PageFilter", st.sampled_from([b"1", b"2", b"9"])),
    call(b"ColumnPaginationFilter", small, small),
    call(b"TimestampsFilter", small, small),
    *(call(kind, compared) for kind in (b"RowFilter", b"FamilyFilter", b"QualifierFilter")),
    call(b"ValueFilter", compared),
    call(b"ColumnRangeFilter", column, boolean, column, boolean),
    *(
        call(b"SingleColumnValueFilter", family, column, compared, *more)
        for more in ((), (boolean,) * 2)
    ),
    call(b"SingleColumnValueExcludeFilter", family, column, compared, boolean, boolean),
    *(call(b"DependentColumnFilter", family, column, boolean, *more) for more in ((), (compared,))),
    call(b"ColumnValueFilter", family, column, compared),
)
filters = st.recursive(
    one_filter,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from([b"SKIP ", b"WHILE "]), inner).map(b"".join),
        st.tuples(inner, st.sampled_from([b" AND ", b" OR "]), inner).map(b"".join),
        inner.map(lambda text: b"(" + text + b")"),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def table(ends: Ends) -> Iterator[bytes]:
    found = fresh("histories")
    name = TWO.TTableName(None, found)
    made = [TWO.TColumnFamilyDescriptor(name=family, maxVersions=MANY) for family in FAMILIES]
    ends.two.ask("createTable", TWO.TTableDescriptor(name, made), None)
    yield found
    ends.two.ask("disableTable", name)
    ends.two.ask("deleteTable", name)


class Histories(RuleBasedStateMachine):
    """Each call is answered alike, and after it all versions of all rows are alike."""

    ends: ClassVar[Ends]
    table: ClassVar[bytes]

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = self.ends.one, self.ends.two
        self.prefix = fresh("h") + b"/"
        kept = [TWO.TColumnValue(family, b"kept", b"", KEPT_MS) for family in FAMILIES]
        puts = [TWO.TPut(self.row(row), kept) for row in ROWS]
        self.two.ask("putMultiple", self.table, puts)

    def row(self, row: bytes) -> bytes:
        return self.prefix + row

    def mutation(self, row: bytes, kind: str, columns: list[Any], more: Any) -> Any:
        if kind == "put":
            return TWO.TMutation(put=TWO.TPut(row, columns, attributes=more))
        return TWO.TMutation(deleteSingle=TWO.TDelete(row, columns, deleteType=more))

    @rule(
        row=rows,
        changes=st.lists(mutations, max_size=3, unique_by=lambda change: change.column),
        time=times,
    )
    def mutate_row(self, row: bytes, changes: list[Any], time: int | None) -> None:
        if time is None:
            self.one.ask("mutateRow", self.table, self.row(row), changes, {})
        else:
            self.one.ask("mutateRowTs", self.table, self.row(row), changes, time, {})

    @rule(
        batch=st.dictionaries(rows, st.lists(mutations, max_size=2), max_size=3),
        time=st.integers(1, 6),
    )
    def mutate_rows(self, batch: dict[bytes, list[Any]], time: int) -> None:
        batches = [ONE.BatchMutation(self.row(row), changes) for row, changes in batch.items()]
        self.one.ask("mutateRowsTs", self.table, batches, time, {})

    @rule(row=rows, column=columns, by=st.sampled_from([-3, 1, (1 << 63) - 1]), more=attributes)
    def count(self, row: bytes, column: tuple[bytes, bytes], by: int, more: Any) -> None:
        asked = TWO.TIncrement(self.row(row), [TWO.TColumnIncrement(*column, by)], more)
        self.two.ask("increment", self.table, asked)

    @rule(
        row=rows,
        cells=st.lists(cells, min_size=1, max_size=2, unique_by=lambda cell: cell.qualifier),
        more=attributes,
    )
    def append(self, row: bytes, cells: list[Any], more: Any) -> None:
        self.two.ask("append", self.table, TWO.TAppend(self.row(row), cells, more))

    @rule(row=rows, name=names, time=times)
    def delete_all(self, row: bytes, name: bytes, time: int | None) -> None:
        if time is None:
            self.one.ask("deleteAll", self.table, self.row(row), name, {})
        else:
            self.one.ask("deleteAllTs", self.table, self.row(row), name, time, {})

    @rule(row=rows, cells=st.lists(cells, min_size=1, max_size=4), more=attributes)
    def put(self, row: bytes, cells: list[Any], more: Any) -> None:
        self.two.ask("put", self.table, TWO.TPut(self.row(row), cells, attributes=more))

    @rule(row=rows, columns=st.lists(deleted, min_size=1, max_size=2), kind=st.integers(0, 3))
    def delete(self, row: bytes, columns: list[Any], kind: int) -> None:
        change = TWO.TDelete(self.row(row), columns, deleteType=kind)
        self.two.ask("deleteSingle", self.table, change)

    @rule(row=rows, time=times)
    def delete_row(self, row: bytes, time: int | None) -> None:
        self.two.ask("deleteSingle", self.table, TWO.TDelete(self.row(row), timestamp=time))

    @rule(row=rows, where=columns, operator=st.integers(0, 5), value=values, change=changes)
    def check(
        self,
        row: bytes,
        where: tuple[bytes, bytes],
        operator: int,
        value: bytes,
        change: tuple[str, list[Any], Any],
    ) -> None:
        made = TWO.TRowMutations(self.row(row), [self.mutation(self.row(row), *change)])
        place = (self.table, self.row(row), *where)
        self.two.ask("checkAndMutate", *place, operator, value, made)

    @rule(row=rows, names=st.lists(names, max_size=3), until=st.integers(0, 7))
    def read_columns(self, row: bytes, names: list[bytes], until: int) -> None:
        self.one.ask("getRowWithColumnsTs", self.table, self.row(row), names, until, {})

    @rule(
        options=selections,
        more=st.fixed_dictionaries(
            {"reversed": st.booleans()},
            optional={
                "batchSize": st.integers(1, 3),
                "limit": st.integers(1, 2),
                "colFamTimeRangeMap": st.dictionaries(families, time_ranges),
            },
        ),
        ends=st.tuples(*(st.sampled_from([None, *ROWS]) for _ in range(2))),
    )
    def scan(self, options: Any, more: Any, ends: tuple[bytes | None, bytes | None]) -> None:
        self.ask_scan(*ends, options | more)

    @rule(
        texts=st.lists(filters, min_size=3, max_size=6), options=selections, reverse=st.booleans()
    )
    def filter(self, texts: list[bytes], options: Any, reverse: bool) -> None:
        for text in texts:
            gets = [TWO.TGet(self.row(row), filterString=text, **options) for row in ROWS]
            self.two.ask("getMultiple", self.table, gets)
            self.ask_scan(None, None, {**options, "reversed": reverse, "filterString": text})

    def ask_scan(self, start: bytes | None, stop: bytes | None, options: Any) -> None:
        first, last = self.prefix, self.prefix[:-1] + b"0"
        if options["reversed"]:
            first, last = last, first
        scan = TWO.TScan(
            startRow=first if start is None else self.row(start),
            stopRow=last if stop is None else self.row(stop),
            **options,
        )
        self.two.ask("getScannerResults", self.table, scan, 100)

    @invariant()
    def all_versions_are_alike(self) -> None:
        gets = [TWO.TGet(self.row(row), maxVersions=MANY) for row in ROWS]
        self.two.ask("getMultiple", self.table, gets)


def test_the_emulator_answers_as_hbase_does(ends: Ends, table: bytes) -> None:
    """Whoever tests against the emulator relies on this and on nothing else."""
    Histories.ends, Histories.table = ends, table
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=40,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_each_filter_by_hand_finds_the_same(ends: Ends) -> None:
    found = fresh("filters")
    name = TWO.TTableName(None, found)
    made = [TWO.TColumnFamilyDescriptor(name=each, maxVersions=3) for each in filter_cases.FAMILIES]
    ends.two.ask("createTable", TWO.TTableDescriptor(name, made), None)
    for row, (family, column, value, timestamp, _) in filter_cases.HISTORY:
        cell = TWO.TColumnValue(family, column, value, timestamp)
        ends.two.ask("put", found, TWO.TPut(row, [cell]))
    for text in [*filter_cases.FOUND, *filter_cases.FOUND_IN_REVERSE, *filter_cases.REFUSED]:
        for reverse in (False, True):
            scan = TWO.TScan(reversed=reverse, filterString=text)
            ends.two.ask("getScannerResults", found, scan, 100)
        gets = [TWO.TGet(row, maxVersions=3, filterString=text) for row in (b"apple", b"banana")]
        ends.two.ask("getMultiple", found, gets)
    ends.two.ask("disableTable", name)
    ends.two.ask("deleteTable", name)
