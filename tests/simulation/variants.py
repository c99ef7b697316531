"""The protocol with one safeguard taken out, for the tests that show what it is for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from recovery import fsck as fsck_module
from txn import Cell, ConflictError, Key, Mutation
from txn.errors import TableUnavailable
from txn.model import Check, Edit
from txn.protocol import commit as commit_module
from txn.protocol import context as context_module
from txn.protocol import fenced as fenced_module
from txn.protocol import locks as locks_module
from txn.protocol import prepare as prepare_module
from txn.protocol import ranges
from txn.protocol import recovery as recovery_module
from txn.protocol import six_phase as six_phase_module
from txn.protocol import transaction as transaction_module
from txn.protocol.codec import Plan, encode_plan
from txn.protocol.context import Context
from txn.protocol.locks import Contention
from txn.protocol.retire import Guarded
from txn.protocol.row import FREE, column, read_rows, status_key
from txn.protocol.statuses import COMMITTED, Status
from txn.protocol.transaction import Transaction
from txn.reading import snapshot as snapshot_module
from txn.request import Request

Cells = dict[Key, Cell | None]
step_compared = transaction_module.advance


def patch_steps(
    monkeypatch: pytest.MonkeyPatch, step: Callable[..., object], *more: ModuleType
) -> None:
    for module in (six_phase_module, commit_module, transaction_module, *more):
        monkeypatch.setattr(module, "advance", step)


def step_plainly(
    context: Context,
    transactions: Sequence[Transaction],
    new: Status,
    cells: Callable[[Transaction], transaction_module.Cells] | None = None,
    *,
    durable: bool = False,
    unsent: Context | None = None,
    send: transaction_module.Send | None = None,
    now_ms: int | None = None,
) -> list[Transaction]:
    """Step statuses by plain puts at the client's time; only the decision compares."""
    if new is Status.ASSERTED:
        return step_compared(context, transactions, new, cells, durable=durable)
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


def hold_reading_first(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """The look under the locks, before the change to 1-LOCKED, which the protocol allows."""
    cells = context.store.read(six_phase_module.list_cells(transactions))
    six_phase_module.advance(context, transactions, Status.LOCKED)
    live = transaction_module.fail_aborted(transactions, Status.LOCKED)
    for t in live:
        t.failure = six_phase_module.judge_cells(context, t, cells, {})
    return [t for t in live if t.failure is None]


def free_without_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (recovery_module, fsck_module):
        monkeypatch.setattr(module, "poison", lambda context, row_key: True)


def poison_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    def put_poison(context: Context, t: Transaction) -> bool:
        reason = column(context.table, t.row_key, b"reason"), recovery_module.POISONED.encode()
        step = transaction_module.make_step(context, t, Status.ABORTED, [reason])
        transaction_module.call_store(
            context, lambda: context.store.check_and_put([step._replace(expected=None)])
        )
        return True

    for module in (recovery_module, fsck_module):
        monkeypatch.setattr(module, "poison", put_poison)


def look_before_the_step(
    context: Context,
    transactions: Sequence[Transaction],
    contention: Contention,
    patient: bool,
) -> list[Transaction]:
    live = choose_lock(patient)(context, transactions, contention)
    live = prepare_module.validate(context, live, contention, [])
    return six_phase_module.assert_under_locks(context, live)


def choose_lock(patient: bool) -> Callable[..., list[Transaction]]:
    return six_phase_module.lock_in_order if patient else six_phase_module.lock_at_once


def believe_what_was_read(patch: pytest.MonkeyPatch) -> None:
    def believe(
        context: object, transactions: Sequence[Transaction], *_: object
    ) -> Sequence[Transaction]:
        return transactions

    for module in (fenced_module, six_phase_module):
        patch.setattr(module, "validate", believe)
    patch.setattr(six_phase_module, "find_locked", lambda t, cells: None)


def forget_what_is_left(digest: ranges.Digest, cells: Mapping[Key, Cell]) -> None:
    pass


def believe(
    context: Context, transactions: Sequence[Transaction], unsent: Context | None = None
) -> list[Transaction]:
    for t in transactions:
        decision = transaction_module.make_step(context, t, Status.ASSERTED, plan_of(context, t))
        (decided,) = context_module.call_store(
            context, partial(context.store.check_and_put, [decision])
        )
        if decided:
            t.status = Status.ASSERTED
        else:
            t.failure = ConflictError("the decision was refused")
    return [t for t in transactions if t.failure is None]


def plan_of(context: Context, t: Transaction) -> transaction_module.Cells:
    return [(column(context.table, t.row_key, b"plan"), encode_plan(t.decided))]


def decide_as_any_other_call(
    context: Context, transactions: Sequence[Transaction], unsent: Context | None = None
) -> list[Transaction]:
    """A StoreError then says, as it does for all calls before it, that nothing will happen."""
    before = {Status.WRITTEN if context.rules.locks_rows else Status.LOCKED}
    fail_undone([t for t in transactions if t.status not in before])
    due = [t for t in transactions if t.failure is None]
    transaction_module.advance(context, due, Status.ASSERTED, lambda t: plan_of(context, t))
    fail_undone([t for t in due if t.status is None or t.status.is_undecided])
    return [t for t in due if t.failure is None]


def fail_undone(transactions: Sequence[Transaction]) -> None:
    for t in transactions:
        t.failure = t.failure or ConflictError("a crash of a server has undone a step")


def put_what_can_be_put(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    put = six_phase_module.put_values
    with suppress(TableUnavailable):
        return put(context, transactions)
    for t in transactions:
        for mutation, old in zip(t.request.mutations, t.decided.replaced, strict=True):
            one = replace(t, request=Request((mutation,)), plan=Plan(t.decided.timestamp, (old,)))
            with suppress(TableUnavailable):
                put(context, [one])
    return list(transactions)


def clean_what_can_be_cleaned(
    context: Context, transactions: Sequence[Transaction]
) -> list[Transaction]:
    behind = [t for t in transactions if t.status is Status.ASSERTED]
    transaction_module.advance_with(context, behind, Status.PUT, ())
    for t in transactions:
        for mutation in t.request.mutations:
            with suppress(TableUnavailable):
                six_phase_module.clean_tags(context, [replace(t, request=Request((mutation,)))])
    return list(transactions)


def leave_values_out(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = (
        (Status.ASSERTED, put_what_can_be_put),
        (Status.PUT, clean_what_can_be_cleaned),
        six_phase_module.FORWARD[-1],
    )
    monkeypatch.setattr(six_phase_module, "FORWARD", forward)


def unlock_with_put(monkeypatch: pytest.MonkeyPatch) -> None:
    advance_with = six_phase_module.advance_with

    def advance_and_unlock(
        context: Context, transactions: Sequence[Transaction], new: Status, checks: Sequence[Check]
    ) -> None:
        if new is Status.PUT:
            held = [(lock, Cell(t.row_key, 0)) for lock, t in locks_of(transactions)]
            checks = [*checks, *(locks_module.make_release(lock, cell) for lock, cell in held)]
        advance_with(context, transactions, new, checks)

    monkeypatch.setattr(six_phase_module, "advance_with", advance_and_unlock)


def tell_what_fails(
    context: Context, name: str, work: recovery_module.Finish, transactions: Sequence[Transaction]
) -> None:
    if transactions:
        work(context, transactions)


def locks_of(transactions: Sequence[Transaction]) -> list[tuple[Key, Transaction]]:
    return [(cell, t) for t in transactions for cell in t.locks.values()]


def unlock_by_write(context: Context, transactions: Sequence[Transaction]) -> None:
    now_ms = context.clock.wall_ms()
    context.store.write([Edit(cell, FREE, now_ms) for cell, _ in locks_of(transactions)])


def unlock_by_marker(context: Context, transactions: Sequence[Transaction]) -> None:
    now_ms = context.clock.wall_ms()
    context.store.write([Edit(cell, None, now_ms) for cell, _ in locks_of(transactions)])


def unlock_whole_rows(context: Context, transactions: Sequence[Transaction]) -> None:
    for t in transactions:
        rows: dict[bytes, list[Key]] = {}
        for cell in t.locks.values():
            rows.setdefault(cell.row, []).append(cell)
        merged = [
            Check(of_row[0], t.row_key, tuple((cell, FREE) for cell in of_row))
            for of_row in rows.values()
        ]
        context.store.check_and_put(merged)


def set_unlock(monkeypatch: pytest.MonkeyPatch, work: recovery_module.Finish) -> None:
    def step_and_unlock(context: Context, transactions: Sequence[Transaction]) -> None:
        behind = [t for t in transactions if t.status is Status.PUT]
        transaction_module.advance_with(context, behind, Status.CLEANING, ())
        work(context, transactions)

    *others, (status, _) = six_phase_module.FORWARD
    monkeypatch.setattr(six_phase_module, "FORWARD", (*others, (status, step_and_unlock)))
    monkeypatch.setattr(six_phase_module, "release_key_locks", step_and_unlock)


def trust_all_decided(key: Key, look: snapshot_module.Observation) -> Cell | None:
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
    look = snapshot_module.Observation(context.rules, first, rows)
    return {key: snapshot_module.value_of(key, look) for key in keys}


def was_undecided(context: Context, holder: bytes, cells: Cells) -> bool:
    status = cells[status_key(context.table, holder)]
    return status is not None and status.value in snapshot_module.UNDECIDED


def without(
    monkeypatch: pytest.MonkeyPatch, forget: Callable[[Transaction, Cells], dict[Key, None]]
) -> None:
    verdict = six_phase_module.judge_cells

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

    monkeypatch.setattr(six_phase_module, "judge_cells", partial_verdict)


def without_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, lambda t, cells: {key.tag: None for key in t.keys})


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
