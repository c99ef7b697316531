"""Transactions in parts with one safeguard taken out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from txn.model import Edit
from txn.protocol import children as children_module
from txn.protocol import fenced as fenced_module
from txn.protocol import recovery as recovery_module
from txn.protocol import row as row_module
from txn.protocol.context import Context
from txn.protocol.row import TransactionRow
from txn.protocol.statuses import Status
from txn.protocol.transaction import PendingCommit, advance
from txn.reading import snapshot as snapshot_module

Patch = pytest.MonkeyPatch


def _put_plan_plainly(
    context: Context, transactions: Sequence[PendingCommit], new: Status, cells: Any
) -> Sequence[PendingCommit]:
    for t in transactions:
        if t.status is not new:
            return advance(context, transactions, new, cells)
        context.store.write([Edit(key, value, None) for key, value in cells(t)])
    return transactions


def _ask_no_transaction(context: Context, holder: bytes, cells: Any) -> bool:
    status, _ = (cells[sign] for sign in snapshot_module._signs(context, [holder])[:2])
    return status is not None and status.value in snapshot_module.UNDECIDED


def _list_seen(context: Context, parent: TransactionRow) -> Iterator[TransactionRow]:
    children = recovery_module._list_children(context, parent.row_key)
    return (row_module.follow(row, parent) for row in children)


PARTS_RULES: dict[str, Callable[[Patch], None]] = {
    "a part aborts alone": lambda patch: patch.setattr(
        recovery_module, "_abort_parents", lambda context, parts, reason: {t.row_key for t in parts}
    ),
    "all parts are counted": lambda patch: patch.setattr(
        row_module, "_is_counted", lambda part, whole: True
    ),
    "parts are not finished first": lambda patch: patch.setattr(
        recovery_module, "finish_children", lambda context, transactions: None
    ),
    "a plan is put plainly": lambda patch: patch.setattr(
        children_module, "advance", _put_plan_plainly
    ),
    "a part is undecided while it says so": lambda patch: patch.setattr(
        snapshot_module, "_was_undecided", _ask_no_transaction
    ),
    "an absent transaction is not poisoned": lambda patch: patch.setattr(
        recovery_module, "poison", lambda context, t: True
    ),
    "parts are not counted": lambda patch: patch.setattr(
        recovery_module, "list_decided_children", _list_seen
    ),
    "a lost part is over": lambda patch: patch.setattr(row_module, "NEVER_DECIDED", ()),
    "an own lock is a rival's": lambda patch: patch.setattr(
        fenced_module, "_undo_take", lambda t, lock, cell: cell
    ),
    "a part is read once": lambda patch: patch.setattr(
        row_module, "_is_early", lambda context, row_key, found: False
    ),
}
