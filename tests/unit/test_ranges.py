"""What a transaction scanned is looked at again, and its readers wait: see docs/protocol.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.worlds import TABLE, World, X, Y, Z, after_status
from txn import AbortedError, ConflictError, DeadlineError, Engine, InvalidRequestError
from txn.model import KEEP_DELETES_MS, Delete, Edit, Key, Mutation, new_tuple
from txn.protocol import prepare as prepare_module
from txn.protocol.row import LATE, column
from txn.protocol.statuses import ProtocolName, Status
from txn.testing.faulty import Call, Crash, Fault, Reply

ITEM = Key("item", "d", "x", TABLE)


def stopped_block(
    world: World, status: Status = Status.LOCKED, validate: bool | None = None
) -> bytes:
    """Let a block die that scanned x, or validates it, and puts y; return its row key."""
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    client = world.client(world.faults, seed=9)
    after_status(world, status, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash), client.transaction(validate=validate) as t:
        assert t.get(X) if validate else t.scan(stop="y")
        t.put(Y, b"2")
    world.faults.crashed, world.faults.plan = False, lambda call: Fault()
    return world.holder(Y)


READS: dict[str, Callable[[Engine], object]] = {
    "read": lambda engine: engine.read([Y]),
    "read at one instant": lambda engine: engine.read([Y]),
    "read of two rows": lambda engine: engine.read([Y, Z]),
    "read of both": lambda engine: engine.read([X, Y]),
    "read of what is only asserted": lambda engine: engine.read([X]),
    "scan": lambda engine: list(engine.scan()),
    "snapshot": lambda engine: list(engine.scan(snapshot=True)),
}
WAITING = [name for name in READS if name != "read of what is only asserted"]


def waited_ms(world: World, name: str) -> int:
    engine = world.client(seed=3)
    if name == "read at one instant":  # as from an embedded store
        engine = Engine(world.store, table=TABLE, policy=world.policy, clock=world.clock)
    began_ms = world.clock.monotonic_ms()
    READS[name](engine)
    return world.clock.monotonic_ms() - began_ms


@pytest.mark.parametrize("validate", [None, True], ids=["range", "key"])
@pytest.mark.parametrize("status", [Status.WRITTEN, Status.LOCKED])
@pytest.mark.parametrize("name", WAITING)
def test_who_reads_what_it_replaces_waits_for_its_decision(
    name: str, status: Status, validate: bool | None
) -> None:
    """It may have validated what it read, which may have changed since, and been read."""
    for is_damaged in (False, True):
        world = World()
        row_key = stopped_block(world, status, validate)
        if is_damaged:
            buffer = column(b"txn", row_key, b"buffer")
            world.store.write([Edit(buffer, b"?", world.clock.wall_ms() + 1)])
        assert waited_ms(world, name) >= world.policy.lock_ttl_ms
        assert world.value(Y) == b"1"
        assert is_damaged or waited_ms(world, name) == 0


@pytest.mark.parametrize("status", [Status.WRITTEN, Status.LOCKED, Status.ASSERTED, Status.PUT])
def test_nobody_waits_at_any_other_time(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "EARLY", LATE)
    world = World()
    stopped_block(world, status)
    is_locked = status is Status.LOCKED
    assert waited_ms(world, "read of what is only asserted" if is_locked else "read of both") == 0


def block_beside(world: World, work: Callable[[Engine], object]) -> None:
    """Run a block that scans items and puts x; do some work before each later look at them."""
    world.engine.commit([Mutation(ITEM, b"1")])
    world.engine.commit([Delete(ITEM)])
    other = world.client(seed=5)

    def plan(call: Call) -> Fault:
        if call.method == "scan":
            work(other)
        return Fault()

    with world.client(world.faults, seed=4).transaction() as t:
        assert not t.scan(prefix="item")
        t.put(X, b"1")
        world.faults.plan = plan


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_a_block_commits_no_scanned_key_that_it_cannot_lock(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    world.put(new_tuple(Key, (*X[:2], b"", TABLE)), b"1")
    with (
        pytest.raises(InvalidRequestError, match="column is empty"),
        world.engine.transaction() as t,
    ):
        assert len(list(t.scan())) == 1
        t.put(Y, b"2")
    assert world.value(Y) is None
    assert not world.rows()


def test_a_range_that_is_changed_at_each_look_is_a_conflict() -> None:
    world = World()

    def come_and_go(other: Engine) -> None:
        other.commit([Mutation(ITEM, b"2")])
        other.commit([Delete(ITEM)])

    with pytest.raises(ConflictError, match="keep changing"):
        block_beside(world, come_and_go)
    assert world.value(X) is None


def test_a_range_that_stands_still_is_looked_at_twice_where_keys_were_deleted() -> None:
    """And once where none were: see what a block costs."""
    looks: list[Engine] = []
    world = World()
    block_beside(world, looks.append)
    assert (world.value(X), len(looks)) == (b"1", 2)


def test_a_look_that_takes_too_long_is_past_the_deadline() -> None:
    world = World()
    with pytest.raises(DeadlineError, match="before the decision"):
        block_beside(world, lambda _: world.clock.advance(world.policy.deadline_ms + 1))
    with pytest.raises(AbortedError):
        block_beside(world, lambda other: other.commit([Mutation(ITEM, b"2")]))


def test_looks_that_lie_far_apart_are_not_compared() -> None:
    """A key that was there when the look began, was deleted, and retired a day later, before the
    look came by: nothing in the range tells of it."""
    world = World()
    world.engine.commit([Mutation(X, b"1"), Mutation(ITEM, b"1")])
    scanned: list[Call] = []

    def stop_for_a_day(call: Call) -> Fault:
        if call.method == "scan":
            scanned.append(call)
            if len(scanned) == 1:
                world.clock.advance(KEEP_DELETES_MS)
        return Fault()

    with world.client(world.faults, seed=9).transaction(deadline_ms=2 * KEEP_DELETES_MS) as t:
        assert len(t.scan()) == 2
        t.put(X, b"2")
        world.faults.plan = stop_for_a_day
    assert len(scanned) == 3
