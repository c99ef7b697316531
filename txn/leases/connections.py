"""Transactions on the database of the leases: tried again where that may help, for a bounded time.

Work that is handed in may be run several times, also after a run whose commit took effect and was
not reported; it must be right all the same. A process that was forked gets connections of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from txn.backoff import Backoff
from txn.clock import Clock
from txn.errors import InvalidRequestError, MaybeApplied, NotApplied, StoreClosedError
from txn.host.forks import Forked
from txn.leases.databases import PATIENCE_S, Database, Postgresql, Sqlite, hide_password
from txn.leases.forking import Gate

T = TypeVar("T")

KINDS: dict[str, Database] = {"sqlite": Sqlite(), "postgresql": Postgresql()}
PASSING = Backoff(first_ms=20, longest_ms=200)


class Connections(Forked):
    """Opened when they are needed, a pool of them for each process."""

    def __init__(self, url: URL, clock: Clock, rng: random.Random) -> None:
        kind = KINDS.get(url.get_backend_name())
        if kind is None:
            raise InvalidRequestError(
                "leases are kept in one of these", known=sorted(KINDS), url=hide_password(url)
            )
        self.database = kind
        self.url = url
        self._clock = clock
        self._rng = rng
        self._engine: Engine | None = kind.engine(url)
        # SQLAlchemy wraps what its own calls raise; a new connection is prepared by the driver's.
        self._errors = (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error)
        self._inherited: list[Engine] = []
        self._closed = False
        gate = None if kind.can_be_carried else Gate(hide_password(url), self._dispose)
        self._enter = nullcontext if gate is None else gate.enter
        self.expect_forks()

    def run(self, work: Callable[[Connection], T], *, patience_ms: int = PATIENCE_S * 1000) -> T:
        """Do the work in a transaction and commit it. NotApplied: it was not done. MaybeApplied: a
        commit of it was sent, and not answered."""
        due_ms = self._clock.monotonic_ms() + patience_ms
        kind: type[NotApplied | MaybeApplied] = NotApplied
        for _ in PASSING.tries(self._clock, self._rng, due_ms=due_ms):
            is_done = False
            try:
                with self._enter(), self._own_engine().begin() as connection:
                    found = work(connection)
                    is_done = True
                return found
            except self._errors as error:
                failure = error
                kind = MaybeApplied if is_done else kind
                cause = _find_cause(error)
                if not self.database.passes(cause):
                    break
        message, url = "the database of the leases failed", hide_password(self.url)
        raise kind(message, url=url, reason=" ".join(str(cause).split())) from failure

    def close(self) -> None:
        """Give the connections back."""
        self._closed = True
        if self._engine is not None:
            with self._enter():
                self._dispose()

    def after_fork(self, in_child: bool) -> None:
        """Never touch, nor close, connections that are in use by the parent."""
        if in_child and self._engine is not None:
            self._inherited.append(self._engine)
            self._engine = None

    def _dispose(self) -> None:
        if self._engine is not None:
            self._engine.dispose()

    def _own_engine(self) -> Engine:
        if self._closed:
            raise StoreClosedError("the leases were closed", url=hide_password(self.url))
        if self._engine is None:
            self._engine = self.database.engine(self.url)
        return self._engine


def _find_cause(error: BaseException) -> BaseException:
    """Return what the driver said, without the statement."""
    return error.orig or error if isinstance(error, DBAPIError) else error
