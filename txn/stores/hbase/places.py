"""Keys, rows and pages of HBase's tables, for every way to reach them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from txn.errors import InvalidRequestError, TableUnavailable, annotate
from txn.model import MAX_ROW, RESERVED, Cell, Check, Edit, Key, RowExclusion
from txn.stores.base import Families

T = TypeVar("T")

RESERVED_END = b"(%b)$" % b"|".join(RESERVED)
_TABLE = re.compile(r"(?:\w+:)?\w[\w.-]*")

Cells = dict[Key, Cell]
Versions = dict[Key, list[Cell]]
KeysByRow = Mapping[bytes, Sequence[Key]]  # the keys of some rows of one table, by row


def is_legal(table: bytes) -> bool:
    return _TABLE.fullmatch(table.decode(errors="replace")) is not None


def check_place(key: Key) -> int:
    """Return the length of a key's row; InvalidRequestError if it names no row of a table."""
    row, _, _, table = key
    if not table:
        raise InvalidRequestError("the key names no table", key=key)
    length = len(row)
    if not 0 < length <= MAX_ROW:
        raise InvalidRequestError("a row is 1 to 32767 bytes", bytes=length, starts=row[:40])
    return length


def keep_last(edits: Iterable[Edit]) -> Collection[Edit]:
    """Return the edits without those that a later one replaces: of two puts of a cell at one
    timestamp, HBase shows the one that arrived last."""
    kept: dict[tuple[Key, int | None, bool], Edit] = {}
    for edit in edits:
        key, value, timestamp = edit
        check_place(key)
        kept[key, timestamp, value is None] = edit
    return kept.values()


def list_targets(checks: Sequence[Check]) -> Iterator[Key]:
    """Return the keys of checks, lazily: they are needed only if a check fails."""
    return (key for check in checks for key in (check.key, *check.targets))


def group_by_table(keys: Iterable[Key]) -> dict[bytes, dict[bytes, list[Key]]]:
    tables: dict[bytes, dict[bytes, list[Key]]] = {}
    for key in dict.fromkeys(keys):
        row, _, _, table = key
        rows = tables.get(table or b"")
        if rows is None:
            rows = tables[table or b""] = {}
        others = rows.get(row)
        if others is not None:
            others.append(key)
        else:
            check_place(key)
            rows[row] = [key]
    return tables


def complete(keys: Collection[Key], parts: Sequence[Mapping[Key, Cell]]) -> dict[Key, Cell | None]:
    cells: dict[Key, Cell | None] = dict.fromkeys(keys)
    for part in parts:
        cells.update(part)
    return cells


def complete_versions(keys: Collection[Key], parts: Sequence[Versions]) -> Versions:
    found = {key: cells for part in parts for key, cells in part.items()}
    return {key: found.get(key, []) for key in keys}


def row_after(row: bytes) -> bytes:
    """Return the least row after this one that HBase accepts."""
    if len(row) < MAX_ROW:
        return row + b"\0"
    kept = row.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


def row_below(row: bytes) -> bytes:
    """Return a row shortly before this one; an empty row stands for the beginning of the table."""
    if not row or row.endswith(b"\0"):
        return row[:-1]
    padding = b"\xff" * min(8, MAX_ROW - len(row))
    return row[:-1] + bytes([row[-1] - 1]) + padding


def cut(
    items: Sequence[T], size: Callable[[T], int], most_bytes: int, most: int
) -> Iterator[list[T]]:
    """Cut a request into parts that fit a server's memory."""
    begin = total = 0
    for at, more in enumerate(map(size, items)):
        if begin < at and (total + more > most_bytes or at - begin == most):
            yield list(items[begin:at])
            begin, total = at, 0
        total += more
    if items:
        yield list(items[begin:])


ELSEWHERE = {
    *("NotServingRegionException", "RegionMovedException", "RegionOpeningException"),
    *("RegionServerAbortedException", "RegionServerStoppedException"),
    *("ServerNotRunningYetException", "WrongRegionException"),
}
BUSY = {
    *("CallDroppedException", "CallQueueTooBigException", "MultiActionResultTooLarge"),
    *("PleaseHoldException", "RegionTooBusyException", "RpcThrottlingException"),
}
FINAL = {
    *("AccessDeniedException", "ConstraintException", "DoNotRetryIOException"),
    *("DoNotRetryRegionException", "FailedSanityCheckException", "InvalidLabelException"),
    *("QuotaExceededException", "RequestTooBigException", "RowTooBigException"),
    *("SpaceLimitingException", "ThrottlingException"),
}
"""Errors that HBase's own clients do not retry."""

REOPENED = {
    *("LeaseException", "OutOfOrderScannerNextException"),
    *("ScannerResetException", "UnknownScannerException"),
}
"""Errors to retry with a new scanner, not with the same one."""


def is_final(error: object, can_retry: bool | None) -> bool:
    """Return True if a gateway's error is final. can_retry: the gateway's own statement, if any."""
    names = set(re.findall(r"\w+Exception", first_line(error)))
    if names & (ELSEWHERE | BUSY | REOPENED):
        return False
    return can_retry is False or bool(names & FINAL)


def make_refusal(table: bytes, error: object) -> TableUnavailable:
    """Return the error of a table that refuses a request for good; the request may be partly done.
    Without a name, the server refused the request as a whole."""
    words = "the table refuses it" if table else "the server refuses it"
    message = annotate(words, table=table or None, cause=first_line(error))
    return TableUnavailable(message, table)


def find_absent(
    describe: Callable[[bytes], Families | None], keys: Iterable[Key], table: bytes = b""
) -> TableUnavailable | None:
    """Return the error of a missing table or family of these keys, or of this table, if any."""
    families: dict[bytes, set[bytes]] = {table: set()} if table else {}
    for key in keys:
        families.setdefault(key.table or b"", set()).add(key.family)
    for name in sorted(families):
        known = describe(name)
        if known is None:
            return TableUnavailable(annotate("no such table", table=name), name)
        for family in sorted(families[name] - set(known)):
            message = annotate("no such family", table=name, family=family)
            return TableUnavailable(message, name)
    return None


def first_line(error: object) -> str:
    return str(error).partition("\n")[0][:300]


def keep_between(rows: Iterable[bytes], start: bytes, stop: bytes | None) -> list[bytes]:
    return sorted({row for row in rows if row > start and (not stop or row < stop)})


def list_valued_columns(keys: Iterable[Key], stamps: Collection[Key]) -> tuple[bytes, ...] | None:
    """Return the columns of a row whose values are needed, beside locks and tags; None if there are
    no stamps. A filter that knows them leaves out the values of the others."""
    valued = [key for key in keys if key not in stamps]
    if len(valued) == len([*keys]):
        return None
    return tuple(sorted({key[2] for key in valued if not key[2].endswith(RESERVED)}))


@lru_cache(maxsize=1_000)
def write_sieve(valued: tuple[bytes, ...]) -> bytes:
    """Return a filter, in HBase's language, that passes all cells: those of the valued columns,
    locks and tags as they are, and the lengths of the others."""
    left = [b"QualifierFilter(!=, 'binary:%b')" % each.replace(b"'", b"''") for each in valued]
    others = b" AND ".join([b"QualifierFilter(!=, 'regexstring:%b')" % RESERVED_END, *left])
    return b"ColumnPrefixFilter('') OR (%b AND KeyOnlyFilter(true))" % others


def write_filter(exclude: RowExclusion) -> bytes:
    """Return the exclusion in HBase's filter language: one condition for each value."""
    family, column = (part.replace(b"'", b"''") for part in exclude[:2])
    return b" AND ".join(
        b"SingleColumnValueFilter('%b', '%b', !=, 'binary:%b', false, true)"
        % (family, column, value.replace(b"'", b"''"))
        for value in sorted(exclude.values)
    )
