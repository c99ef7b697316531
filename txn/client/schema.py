"""Finds tables and families, and whether transactions may use them.

Results are kept until a table is found missing: families do not change under running clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeVar

from txn.errors import InvalidRequestError, StoreError, TableUnavailable, raise_denial
from txn.model import (
    DEFAULT_NAMESPACE,
    Delete,
    Family,
    Key,
    Row,
    find_delete_refusal,
    find_refusal,
    plain_table,
    refuse_other_database,
)
from txn.protocol.context import Context, call_store
from txn.protocol.locks import is_lock_of_rows
from txn.request import Request

SAMPLED_ROWS = 10
OWN = "the transaction table is the protocol's alone: it may be read"
T = TypeVar("T")


class Families:
    """The families that this client has checked, all fit for transactions."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[tuple[bytes, bytes], Family] = {}
        self._tables: set[bytes] = set()
        self.own_names = {own := plain_table(context.table), DEFAULT_NAMESPACE + own}

    def of(self, key: Key, deadline_ms: int | None = None) -> Family:
        """Return the family of a key that names its table; raise InvalidRequestError if unfit."""
        table = key.table
        assert table is not None
        known = self._known.get((table, key.family))
        if known is not None:
            return known
        families = self._describe(table, key, deadline_ms)
        family = families.get(key.family)
        if family is None:
            message = "no such family"
            raise InvalidRequestError(message, family=key.family, known=sorted(families), key=key)
        _refuse(key, find_refusal(family))
        self._known[table, key.family] = family
        return family

    def table(self, table: bytes, deadline_ms: int | None = None) -> None:
        """Raise InvalidRequestError unless the table exists and has this database or none."""
        if table not in self._tables:
            self._describe(table, deadline_ms=deadline_ms)
            self._tables.add(table)

    def _describe(
        self, table: bytes, asked: Key | None = None, deadline_ms: int | None = None
    ) -> Mapping[bytes, Family]:
        context = self._context
        families = self._call(lambda: context.store.describe(table), deadline_ms)
        if families is None:
            message = "no such table: create it with ensure_table"
            raise InvalidRequestError(message, table=table, key=asked)
        refuse_other_database(table, families.values(), context.table)
        if table in self._tables or all(family.database for family in families.values()):
            return families  # a table that names its database is not read

        def read_first_rows() -> list[Row]:
            with suppress(TableUnavailable):  # the commit will meet it as well
                return list(islice(context.store.scan(table), SAMPLED_ROWS))
            return []

        # This client would not see locks of the other protocol.
        rows = self._call(read_first_rows, deadline_ms)
        for key, cell in ((key, cell) for row in rows for key, cell in row.cells.items()):
            if is_lock_of_rows(key, cell) is (not context.rules.locks_rows):
                raise InvalidRequestError(
                    "the table has locks of the other protocol: name its transaction table, or "
                    "see `txn table take-over`",
                    table=table,
                    lock=key,
                    transactions=context.table,
                    protocol=context.rules.name,
                )
        return families

    def _call(self, call: Callable[[], T], deadline_ms: int | None) -> T:
        context = self._context
        if deadline_ms is not None:
            context = replace(context, until_ms=context.clock.monotonic_ms() + deadline_ms)
        try:
            return call_store(context, call)
        except StoreError as error:
            raise_denial(error)

    def forget(self, table: bytes) -> None:
        """Forget a missing table, so that the next use checks it again."""
        self._tables.discard(table)
        for key in list(self._known):  # copied at once, because other threads add to it
            if key[0] == table:
                self._known.pop(key, None)

    def check(self, request: Request, deadline_ms: int | None = None) -> None:
        """Raise InvalidRequestError unless the request fits its families, asking until the
        deadline."""
        for key in {(key.table, key.family): key for key in request.keys}.values():
            if key.table in self.own_names:
                _refuse(key, OWN)
            family = self.of(key, deadline_ms)
            if family.database is None and key.table and self._context.is_local:
                # Assigned to this database before its first write. Not on HBase, which would
                # reopen the table's regions: there `txn table take-over` does it.
                owned = replace(family, database=plain_table(self._context.table))
                assign = partial(self._context.store.ensure_table, key.table, {key.family: owned})
                self._call(assign, deadline_ms)
                self._known[key.table, key.family] = owned
        for mutation in request.mutations:
            if type(mutation) is Delete:
                _refuse(mutation.key, find_delete_refusal(self.of(mutation.key)))


def _refuse(key: Key, reason: str | None) -> None:
    if reason is not None:
        raise InvalidRequestError(reason, key=key)
