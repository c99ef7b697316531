"""Two databases, each with a transaction table, in one store: tables and locks name their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from random import Random

import pytest

from recovery import check, repair
from recovery.convert import find_databases, find_table_obstacles, take_over
from recovery.findings import Kind, LeftAlone
from recovery.opening import open_store_of
from tests.unit.worlds import POLICY, TABLE, World, X, Y, stopped_at
from txn.client.connect import connect
from txn.client.engine import Engine
from txn.clock import ManualClock
from txn.errors import AbortedError, InvalidRequestError, TxnError
from txn.model import Family, Key, Mutation
from txn.protocol.context import ClockTrust
from txn.protocol.row import child_key, name_database, parent_of, strip_database
from txn.protocol.statuses import ProtocolName, Status
from txn.spans import Span
from txn.stores.base import Store, TableAssigner
from txn.testing.faulty import FaultyStore

BOTH: list[ProtocolName] = ["six-phase", "fenced"]


class Owning(FaultyStore):
    """A store of servers that changes the database of a table, as hbase:// does."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.features |= {"remote_calls"}
        assert isinstance(inner, TableAssigner)
        self.assign_table = inner.assign_table


def open_other(world: World, protocol: ProtocolName | None = None) -> Engine:
    """An engine on the same store whose transaction table has another name."""
    return Engine(
        FaultyStore(world.store),
        table=TABLE,
        transactions="t2",
        policy=POLICY,
        clock=world.clock,
        rng=Random(9),
        protocol=protocol or world.protocol,
    )


@pytest.fixture(params=BOTH)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield World(protocol=request.param, database=None)


def assert_names_both(error: TxnError, database: str = "txn") -> None:
    assert repr(database.encode()) in str(error)
    assert "b't2'" in str(error)


@pytest.mark.parametrize("protocol", BOTH)
def test_a_table_of_one_database_refuses_another(world: World, protocol: ProtocolName) -> None:
    world.engine.ensure_table("owned", ["d"])
    key = Key("r", "d", "x", "owned")
    world.engine.commit([Mutation(key, "1")])
    other = open_other(world, protocol)
    for call in (
        lambda: other.commit([Mutation(key, "2")]),
        lambda: other.read([key]),
        lambda: list(other.scan("owned")),
        lambda: other.run(lambda t: t.put(key, t.get(key) or b"")),
        lambda: other.ensure_table("owned", ["d"]),
        lambda: other.ensure_table("owned", ["e"]),
        lambda: list(check(other.context, scan=[b"owned"])),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            call()
        assert_names_both(caught.value)
    assert world.engine.read([key])[key].value == b"1"  # type: ignore[union-attr]
    same = Engine(world.store, transactions="default:txn", clock=world.clock)
    same.ensure_table("owned", ["d"])
    assert world.store.describe(b"owned") == {b"d": Family(database=b"txn")}


def test_one_database_uses_no_transaction_table_of_another(world: World) -> None:
    other = open_other(world)
    with pytest.raises(InvalidRequestError) as caught:
        other.commit([Mutation(Key("protocol", "t", "name", "txn"), "odd")])
    assert_names_both(caught.value)


def test_the_first_commit_gives_a_database_where_that_costs_nothing(world: World) -> None:
    engine = Engine(world.store, clock=world.clock)
    engine.read([X])
    assert find_databases(engine.context, TABLE) == {None}
    engine.commit([Mutation(X, "1")])
    assert find_databases(engine.context, TABLE) == {b"txn"}
    with pytest.raises(InvalidRequestError):
        open_other(world).read([X])


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_a_table_of_none_with_locks_of_the_other_protocol_is_refused(
    world: World, local: bool
) -> None:
    """The two protocols look at different lock cells, so neither would wait for the other."""
    world.engine.commit([Mutation(X, "1"), Mutation(Y, "1")])
    other = Engine(
        world.store if local else FaultyStore(world.store),
        transactions="t2",
        clock=world.clock,
        protocol="fenced" if world.protocol == "six-phase" else "six-phase",
    )
    with pytest.raises(InvalidRequestError, match=r"locks of the other protocol.*take-over"):
        other.commit([Mutation(X, "2")])
    with pytest.raises(InvalidRequestError, match="locks of the other protocol"):
        list(other.scan(TABLE))
    assert world.engine.read([X])[X].value == b"1"  # type: ignore[union-attr]
    assert find_databases(other.context, TABLE) == {None}
    assert world.engine.commit([Mutation(X, "3")]).complete


@pytest.mark.usefixtures("rows_for_all")
def test_a_lock_of_another_database_is_kept(world: World) -> None:
    """Where a table tells no database, its locks do: an absent row is then no sign of an end."""
    holder = stopped_at(world, Status.ASSERTED)
    other = open_other(world)
    with pytest.raises(AbortedError) as committed:
        other.commit([Mutation(X, "9"), Mutation(Y, "9")], deadline_ms=60_000)
    assert_names_both(committed.value)
    with pytest.raises(InvalidRequestError) as read:
        other.read([X])
    assert_names_both(read.value)
    with pytest.raises(InvalidRequestError):
        list(other.scan(TABLE))
    with pytest.raises(InvalidRequestError):
        other.outcome(holder)
    assert world.holder(X) == holder
    world.clock.advance(3_600_000)
    assert world.engine.read([Y])[Y] is None
    assert world.engine.commit([Mutation(X, "3")]).complete


@pytest.mark.usefixtures("rows_for_all")
def test_fsck_reports_a_lock_of_another_database_and_keeps_it(world: World) -> None:
    holder = stopped_at(world, Status.ASSERTED)
    other = open_other(world)
    (found,) = check(other.context, grace_ms=0, scan=[TABLE])
    assert (found.kind, found.transaction) == (Kind.FOREIGN_LOCK, holder)
    assert isinstance(repair(other.context, found), LeftAlone)
    assert world.holder(X) == holder


@pytest.mark.usefixtures("rows_for_all")
def test_a_table_changes_hands_when_it_is_quiet(world: World) -> None:
    world.engine.ensure_table(TABLE, ["d"])
    stopped_at(world, Status.ASSERTED)
    other = open_other(world, "fenced" if world.protocol == "six-phase" else "six-phase")
    world.clock.advance(1_000)
    (obstacle,) = find_table_obstacles(other.context, TABLE)
    assert "fsck" in obstacle
    for found in check(world.engine.context, grace_ms=0, scan=[TABLE]):
        repair(world.engine.context, found)
    world.clock.advance(1_000)
    assert list(find_table_obstacles(other.context, TABLE)) == []
    take_over(replace(other.context, store=world.store), TABLE)
    assert find_databases(other.context, TABLE) == {b"t2"}
    assert other.read([X])[X].value == b"2"  # type: ignore[union-attr]
    other.commit([Mutation(X, "3")])
    with pytest.raises(InvalidRequestError):
        world.client().commit([Mutation(X, "4")])


def test_a_wrong_clock_takes_no_table_over(world: World) -> None:
    world.engine.ensure_table(TABLE, ["d"])
    context = open_other(world).context
    servers = Owning(world.store)
    ahead = ManualClock(world.clock.wall_ms() + 600_000)
    with pytest.raises(AbortedError, match="ahead_ms=600000"):
        take_over(replace(context, store=servers, clock=ahead, trust=ClockTrust()), TABLE)
    assert find_databases(world.engine.context, TABLE) == {b"txn"}


def test_a_row_key_names_its_database() -> None:
    world = World()
    row_key = world.engine.commit([Mutation(X, "1"), Mutation(Y, "1")]).transaction
    assert name_database(row_key) == b"txn"
    assert name_database(strip_database(row_key)) is None
    part = child_key(row_key, 3, 4)
    assert (parent_of(part), name_database(part)) == (row_key, b"txn")
    assert strip_database(part) == child_key(strip_database(row_key), 3, 4)
    assert Span(b"txn", row_key, part)


def test_nothing_is_made_where_nothing_may_be_made(tmp_path: object) -> None:
    uri = f"embedded://{tmp_path}/store"
    with pytest.raises(InvalidRequestError, match="no such store"):
        connect(uri, create=False)
    with connect(uri, protocol="fenced") as engine:
        before = engine.context.store.describe(b"t2")
    with pytest.raises(InvalidRequestError, match="b'mistyped'"):
        connect(uri, transactions="mistyped", create=False)
    with connect(uri, create=False) as engine:
        assert engine.context.rules.name == "fenced"
        assert engine.context.store.describe(b"mistyped") is before is None


@pytest.mark.parametrize("table", ["plain", "alike"])
def test_a_table_of_data_is_no_transaction_table(tmp_path: object, table: str) -> None:
    uri = f"embedded://{tmp_path}/store"
    with connect(uri) as engine:
        engine.ensure_table("plain", ["d"])
        engine.ensure_table("alike", ["t"])
    refusal = pytest.raises(InvalidRequestError, match="belongs_to=b'txn'")
    with refusal:
        connect(uri, transactions=table, create=False)
    with refusal, open_store_of(uri, table):
        pass
    is_missing = pytest.raises(InvalidRequestError, match="no such transaction table")
    with is_missing if table == "plain" else nullcontext(), open_store_of(uri, table, is_own=False):
        pass  # as `txn table take-over` of a transaction table itself
