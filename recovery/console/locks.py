"""Locks and leases for the pages: read at most once a second, at most a thousand of each. They are
opened on first use, and reading changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from recovery.bounds import Cached
from recovery.console.settings import ConsoleSettings
from recovery.opening import find_usual_rules, open_lease_view, open_lock_view
from txn.locks.model import Lock, LockListing, LockReader, Path
from txn.locks.queue import list_blockers
from txn.locks.stored import StoredLockReader
from txn.protocol.context import Context
from txn.request import TRANSACTIONS

if TYPE_CHECKING:
    from txn.leases import Lease

MOST_SHOWN = 1_000


class Waiter(NamedTuple):
    lock: Lock
    place: int
    denying: Sequence[Lock]


@dataclass(slots=True)
class LockedObject:
    """A database, a table or a partition: its holders, its queue, and the objects in it."""

    name: str
    path: str = ""
    holders: list[Lock] = field(default_factory=list)
    queue: list[Waiter] = field(default_factory=list)
    inner: dict[str, LockedObject] = field(default_factory=dict)


class LockTree(NamedTuple):
    databases: Sequence[LockedObject]
    waiters: Sequence[Waiter]
    total: int
    is_whole: bool


def cache_locks(
    settings: ConsoleSettings, context: Context, ends: ExitStack
) -> Cached[LockTree | None]:
    """Return the locks of the given manager, or of the console's own store; None if it has never
    had any. The manager is opened at the first read, and closed with `ends`."""

    @cache
    def open_reader() -> LockReader:
        if settings.locks is not None:
            return ends.enter_context(open_lock_view(settings.locks))
        table = TRANSACTIONS.encode()  # as lock managers open the store
        if table == context.table:
            return StoredLockReader(context)
        rules = find_usual_rules(context.store, table)
        return StoredLockReader(replace(context, table=table, rules=rules))

    def read() -> LockTree | None:
        reader = open_reader()
        if isinstance(reader, StoredLockReader) and not reader.is_there:
            return None
        return make_tree(reader.list_first(MOST_SHOWN))

    return Cached(read)


def cache_leases(settings: ConsoleSettings) -> Cached[Sequence[Lease] | None]:
    """Return the first leases of the given database that have not ended, one more than are shown;
    None if no database was given."""

    def read() -> Sequence[Lease] | None:
        if settings.leases is None:
            return None
        with open_lease_view(settings.leases) as service:
            return service.list_lease(most=MOST_SHOWN + 1)

    return Cached(read)


def make_tree(listing: LockListing) -> LockTree:
    queues: dict[Path, list[Lock]] = {}
    for lock in listing.locks:
        queues.setdefault(lock.request.path, []).append(lock)
    top, waiters = LockedObject(""), list[Waiter]()
    for path, queue in queues.items():
        at = top
        for part in path.parts:
            at = at.inner.setdefault(part, LockedObject(part))
        at.path = str(path)
        at.holders = [lock for lock in queue if lock.granted]
        waiting = [place for place, lock in enumerate(queue) if not lock.granted]
        at.queue = [
            Waiter(queue[place], number, list_blockers(queue, place))
            for number, place in enumerate(waiting, 1)
        ]
        waiters += at.queue
    return LockTree(list(top.inner.values()), waiters, len(listing.locks), listing.is_whole)
