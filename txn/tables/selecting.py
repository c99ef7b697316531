"""What a selection finds in one row: HBase's way from stored versions to a result.

Families come one after the other, and in each of them columns, and versions newest first. Deleted,
expired and unwanted versions are left out first; then the filter is asked, of all versions that the
family keeps; only those that it lets pass count for the selection's limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from txn.model import Cell, new_tuple
from txn.tables import cells
from txn.tables.catalog import Place, TableCatalog, family_keys, split_row
from txn.tables.cells import CellVersion
from txn.tables.filters.standard import NEXT_COLUMN, NEXT_ROW, SEEK_TO_HINT, Filter, ReturnCode
from txn.tables.kv.ordered import Reader
from txn.tables.operations import MAX_TIMESTAMP, Selection


class Part(NamedTuple):
    """What is wanted of one family: these columns, in order, or None for all of them."""

    family: bytes
    place: Place
    columns: tuple[bytes, ...] | None
    oldest_ms: int
    now_ms: int
    since: int
    until: int


class ReadPlan(NamedTuple):
    """A selection on the families that there are."""

    parts: tuple[Part, ...]
    selection: Selection


def plan(known: TableCatalog, table: bytes, selection: Selection, now_ms: int) -> ReadPlan:
    """Return the plan of a selection; Refused where a family is missing."""
    wanted: dict[bytes, set[bytes] | None] = {}
    for family, column in selection.columns:
        if column is None:
            wanted[family] = None
        else:
            columns = wanted.get(family)
            wanted[family] = {column} if columns is None else columns | {column}
    for family in wanted:
        known.place(table, family)
    times = {family: (since, until) for family, since, until in selection.family_times}
    parts = []
    for family in sorted(wanted or known.table(table).families):
        place = known.places[table, family]
        columns = wanted.get(family)
        oldest_ms = 0 if place.ttl_ms is None else now_ms - place.ttl_ms
        names = tuple(sorted(columns)) if columns else None
        since, until = times.get(family, (selection.since, selection.until))
        parts.append(Part(family, place, names, oldest_ms, now_ms, since, until))
    return ReadPlan(tuple(parts), selection)


def read_row(reader: Reader, asked: ReadPlan, row: bytes) -> list[CellVersion]:
    """Return what the selection, without its filter, finds in a row, which is given escaped."""
    found: list[CellVersion] = []
    selection = asked.selection
    for part in asked.parts:
        family = part.family
        of_family = [
            CellVersion(family, column, timestamp, value)
            for column, versions in _columns(reader, part, row, selection.versions)
            for value, timestamp in versions
        ]
        if selection.store_limit is not None or selection.store_offset:
            of_family = of_family[selection.store_offset : _store_end(selection)]
        found += of_family
    return found


def read_selected_rows(
    reader: Reader, asked: ReadPlan, low: bytes, high: bytes
) -> Iterator[tuple[bytes, list[CellVersion]]]:
    """Yield each row of a range of keys, escaped, and what a selection of all columns, without its
    filter, finds in it. One walk over the keys is several times as quick as a search for each."""
    limit = asked.selection.versions
    parts = {part.place.infix: (part.family, _make_reader(part, limit)) for part in asked.parts}
    row: bytes | None = None
    found: list[CellVersion] = []
    for key, state in reader.items(low, high):
        end = split_row(key)
        if key[4:end] != row:
            if row is not None:
                yield row, found
            row, found = key[4:end], []
        begin = key.find(b"\0", end + 2) + 1
        part = parts.get(key[end:begin])
        if part is not None:  # else a row's masks, or of a family that was dropped
            family, seen = part
            for value, at in seen(state):
                found.append(new_tuple(CellVersion, (family, key[begin:], at, value)))
    if row is not None:
        yield row, found


def _make_reader(part: Part, limit: int) -> Callable[[bytes], Sequence[Cell]]:
    """Return what finds the versions of a column's state that are seen, at most so many."""
    _, place, _, oldest_ms, now_ms, since, until = part
    limit, at_least = min(limit, place.versions), place.min_versions
    if limit == 1 and (at_least, since, until) == (0, 0, MAX_TIMESTAMP):

        def newest(state: bytes) -> Sequence[Cell]:
            cell = cells.newest(state, oldest_ms, now_ms)
            return () if cell is None else (cell,)

        return newest
    return partial(
        cells.versions,
        oldest_ms=oldest_ms,
        now_ms=now_ms,
        limit=limit,
        since=since,
        until=until,
        at_least=at_least,
    )


class Sifter:
    """A scan's filter on its way through the rows.

    A filter that wants nothing more ends the scan of the family where it says so; as in HBase, the
    row is finished by the families after it, which may see it change its mind in the next row.
    """

    def __init__(self, sieve: Filter) -> None:
        self._closed: set[bytes] = set()
        self.sieve = sieve

    def row(self, reader: Reader, asked: ReadPlan, row: bytes, name: bytes) -> list[CellVersion]:
        """Return what the selection finds in a row, which is given escaped, and by its name."""
        sieve = self.sieve
        parts = [part for part in asked.parts if part.family not in self._closed]
        first = [part for part in parts if sieve.is_family_essential(part.family)]
        if not any(_is_there(reader, part, row) for part in first):
            return []
        found: list[CellVersion] = []
        if not sieve.filter_row_key(name):
            for part in first:
                found += self._family(reader, asked, part, row)
            passed = _filter_row(sieve, found)
            found = passed or []
            if passed is not None and first != parts:
                for part in parts:
                    if part not in first:
                        found += self._family(reader, asked, part, row)
                found.sort(key=lambda version: version.family)
        sieve.reset()
        return found

    def goes_back(self, asked: ReadPlan) -> bool:
        """Return whether HBase can do such a scan in reverse: where it decides on whole rows."""
        return all(self.sieve.is_family_essential(part.family) for part in asked.parts)

    def _family(self, reader: Reader, asked: ReadPlan, part: Part, row: bytes) -> list[CellVersion]:
        selection = asked.selection
        passed = self._filter_family(reader, asked, part, row)
        found = list(islice(passed, selection.store_offset, _store_end(selection)))
        if self.sieve.filter_all_remaining() and _is_there(reader, part, row):
            self._closed.add(part.family)
        return found

    def _filter_family(
        self, reader: Reader, asked: ReadPlan, part: Part, row: bytes
    ) -> Iterator[CellVersion]:
        """Yield what the filter lets pass of a family."""
        hint = b""
        kept = part.place.versions
        wanted = min(asked.selection.versions, kept)
        for column, cells_ in _columns(reader, part, row, kept):
            if column < hint:
                continue
            shown = (CellVersion(part.family, column, time, value) for value, time in cells_)
            for version, code in self._filter_versions(shown, wanted):
                if code.includes:
                    yield self.sieve.transform_cell(version)
                if code.step == NEXT_ROW.step:
                    return
                if code == SEEK_TO_HINT:
                    hint = self.sieve.next_cell_hint(version) or b""
                if (code.step == NEXT_COLUMN.step and column) or hint > column:
                    break  # a column without a name has no next one to HBase, only a next version

    def _filter_versions(
        self, versions: Iterator[CellVersion], wanted: int
    ) -> Iterator[tuple[CellVersion, ReturnCode]]:
        """Yield a column's versions with what becomes of them; at most so many are included."""
        included = 0
        for version in versions:
            if self.sieve.filter_all_remaining():
                yield version, NEXT_ROW
                continue
            code = self.sieve.filter_cell(version)
            included += code.includes
            if code.includes and included > wanted:
                code = NEXT_ROW if code.step == NEXT_ROW.step else NEXT_COLUMN
            yield version, code


def _filter_row(sieve: Filter, found: list[CellVersion]) -> list[CellVersion] | None:
    """Return what the filter leaves of a row that it has seen; None: it leaves the row out."""
    if not found:
        return None
    if sieve.has_filter_row:
        found = sieve.filter_row_cells(found)
        return None if found and sieve.filter_row() else found
    return None if sieve.filter_row() else found


def _columns(
    reader: Reader, part: Part, row: bytes, limit: int
) -> Iterator[tuple[bytes, list[Cell]]]:
    """Yield the columns of a family in a row, with at most so many versions of each."""
    place = part.place
    start = place.prefix + row + place.infix
    # HBase gives a named column one expired version more than MIN_VERSIONS promises.
    named_kept = part.columns is not None and place.min_versions > 0
    names = (
        list(family_keys(reader, place, row))
        if part.columns is None
        else [start + column for column in part.columns]
    )
    for name in names:
        state = reader.get(name)
        if state:
            found = cells.versions(
                state,
                0 if named_kept else part.oldest_ms,
                part.now_ms,
                limit=min(limit, place.versions),
                since=part.since,
                until=part.until,
                at_least=place.min_versions,
            )
            if named_kept:
                kept = sum(cell.timestamp >= part.oldest_ms for cell in found)
                found = found[: max(kept + 1, place.min_versions)]
            if found:
                yield name[len(start) :], found


def _is_there(reader: Reader, part: Part, row: bytes) -> bool:
    return next(family_keys(reader, part.place, row), None) is not None


def _store_end(selection: Selection) -> int | None:
    """Return where the versions of a family that are wanted end; to HBase a limit of 0 is 1."""
    if selection.store_limit is None:
        return None
    return selection.store_offset + max(selection.store_limit, 1)
