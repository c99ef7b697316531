"""Filters on the row key as ranges of rows. Each is exact, or it is left to Spark.

A row key of one column only, whose codec gives each value one row key: text and bytes, which are
in the order that Spark compares in, and whole numbers, whose bytes put the negative ones last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import BinaryType, StringType

from txn.model import MAX_ROW
from txn.spark.mapping import KeyPart
from txn.spark.reader.ranges import ALL, Range, intersect_ranges, prefix_range

MOST_VALUES = 100
"""Of an IN, whose values are looked up one by one."""

_WHOLE = ("byte", "short", "int", "long")


def push_filters(
    filters: Iterable[Filter], row: tuple[KeyPart, ...], ranges: tuple[Range, ...]
) -> tuple[tuple[Range, ...], list[Filter]]:
    """Return what the filters leave of the ranges, and those that Spark has to apply."""
    rest = []
    for each in filters:
        found = _find_ranges(each, row[0]) if len(row) == 1 else None
        if found is None:
            rest.append(each)
        else:
            ranges = intersect_ranges(ranges, found)
    return ranges, rest


def _find_ranges(given: Filter, part: KeyPart) -> tuple[Range, ...] | None:
    """Return the rows that the filter leaves, or None where it is not ours."""
    if getattr(given, "attribute", None) != (part.name,):
        return None
    match given:
        case IsNotNull():
            return ALL
        case IsNull():
            return ()
        case In(value=values):
            return _find_values(values, part)
        case _ if part.codec.name in _WHOLE:
            return _find_numbers(given, part)
        case _ if part.codec.kind in (StringType(), BinaryType()) and part.codec.keeps_order:
            return _find_bytes(given, part)
        case _:
            return None


def _find_values(values: Any, part: KeyPart) -> tuple[Range, ...] | None:
    chosen = [value for value in values if value is not None]
    if len(chosen) > MOST_VALUES:
        return None
    found: set[Range] = set()
    for value in chosen:
        ranges = _find_ranges(EqualTo((part.name,), value), part)
        if ranges is None:
            return None
        found.update(ranges)
    return tuple(sorted(found, key=lambda each: each[0]))


def _find_bytes(given: Filter, part: KeyPart) -> tuple[Range, ...] | None:
    value, find = getattr(given, "value", None), _OF_BYTES.get(type(given))
    if find is None or value is None:
        return None if find is None else ()
    if not isinstance(value, str if isinstance(part.codec.kind, StringType) else bytes):
        return None
    data = part.codec.encode(value)
    return None if len(data) >= MAX_ROW else intersect_ranges(ALL, [find(data)])


def _find_numbers(given: Filter, part: KeyPart) -> tuple[Range, ...] | None:
    value, find = getattr(given, "value", None), _OF_NUMBERS.get(type(given))
    if find is None or value is None:
        return None if find is None else ()
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return _between(*find(value), part)


def _between(low: int | None, high: int | None, part: KeyPart) -> tuple[Range, ...]:
    """Return the rows of the numbers from low to high, both included: the negative ones last."""
    half = 1 << (8 * (part.codec.width or 1) - 1)
    first = -half if low is None else max(low, -half)
    last = half - 1 if high is None else min(high, half - 1)
    halves = ((max(first, 0), last), (first, min(last, -1)))
    encode = part.codec.encode
    return tuple((encode(one), encode(other) + b"\0") for one, other in halves if one <= other)


_OF_BYTES: dict[type, Callable[[bytes], Range]] = {
    EqualTo: lambda data: (data, data + b"\0"),
    EqualNullSafe: lambda data: (data, data + b"\0"),
    GreaterThan: lambda data: (data + b"\0", None),
    GreaterThanOrEqual: lambda data: (data, None),
    LessThan: lambda data: (b"", data),
    LessThanOrEqual: lambda data: (b"", data + b"\0"),
    StringStartsWith: prefix_range,
}
_OF_NUMBERS: dict[type, Callable[[int], tuple[int | None, int | None]]] = {
    EqualTo: lambda value: (value, value),
    EqualNullSafe: lambda value: (value, value),
    GreaterThan: lambda value: (value + 1, None),
    GreaterThanOrEqual: lambda value: (value, None),
    LessThan: lambda value: (None, value - 1),
    LessThanOrEqual: lambda value: (None, value),
}
