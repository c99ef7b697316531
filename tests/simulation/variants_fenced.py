"""The fenced protocol with one rule taken out, for the tests that show what it is for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest

from txn import Cell, Key, OptimisticTransaction
from txn.model import Check, Edit
from txn.protocol import attempt as attempt_module
from txn.protocol import fenced, looks, units
from txn.protocol.attempt import Attempt, Context, Transaction
from txn.protocol.fenced import FencedRules
from txn.protocol.lock_cells import FREE, FencedLock, read_lock, unit_lock
from txn.protocol.phases import Status
from txn.protocol.row import TransactionRow
from txn.protocol.waiting import Contention, make_assertion_error

Patch = pytest.MonkeyPatch


def count_nothing(patch: Patch) -> None:
    """Let a free lock say the same before and after a transaction."""
    patch.setattr(FencedLock, "take", lambda lock, holder: FencedLock(1, holder))


def count_back_in_aborts(patch: Patch, above: int = 0) -> None:
    """Let an abort put back the free value that its transaction had found."""

    def make_free(rules: FencedRules, lock: Key, cell: Cell) -> Check:
        found = read_lock(lock, cell)
        free = FencedLock(found.taken - 1, FREE, found.names)
        return Check(lock, cell.value, edits=(Edit(lock, free.value, cell.timestamp + above),))

    patch.setattr(FencedRules, "make_free", make_free)


def choose_the_time(patch: Patch, choose: Callable[[Context, Attempt], int]) -> None:
    """Let a commit timestamp be chosen in another way."""

    def raise_timestamp(context: Context, t: Attempt) -> None:
        t.timestamp = max(t.timestamp, choose(context, t))

    for module in (fenced, units):
        patch.setattr(module, "raise_timestamp", raise_timestamp)


def time_of_values(context: Context, t: Attempt) -> int:
    """Return what lies above the clock and the values, whatever the locks say."""
    newest = max((cell.timestamp for cell in t.seen.values() if cell), default=0)
    return max(context.clock.wall_ms(), newest + 1)


def finish_without_looking(patch: Patch) -> None:
    """Let anybody put values as the owner does."""
    patch.setattr(fenced, "_is_sure", lambda context, t: True)


def finish_late_without_looking(patch: Patch) -> None:
    """Let the owner do so whenever it comes back."""
    patch.setattr(
        fenced,
        "_is_sure",
        lambda context, t: isinstance(t, Attempt) and t.decided_ms is not None,
    )


def trust_what_is_read(patch: Patch) -> None:
    """Let an owner that has learned of its decision by reading do so too."""
    patch.setattr(fenced, "_is_sure", lambda context, t: isinstance(t, Attempt))


def unlock_before_values(patch: Patch) -> None:
    """Free the locks of a decided transaction, then put its values."""

    def finish_units(context: Context, transactions: Sequence[Transaction]) -> None:
        for t in transactions:
            at = t.decided.timestamp
            for lock, held in zip(t.units, t.decided.locks, strict=True):
                free = read_lock(lock, Cell(held, at)).give_back()
                context.store.write([Edit(lock, free.value, at + 1)])
            for _, own in units.list_edits(t, at):
                context.store.write(own)

    patch.setattr(fenced, "finish_units", finish_units)


def complete_first(patch: Patch) -> None:
    """Tell that a transaction is complete, then complete it."""
    finish = fenced.finish_units

    def tell_and_finish(context: Context, transactions: Sequence[Transaction]) -> None:
        attempt_module.advance(context, transactions, Status.COMPLETE)
        finish(context, transactions)
        for t in transactions:
            t.status = Status.ASSERTED

    patch.setattr(fenced, "finish_units", tell_and_finish)


def lock_before_the_row(patch: Patch) -> None:
    """Ask for the locks, then write the row."""

    def prepare(
        rules: FencedRules,
        context: Context,
        transactions: Sequence[Attempt],
        contention: Contention,
        patient: bool,
    ) -> list[Attempt]:
        live = fenced.read_units(context, transactions, contention, patient)
        live = fenced.lock_units(context, live, contention, patient)
        return fenced.plan_units(context, fenced.write_rows(context, live))

    patch.setattr(FencedRules, "prepare", prepare)


def decide_plainly(patch: Patch) -> None:
    """Put the decision, without comparing."""
    patch.setattr(FencedRules, "plain", FencedRules.plain | {Status.ASSERTED})


def believe_in_every_lock(patch: Patch) -> None:
    """Ask for locks, and go on whatever is answered."""

    def ask(context: Context, wanted: Sequence[units.Unit]) -> list[units.Unit]:
        checks = []
        for t, lock in wanted:
            t.held.add(lock)
            found = t.found[lock]
            edit = Edit(lock, fenced._take(t, lock), t.timestamp)
            checks.append(Check(lock, found.value if found else FREE, edits=(edit,)))
        context.store.check_and_put(checks)
        return []

    patch.setattr(fenced, "_ask", ask)


def put_at_the_servers_time(patch: Patch) -> None:
    """Let statuses that are put, not compared, have the server's time."""
    make_step = FencedRules.make_step

    def at_any_time(
        rules: FencedRules,
        context: Context,
        t: Transaction,
        new: Status,
        cells: attempt_module.Cells,
    ) -> Check:
        step = make_step(rules, context, t, new, cells)
        if new not in rules.plain:
            return step
        return step._replace(edits=tuple(edit._replace(timestamp=None) for edit in step.edits))

    patch.setattr(FencedRules, "make_step", at_any_time)


def look_at_locks_once(patch: Patch) -> None:
    """Take what a reader has found first, whatever has happened since."""

    def look(rules: FencedRules, context: Context, keys: Sequence[Key]) -> tuple[looks.Found, bool]:
        locks = list(dict.fromkeys(map(unit_lock, keys)))
        return context.store.read([*keys, *locks]), True

    patch.setattr(FencedRules, "look", look)


def fail_at_the_first_look(patch: Patch) -> None:
    """Fail on an assertion of several rows as they were found, each at its own instant."""

    def confirm(context: Context, doubtful: Sequence[Attempt]) -> None:
        for t in doubtful:
            lost = units.find_false(t)
            assert lost is not None
            t.failure = make_assertion_error(t, lost)

    patch.setattr(units, "_confirm", confirm)


def free_the_undecided(patch: Patch) -> None:
    """Free the locks of a holder that has not decided, without aborting it."""
    patch.setattr(TransactionRow, "is_over", property(lambda row: row.status is Status.WRITTEN))


def free_what_is_there(patch: Patch) -> None:
    """Free a lock as it is by now, whoever has it."""
    free_locks = attempt_module.free_locks

    def free_now(context: Context, locks: dict[Key, Cell]) -> bool:
        cells = context.store.read(list(locks))
        return free_locks(context, {lock: cell for lock, cell in cells.items() if cell})

    for module in ("resolve", "fenced"):
        patch.setattr(f"txn.protocol.{module}.free_locks", free_now)


def judge_never_again(patch: Patch) -> None:
    """Keep to what was judged before the locks were had."""
    patch.setattr(fenced, "_judge_locked", lambda t: None)


def bring_all_that_was_read(patch: Patch) -> None:
    """Let a block's commit know what the block has read without its lock as well."""
    get_many = OptimisticTransaction.get_many

    def get_and_know(
        block: OptimisticTransaction, wanted: Collection[Key]
    ) -> dict[Key, bytes | None]:
        values = get_many(block, wanted)
        block._known = {**block._read, **block._known}
        return values

    patch.setattr(OptimisticTransaction, "get_many", get_and_know)


def wait_in_any_order(patch: Patch) -> None:
    """Take locks in the order of the request."""
    patch.setattr(fenced, "sorted", list, raising=False)
