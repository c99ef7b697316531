"""Every cell of a transaction row, damaged in every way: nobody goes back behind a decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from recovery import Kind, LeftAlone, check, repair
from tests.unit.worlds import POLICY, TABLE, World, X, Y, stopped_at
from txn.assertions import Exact
from txn.client.engine import Engine
from txn.client.parts import PartsClient
from txn.errors import AbortedError, ConflictError, CorruptRowError, TxnError
from txn.model import Cell, Edit, Key, Mutation, Row
from txn.policy import Policy
from txn.protocol.codec import encode_plan
from txn.protocol.recovery import roll_forward
from txn.protocol.row import (
    RowState,
    child_key,
    column,
    decode_row,
    is_row_key,
    marker_key,
    read_rows,
)
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import load_transaction
from txn.request import Outcome
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply, at

HURRIED = Policy(attempts=2, deadline_ms=300, lock_ttl_ms=100, courtesy_ms=20, store_patience_ms=10)
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
    whole = World(HURRIED, protocol)
    row_key = stop_after(whole, number)
    if row_key is None:
        return  # nothing was written yet
    status = read_rows(whole.engine.context, [row_key])[row_key].status
    assert status is not None
    for damage in list_damages(whole, row_key):

        def damaged(damage: Edit = damage) -> World:
            world = World(HURRIED, protocol)
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
    world = World(HURRIED, protocol)
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
    whole = World(HURRIED, protocol)
    row_key = stop_after(whole, number)
    for damage in list_damages(whole, row_key) if row_key else ():
        world = World(HURRIED, protocol)
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


MY_DATA = b"my own data"
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
    [("six-phase", MY_DATA), ("fenced", MY_DATA), ("fenced", NAME), ("fenced", b"007")],
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
    put(world, X.tag, MY_DATA)
    error = refused(world, AbortedError)
    assert repr(X.tag) in str(error) and isinstance(error.__cause__, CorruptRowError)
    assert world.value(X.tag) == MY_DATA
    put(world, X._replace(column=b"door_lock"), MY_DATA)
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
