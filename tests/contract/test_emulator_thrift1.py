"""HBase's Thrift 1 service, call by call: the emulator answers as the real one does."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import pytest

from tests.contract.both import ABSENT, EMPTY, NEW, PRESENT, Calls, Ends, R, T, fresh
from txn.emulator.thrift1 import IDL


def put(column: bytes, value: bytes | None = b"v") -> Any:
    return IDL.Mutation(False, column, value)


def remove(column: bytes) -> Any:
    return IDL.Mutation(True, column)


def batch(row: bytes | None, *mutations: Any) -> Any:
    return IDL.BatchMutation(row, list(mutations))


def family(name: bytes, **settings: Any) -> Any:
    return IDL.ColumnDescriptor(name=name, **settings)


def told_of(client: Any, name: bytes) -> Any:
    """Ask again while HBase trips over a table that somebody drops meanwhile."""
    for _ in range(20):
        with suppress(IDL.IOError):
            return client.getTableNamesWithIsTableEnabled().get(name)
    return client.getTableNamesWithIsTableEnabled().get(name)


def is_listed(client: Any, name: bytes) -> bool:
    return name in client.getTableNames()


def get_regions(client: Any, table: bytes) -> list[Any]:
    """Without what differs: the ends of their names, and their servers."""
    found = client.getTableRegions(table)
    return [(r.startKey, r.endKey, r.version, r.name.rpartition(b",")[0]) for r in found]


def get_region_start(client: Any, name: bytes) -> bytes:
    start: bytes = client.getRegionInfo(name).startKey
    return start


def scan_all(client: Any, method: str, *arguments: Any) -> list[Any]:
    """Read a scanner to its end, and over it, and close it."""
    number = getattr(client, method)(*arguments)
    parts = [client.scannerGet(number)]
    while parts[-1]:
        parts.append(client.scannerGetList(number, 5))
    parts.append(client.scannerGetList(number, 1))
    client.scannerClose(number)
    return parts


def scan_closed(client: Any, table: bytes) -> Any:
    number = client.scannerOpen(table, b"", [], {})
    client.scannerGetList(number, 0)
    client.scannerClose(number)
    return client.scannerGet(number)


def scan_first(client: Any, table: bytes, count: int) -> Any:
    return client.scannerGetList(client.scannerOpen(table, b"", [], {}), count)


TABLES, ROWS = [T, ABSENT, b"a b", None], [R, b"", b"r" * 32_768, None]
SOME_ROWS = [[R, EMPTY, R], [], [R, b""], None]
COLUMNS = [b"d:x", b"d:", b"d", b"e", b"e:", b"d:none", b"z:x", b"z", b"", None]
SETS = [[], [b"d:x"], [b"d"], [b"d", b"d:x"], [b"d:x", b"d"], [b"e:z", b"d:y"], [b"z"], None]
COUNTS, TIMES = [9, -1, 0, 1, 2, None], [20, -1, 0, 10, 11, 15, 16, 30, 31, PRESENT, None]
SOME_TIMES = [20, -1, 0, None]
PUTS = [put(b"d:x", b"new"), put(b"e:n", None), remove(b"d:x"), put(b"d"), put(b"z:x"), None]
CHANGES: list[Any] = [
    [put(b"d:x", b"1"), put(b"d:y", b"2")],
    [put(b"e:x", b"1"), remove(b"d")],
    [put(None)],  # type: ignore[arg-type]
    *([put(column)] for column in (b"d", b"", b"z:x")),
    *([remove(column)] for column in (b"d:x", b"d", b"d:")),
    [],
    None,
]
# The last of a row counts.
BATCHES: list[Any] = [
    *([batch(EMPTY, put(b"d:x", b"0")), batch(EMPTY, *each)] for each in CHANGES if each),
    *([batch(row, put(b"d:x"))] for row in ROWS),
    [IDL.BatchMutation(R, None)],
    [],
    None,
]
# Each with the first of its arguments, with each other table and row, and with all that are after
# these. Java reads a number that is not there as 0; without what it needs, the gateway fails.
METHODS: dict[str, list[list[Any]]] = {
    "get": [TABLES, ROWS, COLUMNS, [{}]],
    "getVer": [TABLES, ROWS, COLUMNS, COUNTS, [{}]],
    "getVerTs": [TABLES, ROWS, COLUMNS, TIMES, [9], [{}]],
    "getRow": [TABLES, ROWS, [{}]],
    "getRows": [TABLES, SOME_ROWS, [{}]],
    "getRowTs": [TABLES, ROWS, TIMES, [{}]],
    "getRowsTs": [TABLES, SOME_ROWS, TIMES, [{}]],
    "getRowWithColumns": [TABLES, ROWS, SETS, [{}]],
    "getRowsWithColumns": [TABLES, SOME_ROWS, SETS, [{}]],
    "getRowWithColumnsTs": [TABLES, ROWS, SETS, TIMES, [{}]],
    "getRowsWithColumnsTs": [TABLES, SOME_ROWS, SETS, TIMES, [{}]],
    "mutateRow": [TABLES, ROWS, CHANGES, [{}]],
    "mutateRowTs": [TABLES, ROWS, CHANGES[:-1], SOME_TIMES, [{}]],
    "mutateRows": [TABLES, BATCHES, [{}]],
    "mutateRowsTs": [TABLES, BATCHES, SOME_TIMES, [{}]],
    "deleteAll": [TABLES, ROWS, COLUMNS, [{}]],
    "deleteAllTs": [TABLES, ROWS, COLUMNS, [*SOME_TIMES, 15, PRESENT], [{}]],
    "deleteAllRow": [TABLES, ROWS, [{}]],
    "deleteAllRowTs": [TABLES, ROWS, [*SOME_TIMES, 15], [{}]],
    "checkAndPut": [TABLES, ROWS, COLUMNS, [b"30", b"20", b"", None], PUTS, [{}]],
}


def vary(pools: list[list[Any]]) -> Iterator[list[Any]]:
    defaults = [pool[0] for pool in pools]
    for place in (0, 1):
        for other in pools[place][1:]:
            yield [*defaults[:place], other, *defaults[place + 1 :]]
    yield from ([*defaults[:2], *each] for each in product(*pools[2:]))


@pytest.mark.parametrize("method", METHODS)
def test_the_emulator_answers_each_method_as_hbase_does(ends: Ends, method: str) -> None:
    calls = [(method, *arguments) for arguments in vary(METHODS[method])]
    if method.startswith("get"):
        ends.run(ends.one, calls)
    else:
        late: tuple[Any, ...] = ("mutateRowTs", T, R, [put(b"d:x", b"late")], 5, {})
        for call in calls:
            ends.run(ends.one, [call, late] if method.startswith("delete") else [call])


LONG = b"d:" + b"q" * 40_000

FAMILIES = [
    family(b"d:"),
    family(b"e", maxVersions=7, timeToLive=1000, inMemory=True, blockCacheEnabled=True),
    family(b"f:", timeToLive=-1, bloomFilterType="ROWCOL", compression="GZ"),
]
CALLS: Calls = {
    "families that cannot be are refused": [
        [("createTable", NEW, [])],
        [("createTable", NEW, [family(b"")])],
        [("createTable", NEW, [family(b"d:", compression="XX")])],
        [("createTable", NEW, [family(b"d:", bloomFilterType="XX")])],
        [("createTable", NEW, [family(b"d:", maxVersions=0)])],
    ],
    "names that cannot be are refused": [
        [("createTable", name, [family(b"d:")])]
        for name in (b"a b", b"", b"no-such-namespace:t", b".a")
    ],
    "a table lives and ends": [
        [
            ("createTable", NEW, FAMILIES),
            ("createTable", NEW, FAMILIES),
            ("isTableEnabled", NEW),
            ("getColumnDescriptors", NEW),
            (get_regions, NEW),
            (get_region_start, NEW + b",,99999999999999"),
            ("getRegionInfo", b"A"),
            ("enableTable", NEW),
            ("deleteTable", NEW),
            ("compact", NEW),
            ("majorCompact", NEW),
            ("disableTable", NEW),
            ("disableTable", NEW),
            (told_of, NEW),
            ("get", NEW, b"r", b"d:x", {}),
            ("getRows", NEW, [b"r"], {}),
            ("mutateRow", NEW, b"r", [put(b"d:x")], {}),
            ("atomicIncrement", NEW, b"r", b"d:x", 1),
            ("checkAndPut", NEW, b"r", b"d:x", b"", put(b"d:x"), {}),
            ("deleteAllRow", NEW, b"r", {}),
            (scan_all, "scannerOpen", NEW, b"", [], {}),
            ("enableTable", NEW),
            ("mutateRow", NEW, b"r", [put(b"d:x")], {}),
            ("getRow", NEW, b"r", {}),
            ("disableTable", NEW),
            ("deleteTable", NEW),
            (is_listed, NEW),
        ]
    ],
    "tables of the system are not listed": [
        [
            ("createTable", b"hbase:" + NEW, [family(b"d:")]),
            *((method, b"hbase:" + NEW) for method in (is_listed, told_of)),
            *((method, b"hbase:" + NEW) for method in ("disableTable", "deleteTable")),
        ]
    ],
    "a table that is not there is an error of its own": [
        [
            *((method, ABSENT) for method in ("enableTable", "disableTable", "isTableEnabled")),
            *((method, ABSENT) for method in ("compact", "majorCompact", "getColumnDescriptors")),
            *((method, ABSENT) for method in ("getTableRegions", "deleteTable")),
            (scan_first, ABSENT, 1),
        ]
    ],
    # Without a timestamp it is chance in HBase: both may fall into one millisecond, or not.
    "a cell is put and deleted at once": [
        [
            ("mutateRowTs", T, R, changes, 20, {}),
            ("mutateRowsTs", T, [batch(EMPTY, *changes)], 20, {}),
        ]
        for each in [[remove(b"d:x"), put(b"d:x", b"again")]]
        for changes in (each, each[::-1])
    ],
    "a put without a family or a qualifier": [
        [
            ("mutateRow", T, EMPTY, [put(b"d:x"), put(column)], {}),
            ("mutateRows", T, [batch(EMPTY, put(b"d:x"), put(column))], {}),
        ]
        for column in (b":", b":y", b"", b"d")
    ],
    "counters count": [
        [
            *(("atomicIncrement", T, R, b"d:c", by) for by in (5, -7, 0, 1 << 62)),
            *(("atomicIncrement", T, R, name, 1) for name in (b"e", b"z:c", b"d:y", LONG)),
            *(("atomicIncrement", name, R, b"d:c", 1) for name in (ABSENT, b"a b", None)),
            *(("atomicIncrement", T, *each) for each in ((None, b"d:c", 1), (R, None, 1))),
            ("atomicIncrement", T, R, b"d:c", None),
            ("increment", IDL.TIncrement(T, R, b"d:c", 3)),
            ("increment", IDL.TIncrement(T, b"", b"d:c", 3)),
            ("increment", IDL.TIncrement(b"", R, b"d:c", 3)),
            ("increment", IDL.TIncrement(T, R, b"d", 3)),
            ("incrementRows", [IDL.TIncrement(T, R, b"d:c", by) for by in (1, 2)]),
            ("incrementRows", []),
        ]
    ],
    "values are appended to, and told in the order of their columns": [
        [
            ("append", IDL.TAppend(T, EMPTY, [b"d:b", b"d:a"], [b"1", b"2"])),
            ("append", IDL.TAppend(T, EMPTY, [b"d:a", b"e:a"], [b"3", b""])),
            ("append", IDL.TAppend(T, EMPTY, [b"d:a"], [b"1", b"2"])),
            ("append", IDL.TAppend(T, EMPTY, [b"d"], [b"1"])),
            ("append", IDL.TAppend(T, EMPTY, [b":a"], [b"1"])),
            ("append", IDL.TAppend(T, EMPTY, [], [])),
            ("append", IDL.TAppend(T, EMPTY, [b"z:a"], [b"1"])),
            ("append", IDL.TAppend(T, b"", [b"d:a"], [b"1"])),
        ]
    ],
    "a scanner that is not there is an illegal argument": [
        [
            ("scannerGet", 2_000_000_000),
            ("scannerGetList", 2_000_000_000, 1),
            ("scannerClose", 2_000_000_000),
            (scan_closed, T),
            (scan_first, T, -1),
            ("scannerOpen", b"a b", b"", [], {}),
        ]
    ],
}


@pytest.mark.parametrize("behaviour", CALLS)
def test_the_emulator_answers_as_hbase_does(ends: Ends, behaviour: str) -> None:
    for calls in CALLS[behaviour]:
        ends.run(ends.one, calls)


@pytest.fixture(scope="module")
def rows(ends: Ends) -> bytes:
    """The prefix of twelve rows."""
    prefix = fresh("scan")
    batches = [
        batch(
            b"%s%02d" % (prefix, number),
            *(put(b"d:a", b"%d" % number), put(b"d:b"), put(b"e:c", b"%d" % (number % 3))),
        )
        for number in range(12)
    ]
    ends.one.ask("mutateRowsTs", ends.table, batches, 50, {})
    ends.one.ask("mutateRowsTs", ends.table, batches[::2], 60, {})
    return prefix


@pytest.mark.parametrize("columns", [[], [b"d"], [b"d:a", b"e"], [b"z:a"]])
def test_scanners_are_opened_in_six_ways(ends: Ends, rows: bytes, columns: list[bytes]) -> None:
    start, stop, end = rows + b"03", rows + b"08", rows[:-1] + bytes([rows[-1] + 1])
    scan = IDL.TScan(startRow=rows, stopRow=end, columns=columns)
    last = IDL.TScan(reversed=True, startRow=rows + b"02", columns=columns)
    ends.run(
        ends.one,
        [
            (scan_all, "scannerOpenWithPrefix", T, rows, columns, {}),
            (scan_all, "scannerOpenWithScan", T, scan, {}),
            (scan_all, "scannerOpenWithScan", T, last, {}),
            (scan_all, "scannerOpen", T, rows, columns, {}),
            (scan_all, "scannerOpenTs", T, rows, columns, 51, {}),
            *(
                (scan_all, "scannerOpenWithStop", T, *bounds, columns, {})
                for bounds in ((start, stop), (stop, start), (stop, stop))
            ),
            *(
                (scan_all, "scannerOpenWithStopTs", T, start, stop, columns, time, {})
                for time in (0, 50, 51, 61)
            ),
        ],
    )


OPTIONS: list[dict[str, Any]] = [
    {"sortColumns": True},
    *({"batchSize": size} for size in (1, 2, 0, -1)),
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
]


def test_a_scan_has_options(ends: Ends, rows: bytes) -> None:
    scans = [
        IDL.TScan(startRow=rows + start, stopRow=rows + stop, reversed=reverse, **options)
        for (start, stop, reverse), options in product(
            [(b"", b"07", None), (b"09", b"04", True)], OPTIONS
        )
    ]
    ends.run(ends.one, [(scan_all, "scannerOpenWithScan", T, scan, {}) for scan in scans])
