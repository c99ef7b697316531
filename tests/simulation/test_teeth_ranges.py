"""Safeguards of ranges, each with and without: the test fails if taking it out does no harm."""

from __future__ import annotations

import pytest

from tests.simulation.puppets import Match, Puppet, asks_for, reads_row
from tests.simulation.variants import forget_what_is_left, look_before_the_step
from tests.simulation.world import World, key
from txn import ConflictError, Delete, Engine, Key, Mutation, Policy
from txn.protocol import prepare as prepare_module
from txn.protocol import ranges
from txn.protocol import six_phase as six_phase_module
from txn.protocol.statuses import Status
from txn.reading import snapshot as snapshot_module
from txn.testing.faulty import Plan, faultless

ITEM = "item"
A, B = key("item-a"), key("item-b")
X, Y = key("x"), key("y")
with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
ONE_ATTEMPT = Policy(attempts=1, lock_ttl_ms=1000, courtesy_ms=5)


class Block(Puppet[bool]):
    """A block that found no items, and writes one key. It commits when the puppet is moved."""

    def __init__(self, world: World, written: Key, faults: Plan = faultless) -> None:
        super().__init__(world, self._end, faults=faults, policy=ONE_ATTEMPT, by_row=True)
        self.block = self.engine.transaction().__enter__()
        assert not self.block.scan(prefix=ITEM)
        self.block.put(written, b"1")

    def _end(self, engine: Engine) -> bool:
        try:
            self.block.__exit__(None, None, None)
        except ConflictError:
            return False
        return True


def put(world: World, *keys: Key) -> None:
    world.engine().commit([Mutation(key, b"1") for key in keys])


def seen(engine: Engine, *keys: Key) -> list[bool]:
    return [cell is not None for cell in engine.read(keys).values()]


@with_and_without
def test_ranges_are_looked_at_under_the_locks(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks find a range empty, and each adds to it: one of them must not."""
    if not rule:
        monkeypatch.setattr(prepare_module, "find_phantom", lambda *_: None)
    world = World()
    one, two = Block(world, A), Block(world, B)
    one.until(asks_for(Status.ASSERTED))
    assert two.finish() is not rule
    assert one.finish()


def between(world: World, match: Match) -> list[bool]:
    """Let a block go on to a call; then somebody adds to its range; then somebody reads what came
    and what the block writes; then the block goes on. Return what was read, and if it commits."""
    block = Block(world, Y)
    block.until(match)
    put(world, A)
    return [*seen(world.engine(), A, Y), block.finish()]


IN_NO_ORDER = [True, False, True]
"""What came into the range was seen, what the block wrote was not, and the block commits, though
it found the range empty."""


@with_and_without
def test_readers_wait_for_who_has_looked_at_ranges(
    rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block has looked, and is about to decide."""
    if not rule:
        monkeypatch.setattr(snapshot_module, "hides_values", lambda rules, holder, cells: False)
    assert (between(World(), asks_for(Status.ASSERTED)) != IN_NO_ORDER) is rule


@with_and_without
def test_ranges_are_looked_at_once_the_row_says_so(
    rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers need not wait for an attempt that waits for locks, while its row is at 0-WRITTEN: it
    has not looked yet."""
    monkeypatch.setattr(prepare_module, "EARLY", prepare_module.LATE)
    if not rule:
        monkeypatch.setattr(six_phase_module, "prepare_six_phase", look_before_the_step)
    found = between(World(), asks_for(Status.LOCKED))
    assert (found != IN_NO_ORDER) is rule


@with_and_without
def test_ranges_with_deleted_keys_are_looked_at_twice(
    rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block knows that B had come to its range, from a key that came with it. While it looks, A
    comes to the part that it has seen, and then B goes from the part that it has not: at no instant
    were both away."""
    if not rule:
        monkeypatch.setattr(ranges.Digest, "add", forget_what_is_left)
    world = World()
    put(world, A)
    world.engine().commit([Delete(A)])
    block = Block(world, Y)
    put(world, X, B)
    assert block.block.get(X) == b"1"
    block.until(asks_for(Status.LOCKED))
    block.until(reads_row(B))
    put(world, A)
    world.engine().commit([Delete(B)])
    assert block.finish() is not rule


@with_and_without
def test_what_is_left_of_deleted_keys_is_compared(
    rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two items is always there. They change places whenever a snapshot has passed the one
    that is away, so that no look at the range meets either."""
    if not rule:
        monkeypatch.setattr(ranges.Digest, "add", forget_what_is_left)
    world = World()
    put(world, A, B)
    world.engine().commit([Delete(A)])

    def change_places(comes: Key, goes: Key) -> None:
        put(world, comes)
        world.engine().commit([Delete(goes)])

    reader = Puppet(
        world, lambda engine: list(engine.scan(prefix=ITEM, snapshot=True)), by_row=True
    )
    for next_row, comes, goes in ((B, A, B), (A, B, A), (B, A, B)):
        reader.until(reads_row(next_row))
        change_places(comes, goes)
    assert bool(reader.finish()) is rule


def test_a_block_that_comes_between_two_looks_is_waited_for() -> None:
    """Somebody who only reads meets it when looking whether all is as it was."""

    def look(engine: Engine) -> bool:
        with engine.transaction() as t:
            return t.get(X) is not None and not t.scan(prefix=ITEM)

    world = World()
    put(world, X)
    reader = Puppet(world, look, by_row=True)
    for _ in range(3):  # to read, to look, and to look again
        assert reader.until(reads_row(X))
    block = Block(world, X)
    block.until(asks_for(Status.ASSERTED))
    assert reader.finish()
    assert not block.finish()
