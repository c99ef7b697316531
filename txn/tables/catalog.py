"""Which tables and families there are, and how a cell's name becomes a key in HBase's order.

The catalog lives under table number 0 of the same ordered store. A counter there changes with every
change of the catalog, so whoever has loaded it once only compares the counter, in each local
transaction. Order: by row, then family, then column, each byte by byte.

    key     = table number (u32, big-endian), row, 00 00, family, 00, column
    row     : each byte 00 is written as 00 FF, so that 00 00 ends it and sorts before what goes on
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from txn.errors import CorruptRowError, InvalidRequestError, describe
from txn.model import MAX_FAMILY, MAX_ROW, MAX_TABLE, Family, Key
from txn.tables.ordered import Reader, Writer

_CATALOG = bytes(4)
_COUNTER = _CATALOG + b"counter"
_TABLE = _CATALOG + b"table "
_TABLE_STOP = _CATALOG + b"table!"
_ROW_END = b"\0\0"


class Place(NamedTuple):
    """Where the cells of one family go, and what is kept of them."""

    prefix: bytes
    infix: bytes
    versions: int
    ttl_ms: int | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table's number and its families."""

    number: int
    families: Mapping[bytes, Family]

    @property
    def prefix(self) -> bytes:
        """The first bytes of each of the table's keys."""
        return self.number.to_bytes(4)

    @property
    def stop(self) -> bytes:
        """The first key after those of the table."""
        return (self.number + 1).to_bytes(4)


@dataclass(frozen=True, slots=True)
class Catalog:
    """All tables, as of one value of the counter."""

    counter: bytes | None
    tables: Mapping[bytes, Table]
    places: Mapping[tuple[bytes | None, bytes], Place] = field(default_factory=dict)

    def table(self, name: bytes) -> Table:
        """Return the table, or raise InvalidRequestError naming it."""
        found = self.tables.get(name)
        if found is None:
            raise InvalidRequestError(describe("no such table", table=name))
        return found

    def missing(self, table: bytes | None, family: bytes) -> InvalidRequestError:
        """Return the error that says why there is no place for the cells of this family."""
        if table is None:
            return InvalidRequestError(describe("the key names no table", family=family))
        if table not in self.tables:
            return InvalidRequestError(describe("no such table", table=table))
        return InvalidRequestError(describe("no such family", table=table, family=family))


def load(reader: Reader, known: Catalog | None) -> Catalog:
    """Return the catalog, which is the known one if nothing has changed since."""
    counter = reader.get(_COUNTER)
    if known is not None and known.counter == counter:
        return known
    tables = {}
    for key in reader.keys(_TABLE, _TABLE_STOP):
        tables[key[len(_TABLE) :]] = _decode_table(key, reader.get(key) or b"")
    places: dict[tuple[bytes | None, bytes], Place] = {
        (name, family): Place(
            table.prefix, _ROW_END + family + b"\0", settings.versions, settings.ttl_ms
        )
        for name, table in tables.items()
        for family, settings in table.families.items()
    }
    return Catalog(counter, tables, places)


def ensure(writer: Writer, catalog: Catalog, name: bytes, families: Mapping[bytes, Family]) -> None:
    """Create the table and the families that are missing, in the caller's transaction.

    Raise InvalidRequestError where an existing family's settings differ, or a name is illegal.
    """
    counter = int.from_bytes(catalog.counter or b"") + 1
    table = catalog.tables.get(name)
    known = {} if table is None else dict(table.families)
    merged = known | dict(families)
    _check_names(name, merged)
    for family, settings in families.items():
        if known.get(family, settings) != settings:
            raise InvalidRequestError(
                describe(
                    "the family exists with other settings",
                    table=name,
                    family=family,
                    existing=known[family],
                    given=settings,
                )
            )
    if merged != known:
        number = counter if table is None else table.number
        writer.put(_TABLE + name, _encode_table(Table(number, merged)))
        writer.put(_COUNTER, counter.to_bytes(8))


def escape_row(row: bytes) -> bytes:
    """Return the row as it stands in a key, without its end."""
    return row.replace(b"\0", b"\0\xff") if b"\0" in row else row


def cell_key(place: Place, row: bytes, column: bytes) -> bytes:
    """Return the key of a cell; raise InvalidRequestError for a row that HBase would refuse."""
    if not 0 < len(row) <= MAX_ROW:
        raise InvalidRequestError(
            describe("a row is 1 to 32767 bytes", bytes=len(row), starts=row[:40])
        )
    if b"\0" in row:
        row = row.replace(b"\0", b"\0\xff")
    return place[0] + row + place[1] + column


def split_row(key: bytes) -> int:
    """Return where the escaped row of a cell's key ends."""
    return key.index(_ROW_END, 4)


def row_of(key: bytes, end: int) -> bytes:
    """Return the row of a cell's key, whose escaped form ends there."""
    row = key[4:end]
    return row.replace(b"\0\xff", b"\0") if b"\0" in row else row


def family_and_column(key: bytes, end: int) -> tuple[bytes, bytes]:
    """Return the family and the column of a cell's key, whose row ends there."""
    family, _, column = key[end + 2 :].partition(b"\0")
    return family, column


def make_key(row: bytes, family: bytes, column: bytes, table: bytes) -> Key:
    """Return a Key of parts that are bytes already, without looking at them again."""
    return Key._make((row, family, column, table))


def _check_names(table: bytes, families: Mapping[bytes, Family]) -> None:
    if not 0 < len(table) <= MAX_TABLE or not _legal(table, ":_-.") or table[:1] in b"-.":
        raise InvalidRequestError(describe("not a legal table name", table=table))
    if not families:
        raise InvalidRequestError(describe("a table needs at least one family", table=table))
    for family, settings in families.items():
        if not 0 < len(family) <= MAX_FAMILY or not _legal(family, None) or family[:1] == b".":
            raise InvalidRequestError(
                describe("not a legal family name", table=table, family=family)
            )
        if settings.versions < 1 or (settings.ttl_ms is not None and settings.ttl_ms <= 0):
            raise InvalidRequestError(
                describe("versions and ttl must be positive", family=family, given=settings)
            )


def _legal(name: bytes, others: str | None) -> bool:
    """Whether HBase takes the name: letters, digits and these, or for None nearly everything."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return False
    if others is None:
        return text.isprintable() and not set(":/\\") & set(text)
    return all(letter.isalnum() or letter in others for letter in text)


def _encode_table(table: Table) -> bytes:
    families = {
        name.decode(): {"versions": settings.versions, "ttl_ms": settings.ttl_ms}
        for name, settings in sorted(table.families.items())
    }
    return json.dumps({"number": table.number, "families": families}).encode()


def _decode_table(key: bytes, value: bytes) -> Table:
    try:
        stored = json.loads(value)
        families = {
            name.encode(): Family(settings["versions"], settings["ttl_ms"])
            for name, settings in stored["families"].items()
        }
        return Table(stored["number"], families)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRowError(
            describe("the catalog does not decode", key=key, stored=value[:200])
        ) from error
