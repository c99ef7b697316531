"""Ranges of rows: those that options and filters select, and their division among tasks.

A filter that is taken from Spark is applied exactly. It must be on a row key of one column, whose
codec gives each value one row key. That is text and bytes, which sort as Spark compares them, and
whole numbers, whose bytes sort negative ones last.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
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
from txn.spans import make_span
from txn.spark.mapping import MappedColumn
from txn.spark.options import SourceOptions
from txn.stores.base import Store
from txn.text import unescape

Range = tuple[bytes, bytes | None]
"""Rows from the first (included) to the second (excluded; None: to the end)."""

ALL: tuple[Range, ...] = ((b"", None),)
BOUNDS = ("start", "stop", "prefix")

PARTITIONS = "numPartitions"

MAX_VALUES = 100
"""The most values of an IN filter, which are read one by one."""

_WHOLE = ("byte", "short", "int", "long")


def parse_bounds(options: SourceOptions) -> Range:
    """Return the rows that the options start, stop and prefix select; `\\xNN` in them is a byte."""
    start, stop, prefix = (options.text(name) for name in BOUNDS)
    span = make_span(
        b"-",
        b"" if start is None else unescape(start),
        None if stop is None else unescape(stop),
        None if prefix is None else unescape(prefix),
    )
    return span.start, span.stop


def parse_partitions(options: SourceOptions) -> int | None:
    return options.whole(PARTITIONS, None)


# --------------------------------------------------------------------------------------- division


def divide_ranges(
    store: Store,
    table: bytes,
    ranges: Sequence[Range],
    most: int | None = None,
    cores: int | None = None,
) -> list[tuple[Range, ...]]:
    """Return the ranges of each task. On HBase a task reads the rows of a region; elsewhere about
    equal parts, one per core. most: the most tasks. cores: None: those of this machine."""
    if not ranges:
        return []
    count = most or cores or os.cpu_count() or 1
    stops = [stop for _, stop in ranges]
    stop = None if None in stops else max(stop for stop in stops if stop is not None)
    splits = store.find_splits(table, count - 1, ranges[0][0], stop)
    parts = cut_ranges(ranges, splits)
    return parts if most is None else join_parts(parts, most)


def cut_ranges(ranges: Sequence[Range], splits: Sequence[bytes]) -> list[tuple[Range, ...]]:
    """Return the ranges cut at the splits, grouped by split; no group is empty."""
    limits = zip([b"", *splits], [*splits, None], strict=True)
    parts = (intersect_ranges(ranges, [part]) for part in limits)
    return [part for part in parts if part]


def join_parts(parts: Sequence[tuple[Range, ...]], most: int) -> list[tuple[Range, ...]]:
    """Return at most `most` parts, by joining neighbours."""
    count = min(most, len(parts))
    ends = [place * len(parts) // count for place in range(count + 1)] if count else []
    return [
        tuple(each for part in parts[low:high] for each in part) for low, high in pairwise(ends)
    ]


def intersect_ranges(ranges: Iterable[Range], others: Iterable[Range]) -> tuple[Range, ...]:
    """Return the intersection, in order; neither argument has overlapping ranges."""
    known = list(others)
    found = []
    for start, stop in ranges:
        for low, high in known:
            ends = [end for end in (stop, high) if end is not None]
            both = max(start, low), min(ends, default=None)
            if both[1] is None or both[0] < both[1]:
                found.append(both)
    return tuple(sorted(found, key=lambda part: part[0]))


# ---------------------------------------------------------------------------------------- filters


def push_filters(
    filters: Iterable[Filter], row: tuple[MappedColumn, ...], ranges: tuple[Range, ...]
) -> tuple[tuple[Range, ...], list[Filter]]:
    """Return the ranges that the filters leave, and the filters that Spark has to apply."""
    rest = []
    for each in filters:
        found = _find_ranges(each, row[0]) if len(row) == 1 else None
        if found is None:
            rest.append(each)
        else:
            ranges = intersect_ranges(ranges, found)
    return ranges, rest


def _find_ranges(given: Filter, part: MappedColumn) -> tuple[Range, ...] | None:
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


def _find_values(values: Any, part: MappedColumn) -> tuple[Range, ...] | None:
    chosen = [value for value in values if value is not None]
    if len(chosen) > MAX_VALUES:
        return None
    found: set[Range] = set()
    for value in chosen:
        ranges = _find_ranges(EqualTo((part.name,), value), part)
        if ranges is None:
            return None
        found.update(ranges)
    return tuple(sorted(found, key=lambda each: each[0]))


def _find_bytes(given: Filter, part: MappedColumn) -> tuple[Range, ...] | None:
    value, span = getattr(given, "value", None), _SPANS.get(type(given))
    if span is None or value is None:
        return None if span is None else ()
    if not isinstance(value, str if isinstance(part.codec.kind, StringType) else bytes):
        return None
    data = part.codec.encode(value)
    return None if len(data) >= MAX_ROW else intersect_ranges(ALL, [span(data)])


def _find_numbers(given: Filter, part: MappedColumn) -> tuple[Range, ...] | None:
    value, limits = getattr(given, "value", None), _LIMITS.get(type(given))
    if limits is None or value is None:
        return None if limits is None else ()
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    low, high = limits(value)
    half = 1 << (8 * (part.codec.width or 1) - 1)
    first = -half if low is None else max(low, -half)
    last = half - 1 if high is None else min(high, half - 1)
    halves = ((max(first, 0), last), (first, min(last, -1)))
    encode = part.codec.encode
    return tuple((encode(one), encode(other) + b"\0") for one, other in halves if one <= other)


def _find_prefix(prefix: bytes) -> Range:
    span = make_span(b"-", prefix=prefix)
    return span.start, span.stop


_SPANS: dict[type, Callable[[bytes], Range]] = {
    EqualTo: lambda data: (data, data + b"\0"),
    EqualNullSafe: lambda data: (data, data + b"\0"),
    GreaterThan: lambda data: (data + b"\0", None),
    GreaterThanOrEqual: lambda data: (data, None),
    LessThan: lambda data: (b"", data),
    LessThanOrEqual: lambda data: (b"", data + b"\0"),
    StringStartsWith: _find_prefix,
}
_LIMITS: dict[type, Callable[[int], tuple[int | None, int | None]]] = {  # both included
    EqualTo: lambda value: (value, value),
    EqualNullSafe: lambda value: (value, value),
    GreaterThan: lambda value: (value + 1, None),
    GreaterThanOrEqual: lambda value: (value, None),
    LessThan: lambda value: (None, value - 1),
    LessThanOrEqual: lambda value: (None, value),
}
