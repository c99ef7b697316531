"""The steps before the decision that both protocols share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from txn.errors import AbortedError, ConflictError, TableUnavailable
from txn.events import Conflict
from txn.model import Cell, Key
from txn.protocol.codec import OPEN
from txn.protocol.context import Context
from txn.protocol.locks import Blocker, Contention
from txn.protocol.ranges import find_phantom
from txn.protocol.row import column
from txn.protocol.statuses import Status
from txn.protocol.transaction import (
    PORTION,
    WRITTEN_WITHIN_MS,
    PendingCommit,
    advance,
    fail_aborted,
    note_heartbeat,
    report_phase,
    send_heartbeats_between,
    split_portions,
)

RESOLVED_AT_ONCE = PORTION // 10


def run_for_available(
    work: Callable[[Sequence[PendingCommit]], object], transactions: Sequence[PendingCommit]
) -> list[PendingCommit]:
    """Run a step before the decision, which may run twice; return the transactions that can still
    commit. A missing table aborts only the transactions that need it."""
    live = list(transactions)
    while live:
        try:
            work(live)
            break
        except TableUnavailable as error:
            lost = [t for t in live if t.needs(error.table)]
            if not lost:
                raise
            for t in lost:
                t.failure = t.failure or AbortedError(str(error), transaction=t.row_key)
                t.failure.__cause__ = error
            live = [t for t in live if t.failure is None]
    return [t for t in live if t.failure is None]


@report_phase("write")
def write_rows(context: Context, transactions: Sequence[PendingCommit]) -> list[PendingCommit]:
    """Make each buffer durable. No lock is taken before this is acknowledged, because any client
    may release a lock whose holder has no row.

    The write may be repeated. If that took too long, other clients may have aborted the row, fsck
    may have deleted it, and a client may be about to release its locks. So the row key is given up.
    """

    def buffer(t: PendingCommit) -> list[tuple[Key, bytes]]:
        cells = [(column(context.table, t.row_key, b"buffer"), t.buffer)]
        if t.parts is not None:
            cells.append((column(context.table, t.row_key, b"parts"), OPEN))
        if t.spans:
            cells.append((column(context.table, t.row_key, b"ranges"), b"%d" % len(t.spans)))
        return cells

    sent_ms = context.clock.monotonic_ms()
    new = [t for t in transactions if t.status is None]  # parents and parts have their rows already
    advance(context, new, Status.WRITTEN, buffer)
    note_heartbeat(new, sent_ms)
    for t in transactions:
        t.written_ms = sent_ms
    live = fail_aborted(transactions, Status.WRITTEN)
    if context.clock.monotonic_ms() - sent_ms > WRITTEN_WITHIN_MS:
        for t in live:
            t.failure = ConflictError("writing its row took too long", transaction=t.row_key)
    return [t for t in live if t.failure is None]


def resolve_all(
    context: Context,
    transactions: Sequence[PendingCommit],
    contention: Contention,
    holders: Mapping[bytes, Mapping[Key, Cell]],
) -> set[bytes]:
    """Resolve holders, each of which may take a commit's time; return those that released."""
    gone: set[bytes] = set()
    for some in send_heartbeats_between(
        context, transactions, split_portions(list(holders.items()), RESOLVED_AT_ONCE)
    ):
        gone.update(contention.resolve(dict(some)))
    return gone


@report_phase("validate")
def validate_ranges(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention
) -> list[PendingCommit]:
    """Fail the transactions whose scanned ranges have keys of others. This read fixes their place
    in the order of transactions, so readers wait for them from 1-LOCKED on."""
    for t in transactions:
        failure = find_phantom(context, t, transactions, contention.resolve)
        t.failure = t.failure or failure  # a heartbeat may have failed it meanwhile
    return [t for t in transactions if t.failure is None]


def make_conflict(t: PendingCommit, key: Key, holder: bytes) -> ConflictError:
    """Return the error that names the holder of the key; FREE: the holder has released it."""
    words = "key is locked" if holder else "key is locked by others, again and again"
    return ConflictError(words, key=key, holder=holder or None, transaction=t.row_key)


def report_conflicts(context: Context, missing: Iterable[Blocker]) -> None:
    for item in missing:
        context.on_event(Conflict(item.t.row_key, item.key, item.holder))
