"""Commits read values only where an assertion compares them, and large answers come in portions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest

from tests.unit.fake_gateway import FakeGateway, fake_gateway
from tests.unit.fake_region_server import FakeRegionServer, fake_region_server
from tests.unit.worlds import World, X, Y, Z
from txn.assertions import Assertion, Exact, GreaterThan, Not, Some, Version, holds
from txn.errors import AssertionFailedError, MaybeApplied, NotApplied
from txn.model import Cell, Check, Delete, Edit, Key, Mutation, Stamp
from txn.protocol.statuses import ProtocolName
from txn.request import Request
from txn.stores import open_store
from txn.stores.base import Answers
from txn.stores.hbase.base import HBaseTables, RowSizes
from txn.stores.hbase.native.messages import PB
from txn.stores.hbase.places import write_sieve

LONG = 10_000_000
PROTOCOLS = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])


def keys_of(count: int, table: str = "t") -> list[Key]:
    return [Key(f"{row:04}", "d", "x", table) for row in range(count)]


class ReadingWorld(World):
    """A world that notes the keys whose values its engine reads, and those whose times it reads."""

    def __init__(self, protocol: ProtocolName) -> None:
        super().__init__(protocol=protocol)
        self.valued: set[Key] = set()
        self.stamped: set[Key] = set()
        self.engine.commit([Mutation(key, b"1") for key in (X, Y, Z)])
        read, check_and_read = self.faults.read, self.faults.check_and_read

        def noting_read(*groups: Collection[Key]) -> dict[Key, Cell | None]:
            self.valued.update(key for keys in groups for key in keys)
            return read(*groups)

        def noting(
            checks: Sequence[Check],
            keys: Collection[Key],
            stamps: Collection[Key] = (),
            **options: Any,
        ) -> Answers:
            self.valued.update(keys)
            self.stamped.update(stamps)
            self.faults.read = read  # type: ignore[method-assign]
            try:
                return check_and_read(checks, keys, stamps, **options)
            finally:
                self.faults.read = noting_read  # type: ignore[method-assign]

        self.faults.read = noting_read  # type: ignore[method-assign]
        self.faults.check_and_read = noting  # type: ignore[method-assign]


@PROTOCOLS
@pytest.mark.parametrize("batch", [1, 2])
def test_a_commit_reads_no_value_that_no_assertion_compares(
    protocol: ProtocolName, batch: int
) -> None:
    world = ReadingWorld(protocol)
    version = world.cell(Y)
    assert version is not None
    requests = [
        Request((Mutation(X, b"2"),), (Version(Y, version.timestamp),)),
        Request((Delete(Z),), ()),
    ]
    done = world.engine.commit_many(requests[:batch])
    assert not [result for result in done if isinstance(result, Exception)]
    assert world.stamped == {X, Y, Z} if batch == 2 else {X, Y}
    assert not world.valued & {X, Y, Z}
    assert world.value(X) == b"2"


@PROTOCOLS
@pytest.mark.parametrize(
    "assertion",
    [Exact(X, b"1"), GreaterThan(X, b"0"), Some(X), ~Not(Exact(X, b"1")), Some(X) & Version(Y, 5)],
)
def test_a_value_is_read_that_an_assertion_compares(
    protocol: ProtocolName, assertion: Assertion
) -> None:
    world = ReadingWorld(protocol)
    (result,) = world.engine.commit_many([Request((Mutation(Z, b"2"),), (assertion,))])
    assert isinstance(result, AssertionFailedError) == ("Version" in repr(assertion))
    assert X in world.valued
    assert not {Y, Z} & world.valued
    cell = world.cell(X)
    assert cell is not None
    both = [
        Request((Mutation(Y, b"2"),), (Version(X, cell.timestamp),), validate=True),
        Request((Mutation(Z, b"2"),), (Exact(X, b"1"),), validate=True),
    ]  # of a batch, a key is read for the one that compares it
    assert not [each for each in world.engine.commit_many(both) if isinstance(each, Exception)]


def test_an_unread_value_cannot_be_compared() -> None:
    assert holds(Version(X, 5), {X: Stamp(5)}) and holds(Some(X), {X: Stamp(5)})
    for assertion in (Exact(X, b"1"), GreaterThan(X, b"1")):
        with pytest.raises(TypeError, match="not read"):
            holds(assertion, {X: Stamp(5)})


class Tables(HBaseTables):
    """Tables whose cells all have values of one length; it notes the keys of each answer."""

    def __init__(self, few: int) -> None:
        super().__init__(few)
        self.length = 0
        self.answers: list[list[Key]] = []

    def _read(
        self, checks: Sequence[Check], groups: Sequence[Collection[Key]], stamps: Collection[Key]
    ) -> tuple[list[bool], dict[Key, Cell | None]]:
        found = {key: self._cell(key, stamps) for keys in groups for key in keys}
        self.answers.append([*found])
        return [True for _ in checks], found

    def _cell(self, key: Key, stamps: Collection[Key]) -> Cell | None:
        if self.length == 0:
            return None
        return Cell(self.length.to_bytes(4) if key in stamps else Bytes(self.length), 5)

    def _read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        self.answers.append([*keys])
        return {key: [Cell(Bytes(self.length), at) for at in range(count)] for key in keys}

    def _read_page(self, wanted: object, keys: object) -> Any:
        raise NotImplementedError


class Bytes(bytes):
    """Bytes of any length, without them."""

    def __new__(cls, length: int) -> Bytes:
        return super().__new__(cls)

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


def read_sizes(tables: Tables, keys: int | list[Key], length: int) -> list[int]:
    """Read rows of this length; return how many came in each answer."""
    tables.length, tables.answers = length, []
    tables.read(keys_of(keys) if isinstance(keys, int) else keys)
    return [*map(len, tables.answers)]


@pytest.mark.parametrize(
    ("few", "reads"),
    [
        # At first nobody knows that rows are long.
        (8, [(120, 2_000_000, [8] * 15), (20, LONG, [8, 2, *[1] * 10]), (3, LONG, [1] * 3)]),
        (8, [(20, LONG, [8, 2, *[1] * 10]), (500, 10, [1, 2, 7, 25, 97, 368])]),
        # Short ones are soon read all at once, and absent rows are short.
        (16, [(16, 10, [16]), (500, 10, [16, 61, 241, 182]), (500, 10, [500])]),
        (16, [(99, 10, [16, 61, 22]), (1_500, 0, [244, 973, 283])]),
        (16, [(99, 10, [16, 61, 22]), (20, LONG, [20]), (20, LONG, [1] * 20)]),
    ],
)
def test_as_many_rows_are_read_at_once_as_their_lengths_allow(
    few: int, reads: list[tuple[int, int, list[int]]]
) -> None:
    tables = Tables(few)
    assert [read_sizes(tables, count, length) for count, length, _ in reads] == [
        expected for _, _, expected in reads
    ]


def test_a_row_is_never_divided_and_groups_stay_in_their_order() -> None:
    """Its cells are of one instant; and none of a group is read before all earlier ones were."""
    tables = Tables(8)
    one, two = ([Key(row, "d", f"{number}", "t") for number in range(100)] for row in "rs")
    read_sizes(tables, one, LONG)
    assert tables.answers == [one]
    read_sizes(tables, [*one, *two], LONG)
    assert tables.answers == [one, two]
    tables, keys = Tables(8), keys_of(12)
    locks = [key.lock for key in keys]
    tables.read(locks)
    tables.read(keys, locks)
    tables.read(keys[:4], locks[:4])
    assert tables.answers[2:] == [keys[:8], keys[8:], locks, [*keys[:4], *locks[:4]]]


def test_lengths_are_learned_where_no_value_is_sent() -> None:
    tables, keys = Tables(16), keys_of(40)
    tables.length = LONG
    _, _, stamps = tables.check_and_read((), [key.lock for key in keys], keys)
    assert stamps == dict.fromkeys(keys, Stamp(5))
    assert [*map(len, tables.answers)][:3] == [32, 4, 2]


@pytest.fixture
def server() -> Iterator[FakeRegionServer]:
    with fake_region_server() as server:
        yield server


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with fake_gateway() as gateway:
        yield gateway


def test_a_region_server_is_asked_for_timestamps(server: FakeRegionServer) -> None:
    store = open_store(server.uri)
    x, y = Key("a", "d", "x", "t"), Key("b", "d", "y", "t")
    store.write([Edit(x, b"long", 5), Edit(x.lock, b"me", 5), Edit(y, b"too", 5)])
    server.requests.clear()
    _, found, stamps = store.check_and_read((), [x.lock, y], [x])
    store.close()
    assert (found, stamps) == ({x.lock: Cell(b"me", 1), y: Cell(b"too", 1)}, {x: Stamp(1)})
    (request,) = server.requests
    gets = [action.get for entry in request.regionAction for action in entry.action]
    assert [get.HasField("filter") for get in gets] == [True, False]
    either = PB.FilterList.FromString(gets[0].filter.serialized_filter)
    everything, lengths = (
        PB.FilterList.FromString(each.serialized_filter) for each in either.filters
    )
    assert (either.operator, everything.operator, lengths.operator) == (2, 1, 1)
    assert not everything.filters
    names = [each.name.rpartition(".")[2] for each in lengths.filters]
    assert names == ["QualifierFilter", "KeyOnlyFilter"]
    assert PB.KeyOnlyFilter.FromString(lengths.filters[1].serialized_filter).len_as_val


def test_a_filter_keeps_the_values_of_compared_columns_locks_and_tags() -> None:
    assert write_sieve(()) == (
        b"ColumnPrefixFilter('') OR "
        b"(QualifierFilter(!=, 'regexstring:(_lock|_tag)$') AND KeyOnlyFilter(true))"
    )
    assert b"') AND QualifierFilter(!=, 'binary:it''s') AND Key" in write_sieve((b"it's",))
    assert re.search(rb"(_lock|_tag)$", b"x_lock") and re.search(rb"(_lock|_tag)$", b"x_tag")


def test_checks_go_with_the_first_portion(gateway: FakeGateway) -> None:
    store = open_store(gateway.uri + "?timeout_ms=2000")
    keys = keys_of(20)
    check = Check(Key("c", "d", "x", "t"), b"", ((Key("c", "d", "x", "t"), b"1"),))
    assert store.check_and_read([check], keys) == ([True], dict.fromkeys(keys), {})
    assert sorted(gateway.names) == ["checkAndPut", "getMultiple", "getMultiple"]
    later: Callable[..., Any] = store._read  # type: ignore[attr-defined]

    def refuse(checks: Sequence[Check], *others: Any) -> Any:
        if checks:
            return later(checks, *others)
        raise NotApplied("no connection")

    store._read = refuse  # type: ignore[attr-defined]
    store._sizes = RowSizes(8)  # type: ignore[attr-defined]
    with pytest.raises(MaybeApplied):
        store.check_and_read([check], keys)
    store._sizes = RowSizes(8)  # type: ignore[attr-defined]
    with pytest.raises(NotApplied):
        store.read(keys)
    store.close()
