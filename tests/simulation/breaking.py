"""One transaction, broken in one way, and what must hold of it ever after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, count
from typing import Literal

from tests.simulation.parted import commit_in_parts
from tests.simulation.shapes import BEFORE, PUTS, Shape, after
from tests.simulation.world import World
from txn import CommitOutcomeUnknown, Committed, Delete, Engine, Key, Mutation, Outcome, TxnError
from txn.protocol.row import parent_of
from txn.protocol.statuses import Status
from txn.testing.faulty import NO_FAULT, Call, Crash, Fault, FaultyStore, Reply

Stage = Literal["ended", "mended", "followed"]
STAGES: tuple[Stage, ...] = ("ended", "mended", "followed")
NONE: frozenset[int] = frozenset()
CHANGING = ("write", "check_and_put", "put_if_all")


@dataclass(slots=True)
class Run:
    """What a broken transaction has come to. result: None where its client crashed."""

    shape: Shape
    world: World
    engine: Engine
    store: FaultyStore
    result: Committed | TxnError | None
    calls: list[Call] = field(default_factory=list)


def run(
    shape: Shape,
    faults: Mapping[int, Fault] | None = None,
    deliver: int | Stage | None = None,
    *,
    one_cell: bool = False,
    reads_early: bool = False,
    atomic: bool = False,
) -> Run:
    """Commit the shape with faults at these calls."""
    world = World(one_cell=one_cell, protocol=shape.protocol)
    world.engine().commit([Mutation(key, value) for key, value in BEFORE.items()])
    calls: list[Call] = []

    def plan(call: Call) -> Fault:
        calls.append(call)
        if call.number == deliver:
            deliver_all(store)
        return (faults or {}).get(call.number, NO_FAULT)

    engine, store = world.client(plan)
    store.reads_early = lambda: reads_early
    if shape.in_region:
        store.features |= {"many_row_checks"}
    if atomic:
        store.features |= {"atomic"}
    result: Committed | TxnError | None = None
    try:
        commit = (
            partial(commit_in_parts, engine)
            if shape.in_parts
            else partial(engine.commit, validate=shape.validate)
        )
        result = commit(shape.mutations, shape.assertions, once=shape.once)
    except TxnError as error:
        result = error
    except Crash:
        pass
    return Run(shape, world, engine, store, result, calls)


def live_on(run: Run, deliver: int | Stage | None = None) -> None:
    reach(run, "ended", deliver)
    run.world.mend()
    is_there = verify(run)
    reach(run, "mended", deliver)
    if deliver == "mended":
        run.world.mend()
        assert verify(run) == is_there, "a late request changed what fsck had settled"
    expected = follow(run)
    reach(run, "followed", deliver)
    run.world.mend()
    assert run.world.values(expected) == expected


def reach(run: Run, stage: Stage, deliver: int | Stage | None) -> None:
    if stage == deliver:
        deliver_all(run.store)


def deliver_all(store: FaultyStore) -> None:
    while store.in_flight:
        store.deliver()


def verify(run: Run) -> bool:
    """Check that it happened as a whole or not at all, as its client was told; return if it did."""
    shape, world, result = run.shape, run.world, run.result
    values = world.values(shape.keys)
    wholes = [row for row in world.rows()[1:] if parent_of(row.row_key) is None]
    committed = [row for row in wholes if row.status is Status.COMPLETE]
    assert len(committed) <= 1
    assert values == (shape.after if committed else shape.before)
    if isinstance(result, Committed):
        assert shape.holds
        assert [row.row_key for row in committed] == [result.transaction]
    elif isinstance(result, CommitOutcomeUnknown):
        known = world.engine().outcome(result.transaction)
        assert known is (Outcome.COMMITTED if committed else Outcome.ABORTED)
    elif result is not None:
        assert not committed, "an error says that nothing happened"
    return bool(committed)


def follow(run: Run, *, atomic: bool = False) -> dict[Key, bytes | None]:
    expected = second(run.shape)
    mutations: list[Mutation | Delete] = [
        Delete(key) if value is None else Mutation(key, value) for key, value in expected.items()
    ]
    engine, store = run.world.client()
    if atomic:
        store.features |= {"atomic"}
    engine.commit(mutations)
    values = run.world.values(expected)
    assert values == expected
    return expected


def second(shape: Shape) -> dict[Key, bytes | None]:
    first = after(shape.mutations)
    return {key: None if first.get(key) else key.column + b"2" for key in PUTS}


def stop_fsck(world: World, number: int, applied: frozenset[int] | None = None) -> bool:
    """Mend by an fsck that stops at its changing call of this number; return if it came so far."""
    changes = count(1)

    def plan(call: Call) -> Fault:
        if call.method in CHANGING and next(changes) == number:
            return Fault(applied=applied, reply=Reply.CRASH)
        return NO_FAULT

    engine, _ = world.client(plan)
    try:
        world.mend(engine.context)
    except Crash:
        return True
    return False


def faults(call: Call) -> Iterator[Fault]:
    yield from faults_together(parts(call))
    if call.method in CHANGING:
        yield Fault(twice=True)


def faults_together(parts: Iterable[frozenset[int] | None] = (None, NONE)) -> Iterator[Fault]:
    yield Fault(applied=NONE, reply=Reply.NOT_APPLIED)
    for applied in parts:
        yield Fault(applied=applied, reply=Reply.MAYBE_APPLIED)
        yield Fault(applied=applied, reply=Reply.CRASH)


def parts(call: Call) -> Iterator[frozenset[int]]:
    """Yield which items may take effect without the others: every set of four, or some of more."""
    positions = range(len(call.items)) if call.method in CHANGING else range(0)
    if len(positions) <= 4:
        for size in range(len(positions) + 1):
            yield from map(frozenset, combinations(positions, size))
        return
    everything = frozenset(positions)
    beginnings = {frozenset(range(size)) for size in range(len(positions) + 1)}
    singles = {frozenset({position}) for position in positions}
    yield from beginnings | singles | {everything - single for single in singles}


def late_parts(call: Call) -> Iterator[frozenset[int]]:
    if call.method in CHANGING:
        yield frozenset(range(len(call.items)))
        if len(call.items) > 1:
            yield from (frozenset({position}) for position in range(len(call.items)))
