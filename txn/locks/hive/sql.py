"""The locks that a Hive statement needs, after Hive's own table: `requests(sql)`.

Reads are shared, all else is exclusive, on the smallest objects that are certain. A shared lock on
a table does not prevent changes of its partitions. So a reader of a partitioned table locks each
partition that it may read, which requires a catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product, takewhile
from math import prod
from typing import assert_never

from txn.errors import InvalidRequestError
from txn.host.extras import import_extra
from txn.locks.hive import model
from txn.locks.model import LockRequest, Mode, Path, exclusive, in_order, shared

with import_extra("locks"):
    from txn.locks.hive.definitions import list_accesses
    from txn.locks.hive.queries import list_query_accesses
    from txn.locks.hive.words import read_statements

MAX_VIEWS = 32
UNKNOWN_FUNCTION = "what this function reads is not known"
BUILT_IN_AT: frozenset[tuple[str, ...]] = frozenset({(), ("builtin",), ("system", "builtin")})
MAX_COMBINATIONS = 1000


def requests(
    sql: str, settings: Mapping[str, str] | None = None, catalog: model.Catalog | None = None
) -> list[LockRequest]:
    """Return the locks that a statement needs, in order, including the parents of partitions.

    Several statements, separated by semicolons, are locked together. settings: only
    `hive.current.database` (default: `default`) counts, for unqualified names. catalog: which
    tables are partitioned and which are views. Without it, partitions are taken as the statement
    writes them, and a query locks only tables, which does not exclude others from their partitions.
    Raises InvalidRequestError for what is not understood; it never returns too few locks.
    """
    known = catalog if catalog is not None else model.Tables({})
    found: list[LockRequest] = []
    for words in read_statements(sql, settings):
        for access in list_accesses(words.statement, words.database):
            found += _list_locks(access, known, depth=0)
    asked = {request.path for request in found}
    return [each for each in in_order(found) if len(each.path.parts) > 1 or each.path in asked]


def make_object_path(table: Path, spec: model.Spec, known: model.Table | None) -> Path:
    """Return the path of a partition up to its first uncertain part, or of the table."""
    if known is None or not spec:
        columns = [model.Column(name) for name, _ in spec]
    else:
        columns = list(known.partitioned_by)
        if wrong := {name for name, _ in spec} - {column.name for column in columns}:
            message = "not partitioned by this"
            raise InvalidRequestError(message, table=str(table), columns=sorted(wrong))
    values, parts = dict(spec), list(table.parts)
    for column in columns:
        value = values.get(column.name)
        text = None if value is None else model.spell_constant(value, column.kind)
        if text is None:
            break
        parts.append(f"{column.name}={text}")
    return Path(tuple(parts))


def _list_locks(access: model.Access, catalog: model.Catalog, depth: int) -> Iterator[LockRequest]:
    if isinstance(access, model.FunctionCall):
        yield from _lock_call(access, catalog, depth)
        return
    known = catalog.table(access.table) if len(access.table.parts) > 1 else None
    match access:
        case model.Read():
            yield shared(access.table)
            if known is not None and known.query is not None:
                yield from _lock_query(known, access.table, catalog, depth)
            elif known is not None and known.partitioned_by:
                names = [column.name for column in known.partitioned_by]
                for values in _list_partitions(access, known.partitioned_by, catalog):
                    parts = (f"{name}={value}" for name, value in zip(names, values, strict=False))
                    yield shared(Path((*access.table.parts, *parts)))
        case model.Change():
            yield exclusive(make_object_path(access.table, access.partition, known))
        case model.Keep():
            yield shared(make_object_path(access.table, access.partition, known))
        case model.Restore():
            has_partitions = known is None or known.partitioned_by
            yield LockRequest(access.table, Mode.SHARED if has_partitions else Mode.EXCLUSIVE)
        case _:
            assert_never(access)


def _lock_query(
    view: model.Table, name: Path, catalog: model.Catalog, depth: int
) -> Iterator[LockRequest]:
    if depth >= MAX_VIEWS:
        raise InvalidRequestError("views within views", limit=MAX_VIEWS, view=str(name))
    for access in list_query_accesses(view.query or "", view.database or name.parts[0]):
        yield from _list_locks(access, catalog, depth + 1)


def _lock_call(
    call: model.FunctionCall, catalog: model.Catalog, depth: int
) -> Iterator[LockRequest]:
    """Yield the locks for a called function: none for a built-in one."""
    name = Path(call.name if len(call.name) > 1 else (call.database, *call.name))
    found = catalog.functions(name) if isinstance(catalog, model.Functions) else ()
    is_built_in = call.name[-1] in model.BUILT_IN and call.name[:-1] in BUILT_IN_AT
    if not (found or is_built_in):
        raise InvalidRequestError(UNKNOWN_FUNCTION, function=".".join(call.name))
    for each in found:
        if each.query is not None:
            yield from _lock_query(each, name, catalog, depth)


def _list_partitions(
    read: model.Read, columns: Sequence[model.Column], catalog: model.Catalog
) -> Iterator[tuple[str, ...]]:
    """Yield the values of the partitions that are read, or of their first columns. Partitions that
    the statement names are locked even if they do not exist. If it does not name all columns, the
    matching existing ones are locked as well."""
    wanted = [_list_values(read.known.get(column.name, ()), column.kind) for column in columns]
    named = list(takewhile(bool, wanted))
    if named and prod(len(values) for values in named) <= MAX_COMBINATIONS:
        yield from product(*(sorted(values) for values in named))
    if len(named) < len(columns) or prod(len(values) for values in named) > MAX_COMBINATIONS:
        for values in catalog.partitions(read.table):
            pairs = zip(wanted, values, strict=True)
            if all(not allowed or value in allowed for allowed, value in pairs):
                yield tuple(values)


def _list_values(constants: Iterable[model.Constant], kind: str) -> frozenset[str]:
    """Return the values that a column may have; empty if it may have any."""
    texts = [model.find_equal(constant, kind) for constant in constants]
    known = frozenset(text for text in texts if text is not None)
    return known if len(known) == len(set(texts)) else frozenset()
