"""Convert a database to another protocol, and move a table to another database.

A conversion changes the recorded name of the protocol. It requires that no client is connected, no
transaction has a row and no lock is held, so that no request of the old protocol can arrive later.
Then it deletes what the old protocol keeps beside values. The same call resumes an interrupted one.

Two databases, each with its own transaction table, do not see each other's transactions. So a
family names its database, and clients of other databases are refused. A table changes its database
while no client uses it and none of its keys is locked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby, islice

from recovery.findings import RETENTION_MS
from recovery.fsck import require_tables
from recovery.opening import find_usual_rules
from recovery.scan import MARKERS, OnRow, list_rows, newest_old_ms, transactions
from recovery.text import quote_name
from txn.arguments import check_calls
from txn.errors import CorruptRowError, InvalidRequestError
from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Check, Edit, Family, Key, find_refusal, plain_table
from txn.protocol.clocks import check_clock
from txn.protocol.context import Context, call_store
from txn.protocol.locks import ROW_LOCK, holder_of
from txn.protocol.protocols import list_names, protocol_key, refuse_other_rows, require_features
from txn.protocol.ranges import stored_rows
from txn.protocol.row import FREE, parent_of
from txn.protocol.statuses import PROTOCOLS, KeptRows, ProtocolName, Rules
from txn.spans import Span
from txn.stores.base import TableAssigner, find_endpoints
from txn.stores.hbase.schema import make_assign_command
from txn.text import escape, key_text

BATCH = 500
HELD = "locks or tags in {table}: {cells}: txn fsck --repair --scan {quoted}"
YOUNG = "locks or tags of {table} are younger than the retention: {cells}: wait for it"
AHEAD = "cells of {table} lie ahead of the clock: {cells}: set it, or wait for it"


@check_calls
def find_obstacles(
    context: Context,
    tables: Collection[bytes] = (),
    *,
    retention_ms: int = RETENTION_MS,
    on_row: OnRow = lambda table: None,
) -> Iterator[str]:
    """Yield the reasons why a database cannot be converted now, each with a remedy.

    tables: all data tables that transactions write to. retention_ms: the time for which none of
    their locks may have changed, because not every transaction has a row; it must exceed the life
    of any request. Raises InvalidRequestError for an absent table.
    """
    # The rows of parts follow that of their transaction, if it has one.
    rows = groupby(transactions(context), lambda row: parent_of(row.row_key) or row.row_key)
    counts = Counter(all(row.is_over for row in alike) for _, alike in rows)
    unfinished, ended = counts[False], counts[True]
    if unfinished:
        yield (
            f"{unfinished} transactions are not finished: txn fsck --repair --grace 0s, when every "
            "client is stopped; txn purge, if one is unreadable"
        )
    if ended:
        yield (
            f"{ended} transactions have rows, and requests of theirs may be on their way: wait for "
            "the retention, and let txn fsck --repair delete them"
        )
    require_tables(context, tables)
    for span in _list_spans(context, tables):
        yield from _list_cell_obstacles(context, span, retention_ms, on_row)


def _list_cell_obstacles(
    context: Context, span: Span, retention_ms: int, on_row: OnRow
) -> Iterator[str]:
    """Yield locked keys, unfinished writes, recent locks and tags, and cells from the future."""
    counts: Counter[str] = Counter()
    examples: dict[str, Key] = {}
    for row in list_rows(context, span, on_row):
        now_ms = context.clock.wall_ms()
        old_ms = newest_old_ms(now_ms, retention_ms)
        for key, cell in row.cells.items():
            is_guard = _is_guard(key)
            obstacles = {
                HELD: is_guard and holder_of(key, cell) != FREE,
                YOUNG: is_guard and cell.timestamp > old_ms,
                AHEAD: cell.timestamp >= now_ms,
            }
            for obstacle in (each for each, is_met in obstacles.items() if is_met):
                counts[obstacle] += 1
                examples[obstacle] = key
    table = escape(span.table)
    for obstacle in filter(counts.__getitem__, (HELD, YOUNG, AHEAD)):
        cells = f"{counts[obstacle]}, such as {key_text(examples[obstacle])}"
        yield obstacle.format(table=table, cells=cells, quoted=quote_name(span.table))


@check_calls
def convert(
    context: Context,
    wanted: ProtocolName,
    tables: Collection[bytes] = (),
    *,
    rows: KeptRows | None = None,
) -> int:
    """Change the protocol of a database without obstacles. Delete what the old protocol left beside
    values, also if the database has the new one already, and return the number of deleted cells.

    rows: that of `connect`; None: the setting that a fenced database has. No client may be
    connected. Raises InvalidRequestError if the store lacks the protocol or another process changed
    it meanwhile, and AbortedError if this machine's clock is wrong.
    """
    rules, known, name = PROTOCOLS[wanted], context.rules, protocol_key(context.table)
    setting = protocol_key(context.table, b"rows")

    def read() -> dict[Key, bytes]:
        cells = call_store(context, partial(context.store.read, [name, setting]))
        return {key: cell.value if cell else FREE for key, cell in cells.items()}

    old = read()
    kept = old[name] == rules.stored_name and old[setting] == b"always"
    rules = rules.choose_variant(keeps_rows=rows == "always" if rows else kept)
    refuse_other_rows(context, rules, rows)
    require_features(context, rules)
    check_clock(context)
    names = list_names(context.table, rules)
    if changed := [key for key, value in names if old[key] != value]:
        check = Check(changed[0], old[changed[0]], names)
        if old[name] in (FREE, rules.stored_name, known.stored_name, known.old_name):
            call_store(context, lambda: context.store.check_and_put([check]))
        found = read()
        if not found.items() >= {*names}:
            words = "another client changes the protocol"
            raise InvalidRequestError(words, found=found[name], wanted=rules.name)
    return _delete_leftovers(context, rules, tables)


def _delete_leftovers(context: Context, rules: Rules, tables: Iterable[bytes]) -> int:
    """Delete the free locks and empty tags that a protocol does not use. Other values in such cells
    stay, since they may belong to an application."""
    count = 0
    for span in _list_spans(context, tables):
        cells = (
            (key, cell)
            for row in stored_rows(context, span)
            for key, cell in row.cells.items()
            if _is_guard(key) and (key.column == ROW_LOCK) is not rules.locks_rows
            if holder_of(key, cell) == FREE
        )
        while some := list(islice(cells, BATCH)):
            edits = [Edit(key, None, cell.timestamp) for key, cell in some]
            call_store(context, lambda: context.store.write(edits))  # noqa: B023
            count += len(some)
    return count


def _is_guard(key: Key) -> bool:
    return key.column.endswith((LOCK_SUFFIX, TAG_SUFFIX)) and key.column != TAG_SUFFIX


def _list_spans(context: Context, tables: Iterable[bytes]) -> list[Span]:
    return [Span(context.table, *MARKERS), *map(Span, dict.fromkeys(tables))]


# ----------------------------------------------------------------------- tables and databases


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table. databases: the transaction tables of its families' databases, None for a family
    without one. protocol: that of its database. refusals: why transactions may not write to its
    families; None if the store does not show its settings. endpoint: see `find_endpoints`."""

    name: bytes
    families: Sequence[bytes]
    databases: frozenset[bytes | None]
    protocol: str | None
    refusals: Sequence[str] | None
    endpoint: bool | None


def list_tables(context: Context) -> Iterator[TableFacts]:
    is_shown = "describe" in context.store.features

    @cache
    def find_protocol(database: bytes) -> str:
        try:
            return call_store(context, lambda: find_usual_rules(context.store, database).name)
        except CorruptRowError:
            return "unknown"

    endpoints = call_store(context, partial(find_endpoints, context.store))
    for name in call_store(context, context.store.list_tables):
        families = call_store(context, partial(context.store.describe, name))
        if families is None:  # dropped meanwhile
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
            endpoints.get(name),
        )


def find_databases(context: Context, table: bytes) -> set[bytes | None]:
    """Return the transaction tables of the databases of a table's families, None for a family
    without one. Raises InvalidRequestError for an absent table."""
    return {family.database for family in _describe(context, table).values()}


def find_table_obstacles(
    context: Context, table: bytes, on_row: OnRow = lambda table: None
) -> Iterator[str]:
    """Yield the reasons why a table cannot change its database, with remedies; scans the table."""
    yield from _list_cell_obstacles(context, Span(table), 0, on_row)


def take_over(context: Context, table: bytes) -> int:
    """Move a table without clients and obstacles to this database. Delete what another protocol
    left beside values, and return the number of deleted cells.

    Raises InvalidRequestError, with the command for HBase's shell, if the store cannot do it, and
    AbortedError if this machine's clock is wrong.
    """
    store, database = context.store, plain_table(context.table)
    require_features(context, context.rules)
    check_clock(context)
    families = _describe(context, table)
    if any(family.database != database for family in families.values()):
        if not isinstance(store, TableAssigner):
            words = "the store cannot change the database of a table: use hbase://, the store "
            words += "behind a server, or the HBase shell"
            command = make_assign_command(table, families, database)
            raise InvalidRequestError(words, command=command)
        store.assign_table(table, database)
    return _delete_leftovers(context, context.rules, [table])


def _describe(context: Context, table: bytes) -> Mapping[bytes, Family]:
    families = call_store(context, lambda: context.store.describe(table))
    if families is None:
        raise InvalidRequestError("no such table", table=table)
    return families
