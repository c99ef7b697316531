"""Locks in ZooKeeper by the usual recipe: sequence nodes in a folder for each object.

A shared lock is `read-<ticket>-<number>`, an exclusive one `write-<ticket>-<number>`. Shared is
denied by any lower `write-`, exclusive by any lower node. Nodes are ephemeral, so the end of a
session releases all of its locks; those of an explicit lock become persistent when it is granted.
All nodes of a request are created in one transaction. If its reply is lost, they are found by their
ticket. The fencing token is the transaction that created the node.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from txn.clock import Clock, SystemClock
from txn.documents import check_types, parse_stored
from txn.errors import CorruptRowError, StoreError
from txn.host.holds import SafeEvent
from txn.locks.held import Grant
from txn.locks.manager import Removal, Ticket
from txn.locks.model import Lock, LockListing, LockRequest, Mode, Owner, Path, parts_of, text_of
from txn.locks.queue import Denial, RetrySchedule, find_denial
from txn.locks.zookeeper.client import Ensemble, NodeMissing, ReplyLost, ZooKeeperClient
from txn.model import check_whole
from txn.policy import Backoff

SESSION_MS = 10_000
TRIES = 20
AT_ONCE = 250  # nodes per transaction, which ZooKeeper limits to a megabyte
MENDING = Backoff(first_ms=20, longest_ms=640)
TIDIED_AT_ONCE = 1_000
USED_UP = "ZooKeeper has counted to 2^31 here: delete the folder when nobody has locks in it"
KINDS = {Mode.SHARED: "read-", Mode.EXCLUSIVE: "write-"}
NOTE: Mapping[str, Any] = {
    **dict.fromkeys(("owner", "host", "query"), str),
    **{"since_ms": int, "explicit": bool, "token": int},
}
"""The types of the fields of a node's data."""
MODES = {"read": Mode.SHARED, "write": Mode.EXCLUSIVE}
# A ticket is 32 hexadecimal digits. A negative number means that ZooKeeper's counter overflowed.
NODE = re.compile(r"(read|write)-([0-9a-f]{32})-(-?[0-9]{10})")


class Node(NamedTuple):
    number: int
    mode: Mode
    ticket: str
    name: str


Queue = list[Node]


def encode_note(ticket: Ticket, token: int = 0) -> bytes:
    """Return the data of a node. token: of a granted explicit lock; 0: the node's transaction."""
    owner = ticket.owner
    note: dict[str, object] = {"owner": owner.name, "host": owner.host, "query": owner.query}
    note |= {"since_ms": ticket.since_ms, "explicit": token > 0, "token": token}
    return json.dumps(note).encode()


def _decode_note(node: str, data: bytes) -> dict[str, Any]:
    try:
        note: dict[str, Any] = parse_stored(data)
        check_types(note, NOTE)
    except ValueError as error:
        raise CorruptRowError("not the node of a lock", row=node.encode()) from error
    return note


def parse_node(name: str) -> Node | None:
    """Return the lock node of this name, or None for the folder of an object."""
    if (found := NODE.fullmatch(name)) is None:
        return None
    kind, ticket, number = found.groups()
    return Node(int(number), MODES[kind], ticket, name)


def make_queue(names: Iterable[str]) -> Queue:
    return sorted(node for node in map(parse_node, names) if node)


def folder_name(part: str) -> str:
    """Return the name of an object's folder; a name like that of a lock node is escaped."""
    text = text_of((part,))
    return f"%{ord(text[0]):02x}{text[1:]}" if parse_node(text) else text


class Folders(NamedTuple):
    """The folders of queues: one for each object, within that of its parent."""

    base: str

    def of(self, at: Path | None) -> str:
        return "/".join([self.base, *map(folder_name, at.parts if at else ())])

    def all(self, objects: Iterable[Path]) -> list[str]:
        """Return the folders that these objects need, outer ones first."""
        names = self.base.split("/")
        outer = ["/".join(names[:count]) for count in range(2, len(names) + 1)]
        needed = {self.of(each) for at in objects for each in (*at.parents, at)}
        return [*outer, *sorted(needed, key=lambda folder: (folder.count("/"), folder))]


@dataclass(eq=False)
class QueueReader:
    """Reads the queues under one base path. Its results may be out of date at once."""

    _client: ZooKeeperClient
    _folders: Folders

    def read(self, objects: Iterable[Path]) -> dict[Path, Queue]:
        """Return the queue of each object, in one round trip."""
        asked = list(objects)
        found = self._client.list_children([self._folders.of(at) for at in asked])
        return dict(zip(asked, map(make_queue, found), strict=True))

    def scan(self, within: Path | None) -> Iterator[Lock]:
        (names,) = self._client.list_children([self._folders.of(within)])
        for name in names:
            if parse_node(name) is None:
                outer = within.parts if within else ()
                yield from self.scan(Path((*outer, *parts_of(name))))
        if within is not None:
            yield from self._read_locks(within, make_queue(names))

    def list_locks(self, denial: Denial) -> list[Lock]:
        at, blocking = denial.wanted.path, {node.ticket for node in denial.blockers}
        locks = self._read_locks(at, self.read([at])[at])
        return [lock for lock in locks if lock.ticket in blocking]

    def list_first(self, most: int) -> LockListing:
        found = list(islice(self.scan(None), most + 1))
        locks = sorted(found[:most], key=lambda lock: lock.request.path)
        return LockListing(tuple(locks), len(found) <= most)

    def close(self) -> None:
        self._client.close()

    def _read_locks(self, at: Path, queue: Sequence[Node]) -> Iterator[Lock]:
        """Yield the locks of nodes that still exist, granted unless an earlier one denies it."""
        folder = self._folders.of(at)
        found = self._client.get([f"{folder}/{node.name}" for node in queue])
        for node, data in zip(queue, found, strict=True):
            if data is None:
                continue
            note = _decode_note(f"{folder}/{node.name}", data.data)
            owner = Owner(note["owner"], note["host"], note["query"])
            yield Lock(
                LockRequest(at, node.mode),
                owner,
                note["since_ms"],
                granted=all(node.mode.allows(e.mode) for e in queue if e.number < node.number),
                explicit=note["explicit"],
                token=note["token"] or data.created_in,
                ticket=node.ticket,
            )


def open_lock_reader(ensemble: Ensemble) -> QueueReader:
    """Open a reader in a session of its own, which owns nothing."""
    return QueueReader(ZooKeeperClient(ensemble, SESSION_MS, SystemClock()), Folders(ensemble.base))


class ZooKeeperQueues:
    first_poll_ms: int | None = None

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        session_ms: int = SESSION_MS,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.rng = rng or random.SystemRandom()
        self.on_contact: Callable[[], None] = lambda: None
        check_whole("session_ms", session_ms, 1)
        self.session_ms = session_ms
        self.folders = Folders(ensemble.base)
        self._used: frozenset[Path] = frozenset()
        self.client = ZooKeeperClient(ensemble, session_ms, self.clock, self._note_contact)
        self.reader = QueueReader(self.client, self.folders)
        self.scan = self.reader.scan
        self.list_locks = self.reader.list_locks

    def _note_contact(self) -> None:
        self.on_contact()  # set after construction

    def begin(self, ticket: Ticket, wanted: Sequence[LockRequest]) -> _Attempt:
        return _Attempt(self, self.client, self.folders, ticket, wanted)

    def remove(self, entries: Removal) -> None:
        """Remove a ticket's nodes, including those of attempts whose reply was lost."""
        self.client.sync(self.folders.base)
        queues = self.reader.read(reversed(entries.objects))
        nodes = [
            f"{self.folders.of(at)}/{node.name}"
            for at, queue in queues.items()
            for node in queue
            if node.ticket == entries.ticket
        ]
        self.remove_nodes(nodes, 0 if entries.is_owed else TRIES)
        self.tidy_later(entries.objects)
        if not entries.is_owed:
            self._tidy()

    def close(self) -> None:
        self._tidy()
        self.client.close()

    def remove_nodes(self, nodes: Sequence[str], retries: int = 0) -> None:
        """Delete all of the nodes that exist. retries: after lost replies."""
        for first in range(0, len(nodes), AT_ONCE):
            self._remove_batch(nodes[first : first + AT_ONCE], retries)

    def _remove_batch(self, nodes: Sequence[str], retries: int) -> None:
        lost = 0
        for _ in range(TRIES + retries):
            try:
                return self.client.apply(nodes)
            except NodeMissing:
                created = self.client.read_created(nodes)
                nodes = [at for at, token in zip(nodes, created, strict=True) if token]
                if not nodes:
                    return None
            except ReplyLost:
                lost += 1
                if lost > retries:
                    raise
                self.clock.sleep_ms(MENDING.pause_ms(lost, self.rng))
        raise StoreError("cannot delete nodes in ZooKeeper", at=nodes[0])

    def tidy_later(self, objects: Iterable[Path]) -> None:
        """Delete empty folders from time to time: most are needed again soon."""
        self._used = self._used.union(objects)  # not changed in place: threads share it
        if len(self._used) >= TIDIED_AT_ONCE:
            self._tidy()

    def _tidy(self) -> None:
        used, self._used = self._used, frozenset()
        base = len(self.folders.base)
        self.client.tidy([at for at in reversed(self.folders.all(used)) if len(at) > base])


@dataclass(eq=False)
class _Attempt:
    """A request under way: its nodes and, as far as known, the transactions that made them."""

    _queues: ZooKeeperQueues
    _client: ZooKeeperClient
    _folders: Folders
    _ticket: Ticket
    _wanted: Sequence[LockRequest]
    _nodes: dict[Path, str] = field(default_factory=dict)
    _created_in: dict[str, int] = field(default_factory=dict)
    _has_tried: bool = False

    def acquire(self, schedule: RetrySchedule) -> Grant | Denial:
        """Enter the queue of every object, unless one is known to be denied. After a denial, leave
        the other queues; fair queues keep the places of `Denial.keeps`."""
        is_fair = schedule.waiting.fairness == "fair"
        for _ in range(TRIES):
            losses = self._client.losses
            if self._has_tried and (denial := self._find_denial(self._read(self._wanted))):
                if is_fair and denial.wanted.path not in self._nodes:
                    self._create([denial.wanted])
                return self._stand_back(denial, is_fair, self._nodes)
            self._has_tried = True
            places = set(self._nodes)
            if denial := self._find_denial(self._enter()):
                return self._stand_back(denial, is_fair, places)
            tokens = self._read_tokens()
            if len(tokens) < len(self._wanted) or self._client.losses != losses:
                continue  # a session has ended, and some of our nodes with it
            if not self._ticket.explicit or self._make_lasting(tokens):
                return self._make_grant(tokens, losses)
        raise StoreError("our nodes in ZooKeeper keep going away", wanted=str(self._wanted[0]))

    def wait(self, denial: Denial, pause_ms: int, schedule: RetrySchedule) -> None:
        """Wait until the last request before ours goes away, for at most the pause."""
        gone = SafeEvent()
        at = f"{self._folders.of(denial.wanted.path)}/{denial.blockers[-1].name}"
        is_there = self._client.watch(at, lambda event: gone.set())
        if not is_there or gone.wait(pause_ms / 1000):
            schedule.note_wake()

    def _find_denial(self, queues: dict[Path, Queue]) -> Denial | None:
        """Note our node in each queue, in their order, delete duplicates, and return a denial."""
        self._nodes = {}
        for at in [each.path for each in self._wanted]:
            folder = self._folders.of(at)
            ours = [node for node in queues[at] if node.ticket == self._ticket.name]
            if any(node.number < 0 for node in ours):
                raise StoreError(USED_UP, folder=folder)
            if ours:
                self._nodes[at] = f"{folder}/{ours[0].name}"
            if ours[1:]:
                self._queues.remove_nodes([f"{folder}/{node.name}" for node in ours[1:]], TRIES)
        return find_denial(queues, self._ticket.name, self._wanted)

    def _read_tokens(self) -> dict[Path, int]:
        unknown = [node for node in self._nodes.values() if node not in self._created_in]
        found = zip(unknown, self._client.read_created(unknown), strict=True)
        self._created_in |= {node: token for node, token in found if token is not None}
        known = self._created_in
        return {at: known[node] for at, node in self._nodes.items() if node in known}

    def _stand_back(self, denial: Denial, is_fair: bool, places: Collection[Path]) -> Denial:
        """Keep those of these places that a denied request keeps, and leave all others."""
        kept = {denial.wanted.path, *filter(denial.keeps, places)} if is_fair else set()
        left = [each for each in self._nodes if each not in kept]
        self._queues.remove_nodes([self._nodes.pop(at) for at in left], TRIES)
        return denial

    def _enter(self) -> dict[Path, Queue]:
        """Enter the queue of each object; return the queues as they were afterwards."""
        queues = self._read([each for each in self._wanted if each.path in self._nodes])
        absent = [each for each in self._wanted if each.path not in self._nodes]
        for first in range(0, len(absent), AT_ONCE):
            queues |= self._create(absent[first : first + AT_ONCE])
        return queues

    def _create(self, wanted: Sequence[LockRequest]) -> dict[Path, Queue]:
        """Create a node for each object, or none; return the queues including them."""
        data, name = encode_note(self._ticket), self._ticket.name
        folders = [self._folders.of(each.path) for each in wanted]
        pairs = zip(folders, wanted, strict=True)
        places = [f"{folder}/{KINDS[each.mode]}{name}-" for folder, each in pairs]
        for tries in range(TRIES):
            try:
                created = self._client.enter(places, data, folders)
            except NodeMissing:
                objects = [each.path for each in wanted]
                self._client.create_folders(self._folders.all(objects))
            except ReplyLost:
                # Look for the nodes first: with duplicates, we would wait behind ourselves.
                self._client.sync(self._folders.base)
                queues = self._read(wanted)
                if all(any(node.ticket == name for node in queue) for queue in queues.values()):
                    return queues
                self._queues.clock.sleep_ms(MENDING.pause_ms(tries, self._queues.rng))
            else:
                self._created_in |= dict.fromkeys(created.nodes, created.created_in)
                queues_after = map(make_queue, created.children)
                return dict(zip((each.path for each in wanted), queues_after, strict=True))
        raise StoreError("cannot create nodes in ZooKeeper", at=folders[0])

    def _make_lasting(self, tokens: dict[Path, int]) -> bool:
        """Replace our nodes by persistent ones of the same names, and so with the same places.
        Return False if a node is missing. Until then a place ends with its session."""
        places = [(self._nodes[at], token) for at, token in tokens.items()]
        for first in range(0, len(places), AT_ONCE // 2):
            batch = places[first : first + AT_ONCE // 2]
            lasting = [(node, encode_note(self._ticket, token)) for node, token in batch]
            try:
                self._client.apply([node for node, _ in batch], lasting)
            except NodeMissing:
                return False
            except ReplyLost:
                self._client.sync(self._folders.base)
                found = self._client.get([node for node, _ in batch])
                pairs = zip(batch, found, strict=True)
                if not all(e and _decode_note(node, e.data)["explicit"] for (node, _), e in pairs):
                    return False
        return True

    def _make_grant(self, tokens: dict[Path, int], losses: int) -> Grant:
        nodes = [self._nodes[at] for at in tokens]
        is_of_session = bool(nodes) and not self._ticket.explicit

        def give_back() -> None:
            self._queues.remove_nodes(nodes)
            self._queues.tidy_later(tokens)

        return Grant(
            tokens,
            is_lost=lambda: is_of_session and self._client.lost_since(losses),
            are_there=lambda: all(self._client.read_created(nodes, self._queues.session_ms)),
            give_back=give_back,
        )

    def _read(self, wanted: Sequence[LockRequest]) -> dict[Path, Queue]:
        return self._queues.reader.read(each.path for each in wanted)
