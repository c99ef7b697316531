"""Safeguards of snapshots of many readers, each with and without: a task's and the planner's
listings take several steps, and others act in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.simulation.puppets import Puppet, asks_for, keys, reads_row, when
from tests.simulation.world import TABLE, World, key
from txn import Delete, Engine, Exact, Mutation
from txn.errors import ConflictError
from txn.model import Row
from txn.protocol.context import Context
from txn.protocol.row import column
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.reading import instants
from txn.reading.feed import Bounds
from txn.reading.instants import Instant, LaterChanges, Placement, find_instant, restore_rows
from txn.spans import Span
from txn.testing.faulty import Call, Fault

K, X, Y, Z = key("k"), key("x"), key("y"), key("z")
BOUNDS = Bounds(0, 25_000)
LABELS = {"of": "a row"}
"""Fenced transactions of one unit have a row if they have labels."""
Patch = pytest.MonkeyPatch
Changes = Sequence[Mutation | Delete]
Values = dict[bytes, bytes]

with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def commit(world: World, *changes: Mutation | Delete, ms: int = 5) -> bytes:
    transaction = world.engine().commit(changes, labels=LABELS).transaction
    world.clock.advance(ms)
    return transaction


def read(engine: Engine, instant: Instant) -> Values:
    """Return what a task that reads now shows, by row."""
    span = Span(TABLE)
    rows = restore_rows(engine.context, [span], instant, list(engine.backend.scan(span)))
    return {key.row: cell.value for row in rows for key, cell in row.cells.items()}


def lists(row_key: bytes, call: Call) -> bool:
    """Whether a listing has come to this transaction; a look at its changes reads its buffer."""
    is_there = reads_row(key("")._replace(row=row_key))(call)
    return is_there and all(item.column != b"buffer" for item in keys(call))


def read_past_undecided(
    world: World, instant: Instant, *stories: tuple[Changes, Changes]
) -> Values:
    """Return what a task shows whose first listing passes a transaction while it is undecided. It
    decides then, and a later transaction replaces what it wrote and is listed. The second listing
    meets the next story."""
    owners = []
    for first, _ in stories:
        work = partial(Engine.commit, mutations=first, labels=LABELS)
        owners.append(Puppet(world, work))
        owners[-1].until(asks_for(Status.ASSERTED))
        world.clock.advance(5)
    behind = commit(world, Mutation(Z, b"another"))
    task = Puppet(world, lambda engine: read(engine, instant), by_row=True)
    for owner, (_, later) in zip(owners, stories, strict=True):
        assert task.until(partial(lists, behind)) is not None
        owner.finish()
        commit(world, *later)
        task.step()
    return task.finish()


@with_and_without
@every_protocol
@pytest.mark.parametrize("change", [Mutation(K, b"1"), Delete(K)], ids=["put", "delete"])
def test_a_cell_older_than_the_first_known_change_stays(
    change: Mutation | Delete, rule: bool, protocol: ProtocolName, monkeypatch: Patch
) -> None:
    """It was read before every later change. The first one known replaced another version, or
    none, and taking that back would show half of a transaction that decided after the instant."""
    if not rule:
        monkeypatch.setattr(instants, "_precedes", lambda *_: False)
    world = World(protocol=protocol)
    commit(world, Mutation(K, b"0"), Mutation(Y, b"0"), ms=1_000)
    instant = find_instant(world.engine().context, BOUNDS)
    story = [change, Mutation(Y, b"1")], [Mutation(K, b"2")]
    seen = read_past_undecided(world, instant, story)
    assert (seen == {b"k": b"0", b"y": b"0"}) is rule


def list_once(patch: Patch) -> None:
    look = LaterChanges._read_changes

    def look_once(self: LaterChanges) -> None:
        if not self._known:
            look(self)

    patch.setattr(LaterChanges, "_read_changes", look_once)


@with_and_without
@every_protocol
def test_changes_of_absent_keys_are_listed_twice(
    rule: bool, protocol: ProtocolName, monkeypatch: Patch
) -> None:
    """An absent cell does not show whether it was read before the changes. The second listing sees
    each change that precedes one of the first."""
    if not rule:
        list_once(monkeypatch)
    world = World(protocol=protocol)
    commit(world, Mutation(Y, b"0"), ms=1_000)
    instant = find_instant(world.engine().context, BOUNDS)
    story = [Mutation(K, b"1"), Mutation(Y, b"1")], [Mutation(K, b"2")]
    seen = read_past_undecided(world, instant, story)
    assert (seen == {b"y": b"0"}) is rule


@every_protocol
def test_a_key_that_only_the_second_listing_finds_changed_stays(protocol: ProtocolName) -> None:
    """It had not changed when it was read, and the second listing may have passed its first change
    as the first listing may."""
    world = World(protocol=protocol)
    commit(world, Mutation(Y, b"0"), ms=1_000)
    instant = find_instant(world.engine().context, BOUNDS)
    stories = [([Mutation(k, b"1")], [Mutation(k, b"2")]) for k in (K, X)]
    assert read_past_undecided(world, instant, *stories) == {b"y": b"0"}


# ------------------------------------------------------------------------------------ the planner


def count_first_writes(patch: Patch) -> None:
    """Take the date of a fenced row's first write for proof that its place is later."""
    describe = instants._describe

    def describe_by_it(context: Context, row: Row, at_ms: int) -> Placement:
        found = describe(context, row, at_ms)
        written = row.cells.get(column(context.table, row.row, Status.WRITTEN.at))
        return found._replace(placed_ms=max(found.placed_ms, written.timestamp if written else 0))

    patch.setattr(instants, "_describe", describe_by_it)


class Delivering:
    """A planner's clock: while it sleeps, after its marks, late requests arrive."""

    def __init__(self, world: World, deliver: Callable[[], object]) -> None:
        self._world = world
        self._deliver = deliver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.clock, name)

    def sleep_ms(self, duration_ms: int) -> None:
        self._world.clock.sleep_ms(duration_ms + 3)
        self._deliver()


def repeat_first_write(puppet: Puppet[Any]) -> Callable[[], None]:
    def deliver() -> None:
        if puppet.store.in_flight:
            puppet.store.deliver()

    return deliver


@with_and_without
@pytest.mark.parametrize("ahead_ms", [0, 30_000], ids=["right clock", "clock ahead"])
def test_a_late_first_write_proves_no_place(ahead_ms: int, rule: bool, monkeypatch: Patch) -> None:
    """Nothing compares a fenced row's first write, so a duplicate dates it again. A transaction
    that validated x before the mark would seem to come after it, beside the one that changed x."""
    if not rule:
        count_first_writes(monkeypatch)
    world = World(protocol="fenced")
    commit(world, Mutation(X, b"0"), ms=100)
    commit(world, Mutation(Y, b"0"), ms=100)
    repeated = when(asks_for(Status.WRITTEN), Fault(late=frozenset({0})))
    clock = world.clock.__class__(world.clock.wall_ms() + ahead_ms)
    owner = Puppet(
        world,
        lambda engine: engine.commit([Mutation(Y, b"1")], [Exact(X, b"0")], validate=True),
        faults=repeated,
        clock=clock if ahead_ms else None,
    )
    assert owner.until(asks_for(Status.ASSERTED)) is not None and owner.store.in_flight
    world.clock.advance(10)
    commit(world, Mutation(X, b"1"), ms=10)
    context = world.engine().context
    planner = replace(context, clock=Delivering(world, repeat_first_write(owner)))
    if rule:
        with pytest.raises(ConflictError, match="decide too often"):
            find_instant(planner, BOUNDS)
        return
    instant = find_instant(planner, BOUNDS)
    owner.finish()
    assert read(world.engine(), instant) == {b"x": b"1", b"y": b"0"}, "no order has this state"
