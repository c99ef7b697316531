"""Locks as users see them: paths, requests, owners, locks, denials and wait policies.

Shared is compatible only with shared. A lock on an object takes each of its parents as shared. The
objects of a request are taken in path order, so requests cannot wait for each other in a cycle.

Hive's names are case-insensitive: names of databases, tables and partition columns are stored in
lower case. Partition values keep their case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, Protocol, get_args
from urllib.parse import quote, unquote

from txn.arguments import check_calls, check_fields
from txn.errors import InvalidRequestError, TxnError
from txn.model import check_choice, check_items, check_whole
from txn.text import show_text

NAMES = 2  # the names of the database and the table
MAX_PARTS = 32
MAX_PART = 255

Fairness = Literal["fair", "hive"]
"""`fair`: readers that come after a waiting writer wait behind it. `hive`: a request keeps no place
while it waits, so readers starve writers; it waits behind the places of fair ones."""


class Mode(Enum):
    """How a request locks an object: beside other readers, or alone."""

    SHARED = "S"
    EXCLUSIVE = "X"

    def allows(self, other: Mode) -> bool:
        return self is other is Mode.SHARED


@dataclass(frozen=True, slots=True, order=True)
class Path:
    """An object: `database/table/part=1/part=2`, outermost first, its names in lower case."""

    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        # Below the table, only the column of `column=value` is a name.
        columns = (part.partition("=") for part in self.parts[NAMES:])
        below = (name.lower() + sign + value if sign else name for name, sign, value in columns)
        object.__setattr__(self, "parts", (*map(str.lower, self.parts[:NAMES]), *below))
        if not 0 < len(self.parts) <= MAX_PARTS:
            message = "a path has one part at least"
            raise InvalidRequestError(message, parts=len(self.parts), limit=MAX_PARTS)
        for part in self.parts:
            if not part or len(part) > MAX_PART or part in {".", ".."}:
                message = "not a part of a path"
                raise InvalidRequestError(message, part=part[:40], path="/".join(self.parts[:3]))

    @property
    def parents(self) -> tuple[Path, ...]:
        return tuple(Path(self.parts[:count]) for count in range(1, len(self.parts)))

    def __str__(self) -> str:
        return text_of(self.parts)


@check_calls
def path(text: str) -> Path:
    """Return the path that a text names, such as `database/table`."""
    return Path(parts_of(text))


def as_path(given: str | Path) -> Path:
    return given if isinstance(given, Path) else path(given)


def text_of(parts: Iterable[str]) -> str:
    """Return parts of a path as text; a `/` within a part becomes %2F."""
    return "/".join(quote(part, safe="=-_.+ ") for part in parts)


def parts_of(text: str) -> tuple[str, ...]:
    """Return the parts in a text, with their case unchanged."""
    return tuple(unquote(part) for part in text.split("/"))


@dataclass(frozen=True, slots=True, order=True)
class LockRequest:
    """An object to lock, and the mode to lock it in."""

    path: Path
    mode: Mode

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        return f"{self.mode.value} {self.path}"


def shared(text: str | Path) -> LockRequest:
    """Return a request for an object that other readers may share. Others may still change what the
    object contains: to read a table's partitions, lock each of them."""
    return LockRequest(as_path(text), Mode.SHARED)


def exclusive(text: str | Path) -> LockRequest:
    """Return a request to lock an object in exclusive mode."""
    return LockRequest(as_path(text), Mode.EXCLUSIVE)


def in_order(requests: Iterable[LockRequest] | LockRequest) -> tuple[LockRequest, ...]:
    """Return all locks that the requests need, in path order: each object once in its stronger
    mode, and every parent at least as shared."""
    modes: dict[Path, Mode] = {}
    given = (requests,) if isinstance(requests, LockRequest | str) else requests
    for request in check_items("requests", given):
        if not isinstance(request, LockRequest):
            message = f"say how to lock it: shared(..) or exclusive(..): given={request!r}"
            raise InvalidRequestError(message)
        for parent in request.path.parents:
            modes.setdefault(parent, Mode.SHARED)
        if modes.get(request.path) is not Mode.EXCLUSIVE:
            modes[request.path] = request.mode
    return tuple(LockRequest(each, modes[each]) for each in sorted(modes))


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a lock, as shown to waiting requests. query: the statement, if any."""

    name: str
    host: str
    query: str = ""

    def __str__(self) -> str:
        query = f" ({self.query[:80]})" if self.query else ""
        return show_text(f"{self.name}@{self.host}{query}")


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

    retryable = True

    def __init__(self, wanted: LockRequest, holders: Sequence[Lock]) -> None:
        held = ", ".join(f"{lock.request} by {lock.owner}" for lock in holders)
        super().__init__(f"lock denied: {held or 'somebody is before us'}", wanted=str(wanted))
        self.wanted = wanted
        self.holders = tuple(holders)


class LockListing(NamedTuple):
    """The locks at some moment. is_whole: False if there are more."""

    locks: tuple[Lock, ...]
    is_whole: bool


class LockReader(Protocol):
    """Lists locks and changes nothing: it does not end silent sessions."""

    def list_first(self, most: int) -> LockListing:
        """Return at most `most` held and awaited locks, by path and then by arrival."""


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
        check_choice("enabled", self.enabled, (True, False))
        check_choice("fairness", self.fairness, get_args(Fairness))
