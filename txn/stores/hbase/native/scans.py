"""What a request asks of a range of rows, as messages of HBase's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from txn.model import Row, RowExclusion
from txn.stores.hbase.native.items import COMPARATOR, encode_comparator
from txn.stores.hbase.native.messages import PB

PAGE_BYTES = 2_000_000
NOT_EQUAL = 3
PASS_ALL = 1
FILTERS = "org.apache.hadoop.hbase.filter."


class ScanRange(NamedTuple):
    """What a scan asks for: rows of a table up to the stop (empty: to the end), these columns of
    theirs (None: all), and which rows it leaves out."""

    table: bytes
    stop: bytes
    columns: Sequence[tuple[bytes, bytes]] | None
    exclude: RowExclusion | None

    def is_due(self, row: Row) -> bool:
        """Whether a row that was read by itself is one of them."""
        return bool(row.cells) and (self.exclude is None or not self.exclude.matches(row))


def make_scan(wanted: ScanRange, start: bytes, limit: int) -> Any:
    """Return the request for the first so many rows from this one on; its region is still open."""
    request = PB.ScanRequest(
        number_of_rows=limit,
        close_scanner=True,
        client_handles_partials=True,
        client_handles_heartbeats=True,
    )
    scan = request.scan
    scan.need_cursor_result = True
    scan.start_row, scan.stop_row = start, wanted.stop
    scan.max_result_size = PAGE_BYTES
    families: dict[bytes, Any] = {}
    for family, column in wanted.columns or ():
        if family not in families:
            families[family] = scan.column.add(family=family)
        families[family].qualifier.append(column)
    if wanted.exclude is not None and wanted.exclude.values:
        _leave_out(scan.filter, wanted.exclude)
    return request


def _leave_out(sieve: Any, exclude: RowExclusion) -> None:
    """Let the server leave out rows with any of the values: one condition for each."""
    conditions = PB.FilterList(operator=PASS_ALL)
    for value in sorted(exclude.values):
        condition = PB.SingleColumnValueFilter(
            column_family=exclude.family,
            column_qualifier=exclude.column,
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
