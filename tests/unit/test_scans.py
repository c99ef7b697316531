"""Scans, row by row or as of one instant, and transactions that scanned before they decide."""

from __future__ import annotations

import pickle
from collections.abc import Callable
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
    Z,
    after_status,
    stopped_at,
)
from txn import Engine
from txn.errors import (
    AbortedError,
    ConflictError,
    DeadlineError,
    InvalidRequestError,
    NotApplied,
)
from txn.model import (
    KEEP_DELETES_MS,
    MAX_ROW,
    Check,
    Delete,
    Edit,
    Key,
    Mutation,
    Row,
    RowCells,
    cell_bytes,
    new_tuple,
)
from txn.policy import Policy
from txn.protocol import prepare as prepare_module
from txn.protocol.row import LATE, column
from txn.protocol.statuses import ProtocolName, Status
from txn.spans import Span, make_span
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


@pytest.fixture
def world() -> World:
    return World()


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
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"table": "none"}, "no such table"),
        ({"columns": [("e", "x")]}, "no such family"),
        ({"columns": [("d", "x_lock")]}, "reserved"),
        ({"columns": ["d:x"]}, "pairs"),
        ({"columns": []}, "columns"),  # HBase would return all for none
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
def test_a_scan_ends_at_its_deadline(world: World, snapshot: bool) -> None:
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
    world.faults.plan = lambda call: Fault(frozenset(), Reply.NOT_APPLIED)
    for read in (
        lambda: world.engine.read([key("a")], deadline_ms=100),
        lambda: world.engine.run(lambda t: t.get(key("a")), deadline_ms=100),
    ):
        began_ms = world.clock.monotonic_ms()
        with pytest.raises(NotApplied):
            read()
        assert 0 < world.clock.monotonic_ms() - began_ms <= 200


def test_a_view_may_be_bounded_in_bytes(world: World) -> None:
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
        absent: list[Any] = [other, Key("x", "d", "x", "other"), "x", Key("x", "d", "y", TABLE)]
        for missing in absent:
            assert cells.get(missing) is None
            with pytest.raises(KeyError):
                cells[missing]
    assert row == Row(b"x", {X: row.cells[X]}) == pickle.loads(pickle.dumps(row))
    assert Key("x", "d", "x") not in RowCells()


def test_a_span_contains_what_its_scan_finds() -> None:
    wanted = make_span(TABLE, "b", "d", columns=[("d", "x")])
    assert key("b") in wanted
    others = [key("a"), key("d"), key("b", "y"), key("b")._replace(table=b"other")]
    assert not any(other in wanted for other in others)
    assert key("z", "y") in Span(TABLE)
    with pytest.raises(InvalidRequestError, match="no table"):
        make_span(None)


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


def before_each_scan(world: World, work: Callable[[int], object]) -> None:
    seen: list[Call] = []

    def plan(call: Call) -> Fault:
        if call.method == "scan":
            seen.append(call)
            work(len(seen))
        return Fault()

    world.faults.plan = plan


@pytest.mark.parametrize("stops", [True, False])
def test_a_row_that_never_stands_still_is_read_under_its_locks(world: World, stops: bool) -> None:
    """The key that came to it meanwhile is locked as well: half a commit is never seen."""
    filled(world, "x")
    stopped_at(world, Status.ASSERTED)
    writer, engine = world.client(seed=9), world.client(world.faults, seed=2)
    list(engine.scan())

    def work(number: int) -> None:
        if number <= 22 or not stops:
            names = ("y", "z") if number < 20 else ("y", f"n{number}")
            writer.commit([Mutation(key("x", name), b"%d" % number) for name in names])

    before_each_scan(world, work)
    if not stops:
        with pytest.raises(ConflictError, match="keeps growing"):
            list(engine.scan())
        return
    (row,) = engine.scan()
    assert row.cells[key("x", "y")].value == row.cells[key("x", "n22")].value == b"22"
    assert world.holder(key("x", "y")) == b""


def test_the_longest_row_is_looked_at_again(world: World) -> None:
    """Nothing that HBase would take for a start comes behind it directly."""
    longest = b"x" * MAX_ROW
    filled(world, longest, b"y")
    stopped_at(world, Status.ASSERTED, key=key(longest))
    found = values(world.client(seed=2).scan())
    assert found == {longest: {b"x": b"2"}, b"y": {b"x": b"1"}}


def test_a_scan_goes_on_where_the_store_failed(world: World) -> None:
    rows = [b"%03d" % number for number in range(250)]
    filled(world, *rows)
    engine = world.client(BreakingOff(world.faults), seed=2)  # type: ignore[arg-type]
    assert [row.row for row in engine.scan()] == rows
    world.faults.plan = lambda call: Fault(frozenset(), Reply.NOT_APPLIED)
    with pytest.raises(NotApplied):
        list(engine.scan())


@pytest.fixture
def decided() -> tuple[World, list[bytes]]:
    """Clients that died after they had decided to write many rows each; the holders."""
    world = World()
    holders = []
    for prefix, count in zip("0123", (150, 140, 140, 350), strict=True):
        after_status(world, Status.ASSERTED, Fault(reply=Reply.CRASH))
        rows = [key(f"{prefix}{number:03d}") for number in range(count)]
        with pytest.raises(Crash):
            world.client(world.faults, seed=len(world.rows()) + 100).commit(
                [Mutation(row, b"new") for row in rows]
            )
        world.faults.crashed = False
        holders.append(world.holder(rows[0]))
    world.faults.plan = lambda call: Fault()
    return world, holders


def test_what_was_decided_is_kept_for_many_pages_within_a_bound(
    decided: tuple[World, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a transaction of many rows would be decoded for each hundred of them."""
    monkeypatch.setattr("txn.reading.scans.MOST_KEPT", 300)
    world, holders = decided
    counting = CountingStore(world.store)
    found = values(world.client(counting, seed=2).scan())  # type: ignore[arg-type]
    assert len(found) == 780
    assert {tuple(row.values()) for row in found.values()} == {(b"new",)}
    asked = [call.items for call in counting.trace if call.method == "read"]
    buffers = [column(b"txn", holder, b"buffer") for holder in holders]
    reads = [sum(buffer in items for items in asked) for buffer in buffers]
    assert reads[:2] == [1, 1]
    assert max(reads) <= 3  # each of the others is pushed out once, or twice, at the end of another


def test_how_far_the_decided_has_got_is_read_for_each_page(
    decided: tuple[World, list[bytes]],
) -> None:
    """Its lock may come back as a ghost, to a key that others have written since."""
    world, holders = decided
    engine, ghosted = world.client(seed=2), key("3220")
    rows = engine.scan(prefix="3")
    assert next(rows).cells[key("3000")].value == b"new"
    world.client(seed=3).commit([Mutation(ghosted, b"newer")])  # which finishes the other first
    assert world.store.check_and_put([Check(ghosted.lock, b"", ((ghosted.lock, holders[-1]),))])
    found = {row.row: row.cells for row in rows}
    assert len(found) == 349
    assert found[b"3220"][ghosted].value == b"newer"


def test_a_range_that_never_stands_still_is_a_conflict(world: World) -> None:
    """There is no lock that would hold off what comes into it."""
    writer, engine = world.client(seed=9), world.client(world.faults, seed=2)
    list(engine.scan())
    before_each_scan(world, lambda n: writer.commit([Mutation(key(f"{n:03}"), b"1")]))
    with pytest.raises(ConflictError, match="rows keep changing"):
        engine.scan(snapshot=True)


def delete_keys(world: World, count: int) -> None:
    """Keys as deletes leave them: a free lock and an empty tag."""
    left = [key(b"%06d" % number) for number in range(count)]
    now = world.clock.wall_ms()
    world.store.write([Edit(cell, b"", now) for key in left for cell in (key.lock, key.tag)])


def test_a_snapshot_has_a_limit_that_deleted_keys_do_not_count_to() -> None:
    """A queue in a table leaves them for as long as fsck keeps them."""
    world = World(policy=Policy(snapshot_rows=3))
    delete_keys(world, 10)
    filled(world, "a", "b", "c")
    assert [row.row for row in world.engine.scan(snapshot=True)] == [b"a", b"b", b"c"]
    with world.engine.transaction() as t:
        t.put(key("a"), b"%d" % len(t.scan()))
    assert world.value(key("a")) == b"3"
    stopped_at(world, Status.LOCKED)
    with pytest.raises(InvalidRequestError, match="limit=3"):
        world.engine.scan(snapshot=True)
    assert len(list(world.engine.scan(snapshot=True, stop="d"))) == 3


@both_ways
def test_looks_of_a_scan_lie_close_together(world: World, snapshot: bool) -> None:
    """What came and went between two looks that lie a day apart may have been retired."""
    filled(world, "a")
    stopped_at(world, Status.ASSERTED)
    counting = CountingStore(world.faults)

    def wait(number: int) -> None:
        if number == 2:
            world.clock.advance(KEEP_DELETES_MS)

    before_each_scan(world, wait)
    found = world.client(counting, seed=2).scan(snapshot=snapshot)  # type: ignore[arg-type]
    assert values(found) == {b"a": {b"x": b"1"}, b"x": {b"x": b"2"}}
    assert counting.calls["scan"] == 4


ITEM = Key("item", "d", "x", TABLE)


def stopped_block(
    world: World, status: Status = Status.LOCKED, validate: bool | None = None
) -> bytes:
    """Let a block die that scanned x, or validates it, and puts y; return its row key."""
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    client = world.client(world.faults, seed=9)
    after_status(world, status, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash), client.transaction(validate=validate) as t:
        assert t.get(X) if validate else t.scan(stop="y")
        t.put(Y, b"2")
    world.faults.crashed, world.faults.plan = False, lambda call: Fault()
    return world.holder(Y)


READS: dict[str, Callable[[Engine], object]] = {
    "read": lambda engine: engine.read([Y]),
    "read at one instant": lambda engine: engine.read([Y]),
    "read of two rows": lambda engine: engine.read([Y, Z]),
    "read of both": lambda engine: engine.read([X, Y]),
    "read of what is only asserted": lambda engine: engine.read([X]),
    "scan": lambda engine: list(engine.scan()),
    "snapshot": lambda engine: list(engine.scan(snapshot=True)),
}
WAITING = [name for name in READS if name != "read of what is only asserted"]


def waited_ms(world: World, name: str) -> int:
    engine = world.client(seed=3)
    if name == "read at one instant":  # as from an embedded store
        engine = Engine(world.store, table=TABLE, policy=world.policy, clock=world.clock)
    began_ms = world.clock.monotonic_ms()
    READS[name](engine)
    return world.clock.monotonic_ms() - began_ms


@pytest.mark.parametrize("validate", [None, True], ids=["range", "key"])
@pytest.mark.parametrize("status", [Status.WRITTEN, Status.LOCKED])
@pytest.mark.parametrize("name", WAITING)
def test_who_reads_what_it_replaces_waits_for_its_decision(
    name: str, status: Status, validate: bool | None
) -> None:
    """It may have validated what it read, which may have changed since, and been read."""
    for is_damaged in (False, True):
        world = World()
        row_key = stopped_block(world, status, validate)
        if is_damaged:
            buffer = column(b"txn", row_key, b"buffer")
            world.store.write([Edit(buffer, b"?", world.clock.wall_ms() + 1)])
        assert waited_ms(world, name) >= world.policy.lock_ttl_ms
        assert world.value(Y) == b"1"
        assert is_damaged or waited_ms(world, name) == 0


@pytest.mark.parametrize("status", [Status.WRITTEN, Status.LOCKED, Status.ASSERTED, Status.PUT])
def test_nobody_waits_at_any_other_time(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "EARLY", LATE)
    world = World()
    stopped_block(world, status)
    is_locked = status is Status.LOCKED
    assert waited_ms(world, "read of what is only asserted" if is_locked else "read of both") == 0


def block_beside(world: World, work: Callable[[Engine], object]) -> None:
    """Run a block that scans items and puts x; do some work before each later look at them."""
    world.engine.commit([Mutation(ITEM, b"1")])
    world.engine.commit([Delete(ITEM)])
    other = world.client(seed=5)

    def plan(call: Call) -> Fault:
        if call.method == "scan":
            work(other)
        return Fault()

    with world.client(world.faults, seed=4).transaction() as t:
        assert not t.scan(prefix="item")
        t.put(X, b"1")
        world.faults.plan = plan


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_a_block_commits_no_scanned_key_that_it_cannot_lock(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    world.put(new_tuple(Key, (*X[:2], b"", TABLE)), b"1")
    with (
        pytest.raises(InvalidRequestError, match="column is empty"),
        world.engine.transaction() as t,
    ):
        assert len(list(t.scan())) == 1
        t.put(Y, b"2")
    assert world.value(Y) is None
    assert not world.rows()


def test_a_range_that_is_changed_at_each_look_is_a_conflict(world: World) -> None:

    def come_and_go(other: Engine) -> None:
        other.commit([Mutation(ITEM, b"2")])
        other.commit([Delete(ITEM)])

    with pytest.raises(ConflictError, match="keep changing"):
        block_beside(world, come_and_go)
    assert world.value(X) is None


def test_a_range_that_stands_still_is_looked_at_twice_where_keys_were_deleted() -> None:
    """And once where none were: see what a block costs."""
    looks: list[Engine] = []
    world = World()
    block_beside(world, looks.append)
    assert (world.value(X), len(looks)) == (b"1", 2)


def test_a_look_that_takes_too_long_is_past_the_deadline(world: World) -> None:
    with pytest.raises(DeadlineError, match="before the decision"):
        block_beside(world, lambda _: world.clock.advance(world.policy.deadline_ms + 1))
    with pytest.raises(AbortedError):
        block_beside(world, lambda other: other.commit([Mutation(ITEM, b"2")]))


def test_looks_that_lie_far_apart_are_not_compared(world: World) -> None:
    """A key may have been deleted and retired between them: nothing in the range tells of it."""
    world.engine.commit([Mutation(X, b"1"), Mutation(ITEM, b"1")])
    scanned: list[Call] = []

    def stop_for_a_day(call: Call) -> Fault:
        if call.method == "scan":
            scanned.append(call)
            if len(scanned) == 1:
                world.clock.advance(KEEP_DELETES_MS)
        return Fault()

    with world.client(world.faults, seed=9).transaction(deadline_ms=2 * KEEP_DELETES_MS) as t:
        assert len(t.scan()) == 2
        t.put(X, b"2")
        world.faults.plan = stop_for_a_day
    assert len(scanned) == 3
