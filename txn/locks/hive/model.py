"""The accesses of a statement, independent of partitioning; and catalogues.

A statement reads tables, changes objects, or changes how a table is stored. The catalogue decides
which locks that needs; without one, partitions are taken as the statement writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal, Protocol, runtime_checkable

from txn.locks.model import Path

DATABASE_SETTING = "hive.current.database"
DEFAULT = "default"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
BUILT_IN = frozenset(files(__package__).joinpath("functions.txt").read_text().split())
"""The built-in functions of Spark 4.3 and of Hive. None of them reads a table."""

INTEGERS = frozenset({"tinyint", "smallint", "int", "integer", "bigint"})

_INTEGER = re.compile(r"0|-?[1-9]\d{0,18}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

ConstantKind = Literal["string", "number", "date", "boolean", "null"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant in a statement. text: its value as written, without quotes."""

    kind: ConstantKind
    text: str


Spec = tuple[tuple[str, Constant | None], ...]
"""A partition as a statement writes it; None for a value that only the data determines."""


@dataclass(frozen=True, slots=True)
class Read:
    """Reads a table or a view, and only rows whose columns have one of the known values."""

    table: Path
    known: Mapping[str, tuple[Constant, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """Changes a database, a table, or one partition of a table."""

    table: Path
    partition: Spec = ()


@dataclass(frozen=True, slots=True)
class Restore:
    """Changes how future partitions of a table are stored, and no existing partition."""

    table: Path


@dataclass(frozen=True, slots=True)
class Keep:
    """Requires that an object stays unchanged."""

    table: Path
    partition: Spec = ()


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """Calls a function, which may read tables. database: for an unqualified name."""

    name: tuple[str, ...]
    database: str


Access = Read | Change | Restore | Keep | FunctionCall


@dataclass(frozen=True, slots=True)
class Column:
    """A partition column in lower case. kind: Hive's name of its type; empty if unknown."""

    name: str
    kind: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.lower())


@dataclass(frozen=True, slots=True)
class Table:
    """A table, or with a query a view. database: for unqualified names in the query."""

    partitioned_by: tuple[Column, ...] = ()
    query: str | None = None
    database: str | None = None


class Catalog(Protocol):
    """The known tables. Paths are `database/table`, in lower case."""

    def table(self, name: Path) -> Table | None:
        """Return a table, or None if there is no such table."""

    def partitions(self, name: Path) -> Iterable[Sequence[str]]:
        """Yield the values of each existing partition, in column order."""


@runtime_checkable
class Functions(Protocol):
    """A catalogue that also knows user-defined functions."""

    def functions(self, name: Path) -> Sequence[Table]:
        """Return what each matching function reads, a query or nothing; empty if there is no such
        function. name: `database/function`, or `function` alone."""


@dataclass(frozen=True, slots=True)
class Tables:
    """A fixed catalogue."""

    known: Mapping[Path, Table]
    existing: Mapping[Path, Sequence[Sequence[str]]] = field(default_factory=dict)

    def table(self, name: Path) -> Table | None:
        return self.known.get(name)

    def partitions(self, name: Path) -> Iterable[Sequence[str]]:
        return self.existing.get(name, ())


def spell_constant(constant: Constant, kind: str) -> str | None:
    """Return how a path spells a constant stored in a column of this type; None if uncertain."""
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
    """Return the only value of a column of this type that equals a constant. Return None if several
    may, as `1` and `01` when a string is compared with a number."""
    if constant.kind == "null" or (kind == "string" and constant.kind != "string"):
        return None
    return spell_constant(constant, kind)
