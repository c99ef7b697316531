"""Locks in rows of any store, for those who run no ZooKeeper: changed by our own transactions.

An object's row keeps its line: who holds it, and who waits in a place. A request is one transaction
over all of its objects, so it is granted wholly or not at all. Whoever holds implicit locks has a
session whose row it changes each third of its lease. A session whose row has not changed for that
lease, by the observer's own clock, is ended by deleting its row; nobody's entries outlive it.
"""

from __future__ import annotations

import getpass
import json
import random
import socket
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from txn.assertions import Assertion, Exact, Version
from txn.clock import Clock, SystemClock
from txn.engine import Engine
from txn.errors import AbortedError, AssertionFailedError, ConflictError, StoreError, describe
from txn.locks.lines import (
    Denied,
    Entry,
    State,
    as_locks,
    decoded,
    encoded,
    first_denied,
    has,
    without,
)
from txn.locks.manager import Lock, LockDenied, LockLost, Waiting
from txn.locks.patience import Patience
from txn.locks.requests import LockRequest, Mode, Path, in_order, path
from txn.locks.sessions import Session
from txn.model import Cell, Delete, Key, Mutation

TABLE = "locks"
OBJECTS, SESSIONS = "o", "s"
CHANGE_TRIES = 1_000


class _Ticket(NamedTuple):
    name: str
    session: str | None
    query: str
    since_ms: int


class StoredManager:
    """Locks in one table of a store. `owns_engine`: the engine is closed with the manager."""

    def __init__(
        self,
        engine: Engine,
        *,
        table: str = TABLE,
        name: str | None = None,
        lease_ms: int = 10_000,
        waiting: Waiting | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        owns_engine: bool = False,
    ) -> None:
        self._engine = engine
        self._owns_engine = owns_engine
        self._table = table
        self._owner = name or getpass.getuser()
        self._host = socket.gethostname()
        self._lease_ms = lease_ms
        self._waiting = waiting or Waiting()
        self._clock = clock or SystemClock()
        self._chance = chance or random.SystemRandom()
        self._guard = threading.Lock()
        self._session: Session | None = None
        self._seen: dict[str, tuple[bytes, int]] = {}
        engine.ensure_table(table, [OBJECTS, SESSIONS])

    def hold(
        self,
        requests: Iterable[LockRequest],
        *,
        query: str = "",
        explicit: bool = False,
        waiting: Waiting | None = None,
    ) -> StoredHeld:
        """Take all or none, in one transaction."""
        waiting = waiting or self._waiting
        wanted = in_order(requests) if waiting.enabled else ()
        session = None if explicit or not wanted else self._alive()
        ticket = _Ticket(
            f"{self._chance.getrandbits(128):032x}",
            session.name if session else None,
            query,
            self._clock.wall_ms(),
        )
        patience = Patience(waiting, self._clock, self._chance)
        try:
            while isinstance(found := self._attempt(ticket, wanted, waiting), Denied):
                pause_ms = patience.next_pause_ms()
                if pause_ms is None:
                    raise LockDenied(found.wanted, as_locks(found.wanted.path, found.by))
                self._clock.sleep_ms(pause_ms)
        except BaseException:
            with suppress(
                StoreError, AbortedError
            ):  # the place goes with the session at the latest
                self._leave(ticket.name, wanted)
            raise
        return StoredHeld(self, ticket.name, session, wanted, found)

    def locks(self, within: Path | None = None) -> list[Lock]:
        """Return who holds and who waits."""
        found: list[Lock] = []
        for at, state in self._scan(within):
            found += as_locks(at, state.line)
        return found

    def release(self, wanted: Path, *, force: bool = False) -> int:
        """Give back explicit locks on exactly this object, with those of its parents that no other
        object of the same request needs."""
        mine = (self._owner, self._host)
        tickets = [
            entry.ticket
            for entry in self._states([wanted])[wanted][0].line
            if entry.session is None and (force or (entry.owner, entry.host) == mine)
        ]
        for ticket in tickets:
            held = [at for at, state in self._scan(None) if has(state, ticket)]
            rest = [at for at in held if at != wanted and at not in wanted.parents]
            needed = {parent for at in rest for parent in (at, *at.parents)}
            gone = [at for at in held if at not in needed]
            self._leave(ticket, [LockRequest(at, Mode.SHARED) for at in gone])
        return len(tickets)

    def close(self) -> None:
        """End the session; what it holds implicitly is given back."""
        with self._guard:
            session, self._session = self._session, None
        if session is not None:
            session.end()
        if self._owns_engine:
            self._engine.close()

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
    ) -> dict[Path, int] | Denied:
        """Return the tokens of a request that is granted, or who denies it; then it has a place in
        the line of the object at which it was denied, if the line is fair."""
        for _ in range(CHANGE_TRIES):
            states = self._alive_states([request.path for request in wanted])
            denied = first_denied(states, ticket.name, wanted, fair=waiting.fairness == "fair")
            if denied is None:
                changed = {
                    each.path: self._granted(states[each.path][0], ticket, each) for each in wanted
                }
            else:
                changed = self._waiting_in(states, ticket, denied, waiting)
            if self._change(states, changed, ticket.session):
                return denied or {at: state.token for at, state in changed.items()}
        raise ConflictError("others keep changing the locks", key=wanted[0].path)

    def _granted(self, state: State, ticket: _Ticket, request: LockRequest) -> State:
        token = state.token + 1
        entry = self._entry(ticket, request, granted=True, token=token)
        line = [entry if each.ticket == ticket.name else each for each in state.line]
        return State(token, tuple(line if has(state, ticket.name) else [*line, entry]))

    def _waiting_in(
        self,
        states: Mapping[Path, tuple[State, Cell | None]],
        ticket: _Ticket,
        denied: Denied,
        waiting: Waiting,
    ) -> dict[Path, State]:
        """Return the lines with this request's place at the denied object, and nowhere else."""
        changed: dict[Path, State] = {}
        for at, (state, _) in states.items():
            place = at == denied.wanted.path and waiting.fairness == "fair"
            if place and not has(state, ticket.name):
                entry = self._entry(ticket, denied.wanted, granted=False, token=0)
                changed[at] = State(state.token, (*state.line, entry))
            elif not place and has(state, ticket.name):
                changed[at] = without(state, {ticket.name})
        return changed

    def _entry(self, ticket: _Ticket, request: LockRequest, *, granted: bool, token: int) -> Entry:
        return Entry(
            ticket.name,
            request.mode.value,
            ticket.session,
            self._owner,
            self._host,
            ticket.query,
            ticket.since_ms,
            granted,
            token,
        )

    # ------------------------------------------------------------------------ rows and lines

    def _states(self, objects: Collection[Path]) -> dict[Path, tuple[State, Cell | None]]:
        keys = {at: self._key(at) for at in objects}
        cells = self._engine.read(list(keys.values())) if keys else {}
        return {at: (decoded(cells[key]), cells[key]) for at, key in keys.items()}

    def _alive_states(self, objects: Collection[Path]) -> dict[Path, tuple[State, Cell | None]]:
        """Return the lines without the entries of sessions that have ended."""
        states = self._states(objects)
        lines = [entry for state, _ in states.values() for entry in state.line]
        dead = self._dead({entry.session for entry in lines if entry.session is not None})
        gone = {entry.ticket for entry in lines if entry.session in dead}
        return {at: (without(state, gone), cell) for at, (state, cell) in states.items()}

    def _change(
        self,
        states: Mapping[Path, tuple[State, Cell | None]],
        changed: Mapping[Path, State],
        session: str | None,
    ) -> bool:
        """Write these lines if all the lines are still as they were read; return whether they
        were. Nothing is granted to a session that has been ended meanwhile."""
        if not changed:
            return True
        assertions: list[Assertion] = [
            Version(self._key(at), cell.timestamp if cell else None)
            for at, (_, cell) in states.items()
        ]
        if session is not None:
            assertions.append(~Version(self.session_key(session), None))
        mutations = [Mutation(self._key(at), encoded(state)) for at, state in changed.items()]
        try:
            self._engine.commit(mutations, assertions)
        except AssertionFailedError as failed:
            if any(key.family == SESSIONS.encode() for key in failed.seen):
                raise LockLost("our session was ended while we waited") from failed
            return False
        except ConflictError:
            return False
        return True

    def leave(self, ticket: str, wanted: Sequence[LockRequest]) -> None:
        """Give back what a ticket holds."""
        self._leave(ticket, wanted)

    def _leave(self, ticket: str, wanted: Sequence[LockRequest]) -> None:
        for _ in range(CHANGE_TRIES):
            states = self._states([request.path for request in wanted])
            changed = {
                at: without(state, {ticket})
                for at, (state, _) in states.items()
                if has(state, ticket)
            }
            if self._change(states, changed, None):
                return
        raise ConflictError("others keep changing the locks", key=wanted[0].path)

    def _scan(self, within: Path | None) -> Iterator[tuple[Path, State]]:
        prefix = None if within is None else str(within)
        columns = [(OBJECTS, "line")]
        for row in self._engine.scan(self._table, prefix=prefix, columns=columns):
            at = path(row.row.decode())
            if within is None or at == within or within in at.parents:
                yield at, decoded(next(iter(row.cells.values())))

    def _key(self, at: Path) -> Key:
        return Key(str(at), OBJECTS, "line", self._table)

    # ----------------------------------------------------------------------------- sessions

    def session_key(self, name: str) -> Key:
        """The cell that a session changes to show that it lives."""
        return Key(name, SESSIONS, "beat", self._table)

    def has(self, ticket: str, session: str | None, tokens: Mapping[Path, int]) -> bool:
        """Whether all of these are granted to the ticket, and its session lives, at one instant."""
        keys = [self._key(at) for at in tokens]
        alive = [self.session_key(session)] if session else []
        cells = self._engine.read([*keys, *alive])
        lines = zip(keys, tokens.values(), strict=True)
        return all(cells[key] is not None for key in alive) and all(
            any(e.ticket == ticket and e.token == token for e in decoded(cells[key]).line)
            for key, token in lines
        )

    def _alive(self) -> Session:
        with self._guard:
            if self._session is None or self._session.lost:
                name = f"{self._chance.getrandbits(128):032x}"
                key = self.session_key(name)
                self._session = Session(self._engine, key, name, self._lease_ms, self._clock)
            return self._session

    def _dead(self, sessions: Collection[str]) -> set[str]:
        """Return those that have ended; end those that have been silent for their lease."""
        keys = {name: self.session_key(name) for name in sessions}
        cells = self._engine.read(list(keys.values())) if keys else {}
        now_ms = self._clock.monotonic_ms()
        dead = set()
        for name, key in keys.items():
            cell = cells[key]
            if cell is None or (self._silent(name, cell, now_ms) and self._ended(key, cell)):
                dead.add(name)
                self._seen.pop(name, None)
        return dead

    def _silent(self, name: str, cell: Cell, now_ms: int) -> bool:
        value, since_ms = self._seen.get(name, (b"", now_ms))
        if value != cell.value:
            self._seen[name] = (cell.value, now_ms)
            return False
        lease_ms: int = json.loads(cell.value)["lease_ms"]
        return now_ms - since_ms >= lease_ms

    def _ended(self, key: Key, cell: Cell) -> bool:
        try:
            self._engine.commit([Delete(key)], [Exact(key, cell.value)])
        except (AssertionFailedError, ConflictError):
            return False  # it lives, or somebody else is at it
        return True


class StoredHeld:
    """Locks of one ticket."""

    def __init__(
        self,
        manager: StoredManager,
        ticket: str,
        session: Session | None,
        requests: tuple[LockRequest, ...],
        tokens: Mapping[Path, int],
    ) -> None:
        self.requests = requests
        self.tokens = tokens
        self._manager = manager
        self._ticket = ticket
        self._session = session
        self._released = False

    @property
    def lost(self) -> bool:
        """Whether the session has ended, or has been silent for its lease."""
        return self._session is not None and self._session.lost

    def check(self) -> None:
        """Read whether all of it is granted and the session lives."""
        session = self._session.name if self._session else None
        if self._released or self.lost or not self._manager.has(self._ticket, session, self.tokens):
            raise LockLost(describe("locks are lost", locks=[str(each) for each in self.requests]))

    def release(self) -> None:
        """Give them back."""
        if not self._released:
            self._released = True
            self._manager.leave(self._ticket, self.requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
