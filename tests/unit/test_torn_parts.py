"""The row of a part and that of its transaction, read with much happening in between: with the
second look at the part, and without."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.calls import checks, puts
from tests.simulation.puppets import Puppet
from tests.simulation.variants import PARTS_RULES
from tests.simulation.world import World, key
from txn import AbortedError, Cell, CorruptRowError, Engine, Exact, Key, Mutation
from txn.client.parts import PartsClient
from txn.protocol.recovery import roll_forward
from txn.protocol.row import child_key, read_rows
from txn.protocol.statuses import ProtocolName
from txn.protocol.transaction import load_transaction
from txn.testing.faulty import Call

X, Y, Z = key("x"), key("y"), key("z")
with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
both = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
pytestmark = pytest.mark.fast


def reads(row: bytes) -> Callable[[Call], bool]:
    """Match the reading of one row."""
    return lambda call: call.method == "row" and call.items[0].row == row


def finish(engine: Engine, row_key: bytes) -> None:
    """Finish a transaction, or a part of one."""
    row = read_rows(engine.context, [row_key])[row_key]
    roll_forward(engine.context, [load_transaction(engine.context, row)])


def values_of(cells: dict[Key, Cell | None]) -> list[bytes | None]:
    return [cell.value if cell else None for _, cell in sorted(cells.items())]


def world_with_values(protocol: ProtocolName) -> World:
    world = World(protocol=protocol)
    world.engine().commit([Mutation(each, b"0") for each in (X, Y, Z)])
    return world


def _puts_plan(call: Call) -> bool:
    return any(name.column == b"plan" for item in call.items for name, _ in puts(item))


@both
@with_and_without
def test_a_part_that_was_read_before_its_plan_is_not_taken_for_broken(
    protocol: ProtocolName, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is planned, and all is decided, before its transaction's row is read too."""
    if not rule:
        PARTS_RULES["a part is read once"](monkeypatch)
    world = world_with_values(protocol)
    client = PartsClient(world.engine())
    transaction = client.begin()
    part = child_key(transaction, 0, 0)
    task = Puppet(
        world, lambda engine: PartsClient(engine).write(transaction, 0, 0, [Mutation(X, b"1")])
    )
    assert task.until(_puts_plan)
    reader = Puppet(world, lambda engine: engine.read([X]), backwards=True)
    assert reader.until(reads(part)) and reader.until(reads(transaction))
    client.commit(transaction, [1], task.finish(), ack="decided")
    if rule:
        assert values_of(reader.finish()) == [b"1"]
    else:
        with pytest.raises(CorruptRowError):
            reader.finish()


@both
@with_and_without
def test_a_part_that_was_read_before_it_followed_is_not_taken_for_aborted(
    protocol: ProtocolName, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader finds it undecided, and undecided again; meanwhile its transaction has come to its
    end. Another one, which has read what that one wrote, is seen."""
    if not rule:
        PARTS_RULES["a part is read once"](monkeypatch)
    world = world_with_values(protocol)
    engine = world.engine()
    client = PartsClient(engine)
    later = client.begin()
    newest = client.write(later, 0, 0, [Mutation(Y, b"1")])
    world.clock.sleep_ms(10)
    first = client.begin()
    assert first > later
    part = child_key(first, 0, 0)
    times = [client.write(first, 0, n, [Mutation(k, b"1")]) for n, k in enumerate((X, Z))]

    reader = Puppet(world, lambda engine: engine.read([X, Y]), backwards=True)
    assert reader.until(reads(first))
    assert reader.until(reads(child_key(later, 0, 0)))  # the first one was seen undecided
    client.commit(first, [2], max(times), ack="decided")
    finish(engine, child_key(first, 0, 1))
    newest = max(newest, client.write(later, 0, 1, [], [Exact(Z, b"1")]))
    client.commit(later, [2], newest, ack="decided")
    assert reader.until(reads(part))  # of the second look
    assert reader.until(reads(first))
    finish(engine, first)
    assert values_of(reader.finish()) == [b"1" if rule else b"0", b"1"]


@both
def test_a_task_that_locked_after_the_abort_gives_its_locks_back(protocol: ProtocolName) -> None:
    """Nobody knows of them until somebody wants the key; fsck finds them by a scan only."""
    world = world_with_values(protocol)
    client = PartsClient(world.engine())
    transaction = client.begin()
    task = Puppet(
        world, lambda engine: PartsClient(engine).write(transaction, 0, 0, [Mutation(X, b"1")])
    )
    assert task.until(_takes_lock)
    assert client.abort(transaction, "no")
    with pytest.raises(AbortedError, match="over"):
        task.finish()
    assert not world.leftovers()


def _takes_lock(call: Call) -> bool:
    return any(check.key.column.endswith(b"_lock") for check in checks(call))
