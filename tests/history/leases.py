"""Histories of leases: who was sure to hold what and when, and whether that could be.

All times are of the database's clock, read by the holder: `asked` before it asked for the lease,
`entered` after it was told that it has it, `left` before it gave it back, or the lease's end where
that comes first. So what a history shows is certain, and a lease may have been held for longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from txn.locks import LockRequest, Mode


@dataclass(frozen=True, slots=True)
class Stay:
    """A time for which somebody had a lease. left: None if nobody knows of an end."""

    lease_id: int
    claims: tuple[LockRequest, ...]
    asked: datetime
    entered: datetime
    left: datetime | None


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two had leases at one time that deny each other."""

    first: Stay
    second: Stay


@dataclass(frozen=True, slots=True)
class Endless:
    """A lease has no end."""

    stay: Stay


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """A lease was asked for when another one was held already, and has no larger id."""

    first: Stay
    second: Stay


Anomaly = Overlap | Endless | OutOfOrder


def anomalies(history: Iterable[Stay]) -> list[Anomaly]:
    """Return what cannot be; nothing where the history is as leases promise."""
    stays = sorted(history, key=lambda stay: stay.entered)
    found: list[Anomaly] = [Endless(stay) for stay in stays if stay.left is None]
    there: list[Stay] = []
    for stay in stays:
        there = [other for other in there if other.left is None or other.left > stay.entered]
        found += [Overlap(other, stay) for other in there if deny(other.claims, stay.claims)]
        there.append(stay)
    return found + _out_of_order(stays)


def deny(some: Iterable[LockRequest], others: Iterable[LockRequest]) -> bool:
    """Whether two leases deny each other: a claim is on all that lies in its object, and whoever
    claims a part of something only keeps others from having all of it alone."""
    others = tuple(others)
    return any(_denies(one, other) or _denies(other, one) for one in some for other in others)


def _denies(outer: LockRequest, inner: LockRequest) -> bool:
    if outer.path == inner.path:
        return Mode.EXCLUSIVE in {outer.mode, inner.mode}
    return outer.mode is Mode.EXCLUSIVE and outer.path in inner.path.parents


def _out_of_order(stays: list[Stay]) -> list[Anomaly]:
    found: list[Anomaly] = []
    largest: Stay | None = None
    entered = iter(stays)
    coming = next(entered, None)
    for stay in sorted(stays, key=lambda stay: stay.asked):
        while coming is not None and coming.entered < stay.asked:
            if largest is None or coming.lease_id > largest.lease_id:
                largest = coming
            coming = next(entered, None)
        if largest is not None and largest.lease_id >= stay.lease_id:
            found.append(OutOfOrder(largest, stay))
    return found
