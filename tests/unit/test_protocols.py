"""Which protocol a database has, and what a client says that wants another."""

from __future__ import annotations

import pytest

from tests.unit.worlds import World, X, Y, stopped_at
from txn import Engine, InvalidRequestError
from txn.clock import ManualClock
from txn.errors import CorruptRowError, TableUnavailable
from txn.model import Edit, Key, Mutation
from txn.protocol.protocols import find_rules, is_of_earlier_version, protocol_key
from txn.protocol.row import RowState, column, marker_key
from txn.protocol.statuses import FENCED, PROTOCOLS, SIX_PHASE, ProtocolName, Status
from txn.stores import open_store
from txn.stores.base import Families
from txn.testing.faulty import Call, Fault, FaultyStore, Reply

NAME = protocol_key(b"txn")


class Lacking(FaultyStore):
    """A store that checks one cell, and cannot change rows on a condition, as Thrift 1's."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self.features -= {"multi_cell_check", "row_mutations"}


class Hidden(FaultyStore):
    """A store that shows no table's settings."""

    def describe(self, table: bytes) -> Families | None:
        raise TableUnavailable("access denied", table)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_new_database_has_the_protocol_that_is_wanted(name: ProtocolName) -> None:
    """And says so, to everybody who comes later."""
    world = World(protocol=name)
    assert world.value(NAME) == PROTOCOLS[name].stored_name == name.encode() + b"/2"
    assert Engine(world.store, clock=world.clock).context.rules is PROTOCOLS[name]


def test_a_new_database_has_six_phases_where_nothing_is_wanted() -> None:
    """The protocol that every store can do."""
    world = World()
    assert world.engine.context.rules is SIX_PHASE
    assert world.value(NAME) == b"six-phase/2"


@pytest.mark.parametrize(("found", "wanted"), [("fenced", "six-phase"), ("six-phase", "fenced")])
def test_who_wants_another_protocol_is_told_what_there_is(
    found: ProtocolName, wanted: ProtocolName
) -> None:
    """Two protocols on one database would not see each other's locks."""
    world = World(protocol=found)
    with pytest.raises(InvalidRequestError, match=f"another protocol.*found='{found}'"):
        Engine(world.store, clock=world.clock, protocol=wanted)
    assert world.value(NAME) == PROTOCOLS[found].stored_name


def test_a_database_of_an_older_version_is_not_made_fenced() -> None:
    """It says nothing, and has transactions of six phases, perhaps live ones."""
    world = World()
    world.engine.commit([Mutation(X, b"1")])
    world.store.write([Edit(NAME, None, world.clock.wall_ms())])
    with pytest.raises(InvalidRequestError, match="see `txn convert`"):
        world.protocol = "fenced"
        world.client()
    looking = Engine(world.store, clock=world.clock, create=False)
    assert (looking.context.rules, world.value(NAME)) == (SIX_PHASE, None)
    world.protocol = "six-phase"
    assert world.client().context.rules is SIX_PHASE


@pytest.mark.parametrize("row", ["doctor", "mine", "transaction.1"])
def test_a_row_that_is_no_transaction_makes_no_database_of_an_older_version(row: str) -> None:
    """An inspection, or somebody's mistake, does not choose the protocol."""
    world = World()
    world.store.write([Edit(NAME, None, world.clock.wall_ms())])
    world.store.write([Edit(Key(row, "t", "x", b"txn"), b"1", world.clock.wall_ms())])
    world.protocol = "fenced"
    assert world.client().context.rules is FENCED


def test_a_marker_makes_a_database_of_an_older_version() -> None:
    """Its transaction had six phases, though its row has expired."""
    world = World()
    marker = marker_key(b"txn", b"token")
    world.store.write([Edit(NAME, None, world.clock.wall_ms()), Edit(marker, b"1", 1)])
    world.protocol = "fenced"
    with pytest.raises(InvalidRequestError, match="see `txn convert`"):
        world.client()


def test_a_protocol_that_nobody_knows_is_an_error_that_names_it() -> None:
    """It is of a newer version: this one would not see its locks."""
    world = World()
    world.store.write([Edit(NAME, b"seven-phase", world.clock.wall_ms() + 1)])
    with pytest.raises(CorruptRowError, match=r"unknown protocol.*seven-phase"):
        find_rules(world.store, b"txn")


def test_of_two_that_make_a_database_the_second_takes_what_the_first_wrote() -> None:
    """Both find none; one check-and-put is answered with a no, and the name is read again."""
    world, others = World(), []

    def plan(call: Call) -> Fault:
        if call.method == "check_and_put" and not others:
            others.append(Engine(store, clock=world.clock, protocol="fenced"))
        return Fault()

    store = open_store("memory://", world.clock)
    with pytest.raises(InvalidRequestError, match="found='fenced'"):
        Engine(FaultyStore(store, plan), clock=world.clock, protocol="six-phase")
    assert Engine(FaultyStore(store), clock=world.clock).context.rules is FENCED


def test_a_lost_answer_leaves_no_doubt_of_the_protocol() -> None:
    """The name was put; asked again, the store says no."""
    store = open_store("memory://", ManualClock())
    lost = Fault(reply=Reply.MAYBE_APPLIED)
    faults = FaultyStore(store, lambda call: lost if call.method == "check_and_put" else Fault())
    faults.plan = once(faults.plan)
    assert Engine(faults, clock=ManualClock(), protocol="fenced").context.rules is FENCED


def once(plan: object) -> object:
    """Return the plan for the first call that it has a fault for."""
    left = [plan]

    def first(call: Call) -> Fault:
        fault = left[0](call) if left else Fault()  # type: ignore[operator]
        if fault != Fault():
            left.clear()
        return fault

    return first


def test_a_store_that_lacks_what_it_takes_is_refused_before_anything_is_written() -> None:
    """Thrift 1 has checked puts of one column, at the server's time."""
    world = World()
    world.store.write([Edit(NAME, None, world.clock.wall_ms())])
    with pytest.raises(InvalidRequestError, match=r"cannot do the database's protocol.*lacks"):
        Engine(Lacking(world), clock=world.clock, protocol="fenced")
    assert world.value(NAME) is None


def test_a_store_that_lacks_what_it_takes_is_refused_by_a_fenced_database() -> None:
    """Also where the client did not ask for it."""
    world = World(protocol="fenced")
    with pytest.raises(InvalidRequestError, match=r"cannot do the database's protocol.*lacks"):
        Engine(Lacking(world), clock=world.clock)


def test_the_name_is_no_transaction() -> None:
    """Whoever lists transaction rows passes it by, and whoever looks at one row does too."""
    world = World(protocol="fenced")
    assert world.rows() == []
    assert [row.row for row in world.store.scan(b"txn")] == [NAME.row]


def test_each_protocol_names_its_locks() -> None:
    """A lock of each key, or one of a row and family."""
    assert SIX_PHASE.guards_of(X) == (X.lock, X.tag)
    assert (SIX_PHASE.lock_of(X), SIX_PHASE.locks_rows) == (X.lock, False)
    assert FENCED.guards_of(X) == (FENCED.lock_of(X),) == (X.row_lock,)
    assert FENCED.locks_rows


@pytest.mark.parametrize("status", [Status.LOCKED, Status.ASSERTED])
def test_who_writes_one_cell_at_a_time_dates_the_rows_of_others(status: Status) -> None:
    """The row tells the time of each status, and is taken for damaged where one is missing."""
    world = World()
    row_key = stopped_at(world, status)
    helper = world.client(Lacking(world), seed=9)
    helper.commit([Mutation(X, b"3")])
    (row,) = (row for row in world.rows() if row.is_dated)
    assert (row.row_key, row.state) == (row_key, RowState.FINISHED)
    assert row.status in row.began


def test_a_plan_of_who_writes_one_cell_at_a_time_is_no_decision() -> None:
    """It is there before its status, which may never come."""
    world = World()
    world.client(Lacking(world), seed=9).commit([Mutation(X, b"1")])
    (row,) = world.rows()
    status = column(b"txn", row.row_key, b"status")
    world.store.write([Edit(status, b"1-LOCKED", world.clock.wall_ms() + 1)])
    (row,) = world.rows()
    assert row.plan is not None and row.state is RowState.UNDECIDED
    world.store.write([Edit(status, None, world.clock.wall_ms() + 1)])
    assert [row.state for row in world.rows()] == [RowState.UNREADABLE]


@pytest.mark.usefixtures("rows_for_all")
def test_a_fenced_database_that_lost_its_name_stays_fenced() -> None:
    """Its transactions tell: as one of six phases it would see none of its locks."""
    world = World(protocol="fenced")
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    world.store.write([Edit(NAME, None, world.clock.wall_ms() + 1)])
    assert find_rules(world.store, b"txn") is FENCED
    looking = Engine(world.store, clock=world.clock, create=False)
    assert (looking.context.rules, world.value(NAME)) == (FENCED, None)
    with pytest.raises(InvalidRequestError, match=r"another protocol.*found='fenced'"):
        Engine(world.store, clock=world.clock, protocol="six-phase")
    world.clock.advance(10)
    assert Engine(world.store, clock=world.clock).context.rules is FENCED
    assert world.value(NAME) == b"fenced/2"


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_database_without_rows_that_lost_its_name_shows_its_locks(name: ProtocolName) -> None:
    """A fenced transaction within one unit leaves no row, and rows expire: a client of the other
    protocol would write beside the locks of those that are connected."""
    clock = ManualClock()
    store = FaultyStore(open_store("memory://", clock))
    engine = Engine(store, clock=clock, protocol=name)
    engine.ensure_table("rows", ["d"])
    engine.commit([Mutation(Key("x", "d", "v", "rows"), b"1")])
    for row in list(store.scan(b"txn")):
        store.write([Edit(key, None, cell.timestamp) for key, cell in row.cells.items()])
    assert find_rules(store, b"txn") is PROTOCOLS[name]
    for other in PROTOCOLS.keys() - {name}:
        with pytest.raises(InvalidRequestError, match=r"another protocol: see `txn convert`"):
            Engine(store, clock=clock, protocol=other)
    clock.advance(10)
    assert Engine(store, clock=clock).context.rules is PROTOCOLS[name]


def test_a_table_that_is_not_shown_says_nothing_of_the_protocol() -> None:
    """It is another user's: only its owners may ask for its settings."""
    world = World()
    world.engine.commit([Mutation(X, b"1")])
    world.store.write([Edit(NAME, None, world.clock.wall_ms())])
    assert find_rules(Hidden(world.store), b"txn") is None


# ------------------------------------------------------------------- an earlier version's databases

BOTH = pytest.mark.parametrize("name", PROTOCOLS)


def make_old(world: World) -> None:
    """Give the database the name that the version before this one gave it."""
    world.store.write([Edit(NAME, world.engine.context.rules.old_name, world.clock.wall_ms())])


@BOTH
@pytest.mark.parametrize("create", [True, False])
def test_a_database_of_an_earlier_version_is_refused_with_the_remedy(
    name: ProtocolName, create: bool
) -> None:
    """Its clients free the lock of an absent row without poison, and must not run beside ours."""
    world = World(protocol=name)
    make_old(world)
    with pytest.raises(InvalidRequestError, match=f"stop them all, then run `txn convert {name}`"):
        Engine(world.store, clock=world.clock, create=create)
    assert world.value(NAME) == name.encode()


@BOTH
def test_a_client_of_an_earlier_version_does_not_know_the_name(name: ProtocolName) -> None:
    """It looks the name up among those it knows, and refuses any other."""
    assert PROTOCOLS[name].stored_name not in {n.encode() for n in PROTOCOLS}


@BOTH
def test_the_rules_of_an_earlier_version_s_database_are_found(name: ProtocolName) -> None:
    """Tools that only look, and those that convert, must be able to open it."""
    world = World(protocol=name)
    assert not is_of_earlier_version(world.engine.context)
    make_old(world)
    assert find_rules(world.store, b"txn") is PROTOCOLS[name]
    assert is_of_earlier_version(world.engine.context)


@BOTH
def test_a_client_of_an_earlier_version_may_name_a_new_database_first(name: ProtocolName) -> None:
    """Between a client's look at the name and its own."""
    store, clock = open_store("memory://", ManualClock()), ManualClock()

    def plan(call: Call) -> Fault:
        if call.method == "check_and_put":
            store.write([Edit(NAME, PROTOCOLS[name].old_name, clock.wall_ms())])
        return Fault()

    with pytest.raises(InvalidRequestError, match=f"earlier version.*`txn convert {name}`"):
        Engine(FaultyStore(store, plan), clock=clock, protocol=name)
    cell = store.read([NAME])[NAME]
    assert cell is not None and cell.value == name.encode()


def test_a_name_that_nobody_gave_is_refused() -> None:
    """It may be that of a later version."""
    world = World()
    world.store.write([Edit(NAME, b"six-phase/3", world.clock.wall_ms())])
    with pytest.raises(CorruptRowError, match="unknown protocol"):
        Engine(world.store, clock=world.clock)
