"""Rows as HBase's own clients see them, on the same stored bytes as `txn.stores.local.LocalStore`.

Each call is one local transaction; a scan is one per page. Refused reports what HBase refuses.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from txn.model import plain_table
from txn.tables import catalog, changes, selecting
from txn.tables.catalog import ROW_END, ROW_PASSED
from txn.tables.cells import CellVersion
from txn.tables.changes import RowChange
from txn.tables.filters.lists import make_filter
from txn.tables.filters.standard import COMPARISONS
from txn.tables.kv.ordered import Reader, Writer
from txn.tables.operations import Condition, Operations, Range, Refused, Result, Selection
from txn.tables.selecting import FilteredScan, ReadPlan

PAGE_VERSIONS = 20_000
PAGE_ROWS_SEEN = 5_000
PAGE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Resume:
    """The position of a scan and the state of its filter; opaque."""

    at: bytes
    filtered: FilteredScan | None


class Page(NamedTuple):
    """Some results of a scan, perhaps none if much was read in vain; resume is None at the end."""

    results: list[Result]
    resume: Resume | None


class Rows(catalog.CatalogUser):
    """HBase's rows; as safe for threads and processes as the ordered store."""

    __slots__ = ()

    def get(self, table: bytes, rows: Sequence[bytes], selection: Selection) -> list[Result]:
        """Return the selected part of each row, in the given order, as of one instant."""
        table = plain_table(table)
        for row in rows:
            catalog.check_row(row)

        def body(reader: Reader) -> list[Result]:
            plan = self._plan(reader, table, selection)
            return [Result(row, tuple(_read_row(plan, row))) for row in rows]

        return self._ordered.read(body)

    def mutate(
        self, table: bytes, mutations: Sequence[tuple[bytes, Operations]], *, durable: bool = True
    ) -> list[Result]:
        """Carry out the operations of each row, all or none, at one server time. Return for each
        row the new versions of its Adds and Appends, by family and column."""
        table = plain_table(table)
        for row, operations in mutations:
            catalog.check_row(row)
            changes.check_cells(row, operations)

        def body(writer: Writer) -> list[Result]:
            known, now = self._load(writer), self._clock.wall_ms()
            known.table(table)
            results = []
            for row, operations in mutations:
                known = changes.prepare_changes(writer, known, table, operations)
                change = RowChange(writer, known, (table, row), now)
                results.append(Result(row, change.carry_out(operations)))
            return results

        shared = not any(changes.deletes_whole(operations) for _, operations in mutations)
        results = self._ordered.write(body, durable=durable, shared=shared)
        self._finish([each for _, operations in mutations for each in operations], results)
        return results

    def check_and_mutate(
        self,
        table: bytes,
        row: bytes,
        condition: Condition,
        operations: Operations,
        *,
        durable: bool = True,
    ) -> bool:
        """Carry out the operations if the condition holds; return whether it does. Puts get the
        server's time, but never one below the checked version's."""
        table = plain_table(table)
        catalog.check_row(row)
        changes.check_cells(row, operations)

        def body(writer: Writer) -> bool:
            known, now = self._load(writer), self._clock.wall_ms()
            selection = Selection(((condition.family, condition.column),))
            found = _read_row(self._plan(writer, table, selection), row)
            if not _holds(condition, found[0] if found else None):
                return False
            known = changes.prepare_changes(writer, known, table, operations)
            put_ms = max(now, found[0].timestamp) if found else now
            RowChange(writer, known, (table, row), now).carry_out(operations, put_ms)
            return True

        shared = not changes.deletes_whole(operations)
        done = self._ordered.write(body, durable=durable, shared=shared)
        if done:
            self._finish(operations)
        return done

    def _finish(self, operations: Operations, results: Sequence[Result] = ()) -> None:
        """Called after a change, before it returns."""

    def scan(
        self,
        table: bytes,
        rows: Range,
        selection: Selection,
        *,
        limit_rows: int,
        resume: Resume | None = None,
    ) -> Page:
        """Return further results of a scan, of up to `limit_rows` whole rows."""
        table = plain_table(table)
        fresh = resume.filtered if resume else _make_filtered(selection, rows.reverse)
        if fresh is not None and selection.batch is not None and fresh.filter.has_filter_row:
            raise Refused("retries exhausted", "this filter does not go with a batch")

        def body(reader: Reader) -> Page:
            plan = self._plan(reader, table, selection)
            if rows.reverse and fresh is not None and not fresh.goes_back(plan):
                raise Refused("do not retry", "this filter does not go with a reverse scan")
            at = resume.at if resume else None
            return _read_page(plan, rows, at, copy.deepcopy(fresh), limit_rows)

        return self._ordered.read(body)

    def _plan(self, reader: Reader, table: bytes, selection: Selection) -> ReadPlan:
        times = [(selection.since, selection.until), *(each[1:] for each in selection.family_times)]
        if selection.versions < 1 or any(not 0 <= since <= until for since, until in times):
            raise Refused("illegal argument", "not a selection", given=selection)
        known, now = self._load(reader), self._clock.wall_ms()
        return selecting.make_plan(reader, known, table, selection, now)


def _read_page(
    plan: ReadPlan, rows: Range, at: bytes | None, filtered: FilteredScan | None, limit_rows: int
) -> Page:
    """Read until enough rows were found or enough was read. at: where to resume, if anywhere."""
    low = _bound(rows.start, rows.reverse)
    high = _bound(rows.stop, rows.include_stop != rows.reverse)
    if rows.reverse:
        low, high = high, low if at is None else at
    elif at is not None:
        low = at
    results: list[Result] = []
    if limit_rows < 1:
        return Page(results, Resume(high if rows.reverse else low, filtered))
    count = versions = size = 0
    found_rows = _read_rows(plan, (low, high), rows.reverse, filtered)
    for seen, (row, found) in enumerate(found_rows, 1):
        if found:
            count += 1
            versions += len(found)
            size += sum(len(value) for _, _, _, value in found)
            plain, batch = catalog.plain_row(row), plan.selection.batch or len(found)
            results += [
                Result(plain, tuple(found[start : start + batch]), start + batch < len(found))
                for start in range(0, len(found), batch)
            ]
        is_large = versions >= PAGE_VERSIONS or size >= PAGE_BYTES
        if is_large or count == limit_rows or seen == PAGE_ROWS_SEEN:
            break
    else:
        return Page(results, None)
    return Page(results, Resume(row + (ROW_END if rows.reverse else ROW_PASSED), filtered))


def _read_rows(
    plan: ReadPlan, bounds: tuple[bytes, bytes], reverse: bool, filtered: FilteredScan | None
) -> Iterator[tuple[bytes, list[CellVersion]]]:
    """Yield the escaped rows between the bounds, and the versions found in each."""
    prefix = plan.families[0].layout.prefix
    low = prefix + bounds[0]
    high = prefix + bounds[1] if bounds[1] else (int.from_bytes(prefix) + 1).to_bytes(4)
    selection = plan.selection
    is_whole = not (selection.columns or selection.store_limit is not None)
    if filtered is None and not reverse and is_whole and not selection.store_offset:
        yield from plan.read_whole_rows(low, high)
        return
    stems = catalog.walk_rows(plan.reader, low, high, reverse=reverse)
    while filtered is None or not filtered.filter.filter_all_remaining():
        stem = next(stems, None)
        if stem is None:
            return
        row = stem[len(prefix) :]
        if filtered is None:
            yield row, plan.read_row(row)
        else:
            yield row, filtered.read_row(plan, row, catalog.plain_row(row))


def _bound(row: bytes, after: bool) -> bytes:
    """Return the start of all keys from the row on or, with after, beyond it; b"" is open."""
    return catalog.escape_row(row) + (ROW_PASSED if after else ROW_END) if row else b""


def _make_filtered(selection: Selection, reverse: bool = False) -> FilteredScan | None:
    if selection.filter is None:
        return None
    return FilteredScan(make_filter(selection.filter, reverse=reverse))


def _read_row(plan: ReadPlan, row: bytes) -> list[CellVersion]:
    escaped = catalog.escape_row(row)
    filtered = _make_filtered(plan.selection)
    return filtered.read_row(plan, escaped, row) if filtered else plan.read_row(escaped)


def _holds(condition: Condition, found: CellVersion | None) -> bool:
    if not condition.value:
        return (found is None or not found.value) == (condition.operator != "!=")
    if found is None:
        return False
    if condition.operator == "no-op":
        raise Refused("do not retry", "this operator compares nothing")
    return COMPARISONS[condition.operator](condition.value, found.value)
