"""What the phases are made of: a transaction in memory, the ways to touch its row, and what the two
protocols do each in its own way.

What a change of status compares is settled by reading the row: its "no" and its lost reply are
never believed. A store that does not answer is asked again for a bounded time; then its
error is raised, and the row stays as a crash would leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar, cast

from txn.clock import Clock, call_until
from txn.errors import (
    ConflictError,
    CorruptRowError,
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreClosedError,
    StoreError,
    TableUnavailable,
    TxnError,
    annotate,
)
from txn.model import LOOKS_WITHIN_MS, Cell, Check, Edit, Family, Key, refuse_other_database
from txn.policy import Policy
from txn.protocol.lock_cells import FREE, holder_of
from txn.protocol.phases import DONE, IllegalStepError, Status, Steps, check_step
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
from txn.stores.base import Feature, Store
from txn.text import name_failure
from txn.watch import LOG, CallName, Retried, Watch

if TYPE_CHECKING:
    from txn.protocol.waiting import Contention

ProtocolName = Literal["six-phase", "fenced"]
WRITTEN_WITHIN_MS = 300_000
"""How long writing a row may take. Far less than the time that fsck keeps finished rows for."""

T = TypeVar("T")


@dataclass(slots=True)
class ClockTrust:
    """What a client knows of its clock: see `clocks`.

    offset_ms: by how much the time of day was ahead of the monotonic clock when it was last found
    to be right; None: it never was. due_ms: when to compare it again, by the monotonic clock.
    noted_ms: the same as offset_ms, when the clock was last noted in a store of this machine.
    """

    offset_ms: int | None = None
    due_ms: int = 0
    noted_ms: int | None = None

    def find_step_ms(self, clock: Clock) -> int:
        """Return by how far the time of day was set since then; 0 where it was never compared."""
        offset_ms = self.offset_ms  # other threads compare as well
        return 0 if offset_ms is None else clock.wall_ms() - clock.monotonic_ms() - offset_ms


@dataclass(frozen=True, slots=True)
class Context:
    """What every phase works with. `table` is the transaction table; `buckets`: how many prefixes
    spread the rows of new transactions; `trust`: what is known of the clock, see `clocks`;
    `until_ms`: when to give up a store that fails, by the monotonic clock, if the policy's patience
    lasts longer."""

    store: Store
    table: bytes
    clock: Clock
    random: Random
    policy: Policy
    watch: Watch
    rules: Rules
    buckets: int = 1
    trust: ClockTrust = field(default_factory=ClockTrust, compare=False)
    until_ms: int | None = None

    def tries(self, *, most: int | None = None, due_ms: int | None = None) -> Iterator[int]:
        """Yield 1, 2, ... with a pause before each but the first: see `Backoff.tries`."""
        return self.policy.backoff.tries(self.clock, self.random, most=most, due_ms=due_ms)


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction in the memory of the client that steps it: its owner, or another.

    status: what its row is known to have reached; None: the row is not there.
    unread: why its status could not be seen at the last look; None if it could.
    plan: what was decided. held: the lock cells that it may hold.
    parts: where its request is in parts, how many each task has written; none before the decision.
    is_dated: whether its row tells the time of each status, as those do of stores that write many
    cells in one step; then whoever steps it tells it.
    locks: the lock cell of each key that it mutates or asserts, as lock_of tells them. units: those
    cells, in the order of the request, each with its keys.
    """

    row_key: bytes
    request: Request
    status: Status | None = None
    plan: Plan | None = None
    parts: tuple[int, ...] | None = None
    unread: CorruptRowError | None = None
    is_dated: bool = False
    held: set[Key] = field(default_factory=set)
    lock_of: Callable[[Key], Key] = attrgetter("lock")
    locks: dict[Key, Key] = field(init=False)
    units: dict[Key, list[Key]] = field(init=False)

    def __post_init__(self) -> None:
        self.locks = {key: self.lock_of(key) for key in self.request.keys}
        self.units = {}
        for key, lock in self.locks.items():
            self.units.setdefault(lock, []).append(key)

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
    written_ms, alive_ms: when its row was written, and its last sign of life, or a moment before,
    by the monotonic clock.
    found, timestamp, decided_ms: of the fenced protocol: its locks as they were read, free; its
    commit timestamp; and when its decision was sent, if the answer was yes.
    """

    buffer: bytes
    lease_ms: int
    due_ms: int
    spans: Sequence[Span] = ()
    failure: TxnError | None = None
    seen: dict[Key, Cell | None] = field(default_factory=dict)
    written_ms: int | None = None
    alive_ms: int = 0
    found: dict[Key, Cell | None] = field(default_factory=dict)
    timestamp: int = 0
    decided_ms: int | None = None

    def know(self, cells: Mapping[Key, Cell | None]) -> None:
        """Take over what was read of its keys, and of their locks, which were free."""
        self.seen.update((key, cells[key]) for key in self.keys if key in cells)
        self.found.update((lock, cells[lock]) for lock in self.units if lock in cells)

    def needs(self, table: bytes) -> bool:
        """Whether it has a key, or has scanned a range, in the table."""
        # Not super(): the decorator makes the class anew, for its slots.
        return Transaction.needs(self, table) or any(span.table == table for span in self.spans)

    def reset(self) -> None:
        """Forget what was undone as a whole: it is as it was before anything was written."""
        self.status = self.plan = self.unread = self.failure = None
        self.held.clear()
        self.seen.clear()
        self.found.clear()
        self.timestamp, self.decided_ms, self.written_ms = 0, None, None


def begin_attempt(
    context: Context, request: Request, due_ms: int, spans: Sequence[Span] = ()
) -> Attempt:
    """Return a new attempt at the request, with its buffer encoded: InvalidRequestError where that
    is too large. Nothing is written yet."""
    uid = context.random.getrandbits(128)
    row_key = new_row_key(context.clock.wall_ms(), uid, context.buckets, context.table)
    if request.once is not None:
        marker = encode_marker(Marker(row_key, request.once_retention_ms))
        request = add_marker(request, marker_key(context.table, request.once), marker)
    lease_ms = context.policy.lease_ms
    buffer = encode_buffer(Buffer(request, lease_ms))
    return Attempt(
        row_key,
        request,
        is_dated="multi_cell_check" in context.store.features,
        lock_of=context.rules.lock_of,
        buffer=buffer,
        lease_ms=lease_ms,
        due_ms=due_ms,
        spans=spans,
    )


def is_late(context: Context, t: Attempt) -> bool:
    """Whether the time that the attempt had for its decision is over."""
    return context.clock.monotonic_ms() >= t.due_ms


def load_transaction(context: Context, row: TransactionRow) -> Transaction:
    """Return the transaction of a row, to be ended by somebody else. Where the buffer does not
    decode it has no keys: such a row may be rolled back, never forward. A part has the status that
    its own row says: 0-PART until it follows."""
    request = row.buffer.request if row.buffer else Request(())
    lock_of = context.rules.lock_of
    status = Status.PART if row.follows else row.status
    t = Transaction(
        *(row.row_key, request, status, row.plan, row.parts),
        is_dated=row.is_dated,
        lock_of=lock_of,
    )
    t.held.update(t.locks.values())
    return t


AnyTransaction = TypeVar("AnyTransaction", bound=Transaction)
Cells = list[tuple[Key, bytes]]


class Met(NamedTuple):
    """A lock that an attempt wants for a key and has not got, as it was found. holder: FREE where
    it just went."""

    t: Attempt
    key: Key
    holder: bytes
    cell: Cell | None


class Rules(Protocol):
    """What a protocol does in its own way; all else is the same for both."""

    name: ProtocolName
    needs: frozenset[Feature]
    steps: Steps
    plain: frozenset[Status]
    """Those that are put, not compared."""
    locks_rows: bool
    """Whether a lock is of a row and family, not of a key."""

    @property
    def forward(self) -> Sequence[tuple[Status, Work, Status]]:
        """What follows the decision: from which status, the work, the status that tells of it."""

    def lock_of(self, key: Key) -> Key:
        """Return the lock cell of a key."""

    def guards_of(self, key: Key) -> tuple[Key, ...]:
        """Return the cells that tell whether a key has changed: its lock, and its tag if any."""

    def make_step(self, context: Context, t: Transaction, new: Status, cells: Cells) -> Check:
        """Return the change of a row to a status, together with other cells."""

    def make_free(self, lock: Key, cell: Cell) -> Check:
        """Return what frees a lock if it still is as it was found, held."""

    def gone_until(self, key: Key, cell: Cell) -> int:
        """Return up to which timestamp a cell of a finished transaction's row is deleted."""

    def free_own(self, context: Context, transactions: Sequence[Transaction]) -> None:
        """Free each lock that is still one of these transactions' own."""

    def prepare(
        self,
        context: Context,
        transactions: Sequence[Attempt],
        contention: Contention,
        patient: bool,
    ) -> list[Attempt]:
        """Take a batch, that has no lock cell in common, until it can be decided. patient: wait
        for whoever holds a lock, in an order in which nobody waits in a circle."""

    def pass_by(
        self,
        context: Context,
        transactions: Sequence[Attempt],
        contention: Contention,
        patient: bool,
    ) -> None:
        """Commit those that were prepared and need no row. It raises nothing."""

    def look(self, context: Context, keys: Sequence[Key]) -> tuple[dict[Key, Cell | None], bool]:
        """Return the keys' cells with their guards, in one or two requests, and whether all of
        them were so at one instant as far as nobody holds a lock of them."""


Work = Callable[[Context, Sequence[Transaction]], object]


def advance(
    context: Context,
    transactions: Sequence[AnyTransaction],
    new: Status,
    cells: Callable[[AnyTransaction], Cells] = lambda t: [],
    *,
    durable: bool = False,
    unsent: Context | None = None,
) -> list[AnyTransaction]:
    """Step each row from the status that it is known to have to the new one.

    `cells` go into the row together with the status. unsent: how patient to be for as long as
    nothing can have been sent, if it is less. Afterwards each transaction has the status
    that its row has reached, by this call or by somebody else's, or `unread` says why it is not
    known. Returns those that this call moved. Raises StoreError where a row could not be reached;
    unless it is NotApplied, the request may then still take effect later.
    """
    for t in transactions:
        check_step(context.rules.steps, t.status, new)
    steps = {t: context.rules.make_step(context, t, new, cells(t)) for t in transactions}
    if new in context.rules.plain:
        put_statuses(context, list(steps.values()), durable)
        for t in transactions:
            t.status = new
        return list(transactions)
    return _compare_statuses(context, unsent or context, steps, new, durable)


def _compare_statuses(
    context: Context,
    unsent: Context,
    steps: Mapping[AnyTransaction, Check],
    new: Status,
    durable: bool,
) -> list[AnyTransaction]:
    pending = list(steps)
    done: list[AnyTransaction] = []
    sent: list[bool] = []

    def attempt() -> None:
        asked = pending.copy()
        answers = _send_steps(context, [steps[t] for t in asked], durable, sent)
        # Those that moved are not asked again, whatever becomes of the look at the others.
        pending.clear()
        for t, moved in zip(asked, answers, strict=True):
            if moved:
                t.status = new
            (done if moved else pending).append(t)
        if not pending:
            return
        olds = [t.status for t in pending]
        read_statuses(context, pending)
        # Unchanged after a "no" settles nothing: the first request may still be on its way.
        same = [t for t, old in zip(pending, olds, strict=True) if t.status is old]
        pending[:] = [t for t in same if t.unread is None]
        if pending:
            raise StoreError("status does not change", transaction=pending[0].row_key)

    if pending:
        _call_clearly(context, unsent, attempt, sent)
    return done


def _send_steps(
    context: Context, steps: Sequence[Check], durable: bool, sent: list[bool]
) -> list[bool]:
    """Send steps; note it where they may have been carried out, or may yet be."""
    try:
        answers = context.store.check_and_put(steps, durable=durable)
    except NotApplied:
        raise
    except BaseException:
        sent.append(True)
        raise
    sent.append(True)
    return answers


def _call_clearly(
    context: Context, unsent: Context, call: Callable[[], None], sent: Sequence[bool]
) -> None:
    """Call the store as `call_store` does, with `unsent` for as long as nothing may have been sent;
    raise NotApplied only then."""
    try:
        try:
            call_store(unsent, call)
        except StoreError:
            if unsent is context or not sent:
                raise
            call_store(context, call)  # what became of it is worth more time
    except NotApplied as error:
        if sent:
            raise MaybeApplied(str(error)) from error
        raise


def put_statuses(context: Context, steps: Sequence[Check], durable: bool) -> None:
    """Put statuses that compare nothing."""
    edits = [Edit(key, value, None) for step in steps for key, value in step.puts]
    edits += [edit for step in steps for edit in step.edits]
    if edits:
        call_store(context, lambda: context.store.write(edits, durable=durable, by_row=True))


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
    """Set each transaction's status to what its row says, or where that is nothing known, or denies
    a decision, leave it and set `unread`: a bad row is no other transaction's trouble."""
    table, sign = context.table, Status.ASSERTED.at
    keys = {t: (status_key(table, t.row_key), column(table, t.row_key, sign)) for t in transactions}
    cells = context.store.read([key for pair in keys.values() for key in pair])
    for t, (key, decided_at) in keys.items():
        cell, t.unread = cells[key], None
        try:
            status = decode_status(cell.value) if cell and cell.value else None
            if cells[decided_at] and not (status and status.is_decided):
                raise CorruptRowError(f"the status is {status or 'missing'} after a decision")
            if status in DONE and t.is_dated and not cells[decided_at]:
                raise CorruptRowError(f"the status is {status} without a decision")
            t.status = status
        except CorruptRowError as error:
            t.unread = CorruptRowError(str(error), transaction=t.row_key)


def take_locks(context: Context, wanted: Sequence[tuple[Attempt, Key]]) -> list[Met]:
    """Ask for the locks of keys; return those not got, and keep the cells under them as seen."""

    def attempt() -> list[Met]:
        checks = [Check(t.locks[key], FREE, ((t.locks[key], t.row_key),)) for t, key in wanted]
        answers = context.store.check_and_put(checks, durable=False)
        refused = [item for item, got in zip(wanted, answers, strict=True) if not got]
        # A repeated request is refused by the lock it took.
        return [item for item in look_at_locks(context, refused) if item.holder != item.t.row_key]

    for t, key in wanted:
        t.held.add(t.locks[key])
    missing = call_store(context, attempt) if wanted else []
    for item in missing:
        item.t.held.discard(item.t.locks[item.key])
    return missing


def look_at_locks(context: Context, wanted: Sequence[tuple[Attempt, Key]]) -> list[Met]:
    """Return who holds each lock (FREE: nobody), and keep the cells under them as seen."""
    if not wanted:
        return []
    cells = context.store.read([cell for t, key in wanted for cell in (t.locks[key], key)])
    found = []
    for t, key in wanted:
        t.seen[key] = cells[key]
        lock = t.locks[key]
        found.append(Met(t, key, holder_of(lock, cells[lock]), cells[lock]))
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
            return call() if context.until_ms is None else call_until(context.until_ms, call)
        except (StoreClosedError, TableUnavailable):
            raise
        except StoreError as error:
            if tries is None:
                due_ms = _find_due(context, began_ms)
                tries = policy.store_backoff.tries(clock, context.random, due_ms=due_ms)
                next(tries)
            if next(tries, None) is None:
                raise
            tell_retry(context, error)


def _find_due(context: Context, began_ms: int) -> int:
    policy = context.policy
    due_ms = began_ms + min(policy.store_patience_ms, policy.deadline_ms)
    return due_ms if context.until_ms is None else min(due_ms, context.until_ms)


def limit_patience(context: Context, attempts: Iterable[Attempt]) -> Context:
    """Return a context that is patient with a store for no longer than until the last of some
    attempts, which are not decided, is due."""
    until_ms = max([t.due_ms for t in attempts], default=0)
    latest_ms = context.clock.monotonic_ms() + context.policy.store_patience_ms
    return context if until_ms >= latest_ms else replace(context, until_ms=until_ms)


def tell_retry(context: Context, error: StoreError) -> None:
    """Tell the watch which call of the store is sent again: where nobody knows, it is the change of
    a row's status, which has come to nothing."""
    LOG.debug(
        "a call of the store is sent again: call=%s cause=%s", error.call, name_failure(error)
    )
    context.watch(Retried(cast(CallName, error.call or "check_and_put")))


def describe_table(context: Context, table: bytes) -> Mapping[bytes, Family]:
    """Return the families of a table; InvalidRequestError where there is none of its name, or where
    it belongs to another database."""
    found = call_store(context, lambda: context.store.describe(table))
    if found is None:
        raise InvalidRequestError("no such table", table=table)
    refuse_other_database(table, found.values(), context.table)
    return found


def are_apart(context: Context, first_ms: int) -> bool:
    """Whether a look that began then is too old to be compared with one that has just ended. What
    was deleted between the two may have been retired."""
    return context.clock.monotonic_ms() - first_ms > LOOKS_WITHIN_MS


def free_locks(context: Context, locks: Mapping[Key, Cell]) -> bool:
    """Free each lock that is still as it was found, held; return whether one was. A "no" is as good
    as a "yes": somebody else freed it, or it was never taken. Locks in a table that is gone
    are left: when it comes back they are a finished transaction's, which anybody frees."""
    checks = [context.rules.make_free(lock, cell) for lock, cell in locks.items()]

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


def group_by_holder(missing: Iterable[Met]) -> dict[bytes, dict[Key, Cell]]:
    """Return the lock cells that each holder was met in."""
    met: dict[bytes, dict[Key, Cell]] = {}
    for t, key, holder, cell in missing:
        if holder != FREE and cell is not None:
            met.setdefault(holder, {})[t.locks[key]] = cell
    return met
