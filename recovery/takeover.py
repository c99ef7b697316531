"""Let a table belong to another database than it did: what stands in the way, and the change.

Two databases, each with its transaction table, do not see each other's transactions. So a family
names the database that it belongs to, and clients of any other are refused. A table changes hands
while nobody uses it, and no key of it is locked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from recovery.convert import convert, list_cells_in_the_way
from txn.errors import InvalidRequestError
from txn.model import Family, plain_table
from txn.protocol.attempt import Context, call_store
from txn.protocol.clocks import check_clock
from txn.spans import Span
from txn.stores.base import TableAssigner
from txn.stores.hbase.schema import make_assign_command


def find_databases(context: Context, table: bytes) -> set[bytes | None]:
    """Return the transaction tables of the databases that a table's families belong to, None for a
    family of none. Raises InvalidRequestError for an absent table."""
    return {family.database for family in _describe(context, table).values()}


def find_locks_held(context: Context, table: bytes) -> Iterator[str]:
    """Yield why a table cannot change hands now, each with what to do about it. All of the table is
    read."""
    yield from list_cells_in_the_way(context, Span(table), retention_ms=0)


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
