"""The protocols with one safeguard taken out, for the tests that show what it is for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

from recovery import fsck
from tests.simulation.rules import Patch, TakeOut, set_name
from txn import Cell, ConflictError, Key, Mutation, OptimisticTransaction, TxnError
from txn.errors import deny
from txn.model import Check, Edit
from txn.protocol import commit, fenced, locks, prepare, recovery, row, six_phase, transaction
from txn.protocol.codec import encode_plan
from txn.protocol.context import Context, call_store
from txn.protocol.locks import Contention, make_assertion_error, read_lock
from txn.protocol.retire import Guarded
from txn.protocol.row import FREE, TransactionRow, column, read_rows, status_key
from txn.protocol.statuses import COMMITTED, FENCED, PROTOCOLS, Status
from txn.protocol.transaction import PendingCommit, Transaction, advance
from txn.reading import snapshot
from txn.request import Request
from txn.testing.faulty import FaultyStore

Cells = dict[Key, Cell | None]
step_compared = transaction.advance


def patch_steps(patch: Patch, step: Callable[..., object], *more: ModuleType) -> None:
    for module in (six_phase, commit, transaction, *more):
        patch.setattr(module, "advance", step)


def step_plainly(
    context: Context,
    transactions: Sequence[Transaction],
    new: Status,
    cells: Callable[[Transaction], transaction.Cells] | None = None,
    *,
    send: transaction.Send | None = None,
    **options: Any,
) -> list[Transaction]:
    """Step statuses by plain puts at the client's time; only the decision compares."""
    if new is Status.ASSERTED:
        return step_compared(context, transactions, new, cells, **options)
    now_ms = context.clock.wall_ms()
    for t in transactions:
        began = column(context.table, t.row_key, new.at)
        puts = [
            *(cells(t) if cells else ()),
            (began, FREE),
            (status_key(context.table, t.row_key), new.value),
        ]
        context.store.write([Edit(name, value, now_ms) for name, value in puts])
        t.status = new
    if send is not None:
        send(())
    return list(transactions)


def free_without_poison(patch: Patch) -> None:
    for module in (recovery, fsck):
        patch.setattr(module, "poison", lambda context, row_key: True)


def poison_plainly(patch: Patch) -> None:
    def put_poison(context: Context, t: Transaction) -> bool:
        reason = column(context.table, t.row_key, b"reason"), recovery.POISONED.encode()
        step = transaction.make_step(context, t, Status.ABORTED, [reason])
        transaction.call_store(
            context, lambda: context.store.check_and_put([step._replace(expected=None)])
        )
        return True

    for module in (recovery, fsck):
        patch.setattr(module, "poison", put_poison)


def look_before_the_step(
    context: Context, transactions: Sequence[PendingCommit], contention: Contention, patient: bool
) -> list[PendingCommit]:
    take_locks = six_phase.lock_in_order if patient else six_phase.lock_at_once
    live = take_locks(context, transactions, contention)
    live = prepare.validate(context, live, contention, [])
    return six_phase.assert_under_locks(context, live)


def believe_what_was_read(patch: Patch) -> None:
    def believe(
        context: object, transactions: Sequence[PendingCommit], *_: object
    ) -> Sequence[PendingCommit]:
        return transactions

    for module in (fenced, six_phase):
        patch.setattr(module, "validate", believe)
    patch.setattr(six_phase, "find_locked", lambda t, cells: None)


def forget_what_is_left(digest: object, cells: object) -> None:
    """Keep nothing of the cells that deleted keys have left."""


def believe(
    context: Context, transactions: Sequence[PendingCommit], unsent: Context | None = None
) -> list[PendingCommit]:
    for t in transactions:
        decision = transaction.make_step(context, t, Status.ASSERTED, plan_of(context, t))
        (decided,) = call_store(context, partial(context.store.check_and_put, [decision]))
        if decided:
            t.status = Status.ASSERTED
        else:
            t.failure = ConflictError("the decision was refused")
    return [t for t in transactions if t.failure is None]


def plan_of(context: Context, t: PendingCommit) -> transaction.Cells:
    return [(column(context.table, t.row_key, b"plan"), encode_plan(t.decided))]


def decide_as_any_other_call(
    context: Context, transactions: Sequence[PendingCommit], unsent: Context | None = None
) -> list[PendingCommit]:
    """A StoreError then says, as it does for all calls before it, that nothing will happen."""
    before = {Status.WRITTEN if context.rules.locks_rows else Status.LOCKED}
    fail_undone([t for t in transactions if t.status not in before])
    due = [t for t in transactions if t.failure is None]
    transaction.advance(context, due, Status.ASSERTED, lambda t: plan_of(context, t))
    fail_undone([t for t in due if t.status is None or t.status.is_undecided])
    return [t for t in due if t.failure is None]


def fail_undone(transactions: Sequence[PendingCommit]) -> None:
    for t in transactions:
        t.failure = t.failure or ConflictError("a crash of a server has undone a step")


def unlock_with_put(patch: Patch) -> None:
    advance_with = six_phase.advance_with

    def advance_and_unlock(
        context: Context, transactions: Sequence[Transaction], new: Status, checks: Sequence[Check]
    ) -> None:
        if new is Status.PUT:
            held = [(lock, Cell(t.row_key, 0)) for lock, t in locks_of(transactions)]
            checks = [*checks, *(locks.make_release(lock, cell) for lock, cell in held)]
        advance_with(context, transactions, new, checks)

    patch.setattr(six_phase, "advance_with", advance_and_unlock)


def tell_what_fails(
    context: Context, name: str, work: recovery.Finish, transactions: Sequence[Transaction]
) -> None:
    try:
        work(context, transactions)
    except TxnError as error:
        for t in transactions:
            t.failure = deny(error)  # type: ignore[attr-defined]


def locks_of(transactions: Sequence[Transaction]) -> list[tuple[Key, Transaction]]:
    return [(cell, t) for t in transactions for cell in t.locks.values()]


def free_by_write(
    context: Context, transactions: Sequence[Transaction], free: bytes | None = FREE
) -> None:
    now_ms = context.clock.wall_ms()
    context.store.write([Edit(cell, free, now_ms) for cell, _ in locks_of(transactions)])


def free_whole_rows(context: Context, transactions: Sequence[Transaction]) -> None:
    for t in transactions:
        rows: dict[bytes, list[Key]] = {}
        for cell in t.locks.values():
            rows.setdefault(cell.row, []).append(cell)
        merged = [
            Check(of_row[0], t.row_key, tuple((cell, FREE) for cell in of_row))
            for of_row in rows.values()
        ]
        context.store.check_and_put(merged)


def unlocking(work: recovery.Finish) -> TakeOut:
    def step_and_unlock(context: Context, transactions: Sequence[Transaction]) -> None:
        behind = [t for t in transactions if t.status is Status.PUT]
        transaction.advance_with(context, behind, Status.CLEANING, ())
        work(context, transactions)

    def take_out(patch: Patch) -> None:
        *others, (status, _) = six_phase.FORWARD
        patch.setattr(six_phase, "FORWARD", (*others, (status, step_and_unlock)))
        patch.setattr(six_phase, "release_key_locks", step_and_unlock)

    return take_out


unlock_by_write = unlocking(free_by_write)
unlock_by_marker = unlocking(partial(free_by_write, free=None))
unlock_whole_rows = unlocking(free_whole_rows)


def trust_all_decided(key: Key, look: snapshot.Observation) -> Cell | None:
    lock = look.cells[key.lock]
    holder = look.rows.get(lock.value) if lock else None
    if holder and holder.status in COMMITTED and holder.buffer and holder.plan:
        for mutation in holder.buffer.request.mutations:
            if mutation.key == key and isinstance(mutation, Mutation):
                return Cell(mutation.value, holder.plan.timestamp)
    return look.cells[key]


def look_once(context: Context, keys: list[Key]) -> Cells:
    first = context.store.read([cell for key in keys for cell in (key, key.lock, key.tag)])
    holders = {cell.value for key in keys if (cell := first[key.lock]) and cell.value}
    rows = read_rows(context, holders) if holders else {}
    look = snapshot.Observation(context.rules, first, rows)
    return {key: snapshot.value_of(key, look) for key in keys}


def was_undecided(context: Context, holder: bytes, cells: Cells) -> bool:
    status = cells[status_key(context.table, holder)]
    return status is not None and status.value in snapshot.UNDECIDED


def forget_cells(patch: Patch, forget: Callable[[Transaction, Cells], dict[Key, None]]) -> None:
    verdict = six_phase.judge_cells

    def partial_verdict(
        context: Context, t: Any, cells: Cells, stamps: Mapping[Key, Any], **options: bool
    ) -> Any:
        failure = verdict(context, t, cells, stamps, **options)
        if failure is None:
            found = {**cells, **stamps}
            known = [cell for k, cell in found.items() if cell and k not in forget(t, found)]
            newest = max((cell.timestamp for cell in known), default=0)
            t.plan = replace(t.decided, timestamp=newest + 1)
        return failure

    patch.setattr(six_phase, "judge_cells", partial_verdict)


def without_tags(patch: Patch) -> None:
    forget_cells(patch, lambda t, cells: {key.tag: None for key in t.keys})


def marker_not_asserted(request: Request, marker: Key, transaction: bytes) -> Request:
    mutations = (*request.mutations, Mutation(marker, transaction))
    return replace(request, mutations=mutations, once=None)


def delete_plainly(context: Context, held: Collection[Guarded], ours: bytes) -> None:
    context.store.write(
        [Edit(cell, None, item.newest) for item in held for cell in (item.key.lock, item.key.tag)]
    )


def mark_at_the_lock(context: Context, held: Collection[Guarded], ours: bytes) -> None:
    checks = []
    for item in held:
        lock = item.key.lock
        cells = [(lock, item.lock), (item.key.tag, item.tag)]
        deletes = tuple(Edit(name, None, cell.timestamp) for name, cell in cells if cell)
        checks.append(Check(lock, ours, edits=deletes))
    context.store.check_and_put(checks)


count_nothing = set_name("protocol.locks.FencedLock.take", lambda lock, holder: b"1@" + holder)


def count_back_in_aborts(patch: Patch, above: int = 0) -> None:
    def make_release(lock: Key, cell: Cell) -> Check:
        free = read_lock(lock, cell).undo_take()
        return Check(lock, cell.value, edits=(Edit(lock, free, cell.timestamp + above),))

    patch.setattr(locks, "make_release", make_release)


def choose_the_time(patch: Patch, choose: Callable[[Context, PendingCommit], int]) -> None:
    def raise_timestamps(context: Context, transactions: Iterable[PendingCommit]) -> None:
        for t in transactions:
            t.timestamp = max(t.timestamp, choose(context, t))

    patch.setattr(fenced, "raise_timestamps", raise_timestamps)


def choose_the_clocks_time(patch: Patch) -> None:
    choose_the_time(patch, lambda context, t: context.clock.wall_ms())


def choose_the_values_time(patch: Patch) -> None:
    """Lie above the clock and the values, whatever the locks say."""

    def time_of_values(context: Context, t: PendingCommit) -> int:
        newest = max((cell.timestamp for cell in t.seen.values() if cell), default=0)
        return max(context.clock.wall_ms(), newest + 1)

    choose_the_time(patch, time_of_values)


finish_without_looking = set_name("protocol.fenced._is_sure", lambda t, now_ms: True)
finish_late_without_looking = set_name(
    "protocol.fenced._is_sure", lambda t, now_ms: t.decided_ms is not None
)
trust_what_is_read = set_name(
    "protocol.fenced._is_sure", lambda t, now_ms: isinstance(t, PendingCommit)
)


def set_forward(patch: Patch, work: Callable[..., object]) -> None:
    patch.setattr(fenced, "FORWARD", ((Status.ASSERTED, work),))


def unlock_before_values(patch: Patch) -> None:
    def put_and_release(context: Context, transactions: Sequence[Transaction]) -> None:
        for t in transactions:
            at = t.decided.timestamp
            for lock, held in zip(t.lock_cells, t.decided.locks, strict=True):
                free = read_lock(lock, Cell(held, at)).give_back()
                context.store.write([Edit(lock, free, at + 1)])
            for _, own in fenced.list_edits(t, at):
                context.store.write(own)

    set_forward(patch, put_and_release)


def complete_first(patch: Patch) -> None:
    finish = fenced.put_and_release

    def tell_and_finish(context: Context, transactions: Sequence[Transaction]) -> None:
        transaction.advance(context, transactions, Status.COMPLETE)
        finish(context, transactions)
        for t in transactions:
            t.status = Status.ASSERTED

    set_forward(patch, tell_and_finish)


def decide_plainly(patch: Patch) -> None:
    unconditional = FENCED.unconditional | {(Status.WRITTEN, Status.ASSERTED)}
    patch.setitem(PROTOCOLS, "fenced", replace(FENCED, unconditional=unconditional))


def believe_in_every_lock(patch: Patch) -> None:
    def request(context: Context, wanted: Sequence[fenced.LockOf]) -> list[fenced.LockOf]:
        checks = []
        for t, lock in wanted:
            t.held.add(lock)
            found = t.found[lock]
            edit = Edit(lock, fenced._take(t, lock), t.timestamp)
            checks.append(Check(lock, found.value if found else FREE, edits=(edit,)))
        prepare.write_rows(context, [t for t, _ in wanted], checks)
        return []

    patch.setattr(fenced, "_request_locks", request)


def put_at_the_servers_time(patch: Patch) -> None:
    """Let statuses that are put, not compared, have the server's time."""
    unconditional = {status for _, status in FENCED.unconditional}
    leave_times_out(patch, lambda t, new: new in unconditional)


def poison_at_the_servers_time(patch: Patch) -> None:
    leave_times_out(patch, lambda t, new: t.status is None and new is Status.ABORTED)


def leave_times_out(patch: Patch, concerns: Callable[[Transaction, Status], bool]) -> None:
    make_step = transaction.make_step

    def make(context: Context, t: Transaction, new: Status, cells: transaction.Cells) -> Check:
        step = make_step(context, t, new, cells)
        if not concerns(t, new):
            return step
        return step._replace(edits=tuple(edit._replace(timestamp=None) for edit in step.edits))

    patch.setattr(transaction, "make_step", make)


def look_at_locks_once(patch: Patch) -> None:
    def look(context: Context, keys: Sequence[Key]) -> tuple[dict[Key, Cell | None], bool]:
        locks = list(dict.fromkeys(key.row_lock for key in keys))
        return context.store.read([*keys, *locks]), True

    patch.setattr(snapshot, "read_by_counts", look)


def fail_at_the_first_look(patch: Patch) -> None:
    def confirm(context: Context, doubtful: Sequence[PendingCommit]) -> None:
        for t in doubtful:
            lost = fenced.find_failed(t)
            assert lost is not None
            t.failure = make_assertion_error(t, lost)

    patch.setattr(fenced, "_confirm", confirm)


def free_the_undecided(patch: Patch) -> None:
    patch.setattr(recovery.Resolver, "_is_abandoned", lambda *args: True)
    patch.setattr(recovery, "_end_holder", lambda context, row: row.status is Status.WRITTEN)


def free_what_is_there(patch: Patch) -> None:
    release_locks = locks.release_locks

    def free_now(context: Context, locks: dict[Key, Cell]) -> bool:
        cells = context.store.read(list(locks))
        return release_locks(context, {lock: cell for lock, cell in cells.items() if cell})

    for module in ("recovery", "fenced"):
        patch.setattr(f"txn.protocol.{module}.release_locks", free_now)


judge_never_again = set_name("protocol.fenced._judge_locked", lambda t: None)


def bring_all_that_was_read(patch: Patch) -> None:
    read_keys = OptimisticTransaction._read_keys

    def read_and_know(block: OptimisticTransaction, keys: Sequence[Key]) -> None:
        read_keys(block, keys)
        block._known = {**block._read, **block._known}

    patch.setattr(OptimisticTransaction, "_read_keys", read_and_know)


def _put_plan_plainly(
    context: Context, transactions: Sequence[PendingCommit], new: Status, cells: Any
) -> Sequence[PendingCommit]:
    for t in transactions:
        if t.status is not new:
            return advance(context, transactions, new, cells)
        context.store.write([Edit(key, value, None) for key, value in cells(t)])
    return transactions


def _ask_no_transaction(context: Context, holder: bytes, cells: Any) -> bool:
    status, _ = (cells[sign] for sign in snapshot._signs(context, [holder])[:2])
    return status is not None and status.value in snapshot.UNDECIDED


def _list_seen(context: Context, parent: TransactionRow) -> Iterator[TransactionRow]:
    found = recovery._list_children(context, parent.row_key)
    return (row.follow(each, parent) for each in found)


PARTS_RULES = {
    "a part aborts alone": set_name(
        "protocol.recovery._abort_parents",
        lambda context, parts, reason: {t.row_key for t in parts},
    ),
    "all parts are counted": set_name("protocol.row._is_counted", lambda part, whole: True),
    "parts are not finished first": set_name(
        "protocol.recovery.finish_children", lambda context, transactions: None
    ),
    "a plan is put plainly": set_name("protocol.children.advance", _put_plan_plainly),
    "a part is undecided while it says so": set_name(
        "reading.snapshot._was_undecided", _ask_no_transaction
    ),
    "an absent transaction is not poisoned": set_name(
        "protocol.recovery.poison", lambda context, t: True
    ),
    "parts are not counted": set_name("protocol.recovery.list_decided_children", _list_seen),
    "a lost part is over": set_name("protocol.row.NEVER_DECIDED", ()),
    "an own lock is a rival's": set_name("protocol.fenced._undo_take", lambda t, lock, cell: cell),
    "a part is read once": set_name(
        "protocol.row._is_early", lambda context, row_key, found: False
    ),
}
SIX_PHASE_RULES: dict[str, TakeOut] = {
    "a refused decision is believed": set_name("protocol.commit.decide", believe),
    "a lost decision is a failure": set_name("protocol.commit.decide", decide_as_any_other_call),
    "statuses are put plainly": lambda patch: patch_steps(patch, step_plainly),
    "unlock by a plain write": unlock_by_write,
    "unlock by a delete marker": unlock_by_marker,
    "unlock of whole rows": unlock_whole_rows,
    "cells are read once": set_name("reading.snapshot._try", look_once),
    "buffers of all decided holders are trusted": set_name(
        "reading.snapshot.value_of", trust_all_decided
    ),
    "tags are not looked at": without_tags,
    "what fails after the decision is told": set_name(
        "protocol.commit.finish_or_leave", tell_what_fails
    ),
    "no marker for a token": set_name("protocol.transaction.add_marker", marker_not_asserted),
}


def send_only_changes(patch: Patch) -> None:
    put = FaultyStore.put_if_all

    def put_changes(self: FaultyStore, groups: Sequence[Sequence[Check]]) -> Sequence[bool | None]:
        return put(self, [[c for c in group if c.edits] or group for group in groups])

    patch.setattr(FaultyStore, "put_if_all", put_changes)


def believe_refusals(
    context: Context, pending: dict[PendingCommit, Mapping[Key, Check]]
) -> list[PendingCommit]:
    refused = [*pending]
    pending.clear()
    for t in refused:
        t.found.clear()
    return refused


FENCED_RULES: dict[str, TakeOut] = {
    "locks do not count": count_nothing,
    "commits lie above the clock alone": choose_the_clocks_time,
    "commits lie above values alone": choose_the_values_time,
    "statuses are put at the server's time": put_at_the_servers_time,
    "others finish without looking": finish_without_looking,
    "locks are freed before values are put": unlock_before_values,
    "complete before all is put": complete_first,
    "locks of absent rows are freed": free_without_poison,
    "the decision does not compare": decide_plainly,
    "a refused decision is believed": SIX_PHASE_RULES["a refused decision is believed"],
    "a lost decision is a failure": SIX_PHASE_RULES["a lost decision is a failure"],
    "refused locks are no matter": believe_in_every_lock,
    "locks of the undecided are freed": free_the_undecided,
    "locks are freed as they are by then": free_what_is_there,
    "what was read again is not evaluated": judge_never_again,
    "locks are looked at once": look_at_locks_once,
    "holders that have decided are not looked at": set_name(
        "reading.snapshot._was_undecided", lambda *args: True
    ),
    "no marker for a token": SIX_PHASE_RULES["no marker for a token"],
    "what is only asserted is no condition": send_only_changes,
    "refused requests are believed": set_name("protocol.rowless._find_outcomes", believe_refusals),
    "lost requests are not fenced off": set_name("protocol.rowless._is_clear", lambda errors: True),
}
