"""The lock manager: what is the same wherever locks are kept, over a small backend.

A request is for all of its objects or none of them. What is held is lost when its session or its
lease ends; then the holder is told, and must stop. A fencing token grows with every exclusive
grant of an object, so that whatever is locked can refuse an owner that lost the lock unawares.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, Self

from txn.backoff import Backoff
from txn.clock import Clock
from txn.errors import CorruptRowError, InvalidRequestError, TxnError
from txn.locks.held import Held, LockLost
from txn.locks.model import Lock, LockDenied, Owner, Waiting, login_name, waiting_or_default
from txn.locks.queue import Denial, RetrySchedule
from txn.locks.requests import LockRequest, Path, as_path, in_order

UNLOCKING = Backoff(first_ms=20, longest_ms=640)


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request on its way. name: 32 hexadecimal digits, by which its entries are found again."""

    name: str
    owner: Owner
    since_ms: int
    explicit: bool


class Entry(NamedTuple):
    """A lock in a queue, and the ticket that it belongs to."""

    ticket: str
    lock: Lock


class Grant(NamedTuple):
    """What a request was granted. is_lost: costs nothing. are_there: asks the server."""

    tokens: Mapping[Path, int]
    is_lost: Callable[[], bool]
    are_there: Callable[[], bool]
    give_back: Callable[[], None]


class SessionEnded(LockLost):
    """Others took us for dead while we waited; nothing was held."""


class LockAttempt(Protocol):
    """A request that asks for its objects, until it is granted or gives up."""

    def acquire(self, schedule: RetrySchedule) -> Grant | Denial:
        """Take all objects or none. A denied request keeps its places if the queues are fair."""

    def wait(self, denial: Denial, pause_ms: int, schedule: RetrySchedule) -> None:
        """Wait for so long, or until the queue moves."""


class LockBackend(Protocol):
    """Where queues are kept, and the session of this process. Safe to share between threads."""

    clock: Clock
    rng: random.Random
    first_poll_ms: int | None
    """How soon a denied request asks again; None if the backend notifies of changes."""

    on_contact: Callable[[], None]
    """Called now and then while the backend can be reached, so that what failed is done."""

    def begin(self, ticket: Ticket, wanted: Sequence[LockRequest]) -> LockAttempt:
        """Begin a request, in a session that lives."""

    def scan(self, within: Path | None) -> Iterator[Entry]:
        """Yield the entries of an object and of what lies in it, each queue in its order; without
        those of ended sessions."""

    def list_locks(self, denial: Denial) -> Sequence[Lock]:
        """Return the locks that deny a request."""

    def remove(
        self,
        ticket: str,
        objects: Sequence[Path],
        *,
        is_unsure: bool = False,
        is_owed: bool = False,
    ) -> None:
        """Remove a ticket's entries from the queues of these objects. is_unsure: an attempt of the
        ticket may still be under way, and must not take effect afterwards. is_owed: it is done
        between two heartbeats, so it must end in a part of the lease."""

    def close(self) -> None:
        """End the session, and with it its locks; explicit ones stay."""


class _Owed(NamedTuple):
    """Entries that are to be removed; see `LockBackend.remove`."""

    objects: tuple[Path, ...]
    is_unsure: bool


class LockManager:
    """Grants locks. Safe to share between threads."""

    def __init__(
        self, backend: LockBackend, *, name: str | None = None, waiting: Waiting | None = None
    ) -> None:
        self._backend = backend
        self._waiting = waiting_or_default(waiting)
        self._owner = Owner(check_owner_name(name), socket.gethostname())
        self._owed: dict[str, _Owed] = {}
        backend.on_contact = self._sweep

    def hold(
        self,
        requests: Iterable[LockRequest] | LockRequest,
        *,
        query: str = "",
        explicit: bool = False,
        waiting: Waiting | None = None,
    ) -> Held:
        """Take all of the requests and their parents, or none: LockDenied names who has them."""
        waiting = waiting_or_default(self._waiting if waiting is None else waiting)
        if not isinstance(query, str):
            raise InvalidRequestError(f"a query is text: query={query!r}")
        wanted = in_order(requests) if waiting.enabled else ()
        clock, rng = self._backend.clock, self._backend.rng
        schedule = RetrySchedule(waiting, clock, rng, self._backend.first_poll_ms)
        self._sweep()
        while True:
            owner = Owner(self._owner.name, self._owner.host, query)
            ticket = Ticket(f"{rng.getrandbits(128):032x}", owner, clock.wall_ms(), explicit)
            attempt = self._backend.begin(ticket, wanted)
            try:
                grant = self._acquire(attempt, schedule)
            except SessionEnded:
                # Nothing was held: begin again in a new session, at the end of the queue.
                if (pause_ms := schedule.next_pause_ms()) is None:
                    raise
                clock.sleep_ms(pause_ms)
            except BaseException as error:
                objects = tuple(each.path for each in wanted)
                self._owed[ticket.name] = _Owed(objects, not isinstance(error, LockDenied))
                self._sweep()
                raise
            else:
                return Held(
                    wanted,
                    grant.tokens,
                    is_lost=grant.is_lost,
                    are_there=grant.are_there,
                    release=partial(self._give_back, ticket.name, grant),
                )

    def locks(self, within: str | Path | None = None) -> list[Lock]:
        """Return held and awaited locks, in the order of the paths and of their arrival; only an
        object and what lies in it, if one is given."""
        found = self._backend.scan(None if within is None else as_path(within))
        return sorted((entry.lock for entry in found), key=lambda lock: lock.request.path)

    def release(self, wanted: str | Path, *, force: bool = False) -> int:
        """Give back explicit locks on exactly this object, of this owner or with `force` of all;
        return how many there were. Parents that no other object of the same request needs are given
        back with it; an object that its own request needs stays."""
        wanted = as_path(wanted)
        entries = list(self._backend.scan(Path(wanted.parts[:1])))
        count = 0
        for ticket, lock in entries:
            is_ours = (lock.owner.name, lock.owner.host) == (self._owner.name, self._owner.host)
            if lock.request.path != wanted or not lock.explicit or not (force or is_ours):
                continue
            held = {each.lock.request.path for each in entries if each.ticket == ticket}
            rest = held - {wanted, *wanted.parents}
            needed = {parent for at in rest for parent in at.parents}
            if wanted not in needed:
                released = [at for at in (*wanted.parents, wanted) if at not in needed]
                self._backend.remove(ticket, released)
                count += 1
        return count

    def close(self) -> None:
        """End the session; what it holds implicitly is given back."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _acquire(self, attempt: LockAttempt, schedule: RetrySchedule) -> Grant:
        blockers: tuple[object, ...] = ()
        while isinstance(found := attempt.acquire(schedule), Denial):
            if found.blockers != blockers:
                schedule.note_move()
            blockers = found.blockers
            pause_ms = schedule.next_pause_ms()
            if pause_ms is None:
                raise LockDenied(found.wanted, self._backend.list_locks(found))
            attempt.wait(found, pause_ms, schedule)
            self._sweep()
        return found

    def _give_back(self, ticket: str, grant: Grant) -> None:
        most = self._waiting.unlock_retries + 1
        for number in UNLOCKING.tries(self._backend.clock, self._backend.rng, most=most):
            try:
                return grant.give_back()
            except TxnError:
                if number == most:
                    self._owed[ticket] = _Owed(tuple(grant.tokens), is_unsure=False)
                    raise
        return None

    def _sweep(self) -> None:
        """Remove entries that could not be removed, or that may yet be granted to a request that
        failed. What cannot be done now is done at the next contact; it ends with the session."""
        for ticket, owed in list(self._owed.items()):
            try:
                self._backend.remove(ticket, owed.objects, is_unsure=owed.is_unsure, is_owed=True)
            except CorruptRowError:
                continue  # an odd row keeps no others; a request for its object is told of it
            except TxnError:
                return
            self._owed.pop(ticket, None)


def check_owner_name(name: str | None) -> str:
    """Return the name of an owner; that of the user, if none is given."""
    if not isinstance(name, str | None):
        raise InvalidRequestError(f"the name of an owner is text: name={name!r}")
    return name or login_name()
