"""HBase's filters that compare a part of each cell with something, and its comparators."""

from __future__ import annotations

from collections.abc import Callable

from txn.tables.cells import CellVersion
from txn.tables.filters.parsing import Comparator
from txn.tables.filters.sieves import Code, Sieve


def _test(operator: str, comparator: Comparator) -> Callable[[bytes], bool]:
    """Return what tells whether bytes fail the comparison."""
    value = comparator.value
    if comparator.kind == "regexstring":
        from txn.tables.filters.patterns import searcher  # noqa: PLC0415  (its driver is an extra)

        return _negate(operator, searcher(value))
    if comparator.kind == "substring":
        part = _text(value).lower()
        return _negate(operator, lambda found: part in _text(found).lower())
    size = len(value) if comparator.kind == "binaryprefix" else None
    match operator:
        case "<":
            return lambda found: not found[:size] < value
        case "<=":
            return lambda found: not found[:size] <= value
        case "=":
            return lambda found: found[:size] != value
        case "!=":
            return lambda found: found[:size] == value
        case ">=":
            return lambda found: not found[:size] >= value
        case _:
            return lambda found: not found[:size] > value


def _negate(operator: str, holds: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
    return holds if operator == "!=" else lambda found: not holds(found)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


class _Row(Sieve):
    def __init__(self, operator: str, comparator: Comparator) -> None:
        self._fails = _test(operator, comparator)
        self._out = False

    def reset(self) -> None:
        self._out = False

    def filter_row_key(self, row: bytes) -> bool:
        self._out = self._fails(row)
        return self._out

    def filter_cell(self, version: CellVersion) -> Code:
        return Code.NEXT_ROW if self._out else Code.INCLUDE

    def filter_row(self) -> bool:
        return self._out


class _Family(Sieve):
    def __init__(self, operator: str, comparator: Comparator) -> None:
        self._fails = _test(operator, comparator)

    def filter_cell(self, version: CellVersion) -> Code:
        return Code.NEXT_ROW if self._fails(version.family) else Code.INCLUDE


class _Qualifier(Sieve):
    def __init__(self, operator: str, comparator: Comparator) -> None:
        self._fails = _test(operator, comparator)

    def filter_cell(self, version: CellVersion) -> Code:
        return Code.SKIP if self._fails(version.column) else Code.INCLUDE


class _Value(Sieve):
    def __init__(self, operator: str, comparator: Comparator) -> None:
        self._fails = _test(operator, comparator)

    def filter_cell(self, version: CellVersion) -> Code:
        return Code.SKIP if self._fails(version.value) else Code.INCLUDE


class _SingleColumnValue(Sieve):
    has_filter_row = True

    def __init__(
        self, family: bytes, column: bytes, operator: str, comparator: Comparator, *flags: bool
    ) -> None:
        out_if_missing, newest_only = flags or (False, True)
        self._column = (family, column)
        self._fails = _test(operator, comparator)
        self._out_if_missing = out_if_missing
        self._newest_only = newest_only
        self._found = self._matched = False

    def reset(self) -> None:
        self._found = self._matched = False

    def filter_cell(self, version: CellVersion) -> Code:
        if self._matched:
            return Code.INCLUDE
        if self._newest_only and self._found:
            return Code.NEXT_ROW
        if version[:2] != self._column:
            return Code.INCLUDE
        self._found = True
        if self._fails(version.value):
            return Code.NEXT_ROW if self._newest_only else Code.INCLUDE
        self._matched = True
        return Code.INCLUDE

    def filter_row(self) -> bool:
        return not self._matched if self._found else self._out_if_missing

    def is_family_essential(self, family: bytes) -> bool:
        return not self._out_if_missing or family == self._column[0]


class _SingleColumnValueExclude(_SingleColumnValue):
    def filter_row_cells(self, found: list[CellVersion]) -> list[CellVersion]:
        return [version for version in found if version[:2] != self._column]


class _DependentColumn(Sieve):
    has_filter_row = True

    def __init__(
        self,
        family: bytes,
        column: bytes,
        drop: bool = False,
        operator: str = "=",
        comparator: Comparator | None = None,
    ) -> None:
        self._column = (family, column)
        self._drop = drop
        self._fails = None if comparator is None else _test(operator, comparator)
        self._timestamps: set[int] = set()

    def reset(self) -> None:
        self._timestamps.clear()

    def filter_cell(self, version: CellVersion) -> Code:
        if version[:2] != self._column:
            return Code.INCLUDE
        if self._fails is not None and self._fails(version.value):
            return Code.SKIP
        self._timestamps.add(version.timestamp)
        return Code.SKIP if self._drop else Code.INCLUDE

    def filter_row_cells(self, found: list[CellVersion]) -> list[CellVersion]:
        return [version for version in found if version.timestamp in self._timestamps]


class _ColumnValue(Sieve):
    def __init__(self, family: bytes, column: bytes, operator: str, comparator: Comparator) -> None:
        self._column = (family, column)
        self._fails = _test(operator, comparator)
        self._found = False

    def reset(self) -> None:
        self._found = False

    def filter_cell(self, version: CellVersion) -> Code:
        if version[:2] != self._column:
            return Code.NEXT_ROW if self._found else Code.NEXT_COLUMN
        self._found = True
        return Code.SKIP if self._fails(version.value) else Code.INCLUDE

    def is_family_essential(self, family: bytes) -> bool:
        return family == self._column[0]


COMPARING: dict[str, Callable[..., Sieve]] = {
    "RowFilter": _Row,
    "FamilyFilter": _Family,
    "QualifierFilter": _Qualifier,
    "ValueFilter": _Value,
    "SingleColumnValueFilter": _SingleColumnValue,
    "SingleColumnValueExcludeFilter": _SingleColumnValueExclude,
    "DependentColumnFilter": _DependentColumn,
    "ColumnValueFilter": _ColumnValue,
}
