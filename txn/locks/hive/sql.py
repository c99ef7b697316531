"""Which locks a Hive statement needs: Hive's own table, `requests(sql)`.

Reading is shared, and everything else exclusive, on the smallest objects that are certain. A shared
lock on a table does not keep anyone from changing one of its partitions; so a reader of a
partitioned table locks each partition that it may read, and that takes a catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product, takewhile
from math import prod
from typing import assert_never

from txn.errors import InvalidRequestError
from txn.host.extras import import_extra
from txn.locks.hive.functions import BUILT_IN
from txn.locks.hive.model import (
    Catalog,
    Change,
    Column,
    Constant,
    FunctionCall,
    Functions,
    Keep,
    Read,
    Restore,
    Spec,
    Table,
    Tables,
    Touch,
    find_equal,
    spell_constant,
)
from txn.locks.requests import LockRequest, Mode, Path, exclusive, in_order, shared

with import_extra("locks"):
    from txn.locks.hive.definitions import statement_touches
    from txn.locks.hive.queries import query_touches
    from txn.locks.hive.words import statements

MAX_VIEWS = 32
UNKNOWN_FUNCTION = "what this function reads is not known"
BUILT_IN_AT: frozenset[tuple[str, ...]] = frozenset({(), ("builtin",), ("system", "builtin")})
MAX_COMBINATIONS = 1000


def requests(
    sql: str, settings: Mapping[str, str] | None = None, catalog: Catalog | None = None
) -> list[LockRequest]:
    """Return what to lock while a statement runs, in order, the parents of partitions among them.

    Several statements, with semicolons between them, are locked together. settings: of them
    `hive.current.database` counts, else names without a database are of `default`. catalog: how the
    tables are partitioned and which are views; without it partitions are taken as the statement
    writes them, and a query locks tables only, which keeps nobody out of their partitions. Raises
    InvalidRequestError for what is not understood, never returning less than is needed.
    """
    known = catalog if catalog is not None else Tables({})
    found: list[LockRequest] = []
    for words in statements(sql, settings):
        for touch in statement_touches(words.statement, words.database):
            found += _locks(touch, known, depth=0)
    asked = {request.path for request in found}
    return [each for each in in_order(found) if len(each.path.parts) > 1 or each.path in asked]


def object_path(table: Path, spec: Spec, known: Table | None) -> Path:
    """Return the path of a partition, as far as it is certain; of the table, if no part is."""
    if known is None or not spec:
        columns = [Column(name) for name, _ in spec]
    else:
        columns = list(known.partitioned_by)
        wrong = {name for name, _ in spec} - {column.name for column in columns}
        if wrong:
            raise InvalidRequestError(
                "not partitioned by this", table=str(table), columns=sorted(wrong)
            )
    values, parts = dict(spec), list(table.parts)
    for column in columns:
        value = values.get(column.name)
        text = None if value is None else spell_constant(value, column.kind)
        if text is None:
            break
        parts.append(f"{column.name}={text}")
    return Path(tuple(parts))


def _locks(touch: Touch, catalog: Catalog, depth: int) -> Iterator[LockRequest]:
    if isinstance(touch, FunctionCall):
        yield from _call(touch, catalog, depth)
        return
    known = catalog.table(touch.table) if len(touch.table.parts) > 1 else None
    match touch:
        case Read():
            yield from _read(touch, known, catalog, depth)
        case Change():
            yield exclusive(object_path(touch.table, touch.partition, known))
        case Keep():
            yield shared(object_path(touch.table, touch.partition, known))
        case Restore():
            has_partitions = known is None or known.partitioned_by
            yield LockRequest(touch.table, Mode.SHARED if has_partitions else Mode.EXCLUSIVE)
        case _:
            assert_never(touch)


def _read(read: Read, known: Table | None, catalog: Catalog, depth: int) -> Iterator[LockRequest]:
    yield shared(read.table)
    if known is None:
        return
    if known.query is not None:
        yield from _query(known, read.table, catalog, depth)
    elif known.partitioned_by:
        names = [column.name for column in known.partitioned_by]
        for values in _partitions(read, known.partitioned_by, catalog):
            parts = (f"{name}={value}" for name, value in zip(names, values, strict=False))
            yield shared(Path((*read.table.parts, *parts)))


def _query(view: Table, name: Path, catalog: Catalog, depth: int) -> Iterator[LockRequest]:
    """What the query of a view or of a function needs."""
    if depth >= MAX_VIEWS:
        raise InvalidRequestError("views within views", limit=MAX_VIEWS, view=str(name))
    for touch in query_touches(view.query or "", view.database or name.parts[0]):
        yield from _locks(touch, catalog, depth + 1)


def _call(call: FunctionCall, catalog: Catalog, depth: int) -> Iterator[LockRequest]:
    """What a function needs that the statement calls: nothing, if it is not one of a user."""
    name = Path(call.name if len(call.name) > 1 else (call.database, *call.name))
    found = catalog.functions(name) if isinstance(catalog, Functions) else ()
    is_built_in = call.name[-1] in BUILT_IN and call.name[:-1] in BUILT_IN_AT
    if not (found or is_built_in):
        raise InvalidRequestError(UNKNOWN_FUNCTION, function=".".join(call.name))
    for each in found:
        if each.query is not None:
            yield from _query(each, name, catalog, depth)


def _partitions(
    read: Read, columns: Sequence[Column], catalog: Catalog
) -> Iterator[tuple[str, ...]]:
    """The values of the partitions that are read, or of their first columns.

    Those that the statement names are locked whether they are there or not; where it does not name
    all columns, those that are there as well.
    """
    wanted = [_values(read.known.get(column.name, ()), column.kind) for column in columns]
    named = list(takewhile(bool, wanted))
    if named and prod(len(values) for values in named) <= MAX_COMBINATIONS:
        yield from product(*(sorted(values) for values in named))
    if len(named) < len(columns) or prod(len(values) for values in named) > MAX_COMBINATIONS:
        for values in catalog.partitions(read.table):
            pairs = zip(wanted, values, strict=True)
            if all(not allowed or value in allowed for allowed, value in pairs):
                yield tuple(values)


def _values(constants: Iterable[Constant], kind: str) -> frozenset[str]:
    """The values that a column may have; none where it may have any."""
    texts = [find_equal(constant, kind) for constant in constants]
    known = frozenset(text for text in texts if text is not None)
    return known if len(known) == len(set(texts)) else frozenset()
