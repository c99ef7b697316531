"""A look at the locks in a store that writes nothing, neither a lock nor the end of a session."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from txn.errors import InvalidRequestError
from txn.locks.manager import Lock, SeenLocks
from txn.locks.requests import Path
from txn.locks.sessions import FAMILY
from txn.locks.stored.lines import COLUMN, OBJECTS, Entry, as_locks, decode_line, decode_path
from txn.locks.stored.queue import TABLE
from txn.model import Key
from txn.protocol.context import Context, call_store
from txn.reading.scans import scan_rows
from txn.reading.snapshot import Snapshot
from txn.spans import Span

MOST_OBJECTS = 20_000
"""Rows that are read at most: an object keeps its own, with its token, when nobody is in line."""


class StoredLook:
    """Sees the locks in one table of a store, which need not be there."""

    def __init__(self, context: Context, table: str = TABLE) -> None:
        self._context = context
        self._table = table.encode()

    @property
    def is_there(self) -> bool:
        """Whether there is such a table: the first who wants a lock makes it."""
        families = self._context.store.describe(self._table) or {}
        return {OBJECTS.encode(), FAMILY.encode()} <= families.keys()

    def list_first(self, most: int) -> SeenLocks:
        """Return who holds and who waits. Entries of sessions that have ended are left out; one
        that is silent, but not ended yet, still keeps others out."""
        if not self.is_there:
            raise InvalidRequestError("no table of locks", table=self._table)
        lines = list(islice(self._list_lines(), MOST_OBJECTS + 1))
        alive = self._find_alive({each.session for _, line in lines for each in line} - {None})
        locks: list[Lock] = []
        for at, line in sorted(lines, key=lambda each: each[0]):
            there = [each for each in line if each.session is None or each.session in alive]
            locks += as_locks(at, there)
        return SeenLocks(tuple(locks[:most]), len(locks) <= most and len(lines) <= MOST_OBJECTS)

    def close(self) -> None:
        """The store is closed by whoever opened it."""

    def _list_lines(self) -> Iterator[tuple[Path, Sequence[Entry]]]:
        column = frozenset({(OBJECTS.encode(), COLUMN.encode())})
        for row in scan_rows(self._context, Span(self._table, columns=column), self._read):
            if row.cells:
                line = decode_line(row.row, next(iter(row.cells.values())))
                yield decode_path(row.row), line.line

    def _read(self, keys: Sequence[Key]) -> Snapshot:
        """Read a row that never stands still as it is, instead of under locks."""
        found = call_store(self._context, lambda: self._context.store.read(list(keys)))
        return {key: found[key] for key in keys}

    def _find_alive(self, sessions: Collection[str | None]) -> set[str]:
        keys = {Key(name, FAMILY, "beat", self._table): name for name in sessions if name}
        found = self._read(list(keys)) if keys else {}
        return {keys[key] for key, cell in found.items() if cell is not None}
