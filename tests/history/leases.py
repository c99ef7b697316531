"""Histories of leases: who was sure to hold what and when, and whether that could be.

All times are of the database's clock, read by the holder: `asked` before it asked for the lease,
`entered` after it was told that it has it, `left` before it gave it back, or the lease's end where
that comes first. So what a history shows is certain, and a lease may have been held for longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from txn.locks import LockRequest
from txn.locks.model import in_order


@dataclass(frozen=True, slots=True)
class Stay:
    """A time for which somebody had a lease. left: None if nobody knows of an end."""

    lease_id: int
    claims: tuple[LockRequest, ...]
    asked: datetime
    entered: datetime
    left: datetime | None


class Anomaly(NamedTuple):
    """What cannot be, and of which stays."""

    what: str
    first: Stay
    second: Stay


def anomalies(history: Iterable[Stay]) -> list[Anomaly]:
    """Return what cannot be; nothing where the history is as leases promise."""
    stays = sorted(history, key=lambda stay: stay.entered)
    found = [Anomaly("without an end", stay, stay) for stay in stays if stay.left is None]
    for number, stay in enumerate(stays):
        for before in stays[:number]:
            is_there = before.left is None or before.left > stay.entered
            if is_there and deny(before.claims, stay.claims):
                found.append(Anomaly("held at one time", before, stay))
            if before.entered < stay.asked and before.lease_id >= stay.lease_id:
                found.append(Anomaly("asked for later without a larger id", before, stay))
    return found


def deny(some: Iterable[LockRequest], others: Iterable[LockRequest]) -> bool:
    """Whether two leases deny each other, as locks do: each parent is locked as shared."""
    theirs = {each.path: each.mode for each in in_order(others)}
    mine = [each for each in in_order(some) if each.path in theirs]
    return not all(each.mode.allows(theirs[each.path]) for each in mine)
