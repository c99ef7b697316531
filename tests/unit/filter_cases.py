"""Some rows, and what each filter finds in them, row by row: the columns, and after an @ the
timestamp where it is not the newest version. They are checked on a real HBase too."""

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

APPLE, APRICOT = "apple d:color d:cost e:note", "apricot d:color d:size"
BANANA, CHERRY = "banana d:color d:cost e:", "cherry e:note"

FOUND: dict[bytes, str] = {
    b"PrefixFilter('ap')": f"{APPLE}, {APRICOT}",
    b"ColumnPrefixFilter('co')": "apple d:color d:cost, apricot d:color, banana d:color d:cost",
    b"MultipleColumnPrefixFilter('col', 'n')": (
        f"apple d:color e:note, apricot d:color, banana d:color, {CHERRY}"
    ),
    b"ColumnRangeFilter('color', false, 'note', true)": (
        f"apple d:cost e:note, banana d:cost, {CHERRY}"
    ),
    b"QualifierFilter(=, 'substring:O')": (
        f"{APPLE}, apricot d:color, banana d:color d:cost, {CHERRY}"
    ),
    b"QualifierFilter(>, 'binary:cost')": f"apple e:note, apricot d:size, {CHERRY}",
    b"ValueFilter(=, 'regexstring:^[yo]')": "apricot d:color, banana d:color",
    b"ValueFilter(!=, 'substring:e')": "apple d:cost, apricot d:size, banana d:cost",
    b"ValueFilter(=, 'binary:green')": "apple d:color@1",
    b"ValueFilter(<=, 'binaryprefix:5')": "apple d:cost, apricot d:size",
    b"SingleColumnValueFilter('d', 'color', =, 'binary:red')": f"{APPLE}, {CHERRY}",
    b"SingleColumnValueFilter('d', 'color', =, 'binary:red', true, true)": APPLE,
    b"SingleColumnValueExcludeFilter('d', 'color', !=, 'binary:red', true, true)": (
        "apricot d:size, banana d:cost e:"
    ),
    b"ColumnValueFilter('d', 'cost', >, 'binary:5')": "banana d:cost",
    b"DependentColumnFilter('d', 'cost')": f"apple d:color d:cost, {BANANA}",
    b"DependentColumnFilter('d', 'cost', true, =, 'binary:7')": "banana d:color e:",
    b"KeyOnlyFilter()": f"{APPLE}, {APRICOT}, {BANANA}, {CHERRY}",
    b"FirstKeyOnlyFilter()": f"apple d:color, apricot d:color, banana d:color, {CHERRY}",
    b"PageFilter(2)": f"{APPLE}, {APRICOT}",
    b"ColumnCountGetFilter(2)": f"apple d:color d:cost, {APRICOT}, banana d:color d:cost",
    b"ColumnPaginationFilter(1, 1)": "apple d:cost, apricot d:size, banana d:cost",
    b"InclusiveStopFilter('apricot')": f"{APPLE}, {APRICOT}",
    b"TimestampsFilter(1, 5)": f"apple d:color@1, {APRICOT}, {CHERRY}",
    b"RowFilter(>=, 'binary:banana')": f"{BANANA}, {CHERRY}",
    b"RowFilter(=, 'regexstring:p+')": f"{APPLE}, {APRICOT}",
    b"FamilyFilter(=, 'binary:e')": f"apple e:note, banana e:, {CHERRY}",
    b"SKIP ValueFilter(!=, 'binary:7')": f"{APPLE}, {APRICOT}, {CHERRY}",
    b"WHILE RowFilter(!=, 'binary:banana')": f"{APPLE}, {APRICOT}",
    b"PrefixFilter('ap') AND QualifierFilter(=, 'binary:color') OR RowFilter(=, 'binary:cherry')": (
        f"apple d:color, apricot d:color, {CHERRY}"
    ),
    b"ColumnPrefixFilter('c') OR ColumnPrefixFilter('s')": (
        f"apple d:color d:cost, {APRICOT}, banana d:color d:cost"
    ),
    b"FirstKeyOnlyFilter() OR ValueFilter(=, 'binary:7')": (
        f"apple d:color, apricot d:color, banana d:color d:cost, {CHERRY}"
    ),
    b"QualifierFilter(!=, 'binary:color') AND FirstKeyOnlyFilter()": (
        f"apple d:cost, apricot d:size, banana d:cost, {CHERRY}"
    ),
    b"ValueFilter(=, 'binary:5') AND PageFilter(1)": "apple d:cost",
}

FOUND_IN_REVERSE: dict[bytes, str] = {
    b"PrefixFilter('ap')": f"{APRICOT}, {APPLE}",
    b"InclusiveStopFilter('banana')": f"{CHERRY}, {BANANA}",
    b"PageFilter(1)": CHERRY,
    # A quirk: what an OR seeks in a row it never meets in reverse.
    b"ColumnPrefixFilter('cos') OR FirstKeyOnlyFilter()": (
        f"{CHERRY}, banana d:color, apricot d:color, apple d:color"
    ),
}

REFUSED: dict[bytes, str] = {
    b"": "no filter",
    b"PrefixFilter": "does not end",
    b"PrefixFilter('a'": "does not end",
    b"PrefixFilter('a)": "does not end",
    b"FooFilter('a')": "no such filter",
    b"PrefixFilter('a') PrefixFilter('b')": "side by side",
    b"PrefixFilter('a') AND (": "lacks a filter",
    b"PrefixFilter('a'))": "not opened",
    b"(PrefixFilter('a') OR PrefixFilter('b') AND PrefixFilter('c'))": "OR before an AND",
    b"PrefixFilter(a)": "needs quotes",
    b"PrefixFilter('a', 'b')": "arguments",
    b"PageFilter(x)": "not a number",
    b"PageFilter(99999999999999999999)": "too large",
    b"TimestampsFilter(-1)": "positive",
    b"ColumnRangeFilter('a', maybe, 'b', true)": "neither true nor false",
    b"RowFilter(<>, 'binary:a')": "no such operator",
    b"RowFilter(=, 'a')": "comparator",
    b"RowFilter(=, 'hex:a')": "no such comparator",
    b"RowFilter(<, 'substring:a')": "= and != only",
    b"MultipleColumnPrefixFilter('a', 'a')": "distinct",
    b"ValueFilter(=, 'regexstring:(a')": "regular expression",
}


def shown(results: list[Result], newest: dict[tuple[bytes, bytes, bytes], int]) -> str:
    """Return results as the cases say them."""
    found = []
    for row, versions, _ in results:
        names = [row.decode()]
        for version in versions:
            is_newest = version.timestamp == newest[row, version.family, version.column]
            at = "" if is_newest else f"@{version.timestamp}"
            names.append(f"{version.family.decode()}:{version.column.decode()}{at}")
        found.append(" ".join(names))
    return ", ".join(found)


def newest() -> dict[tuple[bytes, bytes, bytes], int]:
    """Return the newest timestamp of each cell."""
    times: dict[tuple[bytes, bytes, bytes], int] = {}
    for row, put in HISTORY:
        key = (row, put.family, put.column)
        times[key] = max(times.get(key, 0), put.timestamp or 0)
    return times
