"""Whether transactions are safe on a store: its tables, its clock, and how it keeps its promises.

`examine` yields what it has found out, good and bad, each with how to mend it. It writes to two
cells, in the row `doctor` of the transaction table, because a server tells its time and
its manners only by what it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version

from recovery.text import error_text
from txn.errors import InvalidRequestError, StoreError
from txn.model import (
    KEEP_DELETES_MS,
    Cell,
    Check,
    Edit,
    Family,
    Key,
    find_delete_refusal,
    find_refusal,
)
from txn.protocol.attempt import Context
from txn.protocol.lock_cells import FREE
from txn.protocol.row import FAMILY
from txn.protocol.rules import FENCED, SIX_PHASE, find_rules

ROW = b"doctor"
SKEW_MS = 1_000
AHEAD_MS = 50
SLOW_MS = 1_000
LOOKS = 5
PACKAGES = ("hbase-txn", "protobuf", "kazoo", "gssapi", "thriftpy2", "happybase", "lmdb")
PURGE = "hbase.hstore.time.to.purge.deletes"


class Verdict(Enum):
    """What a diagnosis asks for."""

    FINE = "fine"
    CAUTION = "caution"  # a limit to know of, or something that this store does not show
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at. about: which; seen: what it is like; mend: what to do."""

    about: str
    verdict: Verdict
    seen: str
    mend: str = ""


def examine(context: Context, tables: Sequence[bytes] = ()) -> Iterator[Diagnosis]:
    """Yield a diagnosis of everything that the protocol relies on, in these data tables and below
    them. Ends early where nothing answers."""
    yield _versions()
    try:
        yield from _check_reach(context)
        yield from _transaction_table(context)
        for table in tables:
            yield from _table(context, table, context.store.describe(table))
    except StoreError as error:
        yield Diagnosis(
            "store", Verdict.WRONG, error_text(error), "see that it runs and can be reached"
        )
    except InvalidRequestError as error:
        yield Diagnosis("store", Verdict.WRONG, error_text(error), "open it by another URI")


def _versions() -> Diagnosis:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return Diagnosis("versions", Verdict.FINE, ", ".join(found))


def _check_reach(context: Context) -> Iterator[Diagnosis]:
    context.store.describe(context.table)  # the first one connects, and may find things asleep
    took_ms = 0
    for _ in range(LOOKS):  # a pause of the server's says nothing of the answers after it
        started_ms = context.clock.monotonic_ms()
        context.store.describe(context.table)
        took_ms = context.clock.monotonic_ms() - started_ms
        if took_ms < SLOW_MS:
            yield Diagnosis("store", Verdict.FINE, f"answers within {took_ms} ms")
            return
    mend = "a transaction waits for ten such answers: look for load, or a server that is away"
    yield Diagnosis("store", Verdict.WRONG, f"took {took_ms} ms to answer", mend)


def _transaction_table(context: Context) -> Iterator[Diagnosis]:
    families = context.store.describe(context.table)
    if families is None or FAMILY not in families:
        missing = "is not there" if families is None else f"lacks the family {FAMILY.decode()}"
        mend = "an engine makes it when it opens the store as hbase:// or through Thrift 2"
        yield Diagnosis(_name(context.table), Verdict.WRONG, missing, mend)
        return
    yield from _table(context, context.table, families)
    yield _protocol(context)
    yield from _clock(context)
    yield from _check_manners(context)


def _protocol(context: Context) -> Diagnosis:
    rules = find_rules(context.store, context.table)
    name = rules.name if rules else "six-phase, which is not written down yet"
    lacks = (rules or SIX_PHASE).needs - context.store.features
    if lacks:
        mend = "open the store as hbase://, or through HBase's Thrift 2 gateway"
        return Diagnosis("protocol", Verdict.WRONG, f"{name}, which this store cannot do", mend)
    other = "" if FENCED.needs <= context.store.features else "; this store cannot do fenced"
    return Diagnosis("protocol", Verdict.FINE, name + other)


def _table(
    context: Context, table: bytes, families: Mapping[bytes, Family] | None
) -> Iterator[Diagnosis]:
    if families is None:
        mend = "make it: txn table create"
        yield Diagnosis(_name(table), Verdict.WRONG, "is not there", mend)
        return
    for name, family in sorted(families.items()):
        about = f"{_name(table)}, family {name.decode(errors='replace')}"
        yield from _family(about, family, "describe" in context.store.features)


def _family(about: str, family: Family, shown: bool) -> Iterator[Diagnosis]:
    found = []
    if reason := find_refusal(family):
        found.append(Diagnosis(about, Verdict.WRONG, reason, _mend_refused(family)))
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
        yield Diagnosis(about, Verdict.FINE, "is safe for transactions")


def _mend_refused(family: Family) -> str:
    if family.ttl_ms is not None:
        return "alter it with TTL => 'FOREVER'"
    if family.new_version_behavior:
        return "alter it with NEW_VERSION_BEHAVIOR => 'false'"
    return "alter the table with DURABILITY => 'USE_DEFAULT'"


def _clock(context: Context) -> Iterator[Diagnosis]:
    """The server's time is what it stamps a checked write with."""
    key = Key(ROW, FAMILY, b"clock", context.table)
    before_ms = context.clock.wall_ms()
    cell = _exchange(context, key, b"%d" % before_ms)
    after_ms = context.clock.wall_ms()
    if cell is None:
        yield Diagnosis("clock", Verdict.CAUTION, "another doctor is at work", "try again")
        return
    skew_ms = max(cell.timestamp - after_ms, before_ms - cell.timestamp, 0)
    ahead = "ahead of" if cell.timestamp > after_ms else "behind"
    if skew_ms <= SKEW_MS:
        yield Diagnosis("clock", Verdict.FINE, f"the server's is within {SKEW_MS} ms of ours")
    else:
        mend = "set the clocks by NTP: ages are measured by both, and fsck may act early or late"
        if context.rules.locks_rows:
            limit_ms = context.policy.skew_ms
            mend += f"; a fenced commit refuses cells that lie {limit_ms} ms ahead of its client"
        yield Diagnosis("clock", Verdict.WRONG, f"the server's is {skew_ms} ms {ahead} ours", mend)


def _check_manners(context: Context) -> Iterator[Diagnosis]:
    """A lock must not be hidden by the unlock before it, and an empty cell is a free one. The cell
    is this doctor's own: what another one does at the same moment says nothing of the store."""
    about, column = "checked writes", b"manners-%016x" % context.random.getrandbits(64)
    key = Key(ROW, FAMILY, column, context.table)
    ahead_ms = context.clock.wall_ms() + AHEAD_MS
    context.store.write([Edit(key, FREE, ahead_ms)])
    (held,) = context.store.check_and_put([Check(key, FREE, ((key, b"held"),))])
    cell = context.store.read([key])[key]
    if not held:
        mend = "this store cannot be used: HBase takes an empty cell for an absent one"
        yield Diagnosis(about, Verdict.WRONG, "an empty cell is not free", mend)
    elif cell is None or cell.value != b"held" or cell.timestamp < ahead_ms:
        mend = "this store cannot be used: HBase writes at the checked cell's time or later"
        yield Diagnosis(about, Verdict.WRONG, "one was hidden by the cell that it checked", mend)
    else:
        yield Diagnosis(about, Verdict.FINE, "behave as the protocol needs")
    context.store.write([Edit(key, None, max(ahead_ms, cell.timestamp if cell else 0))])


def _exchange(context: Context, key: Key, value: bytes) -> Cell | None:
    """Write a cell at the server's time; None where somebody else did so at the same moment."""
    old = context.store.read([key])[key]
    check = Check(key, old.value if old else FREE, ((key, value),))
    (done,) = context.store.check_and_put([check])
    return context.store.read([key])[key] if done else None


def _name(table: bytes) -> str:
    return f"table {table.decode(errors='replace')}"
