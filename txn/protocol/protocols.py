"""Finds out which of the two protocols a database has, and whether it keeps all rows.

Two cells of the transaction table say so; they are written when the table is made. They never
change while a client is connected.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice

from txn.errors import CorruptRowError, InvalidRequestError, TableUnavailable
from txn.model import Check, Key, plain_table, refuse_other_database
from txn.protocol.codec import decode_plan
from txn.protocol.context import Context, call_store
from txn.protocol.locks import is_lock_of_rows
from txn.protocol.row import FAMILY, FREE, PROTOCOL_ROW, is_evidence
from txn.protocol.statuses import FENCED, PROTOCOLS, SIX_PHASE, KeptRows, ProtocolName, Rules
from txn.stores.base import Families, Store

SAMPLED_ROWS = 50


def require_transactions(store: Store, table: bytes, *, is_own: bool = True) -> None:
    """Raise InvalidRequestError unless the store has this transaction table. is_own: also refuse a
    table that belongs to another database, for example as one of its data tables."""
    families = store.describe(table) or {}
    if is_own:
        refuse_other_database(table, families.values(), table)
    if FAMILY not in families:
        raise InvalidRequestError(
            "no such transaction table: name another, or make this one with `txn init`",
            transactions=table,
        )


def protocol_key(table: bytes, column: bytes = b"name") -> Key:
    return Key(PROTOCOL_ROW, FAMILY, column, table)


def list_names(table: bytes, rules: Rules) -> tuple[tuple[Key, bytes], ...]:
    """Return the cells that name the rules of a database."""
    name, rows = (protocol_key(table), rules.stored_name), rules.rows.encode()
    return (name, (protocol_key(table, b"rows"), rows)) if rules.locks_rows else (name,)


def find_rules(store: Store, table: bytes) -> Rules | None:
    """Return the rules that a database names or, without a name, that it shows."""
    return find_named(store, table)[0] or _find_shown(store, table)


def find_named(store: Store, table: bytes) -> tuple[Rules | None, bool]:
    """Return the rules that a database names, if any, and whether it has the name of an earlier
    version, whose clients release the lock of an absent row without poisoning the row."""
    key, rows_key = protocol_key(table), protocol_key(table, b"rows")
    cells = store.read([key, rows_key])
    cell, setting = cells[key], cells[rows_key]
    if cell is None:
        return None, False
    rows = setting.value if setting else b"needed"
    for rules in PROTOCOLS.values():
        if cell.value in (rules.stored_name, rules.old_name) and rows in (b"always", b"needed"):
            is_old = cell.value == rules.old_name
            return rules.choose_variant(keeps_rows=rows == b"always"), is_old
    raise CorruptRowError("unknown protocol", key=key, value=cell.value, rows=rows)


def is_of_earlier_version(context: Context) -> bool:
    """Whether the database may have clients of an earlier version."""
    return call_store(context, lambda: find_named(context.store, context.table))[1]


def _find_shown(store: Store, table: bytes) -> Rules | None:
    """Return the rules of which a database shows locks: in the plan of an early transaction, or in
    the first rows of its tables, since not every fenced transaction has a row."""
    for row in islice(store.scan(table, columns=[(FAMILY, b"plan")]), SAMPLED_ROWS):
        with suppress(CorruptRowError):
            if any(decode_plan(cell.value).locks for cell in row.cells.values()):
                return FENCED
    shown: set[bool | None] = set()
    for name in store.list_tables():
        families: Families | None = None
        with suppress(TableUnavailable):  # another user's, who shows it to nobody
            families = store.describe(name)
        databases = {family.database for family in (families or {}).values()}
        if name != table and plain_table(table) in databases:
            first_rows = islice(store.scan(name), SAMPLED_ROWS)
            shown |= {is_lock_of_rows(*item) for row in first_rows for item in row.cells.items()}
    return FENCED if True in shown else SIX_PHASE if False in shown else None


def choose_rules(
    context: Context, wanted: ProtocolName | None, rows: KeptRows | None, *, create: bool
) -> Rules:
    """Return the rules of a database whose transaction table exists; if it has none, the wanted
    ones, or six-phase. With `create`, write their name if it is missing. Raise InvalidRequestError
    if the database has other rules than wanted, or the store lacks the features that they need."""
    named, is_old = call_store(context, lambda: find_named(context.store, context.table))
    rules = named or call_store(context, lambda: _find_shown(context.store, context.table))
    if rules is None:
        rules = PROTOCOLS[wanted or "six-phase"] if create else SIX_PHASE
        require_features(context, rules)
        if rules is not SIX_PHASE and any(
            is_evidence(row.row) for row in context.store.scan(context.table)
        ):
            raise InvalidRequestError(
                "the database has transactions of another protocol: see `txn convert`",
                table=context.table,
                found=SIX_PHASE.name,
                wanted=wanted,
            )
    rules = named or rules.choose_variant(keeps_rows=rows == "always")
    is_wanted = wanted in (None, rules.name) and rows in (None, rules.rows)
    if named is None and create and is_wanted:
        check = Check(protocol_key(context.table), FREE, list_names(context.table, rules))
        if not call_store(context, lambda: context.store.check_and_put([check]))[0]:
            named, is_old = call_store(context, lambda: find_named(context.store, context.table))
            rules = named or rules
    if wanted is not None and rules.name != wanted:
        raise InvalidRequestError(
            "the database is of another protocol: see `txn convert`",
            table=context.table,
            found=rules.name,
            wanted=wanted,
        )
    refuse_other_rows(context, rules, rows)
    require_features(context, rules)
    if is_old:
        raise InvalidRequestError(
            "the database is of an earlier version, whose clients must not run beside this one: "
            f"stop them all, then run `txn convert {rules.name}`",
            transactions=context.table,
        )
    return rules


def refuse_other_rows(context: Context, rules: Rules, wanted: KeptRows | None) -> None:
    """Raise InvalidRequestError unless the rules keep rows as wanted."""
    if wanted not in (None, rules.rows):
        words = "the six-phase protocol always keeps rows"
        if rules.locks_rows:
            words = f"the database keeps other rows: see `txn convert fenced --rows {wanted}`"
        table = context.table
        raise InvalidRequestError(words, table=table, found=rules.rows, wanted=wanted)


def require_features(context: Context, rules: Rules) -> None:
    """Raise InvalidRequestError if the store lacks a feature that the rules need."""
    if not rules.needs <= context.store.features:
        raise InvalidRequestError(
            "the store cannot do the database's protocol: HBase's Thrift 2 gateway can",
            protocol=rules.name,
            lacks=sorted(rules.needs - context.store.features),
        )
