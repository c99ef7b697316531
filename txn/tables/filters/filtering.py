"""HBase's filters together: AND, OR, SKIP and WHILE at work on a scan.

In a list each filter steps on its own, and what they say is merged: AND takes the furthest step, OR
the nearest. A filter of an OR that wanted to be further on is not asked again before that.
"""

from __future__ import annotations

from typing import assert_never

from txn.tables.cells import CellVersion
from txn.tables.filters.comparing import COMPARING
from txn.tables.filters.parsing import All, AnyOf, Filter, Simple, Skip, While
from txn.tables.filters.sieves import SIEVES, Code, Directed, Sieve


def sieve(filter_: Filter, *, reverse: bool = False) -> Sieve:
    """Return the filter at work on a scan that has not begun."""
    match filter_:
        case Simple(name, arguments):
            found = (SIEVES | COMPARING)[name](*arguments)
            if reverse and isinstance(found, Directed):
                found.reverse = True
            return found
        case All(filters):
            return _All([sieve(each, reverse=reverse) for each in filters])
        case AnyOf(filters):
            return _AnyOf([sieve(each, reverse=reverse) for each in filters], reverse)
        case Skip(inner):
            return _Skip(sieve(inner, reverse=reverse))
        case While(inner):
            return _While(sieve(inner, reverse=reverse))
        case _:
            assert_never(filter_)


# From the nearest step to the furthest.
_STEPS = (
    Code.INCLUDE,
    Code.SKIP,
    Code.INCLUDE_NEXT_COLUMN,
    Code.NEXT_COLUMN,
    Code.INCLUDE_NEXT_ROW,
    Code.NEXT_ROW,
    Code.SEEK,
)
_STEP = {code: number // 2 for number, code in enumerate(_STEPS)}
_INCLUDE_AT = {0: Code.INCLUDE, 1: Code.INCLUDE_NEXT_COLUMN, 2: Code.INCLUDE_NEXT_ROW}
_LEAVE_AT = {0: Code.SKIP, 1: Code.NEXT_COLUMN, 2: Code.NEXT_ROW, 3: Code.SEEK}


def _both(one: Code, other: Code) -> Code:
    """AND: include what both include, and take the further step."""
    step = max(_STEP[one], _STEP[other])
    include = one.includes and other.includes
    return _INCLUDE_AT[step] if include else _LEAVE_AT[step]


def _either(one: Code | None, other: Code) -> Code:
    """OR: include what either includes, and take the nearer step; to nobody knows where, none."""
    if one is None:
        return other
    step = min(_STEP[one], _STEP[other])
    if Code.SEEK in (one, other) and one is not other:
        step = 0
    include = one.includes or other.includes
    return _INCLUDE_AT[step] if include else _LEAVE_AT[step]


class _List(Sieve):
    def __init__(self, members: list[Sieve]) -> None:
        self._members = members
        self.has_filter_row = any(member.has_filter_row for member in members)

    def reset(self) -> None:
        for member in self._members:
            member.reset()

    def is_family_essential(self, family: bytes) -> bool:
        return any(member.is_family_essential(family) for member in self._members)

    def filter_row_cells(self, found: list[CellVersion]) -> list[CellVersion]:
        for member in self._members:
            found = member.filter_row_cells(found)
        return found


class _All(_List):
    def __init__(self, members: list[Sieve]) -> None:
        super().__init__(members)
        self._seeking: Sieve | None = None

    def filter_row_key(self, row: bytes) -> bool:
        # Each is asked, since some remember the row.
        out = [
            member.filter_all_remaining() or member.filter_row_key(row) for member in self._members
        ]
        return any(out)

    def filter_cell(self, version: CellVersion) -> Code:
        found = Code.INCLUDE
        self._seeking = None
        for member in self._members:
            if member.filter_all_remaining():
                return Code.NEXT_ROW
            code = member.filter_cell(version)
            if code is Code.SEEK:
                self._seeking = member
            found = _both(found, code)
            if not found.includes:
                break  # those behind count only what those before let pass
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

    def filter_row(self) -> bool:
        return any(member.filter_row() for member in self._members)

    def filter_all_remaining(self) -> bool:
        return any(member.filter_all_remaining() for member in self._members)


class _AnyOf(_List):
    def __init__(self, members: list[Sieve], reverse: bool) -> None:
        super().__init__(members)
        self._reverse = reverse
        self._last: list[tuple[CellVersion, Code] | None] = [None] * len(members)
        self._included = [False] * len(members)

    def reset(self) -> None:
        super().reset()
        self._last = [None] * len(self._members)
        self._included = [False] * len(self._members)

    def filter_row_key(self, row: bytes) -> bool:
        # Each is asked, since some remember the row.
        out = [
            member.filter_all_remaining() or member.filter_row_key(row) for member in self._members
        ]
        return all(out)

    def filter_cell(self, version: CellVersion) -> Code:
        found: Code | None = None
        for number, member in enumerate(self._members):
            self._included[number] = False
            if member.filter_all_remaining():
                continue
            code = self._still(number, version) or member.filter_cell(version)
            self._last[number] = (version, code)
            self._included[number] = code.includes
            found = _either(found, code)
        return found or Code.SKIP

    def _still(self, number: int, version: CellVersion) -> Code | None:
        """Return what a member says of all before where it wanted to be; None: ask it."""
        last = self._last[number]
        if last is None:
            return None
        before, code = last
        if code is Code.SEEK:
            hint = self._members[number].next_cell_hint(before)
            if hint is None:
                return None
            there, here = (before.family, hint), version[:2]
            # In a reverse scan HBase compares the wrong way round: what it sought, it never meets.
            waiting = here >= there if self._reverse else here < there
            return Code.SEEK if waiting else None
        if code.next_column and before[:2] == version[:2]:
            return Code.NEXT_COLUMN
        if code.next_row and before.family == version.family:
            return Code.NEXT_ROW
        return None

    def transform_cell(self, version: CellVersion) -> CellVersion:
        for member, included in zip(self._members, self._included, strict=True):
            if included:
                version = member.transform_cell(version)
        return version

    def next_cell_hint(self, version: CellVersion) -> bytes | None:
        hints = []
        for member in self._members:
            if not member.filter_all_remaining():
                hint = member.next_cell_hint(version)
                if hint is None:
                    return None
                hints.append(hint)
        return min(hints, default=None)

    def filter_row(self) -> bool:
        return all(member.filter_row() for member in self._members)

    def filter_all_remaining(self) -> bool:
        return all(member.filter_all_remaining() for member in self._members)


class _Around(Sieve):
    """Stands around one filter, and shows what that shows."""

    has_filter_row = True

    def __init__(self, inner: Sieve) -> None:
        self._inner = inner

    def transform_cell(self, version: CellVersion) -> CellVersion:
        return self._inner.transform_cell(version)

    def is_family_essential(self, family: bytes) -> bool:
        return self._inner.is_family_essential(family)


class _Skip(_Around):
    """Its filter is not asked about row keys, so a filter of rows leaves out every row in it."""

    def __init__(self, inner: Sieve) -> None:
        super().__init__(inner)
        self._out = False

    def reset(self) -> None:
        self._inner.reset()
        self._out = False

    def filter_row_key(self, row: bytes) -> bool:
        return False

    def filter_cell(self, version: CellVersion) -> Code:
        code = self._inner.filter_cell(version)
        self._out = self._out or code is not Code.INCLUDE
        return code

    def filter_row(self) -> bool:
        return self._out


class _While(_Around):
    def __init__(self, inner: Sieve) -> None:
        super().__init__(inner)
        self._done = False

    def reset(self) -> None:
        self._inner.reset()

    def filter_row_key(self, row: bytes) -> bool:
        if self.filter_all_remaining():
            return True
        out = self._inner.filter_row_key(row)
        self._done = self._done or out
        return out

    def filter_cell(self, version: CellVersion) -> Code:
        code = self._inner.filter_cell(version)
        self._done = self._done or code is not Code.INCLUDE
        return code

    def filter_row(self) -> bool:
        out = self._inner.filter_row()
        self._done = self._done or out
        return out

    def filter_all_remaining(self) -> bool:
        return self._done or self._inner.filter_all_remaining()
