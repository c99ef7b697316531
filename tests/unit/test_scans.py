"""Scans: rows in order, each resolved, row by row or as of one instant."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.unit.worlds import (
    POLICY,
    TABLE,
    BreakingOff,
    World,
    X,
    Y,
    after_status,
    ghost,
    stopped_at,
)
from txn.assertions import Exact
from txn.client.block import OptimisticTransaction
from txn.client.engine import Engine
from txn.errors import ConflictError, DeadlineError, InvalidRequestError, NotApplied
from txn.model import (
    KEEP_DELETES_MS,
    MAX_ROW,
    Cell,
    Check,
    Delete,
    Edit,
    Key,
    Mutation,
    Row,
    RowCells,
    cell_bytes,
)
from txn.policy import Policy
from txn.protocol.row import column
from txn.protocol.statuses import Status
from txn.spans import Span, make_span
from txn.stores.base import Store
from txn.testing.counting import CountingStore
from txn.testing.faulty import Call, Crash, Fault, Reply

both_ways = pytest.mark.parametrize("snapshot", [False, True], ids=["by row", "snapshot"])


def key(row: str | bytes, name: str = "x") -> Key:
    return Key(row, "d", name, TABLE)


def values(rows: object) -> dict[bytes, dict[bytes, bytes]]:
    assert not isinstance(rows, dict)
    return {
        row.row: {k.column: cell.value for k, cell in row.cells.items()}
        for row in rows  # type: ignore[attr-defined]
    }


def filled(world: World, *rows: str | bytes) -> None:
    world.engine.commit([Mutation(key(row), b"1") for row in rows])


def down(times: int, method: str) -> Callable[[Call], Fault]:
    """Let the first so many calls of a method fail."""
    left = [Fault(frozenset(), Reply.NOT_APPLIED)] * times
    return lambda call: left.pop() if call.method == method and left else Fault()


@both_ways
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "a b b\xff c"),
        ({"start": "b"}, "b b\xff c"),
        ({"stop": b"b"}, "a"),
        ({"stop": b""}, "a b b\xff c"),
        ({"start": "b", "stop": "c"}, "b b\xff"),
        ({"prefix": "b"}, "b b\xff"),
        ({"prefix": b""}, "a b b\xff c"),
        ({"prefix": b"b\xff"}, "b\xff"),
        ({"prefix": b"\xff"}, ""),
        ({"start": "c", "stop": "b"}, ""),
        ({"columns": [("d", "x")]}, "a b b\xff c"),
        ({"columns": [("d", "y")]}, ""),
    ],
)
def test_what_a_scan_covers(asked: dict[str, object], expected: str, snapshot: bool) -> None:
    world = World()
    filled(world, "c", "a", b"b\xff", "b")
    found = world.engine.scan(snapshot=snapshot, **asked)  # type: ignore[arg-type]
    assert [row.row.decode("latin-1") for row in found] == expected.split()


@both_ways
def test_what_a_scan_shows(snapshot: bool) -> None:
    world = World()
    filled(world, "a", "b")
    world.engine.commit([Delete(key("a")), Mutation(key("b", "y"), b"2")])
    (row,) = world.engine.scan(TABLE, snapshot=snapshot)
    wanted = [key("b"), key("b", "y")]
    assert row == Row(b"b", world.engine.read(wanted))  # type: ignore[arg-type]
    (row,) = world.engine.scan(columns=[("d", "y")], snapshot=snapshot)
    assert list(row.cells) == [key("b", "y")]


@both_ways
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"table": "none"}, "no such table"),
        ({"columns": [("e", "x")]}, "no such family"),
        ({"columns": [("d", "x_lock")]}, "reserved"),
        ({"columns": ["d:x"]}, "pairs"),
        ({"columns": [("d", "x", "y")]}, "pairs"),
        ({"prefix": "a", "start": "b"}, "a prefix, or"),
        ({"start": 5}, "start must be"),
    ],
)
def test_a_bad_scan_is_refused_at_once(
    asked: dict[str, object], message: str, snapshot: bool
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        World().engine.scan(snapshot=snapshot, **asked)  # type: ignore[arg-type]


@both_ways
def test_a_scan_ends_at_its_deadline(snapshot: bool) -> None:
    world = World()
    filled(world, "a", "b", "c")
    with pytest.raises(DeadlineError, match="before anything was read"):
        next(world.engine.scan(snapshot=snapshot, deadline_ms=0))
    rows = world.engine.scan(snapshot=snapshot, deadline_ms=1_000)
    assert next(rows).row == b"a"
    world.clock.advance(1_000)
    if not snapshot:  # which has been read as a whole
        with pytest.raises(DeadlineError, match="before the last row"):
            next(rows)


def test_a_read_is_not_tried_longer_than_it_may_take() -> None:
    world = World(replace(POLICY, store_patience_ms=4_000))
    filled(world, "a")
    world.faults.plan = down(1_000, "read")
    for read in (
        lambda: world.engine.read([key("a")], deadline_ms=100),
        lambda: world.engine.run(lambda t: t.get(key("a")), deadline_ms=100),
    ):
        began_ms = world.clock.monotonic_ms()
        with pytest.raises(NotApplied):
            read()
        assert 0 < world.clock.monotonic_ms() - began_ms <= 200


def test_a_block_may_read_for_longer_than_the_policy_gives_a_commit() -> None:
    world = World()
    filled(world, "a", "b")

    def block(t: OptimisticTransaction) -> list[bytes | None]:
        found = [t.get(key("a"))]
        world.clock.advance(POLICY.deadline_ms)
        return [*found, t.get(key("b"))]

    assert world.engine.run(block) == [b"1", b"1"]
    with pytest.raises(DeadlineError, match="before anything was read"):
        world.engine.run(block, deadline_ms=POLICY.deadline_ms)


def test_a_view_may_be_bounded_in_bytes() -> None:
    world = World()
    filled(world, "a", "b", "c")
    found = list(world.engine.scan(snapshot=True))
    size = sum(cell_bytes(k, cell.value) for row in found for k, cell in row.cells.items())
    spans = [make_span(TABLE, "a", "b"), make_span(TABLE, "b")]
    view = partial(world.engine.backend.view, [], spans, None)
    assert [len(part) for part in view(size)[1]] == [1, 2]  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match="too many bytes for a snapshot"):
        view(size - 1)  # type: ignore[call-arg]


@both_ways
def test_the_cells_of_a_scan_are_found_by_the_keys_that_a_read_takes(snapshot: bool) -> None:
    world = World()
    world.engine.commit([Mutation(X, "1")])
    (row,) = world.engine.scan(snapshot=snapshot)
    with world.engine.transaction() as t:
        (in_block,) = t.scan()
    for cells in (row.cells, in_block.cells, pickle.loads(pickle.dumps(row)).cells):
        own, other = Key("x", "d", "x"), Key("x", "d", "y")
        assert cells[own] == cells[X] == cells.get(own)
        assert own in cells and X in cells and other not in cells
        for missing in (other, Key("x", "d", "x", "other"), "x", Key("x", "d", "y", TABLE)):
            assert cells.get(missing) is None
            with pytest.raises(KeyError):
                cells[missing]  # type: ignore[index]
    assert row == Row(b"x", {X: row.cells[X]}) == pickle.loads(pickle.dumps(row))
    assert Key("x", "d", "x") not in RowCells()


def test_a_scan_needs_a_table() -> None:
    with pytest.raises(InvalidRequestError, match="no table"):
        make_span(None)


def test_no_columns_are_not_all_of_them() -> None:
    """HBase would return all for none, and a block would not notice what comes into these."""
    with pytest.raises(InvalidRequestError, match="columns"):
        make_span(TABLE, columns=[])


def test_a_span_contains_what_its_scan_finds() -> None:
    wanted = make_span(TABLE, "b", "d", columns=[("d", "x")])
    assert key("b") in wanted
    others = [key("a"), key("d"), key("b", "y"), key("b")._replace(table=b"other")]
    assert not any(other in wanted for other in others)
    assert key("z", "y") in Span(TABLE)


@both_ways
@pytest.mark.parametrize("status", list(Status)[:5])
def test_a_writer_is_seen_from_its_decision_on(status: Status, snapshot: bool) -> None:
    world = World()
    filled(world, "a", "b", "c")
    after_status(world, status, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit(
            [Mutation(key("b"), b"2"), Mutation(key("b", "new"), b"2"), Delete(key("c"))]
        )
    began = world.clock.monotonic_ms()
    found = values(world.client(seed=2).scan(snapshot=snapshot))
    old: dict[bytes, dict[bytes, bytes]] = {b"b": {b"x": b"1"}, b"c": {b"x": b"1"}}
    new = {b"b": {b"new": b"2", b"x": b"2"}}
    assert found == {b"a": {b"x": b"1"}, **(new if status.is_decided else old)}
    assert world.clock.monotonic_ms() == began


@both_ways
def test_a_ghost_does_not_bring_its_value_back(snapshot: bool) -> None:
    world = World()
    ghost(world, Status.COMPLETE)
    assert values(world.client(seed=2).scan(snapshot=snapshot)) == {b"x": {b"x": b"2"}}


def between_looks(world: World, works: list[Callable[[], object]]) -> list[Call]:
    """Do one thing before each read of the faulty client, while there are any."""
    seen: list[Call] = []

    def plan(call: Call) -> Fault:
        if call.method in ("read", "scan"):
            seen.append(call)
            if works:
                works.pop(0)()
        return Fault()

    world.faults.plan = plan
    return seen


def test_a_row_that_changes_between_the_looks_is_looked_at_again() -> None:
    world = World()
    filled(world, "x")
    stopped_at(world, Status.ASSERTED)
    writer = world.client(seed=9)
    pair = [Mutation(key("x", "y"), b"3"), Mutation(key("x", "z"), b"3")]
    engine = world.client(world.faults, seed=2)
    list(engine.scan())
    works: list[Callable[[], object]] = [lambda: None, lambda: None, lambda: writer.commit(pair)]
    between_looks(world, works)
    assert values(engine.scan()) == {b"x": {b"x": b"2", b"y": b"3", b"z": b"3"}}


@both_ways
def test_a_holder_that_crosses_its_decision_is_looked_at_again(snapshot: bool) -> None:
    world = World()
    filled(world, "x")
    stopped_at(world, Status.ASSERTED)
    holder = stopped_at(world, Status.LOCKED, key("x", "y"))
    status = column(b"txn", holder, b"status")
    engine = world.client(world.faults, seed=2)
    list(engine.scan())

    def gone() -> None:
        world.store.write([Edit(status, None, world.clock.wall_ms() + 1)])

    before_last = 3 if snapshot else 4
    seen = between_looks(world, [*[lambda: None] * before_last, gone])
    assert values(engine.scan(snapshot=snapshot)) == {b"x": {b"x": b"2"}}
    assert len([call for call in seen if call.method == "scan"]) > 2


def never_still(world: World, work: Callable[[int], object]) -> None:
    """Let a row change before every look at it."""
    calls = 0

    def plan(call: Call) -> Fault:
        nonlocal calls
        if call.method == "scan":
            calls += 1
            work(calls)
        return Fault()

    world.faults.plan = plan


def test_a_row_that_never_stands_still_is_read_under_its_locks() -> None:
    world = World()
    filled(world, "x")
    stopped_at(world, Status.ASSERTED)
    writer, engine = world.client(seed=9), world.client(world.faults, seed=2)
    list(engine.scan())

    def work(number: int) -> None:
        if number <= 22:
            names = ("y", "z") if number < 20 else ("y", f"n{number}")
            writer.commit([Mutation(key("x", name), b"%d" % number) for name in names])

    never_still(world, work)
    (row,) = engine.scan()
    assert row.cells[key("x", "y")].value == row.cells[key("x", "n22")].value == b"22"
    assert world.holder(key("x", "y")) == b""


def test_a_row_that_keeps_growing_is_a_conflict() -> None:
    world = World()
    filled(world, "x")
    stopped_at(world, Status.ASSERTED)
    writer, engine = world.client(seed=9), world.client(world.faults, seed=2)
    list(engine.scan())
    never_still(world, lambda n: writer.commit([Mutation(key("x", f"n{n}"), b"1")]))
    with pytest.raises(ConflictError, match="keeps growing"):
        list(engine.scan())


def test_a_deleted_row_of_a_page_is_not_there() -> None:
    world = World()
    filled(world, "x", "y")
    stopped_at(world, Status.ASSERTED)
    engine = world.client(world.faults, seed=2)
    list(engine.scan())
    delete = partial(world.client(seed=3).commit, [Delete(X)])
    between_looks(world, [*[lambda: None] * 3, delete])
    assert values(engine.scan()) == {b"y": {b"x": b"1"}}


def test_the_longest_row_is_looked_at_again() -> None:
    """Nothing that HBase would take for a start comes behind it directly."""
    world = World()
    longest = b"x" * MAX_ROW
    filled(world, longest, b"y")
    stopped_at(world, Status.ASSERTED, key=key(longest))
    found = values(world.client(seed=2).scan())
    assert found == {longest: {b"x": b"2"}, b"y": {b"x": b"1"}}


def test_a_scan_goes_on_where_the_store_failed() -> None:
    world = World()
    rows = [b"%03d" % number for number in range(250)]
    filled(world, *rows)
    engine = world.client(BreakingOff(world.faults), seed=2)  # type: ignore[arg-type]
    assert [row.row for row in engine.scan()] == rows


def test_a_store_that_keeps_failing_is_an_error() -> None:
    world = World()
    filled(world, "x")
    world.faults.plan = down(100, "scan")
    with pytest.raises(NotApplied):
        list(world.engine.scan())


def test_a_scan_is_lazy() -> None:
    world = World()
    world.store.write([Edit(key(b"%05d" % number), b"1", 5) for number in range(1300)])
    counting = CountingStore(world.store)
    engine = world.client(counting)  # type: ignore[arg-type]
    rows = engine.scan()
    counting.reset()
    assert next(rows).row == b"00000"
    world.engine.commit([Mutation(key("99999"), b"1")])
    assert [row.row for row in rows][-1] == b"99999"
    assert dict(counting.calls) == {"scan": 1}


@pytest.mark.parametrize(
    ("status", "cost"),
    [(Status.LOCKED, {"scan": 1, "read": 1}), (Status.ASSERTED, {"scan": 2, "read": 2})],
)
def test_what_held_rows_cost(status: Status, cost: dict[str, int]) -> None:
    world = World()
    filled(world, *[b"%03d" % number for number in range(50)])
    after_status(world, status, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit([Mutation(key(b"%03d" % number), b"2") for number in range(10, 40)])
    counting = CountingStore(world.store)
    engine = world.client(counting)  # type: ignore[arg-type]
    assert len(list(engine.scan())) == 50
    counting.reset()
    assert len(list(engine.scan())) == 50
    assert dict(counting.calls) == cost


def stop_with_many(world: World, count: int, prefix: str = "") -> bytes:
    """Let a client die after it has decided to write that many rows, and one of another table."""
    world.engine.ensure_table("other", ["d"])
    after_status(world, Status.ASSERTED, Fault(reply=Reply.CRASH))
    rows = [key(f"{prefix}{number:03d}") for number in range(count)]
    with pytest.raises(Crash):
        world.client(world.faults, seed=len(world.rows()) + 100).commit(
            [Mutation(row, b"new") for row in (*rows, Key(rows[0].row, "d", "x", "other"))]
        )
    world.faults.crashed = False
    world.faults.plan = lambda call: Fault()
    return world.holder(rows[0])


def count_requests_read(counting: CountingStore, holder: bytes) -> int:
    """Return how often the request of a transaction was read."""
    wanted = column(b"txn", holder, b"buffer")
    reads = [call.items for call in counting.trace if call.method == "read"]
    return sum(wanted in items for items in reads)


def test_what_was_decided_is_read_once_for_many_pages() -> None:
    world = World()
    holder = stop_with_many(world, 350)
    counting = CountingStore(world.store)
    engine = world.client(counting, seed=2)  # type: ignore[arg-type]
    found = values(engine.scan())
    assert found == {b"%03d" % number: {b"x": b"new"} for number in range(350)}
    assert count_requests_read(counting, holder) == 1


def test_what_is_kept_of_the_decided_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were needed longest ago are forgotten, and read again."""
    monkeypatch.setattr("txn.reading.scans.MOST_KEPT", 300)
    world = World()
    first = stop_with_many(world, 150)
    others = [stop_with_many(world, 140, prefix) for prefix in ("1", "2")]
    last = stop_with_many(world, 350, "3")
    counting = CountingStore(world.store)
    engine = world.client(counting, seed=2)  # type: ignore[arg-type]
    found = values(engine.scan())
    assert len(found) == 780
    assert {tuple(row.values()) for row in found.values()} == {(b"new",)}
    reads = [count_requests_read(counting, holder) for holder in (first, *others, last)]
    assert reads[:2] == [1, 1]
    assert max(reads) <= 3  # each of the others is pushed out once, or twice, at the end of another


def test_how_far_the_decided_has_got_is_read_for_each_page() -> None:
    """Its lock may come back as a ghost, to a key that others have written since."""
    world = World()
    holder = stop_with_many(world, 250)
    engine, ghosted = world.client(seed=2), key("220")
    rows = engine.scan()
    assert next(rows).cells[key("000")].value == b"new"
    world.client(seed=3).commit([Mutation(ghosted, b"newer")])  # which finishes the other first
    assert world.store.check_and_put([Check(ghosted.lock, b"", ((ghosted.lock, holder),))])
    found = {row.row: row.cells for row in rows}
    assert len(found) == 249
    assert found[b"220"][ghosted].value == b"newer"


def test_a_snapshot_is_of_one_instant() -> None:
    world = World()
    world.engine.commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    writer, engine = world.client(seed=9), world.client(world.faults, seed=2)
    list(engine.scan())
    both = [Mutation(X, b"1"), Mutation(Y, b"1"), Mutation(key("z"), b"1")]
    between_looks(world, [lambda: None, lambda: writer.commit(both)])
    found = values(engine.scan(snapshot=True))
    assert found == {row: {b"x": b"1"} for row in (b"x", b"y", b"z")}


def test_a_range_that_never_stands_still_is_a_conflict() -> None:
    world = World()
    writer, engine = world.client(seed=9), world.client(world.faults, seed=2)
    list(engine.scan())
    never_still(world, lambda n: writer.commit([Mutation(key(f"{n:03}"), b"1")]))
    with pytest.raises(ConflictError, match="rows keep changing"):
        engine.scan(snapshot=True)


def test_a_snapshot_has_a_limit() -> None:
    world = World(policy=Policy(snapshot_rows=3))
    filled(world, "a", "b", "c")
    assert len(list(world.engine.scan(snapshot=True))) == 3
    filled(world, "d")
    with pytest.raises(InvalidRequestError, match="limit=3"):
        world.engine.scan(snapshot=True)
    assert len(list(world.engine.scan(snapshot=True, stop="d"))) == 3


def test_a_cell_that_only_looks_like_a_lock_is_left_alone() -> None:
    world = World()
    filled(world, "x")
    odd = Key("x", "d", "_lock", TABLE)
    world.store.write([Edit(odd, b"odd", world.clock.wall_ms())])
    for snapshot in (False, True):
        assert values(world.engine.scan(snapshot=snapshot)) == {b"x": {b"x": b"1"}}
    world.engine.commit([], [Exact(X, b"1")])
    assert world.cell(X) == Cell(b"1", world.cell(X).timestamp)  # type: ignore[union-attr]


def deleted_keys(world: World, count: int) -> None:
    """Keys as deletes leave them: a free lock and an empty tag."""
    left = [key(b"%06d" % number) for number in range(count)]
    now = world.clock.wall_ms()
    world.store.write([Edit(cell, b"", now) for key in left for cell in (key.lock, key.tag)])


def test_deleted_keys_do_not_count() -> None:
    world = World(policy=Policy(snapshot_rows=3))
    deleted_keys(world, 10)
    filled(world, "a", "b", "c")
    assert [row.row for row in world.engine.scan(snapshot=True)] == [b"a", b"b", b"c"]
    with world.engine.transaction() as t:
        assert len(t.scan()) == 3
    with world.engine.transaction() as t:
        t.put(key("a"), b"%d" % len(t.scan()))
    assert world.value(key("a")) == b"3"


def test_what_is_held_counts() -> None:
    world = World(policy=Policy(snapshot_rows=1))
    filled(world, "a")
    stopped_at(world, Status.LOCKED)
    with pytest.raises(InvalidRequestError, match="limit=1"):
        world.engine.scan(snapshot=True)


def test_a_snapshot_among_deleted_keys_takes_little_memory() -> None:
    world = World()
    filled(world, "a")
    most = []
    for count in (1_000, 3_000):
        deleted_keys(world, count)
        tracemalloc.start()
        assert len(list(world.engine.scan(snapshot=True))) == 1
        most.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert most[1] < 2 * most[0]


def far_apart(world: World, method: str, times: int) -> Callable[[Call], Fault]:
    """Let a day pass before the so manyth call of a method, once."""
    left = [KEEP_DELETES_MS]
    seen: list[Call] = []

    def plan(call: Call) -> Fault:
        seen.extend([call] if call.method == method else [])
        if len(seen) == times and left:
            world.clock.advance(left.pop())
        return Fault()

    return plan


def test_a_held_row_is_settled_by_looks_close_together() -> None:
    """What came and went between two looks that lie a day apart may have been retired."""
    world = World()
    stopped_at(world, Status.ASSERTED)
    counting = CountingStore(world.faults)
    world.faults.plan = far_apart(world, "scan", 2)
    assert values(world.client(counting, seed=2).scan()) == {b"x": {b"x": b"2"}}  # type: ignore[arg-type]
    assert counting.calls["scan"] == 4


def test_a_snapshot_is_of_looks_close_together() -> None:
    world = World()
    filled(world, "a", "b")
    counting = CountingStore(world.faults)
    world.faults.plan = far_apart(world, "scan", 2)
    found = world.client(counting, seed=2).scan(snapshot=True)  # type: ignore[arg-type]
    assert values(found) == {b"a": {b"x": b"1"}, b"b": {b"x": b"1"}}
    assert counting.calls["scan"] == 4


def test_a_deleted_row_that_changes_between_the_looks_is_seen() -> None:
    world = World()
    filled(world, "a", "b")
    world.engine.commit([Delete(key("b"))])
    counting = CountingStore(world.faults)

    def come_and_go(call: Call) -> Fault:
        if call.method == "scan" and counting.calls["scan"] == 2:
            filled(world, "b")
            world.client(seed=8).commit([Delete(key("b"))])
        return Fault()

    reader = world.client(counting, seed=2)  # type: ignore[arg-type]
    reader.read([key("a")])
    world.faults.plan = come_and_go
    assert list(values(reader.scan(snapshot=True))) == [b"a"]
    assert counting.calls["scan"] == 4


class Noting:
    """A store that takes down the columns that its scans are asked for."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.asked: list[set[bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
        self.asked.append({name for _, name in args[3]})
        return self._inner.scan(*args, **options)


def test_tags_of_named_columns_are_read_only_where_rows_are_held() -> None:
    world = World(protocol="six-phase")
    filled(world, "a", "b", "c")
    stopped_at(world, Status.ASSERTED, key("b"))
    noting = Noting(world.store)
    engine = Engine(noting, table=TABLE, policy=world.policy, clock=world.clock)  # type: ignore[arg-type]
    found = values(engine.scan(columns=[("d", "x")]))
    assert found == {b"a": {b"x": b"1"}, b"b": {b"x": b"2"}, b"c": {b"x": b"1"}}
    plain, tagged = {b"x", b"x_lock", b"_lock"}, {b"x", b"x_lock", b"_lock", b"x_tag"}
    assert noting.asked == [plain, tagged, tagged]
