"""Leases that extend themselves for as long as somebody holds them.

The database says when a lease has ended. A holder that cannot ask it relies on its heartbeat, which
allows for a difference between the two clocks (see txn/locks/held.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from logging import getLogger
from typing import Protocol

from txn.clock import Clock
from txn.leases.model import ExceedsMaxLeaseTimeError, Lease, LeaseNotFoundError
from txn.locks.held import Heartbeat, Held
from txn.locks.requests import LockRequest, Path, in_order

DRIFT = 100
"""Two clocks may differ by this part of a duration."""

LOG = getLogger("txn")


class Extending(Protocol):
    """What holds leases in a database; `LeaseService` says what its methods promise."""

    def list_lease(self, objects: Iterable[Path]) -> Sequence[Lease]:
        """Return the leases of these objects."""

    def extend_lease(self, lease_id: int, *, duration_s: float | None) -> datetime:
        """Let a lease end no earlier than a duration from now."""

    def drop_lease(self, lease_id: int) -> int:
        """End a lease."""


class HeldLease(Held):
    """A lease that is held. Its fencing token is its id, which grows with time. Leaving the block
    drops it. If one of its objects is dropped, by force or by the lease's id, all of it is lost,
    and what is left is not extended any more."""

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
        self._leases = leases
        self._duration_s = duration_s
        self._heartbeat = Heartbeat(
            "extend lease",
            self._extend,
            duration_s,
            sure_ms=int(duration_s * 1000 * (DRIFT - 1) / DRIFT),
            began_ms=began_ms,
            clock=clock,
        )
        super().__init__(
            in_order(objects),
            {each.path: lease_id for each in objects},
            is_lost=lambda: self._heartbeat.lost,
            are_there=self._are_leased,
            release=self._drop,
            kind=f"lease {lease_id}",
        )
        self._heartbeat.start()

    def _are_leased(self) -> bool:
        wanted = {each.path for each in self.objects}
        there = self._leases.list_lease(sorted(wanted))
        return wanted <= {each.path for each in there if each.lease_id == self.lease_id}

    def _drop(self) -> None:
        self._heartbeat.stop()
        self._leases.drop_lease(self.lease_id)

    def _extend(self) -> bool | None:
        if self.lost:
            return None
        try:
            self._leases.extend_lease(self.lease_id, duration_s=self._duration_s)
        except LeaseNotFoundError:
            return False
        except ExceedsMaxLeaseTimeError as error:
            LOG.warning("a lease is not extended any more: %s", error)
            return None
        return True
