"""Tables in memory in regions, each with a log that a power failure may cut. A deferred check takes
effect at once, and a crash may undo it with all that came after it there; a write that is not
deferred makes all that is pending in its region durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from tests.simulation.world import Wrapper
from txn.model import Check, Edit, Key
from txn.stores.base import check_then_read
from txn.stores.local import LocalStore
from txn.tables.catalog import ROW_END, ROW_PASSED, escape_row, load_catalog
from txn.tables.kv.ordered import OrderedStore, Writer


class Region(NamedTuple):
    """A region of a table. part: the hash of its rows, or its one row."""

    table: bytes
    part: int | bytes


Division = Callable[[bytes, bytes], Region]
"""Returns the region of a table's row."""


def divide_by_row(table: bytes, row: bytes) -> Region:
    return Region(table, row)


def divide_by_hash(counts: Mapping[bytes, int]) -> Division:
    return lambda table, row: Region(table, crc32(row) % counts[table])


class RowCopy(NamedTuple):
    """A row as it was before a pending write: all it had, as it is stored, from start to stop."""

    start: bytes
    stop: bytes
    stored: Mapping[bytes, bytes]


class RegionStore(Wrapper):
    """A LocalStore whose regions have logs. pending: for each region, a copy of its row before each
    deferred write. Putting them back, newest first, gives the state before the oldest."""

    check_and_read = check_then_read

    def __init__(self, inner: LocalStore, region_of: Division = divide_by_row) -> None:
        super().__init__(inner)
        self.pending: dict[Region, list[RowCopy]] = {}
        self._region_of = region_of
        self._prefixes: dict[bytes, bytes] = {}
        self._is_inside = False

    @property
    def inner(self) -> LocalStore:
        return self._inner

    @property
    def ordered(self) -> OrderedStore:
        return self._inner._ordered

    def region_of(self, key: Key) -> Region:
        assert key.table is not None
        return self._region_of(key.table, key.row)

    def flush(self, region: Region) -> None:
        self.pending.pop(region, None)

    def crash(self, region: Region, keep: int = 0) -> int:
        """Lose the pending writes of a region except the first `keep`; return how many are lost."""
        lost = self.pending.pop(region, [])[keep:]

        def put_back(writer: Writer) -> None:
            for start, stop, stored in reversed(lost):
                for name in list(writer.keys(start, stop)):
                    writer.delete(name)
                for name, value in stored.items():
                    writer.put(name, value)

        self.ordered.write(put_back)
        return len(lost)

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        self._inner.write(edits, durable=durable, by_row=by_row)
        for edit in edits:
            self.flush(self.region_of(edit.key))

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        """Carry out the checks in order. One that is refused waits for no log."""
        answers: list[bool] = []
        copies: list[RowCopy] = []

        def work() -> None:
            for check in checks:
                copies.append(self._copy_row(check.key))
                answers.extend(self._inner.check_and_put([check], durable=durable))

        self._inner.atomically(work)  # all or none, if a table is gone
        for check, copy, done in zip(checks, copies, answers, strict=True):
            region = self.region_of(check.key)
            if done and check.is_deferred and not self._is_inside:
                self.pending.setdefault(region, []).append(copy)
            elif done:
                self.flush(region)
        return answers

    def atomically(self, work: Callable[[], None]) -> None:
        """Run it in one local transaction, of which nothing is deferred."""
        if self._is_inside:
            work()
            return
        self.pending.clear()
        self._is_inside = True
        try:
            self._inner.atomically(work)
        finally:
            self._is_inside = False

    def compact(self, table: bytes, purge_before_ms: int | None = None) -> None:
        """Compact a table."""
        for region in [region for region in self.pending if region.table == table]:
            self.flush(region)
        self._inner.compact(table, purge_before_ms)

    def _copy_row(self, key: Key) -> RowCopy:
        assert key.table is not None
        row = self._find_prefix(key.table) + escape_row(key.row)
        start, stop = row + ROW_END, row + ROW_PASSED
        stored = self.ordered.read(lambda reader: dict(reader.items(start, stop)))
        return RowCopy(start, stop, stored)

    def _find_prefix(self, table: bytes) -> bytes:
        if table not in self._prefixes:
            known = self.ordered.read(load_catalog)
            self._prefixes[table] = known.find(table).prefix
        return self._prefixes[table]
