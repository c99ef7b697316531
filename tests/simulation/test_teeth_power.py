"""What may be deferred, and what must not: a power failure loses the tail of one log."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from itertools import count, product
from typing import Literal

import pytest

from tests.simulation.calls import asks_for, finishes, writes_and_takes
from tests.simulation.keys import FIRST, NONE, A, X, Y, Z
from tests.simulation.puppets import Puppet, when
from tests.simulation.regions import (
    Kind,
    PowerWorld,
    Region,
    is_any,
    is_empty_tag,
    is_lock,
    is_poison,
    is_sent_deferred,
    is_step_to,
    is_unlock,
    is_value,
)
from tests.simulation.rules import both_protocols, with_and_without
from tests.simulation.teeth import IN_NO_ORDER, Block, both_committed, put, seen
from tests.simulation.world import TABLE, TRANSACTIONS
from txn import Committed, Delete, Engine, Key, Mutation, Outcome
from txn.assertions import Exact
from txn.client.engine import RequestLike
from txn.client.parts import PartsClient
from txn.errors import AbortedError, CommitOutcomeUnknown
from txn.model import Check
from txn.protocol import prepare as prepare_module
from txn.protocol.locks import holder_of, release_locks
from txn.protocol.recovery import poison
from txn.protocol.row import FREE, child_key, status_key
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import Transaction
from txn.request import Request
from txn.testing.faulty import Crash, Fault, Reply

MOVE = [Mutation(X, b"1"), Mutation(Y, b"1")], [Exact(X, b"0"), Exact(Y, b"0")]
REPLACE: RequestLike = ([Mutation(X, b"2"), Mutation(Y, b"2")], [])
Mode = Literal["stops", "goes on", "is overtaken"]
MODES: tuple[Mode, ...] = ("stops", "goes on", "is overtaken")


def world_with(is_deferred: Kind, protocol: ProtocolName = "six-phase") -> PowerWorld:
    world = PowerWorld(is_deferred, protocol=protocol)
    put(world, X, Y, value=b"0")
    world.flush()
    return world


def move(engine: Engine) -> object:
    return engine.commit_many([MOVE])[0]


def row_of_holder(world: PowerWorld, key: Key) -> Key:
    """Return the status cell of the transaction that holds the key's lock, of either protocol."""
    found = world.memory.read([key.lock, key.row_lock])
    holders = [holder for lock, cell in found.items() if (holder := holder_of(lock, cell))]
    return status_key(TRANSACTIONS, *holders)


SIX_PHASE: dict[str, Kind] = {
    "0-WRITTEN": is_step_to(Status.WRITTEN),
    "1-LOCKED": is_step_to(Status.LOCKED),
    "empty tags": is_empty_tag,
    "4-CLEANING": is_step_to(Status.CLEANING),
    "unlocks": is_unlock,
    "5-COMPLETE": is_step_to(Status.COMPLETE),
}
FENCED = {name: SIX_PHASE[name] for name in ("0-WRITTEN", "5-COMPLETE")}
SETS: dict[ProtocolName, dict[str, Kind]] = {"six-phase": SIX_PHASE, "fenced": FENCED}


def run_to(
    steps: int, is_deferred: Kind, protocol: ProtocolName
) -> tuple[PowerWorld, Puppet[object], bool]:
    world = world_with(is_deferred, protocol)
    client = Puppet(world, move)
    has_more = all(client.step() for _ in range(steps + 1))
    return world, client, has_more


def list_tails(world: PowerWorld) -> list[list[tuple[Region, int]]]:
    """Return each tail of each log, alone, and all logs together."""
    pending = world.regions.pending
    wholes = [(region, 0) for region in pending]
    single = [[(region, keep)] for region in pending for keep in range(len(pending[region]))]
    return [*single, wholes] if len(pending) > 1 else single


def lose_all_tails(is_deferred: Kind, protocol: ProtocolName = "six-phase") -> int:
    """After each call lose each tail of each log; return how many ways there were."""
    ways = 0
    for steps in count(1):
        world, _, has_more = run_to(steps, is_deferred, protocol)
        for number, mode in product(range(len(list_tails(world))), MODES):
            world, client, _ = run_to(steps, is_deferred, protocol)
            for region, keep in list_tails(world)[number]:
                world.regions.crash(region, keep)
            live_on(world, client, mode)
            ways += 1
        if not has_more:
            break
    return ways


def live_on(world: PowerWorld, client: Puppet[object], mode: Mode) -> None:
    """Let the client go on or not, and another one replace what it finds, before or after that."""
    result = client.finish() if mode == "goes on" else None
    if mode == "goes on":
        assert isinstance(result, Committed), "nobody else was in the way"
    found = world.engine().read([X, Y])
    (old,) = {cell.value for cell in found.values() if cell is not None}
    replace = [Mutation(X, b"2"), Mutation(Y, b"2")], [Exact(X, old), Exact(Y, old)]
    assert isinstance(world.engine().commit_many([replace])[0], Committed)
    if mode == "is overtaken":
        result = client.finish()
    world.mend()
    assert world.values([X, Y]) == {X: b"2", Y: b"2"}
    match result:
        case Committed():
            assert old == b"1", "a reported commit is lost"
        case CommitOutcomeUnknown():
            known = world.engine().outcome(result.transaction)
            assert known in (Outcome.UNKNOWN, Outcome.COMMITTED if old == b"1" else Outcome.ABORTED)
        case AbortedError():
            assert old == b"0", "a failed commit has happened"
        case None:
            assert mode == "stops"
        case _:
            raise AssertionError(result)


MEMBERS = [(protocol, name) for protocol, kinds in SETS.items() for name in (*kinds, "all")]


@pytest.mark.parametrize(("protocol", "name"), MEMBERS)
def test_each_member_of_the_set_may_be_lost(protocol: ProtocolName, name: str) -> None:
    """Alone or with all others, in all ways; docs/protocol.md has the argument for each."""
    kind = SETS[protocol].get(name, is_sent_deferred)
    assert lose_all_tails(lambda check: check.is_deferred and kind(check), protocol)


def test_fsck_empties_tags_again_that_were_lost() -> None:
    world = world_with(is_any(is_empty_tag, is_unlock))
    world.engine().commit(MOVE[0])
    assert world.lose(X) == 2
    world.mend()
    assert world.values([X, X.lock, X.tag]) == {X: b"1", X.lock: FREE, X.tag: FREE}


@both_protocols
def test_nothing_else_is_deferred(protocol: ProtocolName) -> None:
    """By a client that commits, one that aborts, and one that finds what others have left."""
    found: set[str] = set()

    def note(check: Check) -> bool:
        if check.is_deferred:
            names = [name for name, kind in SETS[protocol].items() if kind(check)]
            assert names, f"this has no argument: {check}"
            found.update(names)
        return check.is_deferred

    for match in (asks_for(Status.ASSERTED), finishes(X), asks_for(Status.COMPLETE)):
        world = world_with(note, protocol)
        stopped, _ = world.client(when(match, Fault(NONE, Reply.CRASH)))
        with suppress(Crash):
            move(stopped)
        assert isinstance(world.engine().commit_many([REPLACE])[0], Committed)
        world.mend()
    assert found == set(SETS[protocol])


FOREIGN = pytest.raises(AssertionError, match="foreign-")
"""What fsck says to a version that no transaction can have left: it cannot undo it."""


def beside(rule: bool, forbidden: Kind, protocol: ProtocolName = "six-phase") -> PowerWorld:
    """Return a world in which the protocol defers its set, and without the rule this as well."""
    return world_with(is_any(is_sent_deferred, *[] if rule else [forbidden]), protocol)


@both_protocols
@with_and_without
def test_locks_are_not_deferred(rule: bool, protocol: ProtocolName) -> None:
    """T1 has decided, and a lock of it is lost. T2 takes it: a lost update."""
    world = beside(rule, is_lock, protocol)
    first = Puppet(world, move)
    first.until(asks_for(Status.ASSERTED))
    first.step()
    world.lose(X, Y)
    second = move(world.engine())
    assert both_committed(first.finish(), second) is not rule


@both_protocols
@with_and_without
def test_the_decision_is_not_deferred(rule: bool, protocol: ProtocolName) -> None:
    """T1 stops after half of its values, and is then taken for undecided: the half stays."""
    world = beside(rule, is_step_to(Status.ASSERTED), protocol)
    half = Fault(frozenset({0, 1}), Reply.CRASH)
    client, _ = world.client(when(finishes(X), half))
    with pytest.raises(Crash):
        move(client)
    world.lose(row_of_holder(world, Y))
    world.mend()
    assert (world.values([X, Y]) == {X: b"1", Y: b"1"}) is rule
    assert (world.values([X, Y]) == {X: b"1", Y: b"0"}) is not rule


@both_protocols
@with_and_without
def test_values_are_not_deferred(rule: bool, protocol: ProtocolName) -> None:
    """The row says that all is put: nobody puts a lost value again."""
    world = beside(rule, is_value, protocol)
    assert isinstance(move(world.engine()), Committed)
    world.lose(X)
    world.mend()
    assert world.values([X, Y]) == {X: b"1" if rule else b"0", Y: b"1"}


@both_protocols
@with_and_without
def test_an_abort_is_not_deferred(rule: bool, protocol: ProtocolName) -> None:
    """The status is lost; T2 commits, and T1 decides all the same."""
    world = beside(rule, is_step_to(Status.ABORTING), protocol)
    first = Puppet(world, move)
    first.until(asks_for(Status.ASSERTED))
    row = row_of_holder(world, X)
    helper, _ = world.client(when(asks_for(Status.ABORTED), Fault(NONE, Reply.CRASH)))
    with pytest.raises(Crash):
        world.mend(helper.context)
    world.lose_last(row)
    second = move(world.engine())
    assert both_committed(first.finish(), second) is not rule


@both_protocols
@with_and_without
def test_poison_is_not_deferred(rule: bool, protocol: ProtocolName) -> None:
    """T1's row arrives after its poison is lost; T1 decides, and a helper frees its lock."""
    world = beside(rule, is_poison, protocol)
    together = writes_and_takes(X)
    locks_alone = Fault(frozenset({1, 2}), Reply.MAYBE_APPLIED)
    first = Puppet(world, move, faults=when(together, locks_alone))
    first.until(together)
    first.until(together)
    row = row_of_holder(world, X)
    met = world.memory.read([X.lock, X.row_lock])
    helper = world.engine().context
    assert poison(helper, Transaction(row.row, Request(())))
    assert world.lose(row) == (not rule)
    first.until(asks_for(Status.ASSERTED))
    first.step()
    is_free = release_locks(helper, {lock: cell for lock, cell in met.items() if cell})
    assert is_free or rule
    second = world.engine().commit_many([([Mutation(X, b"1")], [Exact(X, b"0")])])[0]
    assert both_committed(first.finish(), second) is not rule


@with_and_without
def test_3_put_is_not_deferred(rule: bool) -> None:
    """Whoever finds T1 at 2-ASSERTED puts its value again: what was deleted is back."""
    world = beside(rule, is_step_to(Status.PUT))
    result = world.engine().commit(*MOVE)
    row = status_key(TRANSACTIONS, result.transaction)
    world.lose(row)
    assert world.values([row]) == {row: (Status.PUT if rule else Status.ASSERTED).value}
    world.engine().commit([Delete(X)])
    world.regions.compact(TABLE)
    with nullcontext() if rule else FOREIGN:
        world.mend()
    assert world.values([X]) == {X: None if rule else b"1"}


@both_protocols
@with_and_without
def test_the_row_of_a_part_is_not_deferred(rule: bool, protocol: ProtocolName) -> None:
    """The decision counts parts, whose rows may be in other regions: a lost one is never put."""
    world = beside(rule, is_step_to(Status.PART), protocol)
    client = PartsClient(world.engine())
    parent = client.begin()
    times = [client.write(parent, n, 0, [Mutation(k, b"1")]) for n, k in enumerate((X, Y))]
    world.lose(status_key(TRANSACTIONS, child_key(parent, 1, 0)))
    assert client.commit(parent, [1, 1], max(times)).complete is rule
    with nullcontext() if rule else pytest.raises(AssertionError, match="unreadable"):
        world.mend()
    assert world.values([X, Y]) == {X: b"1", Y: b"1" if rule else b"0"}


def decide_late(world: PowerWorld, step: Status, *, is_lost: bool) -> list[bool]:
    """Lose the status of a block; let a key come to its range, and be read, and the block go on."""
    block = Block(world, Z, when(asks_for(step), Fault(late=FIRST)))
    block.until(asks_for(Status.ASSERTED))
    assert world.lose_last(row_of_holder(world, Z)) == is_lost
    put(world, A)
    saw = seen(world.engine(), A, Z)
    block.store.deliver()
    return [*saw, block.finish()]


@with_and_without
def test_the_row_of_a_transaction_that_validates_is_not_deferred(rule: bool) -> None:
    """The row's first write lands once more, and the block decides."""
    world = beside(rule, is_step_to(Status.WRITTEN), "fenced")
    assert (decide_late(world, Status.WRITTEN, is_lost=not rule) == IN_NO_ORDER) is not rule


@with_and_without
def test_1_locked_of_ranges_is_not_deferred(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of 1-LOCKED, of an attempt that waits for locks: readers pass it before that."""
    monkeypatch.setattr(prepare_module, "EARLY", prepare_module.LATE)
    world = beside(rule, is_step_to(Status.LOCKED))
    assert (decide_late(world, Status.LOCKED, is_lost=not rule) == IN_NO_ORDER) is not rule
