"""Lock nodes in ZooKeeper: their names and notes, and the queues and folders that they are in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from txn.locks.manager import Entry
from txn.locks.model import Lock, Owner
from txn.locks.queue import Denial
from txn.locks.requests import LockRequest, Mode, Path, parts_of, text_of
from txn.locks.zookeeper.client import ZooKeeperClient

KINDS = {Mode.SHARED: "read-", Mode.EXCLUSIVE: "write-"}
MODES = {"read": Mode.SHARED, "write": Mode.EXCLUSIVE}
# A ticket is 32 hexadecimal digits. The number has a sign once ZooKeeper's counter has run over.
NODE = re.compile(r"(read|write)-([0-9a-f]{32})-(-?[0-9]{10})")


class Node(NamedTuple):
    """A lock node: its number in the queue, its mode, its ticket, and its name."""

    number: int
    mode: Mode
    ticket: str
    name: str


Queue = list[Node]


class Note(NamedTuple):
    """What a node holds. token: 0 means the transaction in which the node was created."""

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
    def decode(cls, data: bytes, created_in: int = 0) -> Self:
        """Return the note of a node."""
        fields: dict[str, Any] = json.loads(data)
        note = cls(**fields)
        return note if note.token else note._replace(token=created_in)


def parse_node(name: str) -> Node | None:
    """Return the lock node of this name, or None for the folder of an object."""
    if (found := NODE.fullmatch(name)) is None:
        return None
    kind, ticket, number = found.groups()
    return Node(int(number), MODES[kind], ticket, name)


def make_queue(names: Iterable[str]) -> Queue:
    """Return the lock nodes among the names in a folder, in their order."""
    return sorted(node for node in map(parse_node, names) if node)


def folder_name(part: str) -> str:
    """Return the name of an object's folder; one that looks like a lock node is disguised."""
    text = text_of((part,))
    return f"%{ord(text[0]):02x}{text[1:]}" if parse_node(text) else text


def part_of(name: str) -> str:
    """Return the part of a path that a folder is named after."""
    (part,) = parts_of(name)
    return part


class Folders(NamedTuple):
    """Where the queues of objects are: a folder for each object, in that of its parent."""

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


class QueueReader:
    """Reads the queues under one base path. What it returns may be over at the next moment."""

    def __init__(self, client: ZooKeeperClient, folders: Folders) -> None:
        self._client = client
        self._folders = folders

    def read(self, objects: Iterable[Path]) -> dict[Path, Queue]:
        """Return the queue at each object, in one round trip."""
        asked = list(objects)
        found = self._client.list_children([self._folders.of(at) for at in asked])
        return dict(zip(asked, map(make_queue, found), strict=True))

    def scan(self, within: Path | None) -> Iterator[Entry]:
        """Yield the entries of an object and of what lies in it, in the order of each queue."""
        (names,) = self._client.list_children([self._folders.of(within)])
        for name in names:
            if parse_node(name) is None:
                outer = within.parts if within else ()
                yield from self.scan(Path((*outer, part_of(name))))
        if within is not None:
            yield from self._read_entries(within, make_queue(names))

    def list_locks(self, denial: Denial) -> list[Lock]:
        """Return the locks that deny a request."""
        at, blocking = denial.wanted.path, {node.ticket for node in denial.blockers}
        entries = self._read_entries(at, self.read([at])[at])
        return [entry.lock for entry in entries if entry.ticket in blocking]

    def _read_entries(self, at: Path, queue: Sequence[Node]) -> Iterator[Entry]:
        """Yield the nodes of a queue that are still there: granted, unless one before denies it."""
        folder = self._folders.of(at)
        found = self._client.get([f"{folder}/{node.name}" for node in queue])
        for node, data in zip(queue, found, strict=True):
            if data is None:
                continue
            note = Note.decode(data.data, data.created_in)
            granted = all(node.mode.allows(e.mode) for e in queue if e.number < node.number)
            owner = Owner(note.owner, note.host, note.query)
            request = LockRequest(at, node.mode)
            lock = Lock(request, owner, note.since_ms, granted, note.explicit, note.token)
            yield Entry(node.ticket, lock)
