"""Interactive transactions, and keys that are validated instead of locked: see docs/protocol.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any

import pytest

from tests.unit.worlds import TABLE, World, X, Y, Z, is_step
from txn import (
    AbortedError,
    Committed,
    ConflictError,
    DeadlineError,
    Engine,
    Key,
    Mutation,
    Not,
    Policy,
    Request,
    Some,
)
from txn.assertions import Assertion, Exact
from txn.client.block import OptimisticTransaction
from txn.client.engine import RequestLike
from txn.errors import AssertionFailedError, InvalidRequestError
from txn.model import Check, Delete
from txn.protocol.row import EARLY, LATE, column, decode_row, is_row_key
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import begin_commit, renew
from txn.request import bind_request
from txn.testing.counting import CountingStore
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply, faultless

W = Key("w", "d", "x", TABLE)
Work = Callable[[OptimisticTransaction], object]


def counter(value: int) -> bytes:
    return value.to_bytes(8, signed=True)


def other(world: World, *mutations: Mutation | Delete) -> None:
    world.client(seed=len(world.rows()) + 50).commit(mutations)


def given(**rows: bytes) -> World:
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


def test_counters_are_those_of_hbase_and_append_adds_to_what_is_there() -> None:
    world = given(y=counter(-2), z=b"a")
    with world.engine.transaction() as t:
        assert t.increment(X) == 1
        assert t.increment(X, 4) == 5
        assert t.increment(Y, -1) == -3
        assert (t.append(Z, "b"), t.append(Z, b"c"), t.append(W, "d")) == (b"ab", b"abc", b"d")
    assert (world.value(X), world.value(Y)) == (b"\0" * 7 + b"\5", counter(-3))
    assert (world.value(Z), world.value(W)) == (b"abc", b"d")


@pytest.mark.parametrize(
    ("value", "by", "message"),
    [(b"12", 1, "not a counter"), (counter(2**63 - 1), 1, "overflows"), (counter(0), 2**64, "ove")],
)
def test_what_is_no_counter_is_not_counted(value: bytes, by: int, message: str) -> None:
    world = given(x=value)
    with pytest.raises(InvalidRequestError, match=message), world.engine.transaction() as t:
        t.increment(X, by)
    assert world.value(X) == value


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
        (lambda t: int("gone"), ValueError),
    ],
)
def test_run_repeats_nothing_else(work: Work, error: type[Exception]) -> None:
    tries: list[OptimisticTransaction] = []

    def note(t: OptimisticTransaction) -> None:
        tries.append(t)
        work(t)

    with pytest.raises(error):
        World().engine.run(note)
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
    given: Any, error: type[Exception], message: str
) -> None:
    world = World()
    with pytest.raises(error, match=message):
        world.engine.run(always_overtaken(world), **given)
    assert world.clock.monotonic_ms() <= 200
    assert len(world.rows()) >= 3


def test_a_transaction_has_a_limit_of_rows() -> None:
    world = given(x=b"1", y=b"1")
    engine = Engine(world.store, table=TABLE, policy=Policy(snapshot_rows=1))
    with pytest.raises(InvalidRequestError, match="limit=1"), engine.transaction() as t:
        assert len(t.scan(stop="y")) == 1
        t.scan()


both_protocols = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
PUT_X, PUT_Y, PUT_Z = ([Mutation(key, b"1")] for key in (X, Y, Z))
ONE_ATTEMPT = Policy(attempts=1)
SEEDS = count(100)


def locks_taken(world: World, work: Callable[[Engine], object]) -> set[Key]:
    """Return which of x, y and z a client locks at its work."""
    lock_of = world.engine.context.rules.lock_of
    taken: set[Key] = set()

    def plan(call: Call) -> Fault:
        if call.method == "check_and_put":
            taken.update(item.key for item in call.items if isinstance(item, Check))
        return Fault()

    engine = world.client(world.faults, seed=next(SEEDS))
    world.faults.plan = plan
    work(engine)
    world.faults.plan = faultless
    return {key for key in (X, Y, Z) if lock_of(key) in taken}


@both_protocols
def test_only_what_is_written_is_locked(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    world.engine.commit(PUT_X)
    asserted: list[Assertion] = [Some(X), Not(Some(Z))]
    assert locks_taken(world, lambda e: e.commit(PUT_Y, asserted, validate=True)) == {Y}
    assert locks_taken(world, lambda e: e.commit(PUT_Y, [Some(X)])) == {X, Y}
    assert locks_taken(world, lambda e: e.submit((PUT_Y, [Some(X)]), validate=True).result()) == {Y}


def test_a_request_that_writes_nothing_locks_what_it_asserts() -> None:
    world = World()
    world.engine.commit(PUT_X)
    assert locks_taken(world, lambda e: e.commit([], [Some(X)], validate=True)) == {X}


@both_protocols
def test_a_policy_says_it_for_all_that_do_not(protocol: ProtocolName) -> None:
    world = World(Policy(assertions="validated"), protocol)
    world.engine.commit(PUT_X)

    def block(engine: Engine) -> None:
        with engine.transaction() as t:
            t.put(Y, t.get(X) or b"")

    assert locks_taken(world, lambda e: e.commit(PUT_Y, [Some(X)])) == {Y}
    assert locks_taken(world, block) == {Y}
    assert locks_taken(world, lambda e: e.run(lambda t: t.put(Y, t.get(X) or b""))) == {Y}
    assert locks_taken(world, lambda e: e.commit(PUT_Y, [Some(X)], validate=False)) == {X, Y}
    alone = Request(tuple(PUT_Y), (Some(X),), validate=False)
    many: list[RequestLike] = [alone, (PUT_Z, [Some(X)])]
    assert locks_taken(world, lambda e: e.commit_many(many, validate=True)) == {X, Y, Z}


def die_holding(world: World, key: Key, asserted: Sequence[Assertion] = ()) -> bytes:
    """Let a client die that holds a key, and has decided nothing; return its row key."""
    engine = world.client(store := FaultyStore(world.store), seed=77)

    def plan(call: Call) -> Fault:
        decides = any(is_step(item, Status.ASSERTED) for item in call.items)
        return Fault(frozenset(), Reply.CRASH) if decides else Fault()

    store.plan = plan
    with pytest.raises(Crash):
        labels = {"so that": "it has a row"}
        engine.commit([Mutation(key, b"2")], asserted, labels=labels, validate=True)
    return world.holder(key)


def commit_beside(
    world: World,
    work: Callable[[], object],
    *,
    before: Collection[int] = (2,),
    asserted: Sequence[Assertion] = (Some(X), Not(Some(Z))),
    policy: Policy = ONE_ATTEMPT,
    **terms: Any,
) -> Committed:
    """Put y if the assertions hold, whose keys are validated. before: the numbers of the reads of
    x and its lock before which some work is done."""
    world.policy = policy
    engine = world.client(world.faults, seed=9)
    guard, reads = engine.context.rules.lock_of(X), count(1)

    def plan(call: Call) -> Fault:
        if call.method == "read" and guard in call.items and next(reads) in before:
            work()
        return Fault()

    world.faults.plan = plan
    try:
        return engine.commit(PUT_Y, asserted, validate=True, **terms)
    finally:
        world.faults.plan = faultless


@both_protocols
def test_what_changed_between_two_reads_is_a_conflict(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    world.engine.commit(PUT_X)
    with pytest.raises(ConflictError, match="changed before the decision"):
        commit_beside(world, lambda: world.client(seed=5).commit([Mutation(X, b"2")]))
    assert world.value(Y) is None


@both_protocols
@pytest.mark.parametrize("also", [(), (Not(Some(Z)),)], ids=["one row", "two rows"])
def test_a_lock_on_a_validated_key_is_a_conflict_that_names_its_holder(
    protocol: ProtocolName, also: Sequence[Assertion]
) -> None:
    """Its holder may have decided, or may have validated what this one writes."""
    world = World(protocol=protocol)
    world.engine.commit(PUT_X)
    number = 2 if also or protocol == "fenced" else 1
    with pytest.raises(ConflictError, match="key is locked") as caught:
        commit_beside(
            *(world, lambda: die_holding(world, X)), before=[number], asserted=(Some(X), *also)
        )
    assert (caught.value.key, caught.value.holder) == (X, world.holder(X))
    assert world.value(Y) is None


@both_protocols
def test_a_transaction_whose_keys_change_each_time_locks_them(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    world.engine.commit(PUT_X)
    other = world.client(seed=5)
    done = commit_beside(
        world,
        lambda: world.holder(X) or other.commit([Mutation(X, b"2")]),
        before=range(2, 100),
        policy=Policy(attempts=6, deadline_ms=60_000),
    )
    cells = [
        row.cells.get(column(b"txn", row.row, b"ranges"))
        for row in world.store.scan(b"txn")
        if is_row_key(row.row) and (buffer := decode_row(row).buffer) and Y in buffer.request.keys
    ]
    marks = [cell and cell.value for cell in cells]
    assert marks == [EARLY, LATE, LATE, None]
    assert world.value(Y) == b"1" and done.complete


@both_protocols
def test_a_read_that_takes_too_long_is_past_the_deadline(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    world.engine.commit(PUT_X)
    with pytest.raises(DeadlineError, match="before the decision"):
        commit_beside(world, lambda: world.clock.advance(60_000))
    assert world.value(Y) is None


@both_protocols
@pytest.mark.parametrize("validate", [False, True])
def test_what_is_no_lock_is_no_conflict(protocol: ProtocolName, validate: bool) -> None:
    """Nobody ever frees it, and whose data it is must not be told."""
    world = World(protocol=protocol)
    engine = world.client(seed=9)
    world.put(engine.context.rules.lock_of(X), b"somebody's data")
    with pytest.raises(AbortedError, match="what is no lock") as caught:
        engine.commit(PUT_Y, [Not(Some(X))], validate=validate)
    assert not isinstance(caught.value, ConflictError)
    assert "somebody" not in str(caught.value)


def test_only_an_attempt_alone_locks_what_it_validated() -> None:
    """A batch was chosen by the locks of its requests: two that now lock one key do not fit."""
    world = World()
    request = bind_request(PUT_Y, [Some(X)], validate=True, table=TABLE)
    t = begin_commit(world.engine.context, request)
    for is_alone in (False, True):
        for _ in range(3 if not is_alone else 1):
            t.failure = ConflictError("key is locked", key=X)
            renew(world.engine.context, t, is_alone=is_alone)
        assert bool(t.validated) is not is_alone
