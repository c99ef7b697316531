"""Ranges of rows, and how they are divided among the tasks of a job."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise

from txn.errors import InvalidRequestError
from txn.protocol.context import Context, describe_table
from txn.spans import make_span
from txn.spark.options import SourceOptions
from txn.stores.base import Store
from txn.text import unescape

Range = tuple[bytes, bytes | None]
"""Rows from the first (included) to the second (excluded; None: to the end)."""

ALL: tuple[Range, ...] = ((b"", None),)
BOUNDS = ("start", "stop", "prefix")
"""The options that say which rows are read."""

PARTITIONS = "partitions"
"""The option that says how many tasks read them, at most."""


def parse_bounds(options: SourceOptions) -> Range:
    """Return the rows that the options start, stop and prefix leave; `\\xNN` in them is a byte."""
    start, stop, prefix = (options.text(name) for name in BOUNDS)
    span = make_span(
        b"-",
        b"" if start is None else unescape(start),
        None if stop is None else unescape(stop),
        None if prefix is None else unescape(prefix),
    )
    return span.start, span.stop


def prefix_range(prefix: bytes) -> Range:
    """Return the rows that have the prefix."""
    span = make_span(b"-", prefix=prefix)
    return span.start, span.stop


def intersect_ranges(ranges: Iterable[Range], others: Iterable[Range]) -> tuple[Range, ...]:
    """Return what is in both, in order; neither has rows twice."""
    known = list(others)
    found = []
    for start, stop in ranges:
        for low, high in known:
            both = max(start, low), _lower(stop, high)
            if both[1] is None or both[0] < both[1]:
                found.append(both)
    return tuple(sorted(found, key=lambda part: part[0]))


def _lower(one: bytes | None, other: bytes | None) -> bytes | None:
    ends = [end for end in (one, other) if end is not None]
    return min(ends) if ends else None


def cut_ranges(ranges: Sequence[Range], splits: Sequence[bytes]) -> list[tuple[Range, ...]]:
    """Return the ranges in parts, each of which lies between two splits; none is empty."""
    limits = zip([b"", *splits], [*splits, None], strict=True)
    parts = (intersect_ranges(ranges, [part]) for part in limits)
    return [part for part in parts if part]


def join_parts(parts: Sequence[tuple[Range, ...]], most: int) -> list[tuple[Range, ...]]:
    """Return neighbouring parts together, so that there are at most so many."""
    count = min(most, len(parts))
    ends = [place * len(parts) // count for place in range(count + 1)] if count else []
    return [
        tuple(each for part in parts[low:high] for each in part) for low, high in pairwise(ends)
    ]


def parse_partitions(options: SourceOptions) -> int | None:
    """Return how many tasks there may be at most; None where the options leave that open."""
    return None if options.text(PARTITIONS) is None else options.whole(PARTITIONS, 1)


def divide_ranges(
    store: Store,
    table: bytes,
    ranges: Sequence[Range],
    most: int | None = None,
    cores: int | None = None,
) -> list[tuple[Range, ...]]:
    """Return what each task reads: on HBase a region's rows, else about equal parts of the rows, as
    many as there are cores. most: how many tasks at most. cores: None: those of this machine."""
    if not ranges:
        return []
    count = most or cores or os.cpu_count() or 1
    stops = [stop for _, stop in ranges]
    stop = None if None in stops else max(stop for stop in stops if stop is not None)
    splits = store.find_splits(table, count - 1, ranges[0][0], stop)
    parts = cut_ranges(ranges, splits)
    return parts if most is None else join_parts(parts, most)


def check_families(context: Context, table: bytes, families: Iterable[bytes]) -> None:
    """Raise InvalidRequestError where there is no such table, or not one of its families."""
    known = describe_table(context, table)
    for family in families:
        if family not in known:
            raise InvalidRequestError("no such family", table=table, family=family)
