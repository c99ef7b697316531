"""From one protocol to the other: only where nothing is late, and nothing of the old is left."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from recovery import check, convert, find_obstacles, repair_all, summary
from recovery.scan import whole_row
from tests.unit.worlds import TABLE, World, X, Y, stopped_at
from txn.client.parts import PartsClient
from txn.errors import InvalidRequestError
from txn.model import Delete, Edit, Key, Mutation
from txn.protocol.protocols import protocol_key
from txn.protocol.statuses import SIX_PHASE, KeptRows, ProtocolName, Status
from txn.request import Outcome
from txn.testing.faulty import Call, Fault, FaultyStore

pytestmark = pytest.mark.usefixtures("rows_for_all")

DAY_MS = 24 * 3_600_000
OTHER: dict[ProtocolName, ProtocolName] = {"six-phase": "fenced", "fenced": "six-phase"}
BOTH = pytest.mark.parametrize("protocol", OTHER)


def retained(world: World) -> None:
    """Let the retention pass, and fsck after it."""
    world.clock.advance(DAY_MS + 1_000)
    assert all(
        result for _, result in repair_all(world.engine.context, check(world.engine.context))
    )


def used(world: World) -> None:
    """Values, a deleted key, and a token."""
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")], once="token")
    world.engine.commit([Delete(Y)])


@BOTH
def test_a_database_without_transactions_is_converted_and_goes_on(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    used(world)
    retained(world)
    assert list(find_obstacles(world.engine.context, [TABLE])) == []
    assert convert(world.engine.context, OTHER[protocol]) > 0  # a conversion that stopped
    assert convert(world.engine.context, OTHER[protocol], [TABLE]) > 0
    assert convert(world.engine.context, OTHER[protocol], [TABLE]) == 0
    old, world.protocol = world.engine, None
    world.engine = world.client(seed=2)
    assert world.engine.context.rules.name == OTHER[protocol]
    same = [Mutation(Y, b"1"), Mutation(X, b"1")]
    assert world.engine.commit(same, once="token").repeated
    world.engine.commit([Mutation(X, b"2"), Mutation(Y, b"2")])
    assert (world.value(X), world.value(Y)) == (b"2", b"2")
    assert summary(world.engine.context, [TABLE]).is_quiet
    assert list(check(world.engine.context, grace_ms=0, scan=[TABLE])) == []
    with pytest.raises(InvalidRequestError, match="another protocol"):
        world.protocol = old.context.rules.name
        world.client()


@BOTH
@pytest.mark.parametrize("status", [Status.WRITTEN, Status.ASSERTED, Status.COMPLETE])
def test_a_transaction_with_a_row_is_in_the_way(protocol: ProtocolName, status: Status) -> None:
    world = World(protocol=protocol)
    stopped_at(world, status)
    (obstacle, *_) = find_obstacles(world.engine.context)
    assert obstacle.startswith("1 transactions")
    assert ("--grace 0s" in obstacle) is (status is not Status.COMPLETE)


@BOTH
def test_a_transaction_in_parts_is_one_in_the_way(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    client, store = PartsClient(world.engine), world.store
    one, other = client.begin(), client.begin()
    for n in range(3):
        client.write(one, 0, n, [Mutation(Key(f"{n}", "d", "x", TABLE), b"1")])
    client.write(other, 0, 0, [Mutation(X, b"1")])
    (obstacle,) = find_obstacles(world.engine.context)
    assert obstacle.startswith("2 transactions are not finished")
    client.commit(one, [3], 0)
    client.commit(other, [1], 0, ack="decided")
    unfinished, ended = find_obstacles(world.engine.context)
    assert unfinished.startswith("1 transactions are") and ended.startswith("1 transactions have")
    row = whole_row(world.engine.context, one)
    assert row is not None
    store.write([Edit(key, None, cell.timestamp) for key, cell in row.cells.items()])
    assert list(find_obstacles(world.engine.context)) == [unfinished, ended]


@BOTH
def test_a_lock_that_changed_not_long_ago_is_in_the_way(protocol: ProtocolName) -> None:
    """A transaction of one row has no row of its own to tell of it, and its request may be late."""
    world = World(protocol=protocol)
    world.engine.commit([Mutation(X, b"1")])
    for finding, _ in repair_all(
        world.engine.context, check(world.engine.context, retention_ms=0, grace_ms=0)
    ):
        assert finding.transaction
    (obstacle,) = (o for o in find_obstacles(world.engine.context, [TABLE]) if "younger" in o)
    assert "data/x/d:" in obstacle
    world.clock.advance(DAY_MS + 1_000)
    assert list(find_obstacles(world.engine.context, [TABLE])) == []


def test_a_lock_is_in_the_way_and_so_is_the_future() -> None:
    world = World()
    later = world.clock.wall_ms() + DAY_MS
    world.store.write([Edit(X.lock, b"somebody", 1), Edit(Y, b"1", later)])
    held, ahead = find_obstacles(world.engine.context, [TABLE])
    assert "data/x/d:x_lock: txn fsck --repair --scan data" in held
    assert "data/y/d:x: set it" in ahead


def test_somebody_else_may_be_first() -> None:
    world = World(protocol="fenced")
    world.store.write([Edit(protocol_key(b"txn"), b"later", world.clock.wall_ms() + 1)])
    with pytest.raises(InvalidRequestError, match="another client"):
        convert(world.engine.context, "six-phase")


def test_which_rows_a_fenced_database_keeps_is_changed_at_once() -> None:
    """Another conversion, or the rest of an interrupted one, keeps the setting."""
    world = World(protocol="fenced")
    name, setting = protocol_key(b"txn"), protocol_key(b"txn", b"rows")
    stopped_at(world, Status.ASSERTED)
    context = world.engine.context
    for rows in get_args(KeptRows):
        world.clock.advance(10)
        for given in (rows, None):
            convert(context, "fenced", rows=given)
            assert world.value(setting) == rows.encode()
            assert world.client().context.rules.rows == rows
        world.store.write([Edit(name, b"fenced", world.clock.wall_ms() + 1)])
        convert(context, "fenced", rows=rows)
        assert (world.value(name), world.value(setting)) == (b"fenced/2", rows.encode())
    with pytest.raises(InvalidRequestError, match="always keeps rows"):
        convert(context, "six-phase", rows="needed")
    convert(context, "fenced", rows="always")
    for wanted in ("six-phase", "fenced"):
        world.clock.advance(10)
        convert(world.client().context, wanted)
        world.protocol = None
    assert (world.value(name), world.value(setting)) == (b"fenced/2", b"needed")
    world.clock.advance(10)
    convert(replace(context, rules=SIX_PHASE), "fenced", rows="always")  # opened before the last
    assert world.value(setting) == b"always"


def test_a_setting_that_somebody_else_changes_is_not_overwritten() -> None:
    world = World(protocol="fenced")
    setting = protocol_key(b"txn", b"rows")

    def plan(call: Call) -> Fault:
        if call.method == "check_and_put":
            world.store.write([Edit(setting, None, world.clock.wall_ms())])
            world.clock.advance(1)
        return Fault()

    context = replace(world.engine.context, store=FaultyStore(world.store, plan))
    with pytest.raises(InvalidRequestError, match="another client"):
        convert(context, "fenced", rows="always")
    assert world.value(setting) is None


@BOTH
def test_a_database_of_an_earlier_version_is_made_current(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    name = protocol_key(b"txn")
    decided = stopped_at(world, Status.ASSERTED)
    world.store.write([Edit(name, protocol.encode(), world.clock.wall_ms())])
    with pytest.raises(InvalidRequestError, match="earlier version"):
        world.client()
    assert convert(world.engine.context, protocol) == 0
    assert world.value(name) == protocol.encode() + b"/2"
    world.client(seed=2).commit([Mutation(X, b"3")])
    assert world.client(seed=3).outcome(decided) is Outcome.COMMITTED
    assert world.value(X) == b"3"
    world = World(protocol=protocol)
    world.store.write([Edit(name, protocol.encode(), world.clock.wall_ms())])
    convert(world.engine.context, OTHER[protocol])  # to the other protocol, at once
    assert world.value(name) == OTHER[protocol].encode() + b"/2"
