"""Ranges of rows: those that options and filters select, and their division among tasks.

The option `where` compares a row key of one column, whose codec gives each value one row key. That
is text and bytes, which sort as Spark compares them, and whole numbers, whose bytes sort negative
ones last. Spark's own filters are not taken: PySpark 4.3 answers later queries of a data frame by
the filters of an earlier one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise, product
from typing import Any

from pyspark.sql import datasource
from pyspark.sql.types import StringType

from txn.errors import InvalidRequestError
from txn.protocol.context import describe_table
from txn.spans import make_span
from txn.spark.codecs import Codec
from txn.spark.mapping import MappedColumn
from txn.spark.options import SourceOptions, match_name, parse_name
from txn.stores.base import Store
from txn.text import unescape

Range = tuple[bytes, bytes | None]
"""Rows from the first (included) to the second (excluded; None: to the end)."""

ALL: tuple[Range, ...] = ((b"", None),)
BOUNDS = ("start", "stop", "prefix")
SHAPE = "COLUMN =, <, <=, > or >= LITERAL, or COLUMN IN (LITERAL, ..), joined by AND: id >= 'a'"

PARTITIONS = "numPartitions"


def parse_bounds(options: SourceOptions) -> Range:
    """Return the rows that the options start, stop and prefix select; `\\xNN` in them is a byte."""
    given: dict[str, Any] = {
        name: unescape(text) for name in BOUNDS if (text := options.text(name)) is not None
    }
    span = make_span(b"-", **given)
    return span.start, span.stop


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
                if absent := self._families.difference(describe_table(engine.context, table)):
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
    splits = store.find_splits(table, count - 1, ranges[0][0], ranges[-1][1])
    parts = cut_ranges(ranges, splits)
    return parts if most is None else join_parts(parts, most)


def cut_ranges(ranges: Sequence[Range], splits: Sequence[bytes]) -> list[tuple[Range, ...]]:
    """Return the ranges cut at the splits, grouped by split; no group is empty."""
    limits = zip([b"", *splits], [*splits, None], strict=True)
    return [part for limit in limits if (part := intersect_ranges(ranges, [limit]))]


def join_parts(parts: Sequence[tuple[Range, ...]], most: int) -> list[tuple[Range, ...]]:
    """Return at most `most` parts, by joining neighbours."""
    count = min(most, len(parts))
    ends = [place * len(parts) // count for place in range(count + 1)] if count else []
    return [
        tuple(each for part in parts[low:high] for each in part) for low, high in pairwise(ends)
    ]


def intersect_ranges(ranges: Iterable[Range], others: Iterable[Range]) -> tuple[Range, ...]:
    """Return the intersection, in order; neither argument has overlapping ranges."""
    found = []
    for (start, stop), (low, high) in product(ranges, others):
        ends = [end for end in (stop, high) if end is not None]
        both = max(start, low), min(ends, default=None)
        if both[1] is None or both[0] < both[1]:
            found.append(both)
    return tuple(sorted(found, key=lambda part: part[0]))


def select_ranges(
    text: str, row: tuple[MappedColumn, ...], ranges: tuple[Range, ...], names: Collection[str] = ()
) -> tuple[Range, ...]:
    """Return the part of the ranges that a condition on the row key selects, exactly. names: of all
    columns, if there are others than the row key's."""
    names = names or [part.name for part in row]
    place, joined = 0, "and"
    while joined:
        if (match := _PART.match(text, place)) is None:
            raise InvalidRequestError(
                "an option is malformed", option="where", part=text[place:].strip(), shape=SHAPE
            )
        column, place, joined = parse_name(match["name"]), match.end(), match["joined"]
        if len(row) != 1 or match_name(column, names) != row[0].name:
            raise InvalidRequestError(
                "where is about a row key of one column: filter other columns by the data frame's "
                "where, and parts of a row key by prefix, start and stop",
                column=column,
                row=[part.name for part in row],
            )
        literals = _LITERAL.findall(match["value"] or match["values"])
        comparison = match["comparison"] or "="
        found = {each for one in literals for each in _find_ranges(comparison, one, row[0])}
        ranges = intersect_ranges(ranges, sorted(found, key=lambda each: each[0]))
    return ranges


def _find_ranges(comparison: str, literal: str, part: MappedColumn) -> tuple[Range, ...]:
    codec = part.codec
    kind = _KINDS.get(codec.name)
    if kind is None or (kind is str and codec.kind != StringType()):
        problem = "the bytes of this codec have no order: use prefix, start and stop"
        raise InvalidRequestError(problem, column=part.name, codec=codec.name)
    if literal.startswith("'") != (kind is not int):
        raise InvalidRequestError(
            "a literal does not fit its column",
            column=part.name,
            literal=literal,
            wanted="a whole number, such as 7" if kind is int else "text in quotes, such as 'a'",
        )
    if kind is int:
        return _find_numbers(comparison, int(literal), codec)
    value = literal[1:-1].replace("''", "'")
    data = value.encode() if kind is str else unescape(value)
    low, high = _LIMITS[comparison]
    start = b"" if low is None else data + b"\0" * low
    return intersect_ranges(ALL, [(start, None if high is None else data + b"\0" * high)])


def _find_numbers(comparison: str, value: int, codec: Codec) -> tuple[Range, ...]:
    low, high = _LIMITS[comparison]
    half = 1 << (8 * (codec.width or 1) - 1)
    first = -half if low is None else max(value + low, -half)
    stop = half if high is None else min(value + high, half)
    halves = ((max(first, 0), stop), (first, min(stop, 0)))
    encode = codec.encode
    return tuple((encode(one), encode(end - 1) + b"\0") for one, end in halves if one < end)


_LITERAL = re.compile(r"'(?:[^']|'')*'|-?\d+")
_PART = re.compile(
    r"\s*(?P<name>`(?:[^`]|``)+`|\w+)\s*"
    rf"(?:(?P<comparison>[<>]=?|=)\s*(?P<value>{_LITERAL.pattern})"
    rf"|in\s*\((?P<values>\s*(?:{_LITERAL.pattern})(?:\s*,\s*(?:{_LITERAL.pattern}))*\s*)\))"
    r"\s*(?:\b(?P<joined>and)\b|$)",
    re.IGNORECASE,
)

_KINDS = dict.fromkeys(("byte", "short", "int", "long"), int) | {"utf-8": str, "binary": bytes}
"""The codecs whose bytes have a known order, and the type of their values."""

_LIMITS: dict[str, tuple[int | None, int | None]] = {
    "=": (0, 1),
    ">": (1, None),
    ">=": (0, None),
    "<": (None, 0),
    "<=": (None, 1),
}
"""Where the selected values begin (included) and end (excluded): 0: at the literal, 1: at the next
value, None: at no value. The next row key is the one with a zero byte more."""
