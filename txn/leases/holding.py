"""Leases that a heartbeat extends while they are held.

The database decides when a lease has ended. A holder that cannot reach it relies on its heartbeat,
which allows for a difference between the two clocks (see txn/locks/held.py).
"""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger

from txn.clock import Clock
from txn.leases.model import ExceedsMaxLeaseTimeError, LeaseNotFoundError
from txn.locks.held import Heartbeat, Held
from txn.locks.requests import LockRequest, in_order

DRIFT = 100
"""Two clocks may differ by one part in `DRIFT` of a duration."""

LOG = getLogger("txn")


class HeldLease(Held):
    """A held lease; leaving the block drops it. Its fencing token is its id, which grows with time.
    If one of its objects is dropped, the lease is lost and not extended."""

    def __init__(
        self,
        lease_id: int,
        objects: tuple[LockRequest, ...],
        *,
        duration_s: float,
        began_ms: int,
        clock: Clock,
        extend: Callable[[], object],
        are_there: Callable[[], bool],
        drop: Callable[[], object],
    ) -> None:
        self.lease_id = lease_id
        self.objects = objects
        self._extend = extend
        self._drop = drop
        self._heartbeat = Heartbeat(
            "extend lease",
            self._renew,
            duration_s,
            sure_ms=int(duration_s * 1000 * (DRIFT - 1) / DRIFT),
            began_ms=began_ms,
            clock=clock,
        )
        super().__init__(
            in_order(objects),
            {each.path: lease_id for each in objects},
            is_lost=lambda: self._heartbeat.lost,
            are_there=are_there,
            release=self._end,
            kind=f"lease {lease_id}",
        )
        self._heartbeat.start()

    def _end(self) -> None:
        self._heartbeat.stop()
        self._drop()

    def _renew(self) -> bool | None:
        if self.lost:
            return None
        try:
            self._extend()
        except LeaseNotFoundError:
            return False
        except ExceedsMaxLeaseTimeError as error:
            LOG.warning("a lease is not extended any more: %s", error)
            return None
        return True
