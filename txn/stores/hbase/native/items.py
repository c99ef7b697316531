"""Requests for single rows or a range as HBase's messages, and the answers for each row.

Reads and plain writes share a list for their region. A checked write, or a row with atomic puts and
deletes, has an entry of its own. Items with is_once must not be done twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from txn.errors import MaybeApplied
from txn.model import CELL_OVERHEAD, Cell, Check, Edit, Key, RowExclusion, cell_bytes
from txn.stores.hbase.base import ScanRange
from txn.stores.hbase.native.messages import PB, Cells

PUT, DELETE = 2, 3
EQUAL, NOT_EQUAL = 2, 3
MULTIPLE_VERSIONS = 1  # of a delete: all versions up to its timestamp
FILTERS = "org.apache.hadoop.hbase.filter."
COMPARATOR = FILTERS + "BinaryComparator"
PASS_ALL = 1
ASYNC_WAL = 2  # a durability: the server does not wait for its log
PAGE_BYTES = 2_000_000
LOGGED_WORK = 4
"""The work of an item after which a server waits for its log; a row of a list counts as 1."""

Columns = dict[bytes, list[tuple[bytes, bytes | None, int | None]]]
"""By family: column, value (None: a delete marker), and timestamp (None: the server's)."""


class ReadRow:
    """Get the newest versions of some columns of a row; the answer is the existing cells. versions:
    if given, up to so many of each column; the answer has lists, newest first."""

    __slots__ = ("_keys", "_versions", "row", "table")
    is_apart = is_once = False
    size = 0
    work = 1

    def __init__(
        self, table: bytes, row: bytes, keys: Sequence[Key], versions: int | None = None
    ) -> None:
        self.table, self.row, self._keys, self._versions = table, row, keys, versions

    def fill(self, entry: Any, index: int) -> None:
        get = entry.action.add(index=index).get
        get.row = self.row
        families: dict[bytes, Any] = {}
        for _, family, column, _ in self._keys:
            wanted = families.get(family)
            if wanted is None:
                wanted = families[family] = get.column.add(family=family).qualifier
            wanted.append(column)
        if self._versions is not None:
            get.max_versions = self._versions

    def read(self, answer: Any, cells: Cells) -> dict[Key, Any]:
        count = answer.result.associated_cell_count
        if self._versions is None:
            return cells.take(count, self.table)
        found: dict[Key, list[Cell]] = {}
        for _ in range(count):
            ((key, cell),) = cells.take(1, self.table).items()
            found.setdefault(key, []).append(cell)
        return found


class WriteRow:
    """Put to a row and delete from it; with is_apart both take effect at once. is_deferred: see
    `Check`. The answer is True."""

    __slots__ = ("_is_deferred", "_marks", "_puts", "is_apart", "row", "size", "table", "work")
    is_once = False

    def __init__(
        self,
        table: bytes,
        row: bytes,
        edits: Iterable[Edit],
        is_at_once: bool = False,
        is_deferred: bool = False,
    ) -> None:
        self.table, self.row, self._is_deferred = table, row, is_deferred
        self.size = 0
        self._puts: Columns = {}
        self._marks: Columns = {}
        for (_, family, column, _), value, timestamp in edits:
            columns = self._marks if value is None else self._puts
            columns.setdefault(family, []).append((column, value, timestamp))
            self.size += len(row) + len(column) + len(value or b"") + CELL_OVERHEAD
        self.is_apart = is_at_once and bool(self._puts) and bool(self._marks)
        self.work = LOGGED_WORK if self.is_apart else 1

    def fill(self, entry: Any, index: int) -> None:
        if self.is_apart:
            entry.atomic = True
        for kind, columns in ((PUT, self._puts), (DELETE, self._marks)):
            if columns:
                mutation = entry.action.add(index=index).mutation
                _mutate(mutation, self.row, kind, columns, self._is_deferred)

    def read(self, answer: Any, cells: Cells) -> bool:
        return True


class CheckRow:
    """Write to a row if one of its cells has a value; the answer is whether it had."""

    __slots__ = ("_check", "row", "size", "table", "work")
    is_apart = is_once = True

    def __init__(self, check: Check) -> None:
        key = check[0]
        self.row, self.table = key[0], key[3] or b""
        self._check = check
        self.work = 1 if check.is_deferred else LOGGED_WORK
        self.size = sum(cell_bytes(put[0], put[1]) for put in check[2])
        self.size += sum(cell_bytes(edit[0], edit[1] or b"") for edit in check[3])

    def fill(self, entry: Any, index: int) -> None:
        (row, family, column, _), expected, puts, edits, is_deferred = self._check
        entry.atomic = True
        condition = entry.condition
        condition.row, condition.family, condition.qualifier = row, family, column
        condition.compare_type = EQUAL
        condition.comparator.name = COMPARATOR
        condition.comparator.serialized_comparator = _encode_comparator(expected or b"")
        put: Columns = {}
        marked: Columns = {}
        for key, value in puts:
            put.setdefault(key[1], []).append((key[2], value, None))
        for key, edited, timestamp in edits:
            columns = marked if edited is None else put
            columns.setdefault(key[1], []).append((key[2], edited, timestamp))
        if put or not marked:
            _mutate(entry.action.add(index=index).mutation, row, PUT, put, is_deferred)
        if marked:
            _mutate(entry.action.add(index=index).mutation, row, DELETE, marked, is_deferred)

    def read(self, answer: Any, cells: Cells) -> bool:
        if not answer.HasField("processed"):
            raise MaybeApplied("the server knows no conditions: HBase 2.4 is needed", row=self.row)
        return bool(answer.processed)


Item = ReadRow | WriteRow | CheckRow


def make_item(check: Check) -> CheckRow | WriteRow:
    """Return the item of a check. Without a condition it shares the list of its region, so that
    many of them share a write to the log."""
    if check.expected is not None:
        return CheckRow(check)
    row, _, _, table = check.key
    edits = (*(Edit(key, value, None) for key, value in check.puts), *check.edits)
    return WriteRow(table or b"", row, edits, is_at_once=True, is_deferred=check.is_deferred)


def _mutate(mutation: Any, row: bytes, kind: int, columns: Columns, is_deferred: bool) -> None:
    mutation.row, mutation.mutate_type = row, kind
    if is_deferred:
        mutation.durability = ASYNC_WAL
    for family, cells in columns.items():
        add = mutation.column_value.add(family=family).qualifier_value.add
        for column, value, timestamp in cells:
            if value is None:
                add(qualifier=column, timestamp=timestamp, delete_type=MULTIPLE_VERSIONS)
            elif timestamp is None:
                add(qualifier=column, value=value)
            else:
                add(qualifier=column, value=value, timestamp=timestamp)


def _encode_comparator(value: bytes) -> bytes:
    comparator = PB.BinaryComparator()
    comparator.comparable.value = value
    encoded: bytes = comparator.SerializeToString()
    return encoded


# ------------------------------------------------------------------------------- ranges of rows


def make_scan(wanted: ScanRange) -> Any:
    """Return the request for the next page, without its region."""
    request = PB.ScanRequest(
        number_of_rows=wanted.limit,
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
    if wanted.exclude is not None and wanted.exclude.values:
        _leave_out(scan.filter, wanted.exclude)
    return request


def _leave_out(sieve: Any, exclude: RowExclusion) -> None:
    conditions = PB.FilterList(operator=PASS_ALL)
    for value in sorted(exclude.values):
        condition = PB.SingleColumnValueFilter(
            column_family=exclude.family,
            column_qualifier=exclude.column,
            compare_op=NOT_EQUAL,
            comparator=PB.Comparator(
                name=COMPARATOR, serialized_comparator=_encode_comparator(value)
            ),
            filter_if_missing=False,
            latest_version_only=True,
        )
        encoded = condition.SerializeToString()
        conditions.filters.add(name=FILTERS + "SingleColumnValueFilter", serialized_filter=encoded)
    sieve.name, sieve.serialized_filter = FILTERS + "FilterList", conditions.SerializeToString()
