"""Leases in a relational database, granted all or nothing, timed by its clock.

Each decision about an object is made under the lock of its table (`take_turn` in databases.py):
read the conflicting rows, then the clock, then write. Expired rows in the way are removed at once,
so no extension can revive them. A waiting request has rows too, which keep its place in the queue.
They expire like leases unless the request renews them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from sqlalchemy import URL, ColumnElement, Connection, Row, and_, delete, insert, select, update

from txn.clock import Clock, SystemClock
from txn.errors import CorruptRowError, StoreError
from txn.host.holds import Hold
from txn.host.owner import login_name
from txn.leases.databases import UNREADABLE, Connections
from txn.leases.model import (
    LAST_ID,
    Claims,
    ExceedsMaxLeaseTimeError,
    HeldLease,
    InvalidArgumentsError,
    Lease,
    LeaseAlreadyExistsError,
    LeaseNotFoundError,
    Objects,
    check_claims,
    check_duration,
    check_seconds,
    check_user,
    find_tables,
    list_paths,
)
from txn.leases.tables import BATCH, leases, match_conflicts, match_overlaps, match_within, now
from txn.locks.model import LockRequest, Path, text_of
from txn.model import check_whole
from txn.policy import Backoff

WEEK_S = 7 * 24 * 3600
CENTURY_S = 100 * 365 * 24 * 3600
RETRYING = Backoff(first_ms=5, longest_ms=200)
SWEEP_EVERY = 100
MOST_SHOWN = 100
SHORTEST_PLACE_S = 1

this = leases.c

T = TypeVar("T")


class _Grab(NamedTuple):
    """A request for a lease. An attempt finds the rows of earlier attempts by the token."""

    token: str
    objects: tuple[LockRequest, ...]
    duration: timedelta
    user: str

    @property
    def tables(self) -> tuple[Path, ...]:
        return find_tables([each.path for each in self.objects])


class LeaseService:
    """Grants leases. Safe to share between threads, and usable after a fork.

    Every call raises StoreError if the database does not answer within 15 seconds. max_lease_s:
    longest time from the start of a lease to its end. place_s: how long a waiting request keeps its
    place in the queue without renewing it.
    """

    def __init__(
        self,
        url: URL,
        *,
        max_lease_s: float = WEEK_S,
        place_s: float = 10,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._max_lease_s = check_seconds("max_lease_s", max_lease_s, CENTURY_S)
        self._place = timedelta(seconds=check_seconds("place_s", place_s, WEEK_S, SHORTEST_PLACE_S))
        self._asked: dict[str, tuple[Hold, _Grab]] = {}
        self.connections = Connections(url, self._clock, self._rng)

    def grab_lease(
        self, objects: Claims, duration_s: float, wait_s: float = 0, *, user: str | None = None
    ) -> int:
        """Lease all objects, which need not exist, or none; return the id of the lease.

        wait_s: how long to wait, first come, first served; after that, LeaseAlreadyExistsError
        names a conflicting lease. After StoreError the lease may exist: the next grab drops it, or
        it expires.
        """
        request = self._make_request(objects, duration_s, user)
        return self._grab(request, wait_s, lambda lease_id: lease_id)

    def _make_request(self, objects: Claims, duration_s: float, user: str | None) -> _Grab:
        return _Grab(
            f"{self._rng.getrandbits(128):032x}",
            check_claims(objects),
            check_duration(duration_s, self._max_lease_s),
            check_user(login_name() if user is None else user),
        )

    def _grab(self, request: _Grab, wait_s: float, make: Callable[[int], T]) -> T:
        """Return what is made of the id of a lease. If that fails or is interrupted, the lease is
        dropped, now or by the next grab."""
        due_ms = round(check_seconds("wait_s", wait_s, WEEK_S, 0) * 1000)
        due_ms += self._clock.monotonic_ms()
        self._sweep()
        try:
            with (hold := Hold()):
                self._asked[request.token] = hold, request
                try:
                    made = make(self._retry_until_granted(request, due_ms))
                except LeaseAlreadyExistsError:
                    del self._asked[request.token]
                    raise
                del self._asked[request.token]
                return made
        except LeaseAlreadyExistsError:
            raise
        except BaseException:
            self._sweep()
            raise

    def list_lease(self, objects: Objects = (), *, most: int | None = None) -> list[Lease]:
        """Return the leases of these objects and of all that they contain, and the exclusive leases
        of all that contains them. Return all leases if no objects are given. Sorted by object.
        most: the largest number to return, of any leases."""
        if most is not None:
            check_whole("most", most, 0)
            most = min(most, LAST_ID)
        is_live = and_(this.granted, this.end_utc > now())
        wanted = [
            and_(match_overlaps(some), is_live) for some in _split_batches(list_paths(objects))
        ]

        def work(connection: Connection) -> list[Lease]:
            found = {
                _make_lease(row)
                for some in wanted or [is_live]
                for row in connection.execute(select(leases).where(some).limit(most))
            }
            return sorted(found, key=lambda lease: (lease.path, lease.lease_id))[:most]

        return self.connections.run(work)

    def extend_lease(
        self, lease_id: int, objects: Objects = (), duration_s: float | None = None
    ) -> datetime:
        """Extend these objects of a lease, or all; return until when all of them are leased.

        Each then ends `duration_s` from now or later; the default is the duration of the grab. All
        means all that were granted: a holder that dropped some must name the rest. Raises
        LeaseNotFoundError, and extends nothing, if one of them is not leased any more.
        """
        wanted = list_paths(objects)
        chosen = _match_lease(lease_id, wanted)
        asked = None if duration_s is None else check_duration(duration_s, self._max_lease_s)

        def work(connection: Connection) -> datetime:
            there = connection.execute(select(leases).where(chosen)).all()
            tables = find_tables([_make_lease(row).path for row in there])
            self.connections.database.take_turn(connection, tables)
            rows = connection.execute(select(leases).where(chosen)).all()
            at = _read_now(connection)
            count = max(len(rows), len(wanted) or max((row.claims for row in rows), default=1))
            left = sum(row.end_utc > at for row in rows)
            if left < count:
                raise _make_not_found(lease_id, wanted, left, count)
            end = at + (asked or timedelta(seconds=rows[0].duration_s))
            start, longest_s = rows[0].start_utc, self._max_lease_s
            if end > start + timedelta(seconds=longest_s):
                message = "too long for a lease"
                raise ExceedsMaxLeaseTimeError(message, end=end, start=start, longest_s=longest_s)
            is_shorter = this.end_utc < end
            changed = connection.execute(
                update(leases).where(chosen, is_shorter).values(end_utc=end)
            )
            dropped = sum(row.end_utc < end for row in rows) - changed.rowcount  # dropped meanwhile
            if dropped:
                raise _make_not_found(lease_id, wanted, left - dropped, count)
            ends: list[datetime] = [max(row.end_utc, end) for row in rows]
            return min(ends)

        return self.connections.run(work)

    def drop_lease(self, lease_id: int, objects: Objects = ()) -> int:
        """End these objects of a lease, or all; return how many were leased, or fewer if the
        database failed meanwhile. A lease that has ended is not an error."""
        return self._drop(and_(_match_lease(lease_id, list_paths(objects)), this.end_utc > now()))

    def force_drop_lease(self, objects: Objects) -> int:
        """End the leases of all users on these objects and on all that they contain, or all leases
        if no objects are given; return how many there were. Leases on containing objects stay. A
        Lease stands for its object, which another user may hold by now;
        `drop_lease(its.lease_id, its)` ends only that one."""
        is_live = and_(this.granted, this.end_utc > now())
        wanted = [and_(match_within(some), is_live) for some in _split_batches(list_paths(objects))]
        return self._drop(*(wanted or [is_live]))

    def hold(
        self, objects: Claims, duration_s: float, wait_s: float = 0, *, user: str | None = None
    ) -> HeldLease:
        """Grab a lease that extends itself until it is released, lost, or `max_lease_s` old. If the
        holder dies, the lease ends within duration_s. Raises the errors of `grab_lease` and, if
        wait_s > 0, those of `extend_lease`, after which it drops the lease."""
        request = self._make_request(objects, duration_s, user)
        began_ms = self._clock.monotonic_ms()

        def make(lease_id: int) -> HeldLease:
            extend = partial(self.extend_lease, lease_id, duration_s=duration_s)
            since_ms = began_ms
            if wait_s > 0:  # it may have been granted at any time during the wait
                since_ms = self._clock.monotonic_ms()
                extend()
            paths = {each.path for each in request.objects}

            def are_there() -> bool:
                there = self.list_lease(paths)
                return paths <= {each.path for each in there if each.lease_id == lease_id}

            return HeldLease(
                lease_id,
                request.objects,
                duration_s=duration_s,
                began_ms=since_ms,
                clock=self._clock,
                extend=extend,
                are_there=are_there,
                drop=partial(self.drop_lease, lease_id),
            )

        return self._grab(request, wait_s, make)

    def remove_expired(self) -> int:
        """Remove expired rows; return how many there were. Grabs also do this now and then."""
        return self._drop(this.end_utc <= now())

    def now(self) -> datetime:
        """Return the time by the database's clock, which alone decides."""
        return self.connections.run(_read_now)

    def close(self) -> None:
        """Close the connections; leases stay."""
        self.connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _retry_until_granted(self, request: _Grab, due_ms: int) -> int:
        tries = 0
        while True:
            tries += 1
            left_ms = due_ms - self._clock.monotonic_ms()
            attempt = partial(self._attempt, request=request, waits=left_ms > 0)
            found = self.connections.run(attempt)
            if isinstance(found, int):
                return found
            if left_ms <= 0:
                raise LeaseAlreadyExistsError(_make_lease(found), waits=not found.granted)
            self._clock.sleep_ms(min(RETRYING.pause_ms(tries, self._rng), left_ms))

    def _attempt(self, connection: Connection, request: _Grab, *, waits: bool) -> int | Row[Any]:
        """Return the lease id or a conflicting row; if it waits, the request then has a place."""
        self.connections.database.take_turn(connection, request.tables)
        is_mine = this.token == request.token
        mine = connection.execute(select(leases).where(is_mine)).first()
        if mine is not None and mine.granted:
            return int(mine.lease_id)  # granted by an attempt whose reply was lost
        # Conflicting leases, and conflicting requests that are before this one in the queue.
        is_before = this.granted | (this.lease_id < (LAST_ID if mine is None else mine.lease_id))
        batches = _split_batches(request.objects)
        in_the_way = [and_(match_conflicts(some), is_before) for some in batches]
        found: list[Row[Any]] = []
        for some in in_the_way:  # if the rows that end last have expired, all have
            rows = select(leases).where(some).order_by(this.end_utc.desc()).limit(MOST_SHOWN)
            found += connection.execute(rows)
        at = _read_now(connection)
        if live := [row for row in found if row.end_utc > at]:
            if waits:
                self._keep_place(connection, request, mine, at)
            else:
                connection.execute(delete(leases).where(is_mine))
            return max(live, key=lambda row: (row.granted, row.end_utc))
        for some in in_the_way if found else []:
            connection.execute(delete(leases).where(some, this.end_utc <= at))
        if mine is not None:
            connection.execute(delete(leases).where(is_mine))
        lease_id = self._insert(connection, request, at, request.duration, granted=True)
        if lease_id % SWEEP_EVERY == 0:
            connection.execute(delete(leases).where(this.end_utc <= at))
        return lease_id

    def _keep_place(
        self, connection: Connection, request: _Grab, mine: Row[Any] | None, at: datetime
    ) -> None:
        if mine is None:
            self._insert(connection, request, at, self._place, granted=False)
        elif mine.end_utc - at < self._place * 2 / 3:
            is_mine = this.token == request.token
            connection.execute(update(leases).where(is_mine).values(end_utc=at + self._place))

    def _insert(
        self, connection: Connection, grab: _Grab, at: datetime, lasts: timedelta, *, granted: bool
    ) -> int:
        number = self.connections.database.next_id(connection)
        shared = {
            "lease_id": number,
            "user_name": grab.user,
            "start_utc": at,
            "end_utc": at + lasts,
            "granted": granted,
            "duration_s": grab.duration.total_seconds(),
            "token": grab.token,
            "claims": len(grab.objects),
        }
        connection.execute(insert(leases), [{**shared, **_make_columns(o)} for o in grab.objects])
        return number

    def _sweep(self) -> None:
        """Remove rows of failed grabs. The table lock waits for an attempt that still runs."""
        for token, (hold, request) in list(self._asked.items()):
            if hold.locked():
                continue  # under way
            try:
                self.connections.run(partial(self._remove, request=request), within_ms=0)
            except StoreError:
                return
            self._asked.pop(token, None)

    def _remove(self, connection: Connection, request: _Grab) -> None:
        self.connections.database.take_turn(connection, request.tables)
        connection.execute(delete(leases).where(this.token == request.token))

    def _drop(self, *chosen: ColumnElement[bool]) -> int:
        def work(connection: Connection) -> int:
            return sum(connection.execute(delete(leases).where(some)).rowcount for some in chosen)

        return self.connections.run(work)


def _split_batches(objects: Sequence[Any]) -> list[Sequence[Any]]:
    return [objects[begin : begin + BATCH] for begin in range(0, len(objects), BATCH)]


def _match_lease(lease_id: int, objects: Sequence[Path]) -> ColumnElement[bool]:
    if type(lease_id) is not int or not 0 < lease_id <= LAST_ID:
        raise InvalidArgumentsError(f"not an id of a lease: lease_id={lease_id!r} limit={LAST_ID}")
    whole = and_(this.lease_id == lease_id, this.granted)
    return and_(whole, this.object.in_([str(each) for each in objects])) if objects else whole


def _read_now(connection: Connection) -> datetime:
    return connection.execute(select(now())).scalar_one()


def _make_columns(request: LockRequest) -> dict[str, str]:
    db, table, *partition = request.path.parts
    return {
        "object": str(request.path),
        "db_name": db,
        "table_name": table,
        "partition_name": text_of(partition),
        "lease_type": request.mode.value.lower(),
    }


def _make_lease(row: Row[Any]) -> Lease:
    found = Lease(row.user_name, *(getattr(row, each.name) for each in fields(Lease)[1:]))
    try:
        str(found)
    except (AttributeError, TypeError, ValueError) as error:
        raise CorruptRowError(UNREADABLE, key=row.lease_id, cause=str(error)) from error
    return found


def _make_not_found(
    lease_id: int, wanted: Sequence[Path], left: int, count: int
) -> LeaseNotFoundError:
    facts = {"objects": [str(each) for each in wanted] or None, "left": left, "of": count}
    return LeaseNotFoundError("the lease has ended, wholly or in part", lease_id=lease_id, **facts)
