"""Interactive transactions: what a block sees, what it commits, and when it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.unit.worlds import TABLE, World, X, Y, Z, stopped_at
from txn.assertions import Exact, Not, Some
from txn.client.block import OptimisticTransaction
from txn.client.engine import Engine
from txn.errors import (
    AssertionFailedError,
    ConflictError,
    DeadlineError,
    InvalidRequestError,
)
from txn.model import Delete, Key, Mutation
from txn.policy import Policy
from txn.protocol.statuses import Status
from txn.request import Committed
from txn.testing.counting import CountingStore
from txn.testing.faulty import FaultyStore

Work = Callable[[OptimisticTransaction], object]


def counter(value: int) -> bytes:
    return value.to_bytes(8, signed=True)


def other(world: World, *mutations: Mutation | Delete) -> None:
    """Another client commits."""
    world.client(seed=len(world.rows()) + 50).commit(mutations)


def given(**rows: bytes) -> World:
    """A world with these values of column x."""
    world = World()
    if rows:
        world.engine.commit([Mutation(Key(row, "d", "x"), value) for row, value in rows.items()])
    return world


def counted(world: World) -> tuple[Engine, CountingStore]:
    counting = CountingStore(world.store)
    engine = world.client(FaultyStore(counting), seed=7)
    engine.read([X])
    list(engine.scan(stop=b"a"))
    counting.reset()
    return engine, counting


def test_a_block_sees_its_own_writes() -> None:
    world = given(x=b"1", y=b"1", z=b"1")
    with world.engine.transaction() as t:
        t.put(X, b"2")
        t.delete(Y)
        t.delete(Z)
        t.put(Z, b"3")
        t.put(Key("zz", "d", "x"), b"4")
        assert t.get_many([X, Y, Z]) == {X: b"2", Y: None, Z: b"3"}
        assert t.scan() == [
            (b"x", {X: (b"2", 0)}),
            (b"z", {Z: (b"3", 0)}),
            (b"zz", {Key("zz", "d", "x", TABLE): (b"4", 0)}),
        ]
    assert (world.value(X), world.value(Y), world.value(Z)) == (b"2", None, b"3")


def test_what_a_block_wrote_it_does_not_read() -> None:
    """Nor is it asserted: two blind writers of one key do not undo each other's commit."""
    world = given(x=b"1")
    engine, counting = counted(world)
    with engine.transaction() as t:
        t.put(X, b"2")
        assert t.get(X) == b"2"
        assert not counting.calls
        other(world, Mutation(X, b"3"))
    assert world.value(X) == b"2"


def test_a_repeated_read_returns_the_same() -> None:
    world = given(x=b"1", z=b"1")
    cell = world.cell(X)
    with pytest.raises(ConflictError), world.engine.transaction() as t:
        seen = t.get_many([X, Y])
        other(world, Mutation(X, b"2"), Mutation(Y, b"2"), Delete(Z))
        assert t.get_many([Y, X]) == seen == {X: b"1", Y: None}
        assert t.scan() == [(b"x", {X: cell})]
        other(world, Mutation(Z, b"3"), Mutation(Key("new", "d", "x"), b"3"))
        assert t.scan() == t.scan(start="a") == [(b"x", {X: cell})]
        assert t.get(Z) is None


def test_counters_are_those_of_hbase() -> None:
    world = given(y=counter(-2))
    with world.engine.transaction() as t:
        assert t.increment(X) == 1
        assert t.increment(X, 4) == 5
        assert t.increment(Y, -1) == -3
    assert (world.value(X), world.value(Y)) == (b"\0" * 7 + b"\5", counter(-3))


@pytest.mark.parametrize(
    ("value", "by", "message"),
    [(b"12", 1, "not a counter"), (counter(2**63 - 1), 1, "overflows"), (counter(0), 2**64, "ove")],
)
def test_what_is_no_counter_is_not_counted(value: bytes, by: int, message: str) -> None:
    world = given(x=value)
    with pytest.raises(InvalidRequestError, match=message), world.engine.transaction() as t:
        t.increment(X, by)
    assert world.value(X) == value


def test_append_adds_to_what_is_there() -> None:
    world = given(x=b"a")
    with world.engine.transaction() as t:
        assert (t.append(X, "b"), t.append(X, b"c"), t.append(Y, "d")) == (b"ab", b"abc", b"d")
    assert (world.value(X), world.value(Y)) == (b"abc", b"d")


@pytest.mark.parametrize(
    "work",
    [
        lambda t: t.put(X, b""),
        lambda t: t.put(X.lock, b"1"),
        lambda t: t.put("x", b"1"),
        lambda t: t.get(Key("", "d", "x")),
        lambda t: t.delete(Key("x", "d", "x_tag")),
        lambda t: t.require(True),
        lambda t: t.scan(columns=[("d", "x_lock")]),
        lambda t: t.append(X, ""),
    ],
)
def test_what_can_never_be_committed_is_refused_in_the_block(work: Work) -> None:
    world = World()
    with pytest.raises(InvalidRequestError), world.engine.transaction() as t:
        work(t)
    assert not world.rows()


def test_a_transaction_is_one_block() -> None:
    world = World()
    t = world.engine.transaction()
    with pytest.raises(InvalidRequestError, match="inside its with"):
        t.get(X)
    with t:
        t.put(X, b"1")
    for late in (lambda: t.put(X, b"2"), lambda: t.require(Some(X)), t.scan):
        with pytest.raises(InvalidRequestError, match="inside its with"):
            late()
    with pytest.raises(InvalidRequestError, match="one block"), t:
        pass


@pytest.mark.parametrize(
    "change",
    [Mutation(X, b"2"), Delete(X), Mutation(Y, b"2")],
    ids=["changed", "deleted", "came"],
)
@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize(
    "look",
    [
        lambda t: (t.get(X), t.get(Y)),
        lambda t: t.get_many([X, Y]) and t.get(Z),
        lambda t: t.scan(stop="z"),
        lambda t: t.scan(columns=[("d", "x")]),
    ],
    ids=["get", "get_many", "scan", "scan of columns"],
)
def test_what_was_read_must_not_have_changed(
    change: Mutation | Delete, writes: bool, look: Work
) -> None:
    world = given(x=b"1")
    with (
        pytest.raises(ConflictError, match="has changed") as caught,
        world.engine.transaction() as t,
    ):
        look(t)
        other(world, change)
        if writes:
            t.put(Z, b"1")
    assert caught.value.key == change.key
    assert world.value(Z) is None
    assert t.result is None
    assert isinstance(caught.value.__cause__, AssertionFailedError)


def test_what_was_not_read_may_change() -> None:
    world = given(x=b"1", y=b"1")
    with world.engine.transaction() as t:
        assert len(t.scan(stop="y")) == len(t.scan(columns=[("d", "x")], stop="y")) == 1
        assert t.scan(prefix="x", columns=[("d", "x")])
        other(world, Mutation(Y, b"2"), Delete(Z))
        t.put(Z, b"1")
    assert world.value(Z) == b"1"


@pytest.mark.parametrize("deletes", [False, True])
def test_a_key_that_a_scan_did_not_find_is_written_only_where_it_is_still_missing(
    deletes: bool,
) -> None:
    """Two find nothing, and each puts the same key: the second must not replace the first's."""
    world = given(x=b"1")
    with pytest.raises(ConflictError) as caught, world.engine.transaction() as t:
        assert len(t.scan()) == 1
        other(world, Mutation(Y, b"2"))
        t.delete(Y) if deletes else t.put(Y, b"1")
    assert caught.value.key == Y
    assert world.value(Y) == b"2"


def test_with_a_token_what_came_may_be_its_own() -> None:
    """The first commit added a row to the range that it scanned, and its answer was lost."""
    world = given(x=b"1")

    def add() -> Committed | None:
        with world.client(seed=len(world.rows()) + 10).transaction(once="job") as t:
            t.put(Key(f"y{len(t.scan(stop='z'))}", "d", "x"), b"1")
        return t.result

    first, again = add(), add()
    assert first and again and again.repeated and again.transaction == first.transaction
    assert len(list(world.engine.scan())) == 2


def test_a_required_assertion_must_hold() -> None:
    world = given(x=b"1")
    with world.engine.transaction() as t:
        t.put(X, b"2")
        t.require(Exact(Key("x", "d", "x"), b"1"))
    for writes in (True, False):
        with (
            pytest.raises(AssertionFailedError, match=r"Some\(") as caught,
            world.engine.transaction() as t,
        ):
            t.require(Some(Y))
            t.get(X)
            if writes:
                t.put(X, b"3")
        assert caught.value.seen == {Y: None}
    assert world.value(X) == b"2"


def test_a_conflict_goes_before_a_required_assertion() -> None:
    """What is required may be false only because the block saw something that has changed."""
    world = given(x=b"1")
    for writes in (True, False):
        with pytest.raises(ConflictError), world.engine.transaction() as t:
            t.require(Exact(X, t.get(X) or b"-"))
            other(world, Mutation(X, b"2" if writes else b"3"))
            if writes:
                t.put(Y, b"1")


@pytest.mark.parametrize(
    ("work", "calls"),
    [
        (lambda t: None, {}),
        (lambda t: t.get(X), {"read": 1}),
        (lambda t: t.get_many([X, Y]), {"read": 2}),
        (lambda t: (t.get(X), t.get(X)), {"read": 1}),
        (lambda t: (t.get(X), t.get(Y)), {"read": 4}),
        (lambda t: t.require(Not(Some(X))), {"read": 1}),
        (lambda t: t.scan(), {"scan": 3}),
        (lambda t: (t.scan(), t.get(X)), {"scan": 3, "read": 2}),
        (lambda t: (t.get(X), t.scan(start="y")), {"scan": 3, "read": 3}),
    ],
)
def test_what_a_block_costs_that_writes_nothing(work: Work, calls: dict[str, int]) -> None:
    world = World()
    engine, counting = counted(world)
    for once in (None, "job"):
        counting.reset()
        with engine.transaction(once=once) as t:
            work(t)
        looked = Counter(calls) + Counter(read=2 * (once is not None))  # at the token
        assert (Counter(counting.calls), t.result) == (looked, None)
    assert not world.rows()


def test_run_returns_what_the_function_returned() -> None:
    world = given(x=counter(4))
    tries: list[int] = []

    def work(t: OptimisticTransaction) -> int:
        total = t.increment(X)
        tries.append(total)
        if len(tries) < 3:
            other(world, Mutation(X, counter(10 * len(tries))))
        return total

    assert world.engine.run(work) == 21
    assert tries == [5, 11, 21]
    assert world.value(X) == counter(21)


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (lambda t: t.require(Some(Z)), AssertionFailedError),
        (lambda t: t.put(X, b""), InvalidRequestError),
        (lambda t: {}["gone"], KeyError),
    ],
)
def test_run_repeats_nothing_else(work: Work, error: type[Exception]) -> None:
    tries: list[OptimisticTransaction] = []
    with pytest.raises(error):
        World().engine.run(lambda t: (tries.append(t), work(t)))
    assert len(tries) == 1


def always_overtaken(world: World) -> Work:
    def work(t: OptimisticTransaction) -> None:
        t.increment(X)
        other(world, Mutation(X, counter(0)))

    return work


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"attempts": 3}, ConflictError, "has changed"),
        ({"deadline_ms": 200}, DeadlineError, "deadline passed between attempts"),
    ],
)
def test_run_gives_up_after_its_attempts_or_at_its_deadline(
    given: dict[str, int], error: type[Exception], message: str
) -> None:
    world = World()
    with pytest.raises(error, match=message):
        world.engine.run(always_overtaken(world), **given)
    assert world.clock.monotonic_ms() <= 200
    assert len(world.rows()) >= 3


def test_the_deadline_of_a_run_bounds_its_commit() -> None:
    world = World(Policy(lock_ttl_ms=60_000, attempts=4, store_patience_ms=10))
    stopped_at(world, Status.LOCKED)
    began = world.clock.monotonic_ms()
    with pytest.raises(DeadlineError, match="waiting for a lock"):
        world.client(seed=2).run(lambda t: t.put(X, b"3"), deadline_ms=300)
    assert 300 <= world.clock.monotonic_ms() - began < 1_000


def test_a_transaction_has_a_limit_of_rows() -> None:
    world = given(x=b"1", y=b"1")
    engine = Engine(world.store, table=TABLE, policy=Policy(snapshot_rows=1))
    with pytest.raises(InvalidRequestError, match="limit=1"), engine.transaction() as t:
        assert len(t.scan(stop="y")) == 1
        t.scan()
