"""What the phases are made of: a transaction in memory, and the three ways to touch its row.

Every change of status is a compare-and-set; its "no" and its lost reply are settled by reading the
row, never believed. A store that does not answer is asked again for a bounded time; then its
error is raised, and the row stays as a crash would leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from txn.clock import Clock
from txn.errors import (
    ConflictError,
    CorruptRowError,
    StoreClosedError,
    StoreError,
    TableUnavailable,
    TxnError,
    annotate,
)
from txn.model import LOOKS_WITHIN_MS, Cell, Check, Key
from txn.policy import Policy
from txn.protocol.phases import IllegalStepError, Status, check_step
from txn.protocol.row import (
    Buffer,
    Marker,
    Plan,
    TransactionRow,
    column,
    decode_status,
    encode_buffer,
    encode_marker,
    marker_key,
    new_row_key,
    status_key,
)
from txn.request import Request, add_marker
from txn.spans import Span
from txn.stores.base import Store
from txn.watch import Watch

FREE = b""
WRITTEN_WITHIN_MS = 300_000
"""How long writing a row may take. Far less than the time that fsck keeps finished rows for."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """What every phase works with. `table` is the transaction table."""

    store: Store
    table: bytes
    clock: Clock
    random: Random
    policy: Policy
    watch: Watch

    def tries(self, *, most: int | None = None, due_ms: int | None = None) -> Iterator[int]:
        """Yield 1, 2, ... with a pause before each but the first: see `Backoff.tries`."""
        return self.policy.backoff.tries(self.clock, self.random, most=most, due_ms=due_ms)


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction in the memory of the client that steps it: its owner, or another.

    status: what its row is known to have reached; None: the row is not there.
    unread: why its status could not be seen at the last look; None if it could.
    plan: what was decided. held: the keys whose locks it may hold.
    locks: the lock cell of each key that it mutates or asserts.
    """

    row_key: bytes
    request: Request
    status: Status | None = None
    plan: Plan | None = None
    unread: CorruptRowError | None = None
    held: set[Key] = field(default_factory=set)
    locks: dict[Key, Key] = field(init=False)

    def __post_init__(self) -> None:
        self.locks = {key: key.lock for key in self.request.keys}

    @property
    def keys(self) -> Collection[Key]:
        """Each key that it mutates or asserts, once."""
        return self.locks.keys()

    @property
    def is_finished(self) -> bool:
        """Whether nothing of it is left to do, as far as is known."""
        return self.status is not None and self.status.is_finished

    @property
    def decided(self) -> Plan:
        """The plan of a transaction that has one."""
        if self.plan is None:
            raise IllegalStepError(annotate("not decided", transaction=self.row_key))
        return self.plan

    def needs(self, table: bytes) -> bool:
        """Whether it has a key in the table."""
        return any(key.table == table for key in self.keys)


@dataclass(slots=True, eq=False, kw_only=True)
class Attempt(Transaction):
    """A transaction in the memory of its owner: one try at a request, under a row key that no
    other attempt has ever had.

    buffer: the request as its row keeps it. due_ms: when it is too late to decide, by the
    monotonic clock. spans: what it has scanned.
    failure: why it left the commit path; None while it is on it, and once it is committed.
    seen: the cells that its assertions were evaluated on, or that were met under others' locks.
    alive_ms: its last sign of life, or a moment before, by the monotonic clock.
    """

    buffer: bytes
    lease_ms: int
    due_ms: int
    spans: Sequence[Span] = ()
    failure: TxnError | None = None
    seen: dict[Key, Cell | None] = field(default_factory=dict)
    alive_ms: int = 0

    def needs(self, table: bytes) -> bool:
        """Whether it has a key, or has scanned a range, in the table."""
        # Not super(): the decorator makes the class anew, for its slots.
        return Transaction.needs(self, table) or any(span.table == table for span in self.spans)

    def reset(self) -> None:
        """Forget what was undone as a whole: it is as it was before anything was written."""
        self.status = self.plan = self.unread = self.failure = None
        self.held.clear()
        self.seen.clear()


def begin_attempt(
    context: Context, request: Request, due_ms: int, buckets: int = 1, spans: Sequence[Span] = ()
) -> Attempt:
    """Return a new attempt at the request, with its buffer encoded: InvalidRequestError where that
    is too large. Nothing is written yet."""
    row_key = new_row_key(context.clock.wall_ms(), context.random.getrandbits(128), buckets)
    if request.once is not None:
        marker = encode_marker(Marker(row_key, request.once_retention_ms))
        request = add_marker(request, marker_key(context.table, request.once), marker)
    lease_ms = context.policy.lease_ms
    buffer = encode_buffer(Buffer(request, lease_ms))
    return Attempt(row_key, request, buffer=buffer, lease_ms=lease_ms, due_ms=due_ms, spans=spans)


def is_late(context: Context, t: Attempt) -> bool:
    """Whether the time that the attempt had for its decision is over."""
    return context.clock.monotonic_ms() >= t.due_ms


def load_transaction(row: TransactionRow) -> Transaction:
    """Return the transaction of a row, to be ended by somebody else. Where the buffer does not
    decode it has no keys: such a row may be rolled back, never forward."""
    request = row.buffer.request if row.buffer else Request(())
    t = Transaction(row.row_key, request, row.status, row.plan)
    t.held.update(t.keys)
    return t


AnyTransaction = TypeVar("AnyTransaction", bound=Transaction)
Cells = list[tuple[Key, bytes]]
Missing = list[tuple[Attempt, Key, bytes]]
"""Locks that were not got, each with its holder."""


def advance(
    context: Context,
    transactions: Sequence[AnyTransaction],
    new: Status,
    cells: Callable[[AnyTransaction], Cells] = lambda t: [],
    *,
    durable: bool = False,
) -> None:
    """Step each row from the status that it is known to have to the new one.

    `cells` go into the row together with the status. Afterwards each transaction has the status
    that its row has reached, by this call or by somebody else's, or `unread` says why it is not
    known. Raises StoreError where a row could not be reached; the request may then still take
    effect later.
    """
    checks = {t: _status_check(context, t, new, cells(t)) for t in transactions}
    pending = list(transactions)

    def attempt() -> None:
        answers = context.store.check_and_put([checks[t] for t in pending], durable=durable)
        for t, moved in zip(pending, answers, strict=True):
            if moved:
                t.status = new
        # Those that moved are not asked again, whatever becomes of the look at the others.
        pending[:] = [t for t, moved in zip(pending, answers, strict=True) if not moved]
        if not pending:
            return
        olds = [t.status for t in pending]
        read_statuses(context, pending)
        # Unchanged after a "no" settles nothing: the first request may still be on its way.
        same = [t for t, old in zip(pending, olds, strict=True) if t.status is old]
        pending[:] = [t for t in same if t.unread is None]
        if pending:
            raise StoreError("status does not change", transaction=pending[0].row_key)

    if transactions:
        call_store(context, attempt)


def fail_aborted(transactions: Sequence[Attempt], reached: Status) -> list[Attempt]:
    """Fail those that somebody else has aborted; return those that have not failed."""
    for t in transactions:
        gone = t.status is None or t.status in (Status.ABORTING, Status.ABORTED)
        if t.unread is not None:
            t.failure = t.failure or t.unread
        elif gone and t.failure is None:
            t.failure = ConflictError(
                f"aborted by another client before {reached}", transaction=t.row_key
            )
    return [t for t in transactions if t.failure is None]


def read_statuses(context: Context, transactions: Sequence[Transaction]) -> None:
    """Set each transaction's status to what its row says, or where that is nothing known, leave
    it and set `unread`: a bad row is no other transaction's trouble."""
    keys = {t: status_key(context.table, t.row_key) for t in transactions}
    cells = context.store.read(list(keys.values()))
    for t, key in keys.items():
        cell, t.unread = cells[key], None
        try:
            t.status = decode_status(cell.value) if cell and cell.value else None
        except CorruptRowError as error:
            t.unread = CorruptRowError(str(error), transaction=t.row_key)


def take_locks(context: Context, wanted: Sequence[tuple[Attempt, Key]]) -> Missing:
    """Ask for locks; return those not got, each with its holder (FREE where it just went), and
    keep the cells under them as seen."""

    def attempt() -> Missing:
        checks = [Check(t.locks[key], FREE, ((t.locks[key], t.row_key),)) for t, key in wanted]
        answers = context.store.check_and_put(checks, durable=False)
        refused = [item for item, got in zip(wanted, answers, strict=True) if not got]
        # A repeated request is refused by the lock it took.
        return [item for item in look_at_locks(context, refused) if item[2] != item[0].row_key]

    for t, key in wanted:
        t.held.add(key)
    missing = call_store(context, attempt) if wanted else []
    for t, key, _ in missing:
        t.held.discard(key)
    return missing


def look_at_locks(context: Context, wanted: Sequence[tuple[Attempt, Key]]) -> Missing:
    """Return who holds each lock (FREE: nobody), and keep the cells under them as seen."""
    if not wanted:
        return []
    cells = context.store.read([cell for t, key in wanted for cell in (t.locks[key], key)])
    found = []
    for t, key in wanted:
        t.seen[key] = cells[key]
        lock = cells[t.locks[key]]
        found.append((t, key, lock.value if lock else FREE))
    return found


def call_store(context: Context, call: Callable[[], T]) -> T:
    """Return what an idempotent call returns, sending it again while the store fails, with
    backoff, for as long as the policy's patience lasts. A table that is gone is not waited for:
    it comes back by a person's hand, and this may run in a local transaction that keeps all
    writers out."""
    clock, policy = context.clock, context.policy
    began_ms = clock.monotonic_ms()
    tries: Iterator[int] | None = None  # made where a call has failed: few do
    while True:
        try:
            return call()
        except (StoreClosedError, TableUnavailable):
            raise
        except StoreError:
            if tries is None:
                due_ms = began_ms + min(policy.store_patience_ms, policy.deadline_ms)
                tries = policy.store_backoff.tries(clock, context.random, due_ms=due_ms)
                next(tries)
            if next(tries, None) is None:
                raise


def are_apart(context: Context, first_ms: int) -> bool:
    """Whether a look that began then is too old to be compared with one that has just ended. What
    was deleted between the two may have been retired."""
    return context.clock.monotonic_ms() - first_ms > LOOKS_WITHIN_MS


def free_locks(context: Context, locks: Sequence[tuple[Key, bytes]]) -> bool:
    """Free each lock cell that its holder, beside it, still has; return whether one had. A "no" is
    as good as a "yes": somebody else freed it, or it was never taken. Locks in a table that is gone
    are left: when it comes back they are a finished transaction's, which anybody frees."""
    checks = [Check(lock, holder, ((lock, FREE),)) for lock, holder in locks]

    def attempt() -> list[bool]:
        return context.store.check_and_put(checks, durable=False)

    while checks:
        try:
            return any(call_store(context, attempt))
        except TableUnavailable as error:
            left = [check for check in checks if check.key.table != error.table]
            if len(left) == len(checks):
                raise
            checks = left
    return False


def group_by_holder(missing: Missing) -> Mapping[bytes, list[Key]]:
    """Return the lock cells that each holder was met in."""
    met: dict[bytes, list[Key]] = {}
    for t, key, holder in missing:
        if holder != FREE:
            met.setdefault(holder, []).append(t.locks[key])
    return met


def _status_check(context: Context, t: Transaction, new: Status, cells: Cells) -> Check:
    check_step(t.status, new)
    status = status_key(context.table, t.row_key)
    if "multi_cell_check" in context.store.features:
        cells = [*cells, (column(context.table, t.row_key, b"at." + new.value), FREE)]
    expected = FREE if t.status is None else t.status.value
    # The checked cell goes last: where a transport sends one cell at a time, what goes with a
    # status is there before the status is.
    return Check(status, expected, (*cells, (status, new.value)))
