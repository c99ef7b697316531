"""What the stores of HBase have in common, whatever carries their requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from txn.errors import NotApplied
from txn.model import Columns, Key, Row, RowExclusion, check_exclusion
from txn.stores.hbase.places import row_after

MOST_STANDS = 100  # answers in a row without progress: a busy server may give some
FIRST_PAGE_ROWS = 32
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


class HBaseTables(ABC):
    """The tables of an HBase, whatever carries the requests. Each call is durable, even with
    durable=False."""

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
