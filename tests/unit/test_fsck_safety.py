"""Fsck beside clients, beside itself and again: check never writes, and repair is always safe."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from recovery import Finding, Kind, LeftAlone, NothingToDo, Repaired, check, repair, summary
from recovery.findings import InGrace
from recovery.fsck import delete_cells
from recovery.inspect import explain
from tests.unit.test_fsck import HOUR_MS, UNFINISHED, found, left_at, mended, put_column
from tests.unit.worlds import TABLE, World, X, Y, Z
from txn import Engine
from txn.assertions import Some
from txn.client.parts import PartsClient
from txn.errors import DeadlineError
from txn.model import Check, Edit, Mutation
from txn.protocol.row import column
from txn.protocol.statuses import ProtocolName, Status
from txn.request import Outcome
from txn.testing.counting import CountingStore
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply, at


def test_check_never_writes() -> None:
    world = World()
    damaged = left_at(world, Status.LOCKED)
    world.engine.commit([Mutation(Z, b"1")], once="token")
    put_column(world, damaged, b"buffer", b"junk")
    world.store.check_and_put(
        [Check(Z.lock, b"", ((Z.lock, b"transaction.1700000000000." + b"0" * 32),))]
    )
    world.store.write([Edit(Z.tag, b"7", world.clock.wall_ms() + 5)])
    counting = CountingStore(world.store)
    context = replace(world.engine.context, store=counting)
    findings = list(check(context, grace_ms=0, retention_ms=0, scan=[TABLE, b"txn"]))
    assert len({finding.kind for finding in findings}) >= 4
    assert set(counting.calls) == {"describe", "scan", "read"}


@pytest.mark.parametrize(("status", "kind", "end"), UNFINISHED)
def test_two_repairs_at_once_come_to_the_same_end(status: Status, kind: Kind, end: Status) -> None:
    for number in range(1, 30):
        world = World()
        world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
        left_at(world, status)
        (finding,) = found(world, grace_ms=0)
        done: list[object] = []

        def plan(
            call: Call,
            number: int = number,
            world: World = world,
            finding: Finding = finding,
            done: list[object] = done,
        ) -> Fault:
            if call.number == number:
                done.append(repair(world.engine.context, finding))
            return Fault()

        context = world.engine.context
        repair(replace(context, store=FaultyStore(world.store, plan)), finding)
        assert isinstance(repair(context, finding), NothingToDo)
        assert world.rows()[-1].status is end
        # A put that was overtaken by everything else leaves its tag, which is the scan's to find.
        assert set(mended(world, grace_ms=0, scan=[TABLE])) <= {Repaired("emptied")}
        assert summary(world.engine.context, [TABLE]).is_quiet
        expected = b"2" if end is Status.COMPLETE else b"1"
        assert (world.value(X), world.value(Y)) == (expected, expected)
        if not done:
            return
    raise AssertionError("a repair does not end")


@pytest.mark.parametrize("beats", [True, False])
@pytest.mark.parametrize("status", [Status.LOCKED, Status.ASSERTED, Status.ABORTED])
def test_an_owner_that_has_moved_on_is_left_in_peace(status: Status, beats: bool) -> None:
    """The finding is old: its owner was only slow, or has shown that it lives."""
    world = World()
    row_key = left_at(world, Status.WRITTEN)
    (finding,) = found(world, grace_ms=0)
    world.clock.advance(5)
    if beats:
        put_column(world, row_key, b"beat", b"")
        status = Status.WRITTEN
    else:
        key = column(b"txn", row_key, b"status")
        world.store.check_and_put([Check(key, Status.WRITTEN.value, ((key, status.value),))])
    result = repair(world.engine.context, finding)
    assert isinstance(result, NothingToDo | LeftAlone)
    assert not beats or result == NothingToDo("its owner has moved on")
    assert world.rows()[-1].status is status


def test_an_owner_that_decides_at_the_last_moment_wins() -> None:
    world = World()
    row_key = left_at(world, Status.LOCKED)
    (finding,) = found(world, grace_ms=0)
    status = column(b"txn", row_key, b"status")
    decision = Check(status, Status.LOCKED.value, ((status, Status.ASSERTED.value),))

    def plan(call: Call) -> Fault:
        if call.method == "check_and_put":
            world.store.check_and_put([decision])
        return Fault()

    context = replace(world.engine.context, store=FaultyStore(world.store, plan))
    assert repair(context, finding) == NothingToDo("its owner took it to 2-ASSERTED meanwhile")
    assert world.rows()[-1].status is Status.ASSERTED
    assert world.holder(X) == row_key


def test_a_row_that_changed_since_is_not_deleted() -> None:
    world = World()
    row_key = world.engine.commit([Mutation(X, b"1")]).transaction
    (finding,) = found(world, retention_ms=0)
    repair(world.engine.context, finding)
    assert repair(world.engine.context, finding) == NothingToDo("the row is gone")
    world.clock.advance(1)
    status = column(b"txn", row_key, b"status")
    world.store.check_and_put([Check(status, b"", ((status, Status.WRITTEN.value),))])
    assert repair(world.engine.context, finding) == NothingToDo("the row has changed")
    assert world.rows()[-1].status is Status.WRITTEN


def test_a_transaction_of_assertions_alone_is_finished_too() -> None:
    world = World()
    world.put(X, b"1")
    left_at(world, Status.ASSERTED, [Some(X)], ())
    mended(world, grace_ms=0, scan=[TABLE])
    assert world.rows()[-1].status is Status.COMPLETE
    assert world.holder(X) == b""


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
@pytest.mark.parametrize("back", [status for status in Status if status is not Status.PART])
def test_what_has_ended_is_not_ended_again(protocol: ProtocolName, back: Status) -> None:
    world = World(protocol=protocol)
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    status = column(b"txn", done.transaction, b"status")
    world.store.write([Edit(status, back.value, world.clock.wall_ms() + 60_000)])
    assert found(world, grace_ms=0, scan=[TABLE]) == []
    assert world.engine.outcome(done.transaction) is Outcome.COMMITTED
    world.clock.advance(25 * HOUR_MS)
    assert [*mended(world), world.rows()] == [Repaired("deleted"), []]


def test_a_repair_that_changes_nothing_says_so() -> None:
    world = World(protocol="fenced")
    row_key = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")]).transaction
    at_ms = world.clock.wall_ms() + 60_000
    status, end = (column(b"txn", row_key, name) for name in (b"status", Status.COMPLETE.at))
    world.store.write([Edit(end, None, at_ms), Edit(status, Status.ASSERTED.value, at_ms)])
    for _ in range(2):
        (finding,) = found(world, grace_ms=0)
        assert isinstance(repair(world.engine.context, finding), LeftAlone)


@pytest.mark.parametrize("one_cell", [True, False])
def test_a_deletion_that_stops_leaves_no_decision(one_cell: bool) -> None:
    """What is left of a finished row is that it is over, or nothing."""
    done = World()
    row_key = done.engine.commit([Mutation(X, b"1")]).transaction
    (row,) = done.store.scan(b"txn", row_key, row_key + b"\0")
    for number in range(1, 3):
        for applied in range(len(row.cells)):
            world = World()
            world.engine.commit([Mutation(X, b"1")])
            world.clock.advance(25 * HOUR_MS)
            store = FaultyStore(
                world.store, at({number: Fault(frozenset(range(applied)), Reply.CRASH)})
            )
            if one_cell:
                store.features -= {"row_mutations"}
            with suppress(Crash):
                delete_cells(replace(world.engine.context, store=store), [row])
            assert [each for each in world.rows() if not each.is_over] == []


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_a_living_job_may_be_silent_for_its_lock_ttl(protocol: ProtocolName) -> None:
    """A part goes by its transaction's heartbeats, also if a worker of less patience wrote it."""
    hurried = World(protocol=protocol)
    patient = replace(hurried.policy, lock_ttl_ms=240_000)
    owner = PartsClient(Engine(hurried.store, table=TABLE, policy=patient, clock=hurried.clock))
    transaction = owner.begin()
    stamp = PartsClient(hurried.engine).write(transaction, 0, 0, [Mutation(X, b"1")])
    for silent_ms in (66_000, 80_000):
        hurried.clock.advance(silent_ms)
        young = InGrace()
        assert found(hurried, scan=[TABLE], young=young) == []
        assert young.counts[Kind.UNDECIDED] == 2
        with pytest.raises(DeadlineError):
            hurried.engine.commit([Mutation(X, b"2")])
        explained = explain(hurried.engine.context, transaction)
        assert explained is not None
        assert "within the grace and its lock TTL" in explained.advice
    assert len(found(hurried, grace_ms=0)) == 2
    assert owner.commit(transaction, [1], stamp).complete
    dead = owner.begin()
    hurried.clock.advance(240_000)
    assert [finding.transaction for finding in found(hurried)] == [dead]
