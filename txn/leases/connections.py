"""Transactions on the database of the leases: retried where that may help, for a bounded time.

Work that is handed in may be run several times, also after a run whose commit took effect and was
not reported; it must be right all the same.

A forked process gets connections of its own. It leaves alone those to a PostgreSQL. Those to SQLite
must not be copied at all: a fork copies what SQLite knows of its files, but not its locks on them.
A child that went on with that would believe in locks which end with its parent, and write to files
which others have deleted. So a fork waits until no transaction is under way, and closes connections
before, to be opened again at their next use. If a transaction stays under way for too long, the
child cannot use that database.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from txn.backoff import Backoff
from txn.clock import Clock
from txn.errors import InvalidRequestError, MaybeApplied, NotApplied, StoreClosedError, StoreError
from txn.host.forks import Forked
from txn.leases.databases import TIMEOUT_S, Database, Postgresql, Sqlite, hide_password
from txn.leases.tables import leases, metadata
from txn.locks.requests import Path

T = TypeVar("T")

KINDS: dict[str, Database] = {"sqlite": Sqlite(), "postgresql": Postgresql()}
RETRYING = Backoff(first_ms=20, longest_ms=200)
FORK_WITHIN_S = 10.0
_CARRIED: set[str] = set()
"""Databases with a transaction of a parent's of this process."""


class Connections(Forked):
    """A pool of connections to one database, opened when they are needed."""

    def __init__(self, url: URL, clock: Clock, chance: random.Random) -> None:
        kind = KINDS.get(url.get_backend_name())
        if kind is None:
            raise InvalidRequestError(
                "leases are kept in one of these", known=sorted(KINDS), url=hide_password(url)
            )
        self.database = kind
        self.url = url
        self._name = hide_password(url)
        self._clock = clock
        self._chance = chance
        self._engine = kind.engine(url)
        # SQLAlchemy wraps what its own calls raise; a new connection is prepared by the driver's.
        self._errors = (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error)
        self._closed = False
        self._changed = threading.Condition(threading.RLock())
        self._inside: list[int] = []  # the thread of each transaction
        self._forking = False
        self._inherited: list[Any] = []  # pools of a parent's, which it goes on using
        self.expect_forks()

    def create_tables(self) -> None:
        """Create the tables if they are missing, in a turn of its own: of processes that open a
        new database at once, one creates them and the others find them."""

        def work(connection: Connection) -> None:
            if not connection.dialect.has_table(connection, leases.name):
                self.database.take_turn(connection, [Path((leases.name,))])
                metadata.create_all(connection)

        self.run(work)

    def run(self, work: Callable[[Connection], T], *, within_ms: int = TIMEOUT_S * 1000) -> T:
        """Do the work in a transaction and commit it. NotApplied: it was not done. MaybeApplied: a
        commit of it was sent, and not answered."""
        due_ms = self._clock.monotonic_ms() + within_ms
        kind: type[NotApplied | MaybeApplied] = NotApplied
        for _ in RETRYING.tries(self._clock, self._chance, due_ms=due_ms):
            is_done = False
            try:
                with self._enter(), self._engine.begin() as connection:
                    found = work(connection)
                    is_done = True
                return found
            except self._errors as error:
                failure = error
                kind = MaybeApplied if is_done else kind
                cause = _find_cause(error)
                if not self.database.is_transient(cause):
                    break
        message = "the database of the leases failed"
        raise kind(message, url=self._name, reason=" ".join(str(cause).split())) from failure

    def close(self) -> None:
        """Give the connections back."""
        with self._changed:
            self._closed = True
            if self._name not in _CARRIED:
                self._engine.dispose()

    @contextmanager
    def _enter(self) -> Iterator[None]:
        """Begin a transaction, which a fork waits for where connections cannot be carried."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            if self._closed:
                raise StoreClosedError("the leases were closed", url=self._name)
            if self._name in _CARRIED:
                message = "the leases were in use when this process was forked: fork before that"
                raise StoreError(message, url=self._name, pid=os.getpid())
            self._inside.append(threading.get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._inside.remove(threading.get_ident())
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Close SQLite's connections, if transactions end in time, and begin none until the fork is
        over."""
        self._changed.acquire()
        if self.database.can_be_forked:
            return
        self._forking = True
        self._changed.wait_for(self._may_fork, FORK_WITHIN_S)
        if not self._inside and self._name not in _CARRIED:
            self._engine.dispose()

    def _may_fork(self) -> bool:
        """Return True if nothing is under way, or this thread's own transaction is, for which it
        would wait for ever."""
        return not self._inside or threading.get_ident() in self._inside

    def after_fork(self, in_child: bool) -> None:
        """Let transactions begin again. A child leaves alone what its parent goes on using."""
        if in_child and self.database.can_be_forked:
            self._inherited.append(self._engine.pool)  # else they would be closed as garbage
            self._engine.dispose(close=False)
        elif in_child and self._inside:
            _CARRIED.add(self._name)
        self._forking = False
        self._changed.notify_all()
        self._changed.release()


def _find_cause(error: BaseException) -> BaseException:
    """Return what the driver said, without the statement."""
    return error.orig or error if isinstance(error, DBAPIError) else error
