"""Locks in ZooKeeper: a sequence node for each object under the object's path, by the usual recipe.

A shared lock is `read-<ticket>-<number>`, an exclusive one `write-<ticket>-<number>`. Shared is
denied by any lower `write-`, exclusive by anything lower. Nodes are ephemeral, so a session that
ends gives all of its locks back; those of an explicit lock become persistent when it is granted.
All nodes of a request are made in one transaction, and found again by their ticket if its reply is
lost. The fencing token is the transaction in which a node was made.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Self

from txn.backoff import Backoff
from txn.clock import Clock, SystemClock
from txn.errors import StoreError
from txn.locks.holding import Holding
from txn.locks.line import Denied, first_denied, wait_in_line
from txn.locks.manager import Lock, Waiting, check_hold, owner_name, waiting_or_default
from txn.locks.patience import Patience
from txn.locks.requests import LockRequest, Path, as_path
from txn.locks.zookeeper.ensemble import Credentials
from txn.locks.zookeeper.former_nodes import move_nodes
from txn.locks.zookeeper.keeper import Broken, Create, Gone, Keeper, RemoveNode
from txn.locks.zookeeper.nodes import KINDS, Folders, Line, Note, first_of, line_of
from txn.locks.zookeeper.view import View
from txn.model import check_whole

BASE = "/hbase-txn/locks"
TRIES = 20
AT_ONCE = 250  # nodes in a transaction: ZooKeeper takes a megabyte at most
MENDING = Backoff(first_ms=20, longest_ms=640)
TIDIED_AT_ONCE = 1_000
USED_UP = "ZooKeeper has counted to 2^31 here: delete the folder when nobody has locks in it"


class _Ticket:
    """One request on its way: what is told in every node of it, the names of its nodes, and, as far
    as that is known, the transactions in which they were made."""

    def __init__(self, name: str, note: Note) -> None:
        self.name = name
        self.note = note
        self.nodes: dict[Path, str] = {}
        self.made_in: dict[str, int] = {}
        self.tried = False


class ZooKeeperManager:
    """Locks under one base path, held by one session."""

    def __init__(
        self,
        hosts: str,
        base: str = BASE,
        *,
        credentials: Credentials = Credentials(),  # noqa: B008
        name: str | None = None,
        session_ms: int = 10_000,
        waiting: Waiting | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._folders = Folders("/" + base.strip("/"))
        self._owner = owner_name(name)
        self._host = socket.gethostname()
        self._waiting = waiting_or_default(waiting)
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        check_whole("session_ms", session_ms, 1)
        self._session_ms = session_ms
        self._owed: dict[str, tuple[Path, ...]] = {}
        self._used: frozenset[Path] = frozenset()
        self._keeper = Keeper(hosts, session_ms, self._clock, self._sweep, credentials)
        self._view = View(self._keeper, self._folders)
        try:
            move_nodes(self._keeper, self._folders)
        except BaseException:
            self._keeper.close()
            raise

    def hold(
        self,
        requests: Iterable[LockRequest] | LockRequest,
        *,
        query: str = "",
        explicit: bool = False,
        waiting: Waiting | None = None,
    ) -> Holding:
        """Take all or none, each object in the order of its path."""
        waiting = self._waiting if waiting is None else waiting
        wanted = check_hold(requests, query, waiting)
        patience = Patience(waiting, self._clock, self._rng)
        ticket = self._ticket(query)
        self._sweep()

        def wait(denied: Denied, pause_ms: int) -> None:
            self._wait_for(denied, pause_ms, patience)
            self._sweep()

        try:
            return wait_in_line(
                lambda: self._attempt(ticket, wanted, waiting, explicit),
                patience,
                wait,
                self._view.list_before,
            )
        except BaseException:
            self._owed[ticket.name] = tuple(each.path for each in wanted)
            self._sweep()
            raise

    def locks(self, within: str | Path | None = None) -> list[Lock]:
        """Return who holds and who waits."""
        inside = None if within is None else as_path(within)
        return sorted(self._view.within(inside), key=lambda lock: lock.request.path)

    def release(self, wanted: str | Path, *, force: bool = False) -> int:
        """Give back explicit locks on exactly this object, with those of its parents that no other
        object of the same request needs; one that its own request needs stays."""
        wanted, count = as_path(wanted), 0
        line = self._view.line(wanted)
        for node, note in self._view.read_notes(wanted, line):
            mine = force or (note.owner, note.host) == (self._owner, self._host)
            if note.explicit and mine and not self._view.is_needed(wanted, node.ticket):
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

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------- one attempt

    def _attempt(
        self, ticket: _Ticket, wanted: Sequence[LockRequest], waiting: Waiting, explicit: bool
    ) -> Holding | Denied:
        """Stand in the line of every object, unless one is seen to be denied.

        Where one is denied give back the others. In a fair line the places stay that `Denied.keeps`
        tells of.
        """
        fair = waiting.fairness == "fair"
        for _ in range(TRIES):
            losses = self._keeper.losses
            if ticket.tried and (denied := self._find_denied(ticket, wanted, self._lines(wanted))):
                if fair and denied.wanted.path not in ticket.nodes:
                    self._make(ticket, [denied.wanted])
                return self._stand_back(ticket, denied, fair)
            ticket.tried = True
            places = set(ticket.nodes)
            lines = self._enter(ticket, wanted)
            if denied := self._find_denied(ticket, wanted, lines):
                return self._stand_back(ticket, denied, fair, places)
            tokens = self._tokens(ticket)
            if len(tokens) < len(wanted) or self._keeper.losses != losses:
                continue  # a session has ended, and with it some of our nodes
            if not explicit or self._make_lasting(ticket, tokens):
                return self._holding(ticket, tuple(wanted), tokens, losses, explicit)
        raise StoreError("our nodes in ZooKeeper keep going away", wanted=str(wanted[0]))

    def _find_denied(
        self, ticket: _Ticket, wanted: Sequence[LockRequest], lines: dict[Path, Line]
    ) -> Denied | None:
        self._note_nodes(ticket, {each.path: lines[each.path] for each in wanted})
        return first_denied(lines, ticket.name, wanted)

    def _tokens(self, ticket: _Ticket) -> dict[Path, int]:
        """Return in which transaction our nodes were made, of those that are there."""
        nodes = dict(zip(ticket.nodes, self._nodes(ticket, ticket.nodes), strict=True))
        asked = [node for node in nodes.values() if node not in ticket.made_in]
        found = zip(asked, self._keeper.there(asked), strict=True)
        ticket.made_in |= {node: made_in for node, made_in in found if made_in is not None}
        return {at: ticket.made_in[node] for at, node in nodes.items() if node in ticket.made_in}

    def _stand_back(
        self, ticket: _Ticket, denied: Denied, fair: bool, places: Collection[Path] | None = None
    ) -> Denied:
        """Keep the places that a denied request keeps, of those given or all, and no others."""
        earlier = [at for at in (ticket.nodes if places is None else places) if denied.keeps(at)]
        kept = {denied.wanted.path, *earlier} if fair else set()
        self._leave(ticket, [each for each in ticket.nodes if each not in kept], TRIES)
        return denied

    def _enter(self, ticket: _Ticket, wanted: Sequence[LockRequest]) -> dict[Path, Line]:
        """Stand in the line of each object; return the lines, each as it was afterwards."""
        lines = self._lines([each for each in wanted if each.path in ticket.nodes])
        absent = [each for each in wanted if each.path not in ticket.nodes]
        for first in range(0, len(absent), AT_ONCE):
            lines |= self._make(ticket, absent[first : first + AT_ONCE])
        return lines

    def _make(self, ticket: _Ticket, wanted: Sequence[LockRequest]) -> dict[Path, Line]:
        """Make a node for each object, all or none of them; return the lines with them."""
        data = ticket.note.encode()
        folders = [self._folders.of(each.path) for each in wanted]
        steps = [
            Create(f"{folder}/{KINDS[each.mode]}{ticket.name}-", data, True, True)
            for folder, each in zip(folders, wanted, strict=True)
        ]
        for tries in range(TRIES):
            try:
                made = self._keeper.make(steps, folders)
            except Gone:
                self._keeper.make_folders(self._folders.all([each.path for each in wanted]))
            except Broken:
                # They may have been made: to make others would be to wait behind ourselves.
                self._keeper.sync(self._folders.base)
                lines = self._lines(wanted)
                if all(first_of(line, ticket.name) for line in lines.values()):
                    return lines
                self._clock.sleep_ms(MENDING.pause_ms(tries, self._rng))
            else:
                ticket.made_in |= dict.fromkeys(made.nodes, made.made_in)
                objects = [each.path for each in wanted]
                return dict(zip(objects, map(line_of, made.children), strict=True))
        raise StoreError("cannot make nodes in ZooKeeper", at=steps[0].at)

    def _note_nodes(self, ticket: _Ticket, lines: dict[Path, Line]) -> None:
        """Note our node in each line, in their order, and see to it that it is the only one."""
        ticket.nodes = {}
        for at, line in lines.items():
            mine = [node for node in line if node.ticket == ticket.name]
            if any(node.number < 0 for node in mine):
                raise StoreError(USED_UP, folder=self._folders.of(at))
            if mine:
                ticket.nodes[at] = mine[0].name
            if mine[1:]:
                self._remove([f"{self._folders.of(at)}/{node.name}" for node in mine[1:]], TRIES)

    def _make_lasting(self, ticket: _Ticket, tokens: dict[Path, int]) -> bool:
        """Put a persistent node of the same name, and so of the same place in the line, where each
        of ours is; return False if one is gone. Until then a place ends with its session."""
        todo = list(tokens)
        for first in range(0, len(todo), AT_ONCE // 2):
            batch = todo[first : first + AT_ONCE // 2]
            nodes = self._nodes(ticket, batch)
            steps: list[Create | RemoveNode] = []
            for at, node in zip(batch, nodes, strict=True):
                data = ticket.note._replace(explicit=True, token=tokens[at]).encode()
                steps += [RemoveNode(node), Create(node, data, ephemeral=False, sequence=False)]
            try:
                self._keeper.change(steps)
            except Gone:
                return False
            except Broken:
                self._keeper.sync(self._folders.base)
                found = self._keeper.about(nodes)
                if not all(each and Note.decode(each.data).explicit for each in found):
                    return False
        return True

    def _wait_for(self, denied: Denied, pause_ms: int, patience: Patience) -> None:
        """Wait for the last of those before us to go, but no longer than this."""
        gone = threading.Event()
        at = f"{self._folders.of(denied.wanted.path)}/{denied.before[-1].name}"
        there = self._keeper.watch(at, lambda event: gone.set())
        if not there or gone.wait(pause_ms / 1000):
            patience.note_wake()

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

        return Holding(wanted, tokens, is_lost=lost, are_there=there, give_back=give_back)

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
                self._keeper.change([RemoveNode(at) for at in nodes])
            except Gone:
                made = self._keeper.there(nodes)
                nodes = [at for at, token in zip(nodes, made, strict=True) if token]
            except Broken:
                broken += 1
                if broken > retries:
                    raise
                self._clock.sleep_ms(MENDING.pause_ms(broken, self._rng))
            else:
                return
        raise StoreError("cannot delete nodes in ZooKeeper", at=nodes[0])

    def _sweep(self) -> None:
        """Delete what could not be deleted, or may have been made by a request that has failed."""
        for ticket, objects in list(self._owed.items()):
            try:
                self._keeper.sync(self._folders.base)
                for at, line in self._view.lines(objects).items():
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
        self._keeper.tidy(self._folders.list_emptied(used))

    def _release_parents(self, wanted: Path, ticket: str) -> None:
        for parent in reversed(wanted.parents):
            if not self._view.is_needed(parent, ticket):
                mine = [node for node in self._view.line(parent) if node.ticket == ticket]
                self._remove([f"{self._folders.of(parent)}/{node.name}" for node in mine], TRIES)
        self._keeper.tidy(self._folders.list_emptied([*wanted.parents, wanted]))

    def _lines(self, wanted: Sequence[LockRequest]) -> dict[Path, Line]:
        return self._view.lines([each.path for each in wanted])

    def _nodes(self, ticket: _Ticket, objects: Iterable[Path]) -> list[str]:
        return [f"{self._folders.of(at)}/{ticket.nodes[at]}" for at in objects]

    def _ticket(self, query: str) -> _Ticket:
        note = Note(self._owner, self._host, query, self._clock.wall_ms())
        return _Ticket(f"{self._rng.getrandbits(128):032x}", note)
