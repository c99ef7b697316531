"""Which database each table belongs to; let a table belong to another one: what stands in the way,
and the change.

Two databases, each with its transaction table, do not see each other's transactions. So a family
names the database that it belongs to, and clients of any other are refused. A table changes hands
while nobody uses it, and no key of it is locked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from recovery.convert import convert, list_cells_in_the_way
from recovery.opening import find_usual_rules
from recovery.scan import Looked
from txn.errors import CorruptRowError, InvalidRequestError
from txn.model import Family, find_refusal, plain_table
from txn.protocol.clocks import check_clock
from txn.protocol.context import Context, call_store
from txn.spans import Span
from txn.stores.base import TableAssigner
from txn.stores.hbase.schema import make_assign_command


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What a table is like. databases: the transaction tables of those that its families belong to,
    None for a family of none. protocol: that of its database, if it has one. refusals: why no
    transaction may write to a family; None where the store does not show its settings."""

    name: bytes
    families: Sequence[bytes]
    databases: frozenset[bytes | None]
    protocol: str | None
    refusals: Sequence[str] | None


def list_tables(context: Context) -> Iterator[TableFacts]:
    """Yield what each table of the store is like, in the order of their names."""
    is_shown = "describe" in context.store.features
    find_protocol = cache(partial(_find_protocol, context))
    for name in call_store(context, context.store.list_tables):
        families = call_store(context, partial(context.store.describe, name))
        if families is None:  # it has just been dropped
            continue
        databases = frozenset(family.database for family in families.values())
        protocols = {find_protocol(each) for each in databases if each}
        refusals = tuple(filter(None, map(find_refusal, families.values())))
        yield TableFacts(
            name,
            sorted(families),
            databases,
            " ".join(sorted(protocols)) or None,
            refusals if is_shown or refusals else None,
        )


def _find_protocol(context: Context, database: bytes) -> str:
    try:
        return call_store(context, lambda: find_usual_rules(context.store, database).name)
    except CorruptRowError:
        return "unknown"


def find_databases(context: Context, table: bytes) -> set[bytes | None]:
    """Return the transaction tables of the databases that a table's families belong to, None for a
    family of none. Raises InvalidRequestError for an absent table."""
    return {family.database for family in _describe(context, table).values()}


def find_locks_held(
    context: Context, table: bytes, looked: Looked = lambda table: None
) -> Iterator[str]:
    """Yield why a table cannot change hands now, each with what to do about it. All of the table is
    read."""
    yield from list_cells_in_the_way(context, Span(table), 0, looked)


def take_over(context: Context, table: bytes) -> int:
    """Let a table that nobody uses, and in whose way nothing stands, belong to this database.
    Delete what another protocol left beside values, and return how many cells that were.

    Raises InvalidRequestError, with the command for HBase's shell, where the store cannot, and
    AbortedError where this machine's clock is wrong.
    """
    store, database = context.store, plain_table(context.table)
    check_clock(context)  # before anything changes: the conversion would
    families = _describe(context, table)
    if any(family.database != database for family in families.values()):
        if not isinstance(store, TableAssigner):
            raise InvalidRequestError(
                "the store cannot change the database of a table: use hbase://, the "
                "store behind a server, or the HBase shell",
                command=make_assign_command(table, families, database),
            )
        store.assign_table(table, database)
    return convert(context, context.rules.name, [table])


def _describe(context: Context, table: bytes) -> Mapping[bytes, Family]:
    """Return the families of a table, whichever database it belongs to."""
    families = call_store(context, lambda: context.store.describe(table))
    if families is None:
        raise InvalidRequestError("no such table", table=table)
    return families
