"""Safeguards of reading, each with and without: the test fails if taking it out does no harm."""

from __future__ import annotations

import pytest

from tests.simulation.puppets import Puppet, asks_for, plans, reads_row, takes, when
from tests.simulation.variants import look_once, trust_all_decided
from tests.simulation.world import World, key
from txn import Cell, Engine, Key, Mutation
from txn.protocol.statuses import Status
from txn.reading import snapshot
from txn.reading import snapshot as snapshot_module
from txn.testing.faulty import Crash, Fault, Reply

X, Y = key("x"), key("y")
with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
Cells = dict[Key, Cell | None]


def values(cells: Cells) -> list[bytes | None]:
    return [None if cell is None else cell.value for cell in cells.values()]


def put_both(engine: Engine, value: bytes) -> object:
    return engine.commit([Mutation(X, value), Mutation(Y, value)])


@with_and_without
def test_the_buffer_speaks_only_for_a_holder_at_2_asserted(
    rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1 puts, unlocks and stops; T2 overwrites; T1's lock request lands once more. A reader that
    trusts the buffer of any decided holder reads what T2 has replaced."""

    if not rule:
        monkeypatch.setattr(snapshot_module, "value_of", trust_all_decided)
    world = World()
    ghost = when(takes(X), Fault(late=frozenset({1})))
    stop = when(asks_for(Status.COMPLETE), Fault(frozenset(), Reply.CRASH))
    first, store = world.client(plans(ghost, stop))
    with pytest.raises(Crash):
        first.commit([Mutation(X, b"1")])
    world.engine().commit([Mutation(X, b"2")])
    store.deliver()
    assert world.values([X.lock])[X.lock] == world.rows()[0].row_key
    assert values(world.engine().read([X])) == [b"2" if rule else b"1"]


@with_and_without
def test_cells_are_read_twice(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction commits both keys between the reads of their rows. A reader that looks once
    sees half of it."""

    if not rule:
        monkeypatch.setattr(snapshot_module, "_try", look_once)
    world = World()
    put_both(world.engine(), b"0")
    reader = Puppet(world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(Y))
    put_both(world.engine(), b"1")
    assert values(reader.finish()) == [b"1" if rule else b"0", b"1"]


@with_and_without
def test_the_tags_are_looked_at(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction commits both keys between the reads of their values, and lets its locks go
    before they are looked at. Only the tag of the value read first tells of it."""
    if not rule:
        monkeypatch.setattr(snapshot, "_is_last", lambda value, tag: True)
    world = World()
    put_both(world.engine(), b"0")
    reader = Puppet(world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(Y))
    put_both(world.engine(), b"1")
    assert values(reader.finish()) == [b"1" if rule else b"0", b"1"]


@with_and_without
def test_holders_are_looked_at_twice(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys, two holders. The first decides after the reader has looked at it, then the second
    decides, then the reader looks at that one: it would have the later commit alone."""
    if not rule:
        monkeypatch.setattr(snapshot_module, "has_crossed", lambda before, after: False)
    world = World()
    put_both(world.engine(), b"0")
    writers = {
        X: Puppet(world, lambda engine: engine.commit([Mutation(X, b"1")])),
        Y: Puppet(world, lambda engine: engine.commit([Mutation(Y, b"1")])),
    }
    for writer in writers.values():
        writer.until(asks_for(Status.ASSERTED))
    holders = {k: cell for k in (X, Y) if (cell := world.values([k.lock])[k.lock])}
    earlier, later = sorted((X, Y), key=lambda k: holders[k])  # as the reader looks at their rows
    reader = Puppet(world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(key("x")._replace(row=holders[later])))
    for writer in (writers[earlier], writers[later]):
        writer.until(lambda call: call.method == "write")
    seen = dict(zip((X, Y), values(reader.finish()), strict=True))
    assert seen == ({X: b"1", Y: b"1"} if rule else {earlier: b"0", later: b"1"})
