"""The basic data: keys, mutations, and the cells that a store returns.

All are frozen values without I/O. Text is accepted wherever HBase takes bytes, and becomes UTF-8.
Keys and cells are tuples because the library hashes and compares them more than anything else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

from txn.errors import InvalidRequestError
from txn.escapes import escape, unescape

Value = bytes
"""The content of a cell: at least one byte. A text argument stands for its UTF-8."""

LOCK_SUFFIX = b"_lock"
TAG_SUFFIX = b"_tag"
RESERVED = (LOCK_SUFFIX, TAG_SUFFIX)

ROW_KEY = re.compile(
    rb"((?:\d\d\.)?transaction\.(\d{13})\.[0-9a-f]{32}(?:@([^@ ]+?))?)"
    rb"(?:\.part-(\d{5})-(\d{5}))?"
)
"""The row key of a transaction: see docs/row-format.md."""

DATABASE_ENTRY = "hbase-txn.transactions"
"""The configuration entry of a family that names the transaction table of its database."""
DEFAULT_NAMESPACE = b"default:"

MAX_ROW = 32_767
MAX_COLUMN = 32_767
MAX_FAMILY = 127
MAX_TABLE = 255
LIMITS = (MAX_ROW, MAX_FAMILY, MAX_COLUMN, MAX_TABLE)
KEEP_DELETES_MS = 24 * 3_600_000  # as long as transaction rows are kept
# The longest time between two reads that are compared. The remains of a key deleted between them
# must still exist at the second; they are kept for the retention, 24 h by default. Ten minutes are
# a hundred times longer than any read, with a margin for clocks that differ.
READS_WITHIN_MS = 10 * 60_000
MAX_CELL = 10 * 1024 * 1024  # HBase's default (hbase.server.keyvalue.maxsize), key included
CELL_OVERHEAD = 64
SURELY_FITS = MAX_CELL - CELL_OVERHEAD - MAX_ROW - MAX_FAMILY - MAX_COLUMN
"""A value of so many bytes fits into a cell with the longest key."""


# A named tuple's constructor without conversions, three times as fast, for bytes from a store.
new_tuple = tuple.__new__


class _KeyFields(NamedTuple):
    row: bytes
    family: bytes
    column: bytes
    table: bytes | None = None


class Key(_KeyFields):
    """Names one cell: `Key(row, family, column, table=None)`, each part text (UTF-8) or bytes.

    Without a table it means the engine's default table. Keys sort as tuples, by row first.
    """

    __slots__ = ()

    def __new__(
        cls,
        row: str | bytes,
        family: str | bytes,
        column: str | bytes,
        table: str | bytes | None = None,
    ) -> Self:
        return super().__new__(
            cls,
            as_bytes("row", row),
            as_bytes("family", family),
            as_bytes("column", column),
            None if table is None else as_bytes("table", table),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        r"""Return the key of `table/row/family:column`; raise InvalidRequestError if it is none.

        Bytes that are not printable are written as `\xNN`, a backslash as `\\`. The table ends at
        the first slash and the row at the last one, so a slash in a column is `\x2f`.
        """
        if not isinstance(text, str):
            raise InvalidRequestError("the text of a key must be str", given=text)
        table, _, rest = text.partition("/")
        row, _, last = rest.rpartition("/")
        family, _, column = last.partition(":")
        if not (table and row and family and column):
            raise InvalidRequestError("a key is table/row/family:column", given=text)
        return cls(unescape(row), unescape(family), unescape(column), unescape(table))

    @property
    def text(self) -> str:
        """The text of which `parse` makes this key, if it names its table."""
        column = escape(self.column).replace("/", r"\x2f")
        return f"{escape(self.table or b'')}/{escape(self.row)}/{escape(self.family)}:{column}"

    @property
    def lock(self) -> Key:
        """The lock cell of this key, which contains its holder's row key."""
        row, family, column, table = self
        return new_tuple(Key, (row, family, column + LOCK_SUFFIX, table))

    @property
    def row_lock(self) -> Key:
        """The lock cell of this key's row and family, in the fenced protocol."""
        row, family, _, table = self
        return new_tuple(Key, (row, family, LOCK_SUFFIX, table))

    @property
    def tag(self) -> Key:
        """The cell with the timestamp of the version being replaced, during the write."""
        row, family, column, table = self
        return new_tuple(Key, (row, family, column + TAG_SUFFIX, table))

    def __repr__(self) -> str:
        table = "" if self.table is None else f", {self.table!r}"
        return f"Key({self.row!r}, {self.family!r}, {self.column!r}{table})"


class Cell(NamedTuple):
    """One visible version: its value and its timestamp in milliseconds."""

    value: bytes
    timestamp: int


class Stamp(NamedTuple):
    """One visible version whose value was not read: its timestamp in milliseconds."""

    timestamp: int


def require_cell(found: Cell | Stamp | None) -> Cell | None:
    """Return a cell that was read with its value; raise TypeError for another one."""
    if isinstance(found, Stamp):
        raise TypeError("the value was not read")
    return found


class Edit(NamedTuple):
    """A cell to write at a timestamp (None: the server's). The value None is a delete-column
    marker, which needs a timestamp."""

    key: Key
    value: bytes | None
    timestamp: int | None


class Check(NamedTuple):
    """A checked write: if `key` equals `expected` (empty and absent are equal), put `puts` at the
    server's time and make `edits` at their own timestamps, in one step. All are of the checked
    key's table and row.

    expected: None: there is no condition. is_deferred: the server need not wait for its log. If the
    server crashes, the write may be lost, together with everything written after it in its region,
    until a write in that region that is not deferred has been acknowledged.
    """

    key: Key
    expected: bytes | None
    puts: tuple[tuple[Key, bytes], ...] = ()
    edits: tuple[Edit, ...] = ()
    is_deferred: bool = False

    @property
    def targets(self) -> list[Key]:
        return [*(key for key, _ in self.puts), *(edit.key for edit in self.edits)]


def check_targets(check: Check) -> None:
    """Raise InvalidRequestError unless the check writes only cells of its own row."""
    row, _, _, table = check.key
    for part in (check.puts, check.edits):
        for item in part:
            target = item[0]
            if target[0] != row or target[3] != table:
                raise refuse_target(check.key, target)


def refuse_target(checked: Key, target: Key) -> InvalidRequestError:
    return InvalidRequestError("a checked write is of one row", checked=checked, target=target)


class Row(NamedTuple):
    """One row of a scan: the newest visible version of each of its cells. Its keys name the table;
    those that an engine returns are found without it as well: see `RowCells`."""

    row: bytes
    cells: dict[Key, Cell]


class RowCells(dict[Key, Cell]):
    """The cells of a row for a user: a key that names no table finds its cell as well."""

    __slots__ = ()

    def __missing__(self, key: Key) -> Cell:
        if isinstance(key, Key) and key.table is None and self:
            named = new_tuple(Key, (*key[:3], next(iter(self)).table))
            if dict.__contains__(self, named):
                return self[named]
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def get(self, key: object, default: Any = None) -> Any:
        try:
            return self[key]  # type: ignore[index]
        except KeyError:
            return default


Columns = Collection[tuple[bytes, bytes]] | None
"""(family, column) pairs; None: all columns."""


class RowExclusion(NamedTuple):
    """The rows that a scan leaves out: those whose newest version of this cell has one of these
    values. Rows without the cell stay."""

    family: bytes
    column: bytes
    values: frozenset[bytes]

    def matches(self, row: Row) -> bool:
        """Whether a row, read with this cell, is left out."""
        cell = next((row.cells[key] for key in row.cells if key[1:3] == self[:2]), None)
        return cell is not None and cell.value in self.values


def check_count(count: int) -> None:
    """Raise InvalidRequestError unless HBase accepts this number of versions."""
    if not 1 <= count < 1 << 31:
        raise InvalidRequestError("not a number of versions, from 1 to 2147483647", count=count)


def check_exclusion(columns: Columns, exclude: RowExclusion | None) -> None:
    """Raise InvalidRequestError if a scan's columns lack the cell of its exclusion."""
    if exclude is not None and columns is not None and exclude[:2] not in columns:
        message = "the columns of a scan lack the one that rows are left out by"
        raise InvalidRequestError(message, family=exclude.family, column=exclude.column)


@dataclass(frozen=True, slots=True, init=False)
class KeyValue:
    """A key and a value for it, which is given as bytes, or as text for its UTF-8."""

    key: Key
    value: bytes

    def __init__(self, key: Key, value: str | bytes) -> None:
        object.__setattr__(self, "key", key)
        given = value if type(value) is bytes else as_bytes("value", value)
        object.__setattr__(self, "value", given)


@dataclass(frozen=True, slots=True, init=False)
class Mutation(KeyValue):
    """Set a key to a value when the transaction commits. The value is bytes, or text as UTF-8."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key, all its versions, when the transaction commits."""

    key: Key
    value: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class Family:
    """The settings of a column family that matter to the protocol; None: the store's default.

    The settings after the first two are what a store found, if it can see them.
    keep_deletes_ms: how long delete markers live; None: for ever, or unknown.
    durability: set only if it loses acknowledged writes.
    replicas: copies of its regions that may be read.
    database: the transaction table of the family's database; None: no database yet, or unknown.
    """

    versions: int = 3
    ttl_ms: int | None = None
    keep_deletes_ms: int | None = None
    durability: str | None = None
    new_version_behavior: bool = False
    replicas: int = 1
    database: bytes | None = None


@lru_cache(maxsize=1_000)
def plain_table(table: bytes) -> bytes:
    """Return a table's name without the default namespace."""
    return table.removeprefix(DEFAULT_NAMESPACE)


def refuse_other_database(
    table: bytes, families: Iterable[Family], transactions: bytes | None
) -> None:
    """Raise InvalidRequestError if a family of the table belongs to another database than that of
    this transaction table: neither would see the other's transactions."""
    ours = None if transactions is None else plain_table(transactions)
    for family in families:
        if ours is not None and family.database not in (None, ours):
            raise InvalidRequestError(
                "the table belongs to another database: name its transaction table, or see "
                "`txn table take-over`",
                table=table,
                belongs_to=family.database,
                transactions=ours,
            )


def find_refusal(family: Family) -> str | None:
    """Return why transactions must not write to the family; None if they may."""
    if family.ttl_ms is not None:
        return f"family has a TTL: its locks would expire ttl_ms={family.ttl_ms}"
    if family.new_version_behavior:
        return "family has NEW_VERSION_BEHAVIOR: its delete markers do not mask late puts"
    if family.durability is not None:
        return (
            "family may lose acknowledged writes, and with them decisions "
            f"durability={family.durability!r}"
        )
    return None


def find_delete_refusal(family: Family) -> str | None:
    """Return why transactions must not delete in the family; None if they may.

    Once a compaction purges a marker, it no longer masks a late duplicate of an older put.
    """
    kept_ms = family.keep_deletes_ms
    if kept_ms is not None and kept_ms < KEEP_DELETES_MS:
        return (
            "family does not keep its delete markers as long as transactions may be repeated: set "
            f"hbase.hstore.time.to.purge.deletes to {KEEP_DELETES_MS} keep_deletes_ms={kept_ms}"
        )
    return None


def as_bytes(name: str, value: object) -> bytes:
    """Return text as UTF-8 and bytes unchanged; raise InvalidRequestError for anything else."""
    if type(value) is bytes:
        return value
    if type(value) is str or isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            message = f"{name} must be text that UTF-8 can write"
            raise InvalidRequestError(message, given=ascii(value)) from error
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    message = f"{name} must be bytes or str"
    raise InvalidRequestError(message, given=value, type=type(value).__name__)


def check_whole(name: str, value: object, least: int | None = None) -> None:
    """Raise InvalidRequestError unless this is an integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        message = f"{name} must be a whole number"
        raise InvalidRequestError(message, given=value, type=type(value).__name__)
    if least is not None and value < least:
        raise InvalidRequestError(f"{name} must be at least {least}", **{name: value})


def check_items(name: str, given: object) -> Iterable[Any]:
    """Return what may be several items; raise InvalidRequestError for anything else, and for text,
    whose letters nobody means."""
    if type(given) is list or type(given) is tuple:
        return given
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, bytearray, Key)):
        return given
    raise InvalidRequestError(f"{name} must be a list", given=given, type=type(given).__name__)


def check_choice(name: str, value: object, words: tuple[object, ...]) -> None:
    """Raise InvalidRequestError unless this is one of the words."""
    if value not in words:
        known = ", ".join(map(repr, words))
        raise InvalidRequestError(f"{name} is none of {known}", **{name: value})


def cell_bytes(key: Key, value: bytes) -> int:
    """Return an upper estimate of the bytes that HBase counts for a cell."""
    return CELL_OVERHEAD + len(key.row) + len(key.family) + len(key.column) + len(value)


def check_key(key: object) -> Key:
    """Return the key; raise InvalidRequestError unless users may read and write it."""
    if type(key) is not Key and not isinstance(key, Key):
        raise InvalidRequestError("not a Key", given=key, type=type(key).__name__)
    row, family, column, table = key
    if not (0 < len(row) <= MAX_ROW and _is_column(family, column, table)):
        for name, part, limit in zip(Key._fields, key, LIMITS, strict=True):
            if part == b"":
                raise InvalidRequestError(f"{name} is empty", key=key)
            if part is not None and len(part) > limit:
                facts = {"bytes": len(part), "limit": limit, "starts": part[:40]}
                raise InvalidRequestError(f"{name} is too long", **facts)
        message = "columns ending in _lock or _tag are reserved for the protocol"
        raise InvalidRequestError(message, key=key)
    return key


@lru_cache(maxsize=1_000)  # the same few columns come again and again
def _is_column(family: bytes, column: bytes, table: bytes | None) -> bool:
    return (
        0 < len(family) <= MAX_FAMILY
        and 0 < len(column) <= MAX_COLUMN
        and (table is None or 0 < len(table) <= MAX_TABLE)
        and not column.endswith(RESERVED)
    )


def check_value(key: Key, value: object) -> None:
    """Raise InvalidRequestError unless a cell of this library may hold the value."""
    if type(value) is not bytes and not isinstance(value, bytes):
        raise InvalidRequestError("value must be bytes", key=key, type=type(value).__name__)
    if not value:
        message = "value is empty, which HBase cannot tell from absent: use Delete"
        raise InvalidRequestError(message, key=key)
    if len(value) > SURELY_FITS and (size := cell_bytes(key, value)) > MAX_CELL:
        message = "value is too large for a cell"
        raise InvalidRequestError(message, key=key, cell_bytes=size, limit=MAX_CELL)
