"""Locks as users see them: owners, locks, denials and wait policies."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from txn.errors import InvalidRequestError, TxnError, annotate
from txn.locks.requests import LockRequest
from txn.model import check_choice, check_whole

Fairness = Literal["fair", "hive"]
"""`fair`: readers that come after a waiting writer wait behind it. `hive`: any request compatible
with the holders is granted, so readers starve writers."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a lock, as shown to waiting requests. query: the statement, if any."""

    name: str
    host: str
    query: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.host}" + (f" ({self.query[:80]})" if self.query else "")


@dataclass(frozen=True, slots=True)
class Lock:
    """A held or awaited lock. since_ms: wall clock. explicit: it survives its session. ticket: all
    locks of one request have the same."""

    request: LockRequest
    owner: Owner
    since_ms: int
    granted: bool
    explicit: bool = False
    token: int = 0
    ticket: str = ""


class LockDenied(TxnError):
    """The objects were still held by others after the last retry. Nothing is held."""

    def __init__(self, wanted: LockRequest, holders: Sequence[Lock]) -> None:
        held = ", ".join(f"{lock.request} by {lock.owner}" for lock in holders)
        super().__init__(
            annotate(f"lock denied: {held or 'somebody is before us'}", wanted=str(wanted))
        )
        self.wanted = wanted
        self.holders = tuple(holders)


@dataclass(frozen=True, slots=True)
class LockListing:
    """The locks at some moment. is_whole: False if there are more."""

    locks: tuple[Lock, ...]
    is_whole: bool


class LockReader(Protocol):
    """Lists locks and changes nothing: it does not end silent sessions."""

    def list_first(self, most: int) -> LockListing:
        """Return at most `most` held and awaited locks, by path and then by arrival."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How to wait for locks. `from_hive` reads these from Hive's settings.

    enabled: False turns locking off.
    retries: after the first denial.
    pause_ms: between retries; each pause is between half and all of it. Hive's default is a minute.
    unlock_retries: for a release.
    deadline_ms: for the whole wait; 0 or less: one try; None: only the retries count.
    """

    enabled: bool = True
    retries: int = 100
    pause_ms: int = 1_000
    unlock_retries: int = 10
    deadline_ms: int | None = None
    fairness: Fairness = "fair"

    def __post_init__(self) -> None:
        for name, least in (("retries", 0), ("pause_ms", 1), ("unlock_retries", 0)):
            check_whole(name, getattr(self, name), least)
        if self.deadline_ms is not None:
            check_whole("deadline_ms", self.deadline_ms)
        if not isinstance(self.enabled, bool):
            raise InvalidRequestError("enabled is True or False", enabled=self.enabled)
        check_choice("fairness", self.fairness, Fairness)


def waiting_or_default(waiting: Waiting | None) -> Waiting:
    if not isinstance(waiting, Waiting | None):
        raise InvalidRequestError(f"how to wait is told by a Waiting: waiting={waiting!r}")
    return Waiting() if waiting is None else waiting


def login_name() -> str:
    """Return the user's name, or the user id if it has no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
