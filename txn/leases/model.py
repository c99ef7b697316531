"""The model of a lease: its owner, object, mode and time; and leases that a heartbeat extends.

Times are the database's, in UTC. Claims conflict as lock requests do: a claim on a partition is a
shared claim on its table and on the partitions that contain it. The database decides when a lease
has ended. A holder that cannot reach it relies on its heartbeat, which allows for a difference
between the two clocks (see txn/locks/held.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from logging import getLogger
from numbers import Real
from typing import Literal
from weakref import ref

from txn.clock import Clock
from txn.errors import InvalidRequestError, TxnError, annotate
from txn.locks.held import Grant, Heartbeat, Held
from txn.locks.model import LockRequest, Mode, Path, in_order, parts_of, path
from txn.text import show_text

LeaseType = Literal["s", "x"]
"""`s`: shared, for readers. `x`: exclusive, for writers."""

MAX_OBJECTS = 1_000
MAX_OBJECT = 2_000
"""The longest path as text (characters): PostgreSQL does not index much longer texts."""

MAX_USER = 255
LAST_ID = 2**63 - 1
SHORTEST_S = 0.001
DRIFT = 100
"""Two clocks may differ by one part in `DRIFT` of a duration."""

LOG = getLogger("txn")


@dataclass(frozen=True, slots=True)
class Lease:
    """One object of a lease. partition_name: like `day=1/hour=2`; empty for a whole table.
    Extending a lease does not change start_utc. All objects of one grab have the same lease_id, and
    a later grab has a larger one."""

    user: str
    lease_id: int
    db_name: str
    table_name: str
    partition_name: str
    start_utc: datetime
    end_utc: datetime
    lease_type: LeaseType

    @property
    def path(self) -> Path:
        partition = parts_of(self.partition_name) if self.partition_name else ()
        return Path((self.db_name, self.table_name, *partition))

    @property
    def request(self) -> LockRequest:
        return LockRequest(self.path, Mode(self.lease_type.upper()))

    def __str__(self) -> str:
        return f"{self.request} by {show_text(self.user)} until {self.end_utc.isoformat()}"


Object = str | Path | LockRequest | Lease
"""A database, a table or a partition; the owner and the mode of a lease or request are ignored."""

Objects = Iterable[Object] | Object
Claims = Iterable[LockRequest] | LockRequest


class InvalidArgumentsError(InvalidRequestError):
    """The request is not a valid claim or has an invalid duration. Nothing was written."""


class ExceedsMaxLeaseTimeError(InvalidArgumentsError):
    """The lease would exceed the longest allowed time: ask for less, or grab another one later."""


class LeaseNotFoundError(TxnError):
    """The lease, or a part of it, has expired or was dropped: stop, and write nothing else."""


class LeaseAlreadyExistsError(TxnError):
    """Conflicting leases or requests were still there when the wait ended. Nothing is held.

    lease: the one in the way that ends last. waits: that one is not granted yet, but was requested
    earlier; its end is that of its place in the queue unless its owner keeps waiting.
    """

    retryable = True

    def __init__(self, lease: Lease, *, waits: bool = False) -> None:
        said = f"leased already: {lease}"
        if waits:
            said = f"somebody waits before us: {lease.request} by {lease.user}"
        super().__init__(annotate(said, lease_id=None if waits else lease.lease_id))
        self.lease = lease
        self.waits = waits


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
        held = ref(self)

        def renew() -> bool | None:
            lease = held()
            if lease is None:  # an interrupted thread has dropped it
                drop()
                return None
            if lease.lost:
                return None
            try:
                extend()
            except LeaseNotFoundError:
                return False
            except ExceedsMaxLeaseTimeError as error:
                LOG.warning("a lease is not extended any more: %s", error)
                return None
            return True

        heartbeat = Heartbeat(
            "extend lease",
            renew,
            duration_s,
            sure_ms=int(duration_s * 1000 * (DRIFT - 1) / DRIFT),
            began_ms=began_ms,
            clock=clock,
        )

        def end() -> None:
            heartbeat.stop()
            drop()

        tokens = {each.path: lease_id for each in objects}
        grant = Grant(tokens, lambda: heartbeat.lost, are_there, end)
        super().__init__(in_order(objects), grant, f"lease {lease_id}")
        heartbeat.start()


def check_claims(objects: Claims) -> tuple[LockRequest, ...]:
    """Return each object once, in its stronger mode, in path order."""
    claims: dict[Path, LockRequest] = {}
    for each in _list_objects(objects):
        if not isinstance(each, LockRequest):
            message = f"say how to claim it: shared(..) or exclusive(..): object={each!r}"
            raise InvalidArgumentsError(message)
        _read_path(at := each.path)
        if len(at.parts) < 2:
            raise InvalidArgumentsError("name a table: database/table", path=str(at))
        if len(text := str(at)) > MAX_OBJECT:
            raise InvalidArgumentsError("a path that is too long", path=text[:40], limit=MAX_OBJECT)
        if at not in claims or each.mode is Mode.EXCLUSIVE:
            claims[at] = each
    if not 0 < len(claims) <= MAX_OBJECTS:
        message = "a lease is for one object at least"
        raise InvalidArgumentsError(message, objects=len(claims), limit=MAX_OBJECTS)
    return tuple(claims[at] for at in sorted(claims))


def list_paths(objects: Objects) -> tuple[Path, ...]:
    return tuple(sorted({_read_path(each) for each in _list_objects(objects)}))


def check_seconds(name: str, given: object, longest_s: float, least_s: float = SHORTEST_S) -> float:
    """Return a number of seconds as a float; it must be finite and within these limits."""
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if not (is_number and least_s <= given <= longest_s < math.inf):  # type: ignore[operator]
        raise InvalidArgumentsError(
            f"{name} must be a number of seconds: {given!r} least_s={least_s} longest_s={longest_s}"
        )
    return float(given)  # type: ignore[arg-type]


def check_duration(given: object, longest_s: float) -> timedelta:
    if isinstance(given, Real) and given > longest_s:  # type: ignore[operator]
        message = "too long for a lease"
        raise ExceedsMaxLeaseTimeError(message, duration_s=given, longest_s=longest_s)
    return timedelta(seconds=check_seconds("duration_s", given, longest_s))


def find_tables(objects: Sequence[Path]) -> tuple[Path, ...]:
    """Return the tables of the objects: objects of different tables never conflict."""
    return tuple(sorted({Path(each.parts[:2]) for each in objects}))


def check_user(user: object) -> str:
    if not isinstance(user, str) or not 0 < len(user) <= MAX_USER or not _is_text(user):
        shown = repr(user)[:40]
        raise InvalidArgumentsError(f"not a name of a user: user={shown} limit={MAX_USER}")
    return user


def _list_objects(objects: object) -> Iterable[object]:
    """Return the objects as an iterable. Bytes are one (invalid) object, not a sequence."""
    is_one = isinstance(objects, (str, bytes, bytearray)) or not isinstance(objects, Iterable)
    return (objects,) if is_one else objects  # type: ignore[return-value]


def _read_path(given: object) -> Path:
    match given:
        case LockRequest() | Lease():
            found = given.path
        case Path():
            found = given
        case str():
            try:
                found = path(given)
            except InvalidRequestError as error:
                raise InvalidArgumentsError("not a path of an object", given=given) from error
        case _:
            raise InvalidArgumentsError(f"not a path, a request or a lease: object={given!r}")
    if not all(map(_is_text, found.parts)):
        raise InvalidArgumentsError("not text", path=found.parts[:3])
    return found


def _is_text(part: str) -> bool:
    """Return True if every database can store the text."""
    return "\0" not in part and not any("\ud800" <= letter <= "\udfff" for letter in part)
