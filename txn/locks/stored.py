"""Locks in the rows of any store, without ZooKeeper, changed by our own transactions.

An object's row contains its queue: granted requests, and waiting requests that keep a place. A
request is one transaction over all of its objects, so it is granted wholly or not at all.

The owner of implicit locks has a session: a row that it changes with each heartbeat. An observer
deletes a row that stays unchanged for a whole lease, by the observer's own clock. Entries of ended
sessions do not count.

object  = {"token": the last fencing token, "queue": [request, ..]}     JSON
session = {"count": of heartbeats, "lease_ms": how long one is good for}    JSON
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, NamedTuple, get_type_hints

from txn import errors
from txn.assertions import Exact, Some, Version
from txn.client.block import OptimisticTransaction
from txn.client.engine import Engine
from txn.clock import Clock, SystemClock
from txn.documents import check_types, parse_stored
from txn.locks.held import Grant, Heartbeat
from txn.locks.manager import Removal, SessionEnded, Ticket
from txn.locks.model import Lock, LockListing, LockRequest, Mode, Owner, Path, path
from txn.locks.queue import Denial, RetrySchedule, find_denial
from txn.model import Cell, Delete, Key, Mutation, Row, check_key, check_whole
from txn.protocol.context import Context, call_store
from txn.reading.scans import scan_rows
from txn.reading.snapshot import Snapshot
from txn.spans import Span

TABLE = "locks"
OBJECTS, COLUMN = "o", "queue"
"""The cell of an object's queue."""

SESSIONS, HEARTBEAT = "s", "heartbeat"
"""The cell of a session."""

TRY_WITHIN_MS = 30_000
SWEEPS_IN_LEASE = 6
FIRST_POLL_MS = 5
MOST_OBJECTS = 20_000
"""Most rows that are listed: an object keeps its row, with its token, when its queue is empty."""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """One request in a queue, granted or waiting. session: None if the lock survives it."""

    ticket: str
    mode: Mode
    session: str | None
    owner: str
    host: str
    query: str
    since_ms: int
    granted: bool
    token: int

    def as_lock(self, at: Path) -> Lock:
        owner, is_explicit = Owner(self.owner, self.host, self.query), self.session is None
        request = LockRequest(at, self.mode)
        return Lock(
            request, owner, self.since_ms, self.granted, is_explicit, self.token, self.ticket
        )


FIELDS = get_type_hints(QueuedRequest) | {"mode": str}
"""The types of a stored request's fields."""


class Queue(NamedTuple):
    """An object's row: the last fencing token, and its requests in order of arrival."""

    token: int = 0
    requests: tuple[QueuedRequest, ...] = ()

    def has(self, ticket: str) -> bool:
        return any(each.ticket == ticket for each in self.requests)

    def without(self, tickets: Collection[str]) -> Queue:
        return Queue(self.token, tuple(e for e in self.requests if e.ticket not in tickets))

    def encode(self) -> bytes:
        queue = [asdict(each) | {"mode": each.mode.value} for each in self.requests]
        return json.dumps({"token": self.token, "queue": queue}).encode()

    @classmethod
    def decode(cls, row: bytes, value: bytes | None) -> Queue:
        """Return the queue in an object's row; it is empty if the row is absent."""
        if value is None:
            return Queue()
        try:
            stored: dict[str, Any] = parse_stored(value)
            check_types(stored, {"token": int, "queue": list})
            return Queue(stored["token"], tuple(map(_decode_request, stored["queue"])))
        except (ValueError, TypeError) as error:
            raise errors.CorruptRowError("not a queue of locks", row=row) from error


def _decode_request(stored: dict[str, Any]) -> QueuedRequest:
    check_types(stored, FIELDS)
    if stored["session"] is not None:
        check_key(make_session_key(stored["session"], TABLE))
    return QueuedRequest(**(stored | {"mode": Mode(stored["mode"])}))


def _read_queues(rows: Iterable[Row], within: Path | None = None) -> Iterator[tuple[Path, Queue]]:
    """Yield the queues in the rows of a scan of their column: those of an object and within it."""
    for row in rows:
        try:
            at = path(row.row.decode())
        except ValueError as error:
            message = "not the row of an object that is locked"
            raise errors.CorruptRowError(message, row=row.row) from error
        if within is None or at == within or within in at.parents:
            for cell in row.cells.values():
                yield at, Queue.decode(row.row, cell.value)


class Session:
    """A row that shows that its owner lives, and the heartbeat that updates it."""

    def __init__(
        self, engine: Engine, key: Key, lease_ms: int, clock: Clock, renewed: Callable[[], None]
    ) -> None:
        self.key = key
        self._engine = engine
        self._lease_ms = lease_ms
        self._count = 0
        self.has_begun = False
        self.heartbeat = Heartbeat(
            "send heartbeat",
            self._renew,
            lease_ms / 1000,
            sure_ms=lease_ms,
            began_ms=clock.monotonic_ms(),
            clock=clock,
            renewed=renewed,
            on_event=engine.context.on_event,
        )

    def begin(self) -> None:
        self._engine.commit([Mutation(self.key, self._value())], [Version(self.key, None)])
        self.has_begun = True

    def end(self) -> None:
        """Delete the row, which frees all that the session holds. If the store cannot be reached,
        that happens when the lease ends."""
        self.heartbeat.ended = True
        self.heartbeat.stop()
        with suppress(errors.TxnError):
            self._engine.commit([Delete(self.key)])

    def _value(self) -> bytes:
        return json.dumps({"count": self._count, "lease_ms": self._lease_ms}).encode()

    def _renew(self) -> bool:
        self._count += 1
        try:
            self._engine.commit([Mutation(self.key, self._value())], [Some(self.key)])
        except errors.AssertionFailedError:
            return False
        return True


@dataclass(eq=False)
class Sessions:
    """The sessions of this process, and its observations of others."""

    _engine: Engine
    _table: str
    _lease_ms: int
    _clock: Clock
    _rng: random.Random
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _own: list[Session] = field(default_factory=list)
    _closed: bool = False
    _seen: dict[str, tuple[bytes, int]] = field(default_factory=dict)

    def open(self, renewed: Callable[[], None]) -> Session:
        with self._guard:
            if self._closed:
                raise errors.StoreClosedError("the lock manager was closed")
            own = self._own
            if not own or not own[-1].has_begun or own[-1].heartbeat.lost:
                key = make_session_key(f"{self._rng.getrandbits(128):032x}", self._table)
                session = Session(self._engine, key, self._lease_ms, self._clock, renewed)
                # known before it begins: `close` ends it, wherever this is interrupted
                own = self._own = [each for each in own if not each.heartbeat.ended] + [session]
                session.begin()
            own[-1].heartbeat.start()
            return own[-1]

    def close(self) -> None:
        with self._guard:
            self._closed = True
        while self._own:
            self._own[-1].end()  # again, if this is interrupted
            self._own.pop()

    def find_dead(self, names: Collection[str]) -> set[str]:
        """Return the sessions that have ended; end those that were silent for their whole lease."""
        keys = {name: make_session_key(name, self._table) for name in names}
        cells = self._engine.read(list(keys.values())) if keys else {}
        now_ms = self._clock.monotonic_ms()
        found = set()
        for name, key in keys.items():
            cell = cells[key]
            if cell is None or (self._is_silent(name, cell, now_ms) and self._end(key, cell)):
                found.add(name)
                self._seen.pop(name, None)
        return found

    def _is_silent(self, name: str, cell: Cell, now_ms: int) -> bool:
        value, since_ms = self._seen.get(name, (b"", now_ms))
        if value != cell.value:
            self._seen[name] = (cell.value, now_ms)
            return False
        return now_ms - since_ms >= _read_lease_ms(name, cell)

    def _end(self, key: Key, cell: Cell) -> bool:
        try:
            self._engine.commit([Delete(key)], [Exact(key, cell.value)])
        except errors.AbortedError:
            return False  # it lives, or another observer is ending it
        return True


def make_session_key(name: str, table: str | bytes) -> Key:
    """Return the cell that a session changes with each heartbeat."""
    return Key(name, SESSIONS, HEARTBEAT, table)


def _read_lease_ms(name: str, cell: Cell) -> int:
    try:
        stored = parse_stored(cell.value)
        check_types(stored, {"lease_ms": int})
        return int(stored["lease_ms"])
    except ValueError as error:
        raise errors.CorruptRowError("a lock session does not decode", row=name.encode()) from error


class StoredQueues:
    """The queues in one table of a store. owns_engine: close the engine with them."""

    first_poll_ms: int | None = FIRST_POLL_MS

    def __init__(
        self,
        engine: Engine,
        *,
        table: str = TABLE,
        lease_ms: int = 10_000,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        owns_engine: bool = False,
    ) -> None:
        self.clock = clock or SystemClock()
        self.rng = rng or random.SystemRandom()
        self.on_contact: Callable[[], None] = lambda: None
        check_whole("lease_ms", lease_ms, 1)
        self.engine = engine
        self.sessions = Sessions(engine, table, lease_ms, self.clock, self.rng)
        self._owns_engine = owns_engine
        self._table = table
        self._lease_ms = lease_ms
        engine.ensure_table(table, [OBJECTS, SESSIONS])

    def begin(self, ticket: Ticket, wanted: Sequence[LockRequest]) -> _Attempt:
        session = self.sessions.open(self.on_contact) if wanted else None
        return _Attempt(self, ticket, wanted, session)

    def scan(self, within: Path | None) -> Iterator[Lock]:
        prefix = None if within is None else str(within)
        rows = self.engine.scan(self._table, prefix=prefix, columns=[(OBJECTS, COLUMN)])
        queues = dict(_read_queues(rows, within))
        dead = self._find_dead(queues.values())
        for at, queue in queues.items():
            yield from (each.as_lock(at) for each in queue.requests if each.session not in dead)

    def list_locks(self, denial: Denial) -> list[Lock]:
        return [each.as_lock(denial.wanted.path) for each in denial.blockers]

    def remove(self, entries: Removal) -> None:
        """Remove a ticket's entries. If one of its transactions may be under way, write every
        queue: that transaction has then committed before, or fails."""
        ticket = entries.ticket

        def work(t: OptimisticTransaction) -> None:
            for at, queue in self.read(t, entries.objects).items():
                if entries.is_unsure or queue.has(ticket):
                    t.put(self.key(at), queue.without({ticket}).encode())

        deadline_ms = self._lease_ms // SWEEPS_IN_LEASE if entries.is_owed else TRY_WITHIN_MS
        self.engine.run(work, deadline_ms=deadline_ms)

    def close(self) -> None:
        self.sessions.close()
        if self._owns_engine:
            self.engine.close()

    def key(self, at: Path) -> Key:
        return Key(str(at), OBJECTS, COLUMN, self._table)

    def read(self, t: OptimisticTransaction, objects: Collection[Path]) -> dict[Path, Queue]:
        keys = {at: self.key(at) for at in objects}
        values = t.get_many(list(keys.values()))
        return {at: Queue.decode(key.row, values[key]) for at, key in keys.items()}

    def read_alive(self, t: OptimisticTransaction, objects: Collection[Path]) -> dict[Path, Queue]:
        queues = self.read(t, objects)
        dead = self._find_dead(queues.values())
        gone = {e.ticket for queue in queues.values() for e in queue.requests if e.session in dead}
        return {at: queue.without(gone) for at, queue in queues.items()}

    def _find_dead(self, queues: Iterable[Queue]) -> set[str]:
        named = {each.session for queue in queues for each in queue.requests}
        return self.sessions.find_dead({name for name in named if name is not None})


@dataclass(eq=False)
class _Attempt:
    _queues: StoredQueues
    _ticket: Ticket
    _wanted: Sequence[LockRequest]
    _session: Session | None

    def acquire(self, schedule: RetrySchedule) -> Grant | Denial:
        """Take all objects or none, in one transaction; retry conflicts until time is over."""
        denial: Denial | None = None
        is_first = True

        def work(t: OptimisticTransaction) -> Grant | Denial:
            nonlocal denial, is_first
            if not is_first and schedule.is_over:
                return denial or Denial(self._wanted[0], ())
            is_first = False
            queues = self._queues.read_alive(t, [request.path for request in self._wanted])
            is_fair = schedule.waiting.fairness == "fair"
            queued = {at: queue.requests for at, queue in queues.items()}
            denial = find_denial(queued, self._ticket.name, self._wanted)
            if denial is not None:
                self._put(t, self._keep_places(queues, denial, is_fair))
                return denial
            granted = {each.path: self._grant(queues[each.path], each) for each in self._wanted}
            self._put(t, granted)
            return self._make_grant({at: queue.token for at, queue in granted.items()})

        try:
            deadline_ms = max(schedule.left_ms or 0, TRY_WITHIN_MS)
            return self._queues.engine.run(work, deadline_ms=deadline_ms)
        except errors.DeadlineError:
            if schedule.left_ms is None:
                raise
            return denial or Denial(self._wanted[0], ())
        except errors.AssertionFailedError as failed:
            if self._session is not None:
                self._session.heartbeat.ended = True
            raise SessionEnded("our session was ended while we waited") from failed

    def wait(self, denial: Denial, pause_ms: int, schedule: RetrySchedule) -> None:
        """Sleep for the pause: a store does not report changes."""
        self._queues.clock.sleep_ms(pause_ms)

    def _grant(self, queue: Queue, request: LockRequest) -> Queue:
        own = self._make_entry(request, granted=True, token=queue.token + 1)
        if not queue.has(own.ticket):
            return Queue(own.token, (*queue.requests, own))
        requests = (own if each.ticket == own.ticket else each for each in queue.requests)
        return Queue(own.token, tuple(requests))

    def _keep_places(
        self, queues: Mapping[Path, Queue], denial: Denial, is_fair: bool
    ) -> dict[Path, Queue]:
        """Return the changed queues; the request also takes a place at the denied object."""
        changed: dict[Path, Queue] = {}
        for at, queue in queues.items():
            if queue.has(self._ticket.name):
                if not (is_fair and denial.keeps(at)):
                    changed[at] = queue.without({self._ticket.name})
            elif is_fair and at == denial.wanted.path:
                own = self._make_entry(denial.wanted, granted=False, token=0)
                changed[at] = Queue(queue.token, (*queue.requests, own))
        return changed

    def _make_entry(self, request: LockRequest, *, granted: bool, token: int) -> QueuedRequest:
        ticket = self._ticket
        session = None if granted and ticket.explicit else self._session
        name = session.key.row.decode() if session else None
        by = ticket.owner
        asked = (ticket.name, request.mode, name, by.name, by.host, by.query, ticket.since_ms)
        return QueuedRequest(*asked, granted, token)

    def _put(self, t: OptimisticTransaction, changed: Mapping[Path, Queue]) -> None:
        """Write these queues, on condition that our session has not been ended."""
        for at, queue in changed.items():
            t.put(self._queues.key(at), queue.encode())
        if changed and self._session is not None:
            t.require(~Version(self._session.key, None))

    def _make_grant(self, tokens: Mapping[Path, int]) -> Grant:
        session = None if self._ticket.explicit else self._session
        return Grant(
            tokens,
            is_lost=lambda: session is not None and session.heartbeat.lost,
            are_there=lambda: self._are_granted(tokens, session),
            give_back=lambda: self._queues.remove(Removal(self._ticket.name, tuple(tokens))),
        )

    def _are_granted(self, tokens: Mapping[Path, int], session: Session | None) -> bool:
        """Return True if at one instant all of these are granted and the session lives."""
        keys = {at: self._queues.key(at) for at in tokens}
        alive = [session.key] if session else []
        cells = self._queues.engine.read([*keys.values(), *alive])

        def is_granted(at: Path) -> bool:
            cell = cells[keys[at]]
            queue = Queue.decode(keys[at].row, cell and cell.value)
            wanted = (self._ticket.name, tokens[at])
            return any((each.ticket, each.token) == wanted for each in queue.requests)

        return all(cells[key] is not None for key in alive) and all(map(is_granted, tokens))


class StoredLockReader:
    """Lists the locks in one table of a store, which may be missing, and writes nothing."""

    def __init__(self, context: Context, table: str = TABLE) -> None:
        self._context = context
        self._table = table.encode()

    @property
    def is_there(self) -> bool:
        """True if the table exists; the first request for a lock creates it."""
        families = self._context.store.describe(self._table) or {}
        return {OBJECTS.encode(), SESSIONS.encode()} <= families.keys()

    def list_first(self, most: int) -> LockListing:
        """Return the first locks, without those of ended sessions. Locks of silent sessions are
        included, since they still exclude others."""
        if not self.is_there:
            raise errors.InvalidRequestError("no table of locks", table=self._table)
        columns = frozenset({(OBJECTS.encode(), COLUMN.encode())})
        rows = scan_rows(self._context, Span(self._table, columns=columns), self._read)
        queues = sorted(islice(_read_queues(rows), MOST_OBJECTS + 1), key=lambda each: each[0])
        sessions = {e.session for _, queue in queues for e in queue.requests if e.session}
        names = {make_session_key(name, self._table): name for name in sessions}
        found = self._read(list(names)) if names else {}
        alive = {names[key] for key, cell in found.items() if cell is not None}
        locks = [
            each.as_lock(at)
            for at, queue in queues
            for each in queue.requests
            if each.session is None or each.session in alive
        ]
        is_whole = len(locks) <= most and len(queues) <= MOST_OBJECTS
        return LockListing(tuple(locks[:most]), is_whole)

    def _read(self, keys: Sequence[Key]) -> Snapshot:
        """Read a row that keeps changing as it is, without locks."""
        found = call_store(self._context, lambda: self._context.store.read(list(keys)))
        return {key: found[key] for key in keys}
