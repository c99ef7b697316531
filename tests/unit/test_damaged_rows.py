"""Every cell of a transaction row, damaged in every way, after every call of a commit.

Whatever is left of a decision, nobody goes back behind it: neither readers nor writers nor fsck
return, or build on, the old values of a transaction that was decided, and nobody frees a lock of it
before its values are in place. What nobody can know is refused, and the error names the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from recovery import check, repair
from tests.unit.worlds import TABLE, World, X, Y
from txn.assertions import Exact
from txn.client.engine import Engine
from txn.client.parts import PartsClient
from txn.errors import CorruptRowError, TxnError
from txn.model import Cell, Edit, Key, Mutation, Row
from txn.policy import Policy
from txn.protocol.recovery import roll_forward
from txn.protocol.row import RowState, child_key, column, decode_row, is_row_key, read_rows
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import load_transaction
from txn.request import Outcome
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply, at

pytestmark = pytest.mark.fast
POLICY = Policy(attempts=2, deadline_ms=300, lock_ttl_ms=100, courtesy_ms=20, store_patience_ms=10)
CALLS = {"six-phase": 8, "fenced": 5}
STOPS = [(name, number) for name, calls in CALLS.items() for number in range(1, calls + 1)]
both = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])


def stop_after(world: World, number: int) -> bytes | None:
    """Let a client die after so many calls of a commit of two keys; return its row key."""
    world.engine.commit([Mutation(X, b"old"), Mutation(Y, b"old")])
    before = set(list_row_keys(world))
    faults = FaultyStore(world.store)
    client = world.client(faults, seed=2)
    client.read([X])
    faults.plan = at({faults.calls + number: Fault(reply=Reply.CRASH)})
    with pytest.raises(Crash):
        client.commit([Mutation(X, b"new"), Mutation(Y, b"new")])
    return next(iter(set(list_row_keys(world)) - before), None)


def list_row_keys(world: World) -> list[bytes]:
    return [row.row for row in world.store.scan(b"txn") if is_row_key(row.row)]


def list_damages(world: World, row_key: bytes) -> Iterator[Edit]:
    """Every cell of the row: deleted, emptied, replaced by something else."""
    (row,) = world.store.scan(b"txn", row_key, row_key + b"\0")
    for key, cell in row.cells.items():
        values: list[bytes | None] = [None, b"", b"junk"]
        if key.column == b"status":
            values += [status.value for status in Status if status is not Status.PART]
        for value in values:
            if value != cell.value:
                yield Edit(key, value, cell.timestamp + 1)


def read_old(engine: Engine, row_keys: tuple[bytes, ...]) -> bool:
    """Whether the old values are returned; a refusal names the row."""
    try:
        return b"old" in {cell and cell.value for cell in engine.read([X, Y]).values()}
    except CorruptRowError as error:
        assert any(row_key.decode() in str(error) for row_key in row_keys)
        return False


def build_on_old(engine: Engine, row_keys: tuple[bytes, ...]) -> bool:
    """Whether a block that reads what there is can write; a refusal names the row."""
    try:
        with engine.transaction() as t:
            seen = t.get(X)
            t.put(X, (seen or b"") + b"er")
    except TxnError as error:
        assert any(row_key.decode() in str(error) for row_key in row_keys)
        return False
    return seen == b"old"


def mend(world: World) -> None:
    for _ in range(2):
        for finding in list(check(world.engine.context, grace_ms=0, scan=[TABLE])):
            repair(world.engine.context, finding)


def mend_then_read_old(world: World, row_keys: tuple[bytes, ...]) -> bool:
    mend(world)
    assert all(is_kept(world, key, row_keys) for key in (X, Y))
    return read_old(world.client(seed=4), row_keys)


def is_kept(world: World, key: Key, row_keys: tuple[bytes, ...]) -> bool:
    """Whether the key has its new value, or its lock is there for whoever can finish it."""
    return world.value(key) == b"new" or world.holder(key) in row_keys


def find_outcome(engine: Engine, row_key: bytes) -> Outcome | None:
    """What has become of it; None: nobody can know, and the error names the row."""
    try:
        return engine.outcome(row_key)
    except CorruptRowError as error:
        assert row_key.decode() in str(error)
        return None


def require_kept(damaged: Callable[[], World], row_keys: tuple[bytes, ...]) -> None:
    """Let each act on a damaged world of its own; the decision stands."""
    world = damaged()
    assert not read_old(world.client(seed=3), row_keys)
    assert is_kept(world, X, row_keys) and not mend_then_read_old(world, row_keys)
    world = damaged()
    assert not build_on_old(world.client(seed=3), row_keys)
    mend(world)
    assert is_kept(world, Y, row_keys) and not read_old(world.client(seed=4), row_keys)
    assert not mend_then_read_old(damaged(), row_keys)


@pytest.mark.parametrize(("protocol", "number"), STOPS)
def test_nobody_goes_back_behind_a_decision(protocol: ProtocolName, number: int) -> None:
    whole = World(POLICY, protocol)
    row_key = stop_after(whole, number)
    if row_key is None:
        return  # nothing was written yet
    status = read_rows(whole.engine.context, [row_key])[row_key].status
    assert status is not None
    for damage in list_damages(whole, row_key):

        def damaged(damage: Edit = damage) -> World:
            world = World(POLICY, protocol)
            stop_after(world, number)
            world.store.write([damage])
            world.clock.advance(1_000)
            return world

        if status.is_undecided:
            world = damaged()
            mend(world)
            assert world.value(X) == world.value(Y) == b"old", damage
            continue
        require_kept(damaged, (row_key,))
        outcome = find_outcome(damaged().client(seed=3), row_key)
        assert outcome in (Outcome.COMMITTED, None) or status.is_finished, damage


def stop_parts(protocol: ProtocolName, finished: int) -> tuple[World, tuple[bytes, bytes, bytes]]:
    """A transaction of two parts, decided, with so many of them finished, and its row keys."""
    world = World(POLICY, protocol)
    world.engine.commit([Mutation(X, b"old"), Mutation(Y, b"old")])
    client = PartsClient(world.engine)
    whole = client.begin()
    newest = [client.write(whole, n, 0, [Mutation(k, b"new")]) for n, k in enumerate((X, Y))]
    client.commit(whole, [1, 1], max(newest), ack="decided")
    parts = child_key(whole, 0, 0), child_key(whole, 1, 0)
    context = world.engine.context
    for part in parts[:finished]:
        roll_forward(context, [load_transaction(context, read_rows(context, [part])[part])])
    return world, (whole, *parts)


@both
@pytest.mark.parametrize("damaged_row", [0, 1, 2])
@pytest.mark.parametrize("finished", [0, 1])
def test_nobody_goes_back_behind_a_decision_in_parts(
    protocol: ProtocolName, damaged_row: int, finished: int
) -> None:
    whole, row_keys = stop_parts(protocol, finished)
    for damage in list_damages(whole, row_keys[damaged_row]):

        def damaged(damage: Edit = damage) -> World:
            world, _ = stop_parts(protocol, finished)
            world.store.write([damage])
            world.clock.advance(1_000)
            return world

        require_kept(damaged, row_keys)


def build(client: Engine, value: bytes, ends: list[bytes]) -> None:
    """Replace the old values, if they are there."""
    with suppress(TxnError):
        client.commit([Mutation(X, value), Mutation(Y, value)], [Exact(X, b"old")])
        ends.append(value)


@pytest.mark.parametrize(("protocol", "number"), STOPS)
def test_two_never_build_on_one_value(protocol: ProtocolName, number: int) -> None:
    whole = World(POLICY, protocol)
    row_key = stop_after(whole, number)
    for damage in list_damages(whole, row_key) if row_key else ():
        world = World(POLICY, protocol)
        ends: list[bytes] = []
        meet_between(world, number, damage, ends)
        assert len(ends) < 2, damage
        if ends:
            mend(world)
            values = {world.value(X), world.value(Y)}
            assert values == {ends[0]} or world.holder(X) == row_key, damage


def meet_between(world: World, number: int, damage: Edit, ends: list[bytes]) -> None:
    """Let an owner commit, damage its row after so many calls, and somebody else commit then."""
    world.engine.commit([Mutation(X, b"old"), Mutation(Y, b"old")])
    faults = FaultyStore(world.store)
    owner, other = world.client(faults, seed=2), world.client(seed=3)
    owner.read([X])
    last = faults.calls + number

    def meet(call: Call) -> Fault:
        if call.number == last + 1:
            world.store.write([damage])
            build(other, b"other", ends)
        return Fault()

    faults.plan = meet
    build(owner, b"new", ends)


@pytest.mark.parametrize("status", [None, Status.WRITTEN, Status.LOCKED, Status.ABORTED])
def test_the_time_of_a_decision_shows_it_without_a_plan(status: Status | None) -> None:
    name = b"transaction.1700000000000." + b"0" * 32
    cells = {
        column(b"txn", name, each.at): Cell(b"", 1) for each in (Status.WRITTEN, Status.ASSERTED)
    }
    if status is not None:
        cells[column(b"txn", name, b"status")] = Cell(status.encoded, 2)
    assert decode_row(Row(name, cells)).state is RowState.UNREADABLE
