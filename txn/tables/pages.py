"""Pages of a scan: some rows, read in one local transaction, and where the next ones begin.

Where few cells of each row are looked at, the scan leaps from row to row; else it steps through all
of them. A page is bounded by what was looked at, not only by what was found.
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
"""For so many cells of a row, and no more, looking for each is quicker than to go through all."""

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
        """The families that are named."""
        named = {family for family, _ in self.columns or ()}
        return named | {self.exclude.family} if self.exclude else named

    @property
    def leaps(self) -> bool:
        """True if the scan leaps from row to row, as a reverse scan has to."""
        few = self.columns is not None and len(self.columns) <= LEAPS
        return few or self.exclude is not None or self.reverse


class ScanPage(NamedTuple):
    """Rows, and the row, escaped, at which the next ones begin or, in reverse, before which they
    end; None: there are no more."""

    rows: list[Row]
    resume: bytes | None


def find_oldest(layout: FamilyLayout, now: int) -> int:
    """Return the timestamp below which the newest version has expired."""
    return 0 if layout.ttl_ms is None or layout.min_versions else now - layout.ttl_ms


def read_page(
    reader: Reader, layouts: Layouts, wanted: RowChoice, limits: tuple[bytes, bytes], now: int
) -> ScanPage:
    """Read the first rows of a range of keys. The families that are named must have layouts."""
    if wanted.leaps:
        return _Leaping(reader, layouts, wanted, now).read(*limits)
    return _step(reader, layouts, wanted, limits, now)


def _step(
    reader: Reader, layouts: Layouts, wanted: RowChoice, limits: tuple[bytes, bytes], now: int
) -> ScanPage:
    """Go through all cells; the states of those that are not wanted are not read."""
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
            continue  # a row's masks, of a family that was dropped, or not wanted
        cell = newest(state, find_oldest(layout, now), now)
        if cell is not None:
            if not found:
                rows.append(Row(row, found))
            found[new_tuple(Key, (row, family, column, wanted.table))] = cell
            size += len(cell.value)
    return ScanPage(rows, None)


def _list_states(
    reader: Reader, wanted: RowChoice, limits: tuple[bytes, bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys of the cells with their states, empty where they are not wanted."""
    columns = wanted.columns
    if columns is None:
        yield from reader.items(*limits)
        return
    for name in reader.keys(*limits):
        is_wanted = catalog.family_and_column(name, split_row(name)) in columns
        yield name, (reader.get(name) or b"") if is_wanted else b""


class _Leaping:
    """A page that looks at few cells of each row, or at the others of few rows only."""

    def __init__(self, reader: Reader, layouts: Layouts, wanted: RowChoice, now: int) -> None:
        self._reader, self._table = reader, wanted.table
        self._layouts, self._now = layouts, now
        self._exclude, self._reverse = wanted.exclude or NOTHING, wanted.reverse
        self._named: list[tuple[bytes, bytes, bytes, int]] | None = None
        if wanted.columns is not None:
            self._named = [self._find_named(*pair) for pair in sorted(wanted.columns)]

    def _find_named(self, family: bytes, column: bytes) -> tuple[bytes, bytes, bytes, int]:
        """Return a column with what ends its key in each row, and when its cells have expired."""
        layout = self._layouts[self._table, family]
        return family, column, layout.infix + column, find_oldest(layout, self._now)

    def read(self, low: bytes, high: bytes) -> ScanPage:
        """Read the rows between two keys, as many as make a page."""
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
        """Read the cells of a row that are named, and return their size."""
        size, get = 0, self._reader.get
        for family, column, tail, oldest in self._named or ():
            state = get(stem + tail)
            cell = newest(state, oldest, self._now) if state else None
            if cell is not None:
                row.cells[new_tuple(Key, (row.row, family, column, self._table))] = cell
                size += len(cell.value)
        return size

    def _fill(self, row: Row, stem: bytes) -> int:
        """Read all cells of a row, and return their size."""
        size = 0
        for name, state in self._reader.items(stem + ROW_END, stem + ROW_PASSED):
            family, column = catalog.family_and_column(name, len(stem))
            layout = self._layouts.get((self._table, family))
            if layout is None:
                continue  # a row's masks, or of a family that was dropped
            cell = newest(state, find_oldest(layout, self._now), self._now)
            if cell is not None:
                row.cells[new_tuple(Key, (row.row, family, column, self._table))] = cell
                size += len(cell.value)
        return size
