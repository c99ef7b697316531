"""Lock nodes in ZooKeeper: their names, what they tell, and the lines and folders they stand in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from txn.locks.manager import Owner
from txn.locks.requests import Mode, Path, parts_of, text_of

KINDS = {Mode.SHARED: "read-", Mode.EXCLUSIVE: "write-"}
MODES = {"read": Mode.SHARED, "write": Mode.EXCLUSIVE}
# A ticket is 32 hexadecimal digits. The number has a sign once ZooKeeper's counter has run over.
NODE = re.compile(r"(read|write)-([0-9a-f]{32})-(-?[0-9]{10})")


class Node(NamedTuple):
    """A lock node: its number in the line, its mode, its ticket, and its name."""

    number: int
    mode: Mode
    ticket: str
    name: str


Line = list[Node]


class Note(NamedTuple):
    """What a node tells. token: 0 means the transaction in which the node was made."""

    owner: str
    host: str
    query: str
    since_ms: int
    explicit: bool = False
    token: int = 0

    def encode(self) -> bytes:
        """Return the bytes of the node."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, data: bytes, made_in: int = 0) -> Self:
        """Return what the bytes tell."""
        told: dict[str, Any] = json.loads(data)
        note = cls(**told)
        return note if note.token else note._replace(token=made_in)

    def as_owner(self) -> Owner:
        """Return who put the node there."""
        return Owner(self.owner, self.host, self.query)


class Folders(NamedTuple):
    """Where the lines of objects are: a folder for each object, in that of its parent."""

    base: str

    def of(self, at: Path | None) -> str:
        """Return the folder of an object, or the base."""
        return "/".join([self.base, *map(folder_name, at.parts if at else ())])

    def all(self, objects: Iterable[Path]) -> list[str]:
        """Return the folders that these objects need, outer ones first."""
        names = self.base.split("/")
        outer = ["/".join(names[:count]) for count in range(2, len(names) + 1)]
        needed = {self.of(each) for at in objects for each in (*at.parents, at)}
        return [*outer, *sorted(needed, key=lambda folder: (folder.count("/"), folder))]

    def list_emptied(self, objects: Iterable[Path]) -> list[str]:
        """Return the folders that may be empty without these objects, inner ones first."""
        return [folder for folder in reversed(self.all(objects)) if len(folder) > len(self.base)]


def parse_node(name: str) -> Node | None:
    """Return the lock node of this name, or None for the folder of an object."""
    if (found := NODE.fullmatch(name)) is None:
        return None
    kind, ticket, number = found.groups()
    return Node(int(number), MODES[kind], ticket, name)


def line_of(names: Iterable[str]) -> Line:
    """Return the lock nodes among the names in a folder, in their order."""
    return sorted(node for node in map(parse_node, names) if node)


def first_of(line: Line, ticket: str) -> Node | None:
    """Return the first node of a ticket, if it has one in the line."""
    return next((node for node in line if node.ticket == ticket), None)


def folder_name(part: str) -> str:
    """Return the name of an object's folder; one that looks like a lock node is disguised."""
    text = text_of((part,))
    return f"%{ord(text[0]):02x}{text[1:]}" if parse_node(text) else text


def part_of(name: str) -> str:
    """Return the part of a path that a folder is named after."""
    (part,) = parts_of(name)
    return part
