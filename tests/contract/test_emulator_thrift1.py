"""HBase's Thrift 1 service, call by call: the emulator answers as the real one does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.contract.both import NOW_MS, TTLS, Both, both, fresh
from tests.integration.hbase import HBase
from txn.emulator.thrift1 import IDL
from txn.model import MAX_CELL

ABSENT = b"emulator-no-such-table"
PRESENT = (1 << 63) - 1


def put(column: bytes, value: bytes | None = b"v") -> Any:
    return IDL.Mutation(False, column, value)


def remove(column: bytes) -> Any:
    return IDL.Mutation(True, column)


@pytest.fixture(scope="module")
def two(hbase: HBase, emulator: HBase) -> Iterator[Both]:
    with both(IDL.Hbase, hbase, emulator, "thrift1") as found:
        yield found


@pytest.fixture(scope="module")
def table(two: Both) -> Iterator[bytes]:
    """A table that all tests share, each with a row of its own."""
    name = fresh("emulator1")
    families = [
        IDL.ColumnDescriptor(name=b"d:", maxVersions=3),
        IDL.ColumnDescriptor(name=b"e", maxVersions=3),
    ]
    two.ask("createTable", name, families)
    yield name
    two.ask("disableTable", name)
    two.ask("deleteTable", name)


@pytest.fixture
def row() -> bytes:
    return fresh("row")


@pytest.fixture
def filled(two: Both, table: bytes, row: bytes) -> bytes:
    """A row with three versions of d:x, and other columns."""
    for timestamp in (10, 20, 30):
        versions = [put(b"d:x", b"%d" % timestamp)]
        two.ask("mutateRowTs", table, row, versions, timestamp, {})
    two.ask("mutateRowTs", table, row, [put(b"d:y"), put(b"d:"), put(b"e:z", None)], 15, {})
    return row


# --- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "families",
    [
        [],
        [IDL.ColumnDescriptor(name=b"")],
        [IDL.ColumnDescriptor(name=b"d:", compression="XX")],
        [IDL.ColumnDescriptor(name=b"d:", bloomFilterType="XX")],
        [IDL.ColumnDescriptor(name=b"d:", maxVersions=0)],
    ],
    ids=["none", "without a name", "compression", "bloom filter", "versions"],
)
def test_families_that_cannot_be_are_refused(two: Both, families: list[Any]) -> None:
    """A script that creates tables learns of its mistakes on the emulator already."""
    two.ask("createTable", fresh("emulator1"), families)


@pytest.mark.parametrize("name", [b"a b", b"", b"no-such-namespace:t", b".a"])
def test_names_that_cannot_be_are_refused(two: Both, name: bytes) -> None:
    """And of its typing errors."""
    two.ask("createTable", name, [IDL.ColumnDescriptor(name=b"d:")])


def test_a_table_lives_and_ends_as_on_hbase(two: Both) -> None:
    """Administration scripts go by the errors of each state."""
    name = fresh("emulator1")
    families = [
        IDL.ColumnDescriptor(name=b"d:"),
        IDL.ColumnDescriptor(
            name=b"e",
            maxVersions=7,
            timeToLive=1000,
            inMemory=True,
            blockCacheEnabled=True,
            bloomFilterType="ROWCOL",
            compression="GZ",
        ),
        IDL.ColumnDescriptor(name=b"f:", timeToLive=-1),
    ]
    two.ask("createTable", name, families)
    two.ask("createTable", name, families)
    assert two.ask("isTableEnabled", name) is True
    two.ask("getColumnDescriptors", name)
    two.ask("enableTable", name)
    two.ask("deleteTable", name)
    two.ask("compact", name)
    two.ask("majorCompact", name)
    two.ask("disableTable", name)
    two.ask("disableTable", name)
    two.each(lambda client: told_of_all_tables(client)[name])
    two.ask("get", name, b"r", b"d:x", {})
    two.ask("getRows", name, [b"r"], {})
    two.ask("mutateRow", name, b"r", [put(b"d:x")], {})
    two.ask("atomicIncrement", name, b"r", b"d:x", 1)
    two.ask("checkAndPut", name, b"r", b"d:x", b"", put(b"d:x"), {})
    two.ask("deleteAllRow", name, b"r", {})
    two.ask("enableTable", name)
    two.ask("mutateRow", name, b"r", [put(b"d:x")], {})
    two.ask("getRow", name, b"r", {})
    two.ask("disableTable", name)
    two.ask("deleteTable", name)
    assert two.each(lambda client: name in client.getTableNames()) is False


def told_of_all_tables(client: Any) -> Any:
    """Ask again while HBase trips over a table that somebody drops meanwhile."""
    for _ in range(20):
        with suppress(IDL.IOError):
            return client.getTableNamesWithIsTableEnabled()
    return client.getTableNamesWithIsTableEnabled()


def test_the_regions_of_a_table_cover_it(two: Both, table: bytes) -> None:
    """Their names and servers differ; their bounds and form do not."""

    def regions(client: Any) -> list[Any]:
        return [
            (r.startKey, r.endKey, r.version, r.name.rpartition(b",")[0])
            for r in client.getTableRegions(table)
        ]

    assert two.each(regions) == [(b"", b"", 1, table + b",")]
    two.each(lambda client: client.getRegionInfo(table + b",,99999999999999").startKey)
    two.ask("getRegionInfo", b"A")


@pytest.mark.parametrize(
    "method",
    [
        "enableTable",
        "disableTable",
        "isTableEnabled",
        "compact",
        "majorCompact",
        "getColumnDescriptors",
        "getTableRegions",
        "deleteTable",
    ],
)
def test_a_table_that_is_not_there_is_an_error_of_its_own(two: Both, method: str) -> None:
    """Not all calls say the same."""
    two.ask(method, ABSENT)


def test_the_server_says_what_it_is(two: Both) -> None:
    """Clients check that they speak to the right gateway."""
    assert two.ask("getThriftServerType") == IDL.TThriftServerType.ONE
    two.each(lambda client: len(client.getClusterId()))


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [b"d:x", b"d:", b"d", b"e", b"e:", b"d:none", b"z:x", b"z", b""])
def test_a_column_is_read(two: Both, table: bytes, filled: bytes, column: bytes) -> None:
    """A family alone means its columns, a family with a colon the column without a name."""
    two.ask("get", table, filled, column, {})
    for versions in (-1, 0, 1, 2, 9):
        two.ask("getVer", table, filled, column, versions, {})
    for timestamp in (-1, 0, 10, 11, 30, 31, PRESENT):
        two.ask("getVerTs", table, filled, column, timestamp, 9, {})


@pytest.mark.parametrize(
    "columns",
    [None, [], [b"d:x"], [b"d"], [b"d", b"d:x"], [b"d:x", b"d"], [b"e:z", b"d:y"], [b"z"]],
)
def test_rows_are_read(two: Both, table: bytes, filled: bytes, columns: list[bytes] | None) -> None:
    """One or many, some columns or all, before a timestamp or at all."""
    rows = [filled, b"nowhere", filled]
    two.ask("getRow", table, filled, {})
    two.ask("getRows", table, rows, {})
    two.ask("getRows", table, [], {})
    two.ask("getRowWithColumns", table, filled, columns, {})
    two.ask("getRowsWithColumns", table, rows, columns, {})
    for timestamp in (-1, 0, 15, 16, 30, PRESENT):
        two.ask("getRowTs", table, filled, timestamp, {})
        two.ask("getRowsTs", table, rows, timestamp, {})
        two.ask("getRowWithColumnsTs", table, filled, columns, timestamp, {})
        two.ask("getRowsWithColumnsTs", table, rows, columns, timestamp, {})


def test_rows_that_cannot_be_are_refused(two: Both, table: bytes) -> None:
    """Wherever they are given."""
    for row in (b"", b"r" * 32_768):
        two.ask("get", table, row, b"d:x", {})
        two.ask("getRow", table, row, {})
        two.ask("getRows", table, [b"r", row], {})
        two.ask("mutateRow", table, row, [put(b"d:x")], {})
        two.ask("mutateRows", table, [IDL.BatchMutation(row, [put(b"d:x")])], {})
        two.ask("deleteAllRow", table, row, {})
        two.ask("checkAndPut", table, row, b"d:x", b"", put(b"d:x"), {})
        two.ask("scannerOpen", table, row if row else b"r" * 32_768, [], {})


@pytest.mark.parametrize("name", [ABSENT, b"a b"])
def test_a_table_that_is_not_there_has_no_rows(two: Both, name: bytes) -> None:
    """Whatever is asked of it."""
    two.ask("get", name, b"r", b"d:x", {})
    two.ask("getRows", name, [b"r"], {})
    two.ask("mutateRow", name, b"r", [put(b"d:x")], {})
    two.ask("deleteAll", name, b"r", b"d:x", {})
    two.ask("atomicIncrement", name, b"r", b"d:x", 1)
    two.ask("append", IDL.TAppend(name, b"r", [b"d:x"], [b"1"]))
    two.ask("checkAndPut", name, b"r", b"d:x", b"", put(b"d:x"), {})


# --- changing ------------------------------------------------------------------------------------


def names_of(mutations: list[Any]) -> str:
    return " ".join(("-" if one.isDelete else "+") + one.column.decode() for one in mutations)


@pytest.mark.parametrize(
    "mutations",
    [
        [],
        [put(b"d:x", b"1"), put(b"d:y", b"2")],
        [put(b"d:x", None)],
        [put(b"d")],
        [put(b"")],
        [put(b"z:x")],
        [remove(b"d:x")],
        [remove(b"d")],
        [remove(b"d:")],
        [put(b"e:x", b"1"), remove(b"d")],
    ],
    ids=names_of,
)
@pytest.mark.parametrize("timestamp", [None, 20, -1])
def test_a_row_is_changed(
    two: Both, table: bytes, filled: bytes, mutations: list[Any], timestamp: int | None
) -> None:
    """By one call for a row, or one for many."""
    change_rows(two, table, filled, mutations, timestamp)


@pytest.mark.parametrize(
    "mutations",
    [
        [remove(b"d:x"), put(b"d:x", b"again")],
        [put(b"d:x", b"again"), remove(b"d:x")],
    ],
    ids=names_of,
)
def test_a_cell_is_put_and_deleted_at_once(
    two: Both, table: bytes, filled: bytes, mutations: list[Any]
) -> None:
    """The calls differ in the order of the two. Without a timestamp it is chance in HBase: both may
    fall into one millisecond, or not."""
    change_rows(two, table, filled, mutations, 20)


def change_rows(
    two: Both, table: bytes, filled: bytes, mutations: list[Any], timestamp: int | None
) -> None:
    other = fresh("row")
    batches = [IDL.BatchMutation(other, [put(b"d:x", b"0")]), IDL.BatchMutation(other, mutations)]
    if timestamp is None:
        two.ask("mutateRow", table, filled, mutations, {})
        two.ask("mutateRows", table, batches, {})
    else:
        two.ask("mutateRowTs", table, filled, mutations, timestamp, {})
        two.ask("mutateRowsTs", table, batches, timestamp, {})
    for row in (filled, other):
        for column in (b"d:x", b"d:y", b"d:", b"e:x", b"e:z"):
            two.ask("getVer", table, row, column, 9, {})


@pytest.mark.parametrize("column", [b"d:x", b"d:y", b"d:", b"d", b"e", b"z:x"])
@pytest.mark.parametrize("timestamp", [None, 20, 15, 0, -1])
def test_cells_are_deleted(
    two: Both, table: bytes, filled: bytes, column: bytes, timestamp: int | None
) -> None:
    """Up to a timestamp, or all; a family alone means its columns."""
    if timestamp is None:
        two.ask("deleteAll", table, filled, column, {})
    else:
        two.ask("deleteAllTs", table, filled, column, timestamp, {})
    for name in (b"d:x", b"d:y", b"d:", b"e:z"):
        two.ask("getVer", table, filled, name, 9, {})
    two.ask("mutateRowTs", table, filled, [put(b"d:x", b"late")], 5, {})
    two.ask("getVer", table, filled, b"d:x", 9, {})


@pytest.mark.parametrize("timestamp", [None, 20, 15, -1])
def test_a_row_is_deleted(two: Both, table: bytes, filled: bytes, timestamp: int | None) -> None:
    """As its families are."""
    if timestamp is None:
        two.ask("deleteAllRow", table, filled, {})
    else:
        two.ask("deleteAllRowTs", table, filled, timestamp, {})
    for name in (b"d:x", b"d:y", b"e:z"):
        two.ask("getVer", table, filled, name, 9, {})


@pytest.mark.parametrize("column", [b"d:x", b"d:none", b"e:z", b"d", b"z:x"])
@pytest.mark.parametrize("mutation", [put(b"d:x", b"new"), put(b"e:n", None), remove(b"d:x")])
def test_a_put_is_checked(
    two: Both, table: bytes, filled: bytes, column: bytes, mutation: Any
) -> None:
    """Empty and absent are one; a delete is silently a put of its value."""
    for expected in (b"20", b"30", b"", None):
        two.ask("checkAndPut", table, filled, column, expected, mutation, {})
        two.ask("getVer", table, filled, b"d:x", 9, {})
        two.ask("getRow", table, filled, {})


@pytest.mark.parametrize("ttl", TTLS)
def test_cells_may_have_a_ttl_of_their_own(two: Both, table: bytes, row: bytes, ttl: bytes) -> None:
    """What a cell hid is seen again when it is over; deletes are of what is seen."""
    attributes, at, other = {b"_ttl": ttl}, NOW_MS - 60_000, fresh("row")
    two.ask("mutateRowTs", table, row, [put(b"d:x", b"old")], at - 1, {})
    two.ask("mutateRowTs", table, row, [put(b"d:x", b"new"), put(b"d:y")], at, attributes)
    two.ask("mutateRowsTs", table, [IDL.BatchMutation(other, [put(b"d:x")])], at, attributes)
    two.ask("checkAndPut", table, other, b"d:y", b"", put(b"d:z"), attributes)
    two.ask("checkAndPut", table, row, b"d:x", b"old", put(b"d:z"), {})
    for each in (row, other):
        two.ask("getRow", table, each, {})
        two.ask("getVer", table, each, b"d:x", 9, {})
    two.ask("mutateRowTs", table, row, [put(b"d:x", b"late")], at - 2, {})
    two.ask("getVer", table, row, b"d:x", 9, {})


@pytest.mark.parametrize("mutation", [put(b"d"), put(b"z:x")])
def test_a_checked_put_that_cannot_be_is_refused(
    two: Both, table: bytes, row: bytes, mutation: Any
) -> None:
    """Even where the check holds."""
    two.ask("checkAndPut", table, row, b"d:x", None, mutation, {})


def test_cells_are_as_large_as_hbase_takes_them(two: Both, table: bytes) -> None:
    """Its client counts 20 bytes beside names and value, its server four more."""
    row = fresh("row")
    for over in (-1, 0, 1, 4, 5):
        value = bytes(MAX_CELL - 24 - len(row) - len(b"dx") + over)
        two.ask("mutateRow", table, row, [put(b"d:x", value)], {})
        two.ask("mutateRows", table, [IDL.BatchMutation(row, [put(b"d:x", value)])], {})
        two.ask("checkAndPut", table, row, b"d:none", b"", put(b"d:x", value), {})
        two.ask("append", IDL.TAppend(table, row, [b"d:%d" % over], [value[1:]]))


def test_columns_may_have_longer_names_than_rows(two: Both, table: bytes, row: bytes) -> None:
    """All that is asked of them."""
    long = b"d:" + b"q" * 40_000
    two.ask("mutateRow", table, row, [put(long)], {})
    two.ask("checkAndPut", table, row, long, b"v", put(long, b"w"), {})
    two.ask("getRow", table, row, {})
    two.ask("deleteAll", table, row, long, {})
    two.ask("atomicIncrement", table, row, long, 1)


# What a request may leave out, by method: each of these arguments in turn.
ARGUMENTS: dict[str, list[Any]] = {
    "get": [b"r", b"d:x", {}],
    "getVer": [b"r", b"d:x", 1, {}],
    "getRows": [[b"r"], {}],
    "getRowsWithColumnsTs": [[b"r"], [b"d"], 5, {}],
    "mutateRow": [b"r", [put(b"d:x")], {}],
    "mutateRowTs": [b"r", [put(b"d:x")], 5, {}],
    "mutateRows": [[IDL.BatchMutation(b"r", [put(b"d:x")])], {}],
    "mutateRowsTs": [[IDL.BatchMutation(b"r", [put(b"d:x")])], 5, {}],
    "atomicIncrement": [b"r", b"d:c", 1],
    "deleteAllTs": [b"r", b"d:x", 5, {}],
    "deleteAllRow": [b"r", {}],
    "checkAndPut": [b"r", b"d:x", b"v", put(b"d:y"), {}],
}


@pytest.mark.parametrize("method", ARGUMENTS)
def test_a_request_may_lack_anything(two: Both, table: bytes, method: str) -> None:
    """Java reads a number that is not there as 0; without what it needs, the gateway fails."""
    given = [table, *ARGUMENTS[method]]
    for missing in range(len(given)):
        two.ask(method, *given[:missing], None, *given[missing + 1 :])
    two.ask("getVer", table, b"r", b"d:x", 9, {})


def test_parts_of_a_request_may_lack_anything(two: Both, table: bytes) -> None:
    """Likewise."""
    two.ask("mutateRow", table, b"r", [put(None)], {})  # type: ignore[arg-type]
    for batch in (IDL.BatchMutation(None, [put(b"d:x")]), IDL.BatchMutation(b"r", None)):
        two.ask("mutateRows", table, [batch], {})
    for parts in ([b"r", None, [b"v"]], [b"r", [b"d:x"], None], [None, [b"d:x"], [b"v"]]):
        two.ask("append", IDL.TAppend(table, *parts))
    two.ask("append", None)
    for parts in ([None, b"d:c", 1], [b"r", None, 1], [b"r", b"d:c", None]):
        two.ask("increment", IDL.TIncrement(table, *parts))
    two.ask("incrementRows", None)
    for method in ("scannerOpen", "scannerOpenWithPrefix"):
        two.ask(method, table, None, [b"d"], {})
    two.ask("scannerOpenWithStop", table, b"a", None, [b"d"], {})
    two.ask("mutateRowsTs", table, [], -1, {})
    two.ask("mutateRows", b"a b", [IDL.BatchMutation(b"r", [put(b"d:x")])], {})


def test_tables_of_the_system_are_not_listed(two: Both) -> None:
    """Anybody may make a table in HBase's own namespace."""
    name = b"hbase:" + fresh("emulator1")
    two.ask("createTable", name, [IDL.ColumnDescriptor(name=b"d:")])
    assert two.each(lambda client: name in client.getTableNames()) is False
    assert two.each(lambda client: name in told_of_all_tables(client)) is False
    two.ask("disableTable", name)
    two.ask("deleteTable", name)


def test_counters_count(two: Both, table: bytes, row: bytes) -> None:
    """Eight bytes, big-endian, with a sign; anything else cannot be counted."""
    for by in (5, -7, 0, 1 << 62):
        two.ask("atomicIncrement", table, row, b"d:c", by)
    two.ask("atomicIncrement", table, row, b"e", 1)
    two.ask("atomicIncrement", table, row, b"z:c", 1)
    two.ask("mutateRow", table, row, [put(b"d:v", b"1")], {})
    two.ask("atomicIncrement", table, row, b"d:v", 1)
    two.ask("increment", IDL.TIncrement(table, row, b"d:c", 3))
    two.ask("increment", IDL.TIncrement(table, b"", b"d:c", 3))
    two.ask("increment", IDL.TIncrement(b"", row, b"d:c", 3))
    two.ask("increment", IDL.TIncrement(table, row, b"d", 3))
    two.ask("incrementRows", [IDL.TIncrement(table, row, b"d:c", n) for n in (1, 2)])
    two.ask("incrementRows", [])
    two.ask("getVer", table, row, b"d:c", 9, {})


def test_values_are_appended_to(two: Both, table: bytes, row: bytes) -> None:
    """The answer is in order of the columns, whatever order they were given in."""
    two.ask("append", IDL.TAppend(table, row, [b"d:b", b"d:a"], [b"1", b"2"]))
    two.ask("append", IDL.TAppend(table, row, [b"d:a", b"e:a"], [b"3", b""]))
    two.ask("append", IDL.TAppend(table, row, [b"d:a"], [b"1", b"2"]))
    two.ask("append", IDL.TAppend(table, row, [b"d"], [b"1"]))
    two.ask("append", IDL.TAppend(table, row, [b":a"], [b"1"]))
    two.ask("append", IDL.TAppend(table, row, [], []))
    two.ask("append", IDL.TAppend(table, row, [b"z:a"], [b"1"]))
    two.ask("append", IDL.TAppend(table, b"", [b"d:a"], [b"1"]))
    two.ask("getRow", table, row, {})


# --- scanners ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(two: Both, table: bytes) -> bytes:
    """The prefix of twelve rows."""
    prefix = fresh("scan")
    batches = [
        IDL.BatchMutation(
            b"%s%02d" % (prefix, number),
            [put(b"d:a", b"%d" % number), put(b"d:b"), put(b"e:c", b"%d" % (number % 3))],
        )
        for number in range(12)
    ]
    two.ask("mutateRowsTs", table, batches, 50, {})
    two.ask("mutateRowsTs", table, batches[::2], 60, {})
    return prefix


def all_of(two: Both, method: str, *arguments: Any, count: int = 5) -> list[Any]:
    """Read a scanner of each to its end, and over it, and close it twice."""

    def read(client: Any) -> Any:
        number = getattr(client, method)(*arguments)
        parts = [client.scannerGet(number)]
        while parts[-1]:
            parts.append(client.scannerGetList(number, count))
        parts.append(client.scannerGetList(number, 1))
        client.scannerClose(number)
        return parts

    return two.each(read) or []


def test_scanners_are_opened_in_six_ways(two: Both, table: bytes, rows: bytes) -> None:
    """The older ones are special cases of the newest."""
    start, stop = rows + b"03", rows + b"08"
    for columns in ([], [b"d"], [b"d:a", b"e"], [b"z:a"]):
        assert all_of(two, "scannerOpenWithPrefix", table, rows, columns, {}) or columns == [b"z:a"]
        all_of(two, "scannerOpenWithStop", table, start, stop, columns, {})
        all_of(two, "scannerOpenWithStop", table, stop, start, columns, {})
        all_of(two, "scannerOpenWithStop", table, stop, stop, columns, {})
        for timestamp in (0, 50, 51, 61):
            all_of(two, "scannerOpenWithStopTs", table, start, stop, columns, timestamp, {})
    end = rows[:-1] + bytes([rows[-1] + 1])
    scan = IDL.TScan(startRow=rows, stopRow=end)
    found = all_of(two, "scannerOpenWithScan", table, scan, {})
    assert len([row for part in found for row in part]) == 12


def test_scanners_to_the_end_of_the_table(two: Both) -> None:
    """Those without a stop."""
    name = fresh("emulator1")
    two.ask("createTable", name, [IDL.ColumnDescriptor(name=b"d:")])
    batches = [IDL.BatchMutation(b"%d" % n, [put(b"d:x", b"%d" % n)]) for n in range(5)]
    two.ask("mutateRowsTs", name, batches, 50, {})
    all_of(two, "scannerOpen", name, b"", [], {}, count=100)
    all_of(two, "scannerOpen", name, b"2", [b"d:x"], {})
    all_of(two, "scannerOpenTs", name, b"2", None, 51, {})
    all_of(two, "scannerOpenTs", name, b"", [], 50, {})
    all_of(two, "scannerOpenWithPrefix", name, b"", [], {})
    all_of(two, "scannerOpenWithScan", name, IDL.TScan(), {})
    all_of(two, "scannerOpenWithScan", name, IDL.TScan(reversed=True), {})
    all_of(two, "scannerOpenWithScan", name, IDL.TScan(reversed=True, startRow=b"2"), {})
    two.ask("disableTable", name)
    all_of(two, "scannerOpen", name, b"", [], {})
    two.ask("deleteTable", name)


@pytest.mark.parametrize(
    "options",
    [
        {"sortColumns": True},
        {"batchSize": 1},
        {"batchSize": 2},
        {"batchSize": 0},
        {"batchSize": -1},
        {"caching": 2},
        {"caching": 0},
        {"timestamp": 51},
        {"timestamp": -1},
        {"cacheBlocks": True},
        {"columns": []},
        {"columns": [b"e:c"]},
        {"filterString": b"ValueFilter(=, 'binary:1')"},
        {"filterString": b""},
        {"filterString": b"PrefixFilter(a)"},
        {"filterString": b"NoSuchFilter('a')"},
        {"filterString": b"PageFilter(3"},
        {"batchSize": 2, "sortColumns": True, "columns": [b"d:b", b"d:a", b"e"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("reverse", [None, True])
def test_a_scan_has_options(
    two: Both, table: bytes, rows: bytes, options: dict[str, Any], reverse: bool | None
) -> None:
    """Each of them alone, and some together."""
    bounds = (rows + b"09", rows + b"04") if reverse else (rows, rows + b"07")
    scan = IDL.TScan(startRow=bounds[0], stopRow=bounds[1], reversed=reverse, **options)
    all_of(two, "scannerOpenWithScan", table, scan, {})


def test_a_scanner_that_is_not_there_is_an_illegal_argument(two: Both, table: bytes) -> None:
    """So is one that was closed; a table that is not there comes out at the first row."""
    for method, arguments in (
        ("scannerGet", ()),
        ("scannerGetList", (1,)),
        ("scannerClose", ()),
    ):
        two.ask(method, 2_000_000_000, *arguments)

    def closed(client: Any) -> Any:
        number = client.scannerOpen(table, b"", [], {})
        assert client.scannerGetList(number, 0) == []
        client.scannerClose(number)
        return client.scannerGet(number)

    def negative(client: Any) -> Any:
        return client.scannerGetList(client.scannerOpen(table, b"", [], {}), -1)

    two.each(closed)
    two.each(negative)
    two.each(lambda client: client.scannerGet(client.scannerOpen(ABSENT, b"", [], {})))
    two.ask("scannerOpen", b"a b", b"", [], {})


@pytest.mark.parametrize("column", [b":", b":y", b"", b"d"])
def test_a_put_without_a_family_or_a_qualifier(
    two: Both, table: bytes, row: bytes, column: bytes
) -> None:
    """An illegal argument, alone or beside others, and nothing is written; or nothing at all."""
    two.ask("mutateRow", table, row, [put(b"d:x"), put(column)], {})
    two.ask("mutateRows", table, [IDL.BatchMutation(row, [put(b"d:x"), put(column)])], {})
    two.ask("getRow", table, row, {})
