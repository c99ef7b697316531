"""What the stores of HBase have in common, whatever carries their requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from txn.errors import NotApplied
from txn.model import (
    RESERVED,
    Cell,
    Check,
    Columns,
    Edit,
    Key,
    Row,
    RowExclusion,
    check_count,
    check_exclusion,
)
from txn.stores.base import Answers, divide_found, follow_checks
from txn.stores.hbase.places import cut, row_after
from txn.stores.hbase.schema import make_endpoint_command

MOST_STANDS = 100  # answers in a row without progress: a busy server may give some
FIRST_PAGE_ROWS = 32
ANSWER_BYTES = 16_000_000
"""About so many bytes a server or gateway keeps in memory for one answer."""
LEAST_BYTES = ANSWER_BYTES // 1_000
LENGTH_BYTES = 4
"""The length of a stamp's value, which is the length of the value that was left out."""
ASKED_WITHIN_MS = 2_000  # for the reason of a failure


class ScanRange(NamedTuple):
    """The rows of a table from start to stop (excluded; empty: to the end), with columns (None:
    all). exclude: rows that servers leave out. reverse: the last row comes first. limit: the most
    rows of the next page."""

    table: bytes
    start: bytes
    stop: bytes
    columns: Sequence[tuple[bytes, bytes]] | None
    exclude: RowExclusion | None
    reverse: bool
    limit: int = FIRST_PAGE_ROWS

    def has(self, row: bytes) -> bool:
        return self.start <= row and not (self.stop and self.stop <= row)

    def skip_rows(self, cursor: bytes, last: bytes) -> ScanRange | None:
        """Return the rest of the range, or None, after an answer that ended with row `last` of a
        server that stands at row `cursor`; both may be empty."""
        if self.reverse:
            bounds = self.stop, row_after(cursor) if cursor else b"", last
            return self.move(min((bound for bound in bounds if bound), default=b""))
        return self.move(max(self.start, cursor, row_after(last) if last else b""))

    def move(self, bound: bytes) -> ScanRange | None:
        """Return the rest of the range from a row on (in reverse: below it), or None."""
        rest = self._replace(stop=bound) if self.reverse else self._replace(start=bound)
        return None if rest.stop and rest.start >= rest.stop else rest


class RowSizes:
    """How many bytes a row of each table may have, for reads: nobody knows the size of an answer
    before it is there. So only `few` rows of a new table share an answer. If they are short, the
    next answer may have four times as many; long rows bound it at once."""

    def __init__(self, few: int) -> None:
        self._bytes: dict[bytes | None, int] = {}
        self._unknown = ANSWER_BYTES // few
        self.few = few
        """So many rows, of whatever tables, fit into an answer."""

    def expect(self, table: bytes | None) -> int:
        """Return the expected bytes of a row of a table."""
        return self._bytes.get(table, self._unknown)

    def fit(self, groups: Sequence[Collection[Key]]) -> bool:
        """Return whether the rows of all these keys fit into an answer."""
        rows = {(key[3], key[0]) for keys in groups for key in keys}
        tables = {table for table, _ in rows}
        return len(rows) * max(map(self.expect, tables)) <= ANSWER_BYTES

    def cut(self, keys: Collection[Key]) -> Iterator[list[Key]]:
        """Yield portions that fit into an answer by what was learned from those before. A row is
        never divided."""
        rows: dict[tuple[bytes | None, bytes], list[Key]] = {}
        for key in keys:
            rows.setdefault((key[3], key[0]), []).append(key)
        whole = [*rows.values()]
        for part in cut(whole, lambda row: self.expect(row[0][3]), ANSWER_BYTES, len(whole)):
            yield [key for row in part for key in row]

    def learn(self, table: bytes | None, rows: int, size: int) -> None:
        """Learn from an answer with so many rows of a table, of so many bytes."""
        fewer = min(self.expect(table), ANSWER_BYTES // (4 * rows))
        self._bytes[table] = max(LEAST_BYTES, fewer, size // rows)
        self.few = ANSWER_BYTES // max(self._unknown, *self._bytes.values())

    def learn_cells(self, sizes: Mapping[Key, int]) -> None:
        """Learn from the sizes of cells in an answer, 0 if absent. Locks and tags say nothing about
        the other cells of their rows."""
        tables: dict[bytes | None, dict[bytes, int]] = {}
        for (row, _, column, table), size in sizes.items():
            if not column.endswith(RESERVED):
                rows = tables.setdefault(table, {})
                rows[row] = rows.get(row, 0) + size
        for table, rows in tables.items():
            self.learn(table, len(rows), sum(rows.values()))

    def learn_written(self, edits: Sequence[Edit]) -> None:
        """Learn from long values that are being written."""
        for key, value, _ in edits:
            if value is not None and len(value) > LEAST_BYTES:
                self.learn(key[3], 1, len(value))


class HBaseTables(ABC):
    """The tables of an HBase, whatever carries the requests. Each call is durable, even with
    durable=False. A read whose answer may be large is divided, by rows."""

    def __init__(self, few: int) -> None:
        self._sizes = RowSizes(few)

    @abstractmethod
    def _read(
        self, checks: Sequence[Check], groups: Sequence[Collection[Key]], stamps: Collection[Key]
    ) -> tuple[list[bool], dict[Key, Cell | None]]:
        """Do a `check_and_read` of one group, or read several without checks. The value of a stamp
        is replaced by its length, in four bytes."""

    @abstractmethod
    def _read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        """Do a `read_versions` with one answer."""

    def add_endpoint(self, table: bytes) -> str | None:
        """Let a table name the endpoint. Gateways only return the command for HBase's shell: one
        with framed transport takes its whole request for each attribute of a table."""
        return make_endpoint_command(table)

    def read(self, *groups: Collection[Key]) -> dict[Key, Cell | None]:
        return self._read_portions((), groups, ())[1]

    def check_and_read(
        self,
        checks: Sequence[Check],
        keys: Collection[Key],
        stamps: Collection[Key] = (),
        *,
        durable: bool = True,
    ) -> Answers:
        if not stamps:
            return *self._read_portions(checks, (keys,), ()), {}
        both = self._read_portions(checks, ([*keys, *stamps],), frozenset(stamps))
        return divide_found(*both, keys, stamps)

    def _read_portions(
        self, checks: Sequence[Check], groups: Sequence[Collection[Key]], stamps: Collection[Key]
    ) -> tuple[list[bool], dict[Key, Cell | None]]:
        """Read the first portion together with the checks, and the others afterwards."""
        count = sum(map(len, groups))
        if count < self._sizes.few or self._sizes.fit(groups):
            answers, found = self._read(checks, groups, stamps)
            if count >= self._sizes.few:
                self._learn(found, stamps, ANSWER_BYTES // 4)
            return answers, found
        answers, found = [], {}
        portions = (some for keys in groups for some in self._sizes.cut(keys))
        for number, some in enumerate(portions):
            with follow_checks(checks if number else ()):
                done, more = self._read(() if number else checks, (some,), stamps)
            answers += done
            found.update(more)
            self._learn(more, stamps)
        return answers, found

    def _learn(
        self, found: Mapping[Key, Cell | None], stamps: Collection[Key], least: int = 0
    ) -> None:
        """Learn from an answer of at least so many bytes."""
        values = {key: cell[0] for key, cell in found.items() if cell}
        sizes = dict.fromkeys(found, 0)
        sizes.update(zip(values, map(len, values.values()), strict=True))
        left = {key: values[key] for key in stamps if sizes.get(key) == LENGTH_BYTES}
        sizes.update(zip(left, map(int.from_bytes, left.values()), strict=True))
        if sum(sizes.values()) >= least:
            self._sizes.learn_cells(sizes)

    def read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        check_count(count)
        found: dict[Key, list[Cell]] = {}
        for some in self._sizes.cut(keys):
            found.update(self._read_versions(some, count))
            sizes = {key: sum([len(cell.value) for cell in found[key]]) for key in some}
            self._sizes.learn_cells(sizes)
        return found

    @abstractmethod
    def _read_page(
        self, wanted: ScanRange, keys: Sequence[Key]
    ) -> tuple[list[Row], ScanRange | None]:
        """Return the first rows of a range, and the rest of it with a new limit, if any. The rows
        may include excluded ones. keys: examples of the cells, for the reason of a failure."""

    def scan(
        self,
        table: bytes,
        start: bytes = b"",
        stop: bytes | None = None,
        columns: Columns = None,
        exclude: RowExclusion | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[Row]:
        """Yield the rows page by page; servers and gateways keep no state between pages."""
        check_exclusion(columns, exclude)
        wanted = None if columns is None else list(columns)
        keys = [Key(b"-", family, column, table) for family, column in wanted or ()]
        keys += [Key(b"-", exclude.family, exclude.column, table)] if exclude else []
        rest: ScanRange | None = None
        if not stop or start < stop:
            rest = ScanRange(table, start, stop or b"", wanted, exclude, reverse)
        stands = 0
        while rest is not None:
            rows, following = self._read_page(rest, keys)
            yield from (row for row in rows if exclude is None or not exclude.matches(row))
            has_moved = following is None or following[1:3] != rest[1:3]
            rest, stands = following, 0 if has_moved else stands + 1
            if stands > MOST_STANDS:
                raise NotApplied("the server makes no progress with a scan", table=table)

    def atomically(self, work: Callable[[], None]) -> None:
        """Run the function; HBase cannot make its calls one transaction."""
        work()

    def compact(self, table: bytes, purge_before_ms: int) -> None:  # noqa: B027
        """Do nothing: HBase purges markers by the setting that `ensure_table` gives a family."""
