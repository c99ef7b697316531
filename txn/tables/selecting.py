"""Selections: from the stored versions of a row to a result, as in HBase.

Families come in order, in each of them the columns, and versions newest first. Deleted, expired and
unwanted versions are left out first. Then the filter sees all versions that the family keeps. Only
those that pass count for the selection's limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from txn.model import Cell, new_tuple
from txn.tables import cells
from txn.tables.catalog import FamilyLayout, TableCatalog, family_keys, walk_cells
from txn.tables.cells import CellVersion
from txn.tables.filters.standard import NEXT_COLUMN, NEXT_ROW, SEEK_TO_HINT, Filter
from txn.tables.kv.ordered import Reader
from txn.tables.operations import MAX_TIMESTAMP, Selection


class FamilyRead(NamedTuple):
    """The part of a selection in one family: its columns in order, or None for all."""

    family: bytes
    layout: FamilyLayout
    columns: tuple[bytes, ...] | None
    oldest_ms: int
    now_ms: int
    since: int
    until: int

    def has_row(self, reader: Reader, row: bytes) -> bool:
        return next(family_keys(reader, self.layout, row), None) is not None

    def read_columns(
        self, reader: Reader, row: bytes, limit: int
    ) -> Iterator[tuple[bytes, Sequence[Cell]]]:
        """Yield the columns of an escaped row, with up to `limit` versions of each."""
        layout = self.layout
        start = layout.prefix + row + layout.infix
        # HBase returns one expired version more of a named column than MIN_VERSIONS promises.
        named_kept = self.columns is not None and layout.min_versions > 0
        names = [start + column for column in self.columns or ()]
        if self.columns is None:
            names = list(family_keys(reader, layout, row))
        read = (self._replace(oldest_ms=0) if named_kept else self).make_cell_reader(limit)
        for name in names:
            if state := reader.get(name):
                found = read(state)
                if named_kept:
                    kept = sum(cell.timestamp >= self.oldest_ms for cell in found)
                    found = found[: max(kept + 1, layout.min_versions)]
                if found:
                    yield name[len(start) :], found

    def make_cell_reader(self, limit: int) -> Callable[[bytes], Sequence[Cell]]:
        """Return a function that finds up to `limit` visible versions of a column."""
        _, layout, _, oldest_ms, now_ms, since, until = self
        limit, at_least = min(limit, layout.versions), layout.min_versions
        if limit == 1 and (at_least, since, until) == (0, 0, MAX_TIMESTAMP):

            def read_newest(state: bytes) -> Sequence[Cell]:
                cell = cells.newest(state, oldest_ms, now_ms)
                return () if cell is None else (cell,)

            return read_newest
        return lambda state: cells.versions(
            state, oldest_ms, now_ms, limit=limit, since=since, until=until, at_least=at_least
        )


class ReadPlan(NamedTuple):
    """A selection on the existing families, in a local transaction."""

    reader: Reader
    families: tuple[FamilyRead, ...]
    selection: Selection

    def read_row(self, row: bytes) -> list[CellVersion]:
        """Return the selected versions of an escaped row, without the filter."""
        found: list[CellVersion] = []
        reader, families, selection = self
        wanted = self.store_slice
        for family in families:
            of_family = [
                CellVersion(family.family, column, timestamp, value)
                for column, versions in family.read_columns(reader, row, selection.versions)
                for value, timestamp in versions
            ]
            found += of_family[wanted]
        return found

    def read_whole_rows(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, list[CellVersion]]]:
        """Yield each escaped row of a range of keys with the versions that a selection of all
        columns takes without a filter. One walk is much faster than a search for each row."""
        limit = self.selection.versions
        readers = {each.family: each.make_cell_reader(limit) for each in self.families}
        for row, stored in walk_cells(self.reader.items(low, high)):
            found = [
                new_tuple(CellVersion, (family, column, at, value))
                for family, column, state in stored
                if family in readers  # otherwise masks, or a dropped family
                for value, at in readers[family](state)
            ]
            yield row, found

    @property
    def store_slice(self) -> slice:
        """The wanted part of a family's versions; to HBase a limit of 0 is 1."""
        start, limit = self.selection.store_offset, self.selection.store_limit
        return slice(start, None if limit is None else start + max(limit, 1))


def make_plan(
    reader: Reader, known: TableCatalog, table: bytes, selection: Selection, now_ms: int
) -> ReadPlan:
    """Return the plan of a selection; raise Refused if a family is missing."""
    wanted: dict[bytes, set[bytes] | None] = {}
    for family, column in selection.columns:
        wanted[family] = None if column is None else (wanted.get(family) or set()) | {column}
    for family in wanted:
        known.layout(table, family)
    times = {family: (since, until) for family, since, until in selection.family_times}
    families = []
    for family in sorted(wanted or known.table(table).families):
        layout = known.layouts[table, family]
        columns = wanted.get(family)
        names = tuple(sorted(columns)) if columns else None
        since, until = times.get(family, (selection.since, selection.until))
        oldest_ms = layout.find_expiry(now_ms)
        families.append(FamilyRead(family, layout, names, oldest_ms, now_ms, since, until))
    return ReadPlan(reader, tuple(families), selection)


class FilteredScan:
    """The state of a scan's filter across rows.

    A filter that wants nothing more ends the scan of that family. As in HBase, the later families
    still finish the row, and may see the filter change its answer in the next row.
    """

    def __init__(self, filter_: Filter) -> None:
        self._closed: set[bytes] = set()
        self.filter = filter_

    def read_row(self, plan: ReadPlan, row: bytes, name: bytes) -> list[CellVersion]:
        """Return the versions that pass of a row, given escaped and plain."""
        families = [each for each in plan.families if each.family not in self._closed]
        first = [each for each in families if self.filter.is_family_essential(each.family)]
        if not any(each.has_row(plan.reader, row) for each in first):
            return []
        found: list[CellVersion] = []
        if not self.filter.filter_row_key(name):
            for family in first:
                found += self._read_family(plan, family, row)
            passed = self._filter_row(found)
            found = passed or []
            if passed is not None and first != families:
                for family in families:
                    if family not in first:
                        found += self._read_family(plan, family, row)
                found.sort(key=lambda version: version.family)
        self.filter.reset()
        return found

    def goes_back(self, plan: ReadPlan) -> bool:
        """Return True if HBase can reverse the scan: the filter decides on whole rows."""
        return all(self.filter.is_family_essential(each.family) for each in plan.families)

    def _read_family(self, plan: ReadPlan, family: FamilyRead, row: bytes) -> list[CellVersion]:
        wanted = plan.store_slice
        found = list(islice(self._filter(plan, family, row), wanted.start, wanted.stop))
        if self.filter.filter_all_remaining() and family.has_row(plan.reader, row):
            self._closed.add(family.family)
        return found

    def _filter(self, plan: ReadPlan, family: FamilyRead, row: bytes) -> Iterator[CellVersion]:
        hint = b""
        kept = family.layout.versions
        wanted = min(plan.selection.versions, kept)
        for column, found in family.read_columns(plan.reader, row, kept):
            if column < hint:
                continue
            included = 0
            for value, time in found:
                version = CellVersion(family.family, column, time, value)
                if self.filter.filter_all_remaining():
                    return
                code = self.filter.filter_cell(version)
                included += code.includes
                if code.includes and included > wanted:
                    code = NEXT_ROW if code.step == NEXT_ROW.step else NEXT_COLUMN
                if code.includes:
                    yield self.filter.transform_cell(version)
                if code.step == NEXT_ROW.step:
                    return
                if code == SEEK_TO_HINT:
                    hint = self.filter.next_cell_hint(version) or b""
                if (code.step == NEXT_COLUMN.step and column) or hint > column:
                    break  # to HBase an empty column name has no next column

    def _filter_row(self, found: list[CellVersion]) -> list[CellVersion] | None:
        """Return the versions of a row that stay, or None if the filter leaves out the row."""
        if not found:
            return None
        found = self.filter.filter_row_cells(found)
        return None if found and self.filter.filter_row() else found
