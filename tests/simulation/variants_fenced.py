"""The fenced protocol with one rule taken out, for the tests that show what it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from txn import Cell, Key, OptimisticTransaction
from txn.model import Check, Edit
from txn.protocol import fenced, recovery
from txn.protocol import locks as locks_module
from txn.protocol import prepare as prepare_module
from txn.protocol import transaction as transaction_module
from txn.protocol.context import Context
from txn.protocol.locks import FencedLock, make_assertion_error, read_lock
from txn.protocol.row import FREE
from txn.protocol.statuses import FENCED, PROTOCOLS, Status
from txn.protocol.transaction import PendingCommit, Transaction
from txn.reading import snapshot

Patch = pytest.MonkeyPatch


def count_nothing(patch: Patch) -> None:
    patch.setattr(FencedLock, "take", lambda lock, holder: b"1@" + holder)


def count_back_in_aborts(patch: Patch, above: int = 0) -> None:
    def make_release(lock: Key, cell: Cell) -> Check:
        free = read_lock(lock, cell).undo_take()
        return Check(lock, cell.value, edits=(Edit(lock, free, cell.timestamp + above),))

    patch.setattr(locks_module, "make_release", make_release)


def choose_the_time(patch: Patch, choose: Callable[[Context, PendingCommit], int]) -> None:
    def raise_timestamps(context: Context, transactions: Iterable[PendingCommit]) -> None:
        for t in transactions:
            t.timestamp = max(t.timestamp, choose(context, t))

    patch.setattr(fenced, "raise_timestamps", raise_timestamps)


def time_of_values(context: Context, t: PendingCommit) -> int:
    newest = max((cell.timestamp for cell in t.seen.values() if cell), default=0)
    return max(context.clock.wall_ms(), newest + 1)


def finish_without_looking(patch: Patch) -> None:
    patch.setattr(fenced, "_is_sure", lambda t, now_ms: True)


def finish_late_without_looking(patch: Patch) -> None:
    patch.setattr(
        fenced,
        "_is_sure",
        lambda t, now_ms: t.decided_ms is not None,
    )


def trust_what_is_read(patch: Patch) -> None:
    patch.setattr(fenced, "_is_sure", lambda t, now_ms: isinstance(t, PendingCommit))


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
        transaction_module.advance(context, transactions, Status.COMPLETE)
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
        prepare_module.write_rows(context, [t for t, _ in wanted], checks)
        return []

    patch.setattr(fenced, "_request_locks", request)


def put_at_the_servers_time(patch: Patch) -> None:
    make_step = transaction_module.make_step

    def at_any_time(
        context: Context,
        t: Transaction,
        new: Status,
        cells: transaction_module.Cells,
    ) -> Check:
        step = make_step(context, t, new, cells)
        if new not in {status for _, status in context.rules.unconditional}:
            return step
        return step._replace(edits=tuple(edit._replace(timestamp=None) for edit in step.edits))

    patch.setattr(transaction_module, "make_step", at_any_time)


def poison_at_the_servers_time(patch: Patch) -> None:
    make_step = transaction_module.make_step

    def poison_at_any_time(
        context: Context,
        t: Transaction,
        new: Status,
        cells: transaction_module.Cells,
    ) -> Check:
        step = make_step(context, t, new, cells)
        if t.status is not None or new is not Status.ABORTED:
            return step
        return step._replace(edits=tuple(edit._replace(timestamp=None) for edit in step.edits))

    patch.setattr(transaction_module, "make_step", poison_at_any_time)


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
    release_locks = locks_module.release_locks

    def free_now(context: Context, locks: dict[Key, Cell]) -> bool:
        cells = context.store.read(list(locks))
        return release_locks(context, {lock: cell for lock, cell in cells.items() if cell})

    for module in ("recovery", "fenced"):
        patch.setattr(f"txn.protocol.{module}.release_locks", free_now)


def judge_never_again(patch: Patch) -> None:
    patch.setattr(fenced, "_judge_locked", lambda t: None)


def bring_all_that_was_read(patch: Patch) -> None:
    read_keys = OptimisticTransaction._read_keys

    def read_and_know(block: OptimisticTransaction, keys: Sequence[Key]) -> None:
        read_keys(block, keys)
        block._known = {**block._read, **block._known}

    patch.setattr(OptimisticTransaction, "_read_keys", read_and_know)


def wait_in_any_order(patch: Patch) -> None:
    patch.setattr(fenced, "sorted", list, raising=False)
