"""What HBase's filters do with the rows and versions that they are shown; see also `comparing`.

A `Sieve` is a filter at work: it is asked about each row, each version in it, and the row as a
whole, in that order, and remembers what it needs to; the names are those of HBase's Filter. The
quirks are HBase's too: they decide what its clients see.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from enum import Enum

from txn.tables.cells import FOREVER, CellVersion
from txn.tables.refusal import Refused


class Code(Enum):
    """What becomes of a version, and which the filter wants to see next."""

    INCLUDE = "include"
    INCLUDE_NEXT_COLUMN = "include, then the next column"
    INCLUDE_NEXT_ROW = "include, then the next row (in this family)"
    SKIP = "leave out"
    NEXT_COLUMN = "leave out, then the next column"
    NEXT_ROW = "leave out, then the next row (in this family)"
    SEEK = "leave out, then from the hint on"

    @property
    def includes(self) -> bool:
        return self in _INCLUDING

    @property
    def next_column(self) -> bool:
        return self in {Code.INCLUDE_NEXT_COLUMN, Code.NEXT_COLUMN}

    @property
    def next_row(self) -> bool:
        return self in {Code.INCLUDE_NEXT_ROW, Code.NEXT_ROW}


_INCLUDING = {Code.INCLUDE, Code.INCLUDE_NEXT_COLUMN, Code.INCLUDE_NEXT_ROW}


class Sieve:
    """A filter that lets everything pass."""

    has_filter_row = False

    def reset(self) -> None:
        """Forget what was of the last row."""

    def filter_row_key(self, row: bytes) -> bool:
        """Return whether to leave out the row without looking at its versions."""
        return self.filter_all_remaining()

    def filter_cell(self, version: CellVersion) -> Code:
        """Return what becomes of a version."""
        return Code.INCLUDE

    def transform_cell(self, version: CellVersion) -> CellVersion:
        """Return an included version as it is shown."""
        return version

    def next_cell_hint(self, version: CellVersion) -> bytes | None:
        """Return from which column of the family to go on after SEEK."""
        return None

    def filter_row_cells(self, found: list[CellVersion]) -> list[CellVersion]:
        """Return which of the row's included versions stay."""
        return found

    def filter_row(self) -> bool:
        """Return whether to leave out the row after all."""
        return False

    def filter_all_remaining(self) -> bool:
        """Return whether nothing that follows can pass."""
        return False

    def is_family_essential(self, family: bytes) -> bool:
        """Return whether the family is needed to decide on a row; the others are read after it."""
        return True


class _KeyOnly(Sieve):
    def __init__(self, length_as_value: bool = False) -> None:
        self._length_as_value = length_as_value

    def filter_row_key(self, row: bytes) -> bool:
        return False

    def transform_cell(self, version: CellVersion) -> CellVersion:
        shown = len(version.value).to_bytes(4) if self._length_as_value else b""
        return version._replace(value=shown)


class _FirstKeyOnly(Sieve):
    def __init__(self) -> None:
        self._found = False

    def reset(self) -> None:
        self._found = False

    def filter_cell(self, version: CellVersion) -> Code:
        found, self._found = self._found, True
        return Code.NEXT_ROW if found else Code.INCLUDE


class Directed(Sieve):
    """One that minds the direction of the scan."""

    reverse = False


class _Prefix(Directed):
    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._passed = False
        self._out = True

    def reset(self) -> None:
        self._out = True

    def filter_row_key(self, row: bytes) -> bool:
        if self._passed or len(row) < len(self._prefix):
            return True
        start = row[: len(self._prefix)]
        if start < self._prefix if self.reverse else start > self._prefix:
            self._passed = True
        self._out = start != self._prefix
        return self._out

    def filter_cell(self, version: CellVersion) -> Code:
        return Code.NEXT_ROW if self._out else Code.INCLUDE

    def filter_row(self) -> bool:
        return self._out

    def filter_all_remaining(self) -> bool:
        return self._passed


class _ColumnPrefix(Sieve):
    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix

    def filter_cell(self, version: CellVersion) -> Code:
        if version.column.startswith(self._prefix):
            return Code.INCLUDE
        return Code.SEEK if version.column < self._prefix else Code.NEXT_ROW

    def next_cell_hint(self, version: CellVersion) -> bytes:
        return self._prefix


class _MultipleColumnPrefix(Sieve):
    """Only the greatest prefix that is not above the column is looked at."""

    def __init__(self, *prefixes: bytes) -> None:
        self._prefixes = sorted(prefixes)
        if len(set(prefixes)) < len(prefixes):
            raise Refused("illegal argument", "prefixes must be distinct", prefixes=prefixes)
        self._hint: bytes | None = None

    def filter_cell(self, version: CellVersion) -> Code:
        index = bisect_right(self._prefixes, version.column)
        if not self._prefixes or (index and version.column.startswith(self._prefixes[index - 1])):
            return Code.INCLUDE
        if index == len(self._prefixes):
            return Code.NEXT_ROW
        self._hint = self._prefixes[index]
        return Code.SEEK

    def next_cell_hint(self, version: CellVersion) -> bytes | None:
        return self._hint


class _ColumnRange(Sieve):
    """An empty end is open."""

    def __init__(self, low: bytes, low_too: bool, high: bytes, high_too: bool) -> None:
        self._low, self._low_too = low, low_too or not low
        self._high, self._high_too = high, high_too

    def filter_cell(self, version: CellVersion) -> Code:
        column = version.column
        if column < self._low:
            return Code.SEEK
        if column == self._low and not self._low_too:
            return Code.NEXT_COLUMN
        if not self._high or column < self._high or (column == self._high and self._high_too):
            return Code.INCLUDE
        return Code.NEXT_ROW

    def next_cell_hint(self, version: CellVersion) -> bytes:
        return self._low


class _ColumnCountGet(Sieve):
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0

    def reset(self) -> None:
        self._count = 0

    def filter_cell(self, version: CellVersion) -> Code:
        self._count += 1
        return Code.NEXT_COLUMN if self.filter_all_remaining() else Code.INCLUDE_NEXT_COLUMN

    def filter_all_remaining(self) -> bool:
        return self._count > self._limit


class _ColumnPagination(Sieve):
    def __init__(self, limit: int, offset: int) -> None:
        self._offset = offset
        self._end = offset + limit
        self._count = 0

    def reset(self) -> None:
        self._count = 0

    def filter_cell(self, version: CellVersion) -> Code:
        if self._count >= self._end:
            return Code.NEXT_ROW
        self._count += 1
        return Code.NEXT_COLUMN if self._count <= self._offset else Code.INCLUDE_NEXT_COLUMN


class _Page(Sieve):
    has_filter_row = True

    def __init__(self, size: int) -> None:
        self._size = size
        self._accepted = 0

    def filter_row_key(self, row: bytes) -> bool:
        return False

    def filter_row(self) -> bool:
        self._accepted += 1
        return self._accepted > self._size

    def filter_all_remaining(self) -> bool:
        return self._accepted >= self._size


class _InclusiveStop(Directed):
    def __init__(self, stop: bytes) -> None:
        self._stop = stop
        self._done = False

    def filter_row_key(self, row: bytes) -> bool:
        if not self._done:
            self._done = row < self._stop if self.reverse else row > self._stop
        return self._done

    def filter_cell(self, version: CellVersion) -> Code:
        return Code.NEXT_ROW if self._done else Code.INCLUDE

    def filter_all_remaining(self) -> bool:
        return self._done


class _Timestamps(Sieve):
    def __init__(self, *timestamps: int) -> None:
        self._timestamps = frozenset(timestamps)
        self._least = min(timestamps, default=FOREVER)

    def filter_cell(self, version: CellVersion) -> Code:
        if version.timestamp in self._timestamps:
            return Code.INCLUDE
        return Code.NEXT_COLUMN if version.timestamp < self._least else Code.SKIP


SIEVES: dict[str, Callable[..., Sieve]] = {
    "KeyOnlyFilter": _KeyOnly,
    "FirstKeyOnlyFilter": _FirstKeyOnly,
    "PrefixFilter": _Prefix,
    "ColumnPrefixFilter": _ColumnPrefix,
    "MultipleColumnPrefixFilter": _MultipleColumnPrefix,
    "ColumnCountGetFilter": _ColumnCountGet,
    "PageFilter": _Page,
    "ColumnPaginationFilter": _ColumnPagination,
    "InclusiveStopFilter": _InclusiveStop,
    "TimestampsFilter": _Timestamps,
    "ColumnRangeFilter": _ColumnRange,
}
