"""What there is to see of the locks in ZooKeeper: lines, and what the nodes in them tell.

Nothing here changes anything. What is seen may be gone at the next moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from txn.locks.line import Denied
from txn.locks.manager import Lock
from txn.locks.requests import LockRequest, Path
from txn.locks.zookeeper.keeper import Keeper
from txn.locks.zookeeper.nodes import (
    Folders,
    Line,
    Node,
    Note,
    first_of,
    folder_name,
    line_of,
    parse_node,
    part_of,
)


class View:
    """The locks under one base path."""

    def __init__(self, keeper: Keeper, folders: Folders) -> None:
        self._keeper = keeper
        self._folders = folders

    def line(self, at: Path) -> Line:
        """Return who stands at an object."""
        return self.lines([at])[at]

    def lines(self, objects: Iterable[Path]) -> dict[Path, Line]:
        """Return who stands at each object, asked in one go."""
        asked = list(objects)
        found = self._keeper.all_children([self._folders.of(at) for at in asked])
        return dict(zip(asked, map(line_of, found), strict=True))

    def read_notes(self, at: Path, line: Line) -> list[tuple[Node, Note]]:
        """Return the nodes of a line that are there yet, with what they tell."""
        folder = self._folders.of(at)
        found = self._keeper.about([f"{folder}/{node.name}" for node in line])
        return [
            (node, Note.decode(about.data, about.made_in))
            for node, about in zip(line, found, strict=True)
            if about is not None
        ]

    def within(self, at: Path | None) -> Iterator[Lock]:
        """Yield the locks on an object and on what lies in it, in the order of each line."""
        names = self._keeper.children(self._folders.of(at))
        for child in _objects(at, names):
            yield from self.within(child)
        if at is not None:
            line = line_of(names)
            yield from (_lock(at, node, note, line) for node, note in self.read_notes(at, line))

    def list_before(self, denied: Denied) -> list[Lock]:
        """Return the locks that deny a request."""
        at, tickets = denied.wanted.path, {node.ticket for node in denied.before}
        line = self.line(at)
        noted = self.read_notes(at, line)
        return [_lock(at, node, note, line) for node, note in noted if node.ticket in tickets]

    def is_needed(self, parent: Path, ticket: str) -> bool:
        """Whether the ticket has a node below this object."""
        names = self._keeper.children(self._folders.of(parent))
        for child in _objects(parent, names):
            if first_of(self.line(child), ticket) or self.is_needed(child, ticket):
                return True
        return False


def _objects(at: Path | None, names: Iterable[str]) -> Iterator[Path]:
    """Yield the objects whose folders are among the names in an object's folder; those with
    capitals belong to programs of an older version, and keep nobody out."""
    for name in (name for name in names if parse_node(name) is None):
        child = Path((*(at.parts if at else ()), part_of(name)))
        if folder_name(child.parts[-1]) == name:
            yield child


def _lock(at: Path, node: Node, note: Note, line: Line) -> Lock:
    """Return a node as others see it: granted, unless somebody before it denies it."""
    granted = all(node.mode.allows(each.mode) for each in line if each.number < node.number)
    return Lock(
        LockRequest(at, node.mode),
        note.as_owner(),
        note.since_ms,
        granted,
        note.explicit,
        note.token,
    )
