"""Locks as users see them: owners, held and awaited locks, denials, and how to wait."""

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
"""`hive`: a request that is compatible with the holders gets in, and readers starve writers.
`fair`: readers that come after a waiting writer wait behind it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a lock, shown to those that it keeps waiting. query: the statement, if any."""

    name: str
    host: str
    query: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.host}" + (f" ({self.query[:80]})" if self.query else "")


@dataclass(frozen=True, slots=True)
class Lock:
    """A held or awaited lock. since_ms: wall clock. explicit: it survives its session."""

    request: LockRequest
    owner: Owner
    since_ms: int
    granted: bool
    explicit: bool = False
    token: int = 0


class LockDenied(TxnError):
    """Others hold what was asked for, and still did after the last retry. Nothing is held."""

    def __init__(self, wanted: LockRequest, holders: Sequence[Lock]) -> None:
        held = ", ".join(f"{lock.request} by {lock.owner}" for lock in holders)
        super().__init__(
            annotate(f"lock denied: {held or 'somebody is before us'}", wanted=str(wanted))
        )
        self.wanted = wanted
        self.holders = tuple(holders)


@dataclass(frozen=True, slots=True)
class LockListing:
    """Locks as they were at some moment; is_whole: these are all of them."""

    locks: tuple[Lock, ...]
    is_whole: bool


class LockReader(Protocol):
    """Lists locks and changes nothing: a session that has stopped is not ended by it."""

    def list_first(self, most: int) -> LockListing:
        """Return held and awaited locks in the order of their paths and of their arrival, no more
        than so many."""

    def close(self) -> None:
        """Release the connection."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long and how to wait. Durations in milliseconds; Hive's settings by `from_hive`.

    retries: after the first denial. pause_ms: between them, each between half and all of it; Hive's
    own default is a minute.
    deadline_ms: for all of it; 0 or less: one try; None: only the retries count.
    unlock_retries: for a release.
    enabled: False turns locking off.
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
    """Return how to wait; as usual if it is None."""
    if not isinstance(waiting, Waiting | None):
        raise InvalidRequestError(f"how to wait is told by a Waiting: waiting={waiting!r}")
    return Waiting() if waiting is None else waiting


def login_name() -> str:
    """Return the name of the user; its number if it has no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
