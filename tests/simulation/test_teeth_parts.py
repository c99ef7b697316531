"""Safeguards of transactions in parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from recovery import Kind, check, repair
from recovery.purge import purge_row
from recovery.scan import whole_row
from tests.simulation.calls import asks_for, counts, puts_plan
from tests.simulation.keys import FIRST, X, Y, Z
from tests.simulation.puppets import Puppet, when
from tests.simulation.rules import both_protocols, without
from tests.simulation.teeth import put
from tests.simulation.variants import PARTS_RULES
from tests.simulation.world import TABLE, TRANSACTIONS, OneCell, World, Wrapper
from txn import Committed, Engine, Mutation
from txn.assertions import Exact, Or
from txn.client.parts import PartsClient
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    CorruptRowError,
    DeadlineError,
)
from txn.model import Cell, Edit, Key, Row
from txn.protocol.recovery import follow_decision
from txn.protocol.row import child_key, read_rows
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import load_transaction
from txn.stores.base import Store
from txn.testing.faulty import Crash, Fault, Reply

NEW = {X: b"1", Y: b"1"}
pytestmark = pytest.mark.fast


def begin(world: World, engine: Engine | None = None) -> tuple[PartsClient, bytes, int]:
    put(world, X, Y, value=b"0")
    client = PartsClient(engine or world.engine())
    transaction = client.begin()
    times = [client.write(transaction, n, 0, [Mutation(k, b"1")]) for n, k in enumerate(NEW)]
    return client, transaction, max(times)


@both_protocols
@without(PARTS_RULES["a part aborts alone"])
def test_with_a_part_its_transaction_aborts(rule: bool, world: World) -> None:
    """Somebody takes the owner for dead at one part, and the owner decides for all."""
    client, transaction, newest = begin(world)
    other = world.engine()
    other.commit([Mutation(X, b"other")])  # waits for the lease of who does not beat
    if rule:
        with pytest.raises(ConflictError):
            client.commit(transaction, [1, 1], newest)
    else:
        assert isinstance(client.commit(transaction, [1, 1], newest), Committed)
    with nullcontext() if rule else pytest.raises(AssertionError, match="unreadable"):
        world.mend()
    values = world.values([X, Y])
    assert (values == {X: b"other", Y: b"0"}) is rule
    assert rule or values == {X: b"other", Y: b"1"}


@both_protocols
@without(PARTS_RULES["all parts are counted"])
def test_only_counted_parts_are_committed(rule: bool, world: World) -> None:
    """A task that was given up, or made more parts than the one that counts, wrote them too."""
    client, transaction, newest = begin(world)
    newest = max(newest, client.write(transaction, 1, 1, [Mutation(Z, b"stray")]))
    client.commit(transaction, [1, 1], newest)
    world.mend()
    assert world.values(NEW) == NEW
    assert world.values([Z])[Z] == (None if rule else b"stray")


@both_protocols
@without(PARTS_RULES["parts are not finished first"])
def test_a_transaction_goes_on_when_its_parts_are_complete(rule: bool, world: World) -> None:
    client, transaction, newest = begin(world)
    client.commit(transaction, [1, 1], newest)
    world.mend()
    assert (world.values(NEW) == NEW) is rule


@both_protocols
@without(PARTS_RULES["a plan is put plainly"])
def test_a_plan_is_put_on_the_condition_that_the_part_has_not_followed(
    rule: bool, world: World
) -> None:
    """A copy of a task stops before its plan; meanwhile all is decided, and half of it is done."""
    put(world, X, Y, value=b"0")
    engine, _ = world.client(when(asks_for(Status.ASSERTED), Fault(reply=Reply.CRASH)))
    client = PartsClient(engine)
    transaction = client.begin()

    def copy(engine: Engine) -> int:
        return PartsClient(engine).write(transaction, 0, 0, [Mutation(X, b"1")])

    slow = Puppet(world, copy)
    assert slow.until(puts_plan)
    client.write(transaction, 0, 0, [Mutation(X, b"1")])
    world.clock.sleep_ms(5)
    client.write(transaction, 1, 0, [Mutation(Y, b"1")])
    # The timestamp is above both parts': those of the first alone would be another one.
    with pytest.raises(Crash):
        client.commit(transaction, [1, 1], world.clock.wall_ms() + 50)
    context, part = world.engine().context, child_key(transaction, 0, 0)
    row = read_rows(context, [part])[part]
    follow_decision(context, [load_transaction(context, row)])
    with pytest.raises(AbortedError, match="over") if rule else nullcontext():
        slow.finish()
    world.mend()
    cells = world.engine().read([X, Y])
    times = {cell.timestamp for cell in cells.values() if cell}
    assert (len(times) == 1) is rule


@both_protocols
@without(PARTS_RULES["a part is undecided while it says so"])
def test_readers_ask_the_transaction_of_a_part(rule: bool, world: World) -> None:
    client, transaction, newest = begin(world)
    client.commit(transaction, [1, 1], newest, ack="decided")
    reader = world.engine()
    seen = {k: cell.value for k in NEW if (cell := reader.read([k])[k])}
    assert (seen == NEW) is rule
    world.mend()
    assert world.values(NEW) == NEW


class Hiding(Wrapper):
    """A store that does not show one row: in reads, or in the first scan."""

    def __init__(self, inner: Store, row: bytes, *, scans: bool = False) -> None:
        super().__init__(inner)
        self._row, self._scans, self._left = row, scans, int(scans)

    def read(self, *groups: Collection[Key]) -> dict[Key, Cell | None]:
        found = self._inner.read(*groups)
        return {k: None if k.row == self._row and not self._scans else found[k] for k in found}

    def scan(self, *args: Any, **named: Any) -> Iterator[Row]:
        for row in self._inner.scan(*args, **named):
            if row.row == self._row and self._left:
                self._left = 0
            else:
                yield row


def commit_beside(engine: Engine, value: bytes) -> None:
    with suppress(ConflictError, DeadlineError):
        engine.commit([Mutation(Y, value)])


@both_protocols
@without(PARTS_RULES["an absent transaction is not poisoned"])
def test_an_absent_transaction_is_poisoned_before_its_parts_abort(rule: bool, world: World) -> None:
    """A gateway that answers from the past shows the part and not its transaction, which lives."""
    client, transaction, newest = begin(world)
    commit_beside(world.client(store=Hiding(world.memory, transaction))[0], b"9")
    committed = client.commit(transaction, [1, 1], newest)
    assert committed.complete is rule
    assert world.values(NEW) == (NEW if rule else {X: b"1", Y: b"9"})


@both_protocols
@pytest.mark.parametrize("late", [False, True], ids=["lost", "late"])
@without(PARTS_RULES["an absent transaction is not poisoned"])
def test_of_a_purged_transaction_all_parts_abort(
    protocol: ProtocolName, late: bool, rule: bool, world: World
) -> None:
    """Its owner may live, and its first write may arrive once more."""
    engine, store = world.client(when(asks_for(Status.WRITTEN), Fault(late=FIRST)))
    client, transaction, newest = begin(world, engine)
    seen = whole_row(engine.context, transaction)
    assert seen is not None
    purge_row(engine.context, seen, unfinished=True)
    commit_beside(world.engine(), b"9")
    if late:
        store.deliver()
    is_torn = late and not rule and protocol == "six-phase"  # a fenced one lies below the delete
    if is_torn:
        assert not client.commit(transaction, [1, 1], newest).complete
        assert world.values(NEW) == {X: b"1", Y: b"9"}
        return
    with pytest.raises(CommitOutcomeUnknown):
        client.commit(transaction, [1, 1], newest)
    world.mend()
    assert world.values(NEW) == {X: b"0", Y: b"9"}


@both_protocols
@without(PARTS_RULES["parts are not counted"])
def test_a_part_that_a_scan_missed_is_looked_up(rule: bool, world: World) -> None:
    _, transaction, newest = begin(world)
    hiding = Hiding(world.memory, child_key(transaction, 1, 0), scans=True)
    client = PartsClient(world.client(store=hiding)[0])
    assert client.commit(transaction, [1, 1], newest).complete
    assert world.values(NEW) == (NEW if rule else {X: b"1", Y: b"0"})


@both_protocols
@without(PARTS_RULES["a lost part is over"])
def test_a_transaction_that_has_lost_a_part_is_not_complete(rule: bool, world: World) -> None:
    """Somebody deleted its row: nobody takes the key's old value for its newest one."""
    client, transaction, newest = begin(world)
    lost = child_key(transaction, 1, 0)
    for row in world.memory.scan(TRANSACTIONS, lost, lost + b"\0"):
        world.memory.write([Edit(k, None, cell.timestamp) for k, cell in row.cells.items()])
    committed = client.commit(transaction, [1, 1], newest)
    found = {f.kind: f for f in check(world.engine().context, grace_ms=0, scan=[TABLE])}
    assert committed.complete is not rule
    assert world.values(NEW) == {X: b"1", Y: b"0"}
    assert (Kind.UNREADABLE in found) is rule and (Kind.ORPHAN_LOCK in found) is not rule
    for finding in found.values():
        repair(world.engine().context, finding)
    with pytest.raises(CorruptRowError) if rule else nullcontext():
        world.engine().read([Y])
    assert (world.leftovers() != {}) is rule


@without(PARTS_RULES["an own lock is a rival's"])
def test_a_copy_of_a_part_takes_over_its_locks(rule: bool) -> None:
    """A task and its copy read a row; another transaction comes and goes; both ask for the lock."""
    world = World(protocol="fenced")
    put(world, X, Y, value=b"0")
    transaction = PartsClient(world.engine()).begin()

    def write(engine: Engine) -> int:
        return PartsClient(engine, 50).write(transaction, 0, 0, [Mutation(X, b"1")])

    slow = Puppet(world, write)
    assert slow.until(counts(X))
    world.engine().commit([Mutation(X, b"other")])
    newest = write(world.engine())
    newest = max(newest, slow.finish())
    PartsClient(world.engine()).commit(transaction, [1], newest)
    assert world.values([X]) == {X: b"1" if rule else b"other"}


@without(PARTS_RULES["an own lock is a rival's"])
def test_a_copy_of_a_part_with_a_false_assertion_fails_at_once(rule: bool) -> None:
    """The locks that its first writer left are no change of what it has read."""
    world = World(protocol="fenced")
    put(world, X, Y, value=b"0")
    transaction = PartsClient(world.engine()).begin()

    def write(engine: Engine) -> int:
        either = Or(Exact(X, b"other"), Exact(Y, b"0"))
        return PartsClient(engine, 50).write(transaction, 0, 0, [Mutation(X, b"1")], [either])

    slow = Puppet(world, write)
    assert slow.until(counts(X))
    world.engine().commit([Mutation(Y, b"7")])
    with pytest.raises(AssertionFailedError):
        slow.finish()
    engine, store = world.client()
    with pytest.raises(AssertionFailedError if rule else DeadlineError):
        write(engine)
    assert (store.calls < 10) is rule


def test_a_part_that_another_transport_finishes_shows_when(world: World) -> None:
    """Without that the part was unreadable, and its transaction stayed at 2 for ever."""
    _, transaction, stamp = begin(world)
    owner = Puppet(world, lambda engine: PartsClient(engine).commit(transaction, [1, 1], stamp))
    owner.until(asks_for(Status.ASSERTED))
    owner.step()  # decided, and the owner dies
    world.clock.sleep_ms(60_000)
    helper, _ = world.client(store=OneCell(world.memory))
    helper.commit([Mutation(X, b"9")])
    world.mend()
    assert all(row.is_over and row.corrupt is None for row in world.rows())
    assert world.values([X, Y]) == {X: b"9", Y: b"1"}
