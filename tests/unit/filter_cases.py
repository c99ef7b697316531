"""Some rows, and what each filter of HBase's language finds in them: checked on a real HBase too.

A case is the text of a filter and what is found, row by row: the columns, and after an @ the
timestamp where it is not the newest version.
"""

from __future__ import annotations

from txn.tables.operations import FamilySettings, Put, Result

FAMILIES = {b"d": FamilySettings(versions=3), b"e": FamilySettings(versions=3)}
HISTORY: list[tuple[bytes, Put]] = [
    (row, Put(family, column, value, timestamp))
    for row, family, column, value, timestamp in [
        (b"apple", b"d", b"color", b"green", 1),
        (b"apple", b"d", b"color", b"red", 2),
        (b"apple", b"d", b"cost", b"5", 2),
        (b"apple", b"e", b"note", b"it's Red", 3),
        (b"apricot", b"d", b"color", b"orange", 1),
        (b"apricot", b"d", b"size", b"1", 1),
        (b"banana", b"d", b"color", b"yellow", 4),
        (b"banana", b"d", b"cost", b"7", 4),
        (b"banana", b"e", b"", b"bare", 4),
        (b"cherry", b"e", b"note", b"red", 5),
    ]
]

FOUND: dict[bytes, dict[str, str]] = {
    b"PrefixFilter('ap')": {"apple": "d:color d:cost e:note", "apricot": "d:color d:size"},
    b"PrefixFilter ( 'b' )": {"banana": "d:color d:cost e:"},
    b"ColumnPrefixFilter('co')": {
        "apple": "d:color d:cost",
        "apricot": "d:color",
        "banana": "d:color d:cost",
    },
    b"MultipleColumnPrefixFilter('col', 'n')": {
        "apple": "d:color e:note",
        "apricot": "d:color",
        "banana": "d:color",
        "cherry": "e:note",
    },
    b"ColumnRangeFilter('color', false, 'note', true)": {
        "apple": "d:cost e:note",
        "banana": "d:cost",
        "cherry": "e:note",
    },
    b"ColumnRangeFilter('', true, 'color', true)": {
        "apple": "d:color",
        "apricot": "d:color",
        "banana": "d:color e:",
    },
    b"QualifierFilter(=, 'substring:O')": {
        "apple": "d:color d:cost e:note",
        "apricot": "d:color",
        "banana": "d:color d:cost",
        "cherry": "e:note",
    },
    b"QualifierFilter(>, 'binary:cost')": {
        "apple": "e:note",
        "apricot": "d:size",
        "cherry": "e:note",
    },
    b"ValueFilter(=, 'regexstring:^[yo]')": {"apricot": "d:color", "banana": "d:color"},
    b"ValueFilter(!=, 'substring:e')": {
        "apple": "d:cost",
        "apricot": "d:size",
        "banana": "d:cost",
    },
    b"ValueFilter(=, 'binary:green')": {"apple": "d:color@1"},
    b"ValueFilter(=, 'binary:it''s Red')": {"apple": "e:note"},
    b"ValueFilter(<=, 'binaryprefix:5')": {"apple": "d:cost", "apricot": "d:size"},
    b"SingleColumnValueFilter('d', 'color', =, 'binary:red')": {
        "apple": "d:color d:cost e:note",
        "cherry": "e:note",
    },
    b"SingleColumnValueFilter('d', 'color', =, 'binary:red', true, true)": {
        "apple": "d:color d:cost e:note"
    },
    b"SingleColumnValueFilter('d', 'color', =, 'binary:green', true, false)": {
        "apple": "d:color d:cost e:note"
    },
    b"SingleColumnValueExcludeFilter('d', 'color', !=, 'binary:red', true, true)": {
        "apricot": "d:size",
        "banana": "d:cost e:",
    },
    b"ColumnValueFilter('d', 'cost', >, 'binary:5')": {"banana": "d:cost"},
    b"DependentColumnFilter('d', 'cost')": {
        "apple": "d:color d:cost",
        "banana": "d:color d:cost e:",
    },
    b"DependentColumnFilter('d', 'cost', true, =, 'binary:7')": {"banana": "d:color e:"},
    b"KeyOnlyFilter()": {
        "apple": "d:color d:cost e:note",
        "apricot": "d:color d:size",
        "banana": "d:color d:cost e:",
        "cherry": "e:note",
    },
    b"KeyOnlyFilter(true) AND RowFilter(=, 'binary:cherry')": {"cherry": "e:note"},
    b"FirstKeyOnlyFilter()": {
        "apple": "d:color",
        "apricot": "d:color",
        "banana": "d:color",
        "cherry": "e:note",
    },
    b"PageFilter(2)": {"apple": "d:color d:cost e:note", "apricot": "d:color d:size"},
    b"ColumnCountGetFilter(1)": {"apple": "d:color"},
    b"ColumnCountGetFilter(2)": {
        "apple": "d:color d:cost",
        "apricot": "d:color d:size",
        "banana": "d:color d:cost",
    },
    b"ColumnPaginationFilter(1, 1)": {
        "apple": "d:cost",
        "apricot": "d:size",
        "banana": "d:cost",
    },
    b"InclusiveStopFilter('apricot')": {
        "apple": "d:color d:cost e:note",
        "apricot": "d:color d:size",
    },
    b"TimestampsFilter(1, 5)": {
        "apple": "d:color@1",
        "apricot": "d:color d:size",
        "cherry": "e:note",
    },
    b"RowFilter(>=, 'binary:banana')": {"banana": "d:color d:cost e:", "cherry": "e:note"},
    b"RowFilter(=, 'regexstring:p+')": {
        "apple": "d:color d:cost e:note",
        "apricot": "d:color d:size",
    },
    b"FamilyFilter(=, 'binary:e')": {"apple": "e:note", "banana": "e:", "cherry": "e:note"},
    b"SKIP ValueFilter(!=, 'binary:7')": {
        "apple": "d:color d:cost e:note",
        "apricot": "d:color d:size",
        "cherry": "e:note",
    },
    b"SKIP PrefixFilter('a')": {},
    b"WHILE RowFilter(!=, 'binary:banana')": {
        "apple": "d:color d:cost e:note",
        "apricot": "d:color d:size",
    },
    b"WHILE ValueFilter(!=, 'binary:yellow')": {
        "apple": "d:color d:cost e:note",
        "apricot": "d:color d:size",
    },
    b"PrefixFilter('ap') AND QualifierFilter(=, 'binary:color') OR RowFilter(=, 'binary:cherry')": {
        "apple": "d:color",
        "apricot": "d:color",
        "cherry": "e:note",
    },
    b"(PrefixFilter('b') OR PrefixFilter('c')) AND FamilyFilter(=, 'binary:e')": {
        "banana": "e:",
        "cherry": "e:note",
    },
    b"ColumnPrefixFilter('c') OR ColumnPrefixFilter('s')": {
        "apple": "d:color d:cost",
        "apricot": "d:color d:size",
        "banana": "d:color d:cost",
    },
    b"FirstKeyOnlyFilter() OR ValueFilter(=, 'binary:7')": {
        "apple": "d:color",
        "apricot": "d:color",
        "banana": "d:color d:cost",
        "cherry": "e:note",
    },
    b"QualifierFilter(!=, 'binary:color') AND FirstKeyOnlyFilter()": {
        "apple": "d:cost",
        "apricot": "d:size",
        "banana": "d:cost",
        "cherry": "e:note",
    },
    b"ValueFilter(=, 'binary:5') AND PageFilter(1)": {"apple": "d:cost"},
}

FOUND_IN_REVERSE: dict[bytes, dict[str, str]] = {
    b"PrefixFilter('ap')": {"apricot": "d:color d:size", "apple": "d:color d:cost e:note"},
    b"InclusiveStopFilter('banana')": {"cherry": "e:note", "banana": "d:color d:cost e:"},
    b"PageFilter(1)": {"cherry": "e:note"},
    # A quirk: what an OR seeks in a row it never meets in reverse.
    b"ColumnPrefixFilter('cos') OR FirstKeyOnlyFilter()": {
        "cherry": "e:note",
        "banana": "d:color",
        "apricot": "d:color",
        "apple": "d:color",
    },
}

REFUSED: dict[bytes, str] = {
    b"": "no filter",
    b"PrefixFilter": "does not end",
    b"PrefixFilter('a'": "does not end",
    b"PrefixFilter('a)": "does not end",
    b"FooFilter('a')": "no such filter",
    b"PrefixFilter('a') PrefixFilter('b')": "side by side",
    b"PrefixFilter('a') AND": "does not end",
    b"PrefixFilter('a') AND (": "lacks a filter",
    b"PrefixFilter('a'))": "not opened",
    b"(PrefixFilter('a') OR PrefixFilter('b') AND PrefixFilter('c'))": "OR before an AND",
    b"PrefixFilter(a)": "needs quotes",
    b"PrefixFilter('a', 'b')": "arguments",
    b"FirstKeyOnlyFilter('a')": "arguments",
    b"PageFilter(x)": "not a number",
    b"PageFilter(99999999999999999999)": "too large",
    b"ColumnPaginationFilter(99999999999, 1)": "too large",
    b"TimestampsFilter(-1)": "positive",
    b"ColumnRangeFilter('a', maybe, 'b', true)": "neither true nor false",
    b"RowFilter(<>, 'binary:a')": "no such operator",
    b"RowFilter(=, 'a')": "comparator",
    b"RowFilter(=, 'hex:a')": "no such comparator",
    b"RowFilter(<, 'substring:a')": "= and != only",
    b"MultipleColumnPrefixFilter('a', 'a')": "distinct",
    b"ValueFilter(=, 'regexstring:(a')": "regular expression",
}


def shown(results: list[Result], newest: dict[tuple[bytes, bytes, bytes], int]) -> dict[str, str]:
    """Return results as the cases say them."""
    found: dict[str, str] = {}
    for row, versions, _ in results:
        names = []
        for version in versions:
            name = f"{version.family.decode()}:{version.column.decode()}"
            at = version.timestamp
            latest = newest[row, version.family, version.column]
            names.append(name if at == latest else f"{name}@{at}")
        found[row.decode()] = " ".join(names)
    return found


def newest() -> dict[tuple[bytes, bytes, bytes], int]:
    """Return the newest timestamp of each cell."""
    times: dict[tuple[bytes, bytes, bytes], int] = {}
    for row, put in HISTORY:
        key = (row, put.family, put.column)
        times[key] = max(times.get(key, 0), put.timestamp or 0)
    return times
