"""Any history of calls, through both of HBase's services at once, and every filter: the emulator
answers as a real HBase does.

Only what HBase leaves to chance is kept out: versions that are hidden until they are flushed away,
and a put and a delete of one cell in one call at the present, which may be the same millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.contract.both import Both, both, fresh
from tests.integration.hbase import HBase
from txn.emulator.thrift1 import IDL as ONE
from txn.stores.hbase.idl import IDL as TWO
from txn.tables.operations import MAX_TIMESTAMP

MANY = 1000  # versions: more than a history can put, so that none is ever hidden
ROWS = (b"a", b"b", b"b\0")
FAMILIES = (b"d", b"e")
QUALIFIERS = (b"", b"x", b"y")

rows = st.sampled_from(ROWS)
families = st.sampled_from(FAMILIES)
qualifiers = st.sampled_from(QUALIFIERS)
times = st.one_of(st.none(), st.integers(1, 6))
values = st.sampled_from([b"", b"1", b"2", b"1" * 8])
columns = st.tuples(families, qualifiers)
names = st.one_of(families, st.tuples(families, qualifiers).map(b":".join))
mutations1 = st.builds(
    ONE.Mutation, isDelete=st.booleans(), column=columns.map(b":".join), value=values
)
cells = st.builds(lambda c, v, t: TWO.TColumnValue(*c, v, t), columns, values, times)
deleted = st.builds(lambda c, t: TWO.TColumn(*c, t), columns, times)
kinds = st.sampled_from([0, 1, 2])


@pytest.fixture(scope="module")
def ends(hbase: HBase, emulator: HBase) -> Iterator[tuple[Both, Both, bytes]]:
    """Both services, and a table that they share."""
    table = fresh("histories")
    with (
        both(ONE.Hbase, hbase, emulator, "thrift1") as first,
        both(TWO.THBaseService, hbase, emulator, "thrift2") as second,
    ):
        name = TWO.TTableName(None, table)
        made = [TWO.TColumnFamilyDescriptor(name=family, maxVersions=MANY) for family in FAMILIES]
        second.ask("createTable", TWO.TTableDescriptor(name, made), None)
        yield first, second, table
        second.ask("disableTable", name)
        second.ask("deleteTable", name)


class Histories(RuleBasedStateMachine):
    """Each call is answered alike, and after it all versions of all rows are alike."""

    found: ClassVar[tuple[Both, Both, bytes]]

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.table = self.found
        self.prefix = fresh("h") + b"/"

    def row(self, row: bytes) -> bytes:
        return self.prefix + row

    @rule(
        row=rows,
        changes=st.lists(mutations1, max_size=3, unique_by=lambda change: change.column),
        time=times,
    )
    def mutate_row(self, row: bytes, changes: list[Any], time: int | None) -> None:
        if time is None:
            self.one.ask("mutateRow", self.table, self.row(row), changes, {})
        else:
            self.one.ask("mutateRowTs", self.table, self.row(row), changes, time, {})

    @rule(
        batch=st.dictionaries(rows, st.lists(mutations1, max_size=2), max_size=3),
        time=st.integers(1, 6),
    )
    def mutate_rows(self, batch: dict[bytes, list[Any]], time: int) -> None:
        batches = [ONE.BatchMutation(self.row(row), changes) for row, changes in batch.items()]
        self.one.ask("mutateRowsTs", self.table, batches, time, {})

    @rule(row=rows, column=columns, by=st.integers(-3, 3))
    def count(self, row: bytes, column: tuple[bytes, bytes], by: int) -> None:
        self.one.ask("atomicIncrement", self.table, self.row(row), b":".join(column), by)

    @rule(row=rows, cells=st.lists(cells, min_size=1, max_size=2, unique_by=lambda c: c.qualifier))
    def append(self, row: bytes, cells: list[Any]) -> None:
        self.two.ask("append", self.table, TWO.TAppend(self.row(row), cells))

    @rule(row=rows, name=names, time=times)
    def delete_all(self, row: bytes, name: bytes, time: int | None) -> None:
        time = MAX_TIMESTAMP if time is None else time
        self.one.ask("deleteAllTs", self.table, self.row(row), name, time, {})

    @rule(row=rows, cells=st.lists(cells, min_size=1, max_size=4))
    def put(self, row: bytes, cells: list[Any]) -> None:
        self.two.ask("put", self.table, TWO.TPut(self.row(row), cells))

    @rule(row=rows, columns=st.lists(deleted, min_size=1, max_size=2), kind=kinds)
    def delete(self, row: bytes, columns: list[Any], kind: int) -> None:
        change = TWO.TDelete(self.row(row), columns, deleteType=kind)
        self.two.ask("deleteSingle", self.table, change)

    @rule(row=rows, time=times)
    def delete_row(self, row: bytes, time: int | None) -> None:
        self.two.ask("deleteSingle", self.table, TWO.TDelete(self.row(row), timestamp=time))

    @rule(row=rows, where=columns, operator=st.integers(0, 5), value=values, cell=cells)
    def check(
        self, row: bytes, where: tuple[bytes, bytes], operator: int, value: bytes, cell: Any
    ) -> None:
        put = TWO.TMutation(put=TWO.TPut(self.row(row), [cell]))
        change = TWO.TRowMutations(self.row(row), [put])
        place = (self.table, self.row(row), *where)
        self.two.ask("checkAndMutate", *place, operator, value, change)

    @rule(row=rows, names=st.lists(names, max_size=3), until=st.integers(0, 7))
    def read_columns(self, row: bytes, names: list[bytes], until: int) -> None:
        self.one.ask("getRowWithColumnsTs", self.table, self.row(row), names, until, {})

    @rule(
        reverse=st.booleans(),
        versions=st.integers(1, 3),
        batch=st.sampled_from([None, 1, 2]),
        limit=st.sampled_from([None, 1, 2]),
        times=st.dictionaries(families, st.tuples(st.integers(0, 4), st.integers(4, 8))),
    )
    def scan(
        self,
        reverse: bool,
        versions: int,
        batch: int | None,
        limit: int | None,
        times: dict[bytes, tuple[int, int]],
    ) -> None:
        first, last = self.prefix, self.prefix[:-1] + b"0"
        bounds = (last, first) if reverse else (first, last)
        scan = TWO.TScan(
            startRow=bounds[0],
            stopRow=bounds[1],
            reversed=reverse,
            maxVersions=versions,
            batchSize=batch,
            limit=limit,
            colFamTimeRangeMap={name: TWO.TTimeRange(*each) for name, each in times.items()},
        )
        self.two.ask("getScannerResults", self.table, scan, 100)

    @invariant()
    def all_versions_are_alike(self) -> None:
        gets = [TWO.TGet(self.row(row), maxVersions=MANY) for row in ROWS]
        self.two.ask("getMultiple", self.table, gets)


def test_the_emulator_answers_as_hbase_does(ends: tuple[Both, Both, bytes]) -> None:
    """Whoever tests against the emulator relies on this and on nothing else."""
    Histories.found = ends
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Histories,
        settings=settings(
            max_examples=25,
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# --- filters -------------------------------------------------------------------------------------

FILTERS = [
    "PrefixFilter('{}b')",
    "ColumnPrefixFilter('c')",
    "MultipleColumnPrefixFilter('a', 'c2')",
    "ColumnRangeFilter('a2', true, 'c1', false)",
    "QualifierFilter(>=, 'binary:b1')",
    "QualifierFilter(=, 'substring:2')",
    "QualifierFilter(=, 'regexstring:^[ac]1$')",
    "ValueFilter(=, 'binary:1')",
    "ValueFilter(!=, 'binaryprefix:1')",
    "SingleColumnValueFilter('d', 'a1', =, 'binary:1')",
    "SingleColumnValueFilter('d', 'a1', =, 'binary:1', true, false)",
    "SingleColumnValueFilter('d', 'a1', <, 'binary:2', true, true)",
    "SingleColumnValueExcludeFilter('d', 'a1', =, 'binary:1')",
    "KeyOnlyFilter()",
    "FirstKeyOnlyFilter()",
    "PageFilter(2)",
    "ColumnCountGetFilter(2)",
    "ColumnPaginationFilter(2, 1)",
    "TimestampsFilter(10, 30)",
    "RowFilter(=, 'substring:b')",
    "RowFilter(<=, 'binary:{}b')",
    "FamilyFilter(=, 'binary:e')",
    "InclusiveStopFilter('{}b')",
    "DependentColumnFilter('d', 'a1', false)",
    "PrefixFilter('{}b') AND KeyOnlyFilter()",
    "ColumnPrefixFilter('a') OR ColumnPrefixFilter('c')",
    "SKIP ValueFilter(!=, 'binary:3')",
    "WHILE ValueFilter(!=, 'binary:3')",
    "(PageFilter(3) AND FamilyFilter(=, 'binary:d')) OR QualifierFilter(=, 'binary:c1')",
    "FamilyFilter(=, 'binary:d') AND PageFilter(2) AND ColumnPrefixFilter('a')",
    "ValueFilter(=, 'binary:it''s')",
]


@pytest.fixture(scope="module")
def filtered(ends: tuple[Both, Both, bytes]) -> tuple[Both, bytes, bytes]:
    """Five rows of six columns."""
    _, two, table = ends
    prefix = fresh("f")
    for number, row in enumerate((b"a", b"b", b"b2", b"c", b"d")):
        put = [
            TWO.TColumnValue(family, qualifier, b"%d" % (number + place), 10 * (place + 1))
            for family in FAMILIES
            for place, qualifier in enumerate((b"a1", b"a2", b"b1", b"c1", b"c2"))
            if (number + place) % 4
        ]
        quoted = TWO.TColumnValue(b"d", b"q", b"it's", 10)
        two.ask("put", table, TWO.TPut(prefix + row, [*put, quoted]))
    return two, table, prefix


@pytest.mark.parametrize("text", FILTERS)
@pytest.mark.parametrize("reverse", [False, True])
def test_filters_find_what_they_find_on_hbase(
    filtered: tuple[Both, bytes, bytes], text: str, reverse: bool
) -> None:
    """Each of HBase's, alone and together."""
    two, table, prefix = filtered
    language = text.format(prefix.decode()).encode()
    bounds = (prefix + b"~", prefix) if reverse else (prefix, prefix + b"~")
    scan = TWO.TScan(startRow=bounds[0], stopRow=bounds[1], reversed=reverse, filterString=language)
    two.ask("getScannerResults", table, scan, 100)
    two.ask("get", table, TWO.TGet(prefix + b"b2", filterString=language))
