"""What a statement accesses, before it is known how the tables are partitioned; and catalogues.

A statement reads tables, changes objects, or changes how a table is stored. Which locks that means
depends on the catalogue; without one, partitions are taken as the statement writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from txn.locks.requests import Path

DATABASE_SETTING = "hive.current.database"
DEFAULT = "default"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
INTEGERS = frozenset({"tinyint", "smallint", "int", "integer", "bigint"})

_INTEGER = re.compile(r"0|-?[1-9]\d{0,18}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

ConstantKind = Literal["string", "number", "date", "boolean", "null"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a statement. text: its value as written, without quotes."""

    kind: ConstantKind
    text: str


Spec = tuple[tuple[str, Constant | None], ...]
"""A partition as a statement writes it; None for a part that only the data will tell."""


@dataclass(frozen=True, slots=True)
class Read:
    """Reads a table or a view, of it no more than rows whose columns have one of these values."""

    table: Path
    known: Mapping[str, tuple[Constant, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """Changes a database, a table, or of a table one partition."""

    table: Path
    partition: Spec = ()


@dataclass(frozen=True, slots=True)
class Restore:
    """Changes how the future partitions of a table are stored, and touches none that there is."""

    table: Path


@dataclass(frozen=True, slots=True)
class Keep:
    """Requires that an object stay as it is."""

    table: Path
    partition: Spec = ()


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """Calls a function, which may read tables. name: as written. database: of names without one."""

    name: tuple[str, ...]
    database: str


Access = Read | Change | Restore | Keep | FunctionCall


@dataclass(frozen=True, slots=True)
class Column:
    """A partition column, in lower case as all names. kind: its type as Hive writes it, empty if it
    is not known."""

    name: str
    kind: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.lower())


@dataclass(frozen=True, slots=True)
class Table:
    """A table or, if it has a query, a view, whose names are those of its database."""

    partitioned_by: tuple[Column, ...] = ()
    query: str | None = None
    database: str | None = None


class Catalog(Protocol):
    """Knows the tables. Paths are `database/table`, in lower case."""

    def table(self, name: Path) -> Table | None:
        """Return what a table is, None if there is no such table."""

    def partitions(self, name: Path) -> Iterable[Sequence[str]]:
        """Return the values of each partition that there is, in the order of the columns."""


@runtime_checkable
class Functions(Protocol):
    """A catalogue that also knows the functions that users have made."""

    def functions(self, name: Path) -> Sequence[Table]:
        """Return what each function that may be meant reads, a query or nothing; none if there is
        no such function. name: `database/function`, or `function` alone."""


@dataclass(frozen=True, slots=True)
class Tables:
    """A catalogue that was written down."""

    known: Mapping[Path, Table]
    existing: Mapping[Path, Sequence[Sequence[str]]] = field(default_factory=dict)

    def table(self, name: Path) -> Table | None:
        return self.known.get(name)

    def partitions(self, name: Path) -> Iterable[Sequence[str]]:
        return self.existing.get(name, ())


def spell_constant(constant: Constant, kind: str) -> str | None:
    """Return how the path of a partition spells a constant that is put into a column of this type;
    None where that is not certain."""
    if constant.kind == "null" or constant == Constant("string", ""):
        return NULL_PARTITION
    text = constant.text.lower() if constant.kind == "boolean" else constant.text
    is_integer = _INTEGER.fullmatch(text) is not None
    is_date = _DATE.fullmatch(text) is not None
    if kind in INTEGERS:
        return text if is_integer else None
    if kind == "date":
        return text if is_date and constant.kind in {"string", "date"} else None
    if kind in {"", "string"}:
        certain = {"string": True, "number": is_integer, "date": is_date, "boolean": kind == ""}
        return text if certain[constant.kind] else None
    return None


def find_equal(constant: Constant, kind: str) -> str | None:
    """Return which value of a column of this type is the only one that equals a constant; None
    where there may be several, as `1` and `01` of a string that is compared with a number."""
    if constant.kind == "null" or (kind == "string" and constant.kind != "string"):
        return None
    return spell_constant(constant, kind)
