"""The names of lock nodes in ZooKeeper, and of the folders of objects."""

from __future__ import annotations

from typing import NamedTuple

from txn.locks.requests import Mode, Path, path

KINDS = {Mode.SHARED: "read-", Mode.EXCLUSIVE: "write-"}
MODES = {"read": Mode.SHARED, "write": Mode.EXCLUSIVE}
TICKET = 32  # hexadecimal digits


class Node(NamedTuple):
    """A lock node: its number in the line, its mode, its ticket, and its name."""

    number: int
    mode: Mode
    ticket: str
    name: str


def parsed(name: str) -> Node | None:
    """Return the lock node of this name, or None for the folder of an object."""
    kind, dash, rest = name.partition("-")
    ticket, _, number = rest.rpartition("-")
    if not dash or kind not in MODES or len(ticket) != TICKET or not number.isdecimal():
        return None
    return Node(int(number), MODES[kind], ticket, name)


def folder_name(part: str) -> str:
    """Return the name of an object's folder; one that looks like a lock node is disguised."""
    text = str(Path((part,)))
    return f"%{ord(text[0]):02x}{text[1:]}" if parsed(text) else text


def part_of(name: str) -> str:
    """Return the part of a path that a folder is named after."""
    (part,) = path(name).parts
    return part
