"""Who holds which locks and leases, looked at for the pages: at most once a second, and a thousand
of them at most. Nothing is opened before somebody looks, and looking makes and changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from recovery.console.recent import Recent
from recovery.console.settings import ConsoleSettings
from recovery.opening import find_usual_rules, open_lease_look, open_lock_look
from txn.locks.model import Lock, LockListing, LockReader
from txn.locks.queue import list_blockers
from txn.locks.stored import StoredLockReader
from txn.protocol.context import Context
from txn.request import TRANSACTIONS

if TYPE_CHECKING:
    from datetime import datetime

    from txn.leases import Lease

MOST_SHOWN = 1_000


class Waiter(NamedTuple):
    """A request that waits, and who keeps it waiting."""

    lock: Lock
    place: int
    denying: Sequence[Lock]


@dataclass(slots=True)
class LockedObject:
    """A database, a table or a partition: who holds it and who waits, and what lies in it."""

    name: str
    path: str
    holders: list[Lock] = field(default_factory=list)
    queue: list[Waiter] = field(default_factory=list)
    inner: dict[str, LockedObject] = field(default_factory=dict)


class LockTree(NamedTuple):
    """The locks by their objects. waiters: those of all objects."""

    databases: Sequence[LockedObject]
    waiters: Sequence[Waiter]
    total: int
    is_whole: bool


class SeenLeases(NamedTuple):
    """The leases that had not ended at a time, by the clock of their database."""

    leases: Sequence[Lease]
    at: datetime
    is_whole: bool


class LockClaims:
    """The locks of the manager that a console was given, or of its own store."""

    def __init__(self, settings: ConsoleSettings, context: Context) -> None:
        self._uri = settings.locks
        self._context = context
        self._ends = ExitStack()
        self._guard = threading.Lock()
        self._look: LockReader | None = None
        self._recent = Recent(self._see)

    def see(self) -> LockTree | None:
        """Return the locks; None where the store has never had any."""
        return self._recent.get()

    def close(self) -> None:
        """End the look."""
        with self._guard:
            self._ends.close()

    def _see(self) -> LockTree | None:
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


class LeaseClaims:
    """The leases that a console was told of, if it was."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._url = settings.leases
        self._recent = Recent(self._see)

    def see(self) -> SeenLeases | None:
        """Return the leases; None where none were named."""
        return None if self._url is None else self._recent.get()

    def close(self) -> None:
        """Nothing stays open between two looks."""

    def _see(self) -> SeenLeases:
        assert self._url is not None
        with open_lease_look(self._url) as service:
            found = service.list_lease(most=MOST_SHOWN + 1)
            return SeenLeases(found[:MOST_SHOWN], service.now(), len(found) <= MOST_SHOWN)


def make_tree(seen: LockListing) -> LockTree:
    """Return the locks as a tree, with who waits for whom."""
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
    """Return the store as managers of locks open it: their transactions are in the usual table."""
    table = TRANSACTIONS.encode()
    if table == context.table:
        return context
    return replace(context, table=table, rules=find_usual_rules(context.store, table))
