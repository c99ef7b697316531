"""What a request asks of a range of rows, as messages of HBase's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from txn.model import Row, Unless
from txn.stores.hbase.native.items import COMPARATOR, encode_comparator
from txn.stores.hbase.native.messages import PB
from txn.stores.hbase.native.regions import Location, Regions
from txn.stores.hbase.places import row_after

PAGE_BYTES = 2_000_000
NOT_EQUAL = 3
PASS_ALL = 1
FILTERS = "org.apache.hadoop.hbase.filter."


class ScanRange(NamedTuple):
    """What a scan asks for: rows of a table from the start to the stop, which is not among them
    (empty: to the end), these columns of theirs (None: all), and which rows it leaves out.
    reverse: the last row comes first."""

    table: bytes
    start: bytes
    stop: bytes
    columns: Sequence[tuple[bytes, bytes]] | None
    unless: Unless | None
    reverse: bool

    def find_region(self, regions: Regions, due_ms: int) -> Location:
        """Return the region that has the first of the rows."""
        bound = self.stop if self.reverse else self.start
        return regions.find(self.table, bound, due_ms, before=self.reverse)

    def skip_region(self, region: Location) -> ScanRange | None:
        """Return what is left behind a region, if anything is."""
        bound = region.start if self.reverse else region.stop
        return self._move(bound) if bound else None

    def skip_rows(self, cursor: bytes, last: bytes) -> ScanRange | None:
        """Return what is left, if anything is, after an answer with this last row, of a server that
        stands at this row; both may be empty."""
        if self.reverse:
            bounds = self.stop, row_after(cursor) if cursor else b"", last
            return self._move(min((bound for bound in bounds if bound), default=b""))
        return self._move(max(self.start, cursor, row_after(last) if last else b""))

    def _move(self, bound: bytes) -> ScanRange | None:
        rest = self._replace(stop=bound) if self.reverse else self._replace(start=bound)
        return None if rest.stop and rest.start >= rest.stop else rest

    def is_due(self, row: Row) -> bool:
        """Whether a row that was read by itself is one of them."""
        return bool(row.cells) and (self.unless is None or not self.unless.leaves_out(row))


def make_scan(wanted: ScanRange, limit: int) -> Any:
    """Return the request for the first so many rows; which region it is for is still open."""
    request = PB.ScanRequest(
        number_of_rows=limit,
        close_scanner=True,
        client_handles_partials=True,
        client_handles_heartbeats=True,
    )
    scan = request.scan
    scan.need_cursor_result = True
    scan.start_row, scan.stop_row = wanted.start, wanted.stop
    if wanted.reverse:
        scan.start_row, scan.stop_row, scan.reversed = wanted.stop, wanted.start, True
        scan.include_start_row, scan.include_stop_row = False, True
    scan.max_result_size = PAGE_BYTES
    families: dict[bytes, Any] = {}
    for family, column in wanted.columns or ():
        if family not in families:
            families[family] = scan.column.add(family=family)
        families[family].qualifier.append(column)
    if wanted.unless is not None and wanted.unless.values:
        _leave_out(scan.filter, wanted.unless)
    return request


def _leave_out(sieve: Any, unless: Unless) -> None:
    """Let the server leave out rows with any of the values: one condition for each."""
    conditions = PB.FilterList(operator=PASS_ALL)
    for value in sorted(unless.values):
        condition = PB.SingleColumnValueFilter(
            column_family=unless.family,
            column_qualifier=unless.column,
            compare_op=NOT_EQUAL,
            comparator=PB.Comparator(
                name=COMPARATOR, serialized_comparator=encode_comparator(value)
            ),
            filter_if_missing=False,
            latest_version_only=True,
        )
        encoded = condition.SerializeToString()
        conditions.filters.add(name=FILTERS + "SingleColumnValueFilter", serialized_filter=encoded)
    sieve.name, sieve.serialized_filter = FILTERS + "FilterList", conditions.SerializeToString()
