"""Rows as HBase's own clients see them, on the same stored bytes as `txn.tables.tables.Tables`.

Each call is one local transaction; a scan is one for each page. Refused says what HBase refuses.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from txn.clock import Clock
from txn.tables import catalog, changes, selecting
from txn.tables.catalog import Catalog
from txn.tables.changes import Change
from txn.tables.filtering import sieve
from txn.tables.operations import (
    Condition,
    Operation,
    Operator,
    Range,
    Result,
    Selection,
    Version,
)
from txn.tables.ordered import OrderedStore, Reader, Writer
from txn.tables.refusal import Refused
from txn.tables.selecting import Plan, Sifter

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


class Rows:
    """HBase's rows; safe for threads and processes as far as the ordered store is."""

    __slots__ = ("_catalog", "_clock", "_store")

    def __init__(self, store: OrderedStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._catalog: Catalog | None = None

    def get(self, table: bytes, rows: Sequence[bytes], selection: Selection) -> list[Result]:
        """Return what is selected of each row, in the order given, in one instant."""
        table = catalog.plain(table)
        for row in rows:
            catalog.check_row(row)

        def body(reader: Reader) -> list[Result]:
            plan = self._plan(reader, table, selection)
            return [Result(row, tuple(_found(reader, plan, row))) for row in rows]

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
        table = catalog.plain(table)
        for row, _ in mutations:
            catalog.check_row(row)

        def body(writer: Writer) -> list[Result]:
            known, now = self._load(writer), self._clock.wall_ms()
            known.table(table)
            results = []
            for row, operations in mutations:
                known = changes.prepare(writer, known, table, operations)
                change = Change(writer, known, (table, row), now)
                results.append(Result(row, change.carry_out(operations)))
            return results

        return self._store.write(body, durable=durable)

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
        table = catalog.plain(table)
        catalog.check_row(row)

        def body(writer: Writer) -> bool:
            known, now = self._load(writer), self._clock.wall_ms()
            plan = self._plan(writer, table, _looked_at(condition))
            found = _found(writer, plan, row)
            if not _holds(condition, found[0] if found else None):
                return False
            known = changes.prepare(writer, known, table, operations)
            put_ms = max(now, found[0].timestamp) if found else now
            Change(writer, known, (table, row), now).carry_out(operations, put_ms)
            return True

        return self._store.write(body, durable=durable)

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
        table = catalog.plain(table)
        fresh = resume.sifter if resume else _sifter(selection, rows.reverse)
        if fresh is not None and selection.batch is not None and fresh.sieve.has_filter_row:
            raise Refused("illegal argument", "this filter does not go with a batch")

        def body(reader: Reader) -> Page:
            plan = self._plan(reader, table, selection)
            if rows.reverse and fresh is not None and not fresh.goes_back(plan):
                raise Refused("do not retry", "this filter does not go with a reverse scan")
            prefix = plan.parts[0].place.prefix
            walk = _Walk(reader, prefix, rows, None if resume is None else resume.at)
            return _page(walk, plan, copy.deepcopy(fresh), limit_rows)

        return self._store.read(body)

    def _plan(self, reader: Reader, table: bytes, selection: Selection) -> Plan:
        times = [(selection.since, selection.until), *(each[1:] for each in selection.family_times)]
        if selection.versions < 1 or any(not 0 <= since <= until for since, until in times):
            raise Refused("illegal argument", "not a selection", given=selection)
        return selecting.plan(self._load(reader), table, selection, self._clock.wall_ms())

    def _load(self, reader: Reader) -> Catalog:
        self._catalog = found = catalog.load(reader, self._catalog)
        return found


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

    def next(self) -> bytes | None:
        """Return the next row, escaped, and step past it."""
        if self._reverse:
            key = self.reader.before(self._high)
            if key is None or key < self._low:
                return None
        else:
            key = next(self.reader.keys(self._low, self._high), None)
            if key is None:
                return None
        row = key[4 : catalog.split_row(key)]
        if self._reverse:
            self._high = self._prefix + row + b"\0\0"
        else:
            self._low = self._prefix + row + b"\0\1"
        return row


def _bound(row: bytes, after: bool) -> bytes:
    """Return the start of all keys from the row on, or of those after it."""
    return catalog.escape_row(row) + (b"\0\1" if after else b"\0\0") if row else b""


def _page(walk: _Walk, plan: Plan, sifter: Sifter | None, limit_rows: int) -> Page:
    """Read rows until there are enough, or enough was looked at."""
    results: list[Result] = []
    count = seen = versions = size = 0
    while count < limit_rows and seen < PAGE_ROWS_SEEN:
        if versions >= PAGE_VERSIONS or size >= PAGE_BYTES:
            break
        if sifter is not None and sifter.sieve.filter_all_remaining():
            return Page(results, None)
        row = walk.next()
        if row is None:
            return Page(results, None)
        seen += 1
        name = row.replace(b"\0\xff", b"\0")
        if sifter is None:
            found = selecting.read_row(walk.reader, plan, row)
        else:
            found = sifter.row(walk.reader, plan, row, name)
        if found:
            count += 1
            versions += len(found)
            size += sum(len(version.value) for version in found)
            results += _batches(name, found, plan.selection.batch)
    return Page(results, Resume(walk.at, sifter))


def _batches(row: bytes, found: list[Version], batch: int | None) -> list[Result]:
    if batch is None or len(found) <= batch:
        return [Result(row, tuple(found))]
    starts = range(0, len(found), batch)
    return [
        Result(row, tuple(found[start : start + batch]), start != starts[-1]) for start in starts
    ]


def _sifter(selection: Selection, reverse: bool = False) -> Sifter | None:
    if selection.filter is None:
        return None
    return Sifter(sieve(selection.filter, reverse=reverse))


def _found(reader: Reader, plan: Plan, row: bytes) -> list[Version]:
    escaped = catalog.escape_row(row)
    sifter = _sifter(plan.selection)
    if sifter is None:
        return selecting.read_row(reader, plan, escaped)
    return sifter.row(reader, plan, escaped, row)


def _looked_at(condition: Condition) -> Selection:
    if condition.filter is not None:
        return Selection(since=condition.since, until=condition.until, filter=condition.filter)
    return Selection(
        ((condition.family, condition.column),), since=condition.since, until=condition.until
    )


def _holds(condition: Condition, found: Version | None) -> bool:
    if condition.filter is not None:
        return found is not None
    if not condition.value:
        return (found is None or not found.value) == (condition.operator != "!=")
    return found is not None and _compare(condition.value, condition.operator, found.value)


def _compare(left: bytes, operator: Operator, right: bytes) -> bool:
    match operator:
        case "<":
            return left < right
        case "<=":
            return left <= right
        case "=":
            return left == right
        case "!=":
            return left != right
        case ">=":
            return left >= right
        case ">":
            return left > right
