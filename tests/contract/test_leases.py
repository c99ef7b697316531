"""What the lease service promises, asked on SQLite and on PostgreSQL: the same answers on both.

Two services stand for two processes: they share nothing but the database.
"""

import math
import random
import string
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor as Pool
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise, product
from typing import Any

import pytest
from sqlalchemy import update

from txn.clock import SystemClock, poll
from txn.leases import (
    ExceedsMaxLeaseTimeError,
    InvalidArgumentsError,
    LeaseAlreadyExistsError,
    LeaseNotFoundError,
    LockRequest,
    Mode,
    Path,
    exclusive,
    open_leases,
    path,
    shared,
)
from txn.leases.service import LeaseService as Leases
from txn.leases.tables import leases as rows
from txn.locks.model import in_order

PATIENCE_MS = 60_000
LONG_S = 3_600
WAIT_S = 300
CHANCE = random.Random(1)
PARTS = ("".join(CHANCE.choices(string.ascii_letters, k=size)) for size in (246, *[249] * 7))
LONGEST = ("d", "t", *PARTS)  # 2000 letters with what is between them
NAMES = ("d/t", "d/t/p=1", "d/t/p=1/q=2", "d/t/p=10", "d/t0", "d/u", "e/t")


@dataclass
class Subject:
    """A database of leases, and services that use it."""

    url: str
    opened: list[Leases] = field(default_factory=list)

    def another(self, **details: Any) -> Leases:
        """A service in which no place ends because the machine is slow."""
        self.opened.append(open_leases(self.url, **{"place_s": LONG_S, **details}))
        return self.opened[-1]


@pytest.fixture
def subject(database_url: str) -> Iterator[Subject]:
    found = Subject(database_url)
    yield found
    for service in found.opened:
        service.close()


@pytest.fixture
def one(subject: Subject) -> Leases:
    return subject.another()


@pytest.fixture
def two(subject: Subject) -> Leases:
    return subject.another()


@pytest.fixture
def pool(subject: Subject) -> Iterator[Pool]:
    """Threads; when a test fails nobody goes on waiting in them."""
    with Pool(8) as found:
        yield found
        for service in subject.opened:
            service.close()


def free(service: Leases, *objects: LockRequest) -> bool:
    """Whether objects can be had at once; then they are dropped."""
    try:
        lease_id = service.grab_lease(objects, LONG_S)
    except LeaseAlreadyExistsError:
        return False
    assert service.drop_lease(lease_id) == len(objects)
    return True


def leased(service: Leases, *objects: str) -> list[str]:
    return [str(lease.request) for lease in service.list_lease(objects)]


def places(service: Leases) -> int:
    """How many rows of requests that wait there are."""
    chosen = rows.select().where(~rows.c.granted)
    return service.connections.run(lambda each: len(each.execute(chosen).all()))


def wait_for_places(service: Leases, count: int) -> None:
    assert poll(lambda: places(service) == count, PATIENCE_MS)


def place(service: Leases) -> Any:
    """The row of the one request that waits."""
    chosen = rows.select().where(~rows.c.granted)
    return service.connections.run(lambda each: each.execute(chosen).one())


def let_pass(service: Leases, passed: timedelta, lease_id: int | None = None) -> None:
    """Let so much time have passed for a lease, or for all and the places in the line."""
    chosen = rows.c.lease_id == lease_id if lease_id else rows.c.lease_id > 0

    def work(connection: Any) -> None:
        for row in connection.execute(rows.select().where(chosen)).all():
            times = {"start_utc": row.start_utc - passed, "end_utc": row.end_utc - passed}
            is_row = (rows.c.lease_id == row.lease_id, rows.c.object == row.object)
            connection.execute(update(rows).where(*is_row).values(**times))

    service.connections.run(work)


def deny(one: LockRequest, two: LockRequest) -> bool:
    """Whether two requests for locks, each with its parents, could not be held together."""
    modes = {each.path: each.mode for each in in_order([one])}
    theirs = [each for each in in_order([two]) if each.path in modes]
    return not all(each.mode.allows(modes[each.path]) for each in theirs)


def test_claims_conflict_exactly_as_locks_do(one: Leases, two: Leases) -> None:
    """A lease on a table must keep out who would write a partition of it, and nobody else."""
    claims = [LockRequest(path(name), mode) for name, mode in product(NAMES, Mode)]
    for held in claims:
        lease_id = one.grab_lease([held], LONG_S)
        found = [free(two, wanted) for wanted in claims]
        assert found == [not deny(held, wanted) for wanted in claims], held
        one.drop_lease(lease_id)


def test_names_that_differ_by_case_are_one_and_values_are_not(one: Leases, two: Leases) -> None:
    """To Hive `Sales.Orders` and `sales.orders` are one table: two who lease it must meet."""
    lease_id = one.grab_lease([exclusive("Sales/ORDERS/Day=Mon/Place=a%2FB")], LONG_S)
    (lease,) = one.list_lease("SALES/orders/day=Mon")
    assert (lease.db_name, lease.table_name) == ("sales", "orders")
    assert lease.partition_name == "day=Mon/place=a%2FB"
    assert str(lease.path) == "sales/orders/day=Mon/place=a%2FB"
    assert not free(two, exclusive("sales/orders"))
    assert not free(two, shared("sAles/orders/daY=Mon/place=a%2FB"))
    assert free(two, exclusive("sales/orders/day=mon"))
    assert one.drop_lease(lease_id, ["SALES/Orders/DAY=Mon/place=a%2FB"]) == 1
    one.grab_lease([exclusive("sales/orders/day=Mon")], LONG_S)
    assert one.force_drop_lease("Sales/Orders/day=mon") == 0
    assert one.force_drop_lease("Sales/Orders/DAY=Mon") == 1


def test_names_are_told_apart_whatever_is_in_them(one: Leases, two: Leases) -> None:
    """Databases compare texts by rules of their own, and patterns give some letters a meaning."""
    odd = [*"éÉ日'\"\\", "e\u0301", "p=%", "p=_", "p=A", "p=a", "p=1", "p=1 ", "a/b"]
    for name in odd:
        one.grab_lease([LockRequest(Path(("d", "t", name)), Mode.EXCLUSIVE)], LONG_S)
    assert {lease.path.parts[2] for lease in two.list_lease("d/t")} == set(odd)
    for name in odd:
        assert not free(two, LockRequest(Path(("d", "t", name, "x")), Mode.SHARED))
    assert free(two, shared("d/t/p=2"), exclusive("d/t/p"), exclusive("d/t/p=1%20%20"))


def test_a_denial_names_the_holder_the_object_and_the_end_and_grants_nothing(
    one: Leases, two: Leases
) -> None:
    one.grab_lease([shared("d/t/p=2")], LONG_S, user="bob")
    one.grab_lease([shared("d/t/p=1")], 2 * LONG_S, user="ann")
    with pytest.raises(LeaseAlreadyExistsError) as denied:
        two.grab_lease([exclusive("d/a"), exclusive("d/t"), exclusive("d/z")], LONG_S)
    assert leased(two) == ["S d/t/p=1", "S d/t/p=2"]
    (lease,) = one.list_lease("d/t/p=1")
    assert denied.value.lease == lease
    assert not denied.value.waits
    assert f"S d/t/p=1 by ann until {lease.end_utc.isoformat()}" in str(denied.value)


def test_a_later_lease_has_a_larger_id(one: Leases, subject: Subject) -> None:
    """An id serves as a fencing token, also when all leases are gone and all clients closed."""
    found = []
    for _ in range(3):
        service = subject.another()
        found.append(service.grab_lease([exclusive("d/t")], LONG_S))
        service.drop_lease(found[-1])
        found.append(one.grab_lease([shared("d/u")], LONG_S))
        assert one.force_drop_lease([]) == 1
        service.close()
    assert all(before < after for before, after in pairwise(found))


def test_what_is_no_claim_is_refused_and_nothing_is_written(one: Leases) -> None:
    table = [exclusive("d/t")]
    refused: list[Callable[[], object]] = [
        lambda: one.grab_lease([], 1),
        lambda: one.grab_lease([exclusive("d")], 1),
        lambda: one.grab_lease(["d/t"], 1),  # type: ignore[list-item]
        lambda: one.grab_lease([LockRequest(Path(("d", "t\0")), Mode.SHARED)], 1),
        lambda: one.list_lease("d/\ud800"),
        lambda: one.grab_lease([LockRequest(Path((*LONGEST, "q")), Mode.SHARED)], 1),
        *(
            lambda bad=bad: one.grab_lease(table, bad)
            for bad in (0, -1, 0.0001, math.nan, math.inf, 1e300)
        ),
        lambda: one.grab_lease(table, 1, -1),
        lambda: one.grab_lease(table, 1, math.inf),
        lambda: one.grab_lease(table, 1, user="a\0b"),
        lambda: one.list_lease("d//t"),
        lambda: one.extend_lease(0),
        lambda: one.drop_lease(2**63),
    ]
    for attempt in refused:
        with pytest.raises(InvalidArgumentsError):
            attempt()
    assert one.list_lease() == []
    assert one.remove_expired() == 0
    assert places(one) == 0
    one.grab_lease([LockRequest(Path(LONGEST), Mode.EXCLUSIVE)], LONG_S)
    assert [lease.path.parts for lease in one.list_lease()] == [LONGEST]


def test_expired_leases_are_removed_later_also_by_grabs(one: Leases, two: Leases) -> None:
    for number in range(3):
        one.grab_lease([exclusive(f"d/t{number}"), shared("d/u")], LONG_S)
    one.grab_lease([exclusive("d/live")], 2 * LONG_S)
    let_pass(one, timedelta(seconds=LONG_S))
    assert two.remove_expired() == 6
    assert two.remove_expired() == 0
    assert leased(two) == ["X d/live"]
    let_pass(one, timedelta(seconds=2 * LONG_S))
    while one.grab_lease([shared("d/t")], LONG_S) % 100:
        pass
    assert one.remove_expired() == 0  # one of so many grabs has done it


def test_an_extension_moves_the_end_and_not_the_start(one: Leases, two: Leases) -> None:
    lease_id = one.grab_lease([exclusive("d/t"), shared("d/u")], LONG_S)
    let_pass(one, timedelta(seconds=LONG_S / 2))
    started = one.list_lease()[0].start_utc
    before = two.now()
    end = two.extend_lease(lease_id)  # by a process that knows no more than the id
    assert before <= end - timedelta(seconds=LONG_S) <= two.now()
    assert one.extend_lease(lease_id, duration_s=1) == end  # it never shortens
    assert [(lease.start_utc, lease.end_utc) for lease in one.list_lease()] == [(started, end)] * 2


def test_some_objects_of_a_lease_can_be_extended(one: Leases) -> None:
    lease_id = one.grab_lease([exclusive("d/t"), shared("d/u"), shared("d/v")], LONG_S)
    end = one.extend_lease(lease_id, ["d/u", shared("d/v")], duration_s=3 * LONG_S)
    table, *others = one.list_lease()
    assert table.end_utc < end
    assert [lease.end_utc for lease in others] == [end, end]
    assert one.extend_lease(lease_id, duration_s=2 * LONG_S) < end  # all are leased until then
    assert one.drop_lease(lease_id, "d/t") == 1
    with pytest.raises(LeaseNotFoundError):
        one.extend_lease(lease_id, duration_s=2 * LONG_S)
    assert one.extend_lease(lease_id, ["d/u", "d/v"], 4 * LONG_S) > end
    assert one.drop_lease(lease_id) == 2


def test_a_lease_cannot_be_extended_for_ever(subject: Subject) -> None:
    service = subject.another(max_lease_s=10 * LONG_S)
    with pytest.raises(ExceedsMaxLeaseTimeError):
        service.grab_lease([exclusive("d/t")], 10 * LONG_S + 0.5)
    service.grab_lease([exclusive("d/u")], 10 * LONG_S)
    lease_id = service.grab_lease([exclusive("d/t")], 6 * LONG_S)
    let_pass(service, timedelta(seconds=5 * LONG_S))
    end = service.extend_lease(lease_id, duration_s=4 * LONG_S)
    with pytest.raises(ExceedsMaxLeaseTimeError):
        service.extend_lease(lease_id)
    assert [lease.end_utc for lease in service.list_lease("d/t")] == [end]


def test_an_expired_lease_is_neither_extended_nor_counted_as_dropped(one: Leases) -> None:
    lease_id = one.grab_lease([exclusive("d/t")], LONG_S)
    let_pass(one, timedelta(seconds=LONG_S))
    with pytest.raises(LeaseNotFoundError):
        one.extend_lease(lease_id)
    assert one.list_lease() == []
    assert one.drop_lease(lease_id) == 0
    assert one.force_drop_lease([]) == 0


def test_a_lease_that_was_dropped_in_part_cannot_be_extended_as_a_whole(
    one: Leases, two: Leases
) -> None:
    """Its holder relies on all of it, and must hear it. The rest ends at its time."""
    lease_id = one.grab_lease([exclusive("d/t"), shared("d/u")], LONG_S)
    two_ends = one.extend_lease(lease_id)
    assert one.force_drop_lease("d/t") == 1
    for objects in ([], ["d/t"], ["d/t", "d/u"], ["d/x"]):
        for service in (one, two):
            with pytest.raises(LeaseNotFoundError):
                service.extend_lease(lease_id, objects, 2 * LONG_S)
    two.grab_lease([exclusive("d/t")], LONG_S)
    with pytest.raises(LeaseNotFoundError, match="left=1 of=2"):
        one.extend_lease(lease_id, duration_s=2 * LONG_S)
    assert [lease.end_utc for lease in one.list_lease("d/u")] == [two_ends]


def test_a_lease_stays_ended_when_the_clock_goes_back(one: Leases, two: Leases) -> None:
    """Whoever got the object after the first lease's end must not find that one alive again."""
    first = one.grab_lease([exclusive("d/t")], LONG_S)
    let_pass(one, timedelta(seconds=LONG_S))
    two.grab_lease([exclusive("d/t/p=1")], 2 * LONG_S)
    let_pass(one, timedelta(seconds=-LONG_S))
    with pytest.raises(LeaseNotFoundError):
        one.extend_lease(first)
    assert leased(one) == ["X d/t/p=1"]


def test_leases_are_listed_and_dropped_by_force_with_all_that_lies_within(
    one: Leases, two: Leases
) -> None:
    for name in NAMES:
        one.grab_lease([shared(name)], LONG_S)
    assert leased(one, "d/t") == ["S d/t", "S d/t/p=1", "S d/t/p=1/q=2", "S d/t/p=10"]
    assert leased(one, "d/t/p=1") == ["S d/t/p=1", "S d/t/p=1/q=2"]
    assert leased(one, "d/t/p=1", "d/t") == leased(one, "d/t")
    assert leased(one, "e") == ["S e/t"]
    assert leased(one) == [f"S {each}" for each in sorted(map(path, NAMES))]
    assert two.force_drop_lease("d/t/p=1") == 2
    assert two.force_drop_lease([path("d/t")]) == 2
    assert leased(two) == ["S d/t0", "S d/u", "S e/t"]
    assert two.force_drop_lease("d") == 2
    assert two.force_drop_lease([]) == 1


def test_nobody_overtakes_who_waits_and_conflicts(one: Leases, two: Leases, pool: Pool) -> None:
    reader = one.grab_lease([shared("d/t")], LONG_S)
    writer = pool.submit(two.grab_lease, [exclusive("d/t/p=1")], LONG_S, WAIT_S, user="bob")
    assert writer.result() > reader  # a shared claim of the table lets a partition be written
    writer = pool.submit(two.grab_lease, [exclusive("d/t")], LONG_S, WAIT_S, user="bob")
    wait_for_places(one, 1)
    one.force_drop_lease("d/t/p=1")
    with pytest.raises(LeaseAlreadyExistsError) as denied:
        one.grab_lease([shared("d/t")], LONG_S)
    assert denied.value.waits
    assert "somebody waits before us: X d/t by bob" in str(denied.value)
    assert free(one, shared("d/u"))
    one.drop_lease(reader)
    writer.result()
    assert leased(one) == ["X d/t"]


def test_a_waiter_that_died_is_in_the_way_for_seconds_only(
    one: Leases, two: Leases, pool: Pool
) -> None:
    one.grab_lease([shared("d/t")], LONG_S)

    class Killed(BaseException):
        """Stands for SIGKILL."""

    class Mortal(SystemClock):
        def sleep_ms(self, duration_ms: int) -> None:
            raise Killed

    class Dead(Leases):
        def _sweep(self) -> None:
            """Nobody cleans up."""

    dying = Dead(one.connections.url, clock=Mortal())
    with pytest.raises(Killed):
        dying.grab_lease([exclusive("d/t")], LONG_S, WAIT_S)
    dying.close()
    left = place(one)
    assert left.end_utc - left.start_utc == timedelta(seconds=10)
    let_pass(one, timedelta(seconds=-LONG_S), left.lease_id)  # now it may take the test a while
    assert not free(two, shared("d/t"))
    follower = pool.submit(two.grab_lease, [shared("d/t")], LONG_S, WAIT_S)
    wait_for_places(one, 2)
    let_pass(one, timedelta(seconds=LONG_S + 10), left.lease_id)
    follower.result()
    assert places(one) == 0


def test_a_waiter_keeps_its_place_for_as_long_as_it_waits(
    one: Leases, two: Leases, pool: Pool
) -> None:
    held = one.grab_lease([exclusive("d/t")], LONG_S)
    waiting = pool.submit(two.grab_lease, [exclusive("d/t")], LONG_S, WAIT_S)
    wait_for_places(one, 1)
    first = place(one)
    let_pass(one, timedelta(seconds=LONG_S / 2), first.lease_id)
    assert poll(lambda: place(one).end_utc > first.end_utc, PATIENCE_MS)
    assert place(one).lease_id == first.lease_id
    one.drop_lease(held)
    waiting.result()
