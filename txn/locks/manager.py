"""What every lock manager does, and what it tells: the contract of ZooKeeper's and the store's.

A request is for all of its objects or none of them. What is held is lost when its session or its
lease ends; then the holder is told, and must stop. A fencing token grows with every exclusive
grant of an object, so that whatever is locked can refuse an owner that has lost the lock unawares.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from txn.errors import InvalidRequestError, TxnError, annotate
from txn.locks.requests import LockRequest, Path, in_order
from txn.model import check_choice, check_whole

Fairness = Literal["fair", "hive"]
"""`hive`: one that is compatible with the holders gets in, and readers starve writers. `fair`:
readers that come after a waiting writer wait behind it."""


class LockDenied(TxnError):
    """Others hold what was asked for, and still did after the last retry. Nothing is held."""

    def __init__(self, wanted: LockRequest, holders: Sequence[Lock]) -> None:
        held = ", ".join(f"{lock.request} by {lock.owner}" for lock in holders)
        super().__init__(
            annotate(f"lock denied: {held or 'somebody is before us'}", wanted=str(wanted))
        )
        self.wanted = wanted
        self.holders = tuple(holders)


class LockLost(TxnError):
    """What was held is not any more: stop, and write nothing else."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who wants a lock, for those whom it keeps waiting. query: the statement, if there is one."""

    name: str
    host: str
    query: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.host}" + (f" ({self.query[:80]})" if self.query else "")


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock as others see it. since_ms: wall clock. explicit: it survives its session."""

    request: LockRequest
    owner: Owner
    since_ms: int
    granted: bool
    explicit: bool = False
    token: int = 0


@dataclass(frozen=True, slots=True)
class SeenLocks:
    """What a look at the locks has found, which may be over by now; is_whole: all that there was,
    and not the first of it alone."""

    locks: tuple[Lock, ...]
    is_whole: bool


class LockLook(Protocol):
    """Sees locks, and changes nothing: a session that has stopped is not ended by it."""

    def list_first(self, most: int) -> SeenLocks:
        """Return who holds and who waits, in the order of the paths and of their arrival, so many
        of them at most."""

    def close(self) -> None:
        """Give back what the look needed."""


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
    """Return how to wait, as usual where nothing is said."""
    if not isinstance(waiting, Waiting | None):
        raise InvalidRequestError(f"how to wait is told by a Waiting: waiting={waiting!r}")
    return Waiting() if waiting is None else waiting


def check_hold(
    requests: Iterable[LockRequest] | LockRequest, query: str, waiting: Waiting
) -> tuple[LockRequest, ...]:
    """Return what `hold` is to take, nothing where locking is turned off."""
    if not isinstance(query, str):
        raise InvalidRequestError(f"a query is text: query={query!r}")
    return in_order(requests) if waiting_or_default(waiting).enabled else ()


def owner_name(name: str | None) -> str:
    """Return the name of an owner; that of the user, if none is given."""
    if not isinstance(name, str | None):
        raise InvalidRequestError(f"the name of an owner is text: name={name!r}")
    return name or login_name()


def login_name() -> str:
    """Return the name of the user, whose number is enough where it has none, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class Held(Protocol):
    """Locks that are held, all of a request. Leaving the block releases them."""

    requests: tuple[LockRequest, ...]
    """In order, the parents among them."""

    tokens: Mapping[Path, int]
    """The fencing token of each object."""

    @property
    def lost(self) -> bool:
        """Whether they are lost, or may be, for want of contact; a call that costs nothing."""

    def check(self) -> None:
        """Raise LockLost unless they are certainly held at this moment."""

    def release(self) -> None:
        """Give them back; a second call changes nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class LockManager(Protocol):
    """Grants locks. Safe to share between threads."""

    def hold(
        self,
        requests: Iterable[LockRequest] | LockRequest,
        *,
        query: str = "",
        explicit: bool = False,
        waiting: Waiting | None = None,
    ) -> Held:
        """Take all of the requests and their parents, or none: LockDenied names who has them."""

    def locks(self, within: str | Path | None = None) -> list[Lock]:
        """Return who holds and who waits, in the order of the paths and of their arrival; only an
        object and what lies in it, if one is given."""

    def release(self, wanted: str | Path, *, force: bool = False) -> int:
        """Give back explicit locks on exactly this object, of this owner or with `force` of all;
        return how many there were."""

    def close(self) -> None:
        """End the session; what it holds implicitly is given back."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
