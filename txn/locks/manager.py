"""The lock manager: the logic common to all backends, which keep the queues.

A request takes all of its objects or none. When its session or lease ends, the holder loses them,
is informed, and must stop. A fencing token grows with every exclusive grant of an object, so the
locked resource can reject an owner that lost its lock without noticing.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol, Self
from weakref import ref

from txn.arguments import check_calls
from txn.clock import Clock
from txn.errors import CorruptRowError, InvalidRequestError, TxnError
from txn.host.holds import Hold
from txn.host.owner import login_name
from txn.locks.held import Grant, Held, LockLost
from txn.locks.model import Lock, LockDenied, LockRequest, Owner, Path, Waiting, as_path, in_order
from txn.locks.queue import Denial, RetrySchedule
from txn.model import check_choice
from txn.policy import Backoff

UNLOCKING = Backoff(first_ms=20, longest_ms=640)


class Ticket(NamedTuple):
    """A request under way. name: 32 hexadecimal digits that identify its entries."""

    name: str
    owner: Owner
    since_ms: int
    explicit: bool


class SessionEnded(LockLost):
    """Our session was ended by others while we waited; nothing was held."""

    retryable = True


class LockAttempt(Protocol):
    """A request that asks for its objects until it is granted or gives up."""

    def acquire(self, schedule: RetrySchedule) -> Grant | Denial:
        """Take all objects or none. In fair queues a denied request keeps its places."""

    def wait(self, denial: Denial, pause_ms: int, schedule: RetrySchedule) -> None:
        """Wait for the pause, or until the queue moves."""


class Removal(NamedTuple):
    """The entries of a ticket, to be removed from the queues of these objects.

    is_unsure: an attempt of the ticket may still be under way and must not take effect later.
    is_owed: the call runs between two heartbeats, so it must take a fraction of the lease.
    """

    ticket: str
    objects: Sequence[Path]
    is_unsure: bool = False
    is_owed: bool = False


class LockBackend(Protocol):
    """The storage of queues, and the session of this process. Safe to share between threads."""

    clock: Clock
    rng: random.Random
    first_poll_ms: int | None
    """The first pause before a denied request asks again; None if the backend reports changes."""

    on_contact: Callable[[], None]
    """Called now and then while the backend can be reached, to finish failed work."""

    def begin(self, ticket: Ticket, wanted: Sequence[LockRequest]) -> LockAttempt:
        """Begin a request in a live session."""

    def scan(self, within: Path | None) -> Iterator[Lock]:
        """Yield the locks of an object and of all that it contains, each queue in its order,
        without those of ended sessions."""

    def list_locks(self, denial: Denial) -> Sequence[Lock]:
        """Return the locks that deny a request."""

    def remove(self, entries: Removal) -> None:
        """Remove entries from queues; some may be missing."""

    def close(self) -> None:
        """End the session and its locks; explicit locks stay."""


class _Asked(NamedTuple):
    """Entries of a request. This process must remove them once `hold` is free, because the request
    has ended, and nothing refers to `held`."""

    hold: Hold
    entries: Removal
    pid: int
    held: Callable[[], Held | None] = lambda: None

    @property
    def is_owed(self) -> bool:
        return not self.hold.locked() and self.held() is None and self.pid == os.getpid()


class LockManager:
    """Grants locks. Safe to share between threads."""

    @check_calls
    def __init__(
        self, backend: LockBackend, *, name: str | None = None, waiting: Waiting | None = None
    ) -> None:
        self._backend = backend
        self._waiting = waiting or Waiting()
        self._owner = Owner(name or login_name(), socket.gethostname())
        self._asked: dict[str, _Asked] = {}
        backend.on_contact = self._sweep

    def hold(
        self,
        requests: Iterable[LockRequest] | LockRequest,
        *,
        query: str = "",
        explicit: bool = False,
        waiting: Waiting | None = None,
    ) -> Held:
        """Take all of the requests and their parents, or none. LockDenied names the holders."""
        waiting = self._waiting if waiting is None else waiting
        if not (isinstance(query, str) and isinstance(waiting, Waiting)):
            raise InvalidRequestError(f"no text or Waiting: query={query!r} waiting={waiting!r}")
        check_choice("explicit", explicit, (True, False))
        wanted = in_order(requests) if waiting.enabled else ()
        clock, rng = self._backend.clock, self._backend.rng
        schedule = RetrySchedule(waiting, clock, rng, self._backend.first_poll_ms)
        self._sweep()
        owner = Owner(self._owner.name, self._owner.host, query)
        try:
            with (hold := Hold()):
                while True:
                    ticket = Ticket(
                        f"{rng.getrandbits(128):032x}", owner, clock.wall_ms(), explicit
                    )
                    try:
                        return self._ask(hold, ticket, wanted, schedule)
                    except SessionEnded:
                        self._asked.pop(ticket.name, None)
                        if (pause_ms := schedule.next_pause_ms()) is None:
                            raise
                        clock.sleep_ms(pause_ms)
        except BaseException:
            self._sweep()
            raise

    def _ask(
        self, hold: Hold, ticket: Ticket, wanted: tuple[LockRequest, ...], schedule: RetrySchedule
    ) -> Held:
        objects = tuple(each.path for each in wanted)
        asked = _Asked(hold, Removal(ticket.name, objects, is_unsure=True), os.getpid())
        attempt = self._backend.begin(ticket, wanted)
        self._asked[ticket.name] = asked
        try:
            grant = self._acquire(attempt, schedule)
        except LockDenied:
            self._asked[ticket.name] = asked._replace(entries=Removal(ticket.name, objects))
            raise
        asked = asked._replace(entries=Removal(ticket.name, tuple(grant.tokens)))
        give_back = partial(self._give_back, asked, grant)
        held = Held(wanted, grant._replace(give_back=give_back))
        if ticket.explicit or not wanted:
            del self._asked[ticket.name]
        else:
            self._asked[ticket.name] = asked._replace(held=ref(held))
        return held

    def locks(self, within: str | Path | None = None) -> list[Lock]:
        """Return held and awaited locks in path order, then in order of arrival. within: only an
        object and all that it contains."""
        found = self._backend.scan(None if within is None else as_path(within))
        return sorted(found, key=lambda lock: lock.request.path)

    @check_calls
    def release(self, wanted: str | Path, *, force: bool = False) -> int:
        """Release this owner's explicit locks on exactly this object, or with `force` those of all
        owners; return how many there were. Parents are released too unless another object of the
        same request needs them. If the object itself is such a parent, it stays."""
        wanted = as_path(wanted)
        us = (self._owner.name, self._owner.host)
        tickets = {
            lock.ticket
            for lock in self._backend.scan(wanted)
            if lock.request.path == wanted and lock.explicit
            if force or (lock.owner.name, lock.owner.host) == us
        }
        count = 0
        while tickets:
            # These requests are granted, and as a whole: unlike the scan that found them, one that
            # begins now shows all that they still hold.
            locks = list(self._backend.scan(Path(wanted.parts[:1])))
            again = set()
            for ticket in tickets:
                held = {each.request.path for each in locks if each.ticket == ticket}
                rest = held - {wanted, *wanted.parents}
                needed = {parent for at in rest for parent in at.parents}
                if wanted in needed:
                    continue
                released = [at for at in (*wanted.parents, wanted) if at not in needed]
                self._backend.remove(Removal(ticket, released))
                if wanted in held:
                    count += 1
                    if needed:
                        again.add(ticket)  # for the parents, if another client releases the rest
            tickets = again
        return count

    def close(self) -> None:
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

    def _give_back(self, asked: _Asked, grant: Grant) -> None:
        most = self._waiting.unlock_retries + 1
        for number in UNLOCKING.tries(self._backend.clock, self._backend.rng, most=most):
            try:
                grant.give_back()
                self._asked.pop(asked.entries.ticket, None)
                return
            except TxnError:
                if number == most:
                    self._asked[asked.entries.ticket] = asked
                    raise

    def _sweep(self) -> None:
        """Remove entries whose removal failed, that a failed request may still be granted, or that
        an interrupted thread has dropped. The next contact retries the rest."""
        for owed in [asked.entries for asked in list(self._asked.values()) if asked.is_owed]:
            try:
                self._backend.remove(owed._replace(is_owed=True))
            except CorruptRowError:
                continue  # a corrupt row delays no others; requests for its object raise the error
            except TxnError:
                return
            self._asked.pop(owed.ticket, None)
