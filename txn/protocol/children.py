"""The owners' side of a transaction in parts.

One client writes the parent record. Many clients write child records, each with its own row key and
with locks that name it. One client decides for all of them by a single compare-and-set. The work
after the decision is in `recovery`, as for every transaction. docs/protocol.md, under "A
transaction in parts", gives the argument for each rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from txn.errors import (
    AbortedError,
    CommitOutcomeUnknown,
    ConflictError,
    InvalidRequestError,
    StoreError,
)
from txn.host.owner import name_owner
from txn.model import Key
from txn.protocol.clocks import check_commit_clock
from txn.protocol.codec import Buffer, encode_buffer, encode_plan
from txn.protocol.commit import decide, prepare
from txn.protocol.context import Context, make_durable
from txn.protocol.locks import Contention
from txn.protocol.prepare import write_rows
from txn.protocol.recovery import finish_or_leave, make_corrupt_error, release_own_locks
from txn.protocol.row import RowState, TransactionRow, column, parent_of, read_rows
from txn.protocol.statuses import UNDECIDED, Status
from txn.protocol.transaction import (
    PendingCommit,
    Transaction,
    advance,
    begin_commit,
    load_transaction,
)
from txn.request import Request


def begin_parent(context: Context, request: Request) -> PendingCommit:
    """Write the row of a transaction in parts and return it; only then may parts be written."""
    if "multi_cell_check" not in context.store.features:
        raise InvalidRequestError(
            "the store cannot commit in parts: HBase's Thrift 1 gateway writes one cell at a time"
        )
    check_commit_clock(context)
    t = begin_commit(context, request)
    t.parts = ()
    write_rows(context, [t])
    if t.failure is not None:
        raise t.failure
    return t


def write_child(
    context: Context, part: bytes, request: Request, contention: Contention, due_ms: int
) -> int:
    """Write the part with this row key, lock its keys, evaluate its assertions and plan it. Return
    the least commit timestamp that its parent may have. The locks stay held until the parent ends.

    Repeating the call while the parent is undecided continues the work and has the same result.
    Raises InvalidRequestError if the part exists with another request, or if another part has one
    of its keys. Raises ConflictError if another transaction holds a key until due_ms (monotonic),
    or if the parent was aborted; or AssertionFailedError.
    """
    check_commit_clock(context)
    lock_ttl_ms = context.policy.lock_ttl_ms
    t = PendingCommit(
        part,
        request,
        asked=request,
        is_dated=True,
        lock_of=context.rules.lock_of,
        buffer=encode_buffer(request, lock_ttl_ms, name_owner(context.program)),
        lock_ttl_ms=lock_ttl_ms,
        due_ms=due_ms,
        alive_ms=context.clock.monotonic_ms(),
    )
    buffer = column(context.table, part, b"buffer")
    # It may exist with the same content, and must have an undecided parent. A row that a delayed
    # writer writes after its end locks nothing.
    advance(context, [t], Status.PART, lambda t: [(buffer, t.buffer)])
    _require_child(t)
    row = read_rows(context, [part])[part]
    if row.state is RowState.UNREADABLE:
        raise make_corrupt_error(row)
    is_orphan = row.status is Status.PART  # an undecided parent gives it another status
    if row.state is not RowState.UNDECIDED or not row.follows or is_orphan:
        raise ConflictError("its transaction is over", transaction=part)
    if row.buffer != Buffer(t.request, t.lock_ttl_ms):
        raise InvalidRequestError(
            "the part was written before, with another request: what makes it has to be the same "
            "whenever it is made",
            part=part,
        )
    try:
        _prepare_alone(context, t, contention)
        plan = column(context.table, part, b"plan")
        # Compared, so that a late writer cannot change the plan once the part follows the decision.
        advance(context, [t], Status.PART, lambda t: [(plan, encode_plan(t.decided))])
        _require_child(t)
    except AbortedError:
        if t.status in (None, Status.ABORTING, Status.ABORTED):
            # Another client may have released it before these locks were taken.
            finish_or_leave(context, "roll back", release_own_locks, [t])
        raise
    return t.decided.timestamp


def decide_parent(
    context: Context, parent: bytes, counts: Sequence[int], timestamp: int, contention: Contention
) -> Transaction:
    """Commit a transaction with its parts. counts: how many parts each task wrote; timestamp: the
    greatest of theirs. Return it, decided, for `roll_forward`. A transaction that is decided
    already is returned as it was decided. Raises CommitOutcomeUnknown, or the AbortedError that
    prevented the commit."""
    row = _read_parent(context, parent)
    if row.state is RowState.UNREADABLE or (row.status is not None and row.status.is_decided):
        return _load_decided(context, row)
    if row.state is RowState.DEBRIS or row.is_poisoned:
        # It may have been complete, and deleted since; or a person has purged it.
        raise CommitOutcomeUnknown(parent, ConflictError("its row was deleted", transaction=parent))
    if row.state is not RowState.UNDECIDED or row.buffer is None or row.parts is None:
        raise ConflictError("aborted by another client", transaction=parent)
    check_commit_clock(context)
    t = PendingCommit(
        parent,
        row.buffer.request,
        asked=row.buffer.request,
        status=row.status,
        parts=tuple(counts),
        is_dated=row.is_dated,
        lock_of=context.rules.lock_of,
        buffer=b"",
        lock_ttl_ms=row.buffer.lock_ttl_ms,
        due_ms=context.clock.monotonic_ms() + context.policy.deadline_ms,
    )
    _prepare_alone(context, t, contention)
    t.plan = replace(t.decided, timestamp=max(t.decided.timestamp, timestamp))
    decide(context, [t])
    if t.failure is not None:
        raise t.failure
    if t.decided_ms is None:  # the answer was lost, or another client has decided in its name
        return _load_decided(context, _read_parent(context, parent))
    return t


def _read_parent(context: Context, parent: bytes) -> TransactionRow:
    """Read the row of a transaction that this call, or an earlier one, may have decided."""
    try:
        return read_rows(context, [parent])[parent]
    except StoreError as error:
        raise CommitOutcomeUnknown(parent, error) from error


def _load_decided(context: Context, row: TransactionRow) -> Transaction:
    if row.state is RowState.UNREADABLE or row.plan is None:
        corrupt = make_corrupt_error(row)
        raise CommitOutcomeUnknown(row.row_key, corrupt) from corrupt
    try:
        make_durable(context)
    except StoreError as error:
        raise CommitOutcomeUnknown(row.row_key, error) from error
    return load_transaction(context, row)


def _prepare_alone(context: Context, t: PendingCommit, contention: Contention) -> None:
    """Prepare a part, which waits with locks held, in no order, and so only until its deadline; or
    a parent. It takes the locks of the marker's keys. Failing would lose all parts, so this waits
    for the holders, which hold such locks only briefly."""
    parent = parent_of(t.row_key)
    for _ in context.tries(due_ms=t.due_ms):
        t.failure = None
        live = prepare(context, [t], contention, False)
        if parent is not None:
            _require_child(t)
        if live:
            return
        if t.status not in UNDECIDED or not isinstance(t.failure, ConflictError):
            break
        key, holder = t.failure.key, t.failure.holder
        if parent and holder and parent_of(holder) == parent:  # it will not release the key
            shared = "a row and family in common, which have one lock"
            if isinstance(key, Key) and t.lock_of(key) == key.lock:
                shared = "a key in common"
            raise InvalidRequestError(
                f"two parts of a transaction have {shared}", key=key, part=t.row_key, other=holder
            )
    raise t.failure or ConflictError("key is locked", transaction=t.row_key)


def _require_child(t: PendingCommit) -> None:
    if t.unread is not None:
        raise t.unread
    if t.status is not Status.PART:
        parent = parent_of(t.row_key)
        raise AbortedError("its transaction is over", part=t.row_key, transaction=parent)
