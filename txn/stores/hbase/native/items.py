"""Requests for single rows or a range as HBase's messages, and the answers for each row.

Reads and plain writes share a list for their region. A checked write, or a row with atomic puts and
deletes, has an entry of its own. Items with is_once must not be done twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from txn.errors import MaybeApplied
from txn.model import CELL_OVERHEAD, Cell, Check, Edit, Key, RowExclusion, refuse_target
from txn.stores.hbase.base import ScanRange
from txn.stores.hbase.native.messages import PB, Cells
from txn.stores.hbase.places import RESERVED_END, check_place

PUT, DELETE = 2, 3
EQUAL, NOT_EQUAL = 2, 3
MULTIPLE_VERSIONS = 1  # of a delete: all versions up to its timestamp
FILTERS = "org.apache.hadoop.hbase.filter."
COMPARATOR = FILTERS + "BinaryComparator"
PASS_ALL, PASS_ONE = 1, 2
ASYNC_WAL = 2  # a durability: the server does not wait for its log
PREAD = 2  # a way to read; by default a server ends a page after 256 KB, even of excluded rows
PAGE_BYTES = 2_000_000
PROBE = b"_probe"  # a column
LOGGED_WORK = 4
"""The work of an item after which a server waits for its log; a row of a list counts as 1."""

Columns = tuple[bytes, ...] | None
Message = dict[str, Any]
"""The fields of a message to be built; those that are None stay out."""


class ReadRow:
    """Get the newest versions of some columns, or of all, of the row of a key; the answer is the
    existing cells. versions: if given, up to so many of each column; the answer has lists, newest
    first. valued: see `write_sieve`."""

    __slots__ = ("_keys", "_sieve", "_versions", "row", "table")
    field = "get"
    is_apart = is_once = False
    size = 0
    work = 1

    def __init__(
        self, key: Key, keys: Sequence[Key], versions: int | None = None, valued: Columns = None
    ) -> None:
        check_place(key)
        self.row, self.table = key[0], key[3] or b""
        self._keys, self._versions = keys, versions
        self._sieve = None if valued is None else make_sieve(valued)

    def make_condition(self) -> None:
        return None

    def list_messages(self) -> list[Message]:
        columns = [{"family": key[1], "qualifier": [key[2]]} for key in self._keys]
        own = {"row": self.row, "max_versions": self._versions, "filter": self._sieve}
        return [{**own, "column": columns}]

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
    """Put to the row of a key and delete from it; a pair is a put at the server's time. is_at_once:
    both take effect at once. expected: only if the key has this value, empty if it is absent; the
    answer is whether it has. is_deferred: see `Check`. A cell of another row is an
    InvalidRequestError.

    is_change: whether it puts or deletes anything.
    may_join: whether it may share a request of many conditional rows. Unlike a checked write, that
    puts at the server's time even below the checked cell, which would hide the new value. That
    matters only if the cell was not empty: see `Store.check_and_put`.
    """

    __slots__ = (
        *("_expected", "_key", "_marks", "_puts", "is_apart", "is_change", "is_deferred"),
        *("is_once", "may_join", "row", "size", "table", "work"),
    )
    field = "mutation"

    def __init__(
        self,
        key: Key,
        edits: Iterable[tuple[Key, bytes] | Edit],
        *,
        is_at_once: bool = False,
        is_deferred: bool = False,
        expected: bytes | None = None,
    ) -> None:
        overhead = check_place(key) + CELL_OVERHEAD
        row, _, _, table = key
        # Of two puts of a cell at one timestamp, HBase shows the one that arrived last.
        puts: dict[tuple[bytes, bytes, int | None], Message] = {}
        marks: dict[tuple[bytes, bytes, int | None], Message] = {}
        size = 0
        for target, value, *others in edits:
            target_row, family, column, target_table = target
            if target_row != row or target_table != table:
                raise refuse_target(key, target)
            timestamp = others[0] if others else None
            cell = {"qualifier": column, "value": value, "timestamp": timestamp}
            size += overhead + len(column)
            if value is None:
                cell["delete_type"] = MULTIPLE_VERSIONS
            else:
                size += len(value)
            cells = marks if value is None else puts
            cells[family, column, timestamp] = {"family": family, "qualifier_value": [cell]}
        self._key, self._expected, self._puts, self._marks = key, expected, puts, marks
        self.row, self.table, self.size = row, table or b"", size
        self.is_once = expected is not None
        self.is_apart = self.is_once or (is_at_once and bool(puts and marks))
        self.work = LOGGED_WORK if self.is_apart and not is_deferred else 1
        self.is_deferred, self.is_change = is_deferred, bool(puts or marks)
        self.may_join = self.is_once and not (expected and (*key[1:3], None) in puts)

    @property
    def condition(self) -> tuple[Key, bytes | None]:
        return self._key, self._expected

    def make_condition(self) -> Message | None:
        return None if self._expected is None else _make_condition(self._key, self._expected)

    def list_messages(self) -> list[Message]:
        found: list[Message] = []
        durability = ASYNC_WAL if self.is_deferred else None
        for kind, cells in ((PUT, self._puts), (DELETE, self._marks)):
            if cells or (kind == PUT and not self._marks):
                message = {"row": self.row, "mutate_type": kind, "durability": durability}
                message["column_value"] = cells.values()
                found.append(message)
        return found

    def read(self, answer: Any, cells: Cells) -> bool:
        if self._expected is None or answer.processed:
            return True
        if not answer.HasField("processed"):
            raise MaybeApplied("the server knows no conditions: HBase 2.4 is needed", row=self.row)
        return False


Item = ReadRow | WriteRow


def _make_condition(key: Key, expected: bytes) -> Message:
    row, family, column, _ = key
    where = {"row": row, "family": family, "qualifier": column}
    return {**where, "compare_type": EQUAL, "comparator": _make_comparator(expected)}


def make_probe(item: WriteRow, value: bytes) -> Any:
    """Return a request of many rows, on the condition that the cell which an item checks has a
    value that it cannot have. It would delete what nobody has written, from before 1970."""
    key, _ = item.condition
    cell = {"qualifier": PROBE, "timestamp": 1, "delete_type": MULTIPLE_VERSIONS}
    column = {"family": key.family, "qualifier_value": [cell]}
    change = {"row": key.row, "mutate_type": DELETE, "column_value": [column]}
    return PB.MutateRowsRequest(mutation_request=[change], condition=[_make_condition(key, value)])


def list_checks(checks: Iterable[Check]) -> list[WriteRow]:
    """Return the items of checks. Those without a condition share the list of their region, so that
    many of them share a write to the log."""
    return [
        WriteRow(key, (*puts, *edits), is_at_once=True, is_deferred=deferred, expected=expected)
        for key, expected, puts, edits, deferred in checks
    ]


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
    scan.max_result_size, scan.read_type = PAGE_BYTES, PREAD
    families: dict[bytes, Any] = {}
    for family, column in wanted.columns or ():
        if family not in families:
            families[family] = scan.column.add(family=family)
        families[family].qualifier.append(column)
    if wanted.exclude is not None and wanted.exclude.values:
        _leave_out(scan.filter, wanted.exclude)
    return request


@lru_cache(maxsize=1_000)
def make_sieve(valued: tuple[bytes, ...]) -> Any:
    """Return the filter of `write_sieve` as a message; an empty list passes all cells."""
    end = PB.RegexStringComparator(pattern=RESERVED_END.decode(), pattern_flags=0, charset="UTF-8")
    kept = [(FILTERS + "RegexStringComparator", end)]
    kept += [(COMPARATOR, PB.BinaryComparator(comparable={"value": each})) for each in valued]
    others = PB.FilterList(operator=PASS_ALL)
    for name, comparator in kept:
        bound = {"name": name, "serialized_comparator": comparator.SerializeToString()}
        compare = {"compare_op": NOT_EQUAL, "comparator": bound}
        _add_filter(others, "QualifierFilter", PB.QualifierFilter(compare_filter=compare))
    _add_filter(others, "KeyOnlyFilter", PB.KeyOnlyFilter(len_as_val=True))
    either = PB.FilterList(operator=PASS_ONE)
    for each in (PB.FilterList(operator=PASS_ALL), others):
        _add_filter(either, "FilterList", each)
    return {"name": FILTERS + "FilterList", "serialized_filter": either.SerializeToString()}


def _add_filter(to: Any, name: str, message: Any) -> None:
    to.filters.add(name=FILTERS + name, serialized_filter=message.SerializeToString())


def _make_comparator(value: bytes) -> Message:
    return {"name": COMPARATOR, "serialized_comparator": {"comparable": {"value": value}}}


def _leave_out(sieve: Any, exclude: RowExclusion) -> None:
    conditions = PB.FilterList(operator=PASS_ALL)
    for value in sorted(exclude.values):
        condition = PB.SingleColumnValueFilter(
            column_family=exclude.family,
            column_qualifier=exclude.column,
            compare_op=NOT_EQUAL,
            comparator=_make_comparator(value),
            filter_if_missing=False,
            latest_version_only=True,
        )
        _add_filter(conditions, "SingleColumnValueFilter", condition)
    sieve.name, sieve.serialized_filter = FILTERS + "FilterList", conditions.SerializeToString()
