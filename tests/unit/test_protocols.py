"""Which protocol a database has, and what a client says that wants another."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.unit.worlds import World, X, Y
from txn import Engine, InvalidRequestError
from txn.clock import ManualClock
from txn.errors import CorruptRowError
from txn.model import Edit, Key, Mutation
from txn.protocol.protocols import find_rules, protocol_key
from txn.protocol.row import marker_key
from txn.protocol.statuses import (
    FENCED,
    PROTOCOLS,
    SIX_PHASE,
    KeptRows,
    ProtocolName,
)
from txn.stores import open_store
from txn.testing.faulty import Call, Fault, FaultyStore, Reply

NAME, ROWS = protocol_key(b"txn"), protocol_key(b"txn", b"rows")


class Lacking(FaultyStore):
    """A store that checks one cell, and cannot change rows on a condition, as Thrift 1's."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self.features -= {"multi_cell_check", "row_mutations"}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_new_database_has_the_protocol_that_is_wanted(name: ProtocolName) -> None:
    world = World(protocol=name)
    assert world.value(NAME) == PROTOCOLS[name].stored_name == name.encode() + b"/2"
    assert Engine(world.store, clock=world.clock).context.rules is PROTOCOLS[name]


@pytest.mark.parametrize("rows", get_args(KeptRows))
def test_a_fenced_database_says_which_rows_it_keeps_in_one_write_and_one_read(
    rows: KeptRows,
) -> None:
    clock, calls = ManualClock(), list[str]()

    def plan(call: Call) -> Fault:
        calls.append(call.method)
        return Fault()

    store = FaultyStore(open_store("memory://", clock), plan)
    Engine(store, clock=clock, protocol="fenced", rows=rows)
    wanted = f"fenced (rows: {rows})"
    cells = store.read([NAME, ROWS])
    assert [cell and cell.value for cell in cells.values()] == [b"fenced/2", rows.encode()]
    assert calls.count("check_and_put") == 1
    calls.clear()
    for given in (None, rows):
        rules = Engine(store, clock=clock, rows=given).context.rules
        assert (str(rules), rules.keeps_rows) == (wanted, rows == "always")
    assert calls.count("read") == 2
    other: KeptRows = "needed" if rows == "always" else "always"
    with pytest.raises(InvalidRequestError, match=f"fenced --rows {other}`.*found='{rows}'"):
        Engine(store, clock=clock, rows=other)
    assert str(find_rules(store, b"txn")) == wanted


def test_a_fenced_database_that_does_not_say_keeps_the_rows_that_it_needs() -> None:
    world = World(protocol="fenced")
    world.store.write([Edit(ROWS, None, world.clock.wall_ms())])
    assert world.client().context.rules is FENCED
    world.store.write([Edit(ROWS, b"some", world.clock.wall_ms() + 1)])
    with pytest.raises(CorruptRowError, match=r"unknown protocol.*some"):
        world.client()


def test_six_phases_always_keep_rows() -> None:
    store, clock = open_store("memory://", ManualClock()), ManualClock()
    with pytest.raises(InvalidRequestError, match="six-phase protocol always keeps rows"):
        Engine(store, clock=clock, rows="needed")
    assert find_rules(store, b"txn") is None
    assert Engine(store, clock=clock, rows="always").context.rules is SIX_PHASE
    assert SIX_PHASE.keeps_rows and store.read([ROWS]) == {ROWS: None}
    with pytest.raises(InvalidRequestError, match="six-phase protocol always keeps rows"):
        Engine(store, clock=clock, rows="needed")


@pytest.mark.parametrize(("found", "wanted"), [("fenced", "six-phase"), ("six-phase", "fenced")])
def test_who_wants_another_protocol_is_told_what_there_is(
    found: ProtocolName, wanted: ProtocolName
) -> None:
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
    world = World()
    world.store.write([Edit(NAME, None, world.clock.wall_ms())])
    world.store.write([Edit(Key(row, "t", "x", b"txn"), b"1", world.clock.wall_ms())])
    world.protocol = "fenced"
    assert world.client().context.rules is FENCED


def test_a_marker_makes_a_database_of_an_older_version() -> None:
    world = World()
    marker = marker_key(b"txn", b"token")
    world.store.write([Edit(NAME, None, world.clock.wall_ms()), Edit(marker, b"1", 1)])
    world.protocol = "fenced"
    with pytest.raises(InvalidRequestError, match="see `txn convert`"):
        world.client()


def test_a_protocol_that_nobody_knows_is_an_error_that_names_it() -> None:
    world = World()
    for number, name in enumerate((b"seven-phase", b"six-phase/3"), start=1):
        world.store.write([Edit(NAME, name, world.clock.wall_ms() + number)])
        with pytest.raises(CorruptRowError, match=f"unknown protocol.*{name.decode()}"):
            Engine(world.store, clock=world.clock)


def test_of_two_that_make_a_database_the_second_takes_what_the_first_wrote() -> None:
    """Both find none; one check-and-put is answered with a no, and the name is read again."""
    world, others = World(), list[Engine]()

    def plan(call: Call) -> Fault:
        if call.method == "check_and_put" and not others:
            others.append(Engine(store, clock=world.clock, protocol="fenced"))
        return Fault()

    store = open_store("memory://", world.clock)
    with pytest.raises(InvalidRequestError, match="found='fenced'"):
        Engine(FaultyStore(store, plan), clock=world.clock, protocol="six-phase")
    assert Engine(FaultyStore(store), clock=world.clock).context.rules is FENCED
    store = open_store("memory://", world.clock)
    others.clear()
    with pytest.raises(InvalidRequestError, match="found='needed'"):
        Engine(FaultyStore(store, plan), clock=world.clock, protocol="fenced", rows="always")


def test_a_lost_answer_leaves_no_doubt_of_the_protocol() -> None:
    store = open_store("memory://", ManualClock())
    left = [Fault(reply=Reply.MAYBE_APPLIED)]

    def plan(call: Call) -> Fault:
        return left.pop() if left and call.method == "check_and_put" else Fault()

    faults = FaultyStore(store, plan)
    assert Engine(faults, clock=ManualClock(), protocol="fenced").context.rules is FENCED


def test_a_store_that_lacks_what_it_takes_is_refused_before_anything_is_written() -> None:
    world = World()
    world.store.write([Edit(NAME, None, world.clock.wall_ms())])
    with pytest.raises(InvalidRequestError, match=r"cannot do the database's protocol.*lacks"):
        Engine(Lacking(world), clock=world.clock, protocol="fenced")
    assert world.value(NAME) is None
    world = World(protocol="fenced")
    with pytest.raises(InvalidRequestError, match=r"cannot do the database's protocol.*lacks"):
        Engine(Lacking(world), clock=world.clock)


@pytest.mark.usefixtures("rows_for_all")
def test_a_fenced_database_that_lost_its_name_stays_fenced() -> None:
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
    """A client of the other protocol would write beside the locks of those that are connected."""
    clock = ManualClock()
    store = FaultyStore(open_store("memory://", clock))
    engine = Engine(store, clock=clock, protocol=name)
    engine.ensure_table("rows", ["d"])
    engine.commit([Mutation(Key("x", "d", "v", "rows"), b"1")])
    for row in list(store.scan(b"txn")):
        store.write([Edit(key, None, cell.timestamp) for key, cell in row.cells.items()])
    assert find_rules(store, b"txn") is PROTOCOLS[name]
    other: ProtocolName = "fenced" if name == "six-phase" else "six-phase"
    with pytest.raises(InvalidRequestError, match=r"another protocol: see `txn convert`"):
        Engine(store, clock=clock, protocol=other)
    clock.advance(10)
    assert Engine(store, clock=clock).context.rules is PROTOCOLS[name]


def make_old(world: World) -> None:
    """Give the database the name that the version before this one gave it."""
    world.store.write([Edit(NAME, world.engine.context.rules.old_name, world.clock.wall_ms())])


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("create", [True, False])
def test_a_database_of_an_earlier_version_is_refused_with_the_remedy(
    name: ProtocolName, create: bool
) -> None:
    world = World(protocol=name)
    make_old(world)
    assert find_rules(world.store, b"txn") is PROTOCOLS[name]
    with pytest.raises(InvalidRequestError, match=f"stop them all, then run `txn convert {name}`"):
        Engine(world.store, clock=world.clock, create=create)
    assert world.value(NAME) == name.encode()
