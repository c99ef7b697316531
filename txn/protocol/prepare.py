"""The steps before the decision that both protocols share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from txn.errors import AbortedError, ConflictError, StoreError, TableUnavailable
from txn.events import Conflict
from txn.model import Cell, Check, Key
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
    advance_with,
    fail_aborted,
    read_statuses,
    report_phase,
    send_heartbeats_between,
    split_portions,
)

RESOLVED_AT_ONCE = PORTION // 10


def run_for_available(
    work: Callable[[Sequence[PendingCommit]], list[PendingCommit]],
    transactions: Sequence[PendingCommit],
) -> list[PendingCommit]:
    """Run a step before the decision, which may run twice; return the transactions that can still
    commit, as it does. A missing table aborts only the transactions that need it."""
    live = list(transactions)
    while live:
        try:
            return work(live)
        except TableUnavailable as error:
            lost = [t for t in live if t.needs(error.table)]
            if not lost:
                raise
            for t in lost:
                t.failure = t.failure or AbortedError(str(error), transaction=t.row_key)
                t.failure.__cause__ = error
            live = [t for t in live if t.failure is None]
    return live


def write_rows(
    context: Context, transactions: Iterable[PendingCommit], checks: Sequence[Check] = ()
) -> list[bool]:
    """Write the rows of transactions that have none, with requests for their locks, in one call.
    Return the answers to the requests; those of transactions that fail meanwhile count as well.

    The write may be repeated. If that took too long, other clients may have aborted or poisoned the
    row, fsck may have deleted it, and a client may be about to release its locks. So the row key is
    given up.
    """

    def buffer(t: PendingCommit) -> list[tuple[Key, bytes]]:
        cells = [(column(context.table, t.row_key, b"buffer"), t.buffer)]
        if t.parts is not None:
            cells.append((column(context.table, t.row_key, b"parts"), OPEN))
        if t.spans:
            cells.append((column(context.table, t.row_key, b"ranges"), b"%d" % len(t.spans)))
        return cells

    new = [*{t: None for t in transactions if t.status is None}]
    sent_ms = context.clock.monotonic_ms()
    for t in new:
        t.written_ms = sent_ms if t.written_ms is None else t.written_ms
        t.alive_ms = sent_ms
    try:
        answers = advance_with(context, new, Status.WRITTEN, checks, buffer, now_ms=sent_ms)
    except TableUnavailable:  # that of a lock; the rows may have been written
        with suppress(StoreError):
            read_statuses(context, [t for t in new if t.status is None])
        _fail_given_up(context, [t for t in new if t.status is not None])
        raise
    _fail_given_up(context, new)
    return answers


def _fail_given_up(context: Context, transactions: Sequence[PendingCommit]) -> None:
    """Fail the transactions that were aborted, or whose rows took too long to write."""
    now_ms = context.clock.monotonic_ms()
    for t in fail_aborted(transactions, Status.WRITTEN):
        if t.written_ms is not None and now_ms - t.written_ms > WRITTEN_WITHIN_MS:
            t.failure = ConflictError("writing its row took too long", transaction=t.row_key)


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


def fail_conflicts(blockers: Iterable[Blocker], released: Collection[bytes] = ()) -> None:
    """Fail the transactions that are blocked by other holders than these."""
    for t, key, holder, _ in blockers:
        if holder not in released:
            t.failure = t.failure or make_conflict(t, key, holder)


def report_conflicts(context: Context, missing: Iterable[Blocker]) -> None:
    for item in missing:
        context.on_event(Conflict(item.t.row_key, item.key, item.holder))
