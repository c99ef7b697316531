"""Safeguards of validated keys, each with and without: the test fails if taking it out does no
harm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.puppets import Match, Puppet, asks_for, reads_row, sleeps
from tests.simulation.test_teeth_ranges import IN_NO_ORDER, ONE_ATTEMPT, put, seen
from tests.simulation.variants import believe_what_was_read
from tests.simulation.world import TRANSACTIONS, World, key
from txn import AbortedError, ConflictError, Delete, Engine, Key, Mutation, Not, Some
from txn.protocol import fenced as fenced_module
from txn.protocol import prepare as prepare_module
from txn.protocol import six_phase as six_phase_module
from txn.protocol.row import FAMILY
from txn.protocol.statuses import ProtocolName, Status
from txn.reading import snapshot as snapshot_module
from txn.testing.faulty import Call

A, B, Y = key("a"), key("b"), key("y")
Patch = pytest.MonkeyPatch
with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
both_protocols = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])


def validator(world: World, written: Key, *absent: Key) -> Puppet[bool]:
    """A client that puts a key if others are absent, which it validates; it returns whether it
    has."""

    def commit(engine: Engine) -> bool:
        asserted = [Not(Some(each)) for each in absent]
        try:
            engine.commit([Mutation(written, b"1")], asserted, validate=True)
        except ConflictError:
            return False
        return True

    return Puppet(world, commit, policy=ONE_ATTEMPT, by_row=True)


def puts_values(call: Call) -> bool:
    return call.method == "write"


@with_and_without
@both_protocols
def test_two_that_validate_what_the_other_writes(
    protocol: ProtocolName, rule: bool, monkeypatch: Patch
) -> None:
    """Write skew: each finds the other's key absent, and puts its own."""
    if not rule:
        believe_what_was_read(monkeypatch)
    world = World(protocol=protocol)
    one, two = validator(world, Y, A), validator(world, A, Y)
    two.until(asks_for(Status.WRITTEN))
    one.until(asks_for(Status.ASSERTED))
    assert two.finish() is not rule
    assert one.finish()


def between(world: World, match: Match) -> list[bool]:
    """Let a validator go on to a call; then somebody puts the key that it found absent; then
    somebody reads that and what the validator writes; then it goes on."""
    one = validator(world, Y, A)
    one.until(match)
    put(world, A)
    return [*seen(world.engine(), A, Y), one.finish()]


@with_and_without
@both_protocols
def test_readers_wait_for_a_transaction_that_has_validated(
    protocol: ProtocolName, rule: bool, monkeypatch: Patch
) -> None:
    if not rule:
        monkeypatch.setattr(snapshot_module, "hides_values", lambda rules, holder, cells: False)
    found = between(World(protocol=protocol), asks_for(Status.ASSERTED))
    assert (found != IN_NO_ORDER) is rule


@with_and_without
def test_readers_wait_at_0_for_an_attempt_that_does_not_wait(
    rule: bool, monkeypatch: Patch
) -> None:
    """A fenced transaction decides from 0: its mark says that readers wait for it there."""
    if not rule:
        monkeypatch.setattr(prepare_module, "EARLY", prepare_module.LATE)
    found = between(World(protocol="fenced"), asks_for(Status.ASSERTED))
    assert (found != IN_NO_ORDER) is rule


@with_and_without
@both_protocols
def test_a_validated_key_is_free(protocol: ProtocolName, rule: bool, monkeypatch: Patch) -> None:
    """Its cell may be old: somebody has committed another value, and not put it yet."""
    if not rule:
        believe_what_was_read(monkeypatch)
    world = World(protocol=protocol)
    one = validator(world, Y, A)
    one.until(asks_for(Status.WRITTEN))
    two = Puppet(world, lambda engine: engine.commit([Mutation(A, b"1"), Mutation(B, b"1")]))
    two.until(puts_values)
    assert one.finish() is not rule
    assert two.finish()


@with_and_without
def test_an_attempt_that_waited_for_locks_validates_after_its_step(
    rule: bool, monkeypatch: Patch
) -> None:
    """Readers do not wait for it before it is at 1-LOCKED, and what it read with that step may be
    older: they see what has changed since, and not yet what it puts."""
    if not rule:
        own = six_phase_module._must_look_again
        monkeypatch.setattr(
            six_phase_module, "_must_look_again", lambda t: own(replace(t, is_patient=False))
        )
    world = World()
    put(world, Y)
    first = Puppet(world, lambda engine: engine.commit([Mutation(Y, b"2")]))
    first.until(asks_for(Status.ASSERTED))

    def commit(engine: Engine) -> bool:
        try:
            return engine.commit([Mutation(Y, b"3")], [Not(Some(A))], validate=True).complete
        except AbortedError:
            return False

    waiting = Puppet(world, commit, policy=replace(ONE_ATTEMPT, attempts=2))
    waiting.store.reads_early = lambda: True
    while waiting.until(sleeps) and b"1" not in list_marks(world):
        pass
    first.finish()
    waiting.until(asks_for(Status.LOCKED))
    put(world, A)
    cells = world.engine().read([A, Y])
    assert [cell and cell.value for cell in cells.values()] == [b"1", b"2"]
    assert waiting.finish() is not rule


@with_and_without
def test_a_fenced_attempt_that_waited_says_so_before_it_validates(
    rule: bool, monkeypatch: Patch
) -> None:
    """Readers do not wait for it at 0-WRITTEN: its mark says that it took its locks late."""
    if not rule:
        monkeypatch.setattr(fenced_module, "advance", lambda context, transactions, new: [])
    world = World(protocol="fenced")
    put(world, Y)
    both = [Mutation(Y, b"2"), Mutation(B, b"2")]
    first = Puppet(
        world, lambda engine: engine.commit(both), policy=replace(ONE_ATTEMPT, lock_ttl_ms=60_000)
    )
    first.until(asks_for(Status.ASSERTED))

    def commit(engine: Engine) -> bool:
        try:
            return engine.commit([Mutation(Y, b"3")], [Not(Some(A))], validate=True).complete
        except AbortedError:
            return False

    waiting = Puppet(world, commit, policy=replace(ONE_ATTEMPT, attempts=2))
    for _ in range(12):
        waiting.until(sleeps)
    first.finish()
    waiting.until(asks_for(Status.ASSERTED))
    assert b"1" in list_marks(world)
    put(world, A)
    cells = world.engine().read([A, Y])
    saw = [cell and cell.value for cell in cells.values()]
    assert (saw == [b"1", b"2"] and waiting.finish()) is not rule


def list_marks(world: World) -> list[bytes]:
    rows = world.memory.scan(TRANSACTIONS, columns=[(FAMILY, b"ranges")])
    return [cell.value for row in rows for cell in row.cells.values()]


@with_and_without
@both_protocols
def test_keys_in_several_rows_are_validated_at_one_instant(
    protocol: ProtocolName, rule: bool, monkeypatch: Patch
) -> None:
    """One of two keys is always there. They change places between a look at the one and a look at
    the other, so that both seem to be away."""
    if not rule:
        believe_what_was_read(monkeypatch)
        monkeypatch.setattr(six_phase_module, "_must_look_again", lambda t: False)
    world = World(protocol=protocol)
    put(world, B)
    one = validator(world, Y, A, B)
    if protocol == "six-phase":
        one.until(asks_for(Status.LOCKED))
    one.until(reads_row(B))
    world.engine().commit([Mutation(A, b"1"), Delete(B)])
    assert one.finish() is not rule


@with_and_without
def test_a_fenced_key_is_as_it_was_when_it_was_read(rule: bool, monkeypatch: Patch) -> None:
    """It has changed since, and is free again: only its count tells."""
    if not rule:
        believe_what_was_read(monkeypatch)
    world = World(protocol="fenced")
    one = validator(world, Y, A)
    one.until(asks_for(Status.WRITTEN))
    put(world, A)
    assert one.finish() is not rule
