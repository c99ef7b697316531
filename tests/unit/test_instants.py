"""Reads by many clients as of one instant: what is taken back, and when nothing can be told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import pytest

from recovery import convert
from tests.simulation.calls import asks_for
from tests.simulation.puppets import Puppet
from tests.simulation.world import World as Stage
from tests.simulation.world import key as stage_key
from tests.unit.worlds import TABLE, World, X, Y, Z, stopped_at
from txn import Cell, Delete, Engine, Mutation, Policy, Some
from txn.clock import ManualClock
from txn.errors import AssertionFailedError, ConflictError, InvalidRequestError, NotApplied
from txn.model import Edit, Row
from txn.protocol.context import Context
from txn.protocol.row import EARLY, LATE, column, new_row_key
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.reading import instants
from txn.reading.feed import Bounds, ChangesLostError, refuse_rowless
from txn.reading.instants import Instant, find_instant, restore_rows
from txn.spans import Span
from txn.testing.faulty import Call, Fault, FaultyStore

BOUNDS = Bounds(0, lateness_ms=60_000)
SPAN = Span(TABLE)
Values = dict[bytes, bytes]


def plan(engine: Engine) -> Instant:
    return find_instant(engine.context, BOUNDS)


def read(engine: Engine, instant: Instant, span: Span = SPAN) -> Values:
    """Return the values of a task that reads now, by row."""
    rows = list(restore_rows(engine.context, [span], instant, engine.backend.scan(span)))
    assert [row.row for row in rows] == sorted(row.row for row in rows)
    return {key.row: cell.value for row in rows for key, cell in row.cells.items()}


@pytest.fixture(params=PROTOCOLS)
def world(request: pytest.FixtureRequest, rows_for_all: None) -> World:
    """X and Y have values, and Z has none."""
    found = World(protocol=request.param)
    found.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    found.clock.advance(1_000)
    return found


def test_later_puts_and_deletes_are_taken_back(world: World) -> None:
    """A replaced value is still there as an older version, and a new key needs none."""
    instant = plan(world.engine)
    assert read(world.engine, instant) == {b"x": b"1", b"y": b"1"}
    world.engine.commit([Mutation(X, b"2"), Mutation(Z, b"2")])
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"2")], [~Some(Z)])
    world.engine.commit([Mutation(X, b"3"), Mutation(X._replace(column=b"other"), b"2")])
    world.engine.commit([Delete(Z)])
    for client in (world.engine, world.client()):
        assert read(client, instant) == {b"x": b"1", b"y": b"1"}
    span = Span(TABLE, b"x", b"z", frozenset({(b"d", b"x")}))
    assert read(world.engine, instant, span) == {b"x": b"1", b"y": b"1"}
    assert read(world.engine, plan(world.engine), span) == {b"x": b"3", b"y": b"1"}


def test_a_value_that_the_store_does_not_show_fails_the_read(world: World) -> None:
    instant = plan(world.engine)
    world.engine.commit([Delete(X)])
    with pytest.raises(ConflictError, match=r"keep more VERSIONS.*b'x'"):
        read(world.engine, instant)
    assert read(world.engine, instant, Span(TABLE, b"y")) == {b"y": b"1"}
    with pytest.raises(ConflictError, match=r"b'x'"):  # also where the scan shows no such row
        list(restore_rows(world.engine.context, [SPAN], instant, [Row(b"y", {})]))
    for number in range(5):
        world.engine.commit([Mutation(Y, b"%d" % number)])
    with pytest.raises(ConflictError, match=r"keep more VERSIONS.*b'y'"):
        read(world.engine, instant, Span(TABLE, b"y"))


def test_rows_are_restored_in_chunks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    instant = plan(world.engine)
    world.engine.commit([Mutation(X, b"2")])

    def scan() -> Iterator[Row]:
        for row in world.engine.backend.scan(SPAN):
            if row.row == b"y":
                world.engine.commit([Mutation(Y, b"2")])
                yield from world.engine.backend.scan(Span(TABLE, b"y"))
            else:
                yield row

    monkeypatch.setattr(instants, "CHUNK_CELLS", 1)
    rows = list(restore_rows(world.engine.context, [SPAN], instant, scan()))
    assert [[cell.value for cell in row.cells.values()] for row in rows] == [[b"1"], [b"1"]]


def test_what_is_undecided_at_the_instant_comes_after_it(world: World) -> None:
    held = stopped_at(world, Status.WRITTEN)
    world.clock.advance(10 * BOUNDS.lateness_ms)
    instant = plan(world.engine)
    assert instant.undecided == {held}
    assert instant.low_ms < instant.recent_ms - BOUNDS.lateness_ms
    early = instant._replace(undecided=frozenset())
    mark = instant.find_mark(held)
    seen = instants.Placement(held, mark, True, mark)
    assert early.covers(seen) and not instant.covers(seen)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_long_transaction_that_decides_later_is_taken_back(
    protocol: ProtocolName, rows_for_all: None
) -> None:
    """Its row was written long before the ones that a look begins with."""
    world = Stage(protocol=protocol)
    x = stage_key("x")
    world.engine().commit([Mutation(x, b"1")])
    held = Puppet(world, lambda engine: engine.commit([Mutation(x, b"2")]))
    held.until(asks_for(Status.ASSERTED))
    world.clock.advance(4_000)
    short = BOUNDS._replace(lateness_ms=1_000)
    instant = find_instant(world.engine().context, short)
    held.finish()
    assert read(world.engine(), instant) == {b"x": b"1"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ranges_are_validated_before_the_decision(protocol: ProtocolName) -> None:
    """Who adds to a range after the look comes later, and may decide first: there is no instant."""
    world = Stage(protocol=protocol)

    def check_and_write(engine: Engine) -> object:
        with engine.transaction() as t:
            assert not list(t.scan(start="a", stop="b"))
            t.put(stage_key("x"), b"1")
        return t.result

    before = plan(world.engine())
    world.clock.advance(10)
    block = Puppet(world, check_and_write)
    assert block.until(asks_for(Status.ASSERTED)) is not None
    short = replace(world.engine().context, policy=Policy(read_tries=3))
    with pytest.raises(ConflictError, match="decide too often"):
        find_instant(short, BOUNDS)
    block.finish()
    world.clock.advance(10)
    assert read(world.engine(), before) == {}
    assert read(world.engine(), plan(world.engine())) == {b"x": b"1"}


@pytest.mark.parametrize(
    ("status", "mark", "placed_ms"),
    [
        (Status.WRITTEN, None, instants.NOT_PLACED),
        (Status.LOCKED, None, instants.NOT_PLACED),
        (Status.WRITTEN, LATE, instants.NOT_PLACED),
        (Status.LOCKED, LATE, 20),
        (Status.ASSERTED, LATE, 20),
        (Status.WRITTEN, EARLY, 10),
        (Status.LOCKED, EARLY, 10),
        (Status.ASSERTED, EARLY, 10),
        (Status.ASSERTED, None, 30),
    ],
)
def test_who_validates_has_its_place_before_its_decision(
    status: Status, mark: bytes | None, placed_ms: int
) -> None:
    row_key, times = new_row_key(5, 1), {Status.WRITTEN: 10, Status.LOCKED: 20, Status.ASSERTED: 30}
    cells = {each.at: Cell(b"", at_ms) for each, at_ms in times.items()}
    cells |= {b"status": Cell(status.value, 1)}
    cells |= {} if mark is None else {b"ranges": Cell(mark, 1)}
    row = Row(row_key, {column(b"txn", row_key, name): cell for name, cell in cells.items()})
    at_ms = 30 if status.is_decided else 0
    found = instants._describe(World().engine.context, row, at_ms)
    assert found == (row_key, at_ms, status.is_decided, placed_ms)


def test_decisions_without_a_time_count_when_they_were_seen(rows_for_all: None) -> None:
    world = Stage(one_cell=True)
    x = stage_key("x")
    world.engine().commit([Mutation(x, b"1")])
    held = Puppet(world, lambda engine: engine.commit([Mutation(x, b"2")]))
    held.until(asks_for(Status.PUT))
    instant = plan(world.engine())
    assert len(instant.before) == 1
    held.finish()
    world.clock.advance(10)
    assert read(world.engine(), instant) == {b"x": b"2"}
    later = Puppet(world, lambda engine: engine.commit([Mutation(x, b"3")]))
    later.until(asks_for(Status.PUT))
    assert read(world.engine(), instant) == {b"x": b"2"}
    later.finish()
    assert read(world.engine(), instant) == {b"x": b"2"}


class StepByStep(FaultyStore):
    """A store that is far away."""

    features = frozenset({"multi_cell_check", "row_mutations", "describe"})


def beside_marks(world: World, work: Callable[[], object], most: int) -> Context:
    """Let something happen before each mark is written, at most so many times."""
    left = [work] * most

    def plan(call: Call) -> Fault:
        if call.method == "write" and any(item.value is not None for item in call.items) and left:  # type: ignore[union-attr]
            left.pop()()
        return Fault()

    return replace(world.engine.context, store=FaultyStore(world.store, plan))


def test_what_decides_beside_a_mark_costs_a_round(world: World) -> None:
    """Nobody can tell on which side of the instant it is. The next round has seen it."""

    def commit() -> None:
        world.client(seed=len(world.rows()) + 7).commit([Mutation(X, b"2")])

    instant = find_instant(beside_marks(world, commit, 1), BOUNDS)
    assert read(world.engine, instant)[b"x"] == b"2"
    with pytest.raises(ConflictError, match="decide too often"):
        find_instant(beside_marks(world, commit, 1_000), BOUNDS)


def test_the_time_that_an_owner_chose_proves_nothing(rows_for_all: None) -> None:
    """An owner whose clock is ahead decides before the instant with a time after it."""
    world = World(protocol="fenced")
    world.engine.commit([Mutation(X, b"1")])
    owner = Engine(StepByStep(world.store), clock=ManualClock(world.clock.wall_ms() + 30_000))
    context = beside_marks(world, lambda: owner.commit([Mutation(X, b"2")]), 1)
    assert read(world.engine, find_instant(context, BOUNDS)) == {b"x": b"2"}


def test_what_begins_after_a_mark_needs_no_time(
    rows_for_all: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row was not listed, so busy owners whose clocks are ahead cost no tries."""
    world = World(protocol="fenced")
    ahead = ManualClock(world.clock.wall_ms() + 30_000)
    look, looks = instants._list_recent, []

    def look_and_commit(context: Context) -> instants.Listing:
        looks.append(look(context))
        if len(looks) == 2:
            Engine(StepByStep(world.store), clock=ahead).commit([Mutation(X, b"2")])
        return looks[-1]

    monkeypatch.setattr(instants, "_list_recent", look_and_commit)
    once = replace(world.engine.context, policy=Policy(read_tries=1))
    assert read(world.engine, find_instant(once, BOUNDS)) == {}


def test_a_decision_that_a_mark_follows_is_not_after_it() -> None:
    """A local one may decide in the mark's millisecond and be missing from the listing after it."""
    row_key = new_row_key(5, 1)
    instant = Instant((), (10,), frozenset(), frozenset(), 0, 0, 0, 0)
    seen, later = (
        instants.Placement(row_key, 10, True, 0),
        instants.Listing(0, frozenset(), frozenset()),
    )
    assert not instants._is_certain(instant, later, seen)
    assert instants._is_certain(instant, later, seen._replace(at_ms=11))
    assert not instants._is_certain(instant, later._replace(low_ms=6), seen._replace(at_ms=11))


@pytest.mark.parametrize("reason", ["set back", "deleted", "older than"])
def test_what_cannot_be_told_any_more_is_noticed(world: World, reason: str) -> None:
    """What decides by a clock that was set back seems to have decided before the instant."""
    row_key = world.engine.commit([Mutation(Z, b"1")]).transaction
    world.clock.advance(10)
    instant = plan(world.engine)
    if reason == "set back":
        world.clock.set_wall_ms(world.clock.wall_ms() - 500)
        world.client(seed=5).commit([Mutation(X, b"2")])
    elif reason == "deleted":
        (row,) = world.store.scan(b"txn", row_key, row_key + b"\0")
        world.store.write([Edit(key, None, cell.timestamp) for key, cell in row.cells.items()])
    else:
        world.clock.advance(BOUNDS.retention_ms)
    with pytest.raises(ChangesLostError, match=reason):
        read(world.engine, instant)


def test_each_region_is_marked_by_its_server(world: World) -> None:
    """A transaction is compared with the mark of its own region; marks do not stay."""
    store = FaultyStore(world.store)
    store.find_splits = lambda *_: [b"transaction.5"]  # type: ignore[method-assign]
    context = replace(world.engine.context, store=store)
    instant = find_instant(context, BOUNDS)
    assert instant.splits == (b"transaction.5",) and len(instant.marks) == 2
    marked = instant._replace(marks=(1, 2))
    assert [marked.find_mark(row) for row in (b"transaction.1", b"transaction.7")] == [1, 2]
    assert not [row for row in world.store.scan(b"txn") if row.row.endswith(b"\0clock")]

    numbers = count()
    store.find_splits = lambda *_: [b"transaction.%d" % next(numbers)]  # type: ignore[method-assign]
    with pytest.raises(NotApplied, match="have changed"):
        find_instant(context, BOUNDS)


def test_transactions_without_a_row_are_refused_unless_said_so(world: World) -> None:
    apart = Engine(StepByStep(world.store)).context
    refuse_rowless(apart, is_known=True)
    if world.protocol == "fenced":
        with pytest.raises(InvalidRequestError, match="rowless=skip"):
            refuse_rowless(apart, is_known=False)
        world.clock.advance(10)
        convert(world.engine.context, "fenced", rows="always")
        refuse_rowless(Engine(StepByStep(world.store)).context, is_known=False)
    else:
        refuse_rowless(apart, is_known=False)
