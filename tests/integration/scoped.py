"""A part of a store that looks like a store of its own: tests on HBase share two tables.

Making a table takes HBase a second. Each test gets rows that begin with a prefix of its own, which
is taken off again before the test sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from txn.model import Cell, Check, Edit, Family, Key, Row
from txn.stores.base import Feature, Store


class ScopedStore:
    """The rows of another store that begin with a prefix; which ends in a byte below 0xff."""

    def __init__(self, inner: Store, prefix: bytes) -> None:
        self.features: frozenset[Feature] = inner.features
        self._inner = inner
        self._prefix = prefix

    def read(self, keys: Collection[Key]) -> dict[Key, Cell | None]:
        found = self._inner.read([self._there(key) for key in keys])
        return {key: found[self._there(key)] for key in keys}

    def read_beside(
        self, keys: Collection[Key], work: Callable[[], None]
    ) -> dict[Key, Cell | None] | None:
        found = self._inner.read_beside([self._there(key) for key in keys], work)
        return None if found is None else {key: found[self._there(key)] for key in keys}

    def write(self, edits: Sequence[Edit], *, durable: bool = True) -> None:
        self._inner.write([edit._replace(key=self._there(edit.key)) for edit in edits])

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        return self._inner.check_and_put(
            [
                Check(
                    self._there(check.key),
                    check.expected,
                    tuple((self._there(key), value) for key, value in check.puts),
                )
                for check in checks
            ]
        )

    def scan(
        self,
        table: bytes,
        start: bytes = b"",
        stop: bytes | None = None,
        columns: Collection[tuple[bytes, bytes]] | None = None,
    ) -> Iterator[Row]:
        end = self._prefix + stop if stop else self._prefix[:-1] + bytes([self._prefix[-1] + 1])
        for row in self._inner.scan(table, self._prefix + start, end, columns):
            cells = {self._here(key): cell for key, cell in row.cells.items()}
            yield Row(row.row.removeprefix(self._prefix), cells)

    def together(self, work: Callable[[], None]) -> None:
        self._inner.together(work)

    def describe(self, table: bytes) -> Mapping[bytes, Family] | None:
        return self._inner.describe(table)

    def ensure_table(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes] = ()
    ) -> None:
        self._inner.ensure_table(table, families, splits)

    def compact(self, table: bytes, purge_before_ms: int) -> None:
        self._inner.compact(table, purge_before_ms)

    def close(self) -> None:
        pass

    def _there(self, key: Key) -> Key:
        return key._replace(row=self._prefix + key.row)

    def _here(self, key: Key) -> Key:
        return key._replace(row=key.row.removeprefix(self._prefix))
