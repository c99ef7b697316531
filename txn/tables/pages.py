"""Pages of a scan: some rows, read in one local transaction, and where the next page begins.

A scan that needs few cells of each row leaps from row to row; another one reads all cells. A page
is bounded by the cells it reads, not only by the rows it finds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from txn.model import Cell, Key, Row, RowExclusion, new_tuple
from txn.tables import catalog
from txn.tables.catalog import ROW_END, ROW_PASSED, FamilyLayout, split_row, walk_rows
from txn.tables.cells import newest
from txn.tables.kv.ordered import Reader

PAGE_ROWS = 500
PAGE_CELLS = 20_000
PAGE_LEAPS = 2_000
PAGE_BYTES = 4 * 1024 * 1024
LEAPS = 2
"""Up to so many cells of a row are found faster by seeking each than by reading all."""

NOTHING = RowExclusion(b"", b"", frozenset())

Layouts = Mapping[tuple[bytes | None, bytes], FamilyLayout]


class RowChoice(NamedTuple):
    """The columns that a scan wants of each row, None for all. reverse: the last row first."""

    table: bytes
    columns: Collection[tuple[bytes, bytes]] | None
    exclude: RowExclusion | None
    reverse: bool = False

    @property
    def families(self) -> set[bytes]:
        named = {family for family, _ in self.columns or ()}
        return named | {self.exclude.family} if self.exclude else named

    @property
    def leaps(self) -> bool:
        """Return True if the scan leaps from row to row, as a reverse scan must."""
        few = self.columns is not None and len(self.columns) <= LEAPS
        return few or self.exclude is not None or self.reverse


class ScanPage(NamedTuple):
    """Rows, and the escaped row where the next page begins (in reverse: ends); None at the end."""

    rows: list[Row]
    resume: bytes | None


def read_page(
    reader: Reader, layouts: Layouts, wanted: RowChoice, limits: tuple[bytes, bytes], now: int
) -> ScanPage:
    """Read the first rows of a range of keys. The named families must have layouts."""
    if wanted.leaps:
        return _Leaping(reader, layouts, wanted, now).read(*limits)
    return _step(reader, layouts, wanted, limits, now)


def _step(
    reader: Reader, layouts: Layouts, wanted: RowChoice, limits: tuple[bytes, bytes], now: int
) -> ScanPage:
    """Read through all cells; skip the states of unwanted ones."""
    rows: list[Row] = []
    current = None
    found: dict[Key, Cell] = {}
    size = 0
    for looked, (name, state) in enumerate(_list_states(reader, wanted, limits)):
        end = split_row(name)
        if name[4:end] != current:
            if len(rows) >= PAGE_ROWS or looked >= PAGE_CELLS or size >= PAGE_BYTES:
                return ScanPage(rows, name[4:end])
            current, row, found = name[4:end], catalog.plain_row(name[4:end]), {}
        family, column = catalog.family_and_column(name, end)
        layout = layouts.get((wanted.table, family))
        if layout is None or not state:
            continue  # masks, a dropped family, or an unwanted one
        cell = newest(state, layout.find_oldest(now), now)
        if cell is not None:
            if not found:
                rows.append(Row(row, found))
            found[new_tuple(Key, (row, family, column, wanted.table))] = cell
            size += len(cell.value)
    return ScanPage(rows, None)


def _list_states(
    reader: Reader, wanted: RowChoice, limits: tuple[bytes, bytes]
) -> Iterator[tuple[bytes, bytes]]:
    columns = wanted.columns
    if columns is None:
        yield from reader.items(*limits)
        return
    for name in reader.keys(*limits):
        is_wanted = catalog.family_and_column(name, split_row(name)) in columns
        yield name, (reader.get(name) or b"") if is_wanted else b""


class _Leaping:
    """A page that needs few cells of each row, or all cells of few rows."""

    def __init__(self, reader: Reader, layouts: Layouts, wanted: RowChoice, now: int) -> None:
        self._reader, self._table = reader, wanted.table
        self._layouts, self._now = layouts, now
        self._exclude, self._reverse = wanted.exclude or NOTHING, wanted.reverse
        self._named: list[tuple[bytes, bytes, bytes, int]] | None = None
        if wanted.columns is not None:
            self._named = [self._find_named(*pair) for pair in sorted(wanted.columns)]

    def _find_named(self, family: bytes, column: bytes) -> tuple[bytes, bytes, bytes, int]:
        """Return a column, the end of its keys, and when its cells have expired."""
        layout = self._layouts[self._table, family]
        return family, column, layout.infix + column, layout.find_oldest(self._now)

    def read(self, low: bytes, high: bytes) -> ScanPage:
        get, reverse = self._reader.get, self._reverse
        rows: list[Row] = []
        size = 0
        family, column, out = self._exclude
        tail, oldest = self._find_named(family, column)[2:] if out else (b"", 0)
        for looked, stem in enumerate(walk_rows(self._reader, low, high, reverse=reverse)):
            if len(rows) >= PAGE_ROWS or looked >= PAGE_LEAPS or size >= PAGE_BYTES:
                return ScanPage(rows, (stem + ROW_PASSED if reverse else stem)[4:])
            if out and (state := get(stem + tail)):
                judged = newest(state, oldest, self._now)
                if judged is not None and judged.value in out:
                    continue
            row = Row(catalog.plain_row(stem[4:]), {})
            size += self._fill(row, stem) if self._named is None else self._fill_named(row, stem)
            if row.cells:
                rows.append(row)
        return ScanPage(rows, None)

    def _fill_named(self, row: Row, stem: bytes) -> int:
        size, get = 0, self._reader.get
        for family, column, tail, oldest in self._named or ():
            state = get(stem + tail)
            cell = newest(state, oldest, self._now) if state else None
            if cell is not None:
                row.cells[new_tuple(Key, (row.row, family, column, self._table))] = cell
                size += len(cell.value)
        return size

    def _fill(self, row: Row, stem: bytes) -> int:
        size = 0
        for name, state in self._reader.items(stem + ROW_END, stem + ROW_PASSED):
            family, column = catalog.family_and_column(name, len(stem))
            layout = self._layouts.get((self._table, family))
            if layout is None:
                continue  # masks, or a dropped family
            cell = newest(state, layout.find_oldest(self._now), self._now)
            if cell is not None:
                row.cells[new_tuple(Key, (row.row, family, column, self._table))] = cell
                size += len(cell.value)
        return size
