"""Which calls of the store a story waits for, or spoils."""

from __future__ import annotations

from collections.abc import Callable

from txn import Cell, Key
from txn.model import LOCK_SUFFIX, Check, Edit
from txn.protocol.locks import holder_of
from txn.protocol.row import FREE
from txn.protocol.statuses import Status
from txn.testing.faulty import Call

Match = Callable[[Call], bool]


def asks_for(status: Status) -> Match:
    return lambda call: any(
        key.column == b"status" and value == status.value
        for item in call.items
        for key, value in puts(item)
    )


def poisons(call: Call) -> bool:
    names = {key.column for item in call.items for key, _ in puts(item)}
    return asks_for(Status.ABORTED)(call) and b"reason" in names


def puts_plan(call: Call) -> bool:
    return any(key.column == b"plan" for item in call.items for key, _ in puts(item))


def takes(key: Key) -> Match:
    return lambda call: any(c.key == key.lock and c.expected == FREE for c in checks(call))


def writes_and_takes(key: Key) -> Match:
    return lambda call: asks_for(Status.WRITTEN)(call) and (takes(key)(call) or counts(key)(call))


def frees(call: Call) -> bool:
    return any(c.key.column.endswith(LOCK_SUFFIX) and c.expected for c in checks(call))


def counts(key: Key) -> Match:
    lock = key.row_lock
    return lambda call: any(
        put == lock and holder_of(lock, Cell(value or FREE, 0))
        for c in checks(call)
        for put, value in puts(c)
    )


def finishes(key: Key) -> Match:
    return lambda call: any(
        put == key and call.method != "read" for item in call.items for put, _ in puts(item)
    )


def reads_row(key: Key) -> Match:
    return lambda call: call.method == "row" and any(key.row == item.row for item in keys(call))


def sleeps(call: Call) -> bool:
    return call.method == "sleep"


def checks(call: Call) -> list[Check]:
    groups = [item if type(item) is tuple else (item,) for item in call.items]
    return [item for group in groups for item in group if isinstance(item, Check)]


def keys(call: Call) -> list[Key]:
    return [item for item in call.items if isinstance(item, Key)]


def puts(item: object) -> list[tuple[Key, bytes | None]]:
    if type(item) is tuple:
        return [put for check in item for put in puts(check)]
    if isinstance(item, Check):
        return [*item.puts, *((edit.key, edit.value) for edit in item.edits)]
    return [(item.key, item.value)] if isinstance(item, Edit) else []
