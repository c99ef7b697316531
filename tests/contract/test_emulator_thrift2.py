"""HBase's Thrift 2 service, call by call: the emulator answers as the real one does."""

from itertools import product
from typing import Any

import pytest

from tests.contract.both import (
    ABSENT,
    EMPTY,
    NEW,
    NOW_MS,
    PRESENT,
    TTLS,
    Calls,
    Ends,
    R,
    T,
    fresh,
)
from txn.model import MAX_CELL
from txn.stores.hbase.idl import IDL
from txn.tables.changes import MAX_COLUMN

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


def change(row: bytes, *changes: Any) -> Any:
    made = [
        IDL.TMutation(put=one) if isinstance(one, IDL.TPut) else IDL.TMutation(deleteSingle=one)
        for one in changes
    ]
    return IDL.TRowMutations(row, made)


def increment(row: bytes, *columns: Any, **options: Any) -> Any:
    return IDL.TIncrement(row, [IDL.TColumnIncrement(*each) for each in columns], **options)


def append(row: bytes, *cells: Any, **options: Any) -> Any:
    return IDL.TAppend(row, list(cells), **options)


def scan_of(start: bytes, stop: bytes, **options: Any) -> Any:
    return IDL.TScan(startRow=start, stopRow=stop, **options)


def descriptor(table: bytes, *families: Any, namespace: bytes | None = None) -> Any:
    return IDL.TTableDescriptor(name(table, namespace), list(families))


def family(text: bytes, **options: Any) -> Any:
    return IDL.TColumnFamilyDescriptor(name=text, **options)


def scan_all(client: Any, table: bytes, scan: Any) -> list[Any]:
    """Read a scanner that is kept open to its end, and over it, and close it."""
    number = client.openScanner(table, scan)
    parts = [client.getScannerRows(number, 1)]
    while parts[-1]:
        parts.append(client.getScannerRows(number, 2))
    parts.append(client.getScannerRows(number, 2))
    client.closeScanner(number)
    return parts


def scan_closed(client: Any, table: bytes) -> Any:
    number = client.openScanner(table, IDL.TScan())
    client.closeScanner(number)
    client.closeScanner(number)
    return client.getScannerRows(number, 1)


def scan_first(client: Any, table: bytes, count: int) -> Any:
    return client.getScannerRows(client.openScanner(table, IDL.TScan()), count)


def get_regions(client: Any, table: bytes) -> list[Any]:
    return [place.regionInfo for place in client.getAllRegionLocations(table)]


def get_region(client: Any, table: bytes, row: bytes) -> Any:
    return client.getRegionLocation(table, row, False).regionInfo


def get_columns(client: Any, *tables: bytes) -> list[Any]:
    found = client.getTableDescriptors([name(each) for each in tables])
    return [table.columns for table in found]


def get_listed(client: Any, table: bytes, method: str, *arguments: Any) -> list[Any]:
    """Those of a list of tables that have a name, in whatever namespace."""
    names = [getattr(each, "tableName", each) for each in getattr(client, method)(*arguments)]
    return [each for each in names if each.qualifier == table]


def get_namespaces(client: Any) -> tuple[list[str], list[Any]]:
    ours, found = ("default", "hbase"), client.listNamespaceDescriptors()
    listed = [each for each in client.listNamespaces() if each in ours]
    return listed, [each for each in found if each.name in ours]


GETS: list[dict[str, Any]] = [
    {},
    *({"maxVersions": count} for count in (2, 0, -1)),
    *({"timestamp": time} for time in (20, -1, PRESENT)),
    {"timeRange": IDL.TTimeRange(10, 30), "maxVersions": 9},
    *({"timeRange": IDL.TTimeRange(*times)} for times in ((10, 10), (30, 10), (-1, 10))),
    {"timeRange": IDL.TTimeRange(10, 20), "timestamp": 30},
    {"columns": []},
    *({"columns": [column(each)]} for each in (b"d:x", b"z:x", b"d:none")),
    {"columns": [column(b"d:x", 10)]},
    {"columns": [column(b"d")], "maxVersions": 9},
    {"columns": [column(b"d"), column(b"d:x")]},
    {"columns": [column(b"d:x"), column(b"d")]},
    {"columns": [column(b"d:"), column(b"e:z")]},
    *({"storeLimit": limit} for limit in (1, 0, -1)),
    *({"storeOffset": offset} for offset in (1, 9)),
    {"storeOffset": 1, "storeLimit": 2, "maxVersions": 9},
    {"storeOffset": 2, "storeLimit": 0},
    {"existence_only": True},
    *({"filterString": text} for text in (b"ColumnPaginationFilter(2, 1)", b"QualifierFilter(")),
    {"filterString": b""},
    {"authorizations": IDL.TAuthorization(["a"])},
    {"consistency": IDL.TConsistency.TIMELINE},
    {"attributes": {b"a": b"b"}, "cacheBlocks": False},
]
PUTS: list[list[Any]] = [
    [],
    [cell(b"d:x", b"1"), cell(b"e:x", b"2", 7)],
    [cell(b"d:x", b"1", 20), cell(b"d:x", b"2", 20)],
    [cell(b"z:x")],
    [cell(b":x")],
    [cell(b"d:x", b"late", 5)],
    [cell(b"d:x", b"now", PRESENT)],
]
DELETES: list[list[Any]] = [
    [],
    *([column(b"d:x", time)] for time in (None, 20, -1, PRESENT)),
    [column(b"d:x", 25), column(b"d:y")],
    [column(b"d:x", 25), column(b"d:x", 5)],  # of a family, HBase heeds the last one only
    [column(b"d")],
    [column(b"e", 15)],
    [column(b"e", 40), column(b"d", 10)],
    [column(b"z:x")],
    [column(b"d:x"), column(b"d:x")],
]
X_IS_30 = (T, R, b"d", b"x", IDL.TCompareOperator.EQUAL, b"30")
NONE_IS_NOT = (T, R, b"d", b"none", None)
LARGE = b"row-large-values"
LARGEST = MAX_CELL - 24 - len(LARGE) - len(b"dx")  # HBase's client allows four bytes more
BEFORE = {"timestamp": NOW_MS - 60_001}
FUTURE_MS = NOW_MS + 7_200_000
PATTERNS = (None, ".*", "hbase:.*", "hbase:<new>", "<new>", "default:.*")
STATES = ("tableExists", "isTableEnabled", "isTableDisabled", "isTableAvailable")
SPACE = "<new>"
OURS = descriptor(b"t", family(b"d"), namespace=NEW)

CALLS: Calls = {
    "rows are read": [
        [
            call
            for options in GETS
            for call in (
                ("get", T, get(R, **options)),
                ("get", T, get(EMPTY, **options)),
                ("getMultiple", T, [get(R, **options), get(EMPTY, **options), get(R)]),
                ("exists", T, get(R, **options)),
                ("existsAll", T, [get(R, **options), get(EMPTY, **options)]),
            )
        ]
    ],
    "rows and tables that cannot be are refused": [
        [
            ("get", table, get(row)),
            ("getMultiple", table, [get(row), get(b"s")]),
            ("put", table, put(row, cell(b"d:x"))),
            ("deleteSingle", table, delete(row)),
            ("checkAndPut", table, row, b"d", b"x", None, put(row, cell(b"d:x"))),
            ("mutateRow", table, change(row, put(row, cell(b"d:x")))),
            ("append", table, append(row, cell(b"d:x"))),
            ("getScannerResults", table, IDL.TScan(startRow=row), 1),
            *([("putMultiple", table, [put(row, cell(b"d:x"))])] if table != b"a b" else []),
            *([("deleteMultiple", table, [delete(row)])] if table == ABSENT else []),
            *([("increment", table, increment(row, (b"d", b"x")))] if table != T else []),
        ]
        for table, row in ((ABSENT, b"r"), (b"a b", b"r"), (T, b""), (T, b"r" * 32_768))
    ],
    "a row is put": [
        [
            ("put", T, put(R, *cells, **options)),
            ("putMultiple", T, [put(EMPTY, *cells, **options), put(EMPTY, cell(b"d:x", b"1", 3))]),
        ]
        for cells in PUTS
        for options in ({}, {"timestamp": 25}, {"durability": 1})
    ],
    "cells are deleted": [
        [
            ("deleteSingle", T, delete(R, *columns, kind=kind)),
            ("put", T, put(R, cell(b"d:x", b"late", 5), cell(b"e:x", b"late", 15))),
        ]
        for columns in DELETES
        for kind in (*Delete._VALUES_TO_NAMES, 9)
    ],
    "rows are deleted, also by an empty list of columns": [
        [
            ("deleteSingle", T, delete(R, **options)),
            ("put", T, put(R, cell(b"d:x", b"1", 7))),
            ("deleteSingle", T, IDL.TDelete(R, [], **options)),
            ("put", T, put(EMPTY, cell(b"d:x", b"1", 7))),
            ("deleteMultiple", T, [delete(EMPTY, **options), delete(R, column(b"z:x"))]),
            ("deleteMultiple", T, []),
        ]
        for options in ({}, {"timestamp": 20}, {"timestamp": -1})
    ],
    "changes are checked, and an empty value is an absent one": [
        [
            call
            for number, expected in enumerate([b"20", b"30", b"2", b"", None])
            for call in (
                (
                    *("checkAndPut", T, R, *place, expected),
                    put(R, cell(b"d:p", b"%d" % number, 50 + number)),
                ),
                ("checkAndDelete", T, R, *place, expected, delete(R, column(b"d:p"))),
            )
        ]
        for place in product((b"d", b"e", b"z", b""), (b"x", b"z", b""))
    ],
    "a checked change is of the row that is checked, and has something to do": [
        [
            ("checkAndPut", *NONE_IS_NOT, put(EMPTY, cell(b"d:p"))),
            ("checkAndPut", *NONE_IS_NOT, put(b"", cell(b"d:p"))),
            ("checkAndPut", *NONE_IS_NOT, put(R, cell(b"d:p", timestamp=-1))),
            ("checkAndPut", *NONE_IS_NOT[:4], b"other", put(R, cell(b"d:p", timestamp=-1))),
            ("put", T, put(R, cell(b"d:p", timestamp=5), timestamp=-1)),
            ("checkAndPut", *NONE_IS_NOT, put(R)),
            ("checkAndPut", *NONE_IS_NOT, put(R, cell(b"z:p"))),
            ("checkAndDelete", *NONE_IS_NOT, delete(EMPTY, column(b"d:p"))),
            ("checkAndMutate", *X_IS_30, change(EMPTY, put(EMPTY, cell(b"d:p")))),
            ("checkAndMutate", *X_IS_30, change(R, put(EMPTY, cell(b"d:p")))),
            ("checkAndMutate", *X_IS_30, change(R)),
            ("checkAndMutate", *X_IS_30[:-1], None, change(R, put(R, cell(b"d:p")))),
            ("checkAndMutate", *X_IS_30, change(R, put(R, cell(b"z:p")))),
        ]
    ],
    "a row is mutated": [
        [
            ("mutateRow", T, change(R, put(R, cell(b"d:n")), delete(R, column(b"d:x", 20)))),
            ("mutateRow", T, change(R, delete(R), put(R, cell(b"d:x", b"1")))),
            ("mutateRow", T, change(R)),
            ("mutateRow", T, change(R, put(EMPTY, cell(b"d:x")))),
            ("mutateRow", T, change(R, put(R, cell(b"d:n")), put(R, cell(b"z:x")))),
            ("mutateRow", T, change(R, put(R, cell(b"d:n")), put(b"", cell(b"d:x")))),
            ("mutateRow", T, change(b"", put(b"", cell(b"d:x")))),
        ]
    ],
    "cells are as large as HBase takes them": [
        [
            call
            for large in [put(LARGE, cell(b"d:x", bytes(LARGEST + over)))]
            for call in (
                ("put", T, large),
                ("putMultiple", T, [large, put(EMPTY, cell(b"d:x", b"%d" % over))]),
                ("checkAndPut", T, LARGE, b"d", b"none", None, large),
                ("checkAndPut", T, LARGE, b"d", b"none", b"other", large),
                ("mutateRow", T, change(LARGE, large)),
                ("append", T, append(LARGE, cell(b"d:%d" % over, bytes(LARGEST + over - 1)))),
                ("append", T, append(LARGE, cell(b"d:x", b"more"))),
            )
        ]
        for over in (0, 1, 4, 5)
    ],
    "columns may have longer names than rows": [
        [
            ("put", T, put(EMPTY, cell(b"d:" + long))),
            ("get", T, get(EMPTY, columns=[column(b"d:" + long)])),
            ("increment", T, increment(EMPTY, (b"d", long[1:] + b"2"))),
            ("getScannerResults", T, scan_of(EMPTY, EMPTY), 9),
            ("deleteSingle", T, delete(EMPTY, column(b"d:" + long))),
        ]
        for long in (b"q" * 32_768, b"q" * MAX_COLUMN)
    ],
    "counters count": [
        [
            ("increment", T, increment(R, (b"d", b"c"), (b"d", b"a", -5))),
            ("increment", T, increment(R, (b"d", b"c"))),
            ("increment", T, increment(R)),
            ("increment", T, increment(R, (b"d", b"y"))),
            ("increment", T, increment(R, (b"d", b"c"), (b"d", b"c"))),
            ("increment", T, increment(R, (b"d", b"c"), returnResults=False)),
            ("increment", T, increment(R, (b"d", b"c"), returnResults=True)),
            ("increment", T, increment(R, (b"z", b"v"))),
        ]
    ],
    "values are appended to": [
        [
            ("append", T, append(EMPTY, cell(b"d:b", b"1"), cell(b"d:a", b"2"))),
            ("append", T, append(EMPTY, cell(b"d:b", b"3", 5))),
            *(("append", T, append(EMPTY, cell(each, b""))) for each in (b"e:b", b"z:b", b":b")),
            ("append", T, append(EMPTY)),
            ("append", T, append(EMPTY, cell(b"d:t", b"1"), cell(b"d:t", b"2"))),
            ("append", T, append(EMPTY, cell(b"d:b", b"4"), returnResults=False)),
        ]
    ],
    "what is computed is above what it replaces, also where that is of the future": [
        [
            ("put", T, put(EMPTY, cell(b"d:n", bytes(7) + b"\5", FUTURE_MS))),
            ("increment", T, increment(EMPTY, (b"d", b"n", 3))),
            ("append", T, append(EMPTY, cell(b"d:n", b"!"))),
            ("increment", T, increment(EMPTY, (b"d", b"n", 3))),
        ]
    ],
    "cells may have a TTL of their own, which counts and appends keep": [
        [
            ("put", T, put(R, cell(b"d:t", b"old"), **BEFORE)),
            ("put", T, put(R, cell(b"d:t", b"new"), cell(b"e:t"), **brief)),
            ("putMultiple", T, [put(EMPTY, cell(b"d:t"), **brief)]),
            ("mutateRow", T, change(R, put(R, cell(b"d:p"), **brief), put(R, cell(b"d:q")))),
            ("checkAndPut", T, EMPTY, b"d", b"none", None, put(EMPTY, cell(b"d:u"), **brief)),
            ("append", T, append(R, cell(b"d:t", b"er"))),
            ("increment", T, increment(R, (b"d", b"c"), attributes=brief["attributes"])),
            ("append", T, append(R, cell(b"d:a"), attributes=brief["attributes"])),
            ("deleteSingle", T, delete(R, column(b"d:t"), kind=Delete.DELETE_COLUMN)),
            ("getScannerResults", T, scan_of(R, R, filterString=b"ValueFilter(!=, 'binary:v')"), 9),
        ]
        for brief in ({"attributes": {b"_ttl": ttl}, "timestamp": NOW_MS - 60_000} for ttl in TTLS)
    ],
    "a scanner that is not there is an illegal argument, but to closing": [
        [
            ("getScannerRows", 2_000_000_000, 1),
            ("closeScanner", 2_000_000_000),
            (scan_closed, T),
            (scan_first, ABSENT, 1),
            (scan_first, T, -1),
        ]
    ],
    "regions are located": [
        [
            (get_regions, T),
            *((get_region, T, row) for row in (b"", b"c", b"d", b"z")),
            ("getRegionLocation", ABSENT, b"r", True),
            ("getAllRegionLocations", ABSENT),
            *(
                ("isTableAvailableWithSplit", name(T), splits)
                for splits in ([b"c", b"m"], [b"c"], [b"q"], None, [b""])
            ),
        ]
    ],
    "families that cannot be are refused": [
        [("createTable", IDL.TTableDescriptor(name(NEW), families), None)]
        for families in (
            None,
            [],
            [family(b"d"), family(b"d")],
            [family(b"a:b")],
            [family(b"d", maxVersions=0)],
            [family(b"d", timeToLive=0)],
            [family(b"d", timeToLive=-1)],
            [family(b"d", minVersions=5, maxVersions=2)],
            [family(b"d", blockSize=1)],
        )
    ],
    "splits that cannot be are refused": [
        [("createTable", descriptor(NEW, family(b"d")), [splits, b"a"])] for splits in (b"a", b"")
    ],
    "names that cannot be are refused": [
        [
            ("createTable", descriptor(table, family(b"d"), namespace=namespace), None),
            ("getTableDescriptor", name(table, namespace)),
            ("tableExists", name(table, namespace)),
        ]
        for table, namespace in (
            *((wrong, None) for wrong in (b"a b", b"", b"a:b")),
            *((b"t", wrong) for wrong in (b"no-such", b"nosuch")),
        )
    ],
    "tables of the system are listed where they are asked for": [
        [
            ("createTable", descriptor(NEW, family(b"d")), None),
            ("createTable", descriptor(NEW, family(b"d"), namespace=b"hbase"), None),
            *(
                (get_listed, NEW, method, pattern, system)
                for method in ("getTableNamesByPattern", "getTableDescriptorsByPattern")
                for pattern in PATTERNS
                for system in (False, True)
            ),
            (get_listed, NEW, "getTableNamesByNamespace", "hbase"),
            (get_listed, NEW, "getTableNamesByNamespace", "default"),
            (get_listed, NEW, "getTableDescriptors", []),
            *(
                (method, name(NEW, namespace))
                for namespace in (None, b"hbase")
                for method in ("disableTable", "deleteTable")
            ),
        ]
    ],
    "the settings of families are kept": [
        [
            (
                "createTable",
                descriptor(
                    NEW,
                    family(
                        b"a", maxVersions=3, configuration={"a.b": "c"}, attributes={b"f": b"b"}
                    ),
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
                ),
                None,
            ),
            ("getTableDescriptor", name(NEW)),
            ("modifyTable", descriptor(NEW, family(b"a", maxVersions=4), family(b"n"))),
            (get_columns, NEW, ABSENT),
            ("disableTable", name(NEW)),
            ("deleteTable", name(NEW)),
        ]
    ],
    "a table lives and ends": [
        [
            ("createTable", descriptor(NEW, family(b"d")), None),
            ("createTable", descriptor(NEW, family(b"d")), None),
            *((method, name(each)) for method in STATES for each in (NEW, ABSENT)),
            ("put", NEW, put(b"r", cell(b"d:x", b"1", 5))),
            ("enableTable", name(NEW)),
            ("deleteTable", name(NEW)),
            ("truncateTable", name(NEW), True),
            ("addColumnFamily", name(NEW), family(b"f")),
            ("addColumnFamily", name(NEW), family(b"f")),
            ("modifyColumnFamily", name(NEW), family(b"none")),
            ("deleteColumnFamily", name(NEW), b"none"),
            ("deleteColumnFamily", name(NEW), b"f"),
            ("disableTable", name(NEW)),
            ("disableTable", name(NEW)),
            ("isTableAvailable", name(NEW)),
            ("get", NEW, get(b"r")),
            ("put", NEW, put(b"r", cell(b"d:x"))),
            ("getScannerResults", NEW, IDL.TScan(), 1),
            ("truncateTable", name(NEW), False),
            ("isTableEnabled", name(NEW)),
            ("get", NEW, get(b"r")),
            ("disableTable", name(NEW)),
            *((f"{what}Table", name(NEW)) for what in ("delete", "disable", "enable", "delete")),
            ("truncateTable", name(NEW), True),
            ("addColumnFamily", name(NEW), family(b"f")),
            ("modifyTable", descriptor(NEW, family(b"f"))),
            ("tableExists", name(NEW)),
        ]
    ],
    "namespaces live and end, those with tables last": [
        [
            ("createNamespace", IDL.TNamespaceDescriptor(SPACE, {"a": "b"})),
            ("createNamespace", IDL.TNamespaceDescriptor(SPACE)),
            ("getNamespaceDescriptor", SPACE),
            ("modifyNamespace", IDL.TNamespaceDescriptor(SPACE, {"c": "d"})),
            ("getNamespaceDescriptor", SPACE),
            ("createTable", OURS, None),
            ("put", NEW + b":t", put(b"r", cell(b"d:x", b"1", 5))),
            ("get", NEW + b":t", get(b"r")),
            ("getTableNamesByNamespace", SPACE),
            ("getTableDescriptorsByNamespace", SPACE),
            *(
                call
                for pattern in (f"{SPACE}:.*", f"{SPACE}t", f"default:{SPACE}.*", "(")
                for call in (
                    ("getTableNamesByPattern", pattern, False),
                    ("getTableDescriptorsByPattern", pattern, True),
                )
            ),
            ("deleteNamespace", SPACE),
            ("disableTable", OURS.tableName),
            ("deleteTable", OURS.tableName),
            *(("deleteNamespace", wrong) for wrong in (SPACE, SPACE, "default", "hbase")),
            ("getNamespaceDescriptor", SPACE),
            ("modifyNamespace", IDL.TNamespaceDescriptor(SPACE)),
            ("getTableNamesByNamespace", SPACE),
            (get_namespaces,),
        ]
    ],
}


@pytest.mark.parametrize("behaviour", CALLS)
def test_the_emulator_answers_as_hbase_does(ends: Ends, behaviour: str) -> None:
    for calls in CALLS[behaviour]:
        ends.run(ends.two, calls)


SCANS: list[dict[str, Any]] = [
    {},
    *({"limit": limit} for limit in (2, 0, -1)),
    *({"batchSize": size} for size in (1, 2)),
    {"batchSize": 2, "limit": 1},
    {"batchSize": 3, "maxVersions": 2},
    {"maxVersions": 2},
    {"caching": 1},
    {"columns": []},
    {"columns": [column(b"d:a"), column(b"e")]},
    {"columns": [column(b"d:none")]},
    {"columns": [column(b"z")]},
    *({"timeRange": IDL.TTimeRange(*times)} for times in ((10, 20), (20, 10))),
    {"colFamTimeRangeMap": {}},
    *(
        {"colFamTimeRangeMap": {name: IDL.TTimeRange(*times)}}
        for name, *times in ((b"d", 12, 20), (b"d", 20, 10), (b"d", -1, 10), (b"z", 5, 15))
    ),
    {"colFamTimeRangeMap": {b"d": IDL.TTimeRange(5, 15), b"e": IDL.TTimeRange(40, 50)}},
    {"colFamTimeRangeMap": {b"d": IDL.TTimeRange(5, 15)}, "timeRange": IDL.TTimeRange(14, 31)},
    {"colFamTimeRangeMap": {b"d": IDL.TTimeRange(5, 15)}, "columns": [column(b"e")]},
    {"colFamTimeRangeMap": {b"d": IDL.TTimeRange(5, 99)}, "filterString": b"PageFilter(1)"},
    *({"filterString": text} for text in (b"PageFilter(3)", b"ValueFilter(=, 'binary:1')", b"x(")),
    {"readType": IDL.TReadType.PREAD, "cacheBlocks": True},
    {"consistency": IDL.TConsistency.TIMELINE},
]


@pytest.fixture(scope="module")
def rows(ends: Ends) -> bytes:
    """The prefix of nine rows, in the middle of a region."""
    prefix = fresh("scan")
    puts = [
        put(
            b"%s%d" % (prefix, number),
            *(cell(b"d:a", b"old", 10), cell(b"d:a", b"%d" % number, 20)),
            *(cell(b"d:b", b"v", 15), cell(b"e:c", b"%d" % (number % 3), 30)),
        )
        for number in range(9)
    ]
    ends.two.ask("putMultiple", ends.table, puts)
    return prefix


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_are_scanned_at_once_or_by_a_scanner(ends: Ends, rows: bytes, reverse: bool) -> None:
    bounds = (rows + b"7", rows + b"2") if reverse else (rows + b"1", rows + b"6")
    for options in SCANS:
        scan = scan_of(*bounds, reversed=reverse, **options)
        counts = [("getScannerResults", T, scan, count) for count in (0, 1, 3, 100, -1)]
        ends.run(ends.two, [*counts, (scan_all, T, scan)])


def test_bounds_of_scans(ends: Ends, rows: bytes) -> None:
    """Open, the wrong way round, equal (which means that row), and too long."""
    inner = [(b"z", b"a"), (b"2", b"2"), (b"0", b"9" * 40_000)]
    bounds = [(b"", b"c"), (b"x", b""), *((rows + start, rows + stop) for start, stop in inner)]
    ends.run(ends.two, [("getScannerResults", T, scan_of(*each), 5) for each in bounds])
