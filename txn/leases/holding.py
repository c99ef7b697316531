"""Leases that extend themselves for as long as somebody holds them.

A thread extends a lease at each third of its duration. When it ended is for the database to say; a
holder that cannot ask takes it for lost once a duration has passed on its own monotonic clock since
before the last extension that was acknowledged, which is never later than the database does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from logging import getLogger
from typing import Protocol, Self

from txn.clock import Clock
from txn.errors import StoreError
from txn.host.forks import Forked
from txn.leases.model import ExceedsMaxLeaseTimeError, Lease, LeaseNotFoundError
from txn.locks.manager import LockLost
from txn.locks.requests import LockRequest, Path, in_order
from txn.repeating import repeat
from txn.text import name_failure

# Of a duration: how often it is extended, and by which part of it two clocks may differ that run
# for so long.
EXTENSIONS, DRIFT = 3, 100
LOG = getLogger("txn")


class Extending(Protocol):
    """What holds leases in a database; `LeaseService` says what its methods promise."""

    def list_lease(self, objects: Iterable[Path]) -> Sequence[Lease]:
        """Return the leases of these objects."""

    def extend_lease(self, lease_id: int, *, duration_s: float | None) -> datetime:
        """Let a lease end no earlier than a duration from now."""

    def drop_lease(self, lease_id: int) -> int:
        """End a lease."""


class HeldLease(Forked):
    """A lease that is held; `txn.locks.Held` says what its methods promise. Its fencing token is
    its id, which grows with time. Leaving the block drops it. If one of its objects is dropped, by
    force or by the lease's id, all of it is lost, and what is left is not extended any more.

    A forked process may ask about it, and cannot release it: that is for its owner."""

    def __init__(
        self,
        leases: Extending,
        lease_id: int,
        objects: tuple[LockRequest, ...],
        *,
        duration_s: float,
        began_ms: int,
        clock: Clock,
    ) -> None:
        self.lease_id = lease_id
        self.objects = objects
        self.requests = in_order(objects)
        self.tokens: Mapping[Path, int] = {each.path: lease_id for each in objects}
        self._leases = leases
        self._duration_s = duration_s
        self._clock = clock
        self._sure_until_ms = began_ms + self._sure_ms
        self._forked = False
        self._gone = False
        self._released = False
        self._ending = threading.Event()
        work = ("extend lease", self._extend, self._ending, duration_s / EXTENSIONS)
        self._extending = threading.Thread(
            target=repeat, args=work, name=f"txn-lease-{lease_id}", daemon=True
        )
        self._extending.start()
        self.expect_forks()

    def after_fork(self, in_child: bool) -> None:
        """Leave it to the parent to end it."""
        self._forked = self._forked or in_child

    @property
    def lost(self) -> bool:
        """Whether it is lost, or may be, for want of contact; a call that costs nothing. Once it
        was true it stays so, whatever an extension under way comes to: its holder has stopped."""
        self._gone = self._gone or self._clock.monotonic_ms() >= self._sure_until_ms
        return self._gone

    def check(self) -> None:
        """Ask the database whether all of it is held; raise LockLost unless it says so."""
        if self._ending.is_set() or self.lost:
            raise self._error("the lease is lost")
        try:
            there = self._leases.list_lease([each.path for each in self.objects])
        except StoreError as error:
            cause = name_failure(error)
            raise self._error("nobody says that the lease is held", cause) from error
        ours = {each.path for each in there if each.lease_id == self.lease_id}
        self._gone = self._gone or not ours >= {each.path for each in self.objects}
        if self.lost:
            raise self._error("the lease is lost")

    def release(self) -> None:
        """Drop it; after an error that may be tried again."""
        if self._forked:
            return
        self._ending.set()
        self._extending.join()
        if not self._released:
            self._leases.drop_lease(self.lease_id)
            self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def _sure_ms(self) -> int:
        return int(self._duration_s * 1000 * (DRIFT - 1) / DRIFT)

    def _extend(self) -> bool:
        """Extend it once, unless it is lost; return whether that may be done again."""
        if self.lost:
            return False
        began_ms = self._clock.monotonic_ms()
        try:
            self._leases.extend_lease(self.lease_id, duration_s=self._duration_s)
        except LeaseNotFoundError:
            self._gone = True
            return False
        except ExceedsMaxLeaseTimeError as error:
            LOG.warning("a lease is not extended any more: %s", error)
            return False
        self._sure_until_ms = began_ms + self._sure_ms
        return True

    def _error(self, reason: str, cause: str | None = None) -> LockLost:
        named = [str(each) for each in self.objects]
        return LockLost(reason, lease=self.lease_id, objects=named, cause=cause)
