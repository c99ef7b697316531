"""What the tests of safeguards share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.simulation.calls import Match, asks_for
from tests.simulation.keys import ADD, ITEM, NONE
from tests.simulation.puppets import Puppet, when
from tests.simulation.world import World
from txn import Cell, Committed, ConflictError, Engine, Key, Mutation, Policy
from txn.clock import ManualClock
from txn.protocol.statuses import Status
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Plan, Reply, faultless

ONE_ATTEMPT = Policy(attempts=1, lock_ttl_ms=1000, courtesy_ms=5)
IN_NO_ORDER = [True, False, True]
"""What came later was seen, what the client writes was not, and the client commits."""


def add(engine: Engine) -> object:
    return engine.commit_many([ADD])[0]


def mend(world: World) -> Callable[[Engine], bool]:
    def work(engine: Engine) -> bool:
        world.mend(engine.context)
        return True

    return work


def writes(call: Call) -> bool:
    """Match a plain write, as that of a decided transaction's values."""
    return call.method == "write"


def put(world: World, *keys: Key, value: bytes = b"1") -> None:
    world.engine().commit([Mutation(key, value) for key in keys])


def putting(world: World, *keys: Key, value: bytes = b"1", **options: Any) -> Puppet[Committed]:
    mutations = [Mutation(key, value) for key in keys]
    return Puppet(world, lambda engine: engine.commit(mutations), **options)


def die(
    world: World, match: Match, *request: Any, applied: frozenset[int] | None = NONE
) -> FaultyStore:
    engine, store = world.client(when(match, Fault(applied, Reply.CRASH)))
    with pytest.raises(Crash):
        engine.commit(*request)
    return store


def decide(owner: Puppet[Any]) -> None:
    """Let it go on to its decision, and make it."""
    owner.until(asks_for(Status.ASSERTED))
    owner.step()


def both_committed(*results: object) -> bool:
    return all(isinstance(result, Committed) for result in results)


def alternate(clients: Sequence[Puppet[Any]]) -> list[object]:
    while any([client.step() for client in clients]):
        pass
    return [client.finish() for client in clients]


def values(cells: Mapping[Key, Cell | None]) -> list[bytes | None]:
    return [None if cell is None else cell.value for cell in cells.values()]


def seen(engine: Engine, *keys: Key) -> list[bool]:
    return [cell is not None for cell in engine.read(keys).values()]


def ahead(clock: ManualClock, by_ms: int = 5000) -> ManualClock:
    return ManualClock(clock.wall_ms() + by_ms)


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
