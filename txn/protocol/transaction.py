"""A transaction in memory, and the steps of its row.

The outcome of a status change is found by reading the row: a refusal or a lost reply proves
nothing. Others abort an owner that was silent for its whole lock TTL, so an owner with long work
before the decision sends heartbeats: work of many calls goes through `send_heartbeats_between`, and
large calls are split into portions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from operator import attrgetter
from typing import Concatenate, Generic, ParamSpec, TypeVar, cast

from txn.assertions import Evidence, list_compared_keys
from txn.clock import measure_s
from txn.errors import (
    ConflictError,
    CorruptRowError,
    DeadlineError,
    MaybeApplied,
    NotApplied,
    StoreError,
    TableUnavailable,
    TxnError,
    annotate,
)
from txn.events import Phase, PhaseName, PhaseOutcome, silent
from txn.host.holds import Holds
from txn.host.owner import name_owner
from txn.model import Cell, Check, Edit, Key, Stamp, new_tuple
from txn.protocol.codec import Plan, decode_status, encode_buffer, make_marker
from txn.protocol.context import Context, call_store
from txn.protocol.row import (
    FAMILY,
    FREE,
    TransactionRow,
    column,
    created_ms,
    make_row_key,
    marker_key,
    parent_of,
    status_key,
)
from txn.protocol.statuses import COMMITTED, DONE, FINISHED, IllegalStepError, Status, check_step
from txn.request import Ack, Committed, Request, add_marker
from txn.spans import Span
from txn.tracing import Trace

VALIDATED_TRIES = 3
"""After so many conflicts on keys that it validated, a transaction locks them, so that nobody
starves."""

WRITTEN_WITHIN_MS = 300_000
"""The time limit for writing a row, far less than the time for which fsck keeps finished rows."""


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction in the memory of a client that steps it: its owner, or another.

    status: the last known status of its row; None: there is no row. unread: why the last read of
    its status failed; None if it did not. plan: the content of the decision. held: the lock cells
    that it may hold. parts: for a transaction in parts, how many each task wrote; empty before the
    decision. is_dated: whether its row records the time of each status, as in stores that write
    many cells in one step; each step then writes it. decided_ms: when this client sent the
    decision, if it was confirmed (monotonic). locks: the lock cell of each key that it mutates or
    asserts, from lock_of. lock_cells: those cells in the order of the request, each with its keys.
    taken_cells: those of them that it takes. validated: the others, if it validates what it only
    asserts.
    """

    row_key: bytes
    request: Request
    status: Status | None = None
    plan: Plan | None = None
    parts: tuple[int, ...] | None = None
    unread: CorruptRowError | None = None
    is_dated: bool = False
    decided_ms: int | None = None
    held: set[Key] = field(default_factory=set)
    lock_of: Callable[[Key], Key] = attrgetter("lock")
    locks: dict[Key, Key] = field(init=False)
    lock_cells: dict[Key, list[Key]] = field(init=False)
    taken_cells: dict[Key, list[Key]] = field(init=False)
    validated: dict[Key, list[Key]] = field(init=False)
    _tags: dict[Key, Key] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.list_locks()

    def list_locks(self) -> None:
        """List the lock cells of the request."""
        lock_of = self.lock_of
        locks: dict[Key, Key] = {}
        lock_cells: dict[Key, list[Key]] = {}
        for key in self.request.keys:
            lock = locks[key] = lock_of(key)
            if lock in lock_cells:
                lock_cells[lock].append(key)
            else:
                lock_cells[lock] = [key]
        taken_cells, validated = lock_cells, {}
        if self.request.validate and self.request.mutations:
            taken = {locks[mutation.key] for mutation in self.request.mutations}
            cells = lock_cells.items()
            taken_cells = {lock: keys for lock, keys in cells if lock in taken}
            validated = {lock: keys for lock, keys in cells if lock not in taken}
        # Other threads iterate over these, so they are replaced when they are complete.
        self.locks, self.lock_cells = locks, lock_cells
        self.taken_cells, self.validated = taken_cells, validated

    @property
    def keys(self) -> Collection[Key]:
        """Each key that it mutates or asserts, once."""
        return self.locks.keys()

    @property
    def taken_keys(self) -> Collection[Key]:
        """The keys whose locks it takes."""
        if not self.validated:
            return self.locks.keys()
        return [key for keys in self.taken_cells.values() for key in keys]

    @property
    def tags(self) -> Mapping[Key, Key]:
        """The tag of each key, in the six-phase protocol."""
        if self._tags is None:
            self._tags = {key: key.tag for key in self.locks}
        return self._tags

    @property
    def is_finished(self) -> bool:
        """Whether no work is left, as far as this client knows."""
        return self.status in FINISHED

    @property
    def decided(self) -> Plan:
        """The plan; raise IllegalStepError if there is none."""
        if self.plan is None:
            raise IllegalStepError(annotate("not decided", transaction=self.row_key))
        return self.plan

    def may_defer(self, new: Status) -> bool:
        """Whether a crash of a server may undo the step to this status. The feed of changes dates a
        row without times by its end, which therefore must not move."""
        return new in COMMITTED and self.is_dated

    def needs(self, table: bytes) -> bool:
        """Whether it has a key in the table."""
        return any(key.table == table for key in self.keys)


@dataclass(slots=True, eq=False, kw_only=True)
class PendingCommit(Transaction):
    """A transaction in the memory of its owner, from the call of `commit` to its result. Each try
    has a row key that no other transaction ever has: see `renew`.

    asked: the request without the marker of its token. buffer: the encoded request. due_ms: the
    deadline for the decision (monotonic). spans: the ranges that it scanned. begun_ms: when it got
    its row key (monotonic). failure: why it cannot commit; None while it can, and once it is
    committed. seen: the cells on which assertions are evaluated, or that were read under others'
    locks; stamps where no value is needed. written_ms, alive_ms: a time at or before the write of
    its row, and its last sign of life (monotonic).

    may_be_rowless: whether it needs no row, if its locks are in one region.

    found: locks as they were read, free; in the six-phase protocol those of validated keys, with
    their tags.

    Fenced protocol only: taken: the values with which it requested its locks. timestamp: the commit
    timestamp. is_stale: whether cells were read again since its assertions were evaluated.

    is_patient: whether this attempt waits for locks. unvalidated: how often a validated key was in
    its way. tries: how often it ran. rounds: how many groups it was in. was_deferred: whether it
    left the last group before anything was written. future: receives its result if no thread waits
    for it. future_setters: the threads that set the result; the first does. is_running: its phases
    have begun, and not ended; an interrupt leaves that so. asked_s: when the caller asked,
    by `measure_s`. trace: its tracing span, if any.
    """

    asked: Request
    buffer: bytes
    lock_ttl_ms: int
    due_ms: int
    begun_ms: int = 0
    spans: Sequence[Span] = ()
    ack: Ack = "complete"
    may_be_rowless: bool = False
    failure: TxnError | None = None
    seen: dict[Key, Cell | Stamp | None] = field(default_factory=dict)
    written_ms: int | None = None
    alive_ms: int = 0
    found: dict[Key, Cell | None] = field(default_factory=dict)
    taken: dict[Key, bytes] = field(default_factory=dict)
    timestamp: int = 0
    is_stale: bool = False
    tries: int = 0
    rounds: int = 0
    was_deferred: bool = False
    future: Future[Committed] | None = None
    future_setters: Holds[None] | None = None
    is_running: bool = False
    asked_s: float = 0.0
    trace: Trace | None = None
    is_patient: bool = False
    unvalidated: int = 0

    @property
    def weight(self) -> int:
        """The approximate number of bytes that it adds to a request to the store."""
        return len(self.buffer)

    def may_defer(self, new: Status) -> bool:
        if new in COMMITTED:
            return self.is_dated
        return self.parts is None and not self.validates and parent_of(self.row_key) is None

    @property
    def validates(self) -> bool:
        """Whether it validates ranges or keys before its decision, so that readers wait for it."""
        return bool(self.spans or self.validated)

    @property
    def shared(self) -> Collection[Key]:
        """The lock cells that others of its batch may need as well: it does not change them."""
        if not self.may_be_rowless or len(self.lock_cells) == 1:
            return self.validated
        changed = {self.locks[mutation.key] for mutation in self.request.mutations}
        return [lock for lock in self.lock_cells if lock not in changed]

    def add_known(self, cells: Evidence, locks: Mapping[Key, Cell | None]) -> None:
        """Adopt cells that were read of its keys, and of their locks, which were free."""
        self.seen.update((key, cells[key]) for key in self.keys if key in cells)
        self.found.update((lock, locks[lock]) for lock in self.lock_cells if lock in locks)

    def needs(self, table: bytes) -> bool:
        # super() fails here: `slots=True` creates the class a second time.
        return Transaction.needs(self, table) or any(span.table == table for span in self.spans)

    def reset(self) -> None:
        """Return to the state before anything was written, after all of it was undone."""
        self.status = self.plan = self.unread = self.failure = None
        self.held.clear()
        self.seen.clear()
        self.found.clear()
        self.taken.clear()
        self.timestamp, self.decided_ms, self.written_ms = 0, None, None
        self.is_stale = False


def begin_commit(
    context: Context,
    request: Request,
    deadline_ms: int | None = None,
    spans: Sequence[Span] = (),
    ack: Ack = "complete",
) -> PendingCommit:
    """Return a commit of the request with its buffer encoded; nothing is written yet. Raise
    InvalidRequestError if the buffer is too large. deadline_ms: until the decision; None: the
    policy's."""
    policy, begun_ms = context.policy, context.clock.monotonic_ms()
    row_key, named, buffer = _encode_attempt(context, request)
    t = PendingCommit(
        row_key,
        named,
        is_dated="multi_cell_check" in context.store.features,
        lock_of=context.rules.lock_of,
        asked=request,
        buffer=buffer,
        lock_ttl_ms=policy.lock_ttl_ms,
        due_ms=begun_ms + (policy.deadline_ms if deadline_ms is None else deadline_ms),
        begun_ms=begun_ms,
        spans=spans,
        ack=ack,
    )
    t.may_be_rowless = (
        not context.rules.keeps_rows
        and not context.is_local  # where it would gain nothing
        and not (request.once or request.labels or spans)
        and (len(t.lock_cells) == 1 or "many_row_checks" in context.store.features)
    )
    return t


def renew(context: Context, t: PendingCommit, *, keep: bool = False, is_alone: bool = True) -> None:
    """Give a commit that has nothing in flight a new row key, and forget its result. keep:
    keep the cells that were read. is_alone: it may lock what it validated so far; in a batch, which
    was chosen by its locks, it may not."""
    known = ({**t.seen}, {**t.found}) if keep else ({}, {})
    failure = t.failure
    in_the_way = failure.key if isinstance(failure, ConflictError) else None
    if any([in_the_way in keys for keys in t.validated.values()]):
        t.unvalidated += 1
    begun_ms = context.clock.monotonic_ms()
    may_validate = t.unvalidated < VALIDATED_TRIES or not is_alone
    encoded = _encode_attempt(context, t.asked, may_validate)
    t.reset()
    t.row_key, t.request, t.buffer = encoded
    if t.validated:
        t.list_locks()
    t.begun_ms, t.alive_ms = begun_ms, 0
    t.add_known(*known)


def _encode_attempt(
    context: Context, request: Request, may_validate: bool = True
) -> tuple[bytes, Request, bytes]:
    if request.validate is None and context.policy.assertions == "validated":
        request = replace(request, validate=True)
    if request.validate and not may_validate:
        request = replace(request, validate=False)
    uid = context.rng.getrandbits(128)
    row_key = make_row_key(context, uid, request)
    if request.once is not None:
        marker = make_marker(row_key, request)
        request = add_marker(request, marker_key(context.table, request.once), marker)
    owner = name_owner(context.program)
    return row_key, request, encode_buffer(request, context.policy.lock_ttl_ms, owner)


def is_late(context: Context, t: PendingCommit) -> bool:
    return context.clock.monotonic_ms() >= t.due_ms


def load_transaction(context: Context, row: TransactionRow) -> Transaction:
    """Return the transaction of a row, for another client to finish. If the buffer does not decode,
    it has no keys: such a row may be rolled back, never forward. A part keeps the status of its own
    row: 0-PART until it follows."""
    request = row.buffer.request if row.buffer else Request(())
    status = Status.PART if row.follows else row.status
    known = (row.row_key, request, status, row.plan, row.parts)
    t = Transaction(*known, is_dated=row.is_dated, lock_of=context.rules.lock_of)
    t.held.update(t.taken_cells)
    return t


def find_stamped_keys(transactions: Iterable[PendingCommit]) -> set[Key]:
    """Return the keys of which none of the transactions needs more than the timestamp."""
    batch = [*transactions]
    stamped = {key for t in batch for key in t.locks}
    for t in batch:
        stamped.difference_update(*map(list_compared_keys, t.request.assertions))
    return stamped


T = TypeVar("T")
P = ParamSpec("P")
AnyTransaction = TypeVar("AnyTransaction", bound=Transaction)
Step = Callable[Concatenate[Context, Sequence[AnyTransaction], P], list[AnyTransaction]]
Cells = Sequence[tuple[Key, bytes]]
Send = Callable[[Sequence[Check]], list[bool]]
"""Sends steps of rows, perhaps with other work, in one call; returns the answers to the steps."""


def advance(
    context: Context,
    transactions: Sequence[AnyTransaction],
    new: Status,
    cells: Callable[[AnyTransaction], Cells] | None = None,
    *,
    durable: bool = False,
    unsent: Context | None = None,
    send: Send | None = None,
    now_ms: int | None = None,
) -> list[AnyTransaction]:
    """Step each row from its known status to `new`.

    cells: written into the row together with the status. unsent: the context to use while nothing
    can have been sent, if it is less patient. send: see `Send`; it is called even without a step,
    and perhaps again. now_ms: see `call_store`. Afterwards each transaction has the status of its
    row, whichever client stepped it, or `unread` has the reason why it is not known. Returns the
    transactions that this call moved. Raises StoreError if a row could not be reached; unless it is
    NotApplied, the request may still take effect later.
    """
    for old in {t.status for t in transactions}:
        check_step(context.rules.steps, old, new)
    steps = {t: make_step(context, t, new, cells(t) if cells else ()) for t in transactions}
    if send is None:
        if not steps:
            return []
        send = partial(context.store.check_and_put, durable=durable)
    change = _Steps(context, new, send, steps)
    try:
        try:
            call_store(unsent or context, change.send_pending, now_ms)
        except StoreError:
            if unsent is None or unsent is context or not change.is_sent:
                raise
            call_store(context, change.send_pending)  # finding the outcome is worth more time
    except NotApplied as error:
        if change.is_sent:
            raise MaybeApplied(str(error)) from error
        raise
    return change.done


def advance_with(
    context: Context,
    transactions: Sequence[AnyTransaction],
    new: Status,
    checks: Sequence[Check],
    cells: Callable[[AnyTransaction], Cells] | None = None,
    *,
    now_ms: int | None = None,
) -> list[bool]:
    """Step rows to `new`, and send checks with that; return the answers to these."""
    answers: list[bool] = []

    def send(steps: Sequence[Check]) -> list[bool]:
        found = context.store.check_and_put([*steps, *checks], durable=False)
        answers[:] = found[len(steps) :]
        return found[: len(steps)]

    if transactions or checks:
        advance(context, transactions, new, cells, send=send, now_ms=now_ms)
    return answers


def make_step(context: Context, t: Transaction, new: Status, cells: Cells) -> Check:
    """Return the change of a row to a status, together with other cells. In the fenced protocol
    each status has a fixed offset from the time in the row key; only the time meant for people is
    the server's."""
    rules, row_key, table = context.rules, t.row_key, context.table
    known = FREE if t.status is None else t.status.encoded
    expected = None if (t.status, new) in rules.unconditional else known
    is_deferred = new in rules.deferred and t.may_defer(new)
    status = new_tuple(Key, (row_key, FAMILY, b"status", table))
    began = new_tuple(Key, (row_key, FAMILY, new.at, table))
    if rules.offsets_ms:
        at = created_ms(row_key) + rules.offsets_ms[new]
        written = (*cells, (status, new.encoded))
        edits = tuple([new_tuple(Edit, (key, value, at)) for key, value in written])
        return new_tuple(Check, (status, expected, ((began, FREE),), edits, is_deferred))
    if t.is_dated or "multi_cell_check" in context.store.features:
        cells = (*cells, (began, FREE))
    # The checked cell goes last: a transport of single cells then writes the others before it.
    puts = (*cells, (status, new.encoded))
    return new_tuple(Check, (status, expected, puts, (), is_deferred))


@dataclass(slots=True, eq=False)
class _Steps(Generic[AnyTransaction]):
    """Steps of rows to one status, until it is known of each whether it took effect.

    pending: those of which it is not. done: the transactions that were moved. is_sent: whether one
    may take effect now or later.
    """

    context: Context
    new: Status
    send: Send
    pending: dict[AnyTransaction, Check]
    done: list[AnyTransaction] = field(default_factory=list)
    is_sent: bool = False

    def send_pending(self) -> None:
        """Send the pending steps once; raise StoreError if any are left."""
        was_sent, self.is_sent = self.is_sent, True
        try:
            answers = self.send([*self.pending.values()])
        except NotApplied:
            self.is_sent = was_sent
            raise
        # Moved rows are not requested again, even if the following read fails.
        moved = [t for t, moved in zip(self.pending, answers, strict=True) if moved]
        for t in moved:
            t.status = self.new
            del self.pending[t]
        self.done += moved
        if self.pending:
            self._read_refused()

    def _read_refused(self) -> None:
        olds = {t: t.status for t in self.pending}
        read_statuses(self.context, [*olds])
        for t, old in olds.items():
            # An unchanged row after a refusal proves nothing: the first request may be in flight.
            if t.status is not old or t.unread is not None:
                del self.pending[t]
        if self.pending:
            still = next(iter(self.pending))
            raise StoreError("status does not change", transaction=still.row_key)


def fail_aborted(transactions: Sequence[PendingCommit], reached: Status) -> list[PendingCommit]:
    """Fail the transactions that another client aborted; return those that have not failed."""
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
    """Set each transaction's status from its row. A row that does not decode, or contradicts a
    decision, leaves the status and sets `unread`: a bad row does not affect other transactions."""
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


PORTION = 500  # within two thirds of a TTL of 10 s, a gateway may take 6 ms for each and its row
TOO_LATE = "deadline passed before the decision"


def send_heartbeats_between(
    context: Context, batch: Sequence[PendingCommit], items: Iterable[T]
) -> Iterator[T]:
    """Yield the items. After each, send heartbeats for the batch and fail the late transactions."""
    for item in items:
        yield item
        now_ms = context.clock.monotonic_ms()
        fail_overdue(batch, now_ms)
        send_heartbeats(context, batch, now_ms)


def fail_overdue(batch: Sequence[PendingCommit], now_ms: int) -> None:
    """Fail the transactions whose deadline has passed. Those that failed keep their failure."""
    for t in batch:
        if t.failure is None and now_ms >= t.due_ms:
            t.failure = DeadlineError(TOO_LATE, transaction=t.row_key)


def note_heartbeat(batch: Sequence[PendingCommit], sent_ms: int) -> None:
    for t in batch:
        t.alive_ms = sent_ms


def split_portions(items: Sequence[T], size: int = PORTION) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def send_heartbeats(context: Context, batch: Sequence[PendingCommit], now_ms: int) -> None:
    """Send heartbeats once a third of the lock TTL has passed without one, and fail the
    transactions that another client aborted. A part's heartbeat goes into its parent's row."""
    for t in batch:
        is_due = now_ms - t.alive_ms >= t.lock_ttl_ms // 3
        if is_due and t.failure is None and t.status is not None:
            break
    else:
        return
    live = [t for t in batch if t.failure is None and t.status is not None]
    wall_ms = context.clock.wall_ms()
    times: dict[bytes, int | None] = {}
    for t in live:  # a row with several owners gets the server's time, because their clocks differ
        whole = parent_of(t.row_key)
        times[whole or t.row_key] = wall_ms if whole is None and t.parts is None else None
    write_heartbeats(context, times)
    call_store(context, lambda: read_statuses(context, live))
    note_heartbeat(fail_aborted(live, Status.LOCKED), now_ms)


def write_heartbeats(context: Context, times: Mapping[bytes, int | None]) -> None:
    """Put a heartbeat into each row, at a time of the owner's clock or (None) at the server's."""
    heartbeats = [Edit(column(context.table, row, b"beat"), FREE, at) for row, at in times.items()]
    call_store(context, lambda: context.store.write(heartbeats, durable=False))


def report_phase(name: PhaseName) -> Callable[[Step[AnyTransaction, P]], Step[AnyTransaction, P]]:
    """Report to the listener when a phase starts and how it ends."""

    def decorate(step: Step[AnyTransaction, P]) -> Step[AnyTransaction, P]:
        @wraps(step)
        def phase(
            context: Context,
            transactions: Sequence[AnyTransaction],
            *args: P.args,
            **kwargs: P.kwargs,
        ) -> list[AnyTransaction]:
            if context.on_event is silent:
                return step(context, transactions, *args, **kwargs)
            count = len(transactions)
            context.on_event(Phase(name, "started", count))
            started_s = measure_s()
            live: list[AnyTransaction] = []
            try:
                live = step(context, transactions, *args, **kwargs)
            except TableUnavailable as error:
                # The others run the phase again, without those that need the table.
                count = sum(t.needs(error.table) for t in transactions) or count
                raise
            finally:
                elapsed_ms = (measure_s() - started_s) * 1000
                outcome: PhaseOutcome = "done" if live or not count else "failed"
                context.on_event(Phase(name, outcome, count, count - len(live), elapsed_ms))
            return live

        return cast(Step[AnyTransaction, P], phase)

    return decorate


def fail_late(transactions: Sequence[PendingCommit], now_ms: int) -> list[PendingCommit]:
    """Fail the transactions whose deadline passed before the first write; return the others."""
    for t in transactions:
        if now_ms >= t.due_ms:
            t.failure = DeadlineError("deadline passed before anything was written")
    return [t for t in transactions if t.failure is None]
