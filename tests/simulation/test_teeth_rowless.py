"""The rules of fenced commits within one region, which have no row."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.simulation import variants
from tests.simulation.breaking import deliver_all
from tests.simulation.calls import Match, asks_for, reads_row
from tests.simulation.keys import NONE, X, Y
from tests.simulation.puppets import Puppet, when
from tests.simulation.rules import without
from tests.simulation.teeth import both_committed, put, values
from tests.simulation.world import World
from txn import Committed, Engine, Exact, Key, Mutation
from txn.protocol.statuses import Status
from txn.testing.faulty import Fault, FaultyStore, Reply

MOVE = [Mutation(X, b"1"), Mutation(Y, b"1")], [Exact(X, b"0")]
is_sent: Match = lambda call: call.method == "put_if_all"  # noqa: E731


class RegionWorld(World):
    """A world whose clients can change all of their rows at once."""

    def client(self, *plan: Any, **options: Any) -> tuple[Engine, FaultyStore]:
        engine, store = super().client(*plan, **options)
        store.features |= {"many_row_checks"}
        return engine, store


@pytest.fixture
def world() -> World:
    world = RegionWorld(protocol="fenced")
    put(world, X, Y, value=b"0")
    return world


def claim(key: Key, other: Key, engine: Engine) -> object:
    return engine.commit_many([([Mutation(key, b"1")], [Exact(other, b"0")])])[0]


@without(variants.send_only_changes)
def test_a_unit_that_is_only_asserted_is_a_condition(rule: bool, world: World) -> None:
    """Two transactions each change what the other asserts."""
    first, second = (Puppet(world, partial(claim, *keys)) for keys in ((X, Y), (Y, X)))
    first.until(is_sent)
    assert both_committed(second.finish(), first.finish()) is not rule


@without(variants.look_at_locks_once)
def test_a_reader_of_several_rows_of_a_region_looks_twice(rule: bool, world: World) -> None:
    reader = Puppet(world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(Y))
    put(world, X, Y)
    assert values(reader.finish()) == [b"1" if rule else b"0", b"1"]


@without("protocol.rowless._find_outcomes", variants.believe_refusals)
def test_a_refused_request_is_looked_up(rule: bool, world: World) -> None:
    """It was sent twice: the first took effect, and the second was refused."""
    client, _ = world.client(when(is_sent, Fault(twice=True)))
    (result,) = client.commit_many([MOVE])
    assert isinstance(result, Committed) is rule
    assert world.values([X, Y]) == {X: b"1", Y: b"1"}


@without("protocol.rowless._is_clear", lambda errors: True)
def test_a_lost_request_is_fenced_off_before_a_row_is_written(rule: bool, world: World) -> None:
    """The region is split, and the request arrives just before the locks are taken."""
    lost = when(is_sent, Fault(NONE, Reply.MAYBE_APPLIED, frozenset({0})))
    client = Puppet(world, lambda engine: engine.commit_many([MOVE])[0], faults=lost)
    client.until(is_sent)
    client.step()
    client.store.features -= {"many_row_checks"}
    client.until(asks_for(Status.WRITTEN))
    deliver_all(client.store)
    assert isinstance(client.finish(), Committed) is rule
    assert world.values([X, Y]) == {X: b"1", Y: b"1"}
