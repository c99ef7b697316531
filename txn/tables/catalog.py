"""The catalog of tables and families, and the keys of cells, which sort in HBase's order.

The catalog is table number 0 of the same ordered store. Its counter changes with every change, so a
user loads the catalog once and then compares only the counter in each local transaction. Keys sort
by row, then family, then column, byte by byte. Masks, which hide all columns of a family in a row
(deletes of rows and families), have a key of their own before the cells of the row.

    entry   = JSON; bytes are text of ISO 8859-1, but names of families of UTF-8. Only values that
              differ from the default are stored
    key     = table number (u32, big-endian), row, 00 00, family, 00, column
    masks   = table number, row, 00 00, 00, family          a state of markers only, as in `cells`
    row     : each byte 00 is written as 00 FF, so that 00 00 ends it and sorts before longer rows
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, islice, pairwise
from typing import Any, NamedTuple

from txn import model
from txn.clock import Clock
from txn.documents import parse_stored
from txn.errors import CorruptRowError, InvalidRequestError
from txn.tables import cells
from txn.tables.kv.ordered import OrderedStore, Reader, Writer
from txn.tables.operations import FamilySettings, Refused

CATALOG = bytes(4)
BLOCK_SIZES = range(1024, 16 * 1024 * 1024 + 1)
# HBase needs this setting and clients of the emulator read it; here no marker is purged earlier.
KEEPS_MARKERS = (("hbase.hstore.time.to.purge.deletes", str(model.KEEP_DELETES_MS + 3_600_000)),)

_COUNTER = CATALOG + b"counter"
_TABLE = CATALOG + b"table "
_TABLE_STOP = CATALOG + b"table!"
_GARBAGE = CATALOG + b"garbage "
_GARBAGE_STOP = CATALOG + b"garbage!"
ROW_END = b"\0\0"  # after an escaped row: begins its keys
ROW_PASSED = b"\0\1"  # a bound above its keys, below those of all later rows
_TABLE_NAME = re.compile(r"(?:\w+:)?\w[\w.-]*")
GARBAGE_KEYS = 5_000

Families = Mapping[bytes, FamilySettings]
StoredCells = Iterable[tuple[bytes, bytes, bytes]]
"""Family, column and state of cells; of masks, b"", the family and their state."""


class Region(NamedTuple):
    """Rows of a table from start to stop (excluded; b"": open). number: HBase's id, in ms."""

    start: bytes
    stop: bytes
    number: int


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table's number and families.

    masked: whether any row has ever had masks.
    splits: where its regions, which have no effect here, begin after the first.
    """

    number: int
    families: Families
    enabled: bool = True
    masked: bool = False
    splits: tuple[bytes, ...] = ()
    created_ms: int = 0

    @property
    def prefix(self) -> bytes:
        return self.number.to_bytes(4)

    @property
    def stop(self) -> bytes:
        return (self.number + 1).to_bytes(4)

    @property
    def regions(self) -> list[Region]:
        edges = pairwise([b"", *self.splits, b""])
        return [Region(start, stop, self.created_ms) for start, stop in edges]


class FamilyLayout(NamedTuple):
    """The keys of a family's cells, and its limits. masks: the end of the key of a row's masks;
    None if the table never had any."""

    prefix: bytes
    infix: bytes
    versions: int
    ttl_ms: int | None
    min_versions: int
    masks: bytes | None

    def find_expiry(self, now_ms: int) -> int:
        """Return the timestamp below which versions have expired, except the first min_versions."""
        return 0 if self.ttl_ms is None else now_ms - self.ttl_ms

    def find_oldest(self, now_ms: int) -> int:
        """Return the timestamp below which the newest version has expired."""
        return 0 if self.ttl_ms is None or self.min_versions else now_ms - self.ttl_ms

    def read_versions(self, state: bytes, now_ms: int, limit: int) -> list[model.Cell]:
        """Return up to `limit` visible versions, newest first, of a cell's stored state."""
        oldest_ms, limit = self.find_expiry(now_ms), min(limit, self.versions)
        return cells.versions(state, oldest_ms, now_ms, limit=limit, at_least=self.min_versions)


@dataclass(frozen=True, slots=True)
class TableCatalog:
    """All tables at one value of the counter; only enabled tables have layouts."""

    counter: bytes | None
    tables: Mapping[bytes, TableEntry]
    layouts: Mapping[tuple[bytes | None, bytes], FamilyLayout] = field(default_factory=dict)

    def find(self, name: bytes) -> TableEntry:
        """Return the table, enabled or not, or raise Refused naming it."""
        found = self.tables.get(name)
        if found is None:
            raise Refused("table not found", "no such table", table=name)
        return found

    def table(self, name: bytes) -> TableEntry:
        found = self.find(name)
        if not found.enabled:
            raise Refused("table not enabled", "the table is disabled", table=name)
        return found

    def layout(self, table: bytes | None, family: bytes) -> FamilyLayout:
        found = self.layouts.get((table, family))
        if found is None:
            if table is None:
                raise InvalidRequestError("the key names no table", family=family)
            self.table(table)  # refuses a missing or disabled one
            raise Refused("no such column family", "no such family", table=table, family=family)
        return found


class CatalogUser:
    """A user of an ordered store's tables, as safe for threads and processes as that store."""

    __slots__ = ("_catalog", "_clock", "_ordered")

    def __init__(self, store: OrderedStore, clock: Clock) -> None:
        self._ordered = store
        self._clock = clock
        self._catalog: TableCatalog | None = None

    def _load(self, reader: Reader) -> TableCatalog:
        known = self._catalog
        if known is None or reader.get(_COUNTER) != known.counter:
            self._catalog = known = load_catalog(reader)
        return known


def load_catalog(reader: Reader) -> TableCatalog:
    counter = reader.get(_COUNTER)
    tables = {
        key[len(_TABLE) :]: _decode(key, reader.get(key) or b"")
        for key in reader.keys(_TABLE, _TABLE_STOP)
    }
    layouts: dict[tuple[bytes | None, bytes], FamilyLayout] = {
        (name, family): FamilyLayout(
            table.prefix,
            ROW_END + family + b"\0",
            settings.versions,
            settings.ttl_ms,
            settings.min_versions,
            ROW_END + b"\0" + family if table.masked else None,
        )
        for name, table in tables.items()
        if table.enabled
        for family, settings in table.families.items()
    }
    return TableCatalog(counter, tables, layouts)


def _encode(table: TableEntry) -> bytes:
    defaults = asdict(FamilySettings()).items()
    families = {
        name.decode(): dict(pair for pair in asdict(settings).items() if pair not in defaults)
        for name, settings in sorted(table.families.items())
    }
    stored: dict[str, Any] = {"number": table.number, "families": families}
    if not table.enabled:
        stored["enabled"] = False
    if table.masked:
        stored["masked"] = True
    if table.splits:
        stored["splits"] = [split.decode("latin-1") for split in table.splits]
    if table.created_ms:
        stored["created_ms"] = table.created_ms
    return json.dumps(stored).encode()


def _decode(key: bytes, value: bytes) -> TableEntry:
    try:
        stored = parse_stored(value)
        return TableEntry(
            stored["number"],
            {name.encode(): _decode_family(shown) for name, shown in stored["families"].items()},
            stored.get("enabled", True),
            stored.get("masked", False),
            tuple(split.encode("latin-1") for split in stored.get("splits", ())),
            stored.get("created_ms", 0),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRowError("the catalog does not decode", key=key, stored=value[:200]) from error


def _decode_family(shown: Mapping[str, Any]) -> FamilySettings:
    known = {name: shown[name] for name in shown if name in FamilySettings.__slots__}
    for name in ("attributes", "configuration"):
        known[name] = tuple(map(tuple, shown.get(name, ())))
    return FamilySettings(**known)


def family_of(settings: FamilySettings) -> model.Family:
    name = dict(settings.configuration).get(model.DATABASE_ENTRY)
    database = name.encode() if name else None
    return model.Family(settings.versions, settings.ttl_ms, database=database)


def save(writer: Writer, known: TableCatalog, name: bytes, table: TableEntry | None) -> None:
    """Store a table or, for None, remove it, in the caller's transaction."""
    if table is None:
        writer.delete(_TABLE + name)
    else:
        writer.put(_TABLE + name, _encode(table))
    writer.put(_COUNTER, next_number(known).to_bytes(8))


def rewrite_counter(writer: Writer, known: TableCatalog) -> None:
    """Write the counter again: a local transaction without writes is not committed."""
    if known.counter is not None:  # else nothing was ever written
        writer.put(_COUNTER, known.counter)


def next_number(known: TableCatalog) -> int:
    """Return the next counter, which is also a number that no table has ever had."""
    return int.from_bytes(known.counter or b"") + 1


def find_missing(
    known: TableCatalog, name: bytes, families: Mapping[bytes, model.Family]
) -> dict[bytes, FamilySettings] | None:
    """Return all families that a table must get, or None if it has them.

    Raise InvalidRequestError if an existing family has other settings or another database, or a
    name is illegal. A family without a database gets the given one.
    """
    table = known.tables.get(name)
    existing = {} if table is None else dict(table.families)
    found = {family: family_of(settings) for family, settings in existing.items()}
    merged = existing.copy()
    for family, given in families.items():
        model.refuse_other_database(name, found.values(), given.database)
        known_one = found.get(family, given)
        if replace(known_one, database=given.database) != given:
            facts = {"table": name, "family": family, "existing": known_one, "given": given}
            raise InvalidRequestError("the family exists with other settings", **facts)
        settings = existing.get(family) or FamilySettings(
            versions=given.versions, ttl_ms=given.ttl_ms, configuration=KEEPS_MARKERS
        )
        merged[family] = assign_family(settings, given.database or known_one.database)
    check_names(name, merged)
    return merged if table is None or merged != existing else None


def ensure(
    writer: Writer, known: TableCatalog, name: bytes, families: Mapping[bytes, model.Family]
) -> None:
    """Create the missing table and families, in the caller's transaction."""
    missing = find_missing(known, name, families)
    if missing is None:
        return
    if name in known.tables:
        alter(writer, known, name, missing)
    else:
        save(writer, known, name, TableEntry(next_number(known), missing))


def assign_family(settings: FamilySettings, database: bytes | None) -> FamilySettings:
    others = tuple(pair for pair in settings.configuration if pair[0] != model.DATABASE_ENTRY)
    owned = ((model.DATABASE_ENTRY, database.decode()),) if database else ()
    return replace(settings, configuration=others + owned)


def alter(writer: Writer, known: TableCatalog, name: bytes, families: Families) -> None:
    """Give the table exactly these families, in the caller's transaction. The garbage of a dropped
    family goes before it comes back: old cells would reappear, and new ones be removed."""
    table = known.find(name)
    for family in set(table.families) - set(families):
        mark_garbage(writer, table, family)
    for family in set(families) - set(table.families):
        while writer.get(_GARBAGE + table.prefix + family) is not None:
            _remove_some(writer, _GARBAGE + table.prefix + family)
    save(writer, known, name, replace(table, families=dict(families)))


def mark_garbage(writer: Writer, table: TableEntry, family: bytes = b"") -> None:
    writer.put(_GARBAGE + table.prefix + family, b"")


def remove_garbage(writer: Writer) -> bool:
    """Remove some cells of the first dropped table or family; return False if there is none."""
    garbage = next(writer.keys(_GARBAGE, _GARBAGE_STOP), None)
    if garbage is not None:
        _remove_some(writer, garbage)
    return garbage is not None


def _remove_some(writer: Writer, garbage: bytes) -> None:
    at = writer.get(garbage) or b""
    prefix, family = garbage[len(_GARBAGE) :][:4], garbage[len(_GARBAGE) + 4 :]
    stop = (int.from_bytes(prefix) + 1).to_bytes(4)
    keys = list(islice(writer.keys(prefix + at, stop), GARBAGE_KEYS))
    for key in keys:
        name, column = family_and_column(key, split_row(key))
        if not family or family == (name or column):
            writer.delete(key)
    if len(keys) == GARBAGE_KEYS:
        writer.put(garbage, keys[-1][4:])
    else:
        writer.delete(garbage)


def escape_row(row: bytes) -> bytes:
    return row.replace(b"\0", b"\0\xff") if b"\0" in row else row


def cell_key(layout: FamilyLayout, row: bytes, column: bytes) -> bytes:
    """Return the key of a cell; raise InvalidRequestError for a row that HBase would refuse."""
    if not 0 < len(row) <= model.MAX_ROW:
        check_row(row)
    if b"\0" in row:
        row = row.replace(b"\0", b"\0\xff")
    return layout[0] + row + layout[1] + column


def check_row(row: bytes) -> None:
    if not 0 < len(row) <= model.MAX_ROW:
        message = "a row is 1 to 32767 bytes"
        raise Refused("illegal argument", message, bytes=len(row), starts=row[:40])


def walk_rows(reader: Reader, low: bytes, high: bytes, *, reverse: bool) -> Iterator[bytes]:
    """Yield the key prefix of each row between two keys, leaping from row to row."""
    while True:
        key = reader.before(high) if reverse else reader.first(low, high)
        if key is None or key < low:
            return
        stem = key[: key.index(ROW_END, 4)]
        low, high = (low, stem) if reverse else (stem + ROW_PASSED, high)
        yield stem


def walk_cells(items: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, StoredCells]]:
    """Yield each escaped row of stored cells, and its cells, which are to be read before the next
    row: a row may have more of them than fit in memory."""
    # What `split_row` and `family_and_column` do is written out: two calls less for each cell.
    for row, stored in groupby(items, lambda item: item[0][4 : item[0].index(ROW_END, 4)]):
        yield row, _name_cells(stored, len(row) + 4)


def _name_cells(items: Iterable[tuple[bytes, bytes]], end: int) -> StoredCells:
    for key, state in items:
        family, _, column = key[end + 2 :].partition(b"\0")
        yield family, column, state


def family_keys(reader: Reader, layout: FamilyLayout, row: bytes) -> Iterator[bytes]:
    """Yield the keys of all columns of a family in an escaped row."""
    start = layout.prefix + row + layout.infix
    return reader.keys(start, start[:-1] + b"\1")


def masks_key(layout: FamilyLayout, row: bytes) -> bytes | None:
    """Return the key of a row's masks of the family, or None if there can be none."""
    return None if layout.masks is None else layout.prefix + escape_row(row) + layout.masks


def split_row(key: bytes) -> int:
    """Return where the escaped row of a cell's key ends."""
    return key.index(ROW_END, 4)


def plain_row(row: bytes) -> bytes:
    return row.replace(b"\0\xff", b"\0") if b"\0" in row else row


def family_and_column(key: bytes, end: int) -> tuple[bytes, bytes]:
    """Return the family and column of a key whose row ends at `end`; of masks, b"" and family."""
    family, _, column = key[end + 2 :].partition(b"\0")
    return family, column


def is_table_name(name: bytes) -> bool:
    return _TABLE_NAME.fullmatch(name.decode(errors="replace")) is not None


def check_names(table: bytes, families: Families) -> None:
    if len(table) > model.MAX_TABLE or not is_table_name(table):
        raise Refused("illegal argument", "not a legal table name", table=table)
    if not families:
        raise Refused("illegal argument", "a table needs at least one family", table=table)
    for family, settings in families.items():
        text = family.decode(errors="surrogateescape")  # a surrogate is not printable
        is_legal = text.isprintable() and not set(":/\\") & set(text) and text[:1] not in {"", "."}
        if len(family) > model.MAX_FAMILY or not is_legal:
            raise Refused("illegal argument", "not a legal family name", table=table, family=family)
        check_settings(family, settings)
        if settings.keep_deleted_cells.upper() != "FALSE" or settings.new_version_behavior:
            words = "only KEEP_DELETED_CELLS=FALSE without NEW_VERSION_BEHAVIOR is supported here"
            raise Refused("do not retry", words, family=family)


def check_settings(family: bytes, settings: FamilySettings) -> None:
    if settings.versions < 1:
        raise Refused("illegal argument", "versions must be positive", family=family)
    if settings.ttl_ms is not None and settings.ttl_ms <= 0:
        raise Refused("do not retry", "a TTL must be positive", family=family)
    if not 0 <= settings.min_versions <= settings.versions:
        raise Refused("do not retry", "min versions must be at most versions", family=family)
    if settings.block_size not in BLOCK_SIZES:
        raise Refused("do not retry", "a block is 1 KB to 16 MB", family=family)
