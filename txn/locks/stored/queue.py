"""Locks in rows of any store, for those who run no ZooKeeper: changed by our own transactions.

An object's row keeps its line: who holds it, and who waits in a place. A request is one transaction
over all of its objects, so it is granted wholly or not at all. An owner of implicit locks has a
session whose row it changes each third of its lease. A session whose row has not changed for that
lease, by the observer's own clock, is ended by deleting its row; nobody's entries outlive it.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from txn.assertions import Version
from txn.backoff import Backoff
from txn.client.block import OptimisticTransaction
from txn.client.engine import Engine
from txn.clock import Clock, SystemClock
from txn.errors import AssertionFailedError, CorruptRowError, DeadlineError, TxnError
from txn.locks.holding import Holding
from txn.locks.line import Denied, first_denied, wait_in_line
from txn.locks.manager import (
    Lock,
    LockDenied,
    LockLost,
    Waiting,
    check_hold,
    owner_name,
    waiting_or_default,
)
from txn.locks.patience import Patience
from txn.locks.requests import LockRequest, Path, as_path
from txn.locks.sessions import FAMILY, Session, Sessions
from txn.locks.stored.former_lines import move_lines
from txn.locks.stored.lines import (
    COLUMN,
    OBJECTS,
    Entry,
    LineState,
    as_locks,
    decode_line,
    decode_path,
    drop_tickets,
    encode_line,
    has,
    parse_line,
)
from txn.model import Key, check_whole

TABLE = "locks"
TRY_WITHIN_MS = 30_000
SWEEPS_IN_LEASE = 6
UNLOCKING = Backoff(first_ms=50, longest_ms=100)
FIRST_LOOK_MS = 5


class _Ticket(NamedTuple):
    name: str
    session: Session | None
    explicit: bool
    query: str
    since_ms: int


class _Owed(NamedTuple):
    """Where a ticket is to be given back. unsure: a transaction of its may be under way."""

    objects: tuple[Path, ...]
    unsure: bool


class _SessionEnded(LockLost):
    """Others took us for dead."""


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
        rng: random.Random | None = None,
        owns_engine: bool = False,
    ) -> None:
        self._engine = engine
        self._owns_engine = owns_engine
        self._table = table
        self._owner = owner_name(name)
        self._host = socket.gethostname()
        self._waiting = waiting_or_default(waiting)
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        check_whole("lease_ms", lease_ms, 1)
        self._lease_ms = lease_ms
        self._owed: dict[str, _Owed] = {}
        self._sessions = Sessions(
            engine, table, lease_ms, clock=self._clock, rng=self._rng, beaten=self._sweep
        )
        engine.ensure_table(table, [OBJECTS, FAMILY])
        move_lines(engine, table)

    def hold(
        self,
        requests: Iterable[LockRequest] | LockRequest,
        *,
        query: str = "",
        explicit: bool = False,
        waiting: Waiting | None = None,
    ) -> Holding:
        """Take all or none, in one transaction."""
        waiting = self._waiting if waiting is None else waiting
        wanted = check_hold(requests, query, waiting)
        patience = Patience(waiting, self._clock, self._rng, FIRST_LOOK_MS)
        self._sweep()
        while True:
            ticket = _Ticket(
                f"{self._rng.getrandbits(128):032x}",
                self._sessions.alive() if wanted else None,
                explicit,
                query,
                self._clock.wall_ms(),
            )
            try:
                return self._hold(ticket, wanted, waiting, patience)
            except _SessionEnded:
                # Nothing was held: begin again in a new one, at the end of the line.
                if (pause_ms := patience.next_pause_ms()) is None:
                    raise
                self._clock.sleep_ms(pause_ms)
            except BaseException as error:
                objects = tuple(each.path for each in wanted)
                self._owed[ticket.name] = _Owed(objects, not isinstance(error, LockDenied))
                self._sweep()
                raise

    def _hold(
        self, ticket: _Ticket, wanted: tuple[LockRequest, ...], waiting: Waiting, patience: Patience
    ) -> Holding:
        def wait(denied: Denied, pause_ms: int) -> None:
            self._clock.sleep_ms(pause_ms)
            self._sweep()

        tokens = wait_in_line(
            lambda: self._attempt(ticket, wanted, waiting, patience),
            patience,
            wait,
            lambda denied: as_locks(denied.wanted.path, denied.before),
        )
        return self._holding(ticket, wanted, tokens)

    def locks(self, within: str | Path | None = None) -> list[Lock]:
        """Return who holds and who waits."""
        inside = None if within is None else as_path(within)
        lines = {at: state.line for at, state in self._scan(inside) if state.line}
        named = {entry.session for line in lines.values() for entry in line}
        dead = self._sessions.dead({session for session in named if session})
        return [
            lock
            for at in sorted(lines)
            for lock in as_locks(at, [e for e in lines[at] if e.session not in dead])
        ]

    def release(self, wanted: str | Path, *, force: bool = False) -> int:
        """Give back explicit locks on exactly this object, with those of its parents that no other
        object of the same request needs; one that its own request needs stays."""
        wanted = as_path(wanted)
        mine, key = (self._owner, self._host), self._key(wanted)
        tickets = [
            entry.ticket
            for entry in decode_line(key.row, self._engine.read([key])[key]).line
            if entry.session is None and (force or (entry.owner, entry.host) == mine)
        ]
        count = 0
        for ticket in tickets:
            held = [at for at, state in self._scan(None) if has(state, ticket)]
            rest = [at for at in held if at != wanted and at not in wanted.parents]
            needed = {parent for at in rest for parent in at.parents}
            if wanted not in needed:
                self._leave(ticket, [at for at in (*wanted.parents, wanted) if at not in needed])
                count += 1
        return count

    def close(self) -> None:
        """End the session; what it holds implicitly is given back."""
        self._sessions.close()
        if self._owns_engine:
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------- one attempt

    def _attempt(
        self, ticket: _Ticket, wanted: Sequence[LockRequest], waiting: Waiting, patience: Patience
    ) -> dict[Path, int] | Denied:
        """Return the tokens of a request that is granted, or who denies it; then it has a place in
        the line of the object at which it was denied, if the line is fair. What others undo by
        changing the lines is tried again until the request's time is over."""
        denied: Denied | None = None
        first = True

        def work(t: OptimisticTransaction) -> dict[Path, int] | Denied:
            nonlocal denied, first
            if not first and patience.is_over:
                return denied or Denied(wanted[0], ())
            first = False
            states = self._alive_states(t, [request.path for request in wanted])
            denied = first_denied(_list_denying(states, ticket, waiting), ticket.name, wanted)
            if denied is not None:
                self._put(t, self._keep_places(states, ticket, denied, waiting), ticket.session)
                return denied
            granted = {each.path: self._grant(states[each.path], ticket, each) for each in wanted}
            self._put(t, granted, ticket.session)
            return {at: state.token for at, state in granted.items()}

        try:
            return self._engine.run(work, deadline_ms=max(patience.left_ms or 0, TRY_WITHIN_MS))
        except DeadlineError:
            if patience.left_ms is None:
                raise
            return denied or Denied(wanted[0], ())
        except AssertionFailedError as failed:
            if ticket.session is not None:
                ticket.session.lose()
            raise _SessionEnded("our session was ended while we waited") from failed

    def _grant(self, state: LineState, ticket: _Ticket, request: LockRequest) -> LineState:
        token = state.token + 1
        entry = self._entry(ticket, request, granted=True, token=token)
        line = [entry if each.ticket == ticket.name else each for each in state.line]
        return LineState(token, tuple(line if has(state, ticket.name) else [*line, entry]))

    def _keep_places(
        self, states: Mapping[Path, LineState], ticket: _Ticket, denied: Denied, waiting: Waiting
    ) -> dict[Path, LineState]:
        """Return the lines with this request at the denied object, and where it keeps a place."""
        fair = waiting.fairness == "fair"
        changed: dict[Path, LineState] = {}
        for at, state in states.items():
            if has(state, ticket.name):
                if not (fair and denied.keeps(at)):
                    changed[at] = drop_tickets(state, {ticket.name})
            elif fair and at == denied.wanted.path:
                entry = self._entry(ticket, denied.wanted, granted=False, token=0)
                changed[at] = LineState(state.token, (*state.line, entry))
        return changed

    def _entry(self, ticket: _Ticket, request: LockRequest, *, granted: bool, token: int) -> Entry:
        return Entry(
            ticket.name,
            request.mode,
            None if not ticket.session or (granted and ticket.explicit) else ticket.session.name,
            self._owner,
            self._host,
            ticket.query,
            ticket.since_ms,
            granted,
            token,
        )

    # ------------------------------------------------------------------------ rows and lines

    def _states(self, t: OptimisticTransaction, objects: Collection[Path]) -> dict[Path, LineState]:
        keys = {at: self._key(at) for at in objects}
        values = t.get_many(list(keys.values()))
        return {at: parse_line(key.row, values[key]) for at, key in keys.items()}

    def _alive_states(
        self, t: OptimisticTransaction, objects: Collection[Path]
    ) -> dict[Path, LineState]:
        """Return the lines without the entries of sessions that have ended."""
        states = self._states(t, objects)
        lines = [entry for state in states.values() for entry in state.line]
        dead = self._sessions.dead({entry.session for entry in lines if entry.session is not None})
        gone = {entry.ticket for entry in lines if entry.session in dead}
        return {at: drop_tickets(state, gone) for at, state in states.items()}

    def _put(
        self, t: OptimisticTransaction, changed: Mapping[Path, LineState], session: Session | None
    ) -> None:
        """Write these lines. Nothing is granted to a session that has been ended meanwhile."""
        for at, state in changed.items():
            t.put(self._key(at), encode_line(state))
        if changed and session is not None:
            t.require(~Version(self._sessions.key(session.name), None))

    def _leave(
        self,
        ticket: str,
        objects: Sequence[Path],
        *,
        unsure: bool = False,
        deadline_ms: int = TRY_WITHIN_MS,
    ) -> None:
        """Give back what a ticket holds. unsure: a transaction of its may be under way; writing
        every line settles that one before, or makes it fail."""

        def work(t: OptimisticTransaction) -> None:
            states = self._states(t, objects).items()
            changed = {at: state for at, state in states if unsure or has(state, ticket)}
            self._put(t, {at: drop_tickets(state, {ticket}) for at, state in changed.items()}, None)

        self._engine.run(work, deadline_ms=deadline_ms)

    def _sweep(self) -> None:
        """Give back what could not be given back, or may yet be granted to a request that failed;
        for a part of the lease only, as it is done between two beats as well."""
        deadline_ms = self._lease_ms // SWEEPS_IN_LEASE
        for ticket, owed in list(self._owed.items()):
            try:
                self._leave(ticket, owed.objects, unsure=owed.unsure, deadline_ms=deadline_ms)
            except CorruptRowError:
                continue  # an odd row keeps no others; whoever asks for its object is told of it
            except TxnError:
                return  # with the next beat or request; at the latest it ends with the session
            self._owed.pop(ticket, None)

    def _holding(
        self, ticket: _Ticket, wanted: tuple[LockRequest, ...], tokens: Mapping[Path, int]
    ) -> Holding:
        session = None if ticket.explicit else ticket.session

        return Holding(
            wanted,
            tokens,
            is_lost=lambda: session is not None and session.lost,
            are_there=lambda: self._has(ticket.name, session.name if session else None, tokens),
            give_back=lambda: self._give_back(ticket.name, tuple(tokens)),
        )

    def _give_back(self, ticket: str, objects: tuple[Path, ...]) -> None:
        most = self._waiting.unlock_retries + 1
        for number in UNLOCKING.tries(self._clock, self._rng, most=most):
            try:
                self._leave(ticket, objects)
                break
            except TxnError:
                if number == most:
                    self._owed[ticket] = _Owed(objects, unsure=False)
                    raise

    def _scan(self, within: Path | None) -> Iterator[tuple[Path, LineState]]:
        prefix = None if within is None else str(within)
        columns = [(OBJECTS, COLUMN)]
        for row in self._engine.scan(self._table, prefix=prefix, columns=columns):
            at = decode_path(row.row)
            if within is None or at == within or within in at.parents:
                yield at, decode_line(row.row, next(iter(row.cells.values())))

    def _key(self, at: Path) -> Key:
        return Key(str(at), OBJECTS, COLUMN, self._table)

    def _has(self, ticket: str, session: str | None, tokens: Mapping[Path, int]) -> bool:
        """Whether all of these are granted to the ticket, and its session lives, at one instant."""
        keys = [self._key(at) for at in tokens]
        alive = [self._sessions.key(session)] if session else []
        cells = self._engine.read([*keys, *alive])
        lines = zip(keys, tokens.values(), strict=True)
        return all(cells[key] is not None for key in alive) and all(
            any(
                e.ticket == ticket and e.token == token
                for e in decode_line(key.row, cells[key]).line
            )
            for key, token in lines
        )


def _list_denying(
    states: Mapping[Path, LineState], ticket: _Ticket, waiting: Waiting
) -> dict[Path, list[Entry]]:
    """Return the entries that may deny a request, and its own: where lines are not fair, those who
    wait deny nobody anything."""
    fair, own = waiting.fairness == "fair", ticket.name
    return {
        at: [entry for entry in state.line if fair or entry.granted or entry.ticket == own]
        for at, state in states.items()
    }
