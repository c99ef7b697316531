"""Locks and leases for the pages: read at most once a second, at most a thousand of each. They are
opened on first use, and reading changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

from recovery.console.settings import ConsoleSettings
from recovery.opening import find_usual_rules, open_lease_look, open_lock_look
from txn.errors import TxnError
from txn.locks.model import Lock, LockListing, LockReader
from txn.locks.queue import list_blockers
from txn.locks.stored import StoredLockReader
from txn.protocol.context import Context
from txn.request import TRANSACTIONS

if TYPE_CHECKING:
    from datetime import datetime

    from txn.leases import Lease

T = TypeVar("T")
MOST_SHOWN = 1_000
FRESH_S = 1.0


class Waiter(NamedTuple):
    lock: Lock
    place: int
    denying: Sequence[Lock]


@dataclass(slots=True)
class LockedObject:
    """A database, a table or a partition: its holders, its queue, and the objects in it."""

    name: str
    path: str
    holders: list[Lock] = field(default_factory=list)
    queue: list[Waiter] = field(default_factory=list)
    inner: dict[str, LockedObject] = field(default_factory=dict)


class LockTree(NamedTuple):
    databases: Sequence[LockedObject]
    waiters: Sequence[Waiter]
    total: int
    is_whole: bool


class SeenLeases(NamedTuple):
    """The leases that had not ended at this time of their database's clock."""

    leases: Sequence[Lease]
    at: datetime
    is_whole: bool


class Cached(Generic[T]):
    """A read result that is at most FRESH_S old. The first visitor who needs it reads; errors are
    kept as well, so that visitors do not wait for an unreachable server one after the other."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._guard = threading.Lock()
        self._until = 0.0
        self._value: T | None = None
        self._error: TxnError | None = None

    def get(self) -> T:
        with self._guard:
            if time.monotonic() >= self._until:
                self._value, self._error = None, None
                try:
                    self._value = self._read()
                except TxnError as error:
                    self._error = error
                self._until = time.monotonic() + FRESH_S
            value, failure = self._value, self._error
        if failure is not None:
            raise failure
        return cast("T", value)


class CachedLocks:
    """The locks of the given lock manager, or of the console's own store."""

    def __init__(self, settings: ConsoleSettings, context: Context) -> None:
        self._uri = settings.locks
        self._context = context
        self._ends = ExitStack()
        self._guard = threading.Lock()
        self._look: LockReader | None = None
        self._cached = Cached(self._read)

    def read(self) -> LockTree | None:
        """Return the locks; None if the store has never had any."""
        return self._cached.get()

    def close(self) -> None:
        with self._guard:
            self._ends.close()

    def _read(self) -> LockTree | None:
        look = self._open()
        if isinstance(look, StoredLockReader) and not look.is_there:
            return None
        return make_tree(look.list_first(MOST_SHOWN))

    def _open(self) -> LockReader:
        with self._guard:
            if self._look is None:
                self._look = (
                    StoredLockReader(_of_locks(self._context))
                    if self._uri is None
                    else self._ends.enter_context(open_lock_look(self._uri))
                )
            return self._look


class CachedLeases:
    """The leases of the given database, if any."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._url = settings.leases
        self._cached = Cached(self._read)

    def read(self) -> SeenLeases | None:
        """Return the leases; None if no database was given."""
        return self._cached.get()

    def _read(self) -> SeenLeases | None:
        if self._url is None:
            return None
        with open_lease_look(self._url) as service:
            found = service.list_lease(most=MOST_SHOWN + 1)
            return SeenLeases(found[:MOST_SHOWN], service.now(), len(found) <= MOST_SHOWN)


def make_tree(seen: LockListing) -> LockTree:
    lines: dict[tuple[str, ...], list[Lock]] = {}
    for lock in seen.locks:
        lines.setdefault(lock.request.path.parts, []).append(lock)
    top, waiters = LockedObject("", ""), []
    for parts, line in lines.items():
        at = _find_object(top, parts)
        at.path = str(line[0].request.path)
        at.holders = [lock for lock in line if lock.granted]
        waiting = [place for place, lock in enumerate(line) if not lock.granted]
        at.queue = [
            Waiter(line[place], number, list_blockers(line, place))
            for number, place in enumerate(waiting, 1)
        ]
        waiters += at.queue
    return LockTree(list(top.inner.values()), waiters, len(seen.locks), seen.is_whole)


def _find_object(top: LockedObject, parts: Sequence[str]) -> LockedObject:
    for part in parts:
        top = top.inner.setdefault(part, LockedObject(part, ""))
    return top


def _of_locks(context: Context) -> Context:
    """Return the store as lock managers open it, with the usual transaction table."""
    table = TRANSACTIONS.encode()
    if table == context.table:
        return context
    return replace(context, table=table, rules=find_usual_rules(context.store, table))
