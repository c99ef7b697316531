"""Calls of a store as a trace tells them: one line each, and the same for the same seed."""

from __future__ import annotations

from txn.model import Check, Edit, Key
from txn.protocol.row import is_row_key, strip_database
from txn.testing.faulty import NO_FAULT, Call, Fault, Item


def told(call: Call, fault: Fault) -> str:
    items = [brief(item) for item in call.items]
    order = sorted(items) if call.method == "read" else items  # a set's order is no fact
    return f"{call.number:3} {call.method} {', '.join(order)}{shown(fault)}"


def brief(item: Item) -> str:
    match item:
        case Key():
            return f"{short(item.row)}/{item.column.decode()}"
        case Edit(key, value, timestamp):
            at = "server" if timestamp is None else timestamp % 10**9
            return f"{brief(key)}@{at}={short(value or b'-')}"
        case Check(key, expected, puts, edits, is_deferred):
            new = {**{edit.key: edit.value or b"-" for edit in edits}, **dict(puts)}
            old = "*" if expected is None else short(expected)  # without a condition
            later = " later" if is_deferred else ""
            return f"{brief(key)}:{old}->{short(new.get(key, b'?'))}{later}"
        case bytes():
            return short(item)
        case _:
            return f"({', '.join(map(brief, item))})"


def short(value: bytes) -> str:
    """Return a row key, also in a lock, by its last digits, and other values as they are."""
    count, at, holder = value.partition(b"@")
    if at and is_row_key(holder):
        return f"{count.decode()}@{short(holder)}"
    text = value.decode(errors="replace")
    return f"T{strip_database(value)[-4:].decode()}" if is_row_key(value) else text[:40]


def shown(fault: Fault) -> str:
    if fault is NO_FAULT:
        return ""
    applied = "all" if fault.applied is None else sorted(fault.applied)
    facts = [f"applied={applied}", f"late={sorted(fault.late)}"]
    return f"   !! {fault.reply.value}{' twice' * fault.twice} {' '.join(facts)}"
