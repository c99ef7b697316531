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

from pyspark.sql import datasource
from pyspark.sql.types import StringType

from txn.errors import InvalidRequestError
from txn.model import MAX_ROW
from txn.protocol.context import describe_table
from txn.spans import make_span
from txn.spark.codecs import Codec
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


def parse_bounds(options: SourceOptions) -> Range:
    """Return the rows that the options start, stop and prefix select; `\\xNN` in them is a byte."""
    given: dict[str, Any] = {
        name: unescape(text) for name in BOUNDS if (text := options.text(name)) is not None
    }
    span = make_span(b"-", **given)
    return span.start, span.stop


# --------------------------------------------------------------------------------------- division


class RangeReader(datasource.DataSourceReader):
    """Divide the rows that the options select of some tables; each task reads a part of one.

    families: those that each table must have.
    """

    def __init__(
        self, options: SourceOptions, tables: Sequence[bytes], families: Iterable[bytes] = ()
    ) -> None:
        self.access = options.access()
        self.tables = tables
        self.ranges: tuple[Range, ...] = (parse_bounds(options),)
        self._families = set(families)
        self._partitions = options.whole(PARTITIONS, None)

    def partitions(self) -> Sequence[datasource.InputPartition]:
        """Return for each task its table and ranges; Spark calls this once, before any task."""
        parts: list[datasource.InputPartition] = []
        with self.access.open_engine() as engine:
            for table in self.tables:
                absent = self._families.difference(describe_table(engine.context, table))
                if absent:
                    raise InvalidRequestError("no such family", table=table, family=min(absent))
                store = engine.context.store
                found = divide_ranges(store, table, self.ranges, self._partitions)
                parts += [datasource.InputPartition((table, part)) for part in found]
        return parts or [datasource.InputPartition((b"", ()))]


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
    filters: Iterable[datasource.Filter], row: tuple[MappedColumn, ...], ranges: tuple[Range, ...]
) -> tuple[tuple[Range, ...], list[datasource.Filter]]:
    """Return the ranges that the filters leave, and the filters that Spark has to apply."""
    rest = []
    for each in filters:
        found = _find_ranges(each, row[0]) if len(row) == 1 else None
        if found is None:
            rest.append(each)
        else:
            ranges = intersect_ranges(ranges, found)
    return ranges, rest


def _find_ranges(given: datasource.Filter, part: MappedColumn) -> tuple[Range, ...] | None:
    if getattr(given, "attribute", None) != (part.name,):
        return None
    match given:
        case datasource.IsNotNull():
            return ALL
        case datasource.IsNull():
            return ()
        case datasource.In(value=values):
            return _find_values(values, part)
    kind, value = _VALUES.get(part.codec.name), getattr(given, "value", None)
    has_collation = kind is str and part.codec.kind != StringType()
    if kind is None or has_collation or type(given) not in _LIMITS:
        return None
    if value is None:
        return ()
    if not isinstance(value, kind) or isinstance(value, bool):
        return None
    find: Callable[..., tuple[Range, ...] | None] = _find_numbers if kind is int else _find_bytes
    return find(given, value, part.codec)


def _find_values(values: Any, part: MappedColumn) -> tuple[Range, ...] | None:
    chosen = [value for value in values if value is not None]
    if len(chosen) > MAX_VALUES:
        return None
    found: set[Range] = set()
    for value in chosen:
        ranges = _find_ranges(datasource.EqualTo((part.name,), value), part)
        if ranges is None:
            return None
        found.update(ranges)
    return tuple(sorted(found, key=lambda each: each[0]))


def _find_bytes(given: datasource.Filter, value: Any, codec: Codec) -> tuple[Range, ...] | None:
    data = codec.encode(value)
    if len(data) >= MAX_ROW:
        return None
    if isinstance(given, datasource.StringStartsWith):
        span = make_span(b"-", prefix=data)
        return ((span.start, span.stop),)
    low, high = _LIMITS[type(given)]
    start = b"" if low is None else data + b"\0" * low
    return intersect_ranges(ALL, [(start, None if high is None else data + b"\0" * high)])


def _find_numbers(given: datasource.Filter, value: int, codec: Codec) -> tuple[Range, ...]:
    low, high = _LIMITS[type(given)]
    half = 1 << (8 * (codec.width or 1) - 1)
    first = -half if low is None else max(value + low, -half)
    stop = half if high is None else min(value + high, half)
    halves = ((max(first, 0), stop), (first, min(stop, 0)))
    encode = codec.encode
    return tuple((encode(one), encode(end - 1) + b"\0") for one, end in halves if one < end)


_VALUES: dict[str, type] = {
    "byte": int,
    "short": int,
    "int": int,
    "long": int,
    "utf-8": str,
    "binary": bytes,
}
"""The codecs whose bytes have a known order, and the type of a filter's value."""

_LIMITS: dict[type, tuple[int | None, int | None]] = {
    datasource.EqualTo: (0, 1),
    datasource.EqualNullSafe: (0, 1),
    datasource.GreaterThan: (1, None),
    datasource.GreaterThanOrEqual: (0, None),
    datasource.LessThan: (None, 0),
    datasource.LessThanOrEqual: (None, 1),
    datasource.StringStartsWith: (0, None),
}
"""Where the selected values begin (included) and end (excluded): 0: at the filter's value, 1: at
the next one, None: at no value. The next row key is the one with a zero byte more."""
