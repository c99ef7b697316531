"""Locks in ZooKeeper: a sequence node for each object under the object's path, by the usual recipe.

A shared lock is `read-<ticket>-<number>`, an exclusive one `write-<ticket>-<number>`. Shared is
denied by any lower `write-`, exclusive by anything lower. The nodes are ephemeral, so a session
that ends gives all of its locks back; explicit ones are persistent and stay. A reply that is lost
is found again by the ticket. The fencing token is the transaction in which the node was created.
"""

from __future__ import annotations

import getpass
import json
import random
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    ConnectionLoss,
    KazooException,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry, RetryFailedError

from txn.clock import Clock, SystemClock
from txn.errors import StoreError, TxnError, describe
from txn.locks.manager import Lock, LockDenied, LockLost, Owner, Waiting
from txn.locks.nodes import KINDS, Node, folder_name, parsed, part_of
from txn.locks.patience import Patience
from txn.locks.requests import LockRequest, Path, in_order

T = TypeVar("T")
BROKEN = (ConnectionLoss, OperationTimeoutError, SessionExpiredError)
CREATE_TRIES = 20
CALL_WITHIN_S = 30


@dataclass(slots=True)
class _Ticket:
    """One request on its way: what is in every node of it, and its place in a line, if it waits."""

    name: str
    data: bytes
    explicit: bool
    nodes: dict[Path, str]
    place: Path | None = None


class _Denied(NamedTuple):
    wanted: LockRequest
    by: str
    before: tuple[Node, ...]


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
        self._base = "/" + base.strip("/")
        self._owner = name or getpass.getuser()
        self._host = socket.gethostname()
        self._waiting = waiting or Waiting()
        self._clock = clock or SystemClock()
        self._chance = chance or random.SystemRandom()
        self._held: set[ZooKeeperHeld] = set()
        self._guard = threading.Lock()
        self._client = KazooClient(hosts, timeout=session_ms / 1000)
        self._client.add_listener(self._session_changed)
        try:
            self._client.start(timeout=CALL_WITHIN_S)
        except (KazooTimeoutError, KazooException) as error:
            self._client.close()
            raise StoreError(
                describe("cannot connect to ZooKeeper", hosts=hosts, cause=str(error))
            ) from error

    def hold(
        self,
        requests: Iterable[LockRequest],
        *,
        query: str = "",
        explicit: bool = False,
        waiting: Waiting | None = None,
    ) -> ZooKeeperHeld:
        """Take all or none, each object in the order of its path."""
        waiting = waiting or self._waiting
        wanted = in_order(requests) if waiting.enabled else ()
        patience = Patience(waiting, self._clock, self._chance)
        ticket = self._ticket(query, explicit)
        try:
            while (denied := self._attempt(ticket, wanted, waiting)) is not None:
                pause_ms = patience.next_pause_ms()
                if pause_ms is None:
                    raise LockDenied(denied.wanted, self._seen(denied))
                self._wait_for(denied, pause_ms)
            return self._granted(ticket, wanted)
        except BaseException:
            self._give_back(ticket, [*ticket.nodes], waiting.unlock_retries)
            raise

    def locks(self, within: Path | None = None) -> list[Lock]:
        """Return who holds and who waits."""
        found: list[Lock] = []
        self._walk(within, found)
        return sorted(found, key=lambda lock: (lock.request.path, lock.token))

    def release(self, wanted: Path, *, force: bool = False) -> int:
        """Give back explicit locks on exactly this object, with those of its parents that no other
        object of the same request needs."""
        count = 0
        for node in self._line(wanted):
            at = f"{self._folder(wanted)}/{node.name}"
            about = self._about(at)
            if about is None or not about["explicit"]:
                continue
            if not force and (about["owner"], about["host"]) != (self._owner, self._host):
                continue
            self._delete(at)
            count += 1
            for parent in reversed(wanted.parents):
                if not self._needed(parent, node.ticket):
                    for above in self._line(parent):
                        if above.ticket == node.ticket:
                            self._delete(f"{self._folder(parent)}/{above.name}")
        return count

    def close(self) -> None:
        """End the session, which gives back all that is not explicit."""
        self._client.remove_listener(self._session_changed)
        for held in self._all_held():
            held.tell_lost()
        self._client.stop()
        self._client.close()

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
        self, ticket: _Ticket, wanted: Sequence[LockRequest], waiting: Waiting
    ) -> _Denied | None:
        """Take the objects in their order. Where one is denied give back the others; in a fair
        line its node stays as the place of this request, and those who come later wait behind."""
        for request in wanted:
            line, mine = self._enter(ticket, request)
            before = [node for node in line if node.number < mine.number]
            deniers = tuple(node for node in before if not request.mode.allows(node.mode))
            if deniers:
                fair = waiting.fairness == "fair"
                kept = {request.path} if fair else set()
                gone = [each for each in ticket.nodes if each not in kept]
                self._give_back(ticket, gone, waiting.unlock_retries)
                return _Denied(request, self._folder(request.path), deniers)
        return None

    def _enter(self, ticket: _Ticket, request: LockRequest) -> tuple[list[Node], Node]:
        """Return the line at an object, and our node in it, which is made where there is none."""
        for _ in range(CREATE_TRIES):
            line = self._line(request.path) if request.path in ticket.nodes else []
            mine = next((node for node in line if node.ticket == ticket.name), None)
            if mine is not None:
                return line, mine
            at = self._create(ticket, request)
            ticket.nodes[request.path] = at.rpartition("/")[2]
            line = self._line(request.path)
            mine = next((node for node in line if node.ticket == ticket.name), None)
            if mine is not None:
                return line, mine
        raise StoreError(describe("our node in ZooKeeper keeps going away", wanted=str(request)))

    def _create(self, ticket: _Ticket, request: LockRequest) -> str:
        prefix = f"{self._folder(request.path)}/{KINDS[request.mode]}{ticket.name}-"
        for tries in range(CREATE_TRIES):
            try:
                made: str = self._client.create(
                    prefix,
                    ticket.data,
                    ephemeral=not ticket.explicit,
                    sequence=True,
                    makepath=True,
                )
                return made
            except NoNodeError:
                continue  # somebody has just tidied the empty folder away
            except BROKEN:
                # It may have been made: to make another one would be to wait behind oneself.
                for node in self._line(request.path):
                    if node.ticket == ticket.name:
                        return f"{self._folder(request.path)}/{node.name}"
                self._clock.sleep_ms(10 << min(tries, 6))
            except KazooException as error:
                raise _failure("cannot make a node", error) from error
        raise StoreError(describe("cannot make a node in ZooKeeper", at=prefix))

    def _wait_for(self, denied: _Denied, pause_ms: int) -> None:
        """Wait for the last of those before us to go, but no longer than this."""
        gone = threading.Event()
        at = f"{denied.by}/{denied.before[-1].name}"
        there = self._call(partial(self._client.exists, at, watch=lambda event: gone.set()))
        if there is not None:
            gone.wait(pause_ms / 1000)

    def _granted(self, ticket: _Ticket, wanted: Sequence[LockRequest]) -> ZooKeeperHeld:
        tokens: dict[Path, int] = {}
        for request in wanted:
            stat = self._call(partial(self._client.exists, self._at(ticket, request.path)))
            if stat is None:
                raise LockLost(describe("lost while the others were taken", lock=str(request)))
            tokens[request.path] = stat.czxid
        held = ZooKeeperHeld(self, ticket, tuple(wanted), tokens)
        with self._guard:
            self._held.add(held)
        return held

    # --------------------------------------------------------------------------- for holders

    def still_there(self, ticket: _Ticket, tokens: Mapping[Path, int]) -> bool:
        """Whether the server has all of the nodes; it is asked, in one go."""
        asked = [
            (self._client.exists_async(self._at(ticket, each)), token)
            for each, token in tokens.items()
        ]
        try:
            stats = [(answer.get(timeout=CALL_WITHIN_S), token) for answer, token in asked]
        except (KazooException, KazooTimeoutError):
            return False
        return all(stat is not None and stat.czxid == token for stat, token in stats)

    def end(self, held: ZooKeeperHeld, ticket: _Ticket) -> None:
        """Give back what is held."""
        with self._guard:
            self._held.discard(held)
        self._give_back(ticket, [*ticket.nodes], self._waiting.unlock_retries)

    def _give_back(self, ticket: _Ticket, objects: Sequence[Path], retries: int) -> None:
        for each in reversed(objects):
            at = self._at(ticket, each)
            self._delete(at, retries)
            del ticket.nodes[each]

    def _session_changed(self, state: str) -> bool | None:
        if state != KazooState.LOST:
            return None
        for held in self._all_held():
            held.tell_lost()
        return None

    def _all_held(self) -> list[ZooKeeperHeld]:
        with self._guard:
            return list(self._held)

    # ------------------------------------------------------------------------------ looking

    def _walk(self, within: Path | None, found: list[Lock]) -> None:
        folder = self._base if within is None else self._folder(within)
        for name in self._children(folder):
            if parsed(name) is None:
                below = within.parts if within else ()
                self._walk(Path((*below, part_of(name))), found)
        if within is None:
            return
        line = self._line(within)
        for place, node in enumerate(line):
            at = f"{folder}/{node.name}"
            about = self._about(at)
            stat = self._call(partial(self._client.exists, at))
            if about is not None and stat is not None:
                ahead = line[:place]
                found.append(
                    Lock(
                        LockRequest(within, node.mode),
                        Owner(about["owner"], about["host"], about["query"]),
                        about["since_ms"],
                        all(node.mode.allows(each.mode) for each in ahead),
                        about["explicit"],
                        stat.czxid,
                    )
                )

    def _seen(self, denied: _Denied) -> list[Lock]:
        tickets = {node.ticket for node in denied.before}
        found: list[Lock] = []
        for node in self._line(denied.wanted.path):
            if node.ticket in tickets and (about := self._about(f"{denied.by}/{node.name}")):
                owner = Owner(about["owner"], about["host"], about["query"])
                request = LockRequest(denied.wanted.path, node.mode)
                found.append(Lock(request, owner, about["since_ms"], True, about["explicit"]))
        return found

    def _needed(self, parent: Path, ticket: str) -> bool:
        """Whether the ticket has a node below this object."""
        folder = self._folder(parent)
        below = [name for name in self._children(folder) if parsed(name) is None]
        for name in below:
            child = Path((*parent.parts, part_of(name)))
            if any(node.ticket == ticket for node in self._line(child)):
                return True
            if self._needed(child, ticket):
                return True
        return False

    def _line(self, wanted: Path) -> list[Node]:
        names = self._children(self._folder(wanted))
        return sorted(node for node in map(parsed, names) if node is not None)

    def _children(self, folder: str) -> list[str]:
        try:
            found: list[str] = self._call(partial(self._client.get_children, folder))
        except NoNodeError:
            return []
        return found

    def _about(self, at: str) -> dict[str, Any] | None:
        try:
            data, _ = self._call(partial(self._client.get, at))
        except NoNodeError:
            return None
        about: dict[str, Any] = json.loads(data)
        return about

    # ------------------------------------------------------------------------------ details

    def _ticket(self, query: str, explicit: bool) -> _Ticket:
        about = {
            "owner": self._owner,
            "host": self._host,
            "query": query,
            "since_ms": self._clock.wall_ms(),
            "explicit": explicit,
        }
        name = f"{self._chance.getrandbits(128):032x}"
        return _Ticket(name, json.dumps(about).encode(), explicit, {})

    def _folder(self, wanted: Path) -> str:
        return "/".join([self._base, *map(folder_name, wanted.parts)])

    def _at(self, ticket: _Ticket, each: Path) -> str:
        return f"{self._folder(each)}/{ticket.nodes[each]}"

    def _delete(self, at: str, retries: int = 10) -> None:
        """Delete a node, and its folders if that leaves them empty."""
        with suppress(NoNodeError):
            self._call(partial(self._client.delete, at), retries)
        folder = at.rpartition("/")[0]
        while len(folder) > len(self._base):
            try:
                self._client.delete(folder)
            except (NotEmptyError, NoNodeError, *BROKEN):
                return
            folder = folder.rpartition("/")[0]

    def _call(self, call: Callable[[], T], retries: int = 10) -> T:
        """Make a call that may be made twice, again while the connection breaks."""
        retry = KazooRetry(
            max_tries=retries,
            delay=0.05,
            max_delay=1.0,
            deadline=CALL_WITHIN_S,
            ignore_expire=True,
        )
        try:
            answer: T = retry(call)
        except NoNodeError:
            raise
        except (KazooException, KazooTimeoutError, RetryFailedError) as error:
            raise _failure("no answer", error) from error
        return answer


class ZooKeeperHeld:
    """Locks of one ticket."""

    def __init__(
        self,
        manager: ZooKeeperManager,
        ticket: _Ticket,
        requests: tuple[LockRequest, ...],
        tokens: Mapping[Path, int],
    ) -> None:
        self.requests = requests
        self.tokens = tokens
        self._manager = manager
        self._ticket = ticket
        self._lost = False
        self._released = False

    @property
    def lost(self) -> bool:
        """Whether the session is known to have ended; explicit locks survive that."""
        return self._lost

    def check(self) -> None:
        """Ask the server whether all nodes are there."""
        there = not self._released and not self._lost
        if not (there and self._manager.still_there(self._ticket, self.tokens)):
            raise LockLost(describe("locks are lost", locks=[str(each) for each in self.requests]))

    def tell_lost(self) -> None:
        """Note that the session has ended."""
        self._lost = self._lost or not self._ticket.explicit

    def release(self) -> None:
        """Give them back."""
        if not self._released:
            self._released = True
            self._manager.end(self, self._ticket)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _failure(message: str, error: Exception) -> TxnError:
    return StoreError(describe(f"ZooKeeper: {message}", cause=str(error) or type(error).__name__))
