"""Any store with a count per method and a trace, because cost is a fact with a test.

Each call is passed on as it was made, so that what is counted is what runs: by its own name, also
where it fails. A store that makes one call of several can have a counter below it as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from txn.model import Cell, Check, Columns, Edit, Family, Key, Row, Unless
from txn.stores.base import Feature, Store


class Counted(NamedTuple):
    """One call: the method, and the keys, edits, checks or the table that it was given."""

    method: str
    items: tuple[object, ...]


class CountingStore:
    """A store that keeps the books: `trace` has every call since the last `reset`; those that are
    made `together`, or beside a read, come behind that one."""

    def __init__(self, inner: Store) -> None:
        self.features: frozenset[Feature] = inner.features
        self.trace: list[Counted] = []
        self._inner = inner

    @property
    def calls(self) -> Counter[str]:
        """How often each method was called."""
        return Counter(call.method for call in self.trace)

    @property
    def items(self) -> Counter[str]:
        """How many items each method was given, over all its calls."""
        found: Counter[str] = Counter()
        for call in self.trace:
            found[call.method] += len(call.items)
        return found

    def reset(self) -> None:
        """Forget what was counted."""
        self.trace.clear()

    def read(
        self, *groups: Collection[Key], beside: Callable[[], None] | None = None
    ) -> dict[Key, Cell | None]:
        self.trace.append(Counted("read", tuple(key for keys in groups for key in keys)))
        return self._inner.read(*groups, beside=beside)

    def read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        self.trace.append(Counted("read_versions", tuple(keys)))
        return self._inner.read_versions(keys, count)

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        self.trace.append(Counted("write", tuple(edits)))
        self._inner.write(edits, durable=durable, by_row=by_row)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        self.trace.append(Counted("check_and_put", tuple(checks)))
        return self._inner.check_and_put(checks, durable=durable)

    def scan(
        self,
        table: bytes,
        start: bytes = b"",
        stop: bytes | None = None,
        columns: Columns = None,
        unless: Unless | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[Row]:
        self.trace.append(Counted("scan", (table,)))
        return self._inner.scan(table, start, stop, columns, unless, reverse=reverse)

    def together(self, work: Callable[[], None]) -> None:
        self.trace.append(Counted("together", ()))
        self._inner.together(work)

    def list_tables(self) -> list[bytes]:
        self.trace.append(Counted("list_tables", ()))
        return self._inner.list_tables()

    def describe(self, table: bytes) -> Mapping[bytes, Family] | None:
        self.trace.append(Counted("describe", (table,)))
        return self._inner.describe(table)

    def ensure_table(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes] = ()
    ) -> None:
        self.trace.append(Counted("ensure_table", (table,)))
        self._inner.ensure_table(table, families, splits)

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        self.trace.append(Counted("find_splits", (table,)))
        return self._inner.find_splits(table, count, start, stop)

    def compact(self, table: bytes, purge_before_ms: int) -> None:
        self.trace.append(Counted("compact", (table,)))
        self._inner.compact(table, purge_before_ms)

    def close(self) -> None:
        self._inner.close()
