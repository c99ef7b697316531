"""HBase's Thrift 2 service, call by call: the emulator answers as the real one does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import product
from typing import Any

import pytest

from tests.contract.both import NOW_MS, TTLS, Both, both, fresh
from tests.integration.hbase import HBase
from txn.model import MAX_CELL
from txn.stores.hbase.idl import IDL
from txn.tables.changes import MAX_COLUMN

ABSENT = b"emulator-no-such-table"
PRESENT = (1 << 63) - 1
Delete = IDL.TDeleteType


def name(table: bytes, namespace: bytes | None = None) -> Any:
    return IDL.TTableName(namespace, table)


def get(row: bytes, **options: Any) -> Any:
    return IDL.TGet(row, **options)


def cell(column: bytes, value: bytes = b"v", timestamp: int | None = None) -> Any:
    family, _, qualifier = column.partition(b":")
    return IDL.TColumnValue(family, qualifier, value, timestamp)


def put(row: bytes, *cells: Any, **options: Any) -> Any:
    return IDL.TPut(row, list(cells), **options)


def column(text: bytes, timestamp: int | None = None) -> Any:
    family, colon, qualifier = text.partition(b":")
    return IDL.TColumn(family, qualifier if colon else None, timestamp)


def delete(row: bytes, *columns: Any, kind: int = Delete.DELETE_COLUMNS, **options: Any) -> Any:
    return IDL.TDelete(row, list(columns) or None, deleteType=kind, **options)


def mutations(row: bytes, *changes: Any) -> Any:
    return IDL.TRowMutations(
        row,
        [
            IDL.TMutation(**{"put" if isinstance(one, IDL.TPut) else "deleteSingle": one})
            for one in changes
        ],
    )


def descriptor(table: bytes, *families: Any, namespace: bytes | None = None) -> Any:
    return IDL.TTableDescriptor(name(table, namespace), list(families))


def family(text: bytes, **options: Any) -> Any:
    return IDL.TColumnFamilyDescriptor(name=text, **options)


@pytest.fixture(scope="module")
def two(hbase: HBase, emulator: HBase) -> Iterator[Both]:
    with both(IDL.THBaseService, hbase, emulator, "thrift2") as found:
        yield found


@pytest.fixture(scope="module")
def table(two: Both) -> Iterator[bytes]:
    """A table of three regions that all tests share, each with a row of its own."""
    found = fresh("emulator2")
    families = [family(b"d", maxVersions=3), family(b"e", maxVersions=3)]
    two.ask("createTable", descriptor(found, *families), [b"m", b"c"])
    yield found
    two.ask("disableTable", name(found))
    two.ask("deleteTable", name(found))


@pytest.fixture
def row() -> bytes:
    return fresh("row")


@pytest.fixture
def filled(two: Both, table: bytes, row: bytes) -> bytes:
    return fill(two, table, row)


def fill(two: Both, table: bytes, row: bytes) -> bytes:
    """Give a row three versions of d:x, and other columns; return it."""
    versions = [cell(b"d:x", b"%d" % t, t) for t in (10, 20, 30)]
    others = [cell(b"d:y", b"1"), cell(b"d:", b"2"), cell(b"e:z", b""), cell(b"e:x", b"3", 40)]
    two.ask("put", table, put(row, *versions, *others, timestamp=15))
    return row


def everything(two: Both, table: bytes, *rows: bytes) -> None:
    """Compare all versions of rows."""
    for row in rows:
        two.ask("get", table, get(row, maxVersions=9))


# --- reading -------------------------------------------------------------------------------------

GETS: list[dict[str, Any]] = [
    {},
    {"maxVersions": 2},
    {"maxVersions": 0},
    {"maxVersions": -1},
    {"timestamp": 20},
    {"timestamp": -1},
    {"timestamp": PRESENT},
    {"timeRange": IDL.TTimeRange(10, 30), "maxVersions": 9},
    {"timeRange": IDL.TTimeRange(10, 10)},
    {"timeRange": IDL.TTimeRange(30, 10)},
    {"timeRange": IDL.TTimeRange(-1, 10)},
    {"timeRange": IDL.TTimeRange(10, 20), "timestamp": 30},
    {"columns": []},
    {"columns": [column(b"d:x")]},
    {"columns": [column(b"d:x", 10)]},
    {"columns": [column(b"d")], "maxVersions": 9},
    {"columns": [column(b"d"), column(b"d:x")]},
    {"columns": [column(b"d:x"), column(b"d")]},
    {"columns": [column(b"d:"), column(b"e:z")]},
    {"columns": [column(b"z:x")]},
    {"columns": [column(b"d:none")]},
    {"storeLimit": 1},
    {"storeLimit": 0},
    {"storeLimit": -1},
    {"storeOffset": 1},
    {"storeOffset": 1, "storeLimit": 2, "maxVersions": 9},
    {"existence_only": True},
    {"filterString": b"QualifierFilter(=, 'binary:x')"},
    {"filterString": b"ColumnPaginationFilter(2, 1)"},
    {"filterString": b"QualifierFilter("},
    {"filterString": b""},
    {"authorizations": IDL.TAuthorization(["a"])},
    {"consistency": IDL.TConsistency.TIMELINE},
    {"attributes": {b"a": b"b"}, "cacheBlocks": False},
]


@pytest.mark.parametrize("options", GETS, ids=str)
def test_rows_are_read(two: Both, table: bytes, filled: bytes, options: dict[str, Any]) -> None:
    """One, several, or only whether they are there."""
    gets = [get(filled, **options), get(b"nowhere", **options), get(filled)]
    two.ask("get", table, gets[0])
    two.ask("get", table, gets[1])
    two.ask("getMultiple", table, gets)
    two.ask("exists", table, gets[0])
    two.ask("exists", table, gets[1])
    two.ask("existsAll", table, gets[:2])


@pytest.mark.parametrize("wrong", [ABSENT, b"a b"])
def test_a_table_that_is_not_there_has_no_rows(two: Both, wrong: bytes) -> None:
    """Whatever is asked of it."""
    change = put(b"r", cell(b"d:x"))
    two.ask("get", wrong, get(b"r"))
    two.ask("getMultiple", wrong, [get(b"r"), get(b"s")])
    two.ask("put", wrong, change)
    two.ask("deleteSingle", wrong, delete(b"r"))
    two.ask("checkAndPut", wrong, b"r", b"d", b"x", None, change)
    two.ask("increment", wrong, IDL.TIncrement(b"r", [IDL.TColumnIncrement(b"d", b"x")]))
    two.ask("getScannerResults", wrong, IDL.TScan(), 1)
    if wrong == ABSENT:
        two.ask("putMultiple", wrong, [change])
        two.ask("deleteMultiple", wrong, [delete(b"r")])


# --- changing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cells",
    [
        [],
        [cell(b"d:x", b"1"), cell(b"e:x", b"2", 7)],
        [cell(b"d:x", b"1", 20), cell(b"d:x", b"2", 20)],
        [cell(b"z:x")],
        [cell(b":x")],
        [cell(b"d:x", b"late", 5)],
        [cell(b"d:x", b"now", PRESENT)],
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"timestamp": 25}, {"durability": 1}], ids=str)
def test_a_row_is_put(
    two: Both, table: bytes, filled: bytes, cells: list[Any], options: dict[str, Any]
) -> None:
    """Alone or with others; what is wrong with one row of many does not stop the others."""
    two.ask("put", table, put(filled, *cells, **options))
    other, third = fresh("row"), fresh("row")
    puts = [put(other, *cells, **options), put(third, cell(b"d:x", b"1", 3))]
    two.ask("putMultiple", table, puts)
    everything(two, table, filled, other, third)


def test_rows_that_cannot_be_are_refused(two: Both, table: bytes) -> None:
    """Wherever they are given."""
    for row in (b"", b"r" * 32_768):
        two.ask("get", table, get(row))
        two.ask("put", table, put(row, cell(b"d:x")))
        two.ask("putMultiple", table, [put(row, cell(b"d:x"))])
        two.ask("deleteSingle", table, delete(row))
        two.ask("checkAndPut", table, row, b"d", b"x", None, put(row, cell(b"d:x")))
        two.ask("mutateRow", table, mutations(row, put(row, cell(b"d:x"))))
        two.ask("append", table, IDL.TAppend(row, [cell(b"d:x")]))


@pytest.mark.parametrize(
    "columns",
    [
        [],
        [column(b"d:x")],
        [column(b"d:x", 20)],
        [column(b"d:x", 25), column(b"d:y")],
        [column(b"d:x", 25), column(b"d:x", 5)],  # of a family, HBase heeds the last one only
        [column(b"d:x", -1)],
        [column(b"d:x", PRESENT)],
        [column(b"d")],
        [column(b"e", 15)],
        [column(b"e", 40), column(b"d", 10)],
        [column(b"z:x")],
        [column(b"d:x"), column(b"d:x")],
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [*Delete._VALUES_TO_NAMES, 9])
def test_cells_are_deleted(
    two: Both, table: bytes, filled: bytes, columns: list[Any], kind: int
) -> None:
    """A version, all older ones, a family, or a version of a family."""
    two.ask("deleteSingle", table, delete(filled, *columns, kind=kind))
    everything(two, table, filled)
    two.ask("put", table, put(filled, cell(b"d:x", b"late", 5), cell(b"e:x", b"late", 15)))
    everything(two, table, filled)


@pytest.mark.parametrize("options", [{}, {"timestamp": 20}, {"timestamp": -1}], ids=str)
def test_rows_are_deleted(two: Both, table: bytes, filled: bytes, options: dict[str, Any]) -> None:
    """Whole; an empty list of columns means that too."""
    two.ask("deleteSingle", table, delete(filled, **options))
    everything(two, table, filled)
    two.ask("put", table, put(filled, cell(b"d:x", b"1", 7)))
    two.ask("deleteSingle", table, IDL.TDelete(filled, [], **options))
    everything(two, table, filled)
    other = fresh("row")
    two.ask("put", table, put(other, cell(b"d:x", b"1", 7)))
    two.ask("deleteMultiple", table, [delete(other, **options), delete(filled, column(b"z:x"))])
    two.ask("deleteMultiple", table, [])
    everything(two, table, other)


@pytest.mark.parametrize("place", [b"d:x", b"d:none", b"d:", b"e:z", b"z:x", b":x"])
def test_changes_are_checked(two: Both, table: bytes, filled: bytes, place: bytes) -> None:
    """A put, a delete; the condition is the newest value, and empty is absent."""
    family, _, qualifier = place.partition(b":")
    for number, expected in enumerate([b"20", b"30", b"2", b"", None]):
        where = (table, filled, family, qualifier, expected)
        two.ask("checkAndPut", *where, put(filled, cell(b"d:p", b"%d" % number, 50 + number)))
        two.ask("checkAndDelete", *where, delete(filled, column(b"d:p")))
        everything(two, table, filled)


def test_a_checked_change_is_of_the_row_that_is_checked(
    two: Both, table: bytes, filled: bytes
) -> None:
    """And has something to do."""
    where = (table, filled, b"d", b"none", None)
    two.ask("checkAndPut", *where, put(b"other", cell(b"d:p")))
    two.ask("checkAndPut", *where, put(b"", cell(b"d:p")))
    two.ask("checkAndPut", *where, put(filled, cell(b"d:p", timestamp=-1)))
    two.ask("checkAndPut", *where[:4], b"other", put(filled, cell(b"d:p", timestamp=-1)))
    two.ask("put", table, put(filled, cell(b"d:p", timestamp=5), timestamp=-1))
    two.ask("checkAndPut", *where, put(filled))
    two.ask("checkAndPut", *where, put(filled, cell(b"z:p")))
    two.ask("checkAndDelete", *where, delete(b"other", column(b"d:p")))
    where = (table, filled, b"d", b"x", IDL.TCompareOperator.EQUAL, b"30")
    two.ask("checkAndMutate", *where, mutations(b"other", put(b"other", cell(b"d:p"))))
    two.ask("checkAndMutate", *where, mutations(filled, put(b"other", cell(b"d:p"))))
    two.ask("checkAndMutate", *where, mutations(filled))
    two.ask("checkAndMutate", *where, mutations(filled, put(filled, cell(b"z:p"))))
    everything(two, table, filled, b"other")


@pytest.mark.slow
def test_an_operator_that_compares_nothing_is_refused_where_it_must_compare(
    hbase: HBase, emulator: HBase, two: Both, table: bytes
) -> None:
    """NO_OP. All are asked at once: HBase's gateway tries again for more than a minute."""

    def compare(place: bytes, value: bytes | None) -> None:
        with both(IDL.THBaseService, hbase, emulator, "thrift2") as own:
            row = fill(own, table, fresh("row"))
            change = mutations(row, put(row, cell(b"e:n", b"1")))
            own.ask("checkAndMutate", table, row, b"d", place, 6, value, change)
            everything(own, table, row)

    asked = list(product([b"x", b"none"], [None, b"", b"2", b"30"]))
    with ThreadPoolExecutor(len(asked)) as pool:
        compared = [pool.submit(compare, *each) for each in asked]
        while wait(compared, timeout=10).not_done:
            two.ask("getThriftServerType")  # the gateway closes a connection that rests for long
    for each in compared:
        each.result()


def test_what_the_interface_does_not_know_is_a_protocol_error(
    hbase: HBase, emulator: HBase, two: Both, table: bytes, filled: bytes
) -> None:
    """After which HBase's gateway closes the connection."""
    change = mutations(filled, put(filled, cell(b"e:n", b"1")))
    requests: list[tuple[Any, ...]] = [
        ("checkAndMutate", table, filled, b"d", b"x", 7, b"30", change),
        ("checkAndMutate", table, filled, b"d", b"x", -1, None, change),
        ("mutateRow", table, IDL.TRowMutations(filled, [IDL.TMutation()])),
        ("put", table, IDL.TPut(filled)),
        ("get", table, IDL.TGet()),
    ]
    for request in requests:
        with both(IDL.THBaseService, hbase, emulator, "thrift2") as own:
            own.ask(*request)
    everything(two, table, filled)


@pytest.mark.parametrize("value", [None, b"", b"2", b"20", b"30", b"31"])
@pytest.mark.parametrize("place", [b"x", b"none"])
def test_values_are_compared(
    two: Both, table: bytes, filled: bytes, value: bytes | None, place: bytes
) -> None:
    """In six ways; an absent cell compares with nothing but no value."""
    change = mutations(filled, put(filled, cell(b"e:n", b"1")), delete(filled, column(b"e:z")))
    for operator in range(6):
        two.ask("checkAndMutate", table, filled, b"d", place, operator, value, change)
    everything(two, table, filled)


def test_cells_are_as_large_as_hbase_takes_them(two: Both, table: bytes) -> None:
    """Its client counts 20 bytes beside names and value, its server four more."""
    row = fresh("row")
    for over in (-1, 0, 1, 4, 5):
        size = MAX_CELL - 24 - len(row) - len(b"dx") + over
        change = put(row, cell(b"d:x", bytes(size)))
        two.ask("put", table, change)
        two.ask("putMultiple", table, [change, put(b"small" + row, cell(b"d:x", b"%d" % over))])
        two.ask("checkAndPut", table, row, b"d", b"none", None, change)
        two.ask("checkAndPut", table, row, b"d", b"none", b"other", change)
        two.ask("mutateRow", table, mutations(row, change))
        two.ask("append", table, IDL.TAppend(row, [cell(b"d:%d" % over, bytes(size - 1))]))
    two.ask("append", table, IDL.TAppend(row, [cell(b"d:x", b"more")]))
    two.ask("get", table, get(b"small" + row, maxVersions=9))


@pytest.mark.parametrize("size", [32_768, MAX_COLUMN])
def test_columns_may_have_longer_names_than_rows(two: Both, table: bytes, size: int) -> None:
    """All that is asked of them."""
    row, long = fresh("row"), b"d:" + b"q" * size
    two.ask("put", table, put(row, cell(long)))
    two.ask("get", table, get(row, columns=[column(long)]))
    two.ask("increment", table, IDL.TIncrement(row, [IDL.TColumnIncrement(b"d", long[3:] + b"2")]))
    two.ask("getScannerResults", table, IDL.TScan(startRow=row, stopRow=row), 9)
    two.ask("deleteSingle", table, delete(row, column(long)))
    everything(two, table, row)


def test_a_row_is_mutated(two: Both, table: bytes, filled: bytes) -> None:
    """Puts and deletes at once; all of one row."""
    some = [put(filled, cell(b"d:n", b"1")), delete(filled, column(b"d:x", 20))]
    two.ask("mutateRow", table, mutations(filled, *some))
    everything(two, table, filled)
    two.ask("mutateRow", table, mutations(filled, delete(filled), put(filled, cell(b"d:x", b"1"))))
    two.ask("mutateRow", table, mutations(filled))
    two.ask("mutateRow", table, mutations(filled, put(b"other", cell(b"d:x"))))
    two.ask("mutateRow", table, mutations(filled, some[0], put(filled, cell(b"z:x"))))
    two.ask("mutateRow", table, mutations(filled, some[0], put(b"", cell(b"d:x"))))
    two.ask("mutateRow", table, mutations(b"", put(b"", cell(b"d:x"))))
    everything(two, table, filled)


def test_counters_count(two: Both, table: bytes, row: bytes) -> None:
    """Several columns at once, by one where nothing is said."""
    one, more = IDL.TColumnIncrement(b"d", b"c"), IDL.TColumnIncrement(b"d", b"a", -5)
    two.ask("put", table, put(row, cell(b"d:v", b"1", 5)))
    for columns in ([one, more], [one], [], [IDL.TColumnIncrement(b"d", b"v")], [one, one]):
        two.ask("increment", table, IDL.TIncrement(row, columns))
    two.ask("increment", table, IDL.TIncrement(row, [one], returnResults=False))
    two.ask("increment", table, IDL.TIncrement(row, [one], returnResults=True))
    two.ask("increment", table, IDL.TIncrement(row, [IDL.TColumnIncrement(b"z", b"v")]))
    everything(two, table, row)


def test_values_are_appended_to(two: Both, table: bytes, row: bytes) -> None:
    """Several columns at once; timestamps mean nothing."""
    for cells in (
        [cell(b"d:b", b"1"), cell(b"d:a", b"2")],
        [cell(b"d:b", b"3", 5)],
        [cell(b"e:b", b"")],
        [],
        [cell(b"z:b", b"1")],
        [cell(b"d:t", b"1"), cell(b"d:t", b"2")],
        [cell(b":b", b"1")],
    ):
        two.ask("append", table, IDL.TAppend(row, cells))
    two.ask("append", table, IDL.TAppend(row, [cell(b"d:b", b"4")], returnResults=False))
    two.ask("get", table, get(row))


@pytest.mark.parametrize("ttl", TTLS)
def test_cells_may_have_a_ttl_of_their_own(two: Both, table: bytes, row: bytes, ttl: bytes) -> None:
    """Puts of all kinds, counts and appends; those two keep the TTL of what they change."""
    attributes, at, other = {b"_ttl": ttl}, NOW_MS - 60_000, fresh("row")
    brief, plain = {"attributes": attributes, "timestamp": at}, {"timestamp": at - 1}
    two.ask("put", table, put(row, cell(b"d:x", b"old"), **plain))
    two.ask("put", table, put(row, cell(b"d:x", b"new"), cell(b"e:z"), **brief))
    two.ask("putMultiple", table, [put(other, cell(b"d:x"), **brief)])
    both_puts = put(row, cell(b"d:p"), **brief), put(row, cell(b"d:q"), **plain)
    two.ask("mutateRow", table, mutations(row, *both_puts))
    where = (table, other, b"d", b"none", None)
    two.ask("checkAndPut", *where, put(other, cell(b"d:y"), **brief))
    everything(two, table, row, other)
    two.ask("append", table, IDL.TAppend(row, [cell(b"d:x", b"er")]))
    counted = [IDL.TColumnIncrement(b"d", b"c")]
    two.ask("increment", table, IDL.TIncrement(row, counted, attributes=attributes))
    two.ask("append", table, IDL.TAppend(row, [cell(b"d:a")], attributes=attributes))
    two.ask("deleteSingle", table, delete(row, column(b"d:x"), kind=Delete.DELETE_COLUMN))
    scan = IDL.TScan(startRow=row, stopRow=row, filterString=b"ValueFilter(!=, 'binary:v')")
    two.ask("getScannerResults", table, scan, 9)
    everything(two, table, row)


# --- scanners ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(two: Both, table: bytes) -> bytes:
    """The prefix of nine rows, in the middle of a region."""
    prefix = fresh("scan")
    puts = [
        put(
            b"%s%d" % (prefix, number),
            cell(b"d:a", b"old", 10),
            cell(b"d:a", b"%d" % number, 20),
            cell(b"d:b", b"v", 15),
            cell(b"e:c", b"%d" % (number % 3), 30),
        )
        for number in range(9)
    ]
    two.ask("putMultiple", table, puts)
    return prefix


SCANS: list[dict[str, Any]] = [
    {},
    {"limit": 2},
    {"limit": 0},
    {"limit": -1},
    {"batchSize": 1},
    {"batchSize": 2},
    {"batchSize": 2, "limit": 1},
    {"batchSize": 3, "maxVersions": 2},
    {"maxVersions": 2},
    {"caching": 1},
    {"columns": []},
    {"columns": [column(b"d:a"), column(b"e")]},
    {"columns": [column(b"d:none")]},
    {"columns": [column(b"z")]},
    {"timeRange": IDL.TTimeRange(10, 20)},
    {"timeRange": IDL.TTimeRange(20, 10)},
    {"colFamTimeRangeMap": {}},
    {"colFamTimeRangeMap": {b"d": IDL.TTimeRange(12, 20)}},
    {"colFamTimeRangeMap": {b"d": IDL.TTimeRange(5, 15), b"e": IDL.TTimeRange(40, 50)}},
    {"colFamTimeRangeMap": {b"d": IDL.TTimeRange(5, 15)}, "timeRange": IDL.TTimeRange(14, 31)},
    {"colFamTimeRangeMap": {b"d": IDL.TTimeRange(5, 15)}, "columns": [column(b"e")]},
    {"colFamTimeRangeMap": {b"d": IDL.TTimeRange(5, 99)}, "filterString": b"PageFilter(1)"},
    {"colFamTimeRangeMap": {b"d": IDL.TTimeRange(20, 10)}},
    {"colFamTimeRangeMap": {b"d": IDL.TTimeRange(-1, 10)}},
    {"colFamTimeRangeMap": {b"z": IDL.TTimeRange(5, 15)}},
    {"filterString": b"PageFilter(3)"},
    {"filterString": b"ValueFilter(=, 'binary:1')"},
    {"filterString": b"x("},
    {"readType": IDL.TReadType.PREAD, "cacheBlocks": True},
    {"consistency": IDL.TConsistency.TIMELINE},
]


@pytest.mark.parametrize("options", SCANS, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_are_scanned(
    two: Both, table: bytes, rows: bytes, options: dict[str, Any], reverse: bool
) -> None:
    """At once, or by a scanner that is kept open."""
    bounds = (rows + b"7", rows + b"2") if reverse else (rows + b"1", rows + b"6")
    scan = IDL.TScan(startRow=bounds[0], stopRow=bounds[1], reversed=reverse, **options)
    for count in (0, 1, 3, 100, -1):
        two.ask("getScannerResults", table, scan, count)

    def read(client: Any) -> Any:
        number = client.openScanner(table, scan)
        parts = [client.getScannerRows(number, 1)]
        while parts[-1]:
            parts.append(client.getScannerRows(number, 2))
        parts.append(client.getScannerRows(number, 2))
        client.closeScanner(number)
        return parts

    two.each(read)


@pytest.mark.parametrize(
    ("start", "stop"), [(b"", b"c"), (b"x", b""), (b"z", b"a"), (b"2", b"2"), (b"0", b"9" * 40_000)]
)
def test_bounds_of_scans(two: Both, table: bytes, rows: bytes, start: bytes, stop: bytes) -> None:
    """Open, the wrong way round, equal (which means that row), and too long."""
    if start and stop:
        start, stop = rows + start, rows + stop
    two.ask("getScannerResults", table, IDL.TScan(startRow=start, stopRow=stop), 5)


def test_a_scanner_that_is_not_there_is_an_illegal_argument(two: Both, table: bytes) -> None:
    """But closing it is not: it may have expired."""
    two.ask("getScannerRows", 2_000_000_000, 1)
    two.ask("closeScanner", 2_000_000_000)

    def closed(client: Any) -> Any:
        number = client.openScanner(table, IDL.TScan())
        client.closeScanner(number)
        client.closeScanner(number)
        return client.getScannerRows(number, 1)

    two.each(closed)
    two.each(lambda client: client.getScannerRows(client.openScanner(ABSENT, IDL.TScan()), 1))
    two.each(lambda client: client.getScannerRows(client.openScanner(table, IDL.TScan()), -1))


# --- regions and tables --------------------------------------------------------------------------


def test_regions_are_located(two: Both, table: bytes) -> None:
    """Their servers differ."""
    two.each(lambda c: [place.regionInfo for place in c.getAllRegionLocations(table)])
    for row in (b"", b"c", b"d", b"z"):
        two.each(lambda c, row=row: c.getRegionLocation(table, row, False).regionInfo)
    two.ask("getRegionLocation", ABSENT, b"r", True)
    two.ask("getAllRegionLocations", ABSENT)
    two.ask("isTableAvailableWithSplit", name(table), [b"c", b"m"])
    two.ask("isTableAvailableWithSplit", name(table), [b"c"])
    two.ask("isTableAvailableWithSplit", name(table), [b"q"])
    two.ask("isTableAvailableWithSplit", name(table), None)
    two.ask("isTableAvailableWithSplit", name(table), [b""])


FAMILIES: list[list[Any] | None] = [
    None,
    [],
    [family(b"d"), family(b"d")],
    [family(b"a:b")],
    [family(b"d", maxVersions=0)],
    [family(b"d", timeToLive=0)],
    [family(b"d", timeToLive=-1)],
    [family(b"d", minVersions=5, maxVersions=2)],
    [family(b"d", blockSize=1)],
]


@pytest.mark.parametrize("families", FAMILIES, ids=str)
def test_families_that_cannot_be_are_refused(two: Both, families: list[Any] | None) -> None:
    """A script that creates tables learns of its mistakes on the emulator already."""
    table = IDL.TTableDescriptor(name(fresh("emulator2")), families)
    two.ask("createTable", table, None)


@pytest.mark.parametrize("splits", [[b"a", b"a"], [b"", b"a"]])
def test_splits_that_cannot_be_are_refused(two: Both, splits: list[bytes]) -> None:
    """Repeated, or empty."""
    two.ask("createTable", descriptor(fresh("emulator2"), family(b"d")), splits)


@pytest.mark.parametrize(
    ("table", "namespace"),
    [(b"a b", None), (b"", None), (b"a:b", None), (b"t", b"no-such"), (b"t", b"nosuch")],
)
def test_names_that_cannot_be_are_refused(two: Both, table: bytes, namespace: bytes | None) -> None:
    """Of tables, and of the namespaces before them."""
    two.ask("createTable", descriptor(table, family(b"d"), namespace=namespace), None)
    two.ask("getTableDescriptor", name(table, namespace))
    two.ask("tableExists", name(table, namespace))


def test_tables_of_the_system_are_listed_where_they_are_asked_for(two: Both) -> None:
    """Anybody may make a table in HBase's own namespace, but lists are of the others."""
    found = fresh("emulator2")
    tables = [name(found), name(found, b"hbase")]
    for namespace in (None, b"hbase"):
        two.ask("createTable", descriptor(found, family(b"d"), namespace=namespace), None)

    def ours(listed: list[Any]) -> list[Any]:
        names = [getattr(each, "tableName", each) for each in listed]
        return [each for each in names if found == each.qualifier]

    for regex in (None, ".*", "hbase:.*", f"hbase:{found.decode()}", found.decode(), "default:.*"):
        for method in ("getTableNamesByPattern", "getTableDescriptorsByPattern"):
            for system in (False, True):
                two.each(lambda c, m=method, r=regex, s=system: ours(getattr(c, m)(r, s)))
    for namespace in ("hbase", "default"):
        two.each(lambda c, n=namespace: ours(c.getTableNamesByNamespace(n)))
    two.each(lambda client: ours(client.getTableDescriptors([])))
    for table in tables:
        two.ask("disableTable", table)
        two.ask("deleteTable", table)


def test_the_settings_of_families_are_kept(two: Both) -> None:
    """All that HBase shows, in both forms in which it shows them."""
    found = fresh("emulator2")
    families = [
        family(b"a", maxVersions=3, configuration={"a.b": "c"}, attributes={b"foo": b"bar"}),
        family(
            b"b",
            maxVersions=9,
            minVersions=2,
            timeToLive=86_400,
            blockSize=2048,
            bloomnFilterType=IDL.TBloomFilterType.ROWCOL,
            compressionType=IDL.TCompressionAlgorithm.GZ,
            dataBlockEncoding=IDL.TDataBlockEncoding.FAST_DIFF,
            blockCacheEnabled=False,
            inMemory=True,
            scope=1,
        ),
        family(b"c", attributes={b"VERSIONS": b"4", b"TTL": b"1000", b"IN_MEMORY": b"true"}),
        family(b"e", cacheBloomsOnWrite=True, cacheDataOnWrite=True, evictBlocksOnClose=True),
    ]
    two.ask("createTable", descriptor(found, *families), None)
    two.ask("getTableDescriptor", name(found))
    two.ask("modifyColumnFamily", name(found), family(b"a", maxVersions=7))
    two.ask("getTableDescriptor", name(found))
    two.ask("modifyTable", descriptor(found, family(b"a", maxVersions=4), family(b"n")))
    tables = [name(found), name(ABSENT)]
    two.each(lambda client: [table.columns for table in client.getTableDescriptors(tables)])
    two.ask("disableTable", name(found))
    two.ask("deleteTable", name(found))


def test_a_table_lives_and_ends_as_on_hbase(two: Both) -> None:
    """Administration scripts go by the errors of each state."""
    found = fresh("emulator2")
    table = name(found)
    two.ask("createTable", descriptor(found, family(b"d")), None)
    two.ask("createTable", descriptor(found, family(b"d")), None)
    for method in ("tableExists", "isTableEnabled", "isTableDisabled", "isTableAvailable"):
        two.ask(method, table)
        two.ask(method, name(ABSENT))
    two.ask("put", found, put(b"r", cell(b"d:x", b"1", 5)))
    two.ask("enableTable", table)
    two.ask("deleteTable", table)
    two.ask("truncateTable", table, True)
    two.ask("addColumnFamily", table, family(b"f"))
    two.ask("addColumnFamily", table, family(b"f"))
    two.ask("modifyColumnFamily", table, family(b"none"))
    two.ask("deleteColumnFamily", table, b"none")
    two.ask("deleteColumnFamily", table, b"f")
    two.ask("disableTable", table)
    two.ask("disableTable", table)
    two.ask("isTableAvailable", table)
    two.ask("get", found, get(b"r"))
    two.ask("put", found, put(b"r", cell(b"d:x")))
    two.ask("getScannerResults", found, IDL.TScan(), 1)
    two.ask("truncateTable", table, False)
    two.ask("isTableEnabled", table)
    two.ask("get", found, get(b"r"))
    two.ask("disableTable", table)
    two.ask("deleteTable", table)
    for method in ("disableTable", "enableTable", "deleteTable"):
        two.ask(method, table)
    two.ask("truncateTable", table, True)
    two.ask("addColumnFamily", table, family(b"f"))
    two.ask("modifyTable", descriptor(found, family(b"f")))
    two.ask("tableExists", table)


def test_namespaces_live_and_end_as_on_hbase(two: Both) -> None:
    """A namespace with tables stays."""
    namespace = fresh("emulator").replace(b"-", b"_")
    text = namespace.decode()
    two.ask("createNamespace", IDL.TNamespaceDescriptor(text, {"a": "b"}))
    two.ask("createNamespace", IDL.TNamespaceDescriptor(text))
    two.ask("getNamespaceDescriptor", text)
    two.ask("modifyNamespace", IDL.TNamespaceDescriptor(text, {"c": "d"}))
    two.ask("getNamespaceDescriptor", text)
    two.ask("createTable", descriptor(b"t", family(b"d"), namespace=namespace), None)
    two.ask("put", namespace + b":t", put(b"r", cell(b"d:x", b"1", 5)))
    two.ask("get", namespace + b":t", get(b"r"))
    two.ask("getTableNamesByNamespace", text)
    two.ask("getTableDescriptorsByNamespace", text)
    for pattern in (f"{text}:.*", f"{text}t", f"default:{text}.*", "("):
        two.ask("getTableNamesByPattern", pattern, False)
        two.ask("getTableDescriptorsByPattern", pattern, True)
    two.ask("deleteNamespace", text)
    two.ask("disableTable", name(b"t", namespace))
    two.ask("deleteTable", name(b"t", namespace))
    two.ask("deleteNamespace", text)
    two.ask("deleteNamespace", text)
    for wrong in (text, "default", "hbase"):
        two.ask("deleteNamespace", wrong)
    two.ask("getNamespaceDescriptor", text)
    two.ask("modifyNamespace", IDL.TNamespaceDescriptor(text))
    two.ask("getTableNamesByNamespace", text)
    two.each(lambda client: {"default", "hbase"} <= set(client.listNamespaces()))
    two.each(lambda c: [n for n in c.listNamespaceDescriptors() if n.name in ("default", "hbase")])


def test_the_server_says_what_it_is(two: Both) -> None:
    """Clients check that they speak to the right gateway."""
    assert two.ask("getThriftServerType") == IDL.TThriftServerType.TWO
    two.each(lambda client: len(client.getClusterId()))
    two.ask("getSlowLogResponses", set(), IDL.TLogQueryFilter())
    two.ask("clearSlowLogResponses", set())
