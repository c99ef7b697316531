"""Locks in ZooKeeper: a sequence node for each object under the object's path, by the usual recipe.

A shared lock is `read-<ticket>-<number>`, an exclusive one `write-<ticket>-<number>`. Shared is
denied by any lower `write-`, exclusive by anything lower. Nodes are ephemeral, so a session that
ends gives all of its locks back; those of an explicit lock become persistent when it is granted.
All nodes of a request are made in one transaction, and found again by their ticket if its reply is
lost. The fencing token is the transaction in which a node was made.
"""

from __future__ import annotations

import getpass
import random
import socket
import threading
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import Self

from txn.clock import Clock, SystemClock
from txn.errors import StoreError, describe
from txn.locks.holding import Holding, Ways
from txn.locks.keeper import Broken, Create, Gone, Keeper, Remove
from txn.locks.manager import Lock, LockDenied, Waiting
from txn.locks.nodes import KINDS, Denied, Folders, Line, Node, Note, first_denied, parsed, part_of
from txn.locks.patience import Patience
from txn.locks.requests import LockRequest, Path, in_order

TRIES = 20
AT_ONCE = 250  # nodes in a transaction: ZooKeeper takes a megabyte at most
PAUSE_MS = 20
TIDIED_AT_ONCE = 1_000


class _Ticket:
    """One request on its way: what is told in every node of it, and the names of its nodes."""

    def __init__(self, name: str, note: Note) -> None:
        self.name = name
        self.note = note
        self.nodes: dict[Path, str] = {}
        self.tried = False


class ZooKeeperManager:
    """Locks under one base path, held by one session."""

    def __init__(
        self,
        hosts: str,
        base: str = "/hbase-txn/locks",
        *,
        name: str | None = None,
        session_ms: int = 10_000,
        waiting: Waiting | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._folders = Folders("/" + base.strip("/"))
        self._owner = name or getpass.getuser()
        self._host = socket.gethostname()
        self._waiting = waiting or Waiting()
        self._clock = clock or SystemClock()
        self._chance = chance or random.SystemRandom()
        self._session_ms = session_ms
        self._owed: dict[str, tuple[Path, ...]] = {}
        self._used: frozenset[Path] = frozenset()
        self._keeper = Keeper(hosts, session_ms, self._clock, self._sweep)

    def hold(
        self,
        requests: Iterable[LockRequest],
        *,
        query: str = "",
        explicit: bool = False,
        waiting: Waiting | None = None,
    ) -> Holding:
        """Take all or none, each object in the order of its path."""
        waiting = waiting or self._waiting
        wanted = in_order(requests) if waiting.enabled else ()
        patience = Patience(waiting, self._clock, self._chance)
        ticket = self._ticket(query)
        self._sweep()
        try:
            while isinstance(found := self._attempt(ticket, wanted, waiting, explicit), Denied):
                pause_ms = patience.next_pause_ms()
                if pause_ms is None:
                    raise LockDenied(found.wanted, self._seen(found))
                self._wait_for(found, pause_ms, patience)
                self._sweep()
        except BaseException:
            self._owed[ticket.name] = tuple(each.path for each in wanted)
            self._sweep()
            raise
        return found

    def locks(self, within: Path | None = None) -> list[Lock]:
        """Return who holds and who waits."""
        found: list[Lock] = []
        self._walk(within, found)
        return sorted(found, key=lambda lock: lock.request.path)

    def release(self, wanted: Path, *, force: bool = False) -> int:
        """Give back explicit locks on exactly this object, with those of its parents that no other
        object of the same request needs; one that its own request needs stays."""
        count = 0
        line = self._line(wanted)
        for node, note in self._noted(wanted, line):
            mine = force or (note.owner, note.host) == (self._owner, self._host)
            if note.explicit and mine and not self._needed(wanted, node.ticket):
                self._remove([self._folders.of(wanted) + f"/{node.name}"], TRIES)
                self._release_parents(wanted, node.ticket)
                count += 1
        return count

    def close(self) -> None:
        """End the session, which gives back all that is not explicit."""
        self._tidy()
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------- one attempt

    def _attempt(
        self, ticket: _Ticket, wanted: Sequence[LockRequest], waiting: Waiting, explicit: bool
    ) -> Holding | Denied:
        """Stand in the line of every object, unless one is seen to be denied.

        Where one is denied give back the others. In a fair line its node stays as a place, with the
        places before it in the order of objects: so whoever has a place waits for nobody whose
        place comes earlier, and places cannot deny each other in a circle.
        """
        fair = waiting.fairness == "fair"
        objects = [request.path for request in wanted]
        for _ in range(TRIES):
            losses = self._keeper.losses
            if ticket.tried and (denied := self._denied(ticket, wanted)):
                self._enter(ticket, [denied.wanted] if fair else [])
                return self._stand_back(ticket, denied, fair)
            ticket.tried = True
            places = set(ticket.nodes)
            self._enter(ticket, wanted)
            if denied := self._denied(ticket, wanted):
                return self._stand_back(ticket, denied, fair, places)
            made = self._keeper.there(self._nodes(ticket, ticket.nodes))
            if len(ticket.nodes) < len(objects) or None in made or self._keeper.losses != losses:
                continue  # a session has ended, and with it some of our nodes
            tokens = {at: token for at, token in zip(ticket.nodes, made, strict=True) if token}
            if not explicit or self._made_to_stay(ticket, tokens):
                return self._holding(ticket, tuple(wanted), tokens, losses, explicit)
        raise StoreError(describe("our nodes in ZooKeeper keep going away", wanted=str(wanted[0])))

    def _denied(self, ticket: _Ticket, wanted: Sequence[LockRequest]) -> Denied | None:
        objects = [request.path for request in wanted]
        lines = dict(zip(objects, self._lines(objects), strict=True))
        self._note_nodes(ticket, lines)
        return first_denied(lines, ticket.name, wanted)

    def _stand_back(
        self, ticket: _Ticket, denied: Denied, fair: bool, places: Collection[Path] | None = None
    ) -> Denied:
        """Keep the place at the denied object and the places before it, or none."""
        at = denied.wanted.path
        earlier = [each for each in (ticket.nodes if places is None else places) if each <= at]
        kept = {at, *earlier} if fair else set()
        self._leave(ticket, [each for each in ticket.nodes if each not in kept], TRIES)
        return denied

    def _enter(self, ticket: _Ticket, wanted: Sequence[LockRequest]) -> None:
        wanted = [each for each in wanted if each.path not in ticket.nodes]
        for first in range(0, len(wanted), AT_ONCE):
            batch = wanted[first : first + AT_ONCE]
            names = self._make(ticket, batch)
            ticket.nodes.update(zip([each.path for each in batch], names, strict=True))

    def _make(self, ticket: _Ticket, wanted: Sequence[LockRequest]) -> list[str]:
        """Make a node for each object, all or none of them; return their names."""
        data = ticket.note.encoded()
        prefixes = [
            f"{self._folders.of(each.path)}/{KINDS[each.mode]}{ticket.name}-" for each in wanted
        ]
        steps = [Create(prefix, data, ephemeral=True, sequence=True) for prefix in prefixes]
        for tries in range(TRIES):
            try:
                return [at.rpartition("/")[2] for at in self._keeper.change(steps)]
            except Gone:
                self._keeper.make_folders(self._folders.all([each.path for each in wanted]))
            except Broken:
                # They may have been made: to make others would be to wait behind ourselves.
                self._keeper.sync(self._folders.base)
                mine = [_first(line, ticket.name) for line in self._lines(e.path for e in wanted)]
                if None not in mine:
                    return [node.name for node in mine if node is not None]
                self._clock.sleep_ms(PAUSE_MS << min(tries, 5))
        raise StoreError(describe("cannot make nodes in ZooKeeper", at=prefixes[0]))

    def _note_nodes(self, ticket: _Ticket, lines: dict[Path, Line]) -> None:
        """Note our node in each line, in their order, and see to it that it is the only one."""
        ticket.nodes = {}
        for at, line in lines.items():
            mine = [node.name for node in line if node.ticket == ticket.name]
            if mine:
                ticket.nodes[at] = mine[0]
            if mine[1:]:
                self._remove([f"{self._folders.of(at)}/{name}" for name in mine[1:]], TRIES)

    def _made_to_stay(self, ticket: _Ticket, tokens: dict[Path, int]) -> bool:
        """Put a persistent node of the same name, and so of the same place in the line, where each
        of ours is; return False if one is gone. Until then a place ends with its session."""
        todo = list(tokens)
        for first in range(0, len(todo), AT_ONCE // 2):
            batch = todo[first : first + AT_ONCE // 2]
            nodes = self._nodes(ticket, batch)
            steps: list[Create | Remove] = []
            for at, node in zip(batch, nodes, strict=True):
                data = ticket.note._replace(explicit=True, token=tokens[at]).encoded()
                steps += [Remove(node), Create(node, data, ephemeral=False, sequence=False)]
            try:
                self._keeper.change(steps)
            except Gone:
                return False
            except Broken:
                self._keeper.sync(self._folders.base)
                found = self._keeper.about(nodes)
                if not all(each and Note.decoded(each.data).explicit for each in found):
                    return False
        return True

    def _wait_for(self, denied: Denied, pause_ms: int, patience: Patience) -> None:
        """Wait for the last of those before us to go, but no longer than this."""
        gone = threading.Event()
        at = f"{self._folders.of(denied.wanted.path)}/{denied.before[-1].name}"
        there = self._keeper.watch(at, lambda event: gone.set())
        if not there or gone.wait(pause_ms / 1000):
            patience.woken()

    def _holding(
        self,
        ticket: _Ticket,
        wanted: tuple[LockRequest, ...],
        tokens: dict[Path, int],
        losses: int,
        explicit: bool,
    ) -> Holding:
        nodes = self._nodes(ticket, list(tokens))

        def lost() -> bool:
            return bool(nodes) and not explicit and self._keeper.lost_since(losses)

        def there() -> bool:
            return all(self._keeper.there(nodes, self._session_ms))

        def give_back() -> None:
            try:
                self._leave(ticket, list(tokens), self._waiting.unlock_retries)
                self._tidy_later(tokens)
            except StoreError:
                self._owed[ticket.name] = tuple(tokens)
                raise

        return Holding(wanted, tokens, Ways(lost, there, give_back))

    # -------------------------------------------------------------------------- giving back

    def _leave(self, ticket: _Ticket, objects: Sequence[Path], retries: int) -> None:
        nodes = self._nodes(ticket, objects)
        for first in range(0, len(nodes), AT_ONCE):
            self._remove(nodes[first : first + AT_ONCE], retries)
        for each in objects:
            del ticket.nodes[each]

    def _remove(self, nodes: Sequence[str], retries: int) -> None:
        """Delete all of the nodes that are there."""
        broken = 0
        for _ in range(TRIES + retries):
            if not nodes:
                return
            try:
                self._keeper.change([Remove(at) for at in nodes])
            except Gone:
                made = self._keeper.there(nodes)
                nodes = [at for at, token in zip(nodes, made, strict=True) if token]
            except Broken:
                broken += 1
                if broken > retries:
                    raise
                self._clock.sleep_ms(PAUSE_MS << min(broken, 5))
            else:
                return
        raise StoreError(describe("cannot delete nodes in ZooKeeper", at=nodes[0]))

    def _sweep(self) -> None:
        """Delete what could not be deleted, or may have been made by a request that has failed."""
        for ticket, objects in list(self._owed.items()):
            try:
                self._keeper.sync(self._folders.base)
                for at, line in zip(objects, self._lines(objects), strict=True):
                    folder = self._folders.of(at)
                    mine = [f"{folder}/{node.name}" for node in line if node.ticket == ticket]
                    self._remove(mine, 0)
            except StoreError:
                return  # at the next request, or when the connection is back
            self._owed.pop(ticket, None)
            self._tidy_later(objects)

    def _tidy_later(self, objects: Iterable[Path]) -> None:
        """Delete folders that are empty, but not each time: most are soon needed again."""
        self._used = self._used.union(objects)  # not changed in place: threads share it
        if len(self._used) >= TIDIED_AT_ONCE:
            self._tidy()

    def _tidy(self) -> None:
        used, self._used = self._used, frozenset()
        self._keeper.tidy(self._folders.tidied(used))

    def _release_parents(self, wanted: Path, ticket: str) -> None:
        for parent in reversed(wanted.parents):
            if not self._needed(parent, ticket):
                mine = [node for node in self._line(parent) if node.ticket == ticket]
                self._remove([f"{self._folders.of(parent)}/{node.name}" for node in mine], TRIES)
        self._keeper.tidy(self._folders.tidied([*wanted.parents, wanted]))

    def _needed(self, parent: Path, ticket: str) -> bool:
        """Whether the ticket has a node below this object."""
        names = self._keeper.children(self._folders.of(parent))
        for name in (name for name in names if parsed(name) is None):
            child = Path((*parent.parts, part_of(name)))
            if _first(self._line(child), ticket) or self._needed(child, ticket):
                return True
        return False

    # ------------------------------------------------------------------------------ looking

    def _walk(self, within: Path | None, found: list[Lock]) -> None:
        parts = within.parts if within else ()
        names = self._keeper.children(self._folders.of(within))
        for name in names:
            if parsed(name) is None:
                self._walk(Path((*parts, part_of(name))), found)
        if within is not None:
            line = sorted(node for node in map(parsed, names) if node)
            found += [_lock(within, node, note, line) for node, note in self._noted(within, line)]

    def _seen(self, denied: Denied) -> list[Lock]:
        at, tickets = denied.wanted.path, {node.ticket for node in denied.before}
        line = self._line(at)
        noted = self._noted(at, line)
        return [_lock(at, node, note, line) for node, note in noted if node.ticket in tickets]

    def _noted(self, at: Path, line: Line) -> list[tuple[Node, Note]]:
        """Return the nodes of a line that are there yet, with what they tell."""
        folder = self._folders.of(at)
        found = self._keeper.about([f"{folder}/{node.name}" for node in line])
        return [
            (node, Note.decoded(about.data, about.made_in))
            for node, about in zip(line, found, strict=True)
            if about is not None
        ]

    def _line(self, wanted: Path) -> Line:
        (line,) = self._lines([wanted])
        return line

    def _lines(self, objects: Iterable[Path]) -> list[Line]:
        found = self._keeper.all_children([self._folders.of(at) for at in objects])
        return [sorted(node for node in map(parsed, names) if node) for names in found]

    def _nodes(self, ticket: _Ticket, objects: Iterable[Path]) -> list[str]:
        return [f"{self._folders.of(at)}/{ticket.nodes[at]}" for at in objects]

    def _ticket(self, query: str) -> _Ticket:
        note = Note(self._owner, self._host, query, self._clock.wall_ms())
        return _Ticket(f"{self._chance.getrandbits(128):032x}", note)


def _first(line: Line, ticket: str) -> Node | None:
    return next((node for node in line if node.ticket == ticket), None)


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
