"""Rows as HBase's own clients see them, on the same stored bytes as `txn.tables.tables.Tables`.

Each call is one local transaction; a scan is one for each page. Refused says what HBase refuses.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from txn.model import plain_table
from txn.tables import catalog, changes, selecting
from txn.tables.cells import CellVersion
from txn.tables.changes import RowChange
from txn.tables.filters.arguments import COMPARISONS
from txn.tables.filters.lists import make_filter
from txn.tables.kv.ordered import Reader, Writer
from txn.tables.operations import Condition, Operation, Range, Result, Selection
from txn.tables.refusal import Refused
from txn.tables.selecting import ReadPlan, Sifter

PAGE_VERSIONS = 20_000
PAGE_ROWS_SEEN = 5_000
PAGE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a scan goes on, and what its filter has seen so far; opaque."""

    at: bytes
    sifter: Sifter | None


class Page(NamedTuple):
    """Some results of a scan; resume None: there are no more.

    A page may hold no result and have more after it, where much was looked at in vain.
    """

    results: list[Result]
    resume: Resume | None


class Rows(catalog.OnCatalog):
    """HBase's rows; safe for threads and processes as far as the ordered store is."""

    __slots__ = ()

    def get(self, table: bytes, rows: Sequence[bytes], selection: Selection) -> list[Result]:
        """Return what is selected of each row, in the order given, in one instant."""
        table = plain_table(table)
        for row in rows:
            catalog.check_row(row)

        def body(reader: Reader) -> list[Result]:
            plan = self._plan(reader, table, selection)
            return [Result(row, tuple(_read(reader, plan, row))) for row in rows]

        return self._store.read(body)

    def mutate(
        self,
        table: bytes,
        mutations: Sequence[tuple[bytes, Sequence[Operation]]],
        *,
        durable: bool = True,
    ) -> list[Result]:
        """Carry out the operations of each row, all or none, all at one server time.

        Return for each the new versions of its Adds and Appends, in order of family and column.
        """
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
        return self._store.write(body, durable=durable, shared=shared)

    def check_and_mutate(
        self,
        table: bytes,
        row: bytes,
        condition: Condition,
        operations: Sequence[Operation],
        *,
        durable: bool = True,
    ) -> bool:
        """Carry out the operations if the condition holds; return whether it does.

        Puts are then at the server's time, but never below the version that was looked at.
        """
        table = plain_table(table)
        catalog.check_row(row)
        changes.check_cells(row, operations)

        def body(writer: Writer) -> bool:
            known, now = self._load(writer), self._clock.wall_ms()
            plan = self._plan(writer, table, _select_condition(condition))
            found = _read(writer, plan, row)
            if not _holds(condition, found[0] if found else None):
                return False
            known = changes.prepare_changes(writer, known, table, operations)
            put_ms = max(now, found[0].timestamp) if found else now
            RowChange(writer, known, (table, row), now).carry_out(operations, put_ms)
            return True

        shared = not changes.deletes_whole(operations)
        return self._store.write(body, durable=durable, shared=shared)

    def scan(
        self,
        table: bytes,
        rows: Range,
        selection: Selection,
        *,
        limit_rows: int,
        resume: Resume | None = None,
    ) -> Page:
        """Return the next rows of a scan, at most so many (with a batch, of whole rows still)."""
        table = plain_table(table)
        fresh = resume.sifter if resume else _sifter(selection, rows.reverse)
        if fresh is not None and selection.batch is not None and fresh.sieve.has_filter_row:
            raise Refused("retries exhausted", "this filter does not go with a batch")

        def body(reader: Reader) -> Page:
            plan = self._plan(reader, table, selection)
            if rows.reverse and fresh is not None and not fresh.goes_back(plan):
                raise Refused("do not retry", "this filter does not go with a reverse scan")
            prefix = plan.parts[0].place.prefix
            walk = _Walk(reader, prefix, rows, None if resume is None else resume.at)
            return _page(walk, plan, copy.deepcopy(fresh), limit_rows)

        return self._store.read(body)

    def _plan(self, reader: Reader, table: bytes, selection: Selection) -> ReadPlan:
        times = [(selection.since, selection.until), *(each[1:] for each in selection.family_times)]
        if selection.versions < 1 or any(not 0 <= since <= until for since, until in times):
            raise Refused("illegal argument", "not a selection", given=selection)
        return selecting.plan(self._load(reader), table, selection, self._clock.wall_ms())


class _Walk:
    """The rows of a range, one after the other; `at` is the bound that moves."""

    def __init__(self, reader: Reader, prefix: bytes, rows: Range, at: bytes | None) -> None:
        self.reader = reader
        self._prefix = prefix
        self._reverse = rows.reverse
        first, last = (rows.stop, rows.start) if rows.reverse else (rows.start, rows.stop)
        from_first, to_last = (
            (rows.include_stop, rows.include_start)
            if rows.reverse
            else (rows.include_start, rows.include_stop)
        )
        self._low = prefix + _bound(first, not from_first)
        end = int.from_bytes(prefix) + 1
        self._high = prefix + _bound(last, to_last) if last else end.to_bytes(4)
        if at is not None and rows.reverse:
            self._high = prefix + at
        elif at is not None:
            self._low = prefix + at

    @property
    def at(self) -> bytes:
        """The bound that moves, without the table's prefix."""
        return (self._high if self._reverse else self._low)[len(self._prefix) :]

    def found(
        self, plan: ReadPlan, sifter: Sifter | None
    ) -> Iterator[tuple[bytes, list[CellVersion]]]:
        """Yield the rows, escaped, and what is found in each; `at` is then past it."""
        if sifter is None and not self._reverse and _is_whole(plan.selection):
            for row, found in selecting.read_selected_rows(
                self.reader, plan, self._low, self._high
            ):
                self._step(row)
                yield row, found
            return
        while sifter is None or not sifter.sieve.filter_all_remaining():
            key = self._next()
            if key is None:
                return
            row = key[4 : catalog.split_row(key)]
            self._step(row)
            if sifter is None:
                yield row, selecting.read_row(self.reader, plan, row)
            else:
                yield row, sifter.row(self.reader, plan, row, catalog.plain_row(row))

    def _next(self) -> bytes | None:
        """Return a key of the next row."""
        if not self._reverse:
            return next(self.reader.keys(self._low, self._high), None)
        key = self.reader.before(self._high)
        return None if key is None or key < self._low else key

    def _step(self, row: bytes) -> None:
        if self._reverse:
            self._high = self._prefix + row + b"\0\0"
        else:
            self._low = self._prefix + row + b"\0\1"


def _is_whole(selection: Selection) -> bool:
    """Return whether all columns are wanted."""
    return not selection.columns and selection.store_limit is None and not selection.store_offset


def _bound(row: bytes, after: bool) -> bytes:
    """Return the start of all keys from the row on, or of those after it."""
    return catalog.escape_row(row) + (b"\0\1" if after else b"\0\0") if row else b""


def _page(walk: _Walk, plan: ReadPlan, sifter: Sifter | None, limit_rows: int) -> Page:
    """Read rows until there are enough, or enough was looked at."""
    results: list[Result] = []
    if limit_rows < 1:
        return Page(results, Resume(walk.at, sifter))
    batch = plan.selection.batch
    count = versions = size = 0
    for seen, (row, found) in enumerate(walk.found(plan, sifter), 1):
        if found:
            count += 1
            versions += len(found)
            for _, _, _, value in found:
                size += len(value)
            results += _batches(catalog.plain_row(row), found, batch)
        if count == limit_rows or seen == PAGE_ROWS_SEEN:
            break
        if versions >= PAGE_VERSIONS or size >= PAGE_BYTES:
            break
    else:
        return Page(results, None)
    return Page(results, Resume(walk.at, sifter))


def _batches(row: bytes, found: list[CellVersion], batch: int | None) -> list[Result]:
    if batch is None or len(found) <= batch:
        return [Result(row, tuple(found))]
    starts = range(0, len(found), batch)
    return [
        Result(row, tuple(found[start : start + batch]), start != starts[-1]) for start in starts
    ]


def _sifter(selection: Selection, reverse: bool = False) -> Sifter | None:
    if selection.filter is None:
        return None
    return Sifter(make_filter(selection.filter, reverse=reverse))


def _read(reader: Reader, plan: ReadPlan, row: bytes) -> list[CellVersion]:
    escaped = catalog.escape_row(row)
    sifter = _sifter(plan.selection)
    if sifter is None:
        return selecting.read_row(reader, plan, escaped)
    return sifter.row(reader, plan, escaped, row)


def _select_condition(condition: Condition) -> Selection:
    if condition.filter is not None:
        return Selection(since=condition.since, until=condition.until, filter=condition.filter)
    return Selection(
        ((condition.family, condition.column),), since=condition.since, until=condition.until
    )


def _holds(condition: Condition, found: CellVersion | None) -> bool:
    if condition.filter is not None:
        return found is not None
    if not condition.value:
        return (found is None or not found.value) == (condition.operator != "!=")
    if found is None:
        return False
    if condition.operator == "no-op":
        raise Refused("do not retry", "this operator compares nothing")
    return COMPARISONS[condition.operator](condition.value, found.value)
