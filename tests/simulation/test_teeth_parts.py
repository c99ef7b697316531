"""Safeguards of transactions in parts, each with and without: the test fails if taking it out does
no harm."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.simulation.puppets import Puppet, asks_for, puts, when
from tests.simulation.variants_parts import PARTS_RULES
from tests.simulation.world import World, key
from txn import AbortedError, Committed, ConflictError, Engine, Mutation
from txn.client.parts import PartsClient
from txn.protocol.recovery import follow_decision
from txn.protocol.row import child_key, read_rows
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import load_transaction
from txn.testing.faulty import Call, Crash, Fault, Reply

X, Y, Z = key("x"), key("y"), key("z")
NEW = {X: b"1", Y: b"1"}
Patch = pytest.MonkeyPatch
with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
both = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
pytestmark = pytest.mark.fast


def world_with_values(protocol: ProtocolName) -> World:
    world = World(protocol=protocol)
    world.engine().commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    return world


def begin(world: World) -> tuple[PartsClient, bytes, int]:
    """Write two parts, of X and of Y, by two tasks."""
    client = PartsClient(world.engine())
    transaction = client.begin()
    times = [client.write(transaction, n, 0, [Mutation(k, b"1")]) for n, k in enumerate(NEW)]
    return client, transaction, max(times)


def _puts_plan(call: Call) -> bool:
    return any(name.column == b"plan" for item in call.items for name, _ in puts(item))


def take_out(patch: Patch, rule: bool, name: str) -> None:
    if not rule:
        PARTS_RULES[name](patch)


@both
@with_and_without
def test_with_a_part_its_transaction_aborts(
    protocol: ProtocolName, rule: bool, monkeypatch: Patch
) -> None:
    """Somebody takes the owner for dead at one part, and the owner decides for all."""
    take_out(monkeypatch, rule, "a part aborts alone")
    world = world_with_values(protocol)
    client, transaction, newest = begin(world)
    other = world.engine()
    other.commit([Mutation(X, b"other")])  # waits for the lease of who does not beat
    if rule:
        with pytest.raises(ConflictError):
            client.commit(transaction, [1, 1], newest)
    else:
        assert isinstance(client.commit(transaction, [1, 1], newest), Committed)
    world.mend()
    values = world.values([X, Y])
    assert (values == {X: b"other", Y: b"0"}) is rule
    assert rule or values == {X: b"other", Y: b"1"}


@both
@with_and_without
def test_only_counted_parts_are_committed(
    protocol: ProtocolName, rule: bool, monkeypatch: Patch
) -> None:
    """A task that was given up, or made more parts than the one that counts, wrote them too."""
    take_out(monkeypatch, rule, "all parts are counted")
    world = world_with_values(protocol)
    client, transaction, newest = begin(world)
    newest = max(newest, client.write(transaction, 1, 1, [Mutation(Z, b"stray")]))
    client.commit(transaction, [1, 1], newest)
    world.mend()
    assert world.values(NEW) == NEW
    assert world.values([Z])[Z] == (None if rule else b"stray")


@both
@with_and_without
def test_a_transaction_goes_on_when_its_parts_are_complete(
    protocol: ProtocolName, rule: bool, monkeypatch: Patch
) -> None:
    """What is past its decision has no part any more that has not followed: so late ones are told
    from those that were decided."""
    take_out(monkeypatch, rule, "parts are not finished first")
    world = world_with_values(protocol)
    client, transaction, newest = begin(world)
    client.commit(transaction, [1, 1], newest)
    world.mend()
    assert (world.values(NEW) == NEW) is rule


@both
@with_and_without
def test_a_plan_is_put_on_the_condition_that_the_part_has_not_followed(
    protocol: ProtocolName, rule: bool, monkeypatch: Patch
) -> None:
    """A copy of a task stops before its plan; meanwhile all is decided, and half of it is done."""
    take_out(monkeypatch, rule, "a plan is put plainly")
    world = world_with_values(protocol)
    engine, _ = world.client(when(asks_for(Status.ASSERTED), Fault(reply=Reply.CRASH)))
    client = PartsClient(engine)
    transaction = client.begin()

    def copy(engine: Engine) -> int:
        return PartsClient(engine).write(transaction, 0, 0, [Mutation(X, b"1")])

    slow = Puppet(world, copy)
    assert slow.until(_puts_plan)
    client.write(transaction, 0, 0, [Mutation(X, b"1")])
    world.clock.sleep_ms(5)
    client.write(transaction, 1, 0, [Mutation(Y, b"1")])
    # The timestamp is above both parts': those of the first alone would be another one.
    with pytest.raises(Crash):
        client.commit(transaction, [1, 1], world.clock.wall_ms() + 50)
    context, part = world.engine().context, child_key(transaction, 0, 0)
    row = read_rows(context, [part])[part]
    follow_decision(context, [load_transaction(context, row)])
    with pytest.raises(AbortedError, match="over") if rule else nullcontext():
        slow.finish()
    world.mend()
    cells = world.engine().read([X, Y])
    times = {cell.timestamp for cell in cells.values() if cell}
    assert (len(times) == 1) is rule


@both
@with_and_without
def test_readers_ask_the_transaction_of_a_part(
    protocol: ProtocolName, rule: bool, monkeypatch: Patch
) -> None:
    """It has decided, and nothing of it is put."""
    take_out(monkeypatch, rule, "a part is undecided while it says so")
    world = world_with_values(protocol)
    client, transaction, newest = begin(world)
    client.commit(transaction, [1, 1], newest, ack="decided")
    reader = world.engine()
    seen = {k: cell.value for k in NEW if (cell := reader.read([k])[k])}
    assert (seen == NEW) is rule
    world.mend()
    assert world.values(NEW) == NEW
