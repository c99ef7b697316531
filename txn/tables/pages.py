"""Pages of a scan: some rows, read in one local transaction, and where the next page begins.

A scan that needs few cells of each row leaps from row to row; another one reads all cells. A page
is bounded by the cells it reads, not only by the rows it finds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from txn.model import Key, Row, RowExclusion, new_tuple
from txn.tables import catalog
from txn.tables.catalog import ROW_END, ROW_PASSED, FamilyLayout, StoredCells, split_row, walk_cells
from txn.tables.cells import newest
from txn.tables.kv.ordered import Reader

PAGE_ROWS = 500
PAGE_CELLS = 20_000
PAGE_BYTES = 4 * 1024 * 1024
LEAP_CELLS = 10  # leaping to a row costs as much as reading so many cells
LEAPS = 2  # up to so many cells of a row are found faster by seeking each than by reading all
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
    """Rows, and the bound, without the table's prefix, where the next begins; None at the end."""

    rows: list[Row]
    resume: bytes | None


def read_page(
    reader: Reader, layouts: Layouts, wanted: RowChoice, limits: tuple[bytes, bytes], now: int
) -> ScanPage:
    """Read the first rows of a range of keys. The named families must have layouts."""
    table, leaps = wanted.table, wanted.leaps
    walk = _leap(reader, layouts, wanted, limits, now) if leaps else _step(reader, wanted, limits)
    rows: list[Row] = []
    looked = size = 0
    for name, stored in walk:
        row = Row(catalog.plain_row(name), {})
        looked += LEAP_CELLS if leaps else 0
        for family, column, state in stored:
            looked += 1
            layout = layouts.get((table, family))
            if layout is None or not state:
                continue  # masks, a dropped family, or an unwanted one
            cell = newest(state, layout.find_oldest(now), now)
            if cell is not None:
                row.cells[new_tuple(Key, (row.row, family, column, table))] = cell
                size += len(cell.value)
        if row.cells:
            rows.append(row)
        if len(rows) >= PAGE_ROWS or looked >= PAGE_CELLS or size >= PAGE_BYTES:
            return ScanPage(rows, name if wanted.reverse else name + ROW_PASSED)
    return ScanPage(rows, None)


def _step(
    reader: Reader, wanted: RowChoice, limits: tuple[bytes, bytes]
) -> Iterator[tuple[bytes, StoredCells]]:
    """Read through all cells, without the states of unwanted ones."""
    if wanted.columns is None:
        return walk_cells(reader.items(*limits))
    tails = {family + b"\0" + column for family, column in wanted.columns}
    return walk_cells(
        (key, (reader.get(key) or b"") if key[split_row(key) + 2 :] in tails else b"")
        for key in reader.keys(*limits)
    )


def _leap(
    reader: Reader, layouts: Layouts, wanted: RowChoice, limits: tuple[bytes, bytes], now: int
) -> Iterator[tuple[bytes, StoredCells]]:
    """Leap from row to row: read few cells of each, or all cells of few; none of excluded rows."""
    table, columns, exclude, reverse = wanted
    named = [(*pair, layouts[table, pair[0]].infix + pair[1]) for pair in sorted(columns or ())]
    family, column, out = exclude or RowExclusion(b"", b"", frozenset())

    def is_excluded(stem: bytes) -> bool:
        layout = layouts[table, family]
        state = reader.get(stem + layout.infix + column)
        judged = newest(state, layout.find_oldest(now), now) if state else None
        return judged is not None and judged.value in out

    for stem in catalog.walk_rows(reader, *limits, reverse=reverse):
        if out and is_excluded(stem):
            yield stem[4:], ()
        elif columns is None:
            yield from walk_cells(reader.items(stem + ROW_END, stem + ROW_PASSED))
        else:
            yield stem[4:], [(f, c, reader.get(stem + tail) or b"") for f, c, tail in named]
