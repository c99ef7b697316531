"""Safeguards of retiring keys, each with and without: the test fails if taking it out does no
harm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery import check, repair_all
from tests.simulation.puppets import Puppet, asks_for, checks, frees, reads_row
from tests.simulation.variants import delete_plainly, mark_at_the_lock
from tests.simulation.world import POLICY, TABLE, World, key
from txn import ConflictError, Delete, Engine, Mutation, TxnError
from txn.assertions import Version
from txn.model import KEEP_DELETES_MS, Edit
from txn.protocol import retire
from txn.protocol.statuses import Status
from txn.reading import snapshot as snapshot_module
from txn.testing.faulty import Call

X, Y = key("x"), key("y")
with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
Patch = pytest.MonkeyPatch


def fsck(engine: Engine, retention_ms: int = KEEP_DELETES_MS) -> bool:
    findings = check(engine.context, retention_ms=retention_ms, scan=[TABLE])
    return bool(list(repair_all(engine.context, findings)))


def retires(call: Call) -> bool:
    """Match the delete of a retirer."""
    edits = [item for item in call.items if isinstance(item, Edit)]
    return any(edit.value is None for item in checks(call) for edit in item.edits) or any(
        edit.value is None and edit.key == X.lock for edit in edits
    )


def deleted(world: World) -> None:
    world.engine().commit([Mutation(X, b"0")])
    world.engine().commit([Delete(X)])
    world.clock.advance(KEEP_DELETES_MS + 10)


def put_if_absent(engine: Engine, value: bytes) -> object:
    return engine.commit([Mutation(X, value)], [Version(X, None)])


@with_and_without
def test_a_key_is_retired_on_the_condition_that_its_lock_is_the_retirers(
    rule: bool, monkeypatch: Patch
) -> None:
    """T1 frees the retirer's lock. The server's clock goes back; so T1 takes the lock in the
    millisecond of the retirer's, and looks under it. Were the delete without a condition, it would
    hide T1's lock, and T2 would hold it as well."""
    if not rule:
        monkeypatch.setattr(retire, "_delete", delete_plainly)
    world = World()
    deleted(world)
    retirer = Puppet(world, fsck)
    assert retirer.until(retires)
    locked_ms = world.clock.wall_ms()
    first = Puppet(world, lambda engine: put_if_absent(engine, b"1"))
    first.until(frees)
    world.clock.set_wall_ms(locked_ms)
    first.until(asks_for(Status.ASSERTED))
    retirer.finish()
    world.clock.advance(1)
    committed = 0
    try:
        put_if_absent(world.client(policy=POLICY)[0], b"2")
        committed += 1
    except TxnError:
        pass
    try:
        first.finish()
        committed += 1
    except TxnError:
        pass
    assert committed == (1 if rule else 2)


@with_and_without
def test_the_marker_of_a_retired_lock_lies_at_or_above_the_tag(
    rule: bool, monkeypatch: Patch
) -> None:
    """The key was deleted ahead of the server's clock, and is retired behind that. A later lock at
    the clock's time would be seen, and its put masked by the key's own marker."""
    if not rule:
        monkeypatch.setattr(retire, "_delete", mark_at_the_lock)
    world = World()
    ahead_ms = POLICY.skew_ms // 3
    world.memory.write([Edit(X, b"0", world.clock.wall_ms() + ahead_ms)])
    world.engine().commit([Delete(X)])
    assert fsck(world.engine(), retention_ms=0)
    world.clock.advance(1)
    engine, _ = world.client(policy=replace(POLICY, attempts=1))
    if rule:
        with pytest.raises(ConflictError, match="a delete marker in the future hides"):
            engine.commit([Mutation(X, b"2")])
    engine.commit([Mutation(X, b"2")])
    assert world.values([X]) == {X: b"2" if rule else None}


@with_and_without
def test_only_keys_older_than_the_retention_are_retired(rule: bool) -> None:
    """A reader has read x. One transaction deletes x and puts y. Were x retired at once, nothing
    would tell the reader, who then reads y and the tags: half a transaction."""
    world = World()
    world.engine().commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    reader = Puppet(world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(Y))
    world.engine().commit([Delete(X), Mutation(Y, b"1")])
    fsck(world.engine(), KEEP_DELETES_MS if rule else 0)
    found = reader.finish()
    assert [cell and cell.value for cell in found.values()] == [None if rule else b"0", b"1"]


@with_and_without
def test_the_looks_of_a_read_lie_close_together(rule: bool, monkeypatch: Patch) -> None:
    """The same, with the retention kept: the reader is stopped for longer than that."""
    if not rule:
        monkeypatch.setattr(snapshot_module, "are_apart", lambda context, first_ms: False)
    world = World()
    world.engine().commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    reader = Puppet(world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(Y))
    world.engine().commit([Delete(X), Mutation(Y, b"1")])
    world.clock.advance(KEEP_DELETES_MS + 10)
    fsck(world.engine())
    found = reader.finish()
    assert [cell and cell.value for cell in found.values()] == [None if rule else b"0", b"1"]
