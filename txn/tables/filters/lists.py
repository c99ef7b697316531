"""HBase's lists of filters: AND, OR, SKIP and WHILE in a scan.

Each filter in a list steps on its own, and their answers are merged: AND takes the furthest step,
OR the nearest. OR does not call a filter again before the point that it skipped to.
"""

from __future__ import annotations

from txn.tables.cells import CellVersion
from txn.tables.filters import standard
from txn.tables.filters.parsing import FILTERS
from txn.tables.filters.standard import NEXT_COLUMN, NEXT_ROW, SEEK_TO_HINT, Filter, ReturnCode
from txn.tables.operations import Expression


def make_filter(expression: Expression, *, reverse: bool = False) -> Filter:
    kind = _LISTS.get(expression.name) or FILTERS[expression.name]
    made = kind(
        *(
            make_filter(each, reverse=reverse) if isinstance(each, Expression) else each
            for each in expression.arguments
        )
    )
    made.reverse = reverse
    return made


class _List(Filter):
    _join = staticmethod(any)
    """A list leaves out a row, or ends the scan, if any of its members does; OR if all do."""

    def __init__(self, *members: Filter) -> None:
        self._members = members
        self.has_filter_row = any(member.has_filter_row for member in members)
        self.reset()

    def reset(self) -> None:
        for member in self._members:
            member.reset()

    def is_family_essential(self, family: bytes) -> bool:
        return any(member.is_family_essential(family) for member in self._members)

    def filter_row_key(self, row: bytes) -> bool:
        # Call every member, because some remember the row.
        return self._join(
            [each.filter_all_remaining() or each.filter_row_key(row) for each in self._members]
        )

    def filter_row_cells(self, found: list[CellVersion]) -> list[CellVersion]:
        for member in self._members:
            found = member.filter_row_cells(found)
        return found

    def filter_row(self) -> bool:
        return self._join(member.filter_row() for member in self._members)

    def filter_all_remaining(self) -> bool:
        return self._join(member.filter_all_remaining() for member in self._members)


class _And(_List):
    _seeking: Filter | None = None

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        found = standard.INCLUDE
        self._seeking = None
        for member in self._members:
            if member.filter_all_remaining():
                return NEXT_ROW
            code = member.filter_cell(version)
            if code == SEEK_TO_HINT:
                self._seeking = member
            found = ReturnCode(found.includes and code.includes, max(found.step, code.step))
            if not found.includes:
                break  # later members count only versions that the earlier ones include
        return found

    def transform_cell(self, version: CellVersion) -> CellVersion:
        for member in self._members:
            version = member.transform_cell(version)
        return version

    def next_cell_hint(self, version: CellVersion) -> bytes | None:
        seeking = self._seeking
        if seeking is None or seeking.filter_all_remaining():
            return None
        return seeking.next_cell_hint(version)


class _Or(_List):
    _join = staticmethod(all)

    def reset(self) -> None:
        super().reset()
        self._last: list[tuple[CellVersion, ReturnCode] | None] = [None] * len(self._members)
        self._included = [False] * len(self._members)

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        found: ReturnCode | None = None
        for number, member in enumerate(self._members):
            self._included[number] = False
            if member.filter_all_remaining():
                continue
            code = self._repeat_code(number, version) or member.filter_cell(version)
            self._last[number] = (version, code)
            self._included[number] = code.includes
            found = code if found is None else _merge_codes(found, code)
        return found or standard.SKIP

    def _repeat_code(self, number: int, version: CellVersion) -> ReturnCode | None:
        """Return a member's last answer if it still holds; None: call the member."""
        last = self._last[number]
        if last is None:
            return None
        before, code = last
        if code == SEEK_TO_HINT:
            hint = self._members[number].next_cell_hint(before)
            if hint is None:
                return None
            there, here = (before.family, hint), version[:2]
            # In a reverse scan HBase compares in the wrong direction, so it never reaches the hint.
            waiting = here >= there if self.reverse else here < there
            return SEEK_TO_HINT if waiting else None
        if code.step == NEXT_COLUMN.step and before[:2] == version[:2]:
            return NEXT_COLUMN
        if code.step == NEXT_ROW.step and before.family == version.family:
            return NEXT_ROW
        return None

    def transform_cell(self, version: CellVersion) -> CellVersion:
        for member, included in zip(self._members, self._included, strict=True):
            if included:
                version = member.transform_cell(version)
        return version

    def next_cell_hint(self, version: CellVersion) -> bytes | None:
        active = [member for member in self._members if not member.filter_all_remaining()]
        hints = [hint for each in active if (hint := each.next_cell_hint(version)) is not None]
        return min(hints, default=None) if len(hints) == len(active) else None


def _merge_codes(one: ReturnCode, other: ReturnCode) -> ReturnCode:
    """Include if either includes, and take the nearer step; take none if only one has a hint."""
    is_hint_of_one = SEEK_TO_HINT in (one, other) and one != other
    step = 0 if is_hint_of_one else min(one.step, other.step)
    return ReturnCode(one.includes or other.includes, step)


class _Skip(Filter):
    """It does not pass row keys to its filter, so a filter of rows leaves out every row in it."""

    has_filter_row = True
    _out = False

    def __init__(self, inner: Filter) -> None:
        self._inner = inner

    def reset(self) -> None:
        self._inner.reset()
        self._out = False

    def filter_row_key(self, row: bytes) -> bool:
        return False

    def filter_cell(self, version: CellVersion) -> ReturnCode:
        code = self._inner.filter_cell(version)
        self._out = self._out or code != standard.INCLUDE
        return code

    def transform_cell(self, version: CellVersion) -> CellVersion:
        return self._inner.transform_cell(version)

    def filter_row(self) -> bool:
        return self._out

    def is_family_essential(self, family: bytes) -> bool:
        return self._inner.is_family_essential(family)


class _While(_Skip):
    """`_out`: the scan is over."""

    def reset(self) -> None:
        self._inner.reset()

    def filter_row_key(self, row: bytes) -> bool:
        if self.filter_all_remaining():
            return True
        out = self._inner.filter_row_key(row)
        self._out = self._out or out
        return out

    def filter_row(self) -> bool:
        out = self._inner.filter_row()
        self._out = self._out or out
        return out

    def filter_all_remaining(self) -> bool:
        return self._out or self._inner.filter_all_remaining()


_LISTS: dict[str, type[Filter]] = {"AND": _And, "OR": _Or, "SKIP": _Skip, "WHILE": _While}
