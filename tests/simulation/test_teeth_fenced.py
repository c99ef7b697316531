"""The rules of the fenced protocol."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation import variants
from tests.simulation.breaking import deliver_all
from tests.simulation.calls import Match, asks_for, counts, finishes, frees, reads_row, sleeps
from tests.simulation.keys import ADD, LONG_MS, NONE, X, Y, Z
from tests.simulation.puppets import Puppet, lock_without_row, plans, when
from tests.simulation.rules import Patch, TakeOut, with_and_without, without
from tests.simulation.teeth import add, ahead, both_committed, die, put
from tests.simulation.variants import free_without_poison
from tests.simulation.world import POLICY, TABLE, World
from txn import Committed, Delete, Engine, Key, Mutation, Policy
from txn.assertions import Exact, Or
from txn.errors import AssertionFailedError, ConflictError
from txn.model import Check
from txn.protocol import commit, fenced, recovery
from txn.protocol.locks import holder_of
from txn.protocol.row import RowState
from txn.protocol.statuses import Status
from txn.testing.faulty import Crash, Fault, Reply

pytestmark = [
    pytest.mark.usefixtures("rows_for_all"),
    pytest.mark.parametrize("protocol", ["fenced"]),
]
LOCK = X.row_lock
PATIENT = Policy(deadline_ms=LONG_MS, lock_ttl_ms=LONG_MS)


@pytest.fixture
def world(world: World) -> World:
    put(world, X, value=b"0")
    return world


def is_held(world: World) -> bool:
    return bool(holder_of(LOCK, world.memory.read([LOCK])[LOCK]))


BETWEEN: dict[str, tuple[Match, TakeOut]] = {
    "a lock counts": (counts(X), variants.count_nothing),
    "every lock has to be had": (counts(X), variants.believe_in_every_lock),
    "the decision compares": (asks_for(Status.ASSERTED), variants.decide_plainly),
}


@pytest.mark.parametrize("name", BETWEEN)
@with_and_without
def test_nobody_comes_between_a_read_and_its_decision(
    name: str, rule: bool, monkeypatch: Patch, world: World
) -> None:
    """T1 has read the row, or has its lock and is aborted. T2 replaces the same value."""
    match, take_out = BETWEEN[name]
    if not rule:
        take_out(monkeypatch)
    first = Puppet(world, add)
    first.until(match)
    world.mend()
    assert both_committed(add(world.engine()), first.finish()) is not rule


@pytest.mark.parametrize("rule", ["with", "timestamp alone", "without"])
def test_an_abort_counts_too(rule: str, monkeypatch: Patch, world: World) -> None:
    """Else T1's late lock request is granted; that the free value lies above hides it as well."""
    if rule != "with":
        variants.count_back_in_aborts(monkeypatch, above=1 if rule != "without" else 0)
    again = when(counts(X), Fault(late=frozenset({1})))
    stop = when(asks_for(Status.ASSERTED), Fault(NONE, Reply.CRASH))
    client, store = world.client(plans(again, stop))
    with pytest.raises(Crash):
        client.commit(*ADD)
    world.mend()
    deliver_all(store)
    assert is_held(world) is (rule == "without")


@without(variants.choose_the_clocks_time)
def test_a_value_lands_above_what_was_read(rule: bool, world: World) -> None:
    """T1's clock is ahead. T2, by its own clock alone, puts its value below T1's."""
    world.client(clock=ahead(world.clock))[0].commit([Mutation(X, b"1")])
    put(world, X, value=b"2")
    assert world.values([X]) == {X: b"2" if rule else b"1"}


@without(variants.choose_the_values_time)
def test_a_lock_lands_above_the_lock_before_it(rule: bool, world: World) -> None:
    """A lock below that one does not show, and neither does a value below the marker."""
    world.client(clock=ahead(world.clock))[0].commit([Delete(X)])
    second = Puppet(world, lambda engine: engine.commit_many([([Mutation(X, b"2")], [])]))
    second.until(asks_for(Status.ASSERTED))
    assert is_held(world) is rule
    second.finish()
    assert world.values([X]) == {X: b"2" if rule else None}


@without(variants.put_at_the_servers_time)
def test_statuses_have_times_of_their_own(rule: bool, world: World) -> None:
    """At the server's time, a late first write would hide the decision."""
    late = when(asks_for(Status.WRITTEN), Fault(late=frozenset(range(3))))
    stop = when(finishes(X), Fault(NONE, Reply.CRASH))
    client, store = world.client(plans(late, stop))
    world.clock.advance(10)
    with pytest.raises(Crash):
        client.commit(*ADD)
    world.clock.advance(10)
    deliver_all(store)
    row = world.rows()[-1]
    assert row.stored_status is (Status.ASSERTED if rule else Status.WRITTEN)
    assert row.state is (RowState.DECIDED if rule else RowState.UNREADABLE)
    if rule:
        world.mend()
        assert world.values([X]) == {X: b"1"}


def delete_past(world: World) -> None:
    world.mend()
    world.engine().commit([Delete(X)])
    world.memory.compact(TABLE)


@without(variants.finish_late_without_looking)
def test_an_owner_that_was_paused_compares(rule: bool, monkeypatch: Patch, world: World) -> None:
    """The same of an owner that was paused after its decision for longer than a request lives."""
    finish = commit.finish_or_leave

    def pause(*args: Any) -> None:
        monkeypatch.setattr(commit, "finish_or_leave", finish)
        world.clock.advance(2 * fenced.WRITTEN_WITHIN_MS)
        delete_past(world)
        finish(*args)

    monkeypatch.setattr(commit, "finish_or_leave", pause)
    assert isinstance(add(world.client(policy=PATIENT)[0]), Committed)
    assert world.values([X]) == {X: None if rule else b"1"}


@without(variants.trust_what_is_read)
def test_an_owner_that_has_read_its_decision_compares(rule: bool, world: World) -> None:
    """It was answered "no", and does not know for how long it has been decided."""
    owner = Puppet(world, add, faults=when(asks_for(Status.ASSERTED), Fault(twice=True)))
    owner.until(finishes(X))
    delete_past(world)
    assert isinstance(owner.finish(), Committed)
    assert world.values([X]) == {X: None if rule else b"1"}


@without(variants.unlock_before_values)
def test_values_and_their_lock_are_put_in_one_step(rule: bool, world: World) -> None:
    """T1's lock is free before its value is there: T2 replaces the old value too."""
    first = Puppet(world, add)
    first.until(asks_for(Status.ASSERTED))
    first.step()
    first.step()
    assert both_committed(add(world.engine()), first.finish()) is not rule


@without(variants.complete_first)
def test_complete_is_said_after_all_is_put(rule: bool, world: World) -> None:
    """A row that says 5-COMPLETE is never looked at again, and whoever meets its lock frees it."""
    die(world, finishes(X), *ADD)
    world.mend()
    assert world.values([X]) == {X: b"1" if rule else b"0"}


@without(variants.poison_at_the_servers_time)
def test_poison_lies_above_the_row(rule: bool, world: World) -> None:
    """At the server's time the poison lies below the row that arrives, and is hidden."""
    first = Puppet(world, add, faults=lock_without_row(), clock=ahead(world.clock))
    first.until(sleeps)
    second = Puppet(world, add)
    assert second.until(frees)
    first.until(finishes(X))
    assert both_committed(second.finish(), first.finish()) is not rule


@with_and_without
def test_an_undecided_holder_is_aborted_before_its_lock_is_freed(
    rule: bool, monkeypatch: Patch, world: World
) -> None:
    """T2 frees the lock of T1, which is about to decide. Only an abort of its row prevents that."""
    first = Puppet(world, add)
    first.until(asks_for(Status.ASSERTED))
    if rule:
        monkeypatch.setattr(recovery.Resolver, "_is_abandoned", lambda *args: True)
    else:
        variants.free_the_undecided(monkeypatch)
    second = add(world.engine())
    monkeypatch.undo()
    assert both_committed(second, first.finish()) is not rule


@without(variants.free_what_is_there)
def test_a_lock_is_freed_as_it_was_read(rule: bool, world: World) -> None:
    """Others free it, and T3 takes it. If T2 freed whatever is there, T4 would commit beside T3."""
    die(world, asks_for(Status.ASSERTED), *ADD)
    met = world.memory.read([LOCK])[LOCK]
    assert met is not None
    row_key = holder_of(LOCK, met)

    def free(engine: Engine) -> bool:
        recovery.free_for_holder(engine.context, row_key, {LOCK: met})
        return True

    second = Puppet(world, free)
    second.step()
    world.mend()
    third = Puppet(world, add)
    third.until(asks_for(Status.ASSERTED))
    second.finish()
    fourth = add(world.client(policy=replace(POLICY, attempts=1))[0])
    assert both_committed(third.finish(), fourth) is not rule


@pytest.mark.parametrize("rule", ["with", "poison alone", "without"])
def test_a_lock_is_read_before_the_row_of_its_holder(
    rule: str, monkeypatch: Patch, world: World
) -> None:
    """T1 wrote its row after T2 had looked for it. Poison would find the row as well."""
    first = Puppet(world, add)
    writing = first.until(asks_for(Status.WRITTEN))
    assert writing is not None and isinstance(writing.items[0], Check)
    row_key = writing.items[0].key.row
    before = recovery.read_rows(world.engine().context, [row_key])
    first.until(asks_for(Status.ASSERTED))
    if rule != "with":
        monkeypatch.setattr(recovery, "read_rows", lambda context, holders: before)
    if rule == "without":
        free_without_poison(monkeypatch)
    assert both_committed(add(world.engine()), first.finish()) is (rule == "without")


@without(variants.fail_at_the_first_look)
def test_an_assertion_of_several_rows_is_looked_at_twice(rule: bool, world: World) -> None:
    """A unit is moved from y to x between the reads of both: one of them had it all the time."""
    put(world, Y)
    request = [Mutation(Z, b"1")], [Or(Exact(X, b"1"), Exact(Y, b"1"))]
    asks = Puppet(world, lambda engine: engine.commit_many([request])[0], by_row=True)
    asks.until(reads_row(Y))
    world.engine().commit([Mutation(X, b"1"), Mutation(Y, b"0")])
    assert isinstance(asks.finish(), Committed if rule else AssertionFailedError)


@without(variants.judge_never_again)
def test_what_was_read_again_is_evaluated_again(rule: bool, world: World) -> None:
    """T2 has come between T1's read and its lock; T1 reads again, and goes on."""
    first = Puppet(world, add)
    first.until(counts(X))
    put(world, X, value=b"5")
    assert isinstance(first.finish(), AssertionFailedError if rule else Committed)
    assert world.values([X]) == {X: b"5" if rule else b"1"}


@without(variants.bring_all_that_was_read)
def test_a_block_brings_what_it_has_read_with_its_lock(rule: bool, world: World) -> None:
    """Were the lock taken to prove X as well, the block would replace T1's value."""
    first = Puppet(world, add)
    first.until(asks_for(Status.ASSERTED))
    block = world.engine().transaction().__enter__()
    assert block.get(X) == b"0"
    assert isinstance(first.finish(), Committed)
    block.get(Key(X.row, X.family, "other", X.table))
    block.put(X, b"2")
    with pytest.raises(ConflictError) if rule else nullcontext():
        block.__exit__(None, None, None)
    assert world.values([X]) == {X: b"1" if rule else b"2"}
