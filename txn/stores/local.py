"""The store contract over tables on this machine: `memory://` and `embedded:///path?sync=off`.

`memory://` is the reference for every other store. `embedded://` keeps its cells in a directory
that many processes may use at once. Each call is one local transaction, so a whole batch is atomic
here. A scan is one per page. The server's time is the clock's, but never below the checked cell's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import NoReturn, TypeVar

from txn.errors import TableUnavailable
from txn.model import (
    Cell,
    Check,
    Columns,
    Edit,
    Family,
    Key,
    Row,
    RowExclusion,
    check_count,
    check_exclusion,
    check_targets,
)
from txn.stores.base import Feature, TableSize, check_then_read
from txn.tables import catalog, cells, pages
from txn.tables.catalog import TableCatalog, TableEntry, cell_key
from txn.tables.cells import newest
from txn.tables.changes import write_edits
from txn.tables.kv.ordered import Reader, Writer, divide_keys
from txn.tables.operations import Reason, Refused
from txn.tables.pages import PAGE_BYTES, PAGE_ROWS, RowChoice, ScanPage

UNAVAILABLE: frozenset[Reason] = frozenset(
    {"table not found", "table not enabled", "no such column family"}
)
COUNTED_CELLS, COUNTED_BYTES = 100_000, 64_000_000
UNMAP_PAGES = 8  # after so many, a long scan gives its memory back

R = TypeVar("R")


class LocalStore(catalog.CatalogUser):
    """Tables in an ordered store, and as safe for threads and processes as that store."""

    __slots__ = ()

    features: frozenset[Feature] = frozenset(
        {
            *("multi_cell_check", "row_mutations", "describe", "instant_reads", "atomic"),
            "many_row_checks",
        }
    )

    def read(self, *groups: Collection[Key]) -> dict[Key, Cell | None]:
        """Read all groups in one instant."""

        def body(reader: Reader) -> dict[Key, Cell | None]:
            known, now, get = self._load(reader), self._clock.wall_ms(), reader.get
            found: dict[Key, Cell | None] = {}
            before = None
            for key in chain(*groups):
                row, family, column, table = key
                if (row, family, table) != before:  # a value is read with its marks
                    before = row, family, table
                    layout = known.layout(table, family)
                    stem, oldest = cell_key(layout, row, b""), layout.find_oldest(now)
                state = get(stem + column)
                found[key] = None if state is None else newest(state, oldest, now)
            return found

        return self._read(body)

    def read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        check_count(count)

        def body(reader: Reader) -> dict[Key, list[Cell]]:
            known, now = self._load(reader), self._clock.wall_ms()
            found: dict[Key, list[Cell]] = {}
            for key in keys:
                row, family, column, table = key
                layout = known.layout(table, family)
                state = reader.get(cell_key(layout, row, column)) or b""
                found[key] = layout.read_versions(state, now, count)
            return found

        return self._read(body)

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        def body(writer: Writer) -> None:
            known, now = self._load(writer), self._clock.wall_ms()
            write_edits(writer, known, edits, now, now)
            if not edits and durable:
                catalog.rewrite_counter(writer, known)

        self._write(body, durable=durable, shared=True)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        """Carry out each check that finds its expected value, at the server's time."""
        for check in checks:
            check_targets(check)

        def body(writer: Writer) -> list[bool]:
            known = self._load(writer)
            now = self._clock.wall_ms()
            return [_check(writer, known, check, now) for check in checks]

        return self._write(body, durable=durable, shared=True)

    def put_if_all(self, groups: Sequence[Sequence[Check]]) -> list[bool | None]:
        for group in groups:
            for check in group:
                check_targets(check)

        def body(writer: Writer) -> list[bool | None]:
            known, now = self._load(writer), self._clock.wall_ms()
            return [_put_if_all(writer, known, group, now) for group in groups]

        return self._write(body, shared=True)

    check_and_read = check_then_read

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
        """Yield rows in order or in reverse; as in HBase, an empty stop is the table's end."""
        check_exclusion(columns, exclude)
        wanted = RowChoice(table, None if columns is None else frozenset(columns), exclude, reverse)
        low, high = catalog.escape_row(start), catalog.escape_row(stop) if stop else None

        def read_page(reader: Reader) -> ScanPage:
            known = self._load(reader)
            found = known.table(table)
            for family in wanted.families:
                known.layout(table, family)
            limits = found.prefix + low, found.stop if high is None else found.prefix + high
            return pages.read_page(reader, known.layouts, wanted, limits, self._clock.wall_ms())

        for number in count(1):
            page = self._read(read_page)
            yield from page.rows
            if page.resume is None:
                return
            low, high = (low, page.resume) if reverse else (page.resume, high)
            if number % UNMAP_PAGES == 0:
                self._ordered.unmap()

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        """Find the splits with a few seeks for each, without reading the rows in between."""

        def body(reader: Reader) -> list[bytes]:
            found = self._load(reader).table(table)
            low = found.prefix + catalog.escape_row(start)
            high = found.prefix + catalog.escape_row(stop) if stop else found.stop
            keys = divide_keys(reader, low, high, count)
            rows = (catalog.plain_row(key[4 : catalog.split_row(key)]) for key in keys)
            return [row for row in dict.fromkeys(rows) if row > start]

        return self._read(body)

    def atomically(self, work: Callable[[], None]) -> None:
        self._ordered.atomically(work)

    def find_inside(self) -> Callable[[], bool]:
        """Return a function: whether its thread is inside `atomically`."""
        return self._ordered.is_inside

    def list_tables(self) -> list[bytes]:
        """Return all names except those of the emulator's own namespace."""
        names = sorted(self._ordered.read(self._load).tables)
        return [name for name in names if not name.startswith(b"hbase:")]

    def measure_tables(self, tables: Sequence[bytes]) -> Mapping[bytes, TableSize]:
        """Count the cells of each table, and their bytes, up to a share of COUNTED_CELLS and of
        COUNTED_BYTES."""
        most, most_bytes = (most // max(1, len(tables)) for most in (COUNTED_CELLS, COUNTED_BYTES))

        def body(reader: Reader) -> dict[bytes, TableSize]:
            known = self._load(reader).tables
            return {
                table: _count_cells(reader, known[table], most, most_bytes)
                for table in tables
                if table in known
            }

        return self._read(body)

    def describe(self, table: bytes) -> Mapping[bytes, Family] | None:
        found = self._ordered.read(self._load).tables.get(table)
        if found is None:
            return None
        return {name: catalog.family_of(settings) for name, settings in found.families.items()}

    def ensure_table(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes] = ()
    ) -> None:
        """Create what is missing, and wait for no writer if nothing is. Splits have no effect."""
        if self._ordered.read(
            lambda reader: catalog.find_missing(self._load(reader), table, families) is not None
        ):
            self._ordered.write(
                lambda writer: catalog.ensure(writer, self._load(writer), table, families)
            )

    def assign_table(self, table: bytes, database: bytes) -> None:
        """Assign all families of a table to a database; `table not found`."""

        def body(writer: Writer) -> None:
            known = self._load(writer)
            families = known.find(table).families
            owned = {name: catalog.assign_family(one, database) for name, one in families.items()}
            catalog.alter(writer, known, table, owned)

        self._write(body)

    def compact(self, table: bytes, purge_before_ms: int | None = None) -> None:
        """Do HBase's major compaction: drop expired versions and delete markers.

        Only markers below `purge_before_ms` go (None: all), as with the setting
        `hbase.hstore.time.to.purge.deletes`.
        """
        resume: bytes | None = b""
        while resume is not None:
            resume = self.compact_page(table, resume, purge_before_ms)

    def compact_page(
        self, table: bytes, resume: bytes, purge_before_ms: int | None = None
    ) -> bytes | None:
        """Compact a bounded part of a table from `resume` on, b"" at first. Return where the next
        part begins, or None at the end. A writer has to wait only if there is something to drop."""

        def find_stale(reader: Reader) -> tuple[list[bytes], bytes | None]:
            known = self._load(reader)
            found, now = known.table(table), self._clock.wall_ms()
            stale: list[bytes] = []
            size = 0
            for looked, key in enumerate(reader.keys(found.prefix + resume, found.stop)):
                if looked == PAGE_ROWS or size >= PAGE_BYTES:
                    return stale, key[len(found.prefix) :]
                old = reader.get(key) or b""
                size += len(old)
                if _compact(known, table, key, (old, now, purge_before_ms)) != old:
                    stale.append(key)
            return stale, None

        stale, following = self._read(find_stale)

        def body(writer: Writer) -> None:
            known, now = self._load(writer), self._clock.wall_ms()
            known.table(table)
            for key in stale:
                old = writer.get(key) or b""
                new = _compact(known, table, key, (old, now, purge_before_ms))
                if not new:
                    writer.delete(key)
                elif new != old:
                    writer.put(key, new)

        if stale:
            self._write(body, durable=False)
        return following

    def close(self) -> None:
        self._ordered.close()

    def _read(self, body: Callable[[Reader], R]) -> R:
        try:
            return self._ordered.read(body)
        except Refused as error:
            _raise_meaning(error)

    def _write(
        self, body: Callable[[Writer], R], *, durable: bool = True, shared: bool = False
    ) -> R:
        try:
            return self._ordered.write(body, durable=durable, shared=shared)
        except Refused as error:
            _raise_meaning(error)


def _count_cells(reader: Reader, table: TableEntry, most: int, most_bytes: int) -> TableSize:
    cells = size = 0
    for key, state in reader.items(table.prefix, table.stop):
        if cells >= most or size >= most_bytes:
            return TableSize(cells=cells, bytes_=size, is_whole=False)
        cells, size = cells + 1, size + len(key) + len(state)
    return TableSize(cells=cells, bytes_=size)


def _raise_meaning(error: Refused) -> NoReturn:
    """Translate a refusal by the tables. To a plain HBase client its request is wrong; here a table
    is gone that existed when the request was checked."""
    if error.reason not in UNAVAILABLE:
        raise error
    table = error.facts["table"]
    assert isinstance(table, bytes)
    raise TableUnavailable(str(error), table) from error


def _compact(
    known: TableCatalog, table: bytes, key: bytes, kept: tuple[bytes, int, int | None]
) -> bytes:
    state, now, purge_before_ms = kept
    family, column = catalog.family_and_column(key, catalog.split_row(key))
    layout = known.layouts.get((table, family or column))
    if layout is None:
        return b""  # of a dropped family
    return cells.compact_cell(
        state,
        layout.find_expiry(now),
        purge_before_ms,
        now,
        limit=layout.versions,
        at_least=layout.min_versions,
    )


def _check(writer: Writer, known: TableCatalog, check: Check, now: int) -> bool:
    key, expected, puts, edits, _ = check
    cell = _find(writer, known, key, now)
    if expected is None:
        at = now
    elif (b"" if cell is None else cell.value) != expected:
        return False
    else:
        at = now if cell is None else max(now, cell.timestamp)
    write_edits(writer, known, [*[(*put, None) for put in puts], *edits], at, now)
    return True


def _find(reader: Reader, known: TableCatalog, key: Key, now: int) -> Cell | None:
    row, family, column, table = key
    layout = known.layout(table, family)
    state = reader.get(cell_key(layout, row, column))
    return newest(state, layout.find_oldest(now), now) if state else None


def _put_if_all(writer: Writer, known: TableCatalog, group: Sequence[Check], now: int) -> bool:
    for check in group:
        cell = _find(writer, known, check.key, now)
        if (b"" if cell is None else cell.value) != check.expected:
            return False
    edits = [edit for check in group for edit in check.edits]
    write_edits(writer, known, edits, now, now)
    return True
