"""Keys that a transaction asserts, and validates instead of locking: see docs/protocol.md."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from typing import Any

import pytest

from recovery.inspect import explain
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
from txn.assertions import Assertion
from txn.model import KEEP_DELETES_MS, Check
from txn.protocol.row import EARLY, LATE, column, decode_row, is_row_key
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import begin_commit, renew
from txn.request import bind_request
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply, faultless

pytestmark = pytest.mark.fast
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
    asserted = [Some(X), Not(Some(Z))]
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
    many = [Request(tuple(PUT_Y), (Some(X),), validate=False), (PUT_Z, [Some(X)])]
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


def test_looks_that_lie_far_apart_are_not_compared() -> None:
    """A key may have come, gone and been retired in between. A fenced lock stays for ever."""
    for protocol in ("six-phase", "fenced"):
        world = World(protocol=protocol)  # type: ignore[arg-type]
        world.engine.commit(PUT_X)
        wait = partial(world.clock.advance, KEEP_DELETES_MS)
        with pytest.raises(ConflictError) if protocol == "six-phase" else nullcontext():
            commit_beside(
                *(world, wait),
                deadline_ms=3 * KEEP_DELETES_MS,
                policy=Policy(attempts=1, lock_ttl_ms=2 * KEEP_DELETES_MS),
            )


@both_protocols
def test_a_read_that_takes_too_long_is_past_the_deadline(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    world.engine.commit(PUT_X)
    with pytest.raises(DeadlineError, match="before the decision"):
        commit_beside(world, partial(world.clock.advance, 60_000))
    assert world.value(Y) is None


@both_protocols
@pytest.mark.parametrize("validate", [False, True])
def test_who_tries_once_ends_a_holder_that_died(protocol: ProtocolName, validate: bool) -> None:
    world = World(ONE_ATTEMPT, protocol)
    die_holding(world, X)
    engine = world.client(seed=9)
    for _ in range(3):
        with suppress(ConflictError):
            engine.commit(PUT_Y, [Not(Some(X))], validate=validate)
        world.clock.advance(world.policy.lock_ttl_ms)
    assert world.value(Y) == b"1"


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


@both_protocols
def test_a_key_that_is_validated_is_no_lock_that_is_missing(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    found = explain(world.engine.context, die_holding(world, X, [Not(Some(Y))]))
    assert found is not None
    assert (found.held, found.locked, len(found.request.keys)) == ((X,), 1, 2)


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
