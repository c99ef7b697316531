"""HBase's single filters and comparators; `lists` combines filters.

A filter sees each row key, each version in the row, and the row as a whole, in that order, and
keeps state in between. Classes and methods have HBase's names. The quirks are HBase's, too.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from txn.tables.cells import FOREVER, CellVersion
from txn.tables.operations import Refused

COMPARISONS: dict[str, Callable[[bytes, bytes], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


@dataclass(frozen=True, slots=True)
class Comparator:
    """A value and the way to compare it with a part of a cell."""

    kind: Literal["binary", "binaryprefix", "regexstring", "substring"]
    value: bytes

    def make_test(self, comparison: str) -> Callable[[bytes], bool]:
        """Return a function that returns True for bytes that fail the comparison."""
        value = self.value
        if self.kind == "regexstring":
            from txn.tables.filters.patterns import searcher  # noqa: PLC0415  (of an extra)

            holds = searcher(value)
        elif self.kind == "substring":
            part = decode(value).lower()

            def holds(found: bytes) -> bool:
                return part in decode(found).lower()

        else:
            compare = COMPARISONS[comparison]
            size = len(value) if self.kind == "binaryprefix" else None
            return lambda found: not compare(found[:size], value)
        return holds if comparison == "!=" else lambda found: not holds(found)


def decode(value: bytes) -> str:
    return value.decode("utf-8", "replace")


class ReturnCode(NamedTuple):
    """A filter's answer for a version: include it or not, and the step to the next one.

    step: to the next 0 version, 1 column, 2 row (in this family), or 3 to the filter's hint.
    """

    includes: bool
    step: int


INCLUDE = ReturnCode(True, 0)
INCLUDE_AND_NEXT_COLUMN = ReturnCode(True, 1)
SKIP = ReturnCode(False, 0)
NEXT_COLUMN = ReturnCode(False, 1)
NEXT_ROW = ReturnCode(False, 2)
SEEK_TO_HINT = ReturnCode(False, 3)


class Filter:
    """A filter that passes everything. reverse: the direction of the scan."""

    has_filter_row = False
    reverse = False
    of_row: ClassVar[tuple[str, ...]] = ()
    """The attributes that begin each row with the values of the class."""

    def reset(self) -> None:
        """Forget the last row."""
        for name in self.of_row:
            self.__dict__.pop(name, None)

    def filter_row_key(self, row: bytes) -> bool:
        """Return True to leave out the row without reading its versions."""
        return self.filter_all_remaining()

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        """Return whether to include a version, and the next step."""
        return INCLUDE

    def transform_cell(self, version: CellVersion) -> CellVersion:
        """Return the form in which an included version is returned."""
        return version

    def next_cell_hint(self, version: CellVersion) -> bytes | None:
        """Return the column of the family to continue from after SEEK_TO_HINT."""
        return None

    def filter_row_cells(self, found: list[CellVersion]) -> list[CellVersion]:
        """Return the row's included versions that stay."""
        return found

    def filter_row(self) -> bool:
        """Return True to leave out the row after all."""
        return False

    def filter_all_remaining(self) -> bool:
        """Return True if no later row can pass."""
        return False

    def is_family_essential(self, family: bytes) -> bool:
        """Return True if the filter needs the family to decide on a row."""
        return True


class KeyOnlyFilter(Filter):
    def __init__(self, length_as_value: bool = False) -> None:
        self._length_as_value = length_as_value

    def transform_cell(self, version: CellVersion) -> CellVersion:
        shown = len(version.value).to_bytes(4) if self._length_as_value else b""
        return version._replace(value=shown)


class FirstKeyOnlyFilter(Filter):
    of_row = ("_found",)
    _found = False

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        found, self._found = self._found, True
        return NEXT_ROW if found else INCLUDE


class PrefixFilter(Filter):
    of_row = ("_out",)
    _passed = False
    _out = True

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix

    def filter_row_key(self, row: bytes) -> bool:
        if self._passed or len(row) < len(self._prefix):
            return True
        start = row[: len(self._prefix)]
        self._passed = start < self._prefix if self.reverse else start > self._prefix
        self._out = start != self._prefix
        return self._out

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        return NEXT_ROW if self._out else INCLUDE

    def filter_row(self) -> bool:
        return self._out

    def filter_all_remaining(self) -> bool:
        return self._passed


class MultipleColumnPrefixFilter(Filter):
    """Only the greatest prefix that is not above the column matters."""

    _hint: bytes | None = None

    def __init__(self, *prefixes: bytes) -> None:
        self._prefixes = sorted(prefixes)
        if len(set(prefixes)) < len(prefixes):
            raise Refused("illegal argument", "prefixes must be distinct", prefixes=prefixes)

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        index = bisect_right(self._prefixes, version.column)
        if not self._prefixes or (index and version.column.startswith(self._prefixes[index - 1])):
            return INCLUDE
        if index == len(self._prefixes):
            return NEXT_ROW
        self._hint = self._prefixes[index]
        return SEEK_TO_HINT

    def next_cell_hint(self, version: CellVersion) -> bytes | None:
        return self._hint


class ColumnPrefixFilter(MultipleColumnPrefixFilter):
    """A single prefix."""


class ColumnRangeFilter(Filter):
    """An empty bound is open."""

    def __init__(self, low: bytes, includes_low: bool, high: bytes, includes_high: bool) -> None:
        self._low, self._includes_low = low, includes_low or not low
        self._high, self._includes_high = high, includes_high

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        column = version.column
        if column < self._low:
            return SEEK_TO_HINT
        if column == self._low and not self._includes_low:
            return NEXT_COLUMN
        if not self._high or column < self._high or (column == self._high and self._includes_high):
            return INCLUDE
        return NEXT_ROW

    def next_cell_hint(self, version: CellVersion) -> bytes:
        return self._low


class ColumnCountGetFilter(Filter):
    of_row = ("_count",)
    _count = 0

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        self._count += 1
        return NEXT_COLUMN if self.filter_all_remaining() else INCLUDE_AND_NEXT_COLUMN

    def filter_all_remaining(self) -> bool:
        return self._count > self._limit


class ColumnPaginationFilter(Filter):
    of_row = ("_count",)
    _count = 0

    def __init__(self, limit: int, offset: int) -> None:
        self._offset = offset
        self._end = offset + limit

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        if self._count >= self._end:
            return NEXT_ROW
        self._count += 1
        return NEXT_COLUMN if self._count <= self._offset else INCLUDE_AND_NEXT_COLUMN


class PageFilter(Filter):
    has_filter_row = True
    _accepted = 0

    def __init__(self, size: int) -> None:
        self._size = size

    def filter_row_key(self, row: bytes) -> bool:
        return False

    def filter_row(self) -> bool:
        self._accepted += 1
        return self._accepted > self._size

    def filter_all_remaining(self) -> bool:
        return self._accepted >= self._size


class InclusiveStopFilter(Filter):
    _done = False

    def __init__(self, stop: bytes) -> None:
        self._stop = stop

    def filter_row_key(self, row: bytes) -> bool:
        if not self._done:
            self._done = row < self._stop if self.reverse else row > self._stop
        return self._done

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        return NEXT_ROW if self._done else INCLUDE

    def filter_all_remaining(self) -> bool:
        return self._done


class TimestampsFilter(Filter):
    def __init__(self, *timestamps: int) -> None:
        self._timestamps = frozenset(timestamps)
        self._least = min(timestamps, default=FOREVER)

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        if version.timestamp in self._timestamps:
            return INCLUDE
        return NEXT_COLUMN if version.timestamp < self._least else SKIP


class CompareFilter(Filter):
    """Compares one part of each version; `otherwise` is the answer if it fails."""

    part: ClassVar[int]
    otherwise = SKIP

    def __init__(self, comparison: str, comparator: Comparator) -> None:
        self._fails = comparator.make_test(comparison)

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        return self.otherwise if self._fails(version[self.part]) else INCLUDE  # type: ignore[arg-type]


class FamilyFilter(CompareFilter):
    part = 0
    otherwise = NEXT_ROW


class QualifierFilter(CompareFilter):
    part = 1


class ValueFilter(CompareFilter):
    part = 3


class RowFilter(CompareFilter):
    of_row = ("_out",)
    _out = False

    def filter_row_key(self, row: bytes) -> bool:
        self._out = self._fails(row)
        return self._out

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        return NEXT_ROW if self._out else INCLUDE

    def filter_row(self) -> bool:
        return self._out


class SingleColumnValueFilter(Filter):
    has_filter_row = True
    of_row = ("_found", "_matched")
    _found = _matched = False

    def __init__(
        self, family: bytes, column: bytes, comparison: str, comparator: Comparator, *flags: bool
    ) -> None:
        self._column = (family, column)
        self._fails = comparator.make_test(comparison)
        self._out_if_missing, self._newest_only = flags or (False, True)

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        if self._matched:
            return INCLUDE
        if self._newest_only and self._found:
            return NEXT_ROW
        if version[:2] != self._column:
            return INCLUDE
        self._found = True
        self._matched = not self._fails(version.value)
        return INCLUDE if self._matched or not self._newest_only else NEXT_ROW

    def filter_row(self) -> bool:
        return not self._matched if self._found else self._out_if_missing

    def is_family_essential(self, family: bytes) -> bool:
        return not self._out_if_missing or family == self._column[0]


class SingleColumnValueExcludeFilter(SingleColumnValueFilter):
    def filter_row_cells(self, found: list[CellVersion]) -> list[CellVersion]:
        return [version for version in found if version[:2] != self._column]


class DependentColumnFilter(Filter):
    has_filter_row = True

    def __init__(
        self,
        family: bytes,
        column: bytes,
        drop: bool = False,
        comparison: str = "=",
        comparator: Comparator | None = None,
    ) -> None:
        self._column = (family, column)
        self._drop = drop
        self._fails = None if comparator is None else comparator.make_test(comparison)
        self._timestamps: set[int] = set()

    def reset(self) -> None:
        self._timestamps.clear()

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        if version[:2] != self._column:
            return INCLUDE
        if self._fails is not None and self._fails(version.value):
            return SKIP
        self._timestamps.add(version.timestamp)
        return SKIP if self._drop else INCLUDE

    def filter_row_cells(self, found: list[CellVersion]) -> list[CellVersion]:
        return [version for version in found if version.timestamp in self._timestamps]


class ColumnValueFilter(Filter):
    of_row = ("_found",)
    _found = False

    def __init__(
        self, family: bytes, column: bytes, comparison: str, comparator: Comparator
    ) -> None:
        self._column = (family, column)
        self._fails = comparator.make_test(comparison)

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        if version[:2] != self._column:
            return NEXT_ROW if self._found else NEXT_COLUMN
        self._found = True
        return SKIP if self._fails(version.value) else INCLUDE

    def is_family_essential(self, family: bytes) -> bool:
        return family == self._column[0]
