"""Meeting somebody else's lock: find out what its holder is, and end what may be ended.

A holder that is finished, or whose row is absent, can never decide again: its lock is a late
request, and is freed. One that was decided is finished for it, one that is aborting is released.
One that is undecided is left alone until its row has been seen unchanged for its whole lease, on
this observer's own monotonic clock. Aborting a living transaction costs it a retry, nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txn.errors import (
    AbortedError,
    CorruptRowError,
    InvalidRequestError,
    StoreClosedError,
    StoreError,
    TxnError,
)
from txn.model import Cell, Key
from txn.protocol.attempt import Context, free_locks, load_transaction
from txn.protocol.lock_cells import NO_LOCK, make_foreign_error
from txn.protocol.phases import Status
from txn.protocol.recover import roll_back, roll_forward
from txn.protocol.row import RowState, TransactionRow, is_row_key
from txn.protocol.row_cells import read_rows
from txn.text import holder_text
from txn.watch import LOG, Action, Helped

REMEMBERED = 10_000
STUCK_MS = 1_000  # between two tries at a holder that cannot be ended


@dataclass(slots=True)
class _Sighting:
    """A row as it was found, unchanged since then, and when it was looked at last."""

    found: tuple[Status, int, int]
    since_ms: int
    looked_ms: int


class Resolver:
    """Settles holders, and remembers since when each has been seen as it is. Many threads share it:
    what is remembered may be forgotten between any two looks at it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sightings: dict[bytes, _Sighting] = {}
        self._stuck: dict[bytes, TxnError] = {}

    def settle(self, holders: Mapping[bytes, Mapping[Key, Cell]]) -> set[bytes]:
        """Resolve holders, each with the lock cells it was met in; return those that let go. One
        that cannot be ended is in the way like one that lives: see `blame`."""
        now_ms = self._context.clock.monotonic_ms()
        due = [holder for holder in holders if self._is_due(holder, now_ms)]
        rows = read_rows(self._context, due) if due else {}
        return {holder for holder, row in rows.items() if self._end_holder(row, holders[holder])}

    def blame(self, failure: TxnError | None) -> TxnError | None:
        """Return an error that names a holder with why this one could not be ended, if so it was.
        A lock of another database, or what is no lock, is waited for in vain: that is no conflict.
        """
        holder = failure.facts.get("holder") if isinstance(failure, AbortedError) else None
        cause = self._stuck.get(holder) if isinstance(holder, bytes) else None
        if isinstance(failure, AbortedError) and isinstance(holder, bytes) and cause is not None:
            if isinstance(cause, InvalidRequestError) or not is_row_key(holder):
                failure = AbortedError(str(cause), transaction=failure.transaction)
                failure.__cause__ = cause
            else:
                failure.blame(cause)
        return failure

    def _is_due(self, holder: bytes, now_ms: int) -> bool:
        """Whether to look at the row again: one that lives needs no more than a look now and then,
        and those that wait for it see its lock go."""
        seen = self._sightings.get(holder)
        return seen is None or now_ms - seen.looked_ms >= self._context.policy.courtesy_ms

    def _end_holder(self, row: TransactionRow, locks: Mapping[Key, Cell]) -> bool:
        self._stuck.pop(row.row_key, None)
        try:
            return self._settle(row, locks)
        except StoreClosedError:
            raise
        except (StoreError, CorruptRowError, InvalidRequestError) as error:
            if len(self._stuck) >= REMEMBERED:
                self._stuck = {}
            self._stuck[row.row_key] = error
            if (seen := self._sightings.get(row.row_key)) is not None:
                seen.looked_ms += STUCK_MS
            return False

    def _settle(self, row: TransactionRow, locks: Mapping[Key, Cell]) -> bool:
        context = self._context
        if not is_row_key(row.row_key):
            raise make_foreign_error(NO_LOCK, *next(iter(locks.items())))
        if row.is_over:
            free_for_holder(context, row.row_key, locks)
            return True
        if row.status is None or row.state is RowState.UNREADABLE:
            raise make_corrupt_error(row)
        lease_ms = row.buffer.lease_ms if row.buffer else context.policy.lease_ms
        if not self._is_abandoned(row, row.status, lease_ms):
            return False
        t = load_transaction(context, row)
        if row.state is RowState.DECIDED:
            roll_forward(context, [t])
        else:
            roll_back(context, [t], lambda _: "its owner was silent for its whole lease")
        if t.unread is not None:
            raise t.unread
        if t.status is not None and not t.status.is_finished:
            return False  # its owner decided meanwhile
        done: Action = "rolled forward" if t.status is Status.COMPLETE else "rolled back"
        tell_help(context, row.row_key, done)
        self._sightings.pop(row.row_key, None)
        free_for_holder(
            context, row.row_key, locks
        )  # a late lock request may have landed meanwhile
        return True

    def _is_abandoned(self, row: TransactionRow, status: Status, lease_ms: int) -> bool:
        now_ms = self._context.clock.monotonic_ms()
        found = (status, row.status_at, row.beat)
        seen = self._sightings.get(row.row_key)
        if seen is None or seen.found != found:
            if len(self._sightings) >= REMEMBERED:
                self._sightings = {}  # costs a lease of waiting at worst
            seen = self._sightings[row.row_key] = _Sighting(found, now_ms, now_ms)
        seen.looked_ms = now_ms
        patience_ms = lease_ms if status.is_undecided else self._context.policy.courtesy_ms
        return now_ms - seen.since_ms >= patience_ms


def make_corrupt_error(row: TransactionRow) -> TxnError:
    """Return the error of a row of which nobody can know what it decided: fsck reports it."""
    if row.elsewhere is not None:
        theirs, ours = row.elsewhere
        return InvalidRequestError(
            "a transaction of another database has locked a key of the table: name its "
            "transaction table",
            belongs_to=theirs,
            transactions=ours,
            holder=row.row_key,
        )
    return CorruptRowError("transaction row does not decode", row=row.row_key, cause=row.cause)


def free_for_holder(context: Context, holder: bytes, locks: Mapping[Key, Cell]) -> None:
    """Free lock cells of a finished or absent transaction."""
    if free_locks(context, locks):
        tell_help(context, holder, "freed")


def tell_help(context: Context, holder: bytes, done: Action) -> None:
    """Tell the watch and the log what was done for somebody else."""
    LOG.info("helped another client: %s transaction=%s", done, holder_text(holder))
    context.watch(Helped(holder, done))
