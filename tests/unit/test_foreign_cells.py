"""Cells that the protocol never writes, where it keeps its own: whoever meets one refuses, names
it, and leaves it as it is, for it may be somebody's data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery import Kind, LeftAlone, check, repair
from tests.unit.worlds import POLICY, TABLE, World, X, Y, stopped_at
from txn.client.parts import PartsClient
from txn.errors import AbortedError, ConflictError, CorruptRowError, TxnError
from txn.model import Edit, Key, Mutation
from txn.protocol.codec import encode_plan
from txn.protocol.recovery import roll_forward
from txn.protocol.row import marker_key, read_rows
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import load_transaction
from txn.testing.faulty import Call, Fault, FaultyStore

pytestmark = pytest.mark.fast
both = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
MINE = b"my own data"
NAME = b"transaction.1700000000000." + b"0" * 32
MARKER = marker_key(b"txn", b"token")
PATIENT = replace(POLICY, deadline_ms=3_600_000)


def put(world: World, key: Key, value: bytes | None) -> None:
    """Write past the protocol."""
    cell = world.cell(key)
    at = cell.timestamp if cell else world.clock.wall_ms()
    world.store.write([Edit(key, value, at if value is None else at + 1)])


def refused(world: World, wanted: type[TxnError], once: str | None = None) -> TxnError:
    """The error of a commit, which wrote nothing and waited for nobody."""
    before, began_ms = world.value(X), world.clock.monotonic_ms()
    with pytest.raises(wanted) as error:
        world.engine.commit([Mutation(X, b"2"), Mutation(Y, b"2")], once=once)
    assert world.value(X) == before and world.clock.monotonic_ms() < began_ms + 1_000
    return error.value


@pytest.mark.parametrize(
    ("protocol", "mine"),
    [("six-phase", MINE), ("fenced", MINE), ("fenced", NAME), ("fenced", b"007")],
)
def test_a_lock_cell_that_holds_no_lock_is_left_as_it_is(
    protocol: ProtocolName, mine: bytes
) -> None:
    """Nobody gives it back, and what it hides nobody can know."""
    world = World(PATIENT, protocol)
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    lock = world.engine.context.rules.lock_of(X)
    put(world, lock, mine)
    error = refused(world, AbortedError)
    assert not isinstance(error, ConflictError) and isinstance(error.__cause__, CorruptRowError)
    assert repr(lock) in str(error) and repr(mine) not in str(error)
    for keys in ([X], [X, Y]):
        with pytest.raises(CorruptRowError) as unread:
            world.engine.read(keys)
        assert repr(lock) in str(unread.value) and repr(mine) not in str(unread.value)
    with pytest.raises(CorruptRowError):
        list(world.engine.scan(TABLE))
    (finding,) = check(world.engine.context, grace_ms=0, scan=[TABLE])
    assert isinstance(repair(world.engine.context, finding), LeftAlone)
    assert (world.value(lock), world.value(X)) == (mine, b"1")


def test_a_tag_cell_that_holds_no_tag_is_left_as_it_is() -> None:
    """A column whose name only ends as that of a lock does hinders no scan: it guards no value."""
    world = World(PATIENT)
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    put(world, X.tag, MINE)
    error = refused(world, AbortedError)
    assert repr(X.tag) in str(error) and isinstance(error.__cause__, CorruptRowError)
    assert world.value(X.tag) == MINE
    put(world, X._replace(column=b"door_lock"), MINE)
    assert [list(row.cells) for row in world.engine.scan(TABLE)] == [[X], [Y]]


@both
@pytest.mark.parametrize("value", [b"", b"junk", b"junk 5"])
def test_a_marker_that_names_no_transaction_is_an_error(
    protocol: ProtocolName, value: bytes
) -> None:
    world = World(PATIENT, protocol)
    world.engine.commit([Mutation(X, b"1")], once="token")
    put(world, MARKER, value)
    assert repr(MARKER) in str(refused(world, CorruptRowError, "token"))
    with pytest.raises(CorruptRowError):
        PartsClient(world.engine).find_committed("token")
    (finding,) = check(world.engine.context)
    assert (finding.kind, finding.key) == (Kind.FOREIGN_CELL, MARKER)


def finish(world: World, row_key: bytes) -> None:
    row = read_rows(world.engine.context, [row_key])[row_key]
    roll_forward(world.engine.context, [load_transaction(world.engine.context, row)])


@pytest.mark.usefixtures("rows_for_all")
@pytest.mark.parametrize("value", [b"0", b"1", b"1@transaction.1.x", b"junk"])
def test_a_decision_is_not_finished_by_a_lock_that_went_back(value: bytes) -> None:
    world = World(protocol="fenced")
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    row_key = stopped_at(world, Status.ASSERTED)
    put(world, X.row_lock, value)
    with pytest.raises(CorruptRowError, match="_lock"):
        finish(world, row_key)
    assert read_rows(world.engine.context, [row_key])[row_key].status is Status.ASSERTED
    found = list(check(world.engine.context, grace_ms=0, scan=[TABLE]))
    results = [repair(world.engine.context, each) for each in found if each.kind is Kind.DECIDED]
    assert [type(each) for each in results] == [LeftAlone]
    assert world.value(X.row_lock) == value


@pytest.mark.usefixtures("rows_for_all")
def test_a_no_to_a_lock_that_has_not_changed_is_asked_again() -> None:
    """It comes from a server that is behind: nobody else has finished it."""
    world = World(protocol="fenced")
    row_key = stopped_at(world, Status.ASSERTED)
    lock = X.row_lock
    held = world.cell(lock)
    assert held is not None
    met: list[Call] = []

    def plan(call: Call) -> Fault:
        met.append(call)
        if call.method == "check_and_put" and len(met) == 1:
            world.store.write([Edit(lock, b"7", held.timestamp)])
        if call.method == "read" and call.items == (lock,):
            world.store.write([Edit(lock, held.value, held.timestamp)])
        return Fault()

    context = world.client(seed=9).context
    row = read_rows(context, [row_key])[row_key]
    store = FaultyStore(world.store, plan)
    roll_forward(replace(context, store=store), [load_transaction(context, row)])
    assert (world.value(X), len(met)) == (b"2", 4)


@pytest.mark.usefixtures("rows_for_all")
def test_a_plan_with_the_lock_of_another_is_not_carried_out() -> None:
    world = World(protocol="fenced")
    row_key = stopped_at(world, Status.ASSERTED)
    row = read_rows(world.engine.context, [row_key])[row_key]
    assert row.plan is not None
    wrong = encode_plan(replace(row.plan, locks=(b"1@" + row_key[:-1] + b"x",)))
    put(world, Key(row_key, "t", "plan", "txn"), wrong)
    with pytest.raises(CorruptRowError, match="another"):
        finish(world, row_key)


@pytest.mark.parametrize("value", [b"1", b"0", None])
def test_fsck_tells_of_counts_that_went_back(value: bytes | None) -> None:
    world = World(protocol="fenced")
    for number in (b"1", b"2"):
        world.engine.commit([Mutation(X, number), Mutation(Y, number)])
    assert list(check(world.engine.context, grace_ms=0, scan=[TABLE])) == []
    put(world, X.row_lock, value)
    (finding,) = check(world.engine.context, grace_ms=0, scan=[TABLE])
    assert (finding.kind, finding.key) == (Kind.FOREIGN_CELL, X.row_lock)
    assert finding.facts["taken"] == 2
    assert isinstance(repair(world.engine.context, finding), LeftAlone)
