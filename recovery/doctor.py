"""Check whether transactions are safe on a store: its tables, its clock, and how it writes.

`examine` yields good and bad results, each with a remedy. The time and behaviour of a server show
only in its writes. So the row `doctor` of the transaction table gets two cells for a moment. The
next run deletes the cells of a killed one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from urllib.parse import unquote

from recovery.findings import RETENTION_MS, Finding
from recovery.fsck import find_future, find_last_repair_ms
from recovery.scan import list_old
from recovery.text import error_text, quote_name, time_text
from txn.errors import InvalidRequestError, ReadOnlyError, StoreError
from txn.model import (
    KEEP_DELETES_MS,
    RESERVED,
    Check,
    Edit,
    Family,
    Key,
    find_delete_refusal,
    find_refusal,
    plain_table,
)
from txn.protocol.clocks import ACCEPT, find_step, measure_skew
from txn.protocol.context import Context
from txn.protocol.protocols import find_named, find_rules
from txn.protocol.row import DOCTOR_ROW, FAMILY, FREE
from txn.protocol.statuses import FENCED, SIX_PHASE
from txn.reading.feed import list_decisions
from txn.stores.base import find_endpoints
from txn.stores.options import split_uri
from txn.text import escape, key_text

SKEW_MS = 1_000
AHEAD_MS = 50
SLOW_MS = 1_000
DESCRIBES = 5
LEFT_MS = 60_000
"""Older cells were left by a doctor that was killed."""
ROWS_CHECKED = 200
LATE_MS, MOST_OLD = 2 * RETENTION_MS, 10_000
ROOM_BYTES = 256 << 20
PACKAGES = ("hbase-txn", "protobuf", "kazoo", "gssapi", "thriftpy2", "happybase", "lmdb")
PURGE = "hbase.hstore.time.to.purge.deletes"


class Verdict(Enum):
    FINE = "fine"
    CAUTION = "caution"  # a limit to know, or something that this store does not show
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check. about: its subject; seen: what was found; mend: the remedy."""

    about: str
    verdict: Verdict
    seen: str
    mend: str = ""


def examine(
    context: Context, tables: Sequence[bytes] = (), *, uri: str = "memory:"
) -> Iterator[Diagnosis]:
    """Yield a diagnosis of each thing that the protocol relies on, in the store and these tables.
    Stop early if nothing answers. uri: the store's; an embedded one needs room on its disk."""
    found = []
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    yield Diagnosis("versions", Verdict.FINE, ", ".join(found))
    try:
        yield from _check_reach(context)
        yield from _check_disk(uri)
        try:
            yield from _check_transaction_table(context)
        except ReadOnlyError:
            seen = "can only be read here: its clock and its writes are not checked"
            mend = "open it where it may be written to"
            yield Diagnosis("store", Verdict.CAUTION, seen, mend)
        for table in (each for each in tables if plain_table(each) != plain_table(context.table)):
            families = context.store.describe(table)
            yield from _check_table(context, table, families)
            if families is not None:
                yield from _check_rows(context, table)
        endpoints = find_endpoints(context.store)
        names = dict.fromkeys(map(plain_table, (context.table, *tables)))
        if lacking := " ".join(quote_name(each) for each in names if endpoints.get(each) is False):
            seen = f"without it, changed rows take a request each, not one for a region: {lacking}"
            mend = f"txn table endpoint {lacking}; txn table ls shows all tables without it"
            yield Diagnosis("endpoint", Verdict.CAUTION, seen, mend)
    except (StoreError, InvalidRequestError) as error:
        is_away = isinstance(error, StoreError)
        mend = "see that it runs and can be reached" if is_away else "open it by another URI"
        yield Diagnosis("store", Verdict.WRONG, error_text(error), mend)


def _check_reach(context: Context) -> Iterator[Diagnosis]:
    context.store.describe(context.table)  # the first call connects, and may be slow
    took_ms = 0
    for _ in range(DESCRIBES):  # several, since one may meet a server's pause
        started_ms = context.clock.monotonic_ms()
        context.store.describe(context.table)
        took_ms = context.clock.monotonic_ms() - started_ms
        if took_ms < SLOW_MS:
            yield Diagnosis("store", Verdict.FINE, f"answers within {took_ms} ms")
            return
    mend = "a transaction waits for ten such answers: look for load, or a server that is away"
    yield Diagnosis("store", Verdict.WRONG, f"took {took_ms} ms to answer", mend)


def _check_disk(uri: str) -> Iterator[Diagnosis]:
    parts = split_uri(uri)
    if parts.scheme != "embedded":
        return
    folder = unquote(parts.path)
    free = shutil.disk_usage(folder).free
    size = sum(512 * entry.stat().st_blocks for entry in os.scandir(folder))
    seen = f"{free:,} bytes are free; the store has {size:,}"
    mend = "make room: a full disk refuses commits, and a backup needs as much as the store"
    is_short = free < max(ROOM_BYTES, size // 4)
    yield Diagnosis("disk", *((Verdict.CAUTION, seen, mend) if is_short else (Verdict.FINE, seen)))


def _check_transaction_table(context: Context) -> Iterator[Diagnosis]:
    families = context.store.describe(context.table)
    if families is None or FAMILY not in families:
        missing = "is not there" if families is None else f"lacks the family {FAMILY.decode()}"
        mend = "make it with `txn init`: as hbase://, or through Thrift 2"
        yield Diagnosis(_name(context.table), Verdict.WRONG, missing, mend)
        return
    yield from _check_table(context, context.table, families)
    yield _check_protocol(context)
    # Timestamps do not show in a local store that its clock was set; a note does.
    step_ms = find_step(context) if context.is_local else 0
    if abs(step_ms) > SKEW_MS:
        seen = f"set by {step_ms} ms since the store was first written to"
        yield Diagnosis("clock", Verdict.WRONG, seen, f"see that it is right; {ACCEPT}")
    yield from _check_rows(context, context.table)
    if number := len(list_old(context, LATE_MS, MOST_OLD)):
        last_ms = find_last_repair_ms(context)
        more, last = " or more" * (number == MOST_OLD), time_text(last_ms) if last_ms else "none"
        seen = f"grows: {number:,} rows{more} are older than two days; last repair: {last}"
        yield Diagnosis(_name(context.table), Verdict.CAUTION, seen, "txn fsck --repair, hourly")
    yield from _try_writes(context)


def _try_writes(context: Context) -> Iterator[Diagnosis]:
    key = Key(DOCTOR_ROW, FAMILY, b"write-%016x" % context.rng.getrandbits(64), context.table)
    found: list[Diagnosis] = []

    def write() -> None:
        found[:] = [_compare_clocks(context), _check_writes(context, key)]
        raise _UndoError  # for stores that can roll back the whole block

    try:
        with suppress(_UndoError):
            context.store.atomically(write)
    finally:  # also those of doctors that were killed
        keys, old_ms = (key, key._replace(column=b"clock")), context.clock.wall_ms() - LEFT_MS
        for row in context.store.scan(context.table, DOCTOR_ROW, DOCTOR_ROW + b"\0"):
            left = {k: c.timestamp for k, c in row.cells.items()}
            due = [Edit(k, None, at) for k, at in left.items() if k in keys or at < old_ms]
            context.store.write(due)
    yield from found


class _UndoError(Exception):
    """Ends a block of writes and rolls it back."""


def _check_protocol(context: Context) -> Diagnosis:
    rules = find_rules(context.store, context.table) or SIX_PHASE
    name = str(rules)
    if find_named(context.store, context.table)[0] is None:
        name += ", which is not written down: txn init does it"
    lacks = rules.needs - context.store.features
    if lacks:
        mend = "open the store as hbase://, or through HBase's Thrift 2 gateway"
        return Diagnosis("protocol", Verdict.WRONG, f"{name}, which this store cannot do", mend)
    other = "" if FENCED.needs <= context.store.features else "; this store cannot do fenced"
    return Diagnosis("protocol", Verdict.FINE, name + other)


def _check_table(
    context: Context, table: bytes, families: Mapping[bytes, Family] | None
) -> Iterator[Diagnosis]:
    if families is None:
        mend = "make it: txn table create"
        yield Diagnosis(_name(table), Verdict.WRONG, "is not there", mend)
        return
    for name, family in sorted(families.items()):
        about = f"{_name(table)}, family {escape(name)}"
        yield from _check_family(about, family, "describe" in context.store.features)
        if family.database is not None and family.database != plain_table(context.table):
            seen = f"belongs to the database with the transaction table {escape(family.database)}"
            mend = f"name that transaction table, or: txn table take-over {quote_name(table)}"
            yield Diagnosis(about, Verdict.WRONG, seen, mend)


def _check_family(about: str, family: Family, shown: bool) -> Iterator[Diagnosis]:
    found = []
    if reason := find_refusal(family):
        mend = "alter the table with DURABILITY => 'USE_DEFAULT'"
        if family.ttl_ms is not None:
            mend = "alter it with TTL => 'FOREVER'"
        elif family.new_version_behavior:
            mend = "alter it with NEW_VERSION_BEHAVIOR => 'false'"
        found.append(Diagnosis(about, Verdict.WRONG, reason, mend))
    if reason := find_delete_refusal(family):
        mend = f"alter it with CONFIGURATION => {{'{PURGE}' => '{KEEP_DELETES_MS}'}}"
        found.append(Diagnosis(about, Verdict.CAUTION, f"may not be deleted from: {reason}", mend))
    if family.replicas > 1:
        mend = "read with strong consistency only, as this library does, or set it to 1"
        seen = f"its regions have {family.replicas} replicas, which answer with the past"
        found.append(Diagnosis(about, Verdict.CAUTION, seen, mend))
    if not shown:
        seen = "delete markers, durability and NEW_VERSION_BEHAVIOR are not shown by this store"
        mend = "examine it as hbase://, or through a Thrift 2 gateway"
        found.append(Diagnosis(about, Verdict.CAUTION, seen, mend))
    yield from found
    if not found:
        database = "" if family.database else "; belongs to no database yet (txn table take-over)"
        yield Diagnosis(about, Verdict.FINE, f"is safe for transactions{database}")


def _compare_clocks(context: Context) -> Diagnosis:
    ahead_ms = measure_skew(context, DOCTOR_ROW)
    if abs(ahead_ms) <= SKEW_MS:
        return Diagnosis("clock", Verdict.FINE, f"the server's is within {SKEW_MS} ms of ours")
    limit_ms = context.policy.skew_ms
    mend = f"set the clocks by NTP: beyond {limit_ms} ms fsck repairs nothing"
    if context.rules.locks_rows:
        mend += ", and a client commits nothing"
    seen = f"the server's is {abs(ahead_ms)} ms {'behind' if ahead_ms > 0 else 'ahead of'} ours"
    return Diagnosis("clock", Verdict.WRONG, seen, mend)


def _check_rows(context: Context, table: bytes) -> Iterator[Diagnosis]:
    """Yield cells from the future in a table's first rows, and rows that nobody retires. In the
    transaction table, these are the rows of transactions that a fast clock named."""
    is_data = table != context.table
    now_ms = context.clock.wall_ms()
    rows = context.store.scan(table) if is_data else list_decisions(context, now_ms)
    ahead, vacant, may_retire = list[Finding](), 0, is_data and not context.rules.locks_rows
    for row in islice(rows, ROWS_CHECKED):
        ahead += find_future(context, row)
        vacant += may_retire and all(
            key.column.endswith(RESERVED) and cell.timestamp < now_ms - LATE_MS
            for key, cell in row.cells.items()
        )
    if vacant > ROWS_CHECKED // 10:
        seen = f"grows: {vacant} of its first {ROWS_CHECKED} rows have no value, only old locks"
        mend = f"txn fsck --repair --scan {quote_name(table)}, weekly"
        yield Diagnosis(_name(table), Verdict.CAUTION, seen, mend)
    if ahead:
        first = ahead[0]
        assert isinstance(first.facts["until"], int)
        until = time_text(first.facts["until"])
        such = key_text(first.key) if first.key else escape(first.transaction or b"")
        whose = f"of its first {ROWS_CHECKED} rows" if is_data else "of the newest transactions"
        seen = f"{whose} {len(ahead)} have times in the future, such as {such}, until {until}"
        mend = f"see them all: txn fsck --scan {quote_name(table)}"
        yield Diagnosis(_name(table), Verdict.CAUTION, seen, mend)


def _check_writes(context: Context, key: Key) -> Diagnosis:
    """Check that an older unlock does not hide a lock, and that an empty cell is a free lock. The
    cell is this doctor's own, so that concurrent doctors do not disturb each other."""
    about = "checked writes"
    ahead_ms = context.clock.wall_ms() + AHEAD_MS
    context.store.write([Edit(key, FREE, ahead_ms)])
    (held,) = context.store.check_and_put([Check(key, FREE, ((key, b"held"),))])
    cell = context.store.read([key])[key]
    if not held:
        mend = "this store cannot be used: HBase takes an empty cell for an absent one"
        return Diagnosis(about, Verdict.WRONG, "an empty cell is not free", mend)
    if cell is None or cell.value != b"held" or cell.timestamp < ahead_ms:
        mend = "this store cannot be used: HBase writes at the checked cell's time or later"
        return Diagnosis(about, Verdict.WRONG, "one was hidden by the cell that it checked", mend)
    return Diagnosis(about, Verdict.FINE, "behave as the protocol needs")


def _name(table: bytes) -> str:
    return f"table {escape(table)}"
